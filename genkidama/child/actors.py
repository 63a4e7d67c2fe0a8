"""Actors: a child's cores that only act, for `parent.rule = "experience"`.

It is the backend `"hogwild"` without learning. The cores collect blocks of steps, and each push
carries those that are full. Between two pushes the child asks for newer weights, which the cores
take over in the middle of a block: the older a policy, the less its steps are worth.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from genkidama.child.crew import Crew
from genkidama.child.member import Member
from genkidama.child.nurseries import CORES
from genkidama.child.orchestrator import CoreOrchestrator
from genkidama.child.outbox import Outboxes, rows_of_a_block
from genkidama.child.process import BLOCK, RECORD
from genkidama.weights import Signature, Vector

__all__ = ["Actors"]

#: What a core's process calls first.
_ACTOR = "genkidama.child.actor:run_actor"

#: Newer weights are asked for so long after an answer, or as long as that answer took: over a slow
#: link they would come late anyway.
_PULL_SECONDS = 0.03

#: After an exchange that came to nothing, as without a parent, the next is tried so much later.
_RETRY_SECONDS = 0.2


class _ActorCrew(Crew):
    """A crew that wakes whenever a block is full, and whose processes wait for a block alone."""

    outboxes: Outboxes
    #: Whether an exchange is under way, or has come to nothing.
    unanswered = False
    _asked = 0.0
    _wait = _PULL_SECONDS

    def _heard(self, member: Member, record: bytes) -> None:
        if not record:
            self._semaphore.enter(member.index)
            if self.outboxes.has_room(member.index):
                self.release()
            return
        kind, _, number = RECORD.unpack_from(record)
        if kind == BLOCK:
            self.outboxes.given(member.index, number)
            self._wake.set()
        else:
            super()._heard(member, record)

    async def due(self) -> None:
        if self.unanswered:
            await asyncio.sleep(_RETRY_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait):
                while self._fatal is None and not self.outboxes.ready:
                    self._wake.clear()
                    await self._wake.wait()
        if self._fatal is not None:
            raise self._fatal
        self.unanswered = True
        self._asked = time.monotonic()

    def answered(self) -> None:
        """The exchange is over, and has come to something."""
        self.unanswered = False
        self._wait = max(_PULL_SECONDS, time.monotonic() - self._asked)

    def release(self) -> None:
        """Wakes the processes that wait. One that still has no block waits again."""
        self._release_all()


class Actors(CoreOrchestrator):
    """A child's actors. See `Backend` for what each method promises; arguments as there."""

    def _make_crew(self) -> Crew:
        self._actors = _ActorCrew(self.experiment, "core", self.name, self._fork, self._trace)
        return self._actors

    async def startup(self) -> Signature:
        signature = await super().startup()
        batch = self.experiment.algorithm.batch_size
        self._outboxes = self._actors.outboxes = Outboxes(self.memory, rows_of_a_block(batch))
        return signature

    def _fork(self, index: int, line: Connection, seed: tuple[int, ...]) -> ForkServerProcess:
        arguments = (index, self.experiment, self.memory, line, seed)
        return CORES.start(_ACTOR, arguments, self.experiment)

    def snapshot(self) -> Vector | None:
        """The rows that are ready, the same until the push is answered; None if there are none."""
        return self._outboxes.pack() if self._outboxes.ready else None

    def answered(self, steps: int) -> None:
        """The push is answered, and its blocks are free. The next should bring so many steps."""
        self._outboxes.acknowledge()
        self._actors.answered()
        self.memory.share[0] = steps

    def blend(self, sent: Vector, parent: Vector, beta: float) -> None:
        """θ_C ← θ_P, whatever β is."""
        self._take(parent)

    def reset(self, weights: Vector) -> None:
        """θ_C ← θ_P, after a pull or after a push that was refused, which is dropped."""
        self._outboxes.acknowledge()
        self._actors.answered()
        self._take(weights)

    def _take(self, weights: Vector) -> None:
        self.memory.weights[:] = weights
        self.memory.news[0] += 1
