"""What becomes of a child of a cluster on this machine that ends before the run does.

Laws of this file:
- One that was killed is started again at once, unless that happens too often.
- One that ended with an error and has trained before is started again, the more often the later. It
  may be well again: a device was unplugged, memory was short.
- One that has never trained, or whose settings are wrong, will not be well again. The run goes on
  without it as long as there is another one.
- Whatever happens is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.local.processes import Process, failure
from genkidama.pacing import RestartPolicy

__all__ = ["Attended"]

#: One that fails more often in a row is left out. That takes some four minutes.
_MOST_FAILURES = 8


class Attended:
    """A child's process, looked after.

    Args:
        process: the process, which runs.
        say: told what happens to it, in one line.
    """

    def __init__(self, process: Process, say: Callable[[str], None]) -> None:
        self.process = process
        #: Why the run goes on without it; None while it does not.
        self.failure: GenkidamaError | None = None
        self._say = say
        self._has_trained = False
        self._policy = RestartPolicy(_MOST_FAILURES + 1, rest=1.0, at_once=0)
        #: When it is started again.
        self._due = math.inf

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def done(self) -> bool:
        """Whether it has ended in order."""
        return self.process.code == 0

    def trained(self) -> None:
        """It has made steps and exchanged weights."""
        self._has_trained = True
        self._policy.worked()

    def look(self, now: float) -> None:
        """Does what is to be done about it.

        Args:
            now: seconds, never less than at the call before.
        """
        code = self.process.code
        if not code or self.failure is not None:
            return
        try:
            if code < 0:
                self.process.restart()
                self._say(f"{self.name} was killed, and is started again")
            elif now >= self._due:
                self._due = math.inf
                self.process.start_again()
            elif self._due == math.inf:
                self._failed(failure(code, self.process.error()), now)
        except GenkidamaError as error:
            self._leave_out(error)
        except OSError as error:
            self._leave_out(EnvironmentFailure(f"{self.name}: cannot be started: {error.strerror}"))

    def _failed(self, error: GenkidamaError, now: float) -> None:
        rest = self._policy.died(now)
        wrong = isinstance(error, ConfigurationError) or not self._has_trained
        if wrong or self._policy.given_up:
            self._leave_out(error)
            return
        self._due = now + rest
        self._say(f"{self.name} failed, and is started again in {rest:.0f} s: {error}")

    def _leave_out(self, error: GenkidamaError) -> None:
        self.failure = error
        self._say(f"{self.name} is left out: {error}")
