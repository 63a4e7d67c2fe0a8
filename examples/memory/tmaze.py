"""A T-maze (Bakker 2002): a cue at the beginning says which way to turn at a corridor's end."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

#: Actions.
FORWARD, LEFT, RIGHT = range(3)


class TMaze(gymnasium.Env[Any, Any]):
    """A corridor of `steps` steps, and a turn. The right turn is worth 1 and the wrong one −1; to
    do anything else than that costs 0.1.

    It shows three numbers: the cue (−1 or 1 at the beginning, then 0), and whether this is the
    corridor or its end. Without a memory the turn is a guess, with a mean return of 0.
    """

    action_space = spaces.Discrete(3)
    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)

    def __init__(self, steps: int = 20) -> None:
        self.steps = steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = self.steps
        self.way = int(self.np_random.integers(LEFT, RIGHT + 1))
        return np.array([2 * self.way - 3, 1.0, 0.0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        turns = not self.left and action != FORWARD
        reward = (1.0 if action == self.way else -1.0) if turns else 0.0
        if not turns and (action != FORWARD or not self.left):
            reward = -0.1
        self.left -= self.left > 0
        seen = np.array([0.0, self.left > 0, self.left == 0], np.float32)
        return seen, reward, turns, False, {}
