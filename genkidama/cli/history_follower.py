"""What a parent tells its starter: its history and, where it cannot write that, words aside.

Each is told once: what was told aside may come into the history later.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from genkidama.runs.fallback_log import FallbackReader
from genkidama.runs.history import Follower
from genkidama.runtime.process import Process

__all__ = ["HistoryReader", "note_loss"]


class HistoryReader:
    """Follows one run.

    Args:
        history: its file, which need not be there yet.
    """

    def __init__(self, history: Path) -> None:
        self._history = Follower(history)
        self._aside = FallbackReader()
        #: The reasons that were told aside, the newest last.
        self._told: dict[str, None] = {}
        self._waiting: list[dict[str, Any]] = []

    @property
    def descriptor(self) -> int:
        """Where the parent writes what it says aside."""
        return self._aside.descriptor

    def read(self) -> list[dict[str, Any]]:
        """The events since the last call."""
        lines = [msgspec.json.decode(line) for line in self._history.read()]
        while self._history.behind:
            lines += [msgspec.json.decode(line) for line in self._history.read()]
        found = [line for line in lines if line.get("reason") not in self._told]
        self.said()
        found += self._waiting
        self._waiting = []
        return found

    def said(self) -> str:
        """What was said aside last; empty if nothing was."""
        for line in self._aside.read():
            event = msgspec.json.decode(line)
            self._told[event["reason"]] = None
            self._waiting.append(event)
        return next(reversed(self._told), "")

    def close(self) -> None:
        """Closes what is open."""
        self._aside.close()


def note_loss(error: BaseException | None, parent: Process) -> None:
    """Has an error say that the parent, which has ended, could not write its last checkpoint."""
    if error is None or not parent.code:
        return
    reason = "it was killed before that" if parent.code < 0 else parent.error()
    if reason not in str(error):
        error.add_note(f"the parent has not written its last checkpoint: {reason}")
