"""Generalized state-dependent exploration, gSDE (Raffin, Kober & Stulp 2021, §3).

The noise of an action is a linear function of the policy's last hidden layer z(s), (features,):

    a = μ(s) + θᵀz(s), where θ (features, columns) is drawn from N(0, σ²), σ = exp(L)

and is kept for n steps, so that an action changes as smoothly as the state does: a motor is not
shaken. Given the state, column j of an action is Gaussian with the variance

    σ_j(s)² = Σ_i z_i(s)²·σ_ij² + 10⁻⁶,

and a network gives log σ_j(s) behind the means, as the head `Gaussian` takes them: log π, entropy
and their slopes are those of that head. From there ∂log σ_j(s)/∂L_ij = z_i²·σ_ij²/σ_j(s)². As in
the paper's A2C and PPO, no gradient goes from σ(s) into z: the features serve the mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Added to the variance, so that its logarithm exists.
LEAST_VARIANCE = 1e-6


class Exploration:
    """The noise of some lanes, each with a matrix θ of its own.

    Args:
        rng: draws the matrices.
        shape: of L: (features, columns).
        lanes: environments that act together, at most.
        steps: n, after which all matrices are drawn anew.
    """

    def __init__(
        self, rng: np.random.Generator, shape: tuple[int, int], lanes: int, steps: int
    ) -> None:
        self._rng, self._steps = rng, steps
        #: θ/σ and θ, float32 (lanes, features, columns).
        self._drawn = np.zeros((lanes, *shape), np.float32)
        self._matrices = np.zeros_like(self._drawn)
        self._deviation = np.ones(shape, np.float32)
        self._left = 0
        #: The noise of the newest step, float32 (lanes, columns).
        self.noise = np.zeros((lanes, shape[1]), np.float32)

    def scale(self, log_deviation: Array) -> None:
        """Takes a newer L (features, columns); what has been drawn stays."""
        self._deviation = np.exp(log_deviation)
        np.multiply(self._drawn, self._deviation, out=self._matrices)

    def explore(self, features: Array) -> None:
        """Sets the noise of a step, whose z are (m, features), of the first m lanes."""
        if not self._left:
            self._left = self._steps
            self._drawn[:] = self._rng.standard_normal(self._drawn.shape, np.float32)
            np.multiply(self._drawn, self._deviation, out=self._matrices)
        self._left -= 1
        m = len(features)
        np.matmul(features[:, None], self._matrices[:m], out=self.noise[:m, None])
