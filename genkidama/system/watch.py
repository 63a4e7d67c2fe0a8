"""Looks after processes that may hang: whether they work, and what to do if not.

Laws of this file:
- `genkidama.health` decides who hangs; this file brings it the signs of life and the time.
- A process that is silent may still work, in the middle of a batch. Then something changes in the
  memory that it shares, and a look at that costs the process nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias

from genkidama.health import Ages

__all__ = ["LOOK_SECONDS", "Trace", "Watch"]

#: How often it looks.
LOOK_SECONDS = 1.0

#: A number that changes when the process of an index does anything; None if it waits for others.
Trace: TypeAlias = Callable[[int], int | None]


class Watch:
    """Looks after some processes. One asyncio loop makes all calls.

    Args:
        patience: seconds for which a process may do nothing, at least; 0 for ever.
        trace: shows whether a silent process works; without it, only what it says counts.
        hung: told of each process that hangs, with the seconds for which it has done nothing.
    """

    def __init__(
        self, patience: float, trace: Trace | None, hung: Callable[[int, float], None]
    ) -> None:
        self.ages = Ages(patience)
        self._trace = trace
        self._hung = hung
        self._traces: dict[int, int | None] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Looks from now on, until `end`."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        """Looks no more."""
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
        """Finds out who works and who hangs, so many seconds after the last look."""
        self.ages.tick(seconds)
        quiet = self.ages.quiet if self._trace is not None else []
        traces = {index: self._trace(index) for index in quiet} if self._trace else {}
        for index, trace in traces.items():
            if trace is None or trace != self._traces.get(index, trace):
                self.ages.sign(index)
        self._traces = traces
        for index, age in self.ages.hung:
            self.ages.gone(index)
            self._hung(index, age)
