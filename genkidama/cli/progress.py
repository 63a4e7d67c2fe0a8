"""Shows the progress of a run, a search, an evaluation, or a child that has joined a parent.

    with Progress(experiment) as progress:
        train(experiment, watch=progress)

On a terminal it is a display that is redrawn repeatedly, in a notebook one below the cell.
Elsewhere, as in a log, it is a line now and then. It renders a `RunStatus`.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeAlias

import msgspec

from genkidama.config import plugin
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import duration, plural, rate, remaining
from genkidama.errors import ConfigurationError
from genkidama.runs.status import RunStatus, line
from genkidama.server.events import (
    CheckpointWritten,
    Event,
    Exchange,
    PushesRefused,
    Resumed,
    Started,
    TrialFailed,
    Warned,
    from_line,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from genkidama.child.child import Child
    from genkidama.cli.display import Notebook, Screen
    from genkidama.runs.run import Run

#: Called with each new line of a history.
Watch: TypeAlias = Callable[[dict[str, Any]], None]

#: Seconds between two lines in a log.
_LOG_SECONDS = 5.0


class _Lines:
    """A file, which gets a line now and then."""

    def __init__(self, file: TextIO, line: Callable[[], str], first: float) -> None:
        self._file = file
        self._line = line
        self._next = time.monotonic() + first
        self._printed = False

    def say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the disk is full, or nobody reads any more
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


class LiveDisplay:
    """Shows a status on a terminal, in a notebook's cell, or line by line, in a log after `first`
    seconds."""

    def __init__(self, file: TextIO | None = None, first: float = 0.0) -> None:
        #: A display may be drawn by a thread of its own.
        self._lock = threading.RLock()
        self._shown = False
        self._surface = self._make_surface(file, first)

    def _make_surface(self, file: TextIO | None, first: float) -> Screen | Notebook | _Lines:
        kind = _kind_of(file)
        file = file or sys.stderr
        if kind != "lines":
            # It imports rich, which a log does without.
            with suppress(ImportError):
                from genkidama.cli.display import Notebook, Screen

                return Screen(file, self.draw) if kind == "terminal" else Notebook(self.draw)
        return _Lines(file, self.line, first)

    @property
    def drawn(self) -> bool:
        """True if it is redrawn in place, not written line by line."""
        return not isinstance(self._surface, _Lines)

    def draw(self, width: int, height: int) -> RenderableType:
        """A frame for this many columns and rows."""
        raise NotImplementedError

    def line(self) -> str:
        """All of it in one line."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """A line of its own."""
        self._surface.say(text)

    def refresh(self) -> None:
        """To be called after each change that is worth a look."""
        self._shown = True
        self._surface.refresh()

    def close(self) -> None:
        """Leaves the last state on the screen. Later output appears below it."""
        if self._shown:
            self._shown = False
            self._surface.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Progress(LiveDisplay):
    """Follows a run or a search: give it to `train`, `search` or `launch` as `watch`.

    Args:
        experiment: its settings.
        file: where to; standard error or, in a notebook, the cell if absent.
        about: a sentence that is printed once the run has begun.
    """

    def __init__(self, experiment: Experiment, file: TextIO | None = None, about: str = "") -> None:
        self._about = about
        #: Whether there was a warning since the last checkpoint.
        self._warned = False
        self.status = RunStatus(experiment)
        #: Events that the status has not folded yet: exchanges wait until it is looked at.
        self._waiting: list[Event] = []
        #: The time of the newest event, and the clock's when it came.
        self._heard = (0.0, 0.0)
        search = experiment.section("search")
        method = experiment.algorithm.name if search is None else search.method
        verb = "training" if search is None else "searching"
        self._what = f"{verb} {experiment.environment.id} with {method}"
        self._cooperation = experiment.cooperation
        super().__init__(file)

    def document(self) -> dict[str, Any]:
        """The status at this moment, as `GET /status` gives it."""
        with self._lock:
            self._fold()
            time_then, clock = self._heard
            over = bool(self.status.reason)
            now = time_then if over else time_then + time.monotonic() - clock
            found: dict[str, Any] = msgspec.to_builtins(self.status.snapshot(now))
        return found

    def draw(self, width: int, height: int) -> RenderableType:
        from genkidama.cli.display import frame

        return frame(self.document(), width, height)

    def line(self) -> str:
        return line(self.document())

    def __call__(self, line: dict[str, Any]) -> None:
        """Takes in one line of the history."""
        event = from_line(line)
        if event is not None:
            self.take(event)

    def take(self, event: Event) -> None:
        with self._lock:
            self._heard = (event.time, time.monotonic())
            self._waiting.append(event)
            if type(event) is not Exchange or self.status.last is None:
                self._fold()
        self._say(event)
        if self._about and self.status.run:
            self.say(self._about)
            self._about = ""
        if self.status.begun:
            self.refresh()

    def _fold(self) -> None:
        self.status.take(self._waiting)
        self._waiting = []

    def _say(self, event: Event) -> None:
        match event:
            case Started():
                self.say(f"{self._what}: run {event.run}")
                self.say(self._cooperation)
                if event.start:
                    self.say(f"starts from {event.start}")
            case Resumed():
                then = f"from version {event.version}"
                if self.status.search is not None:
                    then = f"after {plural(self.status.search.reports, 'report')}"
                self.say(f"{self._what}: run {event.run} resumes {then}")
            case PushesRefused() if event.code != "name":
                # Children of one host have one name; the second adds a number and asks again.
                others = f" (and {event.times - 1} others)" if event.times > 1 else ""
                who = event.child or "a connection"
                self.say(f"refused {who}: {event.reason}{others}")
            case Warned():
                self._warned = True
                self.say(f"warning: {event.reason}")
            case CheckpointWritten() if self._warned:
                self._warned = False
                self.say(f"checkpoint of version {event.version} written")
            case TrialFailed():
                self.say(f"trial {event.trial} failed on {event.child}: {event.reason}")


class EvaluationProgress(LiveDisplay):
    """Follows an evaluation: give it to `evaluate` as `watch`.

    Args:
        episodes: how many will be played.
        checkpoints: how many play them; those of several are compared.
        file: where to; standard error or, in a notebook, the cell if absent.
        first: seconds before the first line in a log.
    """

    def __init__(
        self,
        episodes: int,
        checkpoints: int = 1,
        file: TextIO | None = None,
        first: float = _LOG_SECONDS,
    ) -> None:
        self._episodes = episodes
        several = f"comparing {checkpoints} checkpoints,"
        self._doing = several if checkpoints > 1 else "evaluating"
        self._returns: list[float] = []
        self._began = 0.0
        #: When the first ended: what plays them takes its time to start.
        self._first = 0.0
        self._closed = threading.Event()
        super().__init__(file, first)

    def document(self, now: float) -> dict[str, Any]:
        """The status of the evaluation at `now`, in the clock's seconds."""
        with self._lock:
            returns = list(self._returns)
        done, episodes = len(returns), self._episodes
        mean = sum(returns) / done if done else 0.0
        std = math.sqrt(sum((each - mean) ** 2 for each in returns) / done) if done else 0.0
        share = done / episodes
        left = remaining(now - self._first, 1.0 / episodes, share) if done < episodes else None
        return {
            "title": f"{self._doing} {done} of {plural(episodes, 'episode')}",
            "done": done,
            "mean": mean,
            "std": std,
            "minimum": min(returns, default=math.inf),
            "run": {"elapsed": now - self._began, "share": share, "left": left, "reason": ""},
        }

    def draw(self, width: int, height: int) -> RenderableType:
        from genkidama.cli.display import evaluation_frame

        return evaluation_frame(self.document(time.monotonic()), width, height)

    def line(self) -> str:
        found = self.document(time.monotonic())
        run = found["run"]
        parts = [found["title"]]
        if found["done"]:
            parts.append(f"mean return {found['mean']:.1f} ± {found['std']:.1f}")
        parts.append(duration(run["elapsed"]))
        if run["left"] is not None:
            parts.append(f"about {duration(run['left'])} left")
        return " · ".join(parts)

    def __call__(self, episode_return: float) -> None:
        """Takes in the return of one more episode."""
        with self._lock:
            self._first = self._first or time.monotonic()
            self._returns.append(episode_return)
        self.refresh()

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self.refresh()
        if not self.drawn:  # an episode may last for minutes, or for ever
            threading.Thread(target=self._tick, daemon=True).start()
        return self

    def close(self) -> None:
        self._closed.set()
        super().close()

    def _tick(self) -> None:
        while not self._closed.wait(_LOG_SECONDS):
            self.refresh()


