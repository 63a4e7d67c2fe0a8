"""Two machines serve three queues: two choices in each step, some of which are invalid."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

#: Jobs that come in a step, and the cost of one that waits for a step, by queue.
ARRIVALS = np.array([0.5, 0.5, 0.5])
COSTS = np.array([1.0, 2.0, 4.0])

#: The longest queue, and the probability that a machine breaks down or is repaired.
LONGEST = 9
BREAKS = np.array([0.05, 0.3])


class Dispatch(gymnasium.Env[dict[str, Any], Any]):
    """In each step both machines stay idle (0) or take a job of a queue (1, 2, 3)."""

    action_space = spaces.MultiDiscrete([4, 4])
    observation_space = spaces.Dict(
        {
            "observation": spaces.Box(0.0, 1.0, (5,), np.float32),
            "action_mask": spaces.MultiBinary(8),  # four choices of each machine
        }
    )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.queues = np.zeros(3, np.int64)
        self.broken = np.zeros(2, np.bool_)
        self.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        for machine, choice in enumerate(action):
            if choice and self.broken[machine]:
                raise ValueError(f"machine {machine} is broken, but got a job")
            if choice and self.queues[choice - 1]:  # both may have wanted the last job
                self.queues[choice - 1] -= 1
        self.queues += self.np_random.random(3) < ARRIVALS
        self.queues = np.minimum(self.queues, LONGEST)
        self.broken ^= self.np_random.random(2) < BREAKS[self.broken.astype(int)]
        self.steps += 1
        return self.seen(), -float(COSTS @ self.queues) / 10.0, False, self.steps == 100, {}

    def seen(self) -> dict[str, Any]:
        mask = np.ones((2, 4), np.int8)
        mask[:, 1:] = (self.queues > 0) & ~self.broken[:, None]
        seen = np.concatenate((self.queues / LONGEST, self.broken))
        return {"observation": seen.astype(np.float32), "action_mask": mask.ravel()}
