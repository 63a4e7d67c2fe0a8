"""Threads between a run and its sinks.

Laws of this file:
- A line is handed over in microseconds, whatever a sink does. Each sink has a thread of its own.
- A sink that raises, or does nothing for `PATIENCE` seconds though something waits, is said once
  and dropped. The run goes on.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeAlias

from genkidama.errors import ConfigurationError
from genkidama.plugins.sinks.points import Point, Points
from genkidama.plugins.sinks.registry import MakesSink, RunInfo, Sink, sink_maker
from genkidama.runs.directory import Run
from genkidama.runtime.user_errors import describe_error

__all__ = ["Feeds", "Sinks", "feeding"]

Watch: TypeAlias = Callable[[dict[str, Any]], None]

#: So long a sink may do nothing: W&B logs in through the network.
PATIENCE = 90.0

#: When the run is over, a sink may go on with what waits for as long as it moves. It may do nothing
#: for so many seconds.
_PARTING_SECONDS = 30.0
_LOOK_SECONDS = 0.2


class Feeds:
    """The sinks of one run. They may be entered several times; the last to leave closes them.

    Args:
        wanted: names of `table.SINKS`, `"module:Class"`, or anything that makes a sink of an
            `RunInfo`.
        say: is called with a line about a sink that is dropped; it is printed to standard error if
            absent.

    Raises:
        ConfigurationError: there is no such sink, or its package is not installed.
    """

    def __init__(
        self, wanted: Iterable[str | MakesSink], say: Callable[[str], None] | None = None
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
        """Starts the sinks of a run, whose directory is prepared.

        Returns:
            What is to be called with each line of the history: `watch`, and the sinks beside it.
        """
        if not self._makers:
            return watch
        about = RunInfo(run)
        self._points = Points(about.experiment)
        self._threads = [_Thread(name, maker, about, self._say) for name, maker in self._makers]

        def both(line: dict[str, Any]) -> None:
            if watch is not None:
                watch(line)
            self.take(line)

        return both

    def take(self, line: dict[str, Any]) -> None:
        """Hands one line of the history to all sinks."""
        point = None if self._points is None else self._points.of(line)
        if point is not None:
            for thread in self._threads:
                thread.take(point)

    def evaluated(self, run: Run) -> None:
        """Hands the evaluation over that was written into the history last."""
        if self._threads:
            last: dict[str, Any] = {}
            for line in run.history():
                last = line
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


#: The sinks that are wanted, or that have been made already.
Sinks: TypeAlias = Iterable[str | MakesSink] | Feeds


def feeding(sinks: Sinks, say: Callable[[str], None] | None) -> Feeds:
    """The sinks that are wanted.

    Raises:
        ConfigurationError: as `Feeds`.
    """
    return sinks if isinstance(sinks, Feeds) else Feeds(sinks, say)


class _Thread:
    """One sink, its thread and what waits for it."""

    def __init__(
        self, name: str, maker: MakesSink, about: RunInfo, say: Callable[[str], None]
    ) -> None:
        self._name = name
        self._say = say
        self._waiting: deque[Point | None] = deque()
        self._bell = threading.Semaphore(0)
        self.dropped = False
        #: When it did something last.
        self._moved = time.monotonic()
        self._thread = threading.Thread(target=self._work, args=(maker, about), daemon=True)
        self._thread.start()

    def take(self, point: Point) -> None:
        if self.dropped:
            return
        now = time.monotonic()
        if not self._waiting:
            self._moved = now
        elif now - self._moved > PATIENCE:
            self._drop(f"it did nothing for {PATIENCE:.0f} s")
            return
        self._waiting.append(point)
        self._bell.release()

    def end(self) -> None:
        """There is no more to come."""
        if not self.dropped:
            self._moved = time.monotonic()
            self._waiting.append(None)
            self._bell.release()

    def close(self) -> None:
        """Lets the sink take what waits, as long as it moves."""
        while not self.dropped and self._thread.is_alive():
            self._thread.join(_LOOK_SECONDS)
            if self._thread.is_alive() and time.monotonic() - self._moved > _PARTING_SECONDS:
                left = sum(point is not None for point in self._waiting)
                self._drop(f"it did not end in time, and has {left} points left")

    def _work(self, maker: MakesSink, about: RunInfo) -> None:
        try:
            sink: Sink = maker(about)
            while True:
                self._bell.acquire()
                point = self._waiting[0]
                if point is None:
                    break
                sink.write(point)
                self._moved = time.monotonic()
                if self.dropped:
                    return
                self._waiting.popleft()
            sink.close()
        except Exception as error:  # a sink may raise anything, and the run goes on
            self._drop(describe_error(error))

    def _drop(self, why: str) -> None:
        if not self.dropped:
            self.dropped = True
            self._waiting.clear()
            self._say(f"sink {self._name!r} is dropped, the run goes on: {why}")
