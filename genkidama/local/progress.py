"""Follows a run, a search or an evaluation, and shows how it goes.

    with Progress(experiment) as progress:
        train(experiment, watch=progress)

On a terminal it is a display that is drawn over and over, in a notebook one below its cell.
Elsewhere, as in a log, it is a line now and then. What it shows, a standing knows.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from genkidama.events import (
    CheckpointWritten,
    Event,
    Refused,
    Resumed,
    Started,
    TrialFailed,
    Warned,
    from_line,
)
from genkidama.experiment import Experiment
from genkidama.formats import plural
from genkidama.local.tries import Tries
from genkidama.standing import Standing
from genkidama.tuning.standing import SearchStanding

__all__ = ["EvaluationProgress", "Progress", "SearchProgress", "Shows", "follower", "following"]

#: In a log, a new line is written after so many seconds.
_LOG_SECONDS = 5.0


class Shows(Protocol):
    """What can be shown."""

    reason: str

    def line(self, now: float) -> str:
        """All of it in one line."""


class Surface(Protocol):
    """Where it is shown."""

    def say(self, text: str) -> None:
        """A line of its own."""

    def refresh(self) -> None:
        """To be called after each change."""

    def close(self) -> None:
        """Leaves the last state standing."""


class _Lines:
    """A file, which gets a line now and then."""

    def __init__(self, file: TextIO, line: Callable[[], str], first: float) -> None:
        self._file = file
        self._line = line
        self._next = time.monotonic() + first
        self._printed = False

    def say(self, text: str) -> None:
        print(text, file=self._file, flush=True)

    def refresh(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOG_SECONDS
            self._printed = True
            self.say(self._line())

    def close(self) -> None:
        if self._printed:
            self.say(self._line())


class _Follower:
    """Shows a standing, and says what a person should know beside it.

    Args:
        standing: what is shown.
        file: where to; standard error or, in a notebook, the cell if absent.
    """

    #: In a log, the first line is written after so many seconds.
    first = 0.0

    def __init__(self, standing: Shows, file: TextIO | None) -> None:
        #: A display may be drawn by a thread of its own.
        self._lock = threading.RLock()
        self._standing = standing
        self._shown = False
        #: The time of the newest event, and the clock's when it came.
        self._heard = (0.0, 0.0)
        self._surface: Surface = self._make_surface(file)

    def _make_surface(self, file: TextIO | None) -> Surface:
        kind = _kind_of(file)
        file = file or sys.stderr
        if kind != "lines":
            try:
                # It imports rich, which a log does without.
                from genkidama.local.screen import Notebook, Screen
            except ImportError:
                return _Lines(file, self.line, self.first)
            return Screen(file, self._state) if kind == "terminal" else Notebook(self._state)
        return _Lines(file, self.line, self.first)

    def _state(self) -> tuple[Any, float, AbstractContextManager[Any]]:
        """What to draw, what time it is there, and what to hold meanwhile."""
        return self._standing, self.now(), self._lock

    def now(self) -> float:
        """What time it is by the clock of the events."""
        time_then, clock = self._heard
        return time_then if self._standing.reason else time_then + time.monotonic() - clock

    def line(self) -> str:
        """All of it in one line."""
        return self._standing.line(self.now())

    def say(self, text: str) -> None:
        """A line of its own."""
        self._surface.say(text)

    def refresh(self) -> None:
        """To be called after each change that is worth a look."""
        self._shown = True
        self._surface.refresh()

    def close(self) -> None:
        """Leaves the last state standing. What is said afterwards stands below it."""
        if self._shown:
            self._shown = False
            self._surface.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Progress(_Follower):
    """Follows a plain run: give it to `train` or `launch` as `watch`.

    Args:
        experiment: for the stop conditions.
        file: where to; standard error or, in a notebook, the cell if absent.
        about: a sentence that is said once the run has begun.
    """

    def __init__(self, experiment: Experiment, file: TextIO | None = None, about: str = "") -> None:
        self._about = about
        #: Whether there was a warning since the last checkpoint.
        self._warned = False
        self.standing = Standing(experiment)
        super().__init__(self.standing, file)

    def __call__(self, line: dict[str, Any]) -> None:
        """Takes in one line of the history."""
        event = from_line(line)
        if event is not None:
            self.take(event)

    def take(self, event: Event) -> None:
        """Takes in one event."""
        with self._lock:
            self._heard = (event.time, time.monotonic())
            self.standing.take(event)
        what = f"training {self.standing.name} with {self.standing.algorithm}"
        match event:
            case Started():
                self.say(f"{what}: run {event.run}")
            case Resumed():
                self.say(f"{what}: run {event.run} goes on from version {event.version}")
            case Refused():
                _say_refusal(self, event)
            case Warned():
                self._warned = True
                self.say(f"warning: {event.reason}")
            case CheckpointWritten() if self._warned:
                self._warned = False
                self.say(f"checkpoint of version {event.version} written")
        if self._about and self.standing.run:
            self.say(self._about)
            self._about = ""
        if self.standing.last is not None:
            self.refresh()


class SearchProgress(_Follower):
    """Follows a search: give it to `search` or `launch` as `watch`.

    Args:
        experiment: with a `[search]`.
        file: where to; standard error or, in a notebook, the cell if absent.
    """

    def __init__(self, experiment: Experiment, file: TextIO | None = None) -> None:
        self.standing = SearchStanding(experiment)
        super().__init__(self.standing, file)

    def __call__(self, line: dict[str, Any]) -> None:
        """Takes in one line of the history."""
        event = from_line(line)
        if event is not None:
            self.take(event)

    def take(self, event: Event) -> None:
        """Takes in one event."""
        with self._lock:
            self._heard = (event.time, time.monotonic())
            self.standing.take(event)
        what = f"searching {self.standing.name} with {self.standing.search.method}"
        match event:
            case Started():
                self.say(f"{what}: run {event.run}")
            case Resumed():
                reports = plural(self.standing.reports, "report")
                self.say(f"{what}: run {event.run} goes on after {reports}")
            case Refused():
                _say_refusal(self, event)
            case Warned():
                self.say(f"warning: {event.reason}")
            case TrialFailed():
                self.say(f"trial {event.trial} failed on {event.child}: {event.reason}")
        if self.standing.states:
            self.refresh()


class EvaluationProgress(_Follower):
    """Follows an evaluation: give it to `evaluate` as `watch`.

    Args:
        episodes: how many will be played.
        file: where to; standard error or, in a notebook, the cell if absent.
    """

    first = _LOG_SECONDS

    def __init__(self, episodes: int, file: TextIO | None = None) -> None:
        self.standing = Tries(episodes)
        super().__init__(self.standing, file)

    def __call__(self, episode_return: float) -> None:
        """Takes in the return of one more episode."""
        now = time.monotonic()
        with self._lock:
            self._heard = (now, now)
            self.standing.take(episode_return, now)
        self.refresh()

    def __enter__(self) -> Self:
        now = time.monotonic()
        self._heard = (now, now)
        self.standing.begin(now)
        self.refresh()
        return self


def follower(experiment: Experiment, about: str = "") -> Progress | SearchProgress:
    """What follows a run of this experiment.

    Args:
        about: a sentence that is said once a plain run has begun.
    """
    if experiment.search is not None:
        return SearchProgress(experiment)
    return Progress(experiment, about=about)


def following(
    experiment: Experiment,
    progress: bool,
    watch: Callable[[dict[str, Any]], None] | None,
    about: str = "",
) -> AbstractContextManager[Callable[[dict[str, Any]], None] | None]:
    """`watch`, or what shows how a run goes if `progress` asks for that. Both get each line."""
    if not progress:
        return nullcontext(watch)
    return _Both(follower(experiment, about), watch)


class _Both:
    """A follower, and beside it a caller's own function."""

    def __init__(
        self,
        follower: Progress | SearchProgress,
        watch: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        self._follower = follower
        self._watch = watch

    def __enter__(self) -> Callable[[dict[str, Any]], None]:
        return self._take

    def _take(self, line: dict[str, Any]) -> None:
        self._follower(line)
        if self._watch is not None:
            self._watch(line)

    def __exit__(self, *_: object) -> None:
        self._follower.close()


def _say_refusal(follower: _Follower, event: Refused) -> None:
    # Children of one host have one name; the second adds a number and asks again.
    if event.code != "name":
        others = f" (and {event.times - 1} others)" if event.times > 1 else ""
        follower.say(f"refused {event.child or 'a connection'}: {event.reason}{others}")


def _kind_of(file: TextIO | None) -> str:
    """Where it is to be shown: `"terminal"`, `"notebook"` or `"lines"`."""
    shell = sys.modules.get("IPython")
    if file is None and shell is not None:
        running = shell.get_ipython()
        if running is not None and hasattr(running, "kernel"):
            return "notebook"
    file = file or sys.stderr
    plain = (file.encoding or "").lower().replace("-", "") not in ("utf8", "")
    if plain or not file.isatty() or sys.platform == "win32":
        return "lines"
    return "lines" if _dumb() else "terminal"


def _dumb() -> bool:
    """Whether the terminal says that it cannot move its cursor."""
    import os

    return os.environ.get("TERM", "") in ("", "dumb", "unknown")
