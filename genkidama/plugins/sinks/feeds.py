"""Sinks: TensorBoard, W&B and the like receive the measures of a run, each in a separate thread.

Laws of this file:
- A line is passed on in microseconds, whatever a sink does.
- A sink that raises, or does nothing for `PATIENCE` seconds although something waits, is reported
  once and dropped. The run continues.
- A sink that is slower than the run misses some points, which is said once. Only with `wait` the
  caller waits for it.
- A line that no parent writes is no point: histories are copied from machine to machine.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

import msgspec

from genkidama._version import pip_install
from genkidama.cli.progress import Feed, Watch
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.plugins.sinks import services
from genkidama.plugins.sinks.services import Point, RunInfo, plain_name
from genkidama.protocol.diagnostics import DIAGNOSTICS
from genkidama.runs.run import Run
from genkidama.runs.status import RunStatus
from genkidama.runtime.import_strings import describe_error, is_import_string, load_object
from genkidama.server.events import Evaluated, Event, Exchange, Measures, PhaseReported, from_line

#: Seconds in which a sink may do nothing: W&B logs in through the network.
PATIENCE = 90.0

#: After the run a sink may handle what waits for as long as it moves. Once it has taken a point, it
#: may do nothing for this many seconds.
_PARTING_SECONDS = 30.0
_POLL_SECONDS = 0.2

#: Points that may wait for a sink: some MB.
_MOST_WAITING = 10_000

#: By name: the package that it needs, and the class.
SINKS = {
    "tensorboard": ("tensorboardX", services.TensorBoard),
    "wandb": ("wandb", services.WandB),
    "mlflow": ("mlflow", services.MLflow),
    "trackio": ("trackio", services.Trackio),
}

#: Times, steps and figures beyond these do not fit the formats of the tools.
_LATEST = 1e11
_MOST_STEPS = 1 << 53
_LARGEST = 1e300


class Sink(Protocol):
    """A class that carries points to a tool. One thread makes all its calls. A custom sink is a
    class with these methods, named by `"module:Class"`."""

    def __init__(self, about: RunInfo) -> None: ...

    def write(self, point: Point) -> None:
        """Takes one point; steps may decrease, as in a search."""
        ...

    def close(self) -> None:
        """Ends: the run is over, and all points were written."""
        ...


#: Anything that makes a sink.
SinkMaker: TypeAlias = Callable[[RunInfo], Any]


def sink_maker(wanted: str | SinkMaker) -> tuple[str, SinkMaker]:
    """The name and the maker of a sink: of a maker, `"module:Class"`, a name of `SINKS`, or
    `"tensorboard=FOLDER"`.

    Raises:
        ConfigurationError: there is no such sink, or its package is not installed.
    """
    if not isinstance(wanted, str):
        return getattr(wanted, "__name__", type(wanted).__name__), wanted
    if is_import_string(wanted):
        return wanted, load_object(wanted, "sink")
    name, given, folder = wanted.partition("=")
    if name not in SINKS or (given and name != "tensorboard"):
        raise ConfigurationError(
            f"sink {wanted!r}: expected one of {', '.join(SINKS)}, or 'module:Class'"
        )
    package, maker = SINKS[name]
    if importlib.util.find_spec(package) is None:
        raise ConfigurationError(
            f"sink {name!r}: needs {package}, which is not installed: {pip_install(name)}"
        )
    return name, partial(services.TensorBoard, folder=Path(folder)) if given else maker


class Points:
    """Makes points of a run's lines, in their order."""

    def __init__(self, experiment: Experiment) -> None:
        self._status = RunStatus(experiment) if experiment.search is None else None
        #: By trial of a search, or None: its environment steps.
        self._steps: dict[int | None, int] = {}
        #: When means over children came last: once a second, as 200 children take 2 ms.
        self._meant = -math.inf

    def of(self, line: dict[str, Any]) -> Point | None:
        """The point of a line of the history; None if it has no figures, or no parent wrote it."""
        try:
            event = from_line(line)
        except msgspec.MsgspecError:
            return None
        if event is None or not 0.0 <= event.time <= _LATEST:
            return None
        # For means over children a status needs no exchanges, which are most of the lines.
        if self._status is not None and isinstance(event, Measures):
            self._status.take_measures(event)
        elif self._status is not None and not isinstance(event, Exchange):
            self._status.take((event,))
        trial = getattr(event, "trial", None)
        trial = trial if isinstance(trial, int) else None
        if isinstance(event, Exchange | PhaseReported):
            self._steps[trial] = min(max(event.steps, 0), _MOST_STEPS)
        named = self._figures(event, "" if trial is None else f"trial-{trial}/")
        figures = {plain_name(name): value for name, value in named if abs(value) <= _LARGEST}
        return Point(self._steps.get(trial, 0), event.time, figures) if figures else None

    def _figures(self, event: Event, of_trial: str) -> Iterator[tuple[str, float]]:
        match event:
            case Exchange():
                whole = of_trial or "run/"
                yield whole + "episodes", event.episodes
                yield whole + "updates", event.update
                if event.mean_return is not None:
                    yield whole + "mean_return", event.mean_return
                yield f"{event.child}/staleness", event.staleness
            case Measures():
                for name, value in event.figures.items():
                    yield f"{of_trial or f'{event.child}/'}{name}", value
                # A machine's clock may go back.
                if self._status is not None and abs(event.time - self._meant) >= 1.0:
                    self._meant = event.time
                    together = self._status.figures()
                    yield from (
                        (f"learning/{name}", together[name])
                        for name in DIAGNOSTICS
                        if name in event.figures and name in together
                    )
            case PhaseReported() if event.metric is not None:
                yield of_trial + "metric", event.metric
            case Evaluated():
                for name in ("mean", "std", "minimum"):
                    if (value := getattr(event, name)) is not None:
                        yield f"evaluation/{name}", value


