"""An actor-critic that learns from samples of the replay, corrected by V-trace."""

from __future__ import annotations

from collections.abc import Iterator
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
            drawn = replay.trajectories(count, algorithm.n_steps)
            drawn.progress = rollout.progress
            drawn.diagnostics = rollout.diagnostics
            yield drawn
