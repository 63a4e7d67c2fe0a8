"""What a driver does with what the parent tells: it is kept here, and told to whoever watches.

Laws of this file:
- A disk that fails here ends no run. It is said, and what could not be written is had again.
- But what the parent has left at its end must be written, or the run is not whole.
- Each event is told once, also if it comes again, or was said aside before it came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from genkidama.errors import EnvironmentFailure
from genkidama.events import Stopped, from_line
from genkidama.launch.copies import Copies
from genkidama.pacing import Once

__all__ = ["Keeper"]


class Keeper:
    """Writes to the run directory here.

    Args:
        copies: what of the run is here.
        watch: is called with each new line of the history.
        say: is called with a line about a disk that fails, once for each failure.
    """

    def __init__(
        self, copies: Copies, watch: Callable[[dict[str, Any]], None], say: Callable[[str], None]
    ) -> None:
        self._copies = copies
        self._watch = watch
        self._say = say
        #: Whether the parent has ended, so that nothing comes later.
        self.last = False
        #: So much of the history was told.
        self._seen = copies.position
        #: The reasons that were said aside.
        self._aside: set[str] = set()
        self._problem = Once()

    def keep(self, write: Callable[[], None]) -> bool:
        """Writes something; whether that was possible.

        Raises:
            EnvironmentFailure: it was not, and the parent has ended.
        """
        try:
            write()
        except EnvironmentFailure as problem:
            if self.last:
                raise
            if self._problem.is_new(str(problem)):
                self._say(f"{problem}; it is tried again")
            return False
        return True

    def take(self, history: bytes, aside: bytes) -> str:
        """Takes in lines of the history from the copy's position on, and what was said aside.

        Returns:
            Why the run has stopped; empty if that is not among them.

        Raises:
            EnvironmentFailure: they cannot be written, and the parent has ended.
        """
        for text in aside.splitlines():
            line = msgspec.json.decode(text)
            self._aside.add(line["reason"])
            self._watch(line)
        begin = self._copies.position
        if not history or not self.keep(lambda: self._copies.append_history(history)):
            return ""
        new = history[max(0, self._seen - begin) :]
        self._seen = max(self._seen, begin + len(history))
        reason = ""
        for text in new.splitlines():
            line = msgspec.json.decode(text)
            event = from_line(line)
            if isinstance(event, Stopped):
                reason = event.reason
            if line.get("reason") not in self._aside:
                self._watch(line)
        return reason
