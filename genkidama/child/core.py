"""One core process: actor and learner in one, on memory that it shares with its siblings.

Thesis §4.6, algorithm 1, and Hogwild! (Niu et al. 2011): a core acts with its own copy θ_L of the
weights, computes gradients at θ_L, applies them to the child's θ_O without a lock, and now and then
pulls θ_L ← θ_O.

Laws of this file:
- A core writes only its own gradient, its own share of the replay tensor and its own element of the
  semaphore vector; weights and optimizer state belong to all.
- It talks to the orchestrator on its `WorkerPipe`: a record for each finished episode.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genkidama.child.collector import CollectedBatch, CollectorContext, make_collector, make_slots
from genkidama.child.shared_memory import SharedMemory
from genkidama.child.worker import (
    GONE,
    READY,
    RECYCLED,
    UPDATE,
    MemoryGuard,
    WorkerPipe,
    run_worker,
)
from genkidama.config.experiment import Experiment
from genkidama.config.schedules import exploration, learning_rate
from genkidama.learning.learners import (
    by_autograd,
    gradients,
    make_learner,
    reads_log_mu,
    updates,
)
from genkidama.learning.model import Model, scaled
from genkidama.learning.optimizers import leave_gradient, make_optimizer
from genkidama.learning.rollout import Rollout
from genkidama.plugins.gorila.learner_core import make_learner_only
from genkidama.plugins.gorila.replay_factory import make_replay
from genkidama.plugins.gorila.target_network import TargetNetwork
from genkidama.protocol.diagnostics import Diagnostics
from genkidama.runtime.machine import forget_peak
from genkidama.server.rules.registry import reads_loss

__all__ = ["SingleCore", "run_core"]

Array = npt.NDArray[Any]

#: A core that only learns looks again so much later, where there is too little to learn from.
_REST_SECONDS = 0.05


#: A rehearsal plays no longer than this.
_REHEARSAL_SECONDS = 0.1


class SingleCore:
    """The core number `index` of a child.

    Args:
        index: its share of the replay tensor, its gradient and its element of the semaphore vector.
        experiment: all settings.
        memory: the child's shared memory, with θ_O in it.
        line: to the orchestrator.
        seed: distinguishes this core from every other one of the run, and from its own
            predecessors.
    """

    def __init__(
        self,
        index: int,
        experiment: Experiment,
        memory: SharedMemory,
        line: WorkerPipe,
        seed: tuple[int, ...],
    ) -> None:
        self.experiment = experiment
        self.algorithm = experiment.algorithm
        self._index = index
        self._memory = memory
        self._line = line
        sequence = np.random.SeedSequence(seed)
        self._torch_rng = torch.Generator().manual_seed(int(sequence.generate_state(1)[0]))
        self._places = make_slots(experiment)
        self._first_seed = int(sequence.generate_state(2)[1]) % 2**31
        self.model = Model(experiment, self._places, torch.from_numpy(memory.gradients[index]))
        self._shared = torch.from_numpy(memory.weights)
        own = 0 if experiment.optimizer.shared else index
        trainable = self.model.trainable
        #: Whether each of its updates is the child's, and all cores wait after it.
        self._shares_updates = experiment.child.exchange == "update"
        self._notes_losses = reads_loss(experiment)
        #: The newest loss, if they are noted.
        self._loss = math.nan
        make = leave_gradient if experiment.pushes == "gradient" else make_optimizer
        self._optimizer = make(
            experiment.optimizer,
            self._shared[:trainable],
            torch.from_numpy(memory.state[own]),
            memory.clock[own : own + 1],
        )
        self._learner = make_learner(experiment.algorithm, self.model)
        draws = np.random.default_rng(sequence.spawn(1)[0])
        writer = "/".join(map(str, (*seed[1:2], index)))
        self._share, self._replay = make_replay(
            memory, self.model, draws, index, writer, line.check
        )
        self._target = TargetNetwork(memory, index, self.algorithm)
        self._diagnostics = Diagnostics(memory.diagnostics[index])
        kit = CollectorContext(
            self.model,
            self._share,
            line,
            np.random.default_rng(sequence),
            reads_log_mu(self._learner),
            epsilon=self._epsilon,
            ended=self._diagnostics.ended,
        )
        role = experiment.role
        make_collector_for = make_learner_only if role == "learn" else make_collector
        self.collector = make_collector_for(experiment, self._places, kit)
        self._learns = role != "act"
        self._since_pull = 0
        #: Of the episode in each lane.
        self._discounted = [0.0] * experiment.environment.lanes

    def run(self) -> int:
        """Acts and learns until the orchestrator ends it; returns the process' exit code."""
        guard = MemoryGuard()
        try:
            self.collector.reset(self._first_seed)
            self._line.report(READY)
            self._line.pause("start")
            self.pull()
            while True:
                self._line.check()
                batch = self.collector.collect()
                if self._learns and not self.learn(batch) and not batch.steps:
                    time.sleep(_REST_SECONDS)
                if guard.leaks():
                    return RECYCLED
                self._since_pull += batch.steps
                waits = batch.ended and not self.algorithm.across_episodes
                if waits:
                    self._line.pause()
                if waits or not batch.steps or self._since_pull >= self.algorithm.pull_steps:
                    self.pull()
        except GONE:
            return 0
        finally:
            self._places.close()

    def rehearse(self) -> None:
        """Does once whatever takes memory.

        It plays for a moment; with one environment, to its episode's end at most. Then it learns
        from a full batch.
        """
        self._shared.copy_(self.model.vector)
        self.collector.reset(self._first_seed)
        n = self.algorithm.batch_size
        deadline = time.monotonic() + _REHEARSAL_SECONDS
        for _ in range(n):
            played = self.collector.collect(1)
            if played.ended or time.monotonic() > deadline:
                break
        self._share.rehearse()
        self._target.renew()
        # Writing makes their pages this process' own.
        self._memory.gradients[:] = 0.0
        self._memory.state[:] = 0.0
        forget_peak()
        following = played.following[:1] or [np.zeros(self.model.observation_shape, np.float32)]
        log_mu = None if played.log_mu is None else np.zeros(n, np.float32)
        rollout = self._rollout(CollectedBatch(played.rows, n, [n - 1], following, log_mu))
        found = gradients(self._learner, self.model, rollout, self._torch_rng)
        limit = self.algorithm.max_gradient_norm
        next(updates(found, self.model, self._optimizer, 0.0, limit), None)

    def learn(self, batch: CollectedBatch) -> int:
        """Applies the learner's updates from the newest batch to θ_O; how many there were."""
        rollout = self._rollout(batch)
        settings = self.experiment.optimizer
        rate = learning_rate(settings, rollout.progress)
        found = self._gradients(rollout)
        limit = self.algorithm.max_gradient_norm
        self._target.renew()
        count = 0
        for _ in updates(found, self.model, self._optimizer, rate, limit, self._diagnostics):
            count += 1
            self._target.updated()
            if self._shares_updates:
                self._line.report(UPDATE, self._loss)
                self._line.pause("update")
            if self._shares_updates or not self.algorithm.pull_steps:
                self.pull()
        return count

    def _gradients(self, rollout: Rollout) -> Iterator[None]:
        if not self._notes_losses:
            return gradients(self._learner, self.model, rollout, self._torch_rng)
        # Gradients that are written by hand come without their losses.
        losses = self._noted(self._learner.losses(rollout, self._torch_rng))
        return by_autograd(losses, self.model.gradient)

    def _noted(self, losses: Iterable[Tensor]) -> Iterator[Tensor]:
        """The same losses, each of which is noted."""
        for loss in losses:
            self._loss = loss.item()
            yield loss

    def _epsilon(self) -> float:
        """Of the next batch."""
        part = self._index / max(1, len(self._memory.semaphore) - 1)
        return exploration(self.algorithm, float(self._memory.progress[0]), part)

    def pull(self) -> None:
        """θ_L ← θ_O."""
        self.model.vector.copy_(self._shared)
        self._since_pull = 0

    def _rollout(self, batch: CollectedBatch) -> Rollout:
        rows, steps, cuts, following, log_mu, _ = batch
        raw = rows.observations[:steps].astype(np.float32, copy=False)
        cut_observations = np.array(following, np.float32).reshape(len(cuts), *raw.shape[1:])
        rewards = rows.rewards[:steps]
        ends = (rows.terminated[:steps] + rows.truncated[:steps]) > 0.0
        self._discount(rewards, ends)
        ends[cuts] = True
        normalize = self.model.normalizer()
        if normalize is not None:
            shared = self.model.moments("observations", self._memory.weights)
            assert shared is not None
            observations, cut_observations = normalize(raw), normalize(cut_observations)
            shared.add(raw.reshape(steps, -1))
        else:
            observations = raw.copy()  # contiguous, and the learner's own
        return Rollout(
            torch.from_numpy(observations),
            torch.from_numpy(rows.actions[:steps].astype(self.model.head.dtype)),
            scaled(rewards, self.experiment.environment, self.model.moments("returns")),
            ends,
            np.array(cuts, np.intp),
            torch.from_numpy(cut_observations),
            log_mu=log_mu,
            progress=float(self._memory.progress[0]),
            replay=self._replay,
            target=self._target.tensor,
            diagnostics=self._diagnostics,
        )

    def _discount(self, rewards: Array, ends: Array) -> None:
        """Takes the discounted returns into the shared statistics, if there are any."""
        shared = self.model.moments("returns", self._memory.weights)
        if shared is None:
            return
        found = np.empty_like(rewards)
        length = len(rewards) // len(self._discounted)
        for lane, discounted in enumerate(self._discounted):
            part = slice(lane * length, (lane + 1) * length)
            steps = zip(rewards[part].tolist(), ends[part].tolist(), strict=True)
            for t, (reward, end) in enumerate(steps, part.start):
                found[t] = discounted = self.algorithm.gamma * discounted + reward
                if end:
                    discounted = 0.0
            self._discounted[lane] = discounted
        shared.add(found[:, None])


def run_core(
    index: int,
    experiment: Experiment,
    memory: SharedMemory,
    pipe: Connection,
    seed: tuple[int, ...],
) -> None:
    """The life of a core process, from its fork to its exit code."""

    def life() -> int:
        torch.set_num_threads(1)
        after = experiment.child.exchange
        element = None if after == "free" else memory.semaphore[index : index + 1]
        line = WorkerPipe(pipe, memory.stop, element, after)
        return SingleCore(index, experiment, memory, line, seed).run()

    run_worker(pipe, life, len(memory.semaphore))
