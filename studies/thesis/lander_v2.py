"""LunarLander-v2, as far as it differs from v3.

Gymnasium's version history names three differences. v3 makes a new Box2D world for every episode,
where v2 cleared the old one: what the solver remembered of its contacts stayed. v3 draws the wind's
offset anew for every episode, where v2 let it run on; without wind, as in the thesis, nobody sees
it. And v3 states wider bounds of observations, which no learner of ours reads. Both dynamics are
restored here: gym 0.23.1 plays 300 of 300 episodes so, to the bit.

Older versions made particles behind the engines without a window, too. The lander does not feel
them, but they make its steps slow. `render_mode="rgb_array"` brings them back.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.box2d.lunar_lander import LunarLander
from gymnasium.wrappers import TimeLimit

_BOUND = np.array([1.5, 1.5, 5.0, 5.0, np.pi, 5.0, 1.0, 1.0], np.float32)
_LOW = np.array([*-_BOUND[:6], 0.0, 0.0], np.float32)


class _Index:
    """An offset of the wind: once drawn it only goes on, by one a step."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, instance: Any, owner: type) -> int:
        found: int = getattr(instance, self._name)
        return found

    def __set__(self, instance: Any, value: int) -> None:
        if getattr(instance, self._name, None) in (None, value - 1):
            setattr(instance, self._name, int(value))


class LunarLanderV2(LunarLander):
    """v3's code with v2's world and v2's wind."""

    wind_idx = _Index()
    torque_idx = _Index()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observation_space = gymnasium.spaces.Box(_LOW, _BOUND)

    @property
    def world(self) -> Any:
        return self._world

    @world.setter
    def world(self, world: Any) -> None:
        if not hasattr(self, "_world"):
            self._world = world  # the first is kept: `reset` may offer others


def make(**options: Any) -> gymnasium.Env[Any, Any]:
    """With v2's limit of 1,000 steps."""
    return TimeLimit(LunarLanderV2(**options), 1_000)
