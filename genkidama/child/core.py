"""SingleCore: actor and learner in one process, on memory that all cores of a child share.

Thesis §4.6, algorithm 1, and Hogwild! (Niu et al. 2011): a core acts with its own copy θ_L of the
weights, computes gradients at θ_L, applies them to the child's θ_O without a lock, and now and then
pulls θ_L ← θ_O.

Laws of this file:
- A core writes only its own gradient, its own share of the replay tensor and its own element of the
  semaphore vector; weights and optimizer state belong to all.
- It reports to the orchestrator on its `WorkerPipe`: a record for each finished episode.
- Replay and target network are `CorePart`s of plug-ins. Only a core that needs them has them.
"""

from __future__ import annotations

import math
import time
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from genkidama.child.collector import (
    LOOK_STEPS,
    CollectedBatch,
    Collector,
    CollectorContext,
    Prepared,
    SlidingWindow,
    make_collector,
    make_slots,
)
from genkidama.child.shared_memory import (
    CLOCKS,
    BatchSink,
    ReplayRows,
    RolloutSink,
    SharedArray,
    SharedMemory,
    core_arrays,
)
from genkidama.child.worker import (
    ASK,
    READY,
    RECYCLED,
    UPDATE,
    MemoryGuard,
    StopWorker,
    WorkerPipe,
    run_worker,
)
from genkidama.config.experiment import Experiment
from genkidama.config.plugin import find
from genkidama.config.schedules import exploration, following, learning_rate
from genkidama.config.sections import CHUNKS
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import close
from genkidama.learning.forms import learner_class, tensor_setting
from genkidama.learning.learners import make_learner, reads_log_mu, reads_target, updates
from genkidama.learning.model import Model, Spaces
from genkidama.learning.optimizers import STATE_ROWS, LeaveGradient, make_optimizer
from genkidama.learning.rollout import Rollout
from genkidama.protocol.diagnostics import Diagnostics
from genkidama.runtime.machine import forget_peak, return_large_blocks
from genkidama.server.rules.registry import reads_loss

Array = npt.NDArray[Any]
Seed = tuple[int, ...]

#: Seconds that a core which only learns waits, if there is too little to learn from.
_REST_SECONDS = 0.05


class Core(Protocol):
    """The work of one core process; `SingleCore`, or the class of a plug-in's hook `cores`, which
    is made alike."""

    @classmethod
    def arrays(cls, experiment: Experiment, model: Model) -> dict[str, SharedArray]:
        """The arrays of a child's shared memory."""
        ...

    def run(self) -> int:
        """Works until the orchestrator ends it; returns the process' exit code."""
        ...

    def rehearse(self) -> None:
        """Does everything that takes memory once, in a process that ends afterwards."""
        ...


class CorePart:
    """An optional part of a `SingleCore`, from a plug-in's hook `core_parts`.

    One is made for each core whose experiment or learner needs it, before the core has a sink and a
    collector; a subclass overrides the methods that it is there for.
    """

    #: Takes the core's steps instead of a `BatchSink`.
    sink: RolloutSink | None = None

    def __init__(self, core: SingleCore) -> None: ...

    @classmethod
    def arrays(cls, experiment: Experiment, model: Model) -> dict[str, SharedArray]:
        """Its arrays in the shared memory. One with the name of a core's replaces that."""
        return {}

    @classmethod
    def check(cls, experiment: Experiment) -> None:
        """Checks that this machine has everything that the part needs."""

    @classmethod
    def rehearsal(cls, experiment: Experiment, spaces: Spaces) -> Experiment:
        """The experiment that a core rehearses with: it must change nothing outside this child."""
        return experiment

    def collector(self, context: CollectorContext) -> Collector | None:
        """Collects instead of the core's own collector, if it is not None."""
        return None

    def prepare(self, rollout: Rollout) -> None:
        """Adds to a rollout what the learner reads, just before it learns."""

    def updated(self) -> None:
        """The core has made an update."""


def core_class(experiment: Experiment) -> Any:
    """The class of an experiment's cores, each a `Core`."""
    return find("cores", "experience") if experiment.sends_experience else SingleCore


def core_parts(experiment: Experiment) -> list[type[CorePart]]:
    """The optional parts of an experiment's cores."""
    names = ["replay"] if experiment.replay_steps else []
    if reads_target(learner_class(experiment.algorithm)):
        names.append("target")
    parts = {name: find("core_parts", name) for name in names}
    for name, part in parts.items():
        if part is None:
            raise ConfigurationError(
                f"algorithm.name = {experiment.algorithm.name!r}: needs the part {name!r} of a "
                "core, which no plug-in has; install one, or take another algorithm"
            )
    return list(parts.values())


