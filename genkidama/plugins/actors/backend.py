"""Actors: a child's cores that only act, for `parent.rule = "experience"`.

This is the backend `"hogwild"` without learning. The cores collect blocks of steps, and each push
carries the full ones. Between two pushes the child asks for newer weights, which the cores take
over in the middle of a block: the older a policy, the less its steps are worth.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from genkidama.child.orchestrator import CoreOrchestrator
from genkidama.child.worker import FAILED, RECORD
from genkidama.child.worker_pool import WorkerPool
from genkidama.plugins.actors.outbox import BLOCK, BLOCKS, Outboxes, block_rows
from genkidama.protocol.vector import Signature, Vector
from genkidama.runtime.process import WorkerProcess

#: Newer weights are asked for at most once in the time of this many rows, with a push or alone. The
#: answer wakes the child, which costs a slow machine as much CPU as ten steps; so does asking, but
#: not with a push.
_ROWS_WITH_PUSH, _ROWS_ALONE = 64, 256

#: Seconds of a row, at most, in that time, where the environment has a clock: a robot of 50 Hz does
#: not wait seconds for weights that are there, and its machine sleeps between two steps anyway.
_SLOWEST_ROW = 0.1 / 64

#: The share of the last push in a child's pace.
_PACE_SHARE = 0.2

#: Seconds between an exchange that failed, as without a parent, and the next attempt.
_RETRY_SECONDS = 0.2


class ActorPool(WorkerPool):
    """A pool that wakes whenever a block is full, and whose processes wait for a block alone."""

    outboxes: Outboxes
    #: Whether an exchange is under way, or has failed.
    unanswered = False
    #: Whether newer weights are asked for, and not given yet.
    _pulling = False
    #: When they were asked for last.
    _asked = 0.0
    #: When the last push was answered.
    _answered = 0.0
    #: Seconds of a row; 0 until two pushes are answered.
    _pace = 0.0
    #: Whether the environment has a clock.
    has_clock = False

    def _record(self, worker: WorkerProcess, record: bytes) -> None:
        if not record:
            self._semaphore.enter(worker.index)
            if self.outboxes.has_room(worker.index):
                self.release()
            return
        if record[0] == FAILED:
            super()._record(worker, record)
            return
        for start in range(0, len(record), RECORD.size):
            part = record[start : start + RECORD.size]
            kind, _, number = RECORD.unpack(part)
            if kind == BLOCK:
                self.outboxes.given(worker.index, number)
                self._wake.set()
            else:
                super()._record(worker, part)

    async def due(self) -> None:
        if self.unanswered:
            await asyncio.sleep(_RETRY_SECONDS)
        while self._fatal is None and not self.outboxes.ready:
            left = None if self._pulling else self.until(_ROWS_ALONE)
            if left is not None and left <= 0.0:
                break
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wake.wait()
        if self._fatal is not None:
            raise self._fatal
        self.unanswered = True

    def pulling(self) -> None:
        """Newer weights are asked for. Nothing waits for the answer."""
        self.unanswered = False
        self._pulling = True
        self._asked = time.monotonic()

    def until(self, rows: int) -> float:
        """Seconds until the time of this many rows has passed since the last request."""
        pace = min(self._pace, _SLOWEST_ROW) if self.has_clock else self._pace
        return self._asked + rows * pace - time.monotonic()

    def pulled(self) -> None:
        """The answer is there."""
        self._pulling = False
        self._wake.set()

    def answered(self, rows: int) -> None:
        """A push of `rows` rows is answered."""
        self.unanswered = False
        now = time.monotonic()
        if rows and self._answered:
            pace = (now - self._answered) / rows
            self._pace += (_PACE_SHARE if self._pace else 1.0) * (pace - self._pace)
        self._answered = now

    def release(self) -> None:
        """Wakes the processes that wait. One that still has no block waits again."""
        self._release_all()


class Actors(CoreOrchestrator):
    """A child's actors. See `Backend` for what each method promises; arguments as there."""

    _blocks = BLOCKS

    def _make_pool(self) -> WorkerPool:
        self._actor_pool = ActorPool(self.experiment, "core", self.name, self)
        self._actor_pool.has_clock = self.experiment.environment.period > 0.0
        return self._actor_pool

    async def startup(self) -> Signature:
        signature = await super().startup()
        batch = self.experiment.algorithm.batch_size
        self._outboxes = self._actor_pool.outboxes = Outboxes(self.memory, block_rows(batch))
        return signature

    def snapshot(self) -> Vector | None:
        """The rows that are ready, the same until the push is answered; None if there are none."""
        return self._outboxes.pack() if self._outboxes.ready else None

    def answered(self, steps: int) -> None:
        """The push is answered, and its blocks are free. The next should bring this many steps."""
        self._actor_pool.answered(self._outboxes.acknowledge())
        self.memory.share[0] = steps

    @property
    def asks(self) -> bool:
        """True if θ_P is to be asked for with the push that is being sent."""
        return self._actor_pool.until(_ROWS_WITH_PUSH) <= 0.0

    def pulling(self) -> None:
        """θ_P is asked for. The answer may wait until there is a newer one."""
        self._actor_pool.pulling()

    def pulled(self, weights: Vector | None, steps: int) -> None:
        """The answer: θ_P, or None if it is no newer. A push may be under way."""
        if weights is not None:
            self._take(weights)
        self._actor_pool.pulled()
        self.memory.share[0] = steps

    def blend(self, sent: Vector, parent: Vector, beta: float) -> None:
        """θ_C ← θ_P, whatever β is."""
        self._take(parent)

    def reset(self, weights: Vector) -> None:
        """θ_C ← θ_P, after a push that was refused, which is dropped."""
        self._actor_pool.answered(self._outboxes.acknowledge())
        self._take(weights)

    def _take(self, weights: Vector) -> None:
        self.memory.weights[:] = weights
        self.memory.news[0] += 1