class Feeds(Feed):
    """The sinks of one run. Entered several times, they are closed by the last exit.

    Args:
        wanted: names of sinks, `"module:Class"`, or anything that makes a sink of a `RunInfo`.
        say: receives a line about a sink that is dropped; it is printed to standard error if
            absent. So is one about a sink that misses points.

    Raises:
        ConfigurationError: there is no such sink, or its package is not installed.
    """

    def __init__(
        self, wanted: Iterable[str | SinkMaker], say: Callable[[str], None] | None = None
    ) -> None:
        if isinstance(wanted, str):
            raise ConfigurationError(f"sinks = {wanted!r}: expected a list, as [{wanted!r}]")
        self._makers = [sink_maker(one) for one in wanted]
        self._say = say or (lambda line: print(line, file=sys.stderr))
        self._threads: list[_Thread] = []
        self._points: Points | None = None
        self._entered = 0
        #: How many sinks were dropped, once it is closed.
        self.dropped = 0

    def begin(self, run: Run, watch: Watch | None) -> Watch | None:
        """See `Feed`. Starts the sinks."""
        if not self._makers:
            return watch
        about = RunInfo(run)
        self._points = Points(about.experiment)
        self._threads = [_Thread(name, make, about, self._say) for name, make in self._makers]

        def both(line: dict[str, Any]) -> None:
            if watch is not None:
                watch(line)
            self.take(line)

        return both

    def take(self, line: dict[str, Any], wait: bool = False) -> None:
        """Passes one line of the history to all sinks; `wait` for those that are behind."""
        point = None if self._points is None else self._points.of(line)
        if point is not None:
            for thread in self._threads:
                thread.write(point, wait)

    def evaluated(self, run: Run) -> None:
        if self._threads:
            last = deque(run.history(), maxlen=1)[0]
            if last["event"] == "evaluation":  # which could be recorded
                self.take(last)

    def __enter__(self) -> Self:
        self._entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if self._entered:
            return
        for thread in self._threads:
            thread.end()
        for thread in self._threads:
            thread.close()
        self.dropped = sum(thread.dropped for thread in self._threads)
        self._threads = []


class _Thread:
    """One sink, its thread and the points that wait for it."""

    def __init__(
        self, name: str, maker: SinkMaker, about: RunInfo, say: Callable[[str], None]
    ) -> None:
        self._name = name
        self._say = say
        self._waiting: deque[Point | None] = deque()
        self._ready = threading.Semaphore(0)
        self.dropped = False
        self._late = False
        #: When it did something last.
        self._moved = time.monotonic()
        #: For so many seconds it may do nothing after the run.
        self._patience = PATIENCE
        self._thread = threading.Thread(target=self._work, args=(maker, about), daemon=True)
        self._thread.start()

    def write(self, point: Point, wait: bool) -> None:
        if not self._waiting:
            self._moved = time.monotonic()
        while not self.dropped:
            if self._waiting and time.monotonic() - self._moved > PATIENCE:
                self._drop(f"it did nothing for {PATIENCE:.0f} s")
            elif len(self._waiting) < _MOST_WAITING:
                self._waiting.append(point)
                self._ready.release()
                return
            elif wait:
                time.sleep(_POLL_SECONDS)
            else:
                if not self._late:
                    self._say(f"sink {self._name!r} is slower than the run, and misses some points")
                self._late = True
                return

    def end(self) -> None:
        """Marks the end of the points."""
        if not self.dropped:
            self._moved = time.monotonic()
            self._waiting.append(None)
            self._ready.release()

    def close(self) -> None:
        """Lets the sink handle what waits, as long as it moves."""
        while not self.dropped and self._thread.is_alive():
            self._thread.join(_POLL_SECONDS)
            if self._thread.is_alive() and time.monotonic() - self._moved > self._patience:
                left = sum(point is not None for point in self._waiting)
                self._drop(f"it did not end in time, and has {left} points left")

    def _work(self, maker: SinkMaker, about: RunInfo) -> None:
        try:
            sink: Sink = maker(about)
            while True:
                self._ready.acquire()
                point = self._waiting[0]
                if point is None:
                    break
                sink.write(point)
                self._moved = time.monotonic()
                self._patience = _PARTING_SECONDS
                if self.dropped:
                    return
                self._waiting.popleft()
            sink.close()
        except Exception as error:  # a sink may raise anything, and the run continues
            self._drop(describe_error(error))

    def _drop(self, why: str) -> None:
        if not self.dropped:
            self.dropped = True
            self._waiting.clear()
            self._say(f"sink {self._name!r} is dropped, the run goes on: {why}")
