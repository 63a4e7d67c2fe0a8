"""Writer and reader of `history.jsonl`, which has one line for each event of a run.

Laws of this file:
- Lines are collected in memory and written together by `flush`; a crash loses unflushed lines, and
  a power cut what came after `sync`.
- A write that fails loses nothing either: the lines stay and the next `flush` tries again. When
  `BACKLOG` bytes are waiting, further lines are dropped and counted.
- Every line in the file is whole: a line that a crash tore is cut off before the next is written.
  Until then nobody reads it.
- One process writes; a second one that opens the same file is refused.
- A file that was deleted or moved away is made anew, and a reader starts again with it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runtime.files import disk_errors, hint, make_folder
from genkidama.server.events import Event, as_lines

#: How much is kept for a disk that is full: a hundred thousand exchanges.
BACKLOG = 16 << 20

#: So much of a file is read at a time. No line is longer: what has no end within it is damage.
PIECE_BYTES = 1 << 20

#: So much is read at a time in search of the last line's end; hardly any is longer.
_TAIL = 1 << 16


def whole_lines(text: bytes) -> bytes:
    """All of `text` but a last line that is torn, or still being written."""
    return text[: text.rfind(b"\n") + 1]


def whole_length(path: Path) -> int:
    """The bytes of a history that are whole lines; 0 if there is no file."""
    try:
        with path.open("rb") as file:
            return _whole_length(file.fileno())
    except FileNotFoundError:
        return 0


def last_time(path: Path) -> float:
    """The time of the last whole line of a history; 0 if there is none that says one."""
    with suppress(OSError, msgspec.MsgspecError), path.open("rb") as file:
        end = _whole_length(file.fileno())
        start = max(0, end - PIECE_BYTES)
        line = os.pread(file.fileno(), end - start, start).splitlines()[-1:]
        return msgspec.json.decode(b"".join(line), type=Event).time
    return 0.0


def _whole_length(file: int) -> int:
    end = os.fstat(file).st_size
    while end:
        start = max(0, end - _TAIL)
        if whole := whole_lines(os.pread(file, end - start, start)):
            return start + len(whole)
        end = start
    return 0


def read_lines(path: Path) -> Iterator[bytes]:
    """The whole lines of a history, oldest first; none if there is no file."""
    try:
        with path.open("rb") as file:
            while line := file.readline(PIECE_BYTES):
                if line.endswith(b"\n"):
                    yield line
                elif len(line) == PIECE_BYTES:
                    raise ConfigurationError(
                        f"{path}: is damaged: a line is longer than {PIECE_BYTES >> 20} MiB; "
                        "take that line out to go on without it"
                    )
    except FileNotFoundError:
        return


class HistoryTail:
    """Reads what is added from now on to a history, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: How many bytes of the file were there before, or have been read.
        self.position = whole_length(path)
        #: Whether more lines may be there already than the last call of `read` gave.
        self.behind = False
        #: How many pieces without the end of a line were passed over.
        self.skipped = 0
        #: Why it cannot be read at present; empty if it can.
        self.problem = ""
        self._identity: tuple[int, int] | None = None

    def read(self) -> list[bytes]:
        """The next lines that were not read yet, within 1 MiB of the file.

        Empty while it cannot be read, as `problem` says.
        """
        self.problem = ""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                identity = _identity(status)
                # A file that is made anew may have the number of the one before.
                if self._identity not in (None, identity) or status.st_size < self.position:
                    self.position = 0
                self._identity = identity
                file.seek(self.position)
                piece = file.read(PIECE_BYTES)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self.problem = f"it cannot be read: {error.strerror}"
            self.behind = False
            return []
        found = whole_lines(piece)
        self.behind = len(piece) == PIECE_BYTES
        passed_over = self.behind and not found
        self.skipped += passed_over
        self.position += len(piece if passed_over else found)
        return found.splitlines()


class History:
    """The history file of one run, open for appending; made if there is none.

    An EnvironmentFailure says that it cannot be written, or another parent is writing it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: How many lines were dropped because nothing could be written for too long.
        self.dropped = 0
        self._waiting = bytearray()
        #: What the file ends with, of a line that is not whole yet.
        self._begun = b""
        self._file = self._open()

    def _open(self) -> int:
        path = self.path
        with disk_errors(path):
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                whole = _whole_length(opened)
                if whole < os.fstat(opened).st_size:
                    os.ftruncate(opened, whole)
            except BlockingIOError:
                os.close(opened)
                raise EnvironmentFailure(
                    f"{path}: another parent is writing this run; "
                    "choose another directory with --out"
                ) from None
            except OSError:
                os.close(opened)
                raise
            return opened

    @property
    def gone(self) -> bool:
        """True if the open file is no longer the one of this name."""
        try:
            return _identity(os.stat(self.path)) != _identity(os.fstat(self._file))
        except OSError:
            return True

    def reopen(self) -> None:
        """Writes from now on into a new file of this name, in a folder that is made if missing."""
        make_folder(self.path.parent)
        opened = self._open()
        os.close(self._file)
        self._file = opened
        self._waiting[:0] = self._begun
        self._begun = b""

    def add(self, events: Sequence[Event]) -> None:
        """Takes one line an event; nothing is written yet."""
        if len(self._waiting) < BACKLOG:
            self._waiting += as_lines(events)
        else:
            self.dropped += len(events)

    def flush(self) -> None:
        """Writes the lines taken so far; after an EnvironmentFailure the next call does."""
        try:
            while self._waiting:
                written = os.write(self._file, self._waiting)
                self._begun = (self._begun + self._waiting[:written]).rpartition(b"\n")[2]
                del self._waiting[:written]
        except OSError as error:
            raise EnvironmentFailure(
                f"{self.path}: cannot be written: {error.strerror}; the run goes on, {hint(error)}"
            ) from None

    def sync(self) -> None:
        """Returns when what is written would survive a power cut.

        Raises:
            EnvironmentFailure: the disk does not take it.
        """
        with disk_errors(self.path):
            os.fsync(self._file)

    def close(self) -> None:
        """Closes the file. What `flush` could not write is lost."""
        os.close(self._file)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def write_fallback(descriptor: int) -> Callable[[bytes], None]:
    """A function that writes lines to the inherited end of an `FallbackReader`."""
    os.set_blocking(descriptor, False)

    def write(lines: bytes) -> None:
        with suppress(OSError):  # it is full, or nobody reads any more
            os.write(descriptor, lines)

    return write


class FallbackReader:
    """The starter's end of the pipe. Its processes inherit `descriptor`, one after another."""

    def __init__(self) -> None:
        self._reader, self.descriptor = os.pipe()
        os.set_blocking(self._reader, False)
        self._begun = b""

    def read(self) -> list[bytes]:
        """The whole lines that have come since the last call."""
        with suppress(BlockingIOError):
            self._begun += os.read(self._reader, 1 << 16)
        whole = whole_lines(self._begun)
        self._begun = self._begun[len(whole) :]
        return whole.splitlines()

    def close(self) -> None:
        """Closes both ends here."""
        os.close(self._reader)
        os.close(self.descriptor)
