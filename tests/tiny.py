"""Tiny environments: one that goes wrong, and one with an angle to turn to."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from studies.faults.faulty import Faulty as Faulty

Observation = npt.NDArray[Any]


class Turning(gymnasium.Env[Observation, Observation]):
    """A number x in [−1, 1] is shown; an action a in [−2, 2] pays 1 − (a/2 − x)². A time limit cuts
    each episode after ten steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Observation) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        reward = 1.0 - (float(action[0]) / 2.0 - self._x) ** 2
        return self._seen(), reward, False, self._steps == 10, {}

    def _seen(self) -> Observation:
        self._x = float(self.np_random.uniform(-1.0, 1.0))
        return np.array([self._x, 1.0], np.float32)
