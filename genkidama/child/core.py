"""One core process: actor and learner in one, on memory that it shares with its siblings.

Thesis §4.6, algorithm 1, and Hogwild! (Niu et al. 2011): a core acts with its own copy θ_L of the
weights, computes gradients at θ_L, applies them to the child's θ_O without a lock, and now and then
pulls θ_L ← θ_O.

Laws of this file:
- A core writes only its own gradient, its own share of the replay tensor and its own element of the
  semaphore vector; weights and optimizer state belong to all.
- It talks to the orchestrator on its `Line`: a record for each finished episode.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genkidama.child.memory import SharedMemory
from genkidama.child.process import (
    EPISODE,
    GONE,
    PROGRESS,
    READY,
    RECYCLED,
    REPORT_STEPS,
    UPDATE,
    Line,
    MemoryGuard,
    live,
)
from genkidama.child.replay import LearnersReplay, ReplayTensor, Share
from genkidama.experiment import Experiment
from genkidama.learning.environments import make_environment
from genkidama.learning.learners import make_learner, reads_log_mu, updates
from genkidama.learning.model import Model
from genkidama.learning.optimizers import leave_gradient, make_optimizer
from genkidama.learning.rollout import Rollout, scaled
from genkidama.schedules import SCHEDULES
from genkidama.system.machine import forget_peak

__all__ = ["SingleCore", "run_core"]

Array = npt.NDArray[Any]

#: How many batches pass between two looks at the memory.
_LOOK_BATCHES = 128

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
        line: Line,
        seed: tuple[int, ...],
    ) -> None:
        self.experiment = experiment
        self.algorithm = experiment.algorithm
        self._index = index
        self._memory = memory
        self._line = line
        sequence = np.random.SeedSequence(seed)
        self._rng = np.random.default_rng(sequence)
        self._torch_rng = torch.Generator().manual_seed(int(sequence.generate_state(1)[0]))
        self._environment = make_environment(experiment.environment)
        self._episode_seed = int(sequence.generate_state(2)[1]) % 2**31
        self.model = Model(experiment, self._environment, torch.from_numpy(memory.gradients[index]))
        self._shared = torch.from_numpy(memory.weights)
        own = 0 if experiment.optimizer.shared else index
        trainable = self.model.trainable
        #: Whether each of its updates is the child's, and all cores wait after it.
        self._shares_updates = experiment.child.exchange == "update"
        #: The newest loss.
        self._loss = math.nan
        make = leave_gradient if experiment.pushes == "gradient" else make_optimizer
        self._optimizer = make(
            experiment.optimizer,
            self._shared[:trainable],
            torch.from_numpy(memory.state[own]),
            memory.clock[own : own + 1],
        )
        self._learner = make_learner(experiment.algorithm, self.model)
        self._sample = self.model.head.sampler(self._rng, experiment.algorithm.epsilon)
        batch = self.algorithm.batch_size
        replay = ReplayTensor(memory, batch, self.model.observation_shape, self.model.head.columns)
        self._share = Share(replay, index)
        #: Where the newest batch lies.
        self._rows = self._share.begin(False)
        #: The policy's outputs at each step of a batch, if the learner asks how probable actions
        #: were.
        self._outputs: Array | None = None
        if reads_log_mu(self._learner):
            self._outputs = np.zeros((batch, self.model.head.outputs), np.float32)
        self._log_mu: Array | None = None
        self._replay: LearnersReplay | None = None
        if replay.kept:
            draws = np.random.default_rng(sequence.spawn(1)[0])
            self._replay = LearnersReplay(replay, self.model, draws, index)
        self._observation: Any = None
        self._return = 0.0
        self._length = 0
        #: Steps of the episode that the orchestrator has heard of.
        self._said = 0
        self._since_pull = 0
        self._discounted = 0.0

    def run(self) -> int:
        """Acts and learns until the orchestrator ends it; returns the process' exit code."""
        guard = MemoryGuard()
        try:
            self._observation, _ = self._environment.reset(seed=self._episode_seed)
            self._line.report(READY)
            self._line.pause("start")
            self.pull()
            batches = 0
            while True:
                self._line.check()
                batches += 1
                if not batches % _LOOK_BATCHES and guard.leaks():
                    return RECYCLED
                steps, cuts, following = self.collect()
                self.learn(steps, cuts, following)
                self._since_pull += steps
                ended = self._length == 0
                if ended and not self.algorithm.across_episodes:
                    self._line.pause()
                if self._since_pull >= self.algorithm.pull_steps or (
                    ended and not self.algorithm.across_episodes
                ):
                    self.pull()
        except GONE:
            return 0
        finally:
            self._environment.close()

    def rehearse(self) -> None:
        """Does once whatever takes memory.

        It plays for a moment, to an episode's end at most. Then it learns from a full batch.
        """
        self._shared.copy_(self.model.vector)
        self._observation, _ = self._environment.reset(seed=self._episode_seed)
        n, deadline = self.algorithm.batch_size, time.monotonic() + _REHEARSAL_SECONDS
        for _ in range(n):
            _, _, following = self.collect(1)
            if not self._length or time.monotonic() > deadline:
                break
        self._share.rehearse()
        # Writing makes their pages this process' own.
        self._memory.gradients[:] = 0.0
        self._memory.state[:] = 0.0
        forget_peak()
        self._log_mu = self._looked_back(n)
        rollout = self._rollout(n, [n - 1], following or [self._observation])
        losses = self._learner.losses(rollout, self._torch_rng)
        limit = self.algorithm.max_gradient_norm
        next(updates(losses, self.model, self._optimizer, 0.0, limit), None)

    def collect(self, most: int = sys.maxsize) -> tuple[int, list[int], list[Array]]:
        """Plays until the batch is full, or `most` steps are made.

        Unless batches go on across episodes, it also stops at the episode's end.

        Returns:
            How many steps; after which of them the trajectory is cut though it could go on; and the
            observations that followed there.
        """
        # Everything in this loop costs every step; what can be looked up once is a local name.
        self._rows = rows = self._share.begin(self._length > 0)
        observations, actions, rewards, was_terminated, was_truncated = rows
        step = self._environment.step
        outputs = self._acting()
        sample = self._sample
        normalize, to_environment = self.model.normalizer(), self.model.head.to_environment
        observation, across = self._observation, self.algorithm.across_episodes
        was_terminated[:] = 0.0
        was_truncated[:] = 0.0
        cuts: list[int] = []
        following: list[Array] = []
        n = min(self.algorithm.batch_size, most)
        episode_return, length = self._return, self._length
        t = 0
        while t < n:
            observations[t] = observation
            action = sample(outputs(observation if normalize is None else normalize(observation)))
            actions[t] = action
            observation, reward, terminated, truncated, _ = step(to_environment(action))
            rewards[t] = reward
            episode_return += float(reward)
            length += 1
            t += 1
            if terminated or truncated:
                if terminated:
                    was_terminated[t - 1] = 1.0
                else:
                    was_truncated[t - 1] = 1.0
                    cuts.append(t - 1)
                    following.append(observation)
                observation, _ = self._environment.reset()
                self._line.report(EPISODE, episode_return, length - self._said)
                episode_return = 0.0
                length = 0
                self._said = 0
                if not across:
                    break
                self._line.pause()
        if length:
            cuts.append(t - 1)
            following.append(observation)
        self._log_mu = self._looked_back(t)
        self._share.end(t, cuts, following, np.nan if self._log_mu is None else self._log_mu)
        self._observation = observation
        self._return = episode_return
        self._length = length
        if length - self._said >= REPORT_STEPS:
            self._line.report(PROGRESS, 0.0, length - self._said)
            self._said = length
        return t, cuts, following

    def _acting(self) -> Callable[[Array], Array]:
        """A function from one observation to the policy's outputs.

        It notes them, if the learner asks for log μ.
        """
        outputs = self.model.network.acting()
        if self._outputs is None:
            return outputs
        noted = iter(self._outputs)

        def noting(observation: Array) -> Array:
            result = outputs(observation)
            next(noted)[:] = result
            return result

        return noting

    def _looked_back(self, steps: int) -> Array | None:
        """log μ of the batch's actions, float32 (steps,), if the learner asks for it."""
        if self._outputs is None:
            return None
        actions = torch.from_numpy(self._rows.actions[:steps].astype(self.model.head.dtype))
        outputs = torch.from_numpy(self._outputs[:steps])
        log_mu: Array = self.model.head.log_probability(outputs, actions).numpy()
        return log_mu

    def learn(self, steps: int, cuts: list[int], following: list[Array]) -> None:
        """Applies the learner's updates from the `steps` steps of the newest batch to θ_O."""
        rollout = self._rollout(steps, cuts, following)
        settings = self.experiment.optimizer
        rate = SCHEDULES[settings.schedule](
            settings.learning_rate, settings.final_learning_rate, rollout.progress
        )
        losses: Iterable[Tensor] = self._learner.losses(rollout, self._torch_rng)
        if self._shares_updates:
            losses = self._noted(losses)
        for _ in updates(
            losses, self.model, self._optimizer, rate, self.algorithm.max_gradient_norm
        ):
            if self._shares_updates:
                self._line.report(UPDATE, self._loss)
                self._line.pause("update")
            if self._shares_updates or not self.algorithm.pull_steps:
                self.pull()

    def _noted(self, losses: Iterable[Tensor]) -> Iterator[Tensor]:
        """The same losses, each of which is noted."""
        for loss in losses:
            self._loss = loss.item()
            yield loss

    def pull(self) -> None:
        """θ_L ← θ_O."""
        self.model.vector.copy_(self._shared)
        self._since_pull = 0

    def _rollout(self, steps: int, cuts: list[int], following: list[Array]) -> Rollout:
        rows = self._rows
        raw = rows.observations[:steps]
        cut_observations = np.array(following, np.float32).reshape(len(cuts), *raw.shape[1:])
        rewards = rows.rewards[:steps]
        ends = (rows.terminated[:steps] + rows.truncated[:steps]) > 0.0
        self._discount(rewards, ends)
        ends[-1] = True
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
            log_mu=self._log_mu,
            progress=float(self._memory.progress[0]),
            replay=self._replay,
        )

    def _discount(self, rewards: Array, ends: Array) -> None:
        """Takes the discounted returns into the shared statistics, if there are any."""
        shared = self.model.moments("returns", self._memory.weights)
        if shared is None:
            return
        discounted = np.empty_like(rewards)
        for t, (reward, end) in enumerate(zip(rewards.tolist(), ends.tolist(), strict=True)):
            self._discounted = discounted[t] = self.algorithm.gamma * self._discounted + reward
            if end:
                self._discounted = 0.0
        shared.add(discounted[:, None])


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
        line = Line(pipe, memory.stop, element, after)
        return SingleCore(index, experiment, memory, line, seed).run()

    live(pipe, life)
