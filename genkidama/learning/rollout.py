"""What a core saw, and what it was worth: the data and the targets that every on-policy learner shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

__all__ = ["Rollout", "advantages"]

Array = npt.NDArray[Any]


@dataclass
class Rollout:
    """n consecutive steps of one core, of one or several episodes, acted with one set of weights.

    Where a trajectory is cut though the episode could go on (a time limit, or the end of the batch),
    the value of the state that would have followed stands in for the rest (Pardo et al. 2018).
    """

    #: (n, ...) float32, as the network takes them.
    observations: Tensor
    #: (n, columns), of the head's dtype.
    actions: Tensor
    #: (n,) float32, scaled.
    rewards: Array
    #: (n,) bool: the trajectory ends after this step, for whatever reason.
    ends: Array
    #: (k,) int: steps after which it is cut without having terminated.
    cuts: Array
    #: (k, ...) float32: the observations that followed these.
    cut_observations: Tensor


def advantages(rollout: Rollout, values: Array, cut_values: Array, gamma: float, gae_lambda: float) -> Array:
    """Generalized advantage estimates, shape (n,) float32 (Schulman et al. 2016, eq. 16).

    Args:
        rollout: n steps, k of them cut.
        values: V(s_t), shape (n,).
        cut_values: V of the observations after the cuts, shape (k,).
        gamma: discount of a step.
        gae_lambda: 1 gives n-step returns minus values: the advantage of A3C (Mnih et al. 2016, algorithm S3).
    """
    following = np.empty_like(values)
    following[:-1] = values[1:]
    following[rollout.ends] = 0.0
    following[rollout.cuts] = cut_values
    delta = (rollout.rewards + gamma * following - values).tolist()
    decay = np.where(rollout.ends, 0.0, gamma * gae_lambda).tolist()
    # A recurrence over floats of Python is faster here than over NumPy's scalars.
    result, advantage = [0.0] * len(delta), 0.0
    for t in range(len(delta) - 1, -1, -1):
        result[t] = advantage = delta[t] + decay[t] * advantage
    return np.array(result, np.float32)
