"""A process of ours on this machine: it is started, started again after a kill, and ended in order.

The starter holds the other end of its standard input. When that closes, the process ends itself:
nothing is left of it when its starter is killed.

Laws for a child of a cluster that ends before the run does:
- One that was killed is started again at once, unless that happens too often.
- One that ended with an error and has trained before is started again, the more often the later. It
  may be well again: a device was unplugged, memory was short.
- One that has never trained, or whose settings are wrong, will not be well again. The run goes on
  without it as long as there is another one.
- Whatever happens is said.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.runtime.pacing import RestartPolicy
from genkidama.runtime.script import mark
from genkidama.runtime.worker_process import OwnedProcess

__all__ = ["Attended", "Process", "failure", "losses"]

#: A process that is lost more often within a minute will be lost again.
MOST_LOSSES = 5

#: A child that fails more often in a row is left out. That takes some four minutes.
_MOST_FAILURES = 8


def losses() -> RestartPolicy:
    """The policy for a process or an actor that is killed."""
    return RestartPolicy(MOST_LOSSES + 1, window=60.0, rest=1.0)


def failure(code: int, reason: str) -> GenkidamaError:
    """The error that a process with this exit code has ended with."""
    if code == ConfigurationError.exit_code:
        return ConfigurationError(reason)
    return EnvironmentFailure(reason)


class Process(OwnedProcess):
    """One process: its command, its log, and how often it was started again.

    Args:
        name: how people call it.
        command: a module of ours and its arguments.
        log: where its standard output and error go, behind what is there already.
        descriptors: open files that it inherits.
        environment: what is added to this process' environment.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        descriptors: tuple[int, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._descriptors = descriptors
        self._environment = {**os.environ, **mark(), **(environment or {})}
        self._losses = losses()
        #: What it has said last where its log cannot be written.
        self.said: Callable[[], str] = str
        self._file: IO[bytes] = log.open("ab")
        #: Where its own words begin.
        self._mark = log.stat().st_size
        self.start()

    def start(self) -> None:
        """Starts it. Ctrl-C reaches this process alone, which then ends the others in order."""
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", *self._command, "--until-eof"],
            stdin=subprocess.PIPE,
            stdout=self._file,
            stderr=self._file,
            pass_fds=self._descriptors,
            env=self._environment,
            start_new_session=True,
        )
        assert process.stdin is not None
        self._input = process.stdin

    def restart(self) -> None:
        """Starts it again after it was killed.

        Raises:
            EnvironmentFailure: it has been killed too often.
        """
        self._losses.died(time.monotonic())
        if self._losses.given_up:
            times = f"{self._losses.deaths} times within a minute"
            raise EnvironmentFailure(f"{self.name} was killed {times}; see {self.log}")
        self.start_again()

    def start_again(self) -> None:
        """Starts it again, however it ended."""
        self._mark = self.log.stat().st_size
        self._close_input()
        self.start()

    def error(self) -> str:
        """The last `error: …` line that it wrote, without the word.

        Where a traceback stands before it, it says so.
        """
        lines: list[str] = []
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(self._mark)
            lines = file.read().decode(errors="replace").splitlines()
        found = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if found and "Traceback (most recent call last):" in lines:
            return f"{found[-1]}; the whole traceback is in {self.log}"
        if found or (said := self.said()):
            return found[-1] if found else said
        return f"{self.name} ended with exit code {self.code}; see {self.log}"

    def end(self, grace: float) -> None:
        """Ends it: it is asked to, and killed if it is still there after `grace` seconds."""
        self.terminate()
        self.finish(grace)

    def close(self) -> None:
        """Closes its input and its log."""
        self._close_input()
        self._file.close()

    def _close_input(self) -> None:
        with contextlib.suppress(OSError):
            self._input.close()


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
