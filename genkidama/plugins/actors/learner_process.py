"""The parent's side of its learner: starts the process, hands it batches, replaces it. No torch.

Laws of this file:
- They share memory and take turns, and each turn begins with a message on their socket. From
  "learn" to "learned" the memory belongs to the learner, otherwise to the parent. So nothing is
  read while it is written. Only `beat` may be read at any time: it shows that the learner works.
  While the parent writes the replay to its file, the learner waits.
- The learner copies a batch's rows before it changes anything, and writes θ and the optimizer's
  state after it has learned from all of them. So a learner that dies leaves the state before.
- A learner that dies is restarted with the newest θ and its optimizer's state. The batch that
  it was learning from is lost, and counts against the children whose rows it had
  (`Experience.killed`). The run ends if the rows of every child kill it, or if it dies again and
  again without any.
- One that hangs is killed, as `genkidama.runtime.watchdog` decides. One without a batch waits, and
  has no age.
- It is forked from `FORKSERVER` if there is one. Else, and after that is gone, it is a new program.
- It ends with the socket, and its end of the socket ends with it. If a forkserver has forked it,
  nothing more is known for sure once the forkserver is gone.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from genkidama.config.formatting import megabytes
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError, ProtocolError
from genkidama.parent.extensions import Companion
from genkidama.parent.parent import Parent
from genkidama.plugins.actors.rule import Columns, Experience, LearnedBatch
from genkidama.plugins.actors.step_replay import FILE, replay_parts, restore, save
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.runs.checkpoint import SPACES
from genkidama.runtime.files import write_atomically
from genkidama.runtime.forkserver import ForkedProcess, ForkServer
from genkidama.runtime.log import get_logger
from genkidama.runtime.pacing import RestartPolicy
from genkidama.runtime.process import WorkerProcess, start_program
from genkidama.runtime.shared_block import Block, size_of
from genkidama.runtime.task import see_spaces
from genkidama.runtime.watchdog import Watchdog
from genkidama.server.events import Measures

#: The one that this program was forked from, with torch warm.
FORKSERVER = ForkServer()

#: The first function of a learner that is forked from it.
_ENTRY = "genkidama.plugins.actors.learner:run_forked"

#: Patience with it, in that with a core: before its first update it looks at the whole batch.
_PATIENCE = 2.0

#: Seconds after which a replay is written again: a run that is killed loses no more.
_SAVE_SECONDS = 300.0

log = get_logger()


@dataclass(frozen=True)
class LearnerLayout:
    """The sizes that the shared memory follows from."""

    size: int
    trainable: int
    state_rows: int
    #: Rows of a batch, at most.
    rows: int
    #: M: numbers of a row.
    columns: int
    #: The arrays of a replay, if the learner samples one.
    replay: dict[str, tuple[tuple[int, ...], Any]] = field(default_factory=dict)

    def parts(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        return {
            # θ.
            "weights": ((self.size,), np.float32),
            # The optimizer's state, and its steps so far.
            "state": ((self.state_rows, self.trainable), np.float32),
            "clock": ((1,), np.float64),
            # A number that grows with each update, and with the batch's end.
            "beat": ((1,), np.int64),
            # The batch: blocks one behind the other, from the first row on.
            "rows": ((self.rows, self.columns), np.float32),
            **self.replay,
        }


class LearnerMemory(Block):
    """The arrays that `LearnerLayout.parts` names."""


def companion(parent: Parent) -> LearnerProcess | None:
    """The learner of a parent whose children send experience."""
    rule = parent.server.trials.rule
    if not isinstance(rule, Experience):
        return None
    return LearnerProcess(parent, rule)


class LearnerProcess(Companion):
    """The learner of the parent of a plain run, started again whenever it dies."""

    def __init__(self, parent: Parent, rule: Experience) -> None:
        self._parent = parent
        self._server = parent.server
        self._experiment = parent.experiment
        self._rule = rule
        self._memory: LearnerMemory | None = None
        replay = self._experiment.section("replay")
        #: Steps of the learner's replay; 0 without one.
        self._replay_steps = 0 if replay is None else replay.steps
        rule.replays = self._replay_steps > 0
        #: Whether updates are due without new steps; when the replay was written; and that at work.
        self._due = False
        self._saved = time.monotonic()
        self._saving: asyncio.Task[None] | None = None
        self._idle = False
        self._ending = False
        #: For deaths in a row with no batch learned in between.
        self._policy = RestartPolicy(3, rest=1.0)
        self._restarting: asyncio.Task[None] | None = None
        self._worker: WorkerProcess | None = None
        patience = _PATIENCE * self._experiment.child.hang_seconds
        self._watch = Watchdog(patience, self._beat, self._hung)

    async def start(self) -> None:
        """Starts it with θ_P or, in a new run, takes its initial weights for θ_P."""
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
        steps, columns = self._replay_steps, self._columns
        replay = replay_parts(columns, steps, self._images) if steps else {}
        self._memory = LearnerMemory(
            LearnerLayout(signature.size, trainable, rows, self._rule.room, columns.count, replay)
        )
        if steps:
            await asyncio.to_thread(self._restore)
        self._attach()

    async def _describe(self) -> tuple[Signature, Vector]:
        """Starts a process. Returns the signature of what it has built, and its initial weights."""
        self._worker = worker = WorkerProcess(self)
        self._watch.ages.started(0)
        try:
            described = await worker.describe(self._experiment, self._launch, await self._spaces())
            entries, initial, shape, columns, self._images = described
        except asyncio.CancelledError:
            self._ending = True
            raise
        except (EOFError, OSError) as error:
            how = f": {worker.reason if worker.pid or worker.failure else error}"
            if self._memory is None and not worker.failure:
                needs = f"torch and {self._experiment.environment.id!r} on the parent's machine"
                how = f" with exit code {worker.wait()}; it needs {needs}: "
                how += f"try `{sys.executable} -m genkidama.plugins.actors.learner`"
            raise EnvironmentFailure(
                f"parent.rule = 'experience': the learner's process died{how}"
            ) from None
        finally:
            self._watch.ages.rest(0)
        self._state_shape: tuple[int, int] = shape
        self._columns: Columns = columns
        return Signature.of(entries), np.frombuffer(initial, DTYPE).copy()

    async def _spaces(self) -> Any:
        """The spaces of the environment, which is built for that once in a run; None of
        Gymnasium's own, where it costs nothing."""
        assert self._parent.out is not None
        file = self._parent.out / SPACES
        with suppress(OSError, ValueError):
            return json.loads(file.read_bytes())
        found = await see_spaces(self._experiment)
        if found is not None:
            write_atomically(file, json.dumps(found).encode())
        return found

    def _launch(self, pipe: Connection) -> subprocess.Popen[bytes] | ForkedProcess:
        """Starts a learner. Waits while its forkserver is warming up."""
        if FORKSERVER.running:
            with suppress(EOFError, OSError):  # it is gone
                return FORKSERVER.start(_ENTRY, (pipe,), self._experiment)
        return start_program("genkidama.plugins.actors.learner", (), pipe)

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
        """Hands the next batch over, if there is one, the learner is idle, and no replay is being
        written."""
        if not self._idle or self._saving is not None:
            return
        blocks = self._rule.take()
        if blocks is None and not self._due:
            return
        memory, worker = self._memory, self._worker
        assert memory is not None
        assert worker is not None
        count = 0
        for rows in blocks or ():
            memory.rows[count : count + len(rows)] = rows
            count += len(rows)
        self._idle = False
        self._watch.ages.wake(0)
        worker.send((count, self._server.progress(self._parent.now())))

    def heard(self, worker: WorkerProcess, message: tuple[str, Any]) -> None:
        """Takes the result of a batch, or the reason of its death."""
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
        self._due = bool(what.pop("due", 0.0))
        if self._replay_steps and time.monotonic() - self._saved > _SAVE_SECONDS:
            self._saving = asyncio.get_running_loop().create_task(self._save_and_go_on())
        if what and not self._rule.batches % self._experiment.parent.history_every:
            self._server.trials.events.append(
                Measures(
                    time=self._parent.now(),
                    backend="learner",
                    child="parent",
                    figures={**what, **self._rule.figures()},
                )
            )
        self.feed()
        self._parent.connections.answer_long_polls()

    def _beat(self, _: int) -> int:
        return 0 if self._memory is None else int(self._memory.beat[0])

    def _hung(self, index: int, seconds: float) -> None:
        if self._worker is not None:
            self._worker.hung(seconds)

    def lost(self, worker: WorkerProcess) -> None:
        """Starts another one, or ends the run."""
        self._watch.ages.rest(0)
        if self._ending:
            return
        self._idle = False
        code, reason = worker.wait(), worker.reason
        children = self._blame(reason)
        how, rest = "", 0.0
        if not children:
            rest = self._policy.died(time.monotonic())
            if self._policy.given_up:
                how = f"{self._policy.deaths} times in a row"
        elif all(map(self._rule.is_deadly, self._server.joined.union(children))):
            how = "again and again, of every child's rows"
        if how:
            self._parent.fail(EnvironmentFailure(f"the learner died {how}: {reason}"))
            return
        log.warning("learner lost", exit_code=code, reason=reason, rows_of=children)
        self._restarting = asyncio.get_running_loop().create_task(self._restart(rest))

    def _blame(self, reason: str) -> list[str]:
        """Counts the death against the children whose rows it had, and returns their names."""
        children = self._rule.killed()
        others = len(children) - 1
        for child in children:
            shared = f", with rows of {others} others beside them" if others else ""
            error = ProtocolError(
                "experience", f"child {child!r}: the learner died of its rows{shared}: {reason}"
            )
            self._server.refuse(child, error, self._parent.now())
        return children

    async def _restart(self, rest: float) -> None:
        while True:
            await asyncio.sleep(rest)
            try:
                await self._describe()
            except GenkidamaError as error:
                rest = self._policy.died(time.monotonic())
                if isinstance(error, ConfigurationError) or self._policy.given_up:
                    self._parent.fail(error)
                    return
                log.warning("learner not started", reason=str(error))
            else:
                self._attach()
                return

    async def stop(self) -> None:
        self._ending = True
        self._watch.end()
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait((self._restarting,))
        if self._worker is not None:
            await self._worker.end()
        if self._saving is not None:
            await asyncio.wait((self._saving,))
        if self._memory is not None:
            if self._replay_steps and self._memory.added[0]:
                await self._save()
            self._memory.close()

    def _restore(self) -> None:
        """Fills the replay from the file of the run's directory."""
        memory, out = self._memory, self._parent.out
        if memory is None or out is None:
            return
        if why := restore(out, memory):
            log.warning("replay not used: it begins empty", file=str(out / FILE), reason=why)
            return
        log.info(
            "replay",
            steps=int(memory.added[0]),
            room=self._replay_steps,
            memory=megabytes(size_of(memory.layout)),
            file=str(out / FILE),
        )

    async def _save_and_go_on(self) -> None:
        try:
            await self._save()
        finally:
            self._saving = None
            if not self._ending:
                self.feed()

    async def _save(self) -> None:
        """Writes the replay to the run's directory; a disk that refuses is only complained of."""
        out = self._parent.out
        if out is None:
            return
        try:
            steps = await asyncio.to_thread(save, out, self._memory)
        except EnvironmentFailure as error:
            log.warning("replay not written", reason=str(error))
            return
        finally:
            self._saved = time.monotonic()
        path = out / FILE
        log.info("replay written", steps=steps, file=str(path), bytes=path.stat().st_size)
