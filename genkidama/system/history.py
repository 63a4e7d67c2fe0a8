"""`history.jsonl`: what happened in a run, one JSON object a line, for whoever plots or resumes it.

Laws of this file:
- Lines are gathered in memory and written together by `flush`; a crash loses what was not flushed.
- A write that fails loses nothing either: the lines stay, and the next `flush` tries again. Further
  lines are dropped only when `BACKLOG` bytes have gathered, and they are counted.
- Every line in the file is whole: a line that a crash tore is cut off before the next is written.
- One process writes; a second one that opens the same file is refused.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from genkidama.errors import EnvironmentFailure
from genkidama.events import Event, as_lines

__all__ = ["BACKLOG", "History"]

#: How much is kept for a disk that is full: a hundred thousand exchanges.
BACKLOG = 16 << 20

_TAIL = 1 << 16


class History:
    """The history file of one run, open for appending.

    Args:
        path: the file; made if there is none.

    Raises:
        EnvironmentFailure: it cannot be written, or another parent is writing it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: How many lines were dropped because nothing could be written for too long.
        self.dropped = 0
        self._waiting = bytearray()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise EnvironmentFailure(
                f"{path}: cannot be written: {error.strerror}; choose another directory with --out"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._mend()
        except OSError as error:
            os.close(self._file)
            if isinstance(error, BlockingIOError):
                raise EnvironmentFailure(
                    f"{path}: another parent is writing this run; "
                    "choose another directory with --out"
                ) from None
            raise EnvironmentFailure(
                f"{path}: cannot be written: {error.strerror}; choose another directory with --out"
            ) from None

    def add(self, events: Sequence[Event]) -> None:
        """Takes one line an event; nothing is written yet."""
        if len(self._waiting) < BACKLOG:
            self._waiting += as_lines(events)
        else:
            self.dropped += len(events)

    def flush(self) -> None:
        """Writes the lines taken so far.

        Raises:
            EnvironmentFailure: the disk is full, …; the lines are kept for the next call.
        """
        try:
            while self._waiting:
                del self._waiting[: os.write(self._file, self._waiting)]
        except OSError as error:
            raise EnvironmentFailure(
                f"{self.path}: cannot be written: {error.strerror}; the run goes on, free space"
            ) from None

    def close(self) -> None:
        """Closes the file. What `flush` could not write is lost."""
        os.close(self._file)

    def _mend(self) -> None:
        size = os.fstat(self._file).st_size
        tail = os.pread(self._file, _TAIL, max(0, size - _TAIL))
        torn = len(tail) - (tail.rfind(b"\n") + 1)
        if torn:
            os.ftruncate(self._file, size - torn)
