"""An actor-critic that learns from samples of the replay, corrected by V-trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from genkidama.config.sections import Algorithm
from genkidama.learning.a3c import A3C
from genkidama.learning.learners import Loss
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout

if TYPE_CHECKING:
    from torch import Generator, Tensor


class VTrace(A3C):
    """The learner `algorithm.name = "vtrace"`: A3C's loss, off its policy.

    One update is made from the newest batch, and `batch_updates` from trajectories of at most
    `n_steps` steps that any core has played, `minibatch_size` steps together if none ends earlier.
    The replay tensor has log μ of every step, so V-trace (Espeholt et al. 2018) can tell what each
    is worth for the present policy.

    The states of a memory in it are as old as its steps. So with `burn_in`, as R2D2 does
    (Kapturowski et al. 2019, §3), that many steps in front of a trajectory are unrolled by the
    present network, and the state after them replaces the stored one.
    """

    reads_replay = True
    reads_log_mu = True

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        super().__init__(algorithm, model)
        self._off_policy = True

    def losses(self, rollout: Rollout, rng: Generator) -> Iterator[Tensor]:
        for part in self._parts(rollout):
            yield from super().losses(part, rng)

    def gradients(self, rollout: Rollout, rng: np.random.Generator) -> Iterator[Loss]:
        for part in self._parts(rollout):
            yield from super().gradients(part, rng)

    def _parts(self, rollout: Rollout) -> Iterator[Rollout]:
        """The newest batch, and then what is drawn, each just before it is learned from."""
        if len(rollout.rewards):
            yield rollout
        algorithm, replay = self._algorithm, rollout.replay
        if replay is None or len(replay) < max(1, algorithm.start_steps):
            return
        count = max(1, algorithm.minibatch_size // algorithm.n_steps)
        for _ in range(algorithm.batch_updates):
            drawn = replay.trajectories(count, algorithm.burn_in + algorithm.n_steps)
            if algorithm.burn_in:
                drawn = self._burned_in(drawn)
            drawn.progress = rollout.progress
            drawn.diagnostics = rollout.diagnostics
            yield drawn

    def _burned_in(self, drawn: Rollout) -> Rollout:
        """Trajectories without the steps that are only unrolled. One that begins an episode has its
        exact state, and is learned from as a whole; of each of the others a step is left at least.
        """
        model, log_mu = self._model, drawn.log_mu
        assert log_mu is not None
        starts = np.append(True, drawn.ends[:-1])
        firsts = np.flatnonzero(starts)
        lengths = np.diff(firsts, append=len(starts))
        states = drawn.observations[:, : model.memory]
        within = np.array([bool((states[first] != 0.0).any()) for first in firsts])
        steps = within * np.minimum(lengths - 1, self._algorithm.burn_in)
        left = np.arange(len(starts)) - np.repeat(firsts + steps, lengths) >= 0
        stale = steps > 0
        if stale.any():
            after = model.unrolled(drawn.observations[~left], starts[~left])
            states[(firsts + steps)[stale]] = after[steps.cumsum()[stale] - 1]
        return replace(
            drawn,
            observations=drawn.observations[left],
            actions=drawn.actions[left],
            rewards=drawn.rewards[left],
            ends=drawn.ends[left],
            cuts=left.cumsum()[drawn.cuts] - 1,
            log_mu=log_mu[left],
        )
