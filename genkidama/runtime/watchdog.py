"""Watches processes that may hang, and reports those that do.

Laws of this file:
- `HangDetector` decides who hangs; `Watchdog` brings it the signs of life and the time.
- A process that is silent may still work, in the middle of a batch. Then its shared memory
  changes, and looking at that costs the process nothing.
- Ages grow by ticks of limited length: after the machine was asleep, or workers were stopped, no
  process is old. A process that waits for others has no age.
- The limit follows from the longest silence of any process of the pool, since all do the same
  work. That maximum is forgotten slowly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias

#: The most seconds that a tick adds to an age.
_LONGEST_TICK = 2.0

#: A silence this many times as long as ever before is too long.
_TIMES = 4.0

#: A process that has not said anything yet builds its environment. That may take so many times as
#: long.
_BIRTH_TIMES = 10.0

#: Seconds after which the longest silence counts for half as much.
_HALF_LIFE = 600.0


class HangDetector:
    """For how long each process has done nothing; `patience` seconds may pass."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        #: Seconds since the last sign of life, of those that should give one.
        self._ages: dict[int, float] = {}
        self._new: set[int] = set()
        self._longest = 0.0

    @property
    def limit(self) -> float:
        """From how many seconds on a process hangs."""
        return max(self._patience, _TIMES * self._longest)

    def started(self, index: int) -> None:
        """The process has just been started."""
        self._ages[index] = 0.0
        self._new.add(index)

    def sign(self, index: int) -> None:
        """Notes a sign of life."""
        if index in self._new:
            self._new.discard(index)
        else:
            self._longest = max(self._longest, self._ages.get(index, 0.0))
        self._ages[index] = 0.0

    def rest(self, index: int) -> None:
        """Stops its clock while it waits for others, until `wake`."""
        self._new.discard(index)
        self._ages.pop(index, None)

    def wake(self, index: int) -> None:
        """Starts its clock again."""
        self._ages.setdefault(index, 0.0)

    #: Forgets it.
    forget = rest

    def tick(self, seconds: float) -> None:
        """Adds the seconds since the last tick to all ages."""
        seconds = min(max(0.0, seconds), _LONGEST_TICK)
        self._longest *= 0.5 ** (seconds / _HALF_LIFE)
        for index in self._ages:
            self._ages[index] += seconds

    @property
    def quiet(self) -> list[int]:
        """Those that have been silent for so long that it is worth a look."""
        return [index for index, age in self._ages.items() if age > self._patience / 4.0]

    @property
    def hung(self) -> list[tuple[int, float]]:
        """Those that hang, and for how many seconds they have done nothing."""
        return [
            (index, age)
            for index, age in self._ages.items()
            if age > self.limit * (_BIRTH_TIMES if index in self._new else 1.0)
        ]


#: How often it looks.
LOOK_SECONDS = 1.0

#: A number that changes when the process of an index does anything; None if it waits for others.
Trace: TypeAlias = Callable[[int], int | None]


class Watchdog:
    """Looks after some processes, and reports those that hang. One loop calls it. Without patience
    it never looks.

    The trace shows whether a silent process works. `hung` ends the process of an index, which has
    done nothing for so many seconds.
    """

    def __init__(self, patience: float, trace: Trace, hung: Callable[[int, float], None]) -> None:
        self.ages = HangDetector(patience)
        self._looks = patience > 0.0
        self._trace = trace
        self._hung = hung
        self._traces: dict[int, int | None] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Looks from now on, until `end`."""
        if self._looks:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def heard(self, index: int, waits: bool) -> None:
        """The process has said something, or that it waits."""
        if waits:
            self.ages.rest(index)
        else:
            self.ages.sign(index)

    async def _run(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            self.look(now - before)
            before = now

    def look(self, seconds: float) -> None:
        """Updates ages and reports processes that hang, `seconds` after the last call."""
        self.ages.tick(seconds)
        traces = {index: self._trace(index) for index in self.ages.quiet}
        for index, trace in traces.items():
            if trace is None or trace != self._traces.get(index, trace):
                self.ages.sign(index)
        self._traces = traces
        for index, age in self.ages.hung:
            self.ages.forget(index)
            self._hung(index, age)
