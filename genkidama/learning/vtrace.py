"""V-trace: what the steps of an older policy are worth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.learning.rollout import Rollout, temporal_differences

__all__ = ["vtrace"]

Array = npt.NDArray[Any]


def vtrace(
    rollout: Rollout,
    log_ratio: Array,
    values: Array,
    cut_values: Array,
    gamma: float,
    gae_lambda: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[Array, Array]:
    """The targets v_t of the values and the policy gradient's advantages, both (n,) float32.

    An advantage is ρ_t(r_t + γv_{t+1} − V(s_t)). With

        ρ_t = min(ρ̄, π(a_t|s_t)/μ(a_t|s_t)), c_t = λ·min(c̄, π(a_t|s_t)/μ(a_t|s_t))

    and δ_t = r_t + γV(s_{t+1}) − V(s_t), a target is

        v_t = V(s_t) + Σ_{k≥0} γ^k · c_t·…·c_{t+k−1} · ρ_{t+k}·δ_{t+k},

    summed to the trajectory's end (Espeholt et al. 2018, eq. 1, remark 2 and §4.2). Where π = μ and
    ρ̄ = c̄ = λ = 1 these are the n-step returns and what `advantages` makes of them.

    Args:
        rollout: n steps, k of them cut.
        log_ratio: log π(a_t|s_t) − log μ(a_t|s_t), shape (n,): π learns, μ has acted.
        values: V(s_t), shape (n,).
        cut_values: V of the observations after the cuts, shape (k,).
        gamma: discount of a step.
        gae_lambda: λ.
        rho_bar: ρ̄, above 0; it decides whose values are learned: the values of μ near 0, the values
            of π at infinity.
        c_bar: c̄, above 0; how far differences reach back.
    """
    # Cut before the exponential is taken, so that it cannot overflow.
    rho, c = (np.exp(np.minimum(log_ratio, math.log(limit))) for limit in (rho_bar, c_bar))
    delta = (rho * temporal_differences(rollout, values, cut_values, gamma)).tolist()
    going_on = np.where(rollout.ends, 0.0, gamma)
    decay, weight = (going_on * gae_lambda * c).tolist(), (going_on * rho).tolist()
    # d_t = v_t − V(s_t) = ρ_t·δ_t + γ·c_t·d_{t+1}: remark 1.
    # The advantage is ρ_t·δ_t + ρ_t·γ·d_{t+1}.
    differences = [0.0] * len(delta)
    advantage = [0.0] * len(delta)
    d = 0.0
    for t in range(len(delta) - 1, -1, -1):
        advantage[t] = delta[t] + weight[t] * d
        differences[t] = d = delta[t] + decay[t] * d
    return values + np.array(differences, np.float32), np.array(advantage, np.float32)
