"""The run directory that the driver keeps: what it has of the parent's files, and what is missing.

A report must have its weights. So the copy of a search's study is kept back until the weights of
all its reports are here. Until then it is held in memory. The next look at the parent's files says
what it waits for.

Laws of the keeper:
- A disk that fails here ends no run. It is said, and what could not be written is had again.
- But what the parent has left at its end must be written, or the run is not whole.
- Each event is told once, also if it comes again, or was said aside before it came.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from genkidama.errors import EnvironmentFailure
from genkidama.runs.directory import HISTORY, LOGS, STUDY
from genkidama.runs.history import whole_length
from genkidama.runtime.files import hint, make_folder, write_atomically
from genkidama.runtime.pacing import Once
from genkidama.server.events import Stopped, from_line

__all__ = ["Copies", "Keeper"]


class Copies:
    """What of a run is here.

    Args:
        run: the run directory, which exists. A torn last line of its history is cut off.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._history = run / HISTORY
        self.mend()
        #: The parent's files, with marks that change when they do.
        self._theirs: dict[str, str] = {}
        #: The files here, with the marks of what was copied.
        self._ours: dict[str, str] = {}
        #: A study that is kept back, with its mark.
        self._study: tuple[bytes, str] | None = None
        #: What is to be here before it; None if that is not known yet.
        self._awaited: set[str] | None = None

    def mend(self) -> None:
        """Cuts off a last line of the history that is torn.

        Raises:
            EnvironmentFailure: it cannot be cut off.
        """
        try:
            #: How much of the parent's history is here.
            self.position = whole_length(self._history)
            if self._history.exists() and self._history.stat().st_size > self.position:
                os.truncate(self._history, self.position)
        except OSError as error:
            raise _unwritten(self._history, error) from None

    # What the parent tells.

    def begin(self, given: dict[str, str]) -> None:
        """There is a new parent, which has been given these files."""
        self._ours = dict(given)
        self._theirs = given
        self._study = None
        self._awaited = None

    def append_history(self, lines: bytes) -> None:
        """Takes in new lines of the history.

        Raises:
            EnvironmentFailure: they cannot be written. They are to be had again from `position` on.
        """
        if self.position and not self._history.exists():
            self.position = 0
            self._ours = {}
            raise EnvironmentFailure(
                f"{self._run}: was deleted or moved while the run goes on; it is copied again"
            )
        try:
            append(self._history, lines)
        except EnvironmentFailure:
            with suppress(EnvironmentFailure):
                self.mend()
            raise
        self.position += len(lines)

    def append_log(self, name: str, text: bytes) -> None:
        """Takes in what a process has said.

        Raises:
            EnvironmentFailure: it cannot be written.
        """
        append(self._run / LOGS / f"{name}.log", text)

    def look(self, files: dict[str, str]) -> None:
        """Takes in which files the parent has now.

        Raises:
            EnvironmentFailure: the study, which is due now, cannot be written.
        """
        self._theirs = files
        if self._study is not None and self._awaited is None:
            self._awaited = set(self.missing)
            self._keep_study()

    # What is to be copied.

    @property
    def missing(self) -> list[str]:
        """What the parent has and is neither here nor kept back."""
        return [
            path
            for path, mark in self._theirs.items()
            if self._ours.get(path) != mark and not (path == STUDY and self._study)
        ]

    @property
    def complete(self) -> bool:
        """Whether all that the parent had when it was looked at last is here."""
        return not self.missing and self._study is None

    @property
    def wanted(self) -> list[str]:
        """What to ask the parent for now. The study comes alone, and then there is a look."""
        if self._study is not None and self._awaited is None:
            return []
        missing = self.missing
        return [STUDY] if STUDY in missing else missing

    @property
    def marks(self) -> dict[str, str]:
        """The marks of the parent's files, to be remembered while they are on their way."""
        return self._theirs

    def arrived(self, contents: dict[str, bytes | None], marks: dict[str, str]) -> None:
        """Takes in files of the parent.

        Args:
            contents: None for a file that is gone, or cannot be read now: the next look will tell.
            marks: those of the moment at which they were asked for.

        Raises:
            EnvironmentFailure: they cannot be written.
        """
        for path, content in contents.items():
            if content is None:
                self._awaited = None
            elif path == STUDY:
                self._study = content, marks[path]
                self._awaited = None
            else:
                self._keep(path, content, marks[path])
        self._keep_study()

    def _keep(self, path: str, content: bytes, mark: str) -> None:
        target = self._run / path
        make_folder(target.parent)
        write_atomically(target, content)
        self._ours[path] = mark
        if self._awaited is not None:
            self._awaited.discard(path)
        for old in self._ours.keys() - self._theirs.keys():
            file = self._run / old
            if file.parent == target.parent:  # a checkpoint that the parent has deleted
                del self._ours[old]
                file.unlink(missing_ok=True)

    def _keep_study(self) -> None:
        """Writes the study when the weights of all its reports are here."""
        if self._study is not None and self._awaited is not None and not self._awaited:
            content, mark = self._study
            self._study = None
            self._keep(STUDY, content, mark)


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


def append(path: Path, text: bytes) -> None:
    """Writes behind what is in a file.

    Raises:
        EnvironmentFailure: it cannot be written.
    """
    make_folder(path.parent)
    try:
        with path.open("ab") as file:
            file.write(text)
    except OSError as error:
        raise _unwritten(path, error) from None


def _unwritten(path: Path, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(f"{path}: cannot be written: {error.strerror}; {hint(error)}")
