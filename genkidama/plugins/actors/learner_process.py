"""The parent's side of its learner: start the process, hand it batches, note its end. No torch.

Laws of this file:
- The two take turns: `genkidama.plugins.actors.learner_memory` says whose the shared memory is
  when.
- A learner that dies is started again with the newest θ and its optimizer's state. What it was
  learning from is lost, and counted against the children whose rows it was (`Experience.killed`).
  The run ends if the rows of every child kill it, or if it dies again and again without any.
- One that hangs is killed, as a core is: `genkidama.runtime.watchdog` says when. One without a
  batch waits, and has no age.
- It is forked from `NURSERY` if there is one. Else, and where that is gone, it is a new program.
- It ends with the socket, and its end of the socket ends with it. Of a process that a nursery has
  forked nothing more is known for sure once the nursery is gone.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

import numpy as np
import structlog

from genkidama.errors import (
    ConfigurationError,
    EnvironmentFailure,
    GenkidamaError,
    ProtocolError,
)
from genkidama.plugins.actors.learner_memory import LearnerLayout, LearnerMemory
from genkidama.plugins.actors.rule import Columns, Experience, LearnedBatch
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.runtime.forkserver import ForkServer
from genkidama.runtime.pacing import RestartPolicy
from genkidama.runtime.watchdog import Watchdog
from genkidama.runtime.worker_process import WorkerProcess, start_program
from genkidama.server.events import Measures
from genkidama.server.parameter_server import ParameterServer

__all__ = ["NURSERY", "LearnerProcess"]

#: Another program's, which has torch warm. It must be joined first.
NURSERY = ForkServer()

#: The first function of a learner that is forked from it.
_ENTRY = "genkidama.plugins.actors.__main__:run_forked"

#: It may do nothing for so many times as long as a core: before its first update it looks at the
#: whole batch.
_PATIENCE = 2.0

log = structlog.get_logger()


class LearnerProcess:
    """The learner of one parent, started again whenever it dies.

    Args:
        server: the parent's mind, of a plain run.
        rule: its rule, which has the batches and is told what was learned.
        now: the parent's clock, in seconds.
        failed: called with the reason when learning cannot go on.
        learned: called when θ_P is a newer one.
    """

    def __init__(
        self,
        server: ParameterServer,
        rule: Experience,
        now: Callable[[], float],
        failed: Callable[[GenkidamaError], None],
        learned: Callable[[], None] = lambda: None,
    ) -> None:
        self._server = server
        self._experiment = server.experiment
        self._rule = rule
        self._now = now
        self._failed = failed
        self._learned = learned
        self._memory: LearnerMemory | None = None
        self._idle = False
        self._ending = False
        #: Of a learner that dies again and again with no batch learned in between.
        self._policy = RestartPolicy(3)
        self._restarting: asyncio.Task[None] | None = None
        self._worker: WorkerProcess | None = None
        self._watch = Watchdog(
            _PATIENCE * self._experiment.child.hang_seconds, self._beat, self._hung
        )

    @property
    def pid(self) -> int:
        """Its process number, once it is started."""
        assert self._worker is not None
        return self._worker.pid

    async def begin(self) -> None:
        """Lets the learner learn from θ_P on or, in a new run, takes its initial weights for θ_P.

        Raises:
            ConfigurationError: it cannot build what the experiment names, or θ_P is another
                network's.
            EnvironmentFailure: it died on the way.
        """
        self._watch.begin()
        signature, initial = await self._describe()
        trial = self._server.trial
        if trial.vector is None:
            trial.signature = signature
            trial.vector = initial
        assert trial.signature is not None
        if difference := trial.signature.difference(signature):
            raise ConfigurationError(
                f"the run's checkpoints have another network: {difference}; "
                "choose another directory with --out"
            )
        rows, trainable = self._state_shape
        state = np.zeros((rows, trainable), np.float32)
        learned = LearnedBatch(trial.vector.copy(), state, np.zeros(1))
        block = 2 * self._experiment.algorithm.batch_size
        self._newest = self._rule.begin(self._columns, block, learned)
        self._memory = LearnerMemory(
            LearnerLayout(signature.size, trainable, rows, self._rule.room, self._columns.count)
        )
        self._attach()

    async def _describe(self) -> tuple[Signature, Vector]:
        """What a new learner has built: what its vector means, and its initial weights."""
        self._worker = worker = WorkerProcess(self)
        self._watch.ages.born(0)
        try:
            entries, initial, shape, columns = await worker.describe(self._experiment, self._launch)
        except asyncio.CancelledError:
            self._ending = True
            raise
        except (EOFError, OSError):
            needs = f"torch and {self._experiment.environment.id!r} on the parent's machine"
            how = f" with exit code {worker.wait()}; it needs {needs}: "
            how += f"try `{sys.executable} -m genkidama.plugins.actors`"
            how = f": {worker.failure}" if worker.failure else how
            raise EnvironmentFailure(
                f"parent.rule = 'experience': the learner's process died{how}"
            ) from None
        finally:
            self._watch.ages.rest(0)
        self._state_shape: tuple[int, int] = shape
        self._columns: Columns = columns
        return Signature.of(entries), np.frombuffer(initial, DTYPE).copy()

    def _launch(self, pipe: Connection) -> subprocess.Popen[bytes] | ForkServerProcess:
        """Starts a learner; where its nursery is still warming up, it waits for that."""
        if NURSERY.born:
            with suppress(EOFError, OSError):  # it is gone
                return NURSERY.start(_ENTRY, (pipe,), self._experiment)
        return start_program("genkidama.plugins.actors", (), pipe)

    def _attach(self) -> None:
        memory, worker = self._memory, self._worker
        assert memory is not None
        assert worker is not None
        memory.weights[:] = self._newest.weights
        memory.state[:] = self._newest.state
        memory.clock[:] = self._newest.clock
        worker.hand_over(memory.layout, memory.descriptor)
        worker.listen()
        self._idle = True
        self.feed()

    def feed(self) -> None:
        """Hands the next batch over, if there is one and the learner is idle."""
        if not self._idle:
            return
        blocks = self._rule.take()
        if blocks is None:
            return
        memory, worker = self._memory, self._worker
        assert memory is not None
        assert worker is not None
        count = 0
        for rows in blocks:
            memory.rows[count : count + len(rows)] = rows
            count += len(rows)
        self._idle = False
        self._watch.ages.wake(0)
        worker.send((count, self._server.progress(self._now())))

    def heard(self, worker: WorkerProcess, message: tuple[str, Any]) -> None:
        """It has learned a batch, or says why it cannot."""
        kind, what = message
        if kind == "failed":
            worker.failure = what
            return
        memory = self._memory
        assert memory is not None
        self._policy.worked()
        self._watch.ages.sign(0)
        self._watch.ages.rest(0)
        self._newest = LearnedBatch(memory.weights.copy(), memory.state.copy(), memory.clock.copy())
        self._rule.learned(self._newest)
        self._idle = True
        if not self._rule.batches % self._experiment.parent.history_every:
            self._server.trials.events.append(
                Measures(
                    time=self._now(),
                    backend="learner",
                    child="parent",
                    figures={**what, **self._rule.figures()},
                )
            )
        self.feed()
        self._learned()

    def _beat(self, _: int) -> int:
        return 0 if self._memory is None else int(self._memory.beat[0])

    def _hung(self, _: int, seconds: float) -> None:
        if self._worker is not None:
            self._worker.hung(seconds)

    def lost(self, worker: WorkerProcess) -> None:
        """It is gone."""
        self._watch.ages.rest(0)
        if self._ending:
            return
        self._idle = False
        code, reason = worker.wait(), worker.reason
        children = self._blame(reason)
        how = ""
        if not children:
            self._policy.died(time.monotonic())
            if self._policy.given_up:
                how = f"{self._policy.deaths} times in a row"
        elif all(map(self._rule.is_deadly, self._server.joined.union(children))):
            how = "again and again, of every child's rows"
        if how:
            self._failed(EnvironmentFailure(f"the learner died {how}: {reason}"))
            return
        log.warning("learner lost", exit_code=code, reason=reason, rows_of=children)
        self._restarting = asyncio.get_running_loop().create_task(self._restart())

    def _blame(self, reason: str) -> list[str]:
        """Counts the learner's death to those children whose rows it had, and says who they are."""
        children = self._rule.killed()
        others = len(children) - 1
        for child in children:
            shared = f", with rows of {others} others beside them" if others else ""
            error = ProtocolError(
                "experience", f"child {child!r}: the learner died of its rows{shared}: {reason}"
            )
            self._server.refuse(child, error, self._now())
        return children

    async def _restart(self) -> None:
        try:
            await self._describe()
        except GenkidamaError as error:
            self._failed(error)
            return
        self._attach()

    async def end(self) -> None:
        """Ends the process, which ends by itself when its socket does, and frees the memory."""
        self._ending = True
        self._watch.end()
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait((self._restarting,))
        if self._worker is not None:
            await self._worker.end()
        if self._memory is not None:
            self._memory.close()
