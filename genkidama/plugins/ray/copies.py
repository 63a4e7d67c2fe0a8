"""The copy of a parent's run directory that the driver of a launch keeps.

Laws of this file:
- A search's study is kept back until the weights of all its reports are here. Until then it is held
  in memory. The next list of the parent's files says what it waits for.
- A disk that fails here ends no run. It is reported, and what could not be written is fetched
  again. But what the parent has left at its end must be written, or the run is not whole.
- Each event is passed on once, also if it comes again, or came by the fallback before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from genkidama.errors import EnvironmentFailure
from genkidama.runs.history import whole_length
from genkidama.runs.run import HISTORY, LOGS, STUDY
from genkidama.runtime.files import hint, make_folder, write_atomically
from genkidama.runtime.pacing import Once
from genkidama.server.events import Stopped, from_line

__all__ = ["RunCopy"]


class RunCopy:
    """The files of a run here, and which of the parent's are missing.

    Args:
        run: the run directory, which exists. A torn last line of its history is cut off.
        watch: receives each new line of the history.
        say: receives a line about a disk that fails, once for each failure.

    Raises:
        EnvironmentFailure: the history cannot be read.
    """

    def __init__(
        self, run: Path, watch: Callable[[dict[str, Any]], None], say: Callable[[str], None]
    ) -> None:
        self._run = run
        self._watch = watch
        self._say = say
        self._history = run / HISTORY
        #: Bytes of the parent's history that are here, and those whose lines were passed on.
        self.position = 0
        self.mend()
        self._watched = self.position
        #: The reasons that came by the fallback.
        self._fallback: set[str] = set()
        #: Whether the parent has ended, so that nothing comes later.
        self.last = False
        self._problem = Once()
        #: The parent's files, with marks that change when the files do.
        self.marks: dict[str, str] = {}
        #: The files here, with the marks of what was copied.
        self._ours: dict[str, str] = {}
        #: A study that is kept back, with its mark.
        self._study: tuple[bytes, str] | None = None
        #: Files to arrive before it; None if they are not known yet.
        self._awaited: set[str] | None = None

    def mend(self) -> None:
        """Cuts off a last line of the history that is torn.

        Raises:
            EnvironmentFailure: it cannot be cut off.
        """
        try:
            self.position = whole_length(self._history)
            if self._history.exists() and self._history.stat().st_size > self.position:
                os.truncate(self._history, self.position)
        except OSError as error:
            raise _unwritten(self._history, error) from None

    def begin(self, given: dict[str, str]) -> None:
        """Notes a new parent, which was given these files."""
        self._ours = dict(given)
        self.marks = given
        self._study = None
        self._awaited = None

    # Everything below that writes reports a failure, and raises it once the parent has ended.

    def add_log(self, name: str, text: bytes) -> bool:
        """Appends the output of a process; false if it could not be written."""
        return self._attempt(lambda: _append(self._run / LOGS / f"{name}.log", text))

    def add_history(self, lines: bytes, fallback: bytes = b"") -> str:
        """Appends lines of the history from `position` on, and passes on those of the fallback.

        Returns:
            Why the run has stopped; empty if that is not among them.
        """
        for text in fallback.splitlines():
            line = msgspec.json.decode(text)
            self._fallback.add(line["reason"])
            self._watch(line)
        begin = self.position
        if not lines or not self._attempt(lambda: self._append_history(lines)):
            return ""
        new = lines[max(0, self._watched - begin) :]
        self._watched = max(self._watched, begin + len(lines))
        reason = ""
        for text in new.splitlines():
            line = msgspec.json.decode(text)
            event = from_line(line)
            if isinstance(event, Stopped):
                reason = event.reason
            if line.get("reason") not in self._fallback:
                self._watch(line)
        return reason

    def list_files(self, marks: dict[str, str]) -> None:
        """Notes which files the parent has now, and writes a study that is due."""
        self.marks = marks
        if self._study is not None and self._awaited is None:
            self._awaited = set(self.missing)
            self._attempt(self._write_study)

    def add_files(self, contents: dict[str, bytes | None], marks: dict[str, str]) -> None:
        """Writes files of the parent.

        Args:
            contents: None for a file that is gone, or cannot be read now: the next list will tell.
            marks: those of the moment of the request.
        """
        self._attempt(lambda: self._add_files(contents, marks))

    @property
    def missing(self) -> list[str]:
        """The parent's files that are neither here nor kept back."""
        return [
            path
            for path, mark in self.marks.items()
            if self._ours.get(path) != mark and not (path == STUDY and self._study)
        ]

    @property
    def complete(self) -> bool:
        """True if all files of the last list are here."""
        return not self.missing and self._study is None

    @property
    def wanted(self) -> list[str]:
        """Files to request now. The study comes alone, and then a list."""
        if self._study is not None and self._awaited is None:
            return []
        missing = self.missing
        return [STUDY] if STUDY in missing else missing

    def _attempt(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except EnvironmentFailure as problem:
            if self.last:
                raise
            if self._problem.is_new(str(problem)):
                self._say(f"{problem}; it is tried again")
            return False
        return True

    def _append_history(self, lines: bytes) -> None:
        if self.position and not self._history.exists():
            self.position = 0
            self._ours = {}
            raise EnvironmentFailure(
                f"{self._run}: was deleted or moved while the run goes on; it is copied again"
            )
        try:
            _append(self._history, lines)
        except EnvironmentFailure:
            with suppress(EnvironmentFailure):
                self.mend()
            raise
        self.position += len(lines)

    def _add_files(self, contents: dict[str, bytes | None], marks: dict[str, str]) -> None:
        for path, content in contents.items():
            if content is None:
                self._awaited = None
            elif path == STUDY:
                self._study = content, marks[path]
                self._awaited = None
            else:
                self._write(path, content, marks[path])
        self._write_study()

    def _write(self, path: str, content: bytes, mark: str) -> None:
        target = self._run / path
        make_folder(target.parent)
        write_atomically(target, content)
        self._ours[path] = mark
        if self._awaited is not None:
            self._awaited.discard(path)
        for old in self._ours.keys() - self.marks.keys():
            file = self._run / old
            if file.parent == target.parent:  # a checkpoint that the parent has deleted
                del self._ours[old]
                file.unlink(missing_ok=True)

    def _write_study(self) -> None:
        """Writes the study when the weights of all its reports are here."""
        if self._study is not None and self._awaited is not None and not self._awaited:
            content, mark = self._study
            self._study = None
            self._write(STUDY, content, mark)


def _append(path: Path, text: bytes) -> None:
    make_folder(path.parent)
    try:
        with path.open("ab") as file:
            file.write(text)
    except OSError as error:
        raise _unwritten(path, error) from None


def _unwritten(path: Path, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(f"{path}: cannot be written: {error.strerror}; {hint(error)}")
