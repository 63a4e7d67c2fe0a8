"""What processes complain about in their logs, for whoever watches the terminal.

Laws of this file:
- Warnings and errors are told once, and summed up while they are repeated.
- What the history tells as well is left to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from genkidama.runs.history import Follower
from genkidama.runtime.pacing import Throttle

__all__ = ["LogWatcher"]

#: A complaint that is repeated is told again after this many seconds.
_AGAIN_SECONDS = 60.0

_LEVELS = ("warning", "error", "critical")

#: What progress shows anyway.
_KNOWN = ("trial failed",)

#: A complaint is cut off here.
_LONGEST = 300


class LogWatcher:
    """Reads what is added to some logs of `configure_logging` from now on.

    Args:
        logs: the files, each named for its process; they need not be there yet.
    """

    def __init__(self, logs: Sequence[Path]) -> None:
        self._logs = [(path.stem, Follower(path)) for path in logs]
        self._throttle = Throttle[str](_AGAIN_SECONDS)

    def read(self, now: float) -> list[str]:
        """A line for each complaint that has come since the last call and is to be told.

        Args:
            now: seconds, never less than at the call before.
        """
        found = []
        for name, log in self._logs:
            for line in log.read():
                if not (words := _complaint(line)):
                    continue
                words = f"{name}: {words}"
                # Counts and times in it make it no other complaint.
                kind = "".join(letter for letter in words if not letter.isdigit())
                if self._throttle.add(kind, words, now):
                    found.append(words)
        due = self._throttle.due(now)
        return found + [
            f"{words} ({count - 1} times more since)" if count > 1 else words
            for words, count in due
        ]


def _complaint(line: bytes) -> str:
    """The complaint in a line of a log; empty if there is none."""
    try:
        told: Any = msgspec.json.decode(line)
    except msgspec.DecodeError:  # what an environment prints, or a traceback
        return ""
    if not isinstance(told, dict) or told.get("level") not in _LEVELS:
        return ""
    event = str(told.get("event", ""))
    if event in _KNOWN:
        return ""
    which = next((f" {told[noun]}" for noun in ("core", "agent") if noun in told), "")
    reason = f": {told['reason']}" if "reason" in told else ""
    return " ".join(f"{event}{which}{reason}".split())[:_LONGEST]
