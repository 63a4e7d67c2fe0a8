"""An actor-critic that learns from what the cores remember, corrected by V-trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genkidama.learning.a3c import A3C
from genkidama.learning.rollout import Rollout, vtrace

__all__ = ["VTrace"]

Array = npt.NDArray[Any]


class VTrace(A3C):
    """The learner `algorithm.name = "vtrace"`: A3C's loss, off its policy.

    One update is made from the newest batch, and `batch_updates` from trajectories of at most
    `n_steps` steps that any core has played, `minibatch_size` steps together if none ends earlier.
    The replay tensor has log μ of every step, so V-trace (Espeholt et al. 2018) can tell what each
    is worth for the present policy.
    """

    reads_replay = True
    reads_log_mu = True

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        for part in self._parts(rollout):
            yield from super().losses(part, rng)

    def gradients(self, rollout: Rollout, rng: torch.Generator) -> Iterator[None]:
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

    def _targets(
        self, rollout: Rollout, log_pi: Array, values: Array, cut_values: Array
    ) -> tuple[Array, Array]:
        assert rollout.log_mu is not None
        algorithm = self._algorithm
        targets, weights = vtrace(
            rollout,
            np.asarray(log_pi) - rollout.log_mu,
            values,
            cut_values,
            algorithm.gamma,
            algorithm.gae_lambda,
            algorithm.vtrace_rho,
            algorithm.vtrace_c,
        )
        return weights, targets