class SingleCore:
    """The core number `index` of a child.

    The index is that of its share of the replay tensor, its gradient and its element of the
    semaphore vector. The memory has θ_O in it. The seed distinguishes this core from every other
    one of the run, and from its own predecessors.
    """

    def __init__(
        self,
        index: int,
        experiment: Experiment,
        memory: SharedMemory,
        pipe: WorkerPipe,
        seed: Seed,
        prepared: Prepared | None = None,
    ) -> None:
        self.experiment = experiment
        self.algorithm = experiment.algorithm
        self.index = index
        self.memory = memory
        self.pipe = pipe
        self.seed = seed
        sequence = np.random.SeedSequence(seed)
        self._slots, self._first = prepared or Prepared(make_slots(experiment))
        if experiment.environment.period:
            self._slots.report(memory.cycles[index], memory.answered, memory.resetting[index])
        self._first_seed = int(sequence.generate_state(2)[1]) % 2**31
        self.model = Model(experiment, self._slots, memory.gradients[index])
        self._rng = self.model.generator(int(sequence.generate_state(1)[0]))
        own = 0 if experiment.optimizer.shared else index
        trainable = self.model.trainable
        #: Whether each of its updates is the child's, and all cores wait after it.
        self._shares_updates = experiment.child.exchange == "update"
        self._notes_losses = reads_loss(experiment)
        #: The newest loss, if they are noted.
        self._loss = math.nan
        make = LeaveGradient if experiment.pushes == "gradient" else make_optimizer
        self._optimizer = make(
            experiment.optimizer,
            memory.weights[:trainable],
            memory.state[own],
            memory.clock[own : own + 1],
        )
        self._learner = make_learner(experiment.algorithm, self.model)
        #: Whether it exchanges after each chunk; the batch of chunks; steps of a lane in one.
        self._chunks = experiment.child.exchange == "chunk"
        batch = experiment.algorithm.batch_size // experiment.environment.lanes
        self._chunk_steps = batch // CHUNKS
        self._window = SlidingWindow(batch)
        self._lanes = experiment.environment.lanes
        #: Whether it may play fewer: the lanes of a replay stay as many.
        self._may_rest = self._lanes > 1 and not experiment.replay_steps
        #: `averaging[0]` when it took θ_O last; whether it has asked for θ_P; looks in this chunk;
        #: and the child's pushes before it.
        self._seen, self._asked = 0.0, False
        self._looks = 0
        self._pushes = 0.0
        #: Seconds of a chunk, as a running mean.
        self._seconds = 0.0
        #: Decides what is drawn from a replay.
        self.draws = np.random.default_rng(sequence.spawn(1)[0])
        self._parts = [part(self) for part in core_parts(experiment)]
        sinks = [part.sink for part in self._parts if part.sink is not None]
        shape, columns = self.model.observation_shape, self.model.head.columns
        self._sink = sinks[0] if sinks else BatchSink(memory, index, shape, columns)
        self._diagnostics = Diagnostics(memory.diagnostics[index])
        self._notes_log_mu = reads_log_mu(self._learner) or self._chunks
        context = CollectorContext(
            self.model,
            self._sink,
            pipe,
            np.random.default_rng(sequence),
            self._diagnostics,
            self._notes_log_mu,
            epsilon=self._epsilon,
            renew=self._look if self._chunks else None,
        )
        collectors = [part.collector(context) for part in self._parts]
        self.collector = next(filter(None, collectors), None) or make_collector(
            experiment, self._slots, context
        )
        self._learns = experiment.role != "act"
        self._since_pull = 0
        #: Of the episode in each lane.
        self._discounted = [0.0] * experiment.environment.lanes

    @classmethod
    def arrays(cls, experiment: Experiment, model: Model) -> dict[str, SharedArray]:
        arrays = core_arrays(
            rows=experiment.algorithm.batch_size,
            columns=model.observation_size + model.head.columns + 3,
            size=model.signature.size,
            trainable=model.trainable,
            state_rows=STATE_ROWS[experiment.optimizer.name],
            shared_state=experiment.optimizer.shared,
        )
        if experiment.environment.period:
            arrays |= CLOCKS
        for part in core_parts(experiment):
            arrays |= part.arrays(experiment, model)
        return arrays

    def run(self) -> int:
        """Acts and learns until the orchestrator ends it; returns the process' exit code."""
        guard = MemoryGuard()
        try:
            self.collector.reset(self._first_seed, self._first)
            self.pipe.report(READY)
            self.pipe.pause("start")
            self._pushes = float(self.memory.averaging[4])
            self.pull()
            while True:
                self.pipe.check()
                batch = self._act() if self._chunks else self._collect()
                if self._learns and not self.learn(batch) and not batch.steps:
                    time.sleep(_REST_SECONDS)
                if guard.leaks(self.pipe.episodes):
                    return RECYCLED
                self._since_pull += batch.steps
                waits = batch.ended and not self.algorithm.across_episodes
                if waits:
                    self.pipe.pause()
                if waits or not batch.steps or self._since_pull >= self.algorithm.pull_steps:
                    self.pull()
        except StopWorker:
            return 0
        finally:
            close(self._slots)

    def rehearse(self) -> None:
        """Learns from a full batch of steps that nobody has played."""
        self.memory.weights[:] = self.model.numbers
        n = self.algorithm.batch_size
        rows = self._sink.begin(False)
        rows.observations[:] = rows.rewards[:] = 1
        self._sink.rehearse()
        # Writing makes their pages this process' own.
        self.memory.gradients[:] = 0.0
        self.memory.state[:] = 0.0
        forget_peak()
        following = [np.zeros(self.model.observation_shape, np.float32)]
        log_mu = np.zeros(n, np.float32) if self._notes_log_mu else None
        rollout = self._rollout(CollectedBatch(rows, n, [n - 1], following, log_mu))
        steps = self.model.gradients(self._learner, rollout, self._rng)
        next(updates(steps, self.model, self._optimizer, 0.0), None)

    def learn(self, batch: CollectedBatch) -> int:
        """Applies the learner's updates from the newest batch to θ_O.

        Returns:
            The number of gradients, with those that were left out as outliers.
        """
        rollout = self._rollout(batch)
        settings = self.experiment.optimizer
        rate = learning_rate(settings, rollout.progress)
        if self._chunks:
            follows = following(self.experiment, float(self.memory.averaging[2]))
            rollout.minibatch_size, rate = follows.minibatch_size, rate * follows.rate
        steps = self.model.gradients(self._learner, rollout, self._rng)
        count, outliers = 0, self.model.losses.outliers
        for loss in updates(steps, self.model, self._optimizer, rate, self._diagnostics):
            count += 1
            if self._notes_losses and loss is not None:
                self._loss = float(loss())
            for part in self._parts:
                part.updated()
            if self._shares_updates:
                self.pipe.report(UPDATE, self._loss)
                self.pipe.pause("update")
            if self._shares_updates or not self.algorithm.pull_steps:
                self.pull()
        if self._chunks:
            self.pipe.report(UPDATE, self._loss)
            self.pipe.pause("chunk")
            self._pushes = float(self.memory.averaging[4])
            self.pull()
        return count + self.model.losses.outliers - outliers

    def _collect(self) -> CollectedBatch:
        if self._may_rest:
            self._play(self.experiment.environment.lanes)
        return self.collector.collect()

    def _play(self, lanes: float) -> None:
        """Sets the lanes of further batches: so many, less those that rest."""
        lanes = max(1.0, lanes * (1.0 - float(self.memory.resting[0])))
        if abs(lanes - self._lanes) > 0.75:
            self._lanes = self.collector.play(round(lanes))

    def _act(self) -> CollectedBatch:
        """Plays a chunk, and waits for θ_P unless that has come meanwhile."""
        if self._may_rest:
            self._play(following(self.experiment, float(self.memory.averaging[2])).lanes)
        began = time.monotonic()
        self._asked, self._looks = False, 0
        chunk = self.collector.collect(self._chunk_steps)
        seconds = time.monotonic() - began
        self._seconds += (0.1 if self._seconds else 1.0) * (seconds - self._seconds)
        if self.index == 0:
            self.memory.averaging[3] = self._seconds
        # Over a slow link there is time for further steps, which make the chunk longer.
        longer: list[CollectedBatch] = []
        while self._late and self._looks < CHUNKS * self._chunk_steps // LOOK_STEPS:
            rows = ReplayRows(*(column[: chunk.steps].copy() for column in chunk.rows))
            longer.append(chunk._replace(rows=rows))
            self._window.add(chunk, self._lanes)
            chunk = self.collector.collect(min(LOOK_STEPS, self._chunk_steps))
        if self.memory.averaging[5] < self._pushes:
            self.pipe.pause("chunk")
        self.pull()
        for part in longer:  # θ_P has replaced the statistics, too
            self._absorb(part)
        return chunk

    @property
    def _late(self) -> bool:
        """True if θ_P was asked for early, and is not there."""
        return self._asked and bool(self.memory.averaging[5] < self._pushes)

    def _look(self) -> bool:
        """Takes a late answer of the parent over in the middle of a chunk, and asks for θ_P as long
        before its end as the next answer will take; whether the weights are new."""
        new = not self._asked and self.memory.averaging[0] != self._seen
        if new:
            self.pull()
        left = 1.0 - self._looks * LOOK_STEPS / self._chunk_steps
        self._looks += 1
        # The nearest look counts. Where the answer is quick, it is asked for at the end.
        early = self.memory.averaging[1] + 0.5 * self._seconds * LOOK_STEPS / self._chunk_steps
        if not self._asked and self._seconds and left * self._seconds <= early:
            self._asked = True
            self.pipe.report(ASK)
        return new

    def _epsilon(self) -> float:
        """ε of the next batch."""
        part = self.index / max(1, len(self.memory.semaphore) - 1)
        progress, version = self.memory.progress.tolist()
        return exploration(self.algorithm, progress, version, part)

    def pull(self) -> None:
        """θ_L ← θ_O."""
        self._seen = float(self.memory.averaging[0])
        self.model.numbers[:] = self.memory.weights
        self._since_pull = 0

    def _rollout(self, batch: CollectedBatch) -> Rollout:
        self._absorb(batch)
        if self._chunks:
            self._window.add(batch, self._lanes)
            batch = self._window.batch()
        rows, steps, cuts, following, log_mu, _ = batch
        raw = rows.observations[:steps].astype(np.float32, copy=False)
        cut_observations = np.array(following, np.float32).reshape(len(cuts), *raw.shape[1:])
        rewards = rows.rewards[:steps]
        ends = rows.terminated[:steps] > 0.0
        ends[cuts] = True  # those that were truncated, too
        normalize = self.model.normalizer()
        if normalize is not None:
            observations, cut_observations = normalize(raw), normalize(cut_observations)
        else:
            observations = raw.copy()  # contiguous, and the learner's own
        native = self.model.native
        rollout = Rollout(
            native(observations),
            native(rows.actions[:steps].astype(self.model.head.dtype)),
            self.model.scaled(rewards),
            ends,
            np.array(cuts, np.intp),
            native(cut_observations),
            log_mu=log_mu,
            progress=float(self.memory.progress[0]),
            diagnostics=self._diagnostics,
        )
        for part in self._parts:
            part.prepare(rollout)
        return rollout

    def _absorb(self, batch: CollectedBatch) -> None:
        """Takes observations and discounted returns into shared statistics, if there are any."""
        rows, n = batch.rows, batch.steps
        if (shared := self.model.moments("observations", self.memory.weights)) is not None:
            shared.add(rows.observations[:n].astype(np.float32, copy=False).reshape(n, -1))
        shared = self.model.moments("returns", self.memory.weights)
        if shared is None:
            return
        rewards, ends = rows.rewards[:n], (rows.terminated[:n] + rows.truncated[:n]) > 0.0
        returns = np.empty_like(rewards)
        length = len(rewards) // self._lanes
        for lane, discounted in enumerate(self._discounted[: self._lanes]):
            part = slice(lane * length, (lane + 1) * length)
            steps = zip(rewards[part].tolist(), ends[part].tolist(), strict=True)
            for t, (reward, end) in enumerate(steps, part.start):
                returns[t] = discounted = self.algorithm.gamma * discounted + reward
                if end:
                    discounted = 0.0
            self._discounted[lane] = discounted
        shared.add(returns[:, None])


def settle_memory(experiment: Experiment) -> None:
    """Prepares the memory of a core's process."""
    # Torch's batches between an environment's small leftovers would fragment the heap by megabytes
    # a second. With images, nearly all blocks are large, and to give each back would cost a quarter
    # of the speed.
    if tensor_setting(experiment) and experiment.network.name != "convolutional":
        return_large_blocks()


def run_core(
    index: int,
    experiment: Experiment,
    memory: SharedMemory,
    pipe: Connection,
    seed: Seed,
    prepared: Prepared | None = None,
) -> None:
    """A core process, from its fork to its exit code; arguments as `SingleCore`."""

    def work() -> int:
        settle_memory(experiment)
        after = experiment.child.exchange
        element = None if after == "free" else memory.semaphore[index : index + 1]
        worker_pipe = WorkerPipe(pipe, memory.stop, element, after)
        make = core_class(experiment)
        try:
            core: Core = make(index, experiment, memory, worker_pipe, seed, prepared)
        except StopWorker:  # it was still waiting for the engine of its replay
            return 0
        return core.run()

    run_worker(pipe, work, len(memory.semaphore))
