"""Rollouts as a person would note them, from which slow and obvious oracles are computed."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from genkidama.learning.rollout import Rollout

GOES_ON, TERMINATED, TRUNCATED = range(3)


class Story:
    """Consecutive steps as a person would note them.

    Of each: reward, V(s_t), how the step ended, V of what would have followed.
    """

    def __init__(self, steps: list[tuple[float, float, int, float]]) -> None:
        self.rewards = [step[0] for step in steps]
        self.values = [step[1] for step in steps]
        self.kinds = [step[2] for step in steps]
        self.follows = [step[3] for step in steps]
        # The batch ends somewhere; if the episode does not, that is a cut.
        self.cuts = [
            t
            for t, kind in enumerate(self.kinds)
            if kind == TRUNCATED or (kind == GOES_ON and t == len(steps) - 1)
        ]

    def rollout(self) -> Rollout:
        n = len(self.rewards)
        ends = np.array([kind != GOES_ON for kind in self.kinds])
        ends[-1] = True
        return Rollout(
            np.zeros((n, 1), np.float32),
            np.zeros((n, 1), np.float32),
            np.array(self.rewards, np.float32),
            ends,
            np.array(self.cuts, np.intp),
            np.zeros((len(self.cuts), 1), np.float32),
        )

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        """V(s_t) and V of what would have followed the cuts, as arrays."""
        return np.array(self.values, np.float32), np.array(
            [self.follows[t] for t in self.cuts], np.float32
        )

    def last(self, t: int) -> int:
        """The last step of the trajectory that step t belongs to."""
        while self.kinds[t] == GOES_ON and t < len(self.kinds) - 1:
            t += 1
        return t

    def delta(self, t: int, gamma: float) -> float:
        """δ_t = r_t + γV(s_{t+1}) − V(s_t) (Schulman et al. 2016, eq. 10).

        V is 0 after a termination.
        """
        if self.kinds[t] == TERMINATED:
            following = 0.0
        elif t in self.cuts:
            following = self.follows[t]
        else:
            following = self.values[t + 1]
        return self.rewards[t] + gamma * following - self.values[t]

    def gae(self, t: int, gamma: float, gae_lambda: float) -> float:
        """A_t = Σ_k (γλ)^k δ_{t+k} (eq. 16), up to the trajectory's end."""
        return sum(
            (gamma * gae_lambda) ** k * self.delta(t + k, gamma)
            for k in range(self.last(t) - t + 1)
        )

    def n_step(self, t: int, gamma: float) -> float:
        """Σ_k γ^k r_{t+k} + γ^n V(what follows) − V(s_t) (Mnih et al. 2016, algorithm S3).

        There is no δ in it and no recurrence.
        """
        end = self.last(t)
        rewards = sum(gamma**k * self.rewards[t + k] for k in range(end - t + 1))
        rest = self.follows[end] if end in self.cuts else 0.0
        return rewards + gamma ** (end - t + 1) * rest - self.values[t]


numbers = st.floats(-10, 10, width=32)
stories = st.lists(
    st.tuples(
        numbers,
        numbers,
        st.sampled_from([GOES_ON, GOES_ON, GOES_ON, TERMINATED, TRUNCATED]),
        numbers,
    ),
    min_size=1,
    max_size=30,
).map(Story)