@contextmanager
def following(
    experiment: Experiment, progress: bool, watch: Watch | None, about: str = ""
) -> Iterator[Watch | None]:
    """`watch`, or a `Progress` beside it if `progress` asks for that. Both get each line."""
    if not progress:
        yield watch
        return
    with Progress(experiment, about=about) as shown:

        def both(line: dict[str, Any]) -> None:
            shown(line)
            if watch is not None:
                watch(line)

        yield both


class Feed:
    """Readers of the history of one run beside its display; this one has none. A feed may be
    entered several times; the last to leave closes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, run: Run, watch: Watch | None) -> Watch | None:
        """Starts to read a run, whose directory is prepared; gives the function to call with each
        new line, which passes it on to `watch`."""
        return watch

    def evaluated(self, run: Run) -> None:
        """Reads the evaluation that was written into the history last."""


#: Sinks by name, import string or class, or a feed that is made of them already.
Sinks: TypeAlias = Iterable[Any] | Feed


def feeding(sinks: Sinks, say: Callable[[str], None] | None) -> Feed:
    """The feed of these sinks; `say` is called with a line about one that is dropped.

    Raises:
        ConfigurationError: there is no such sink, or its package is not installed.
    """
    if isinstance(sinks, Feed):
        return sinks
    wanted = sinks if isinstance(sinks, str) else list(sinks)
    if not wanted:
        return Feed()
    follower = plugin.find("followers", "sinks")
    if follower is None:
        raise ConfigurationError(f"sinks = {wanted!r}: the plug-in `sinks` is missing here")
    feed: Feed = plugin.load(follower.open)(wanted, say)
    return feed


def _kind_of(file: TextIO | None) -> str:
    """The kind of display: `"terminal"`, `"notebook"` or `"lines"`."""
    shell = sys.modules.get("IPython")
    if file is None and shell is not None and hasattr(shell.get_ipython(), "kernel"):
        return "notebook"
    file = file or sys.stderr
    unicode = (file.encoding or "").lower().replace("-", "") in ("utf8", "")
    moves = os.environ.get("TERM", "") not in ("", "dumb", "unknown")  # its cursor
    return "terminal" if unicode and moves and file.isatty() else "lines"


class ParentProgress(Progress):
    """The display of a parent for other machines, whose log has the warnings."""

    def _say(self, event: Event) -> None:
        if not isinstance(event, PushesRefused | TrialFailed | Warned):
            super()._say(event)


class ChildDisplay(LiveDisplay):
    """The display of a child that has joined: its own work, and its connection."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._began = time.monotonic()
        self._mean: float | None = None
        super().__init__()

    def draw(self, width: int, height: int) -> Any:
        from rich.text import Text

        return Text(self.line().replace(" · ", "\n", 1))

    def line(self) -> str:
        counts = self._child.counts
        seconds = max(1e-3, time.monotonic() - self._began)
        if returns := list(counts.returns):
            self._mean = sum(returns) / len(returns)
        name = self._child.name or "this machine"
        return " · ".join(
            (
                f"{name}: {self._child.status}",
                duration(seconds),
                *(() if self._mean is None else (f"mean return {self._mean:.1f}",)),
                plural(counts.exchanges, "exchange"),
                plural(counts.episodes, "episode"),
                f"{counts.steps:,} steps",
                f"{rate(counts.steps / seconds)}/s",
            )
        )
