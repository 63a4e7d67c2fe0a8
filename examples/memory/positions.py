"""CartPole without velocities: a policy has to remember how cart and pole have moved."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Positions(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows the cart's position and the pole's angle, and neither one's velocity."""

    def __init__(self, environment: gymnasium.Env[Any, Any]) -> None:
        super().__init__(environment)
        box = environment.observation_space
        assert isinstance(box, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(box.low[::2], box.high[::2])

    def observation(self, observation: Any) -> Any:
        return np.asarray(observation)[::2]
