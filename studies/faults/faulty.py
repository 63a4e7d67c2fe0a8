"""An environment of a user's that goes wrong."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Observation = npt.NDArray[Any]


class Faulty(gymnasium.Env[Observation, int]):
    """Episodes of `length` steps that pay 1 each, until something goes wrong.

    Args:
        length: steps of an episode; 0 lets it go on for ever.
        fault: `"raise"` an exception of two lines, `"kill"` the process, `"sleep"` for a minute,
            `"slow"` down to ten steps a second, `"eat"` memory, `"leak"`
            8 MB a step, `"segfault"`, `"print"` a line to standard
            output, `"nan"` as a reward.
        where: `"construct"`, `"reset"` or `"step"`.
        after: how many episodes go well before.
    """

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self, length: int = 10, fault: str = "", where: str = "step", after: int = 0
    ) -> None:
        self._length, self._fault, self._where, self._after = length, fault, where, after
        self._episodes = self._steps = 0
        self._leaked: list[Observation] = []
        self._meet("construct")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._episodes += 1
        self._meet("reset")
        return np.ones(2, np.float32), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        reward = self._meet("step")
        return np.ones(2, np.float32), reward, self._steps == self._length, False, {}

    def _meet(self, where: str) -> float:
        if where != self._where or (self._episodes <= self._after and where != "construct"):
            return 1.0
        match self._fault:
            case "raise":
                raise ValueError("the cable\nis loose")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "sleep":
                time.sleep(60.0)
            case "slow":
                time.sleep(0.1)
            case "eat":
                self._eaten = [np.empty(1 << 23) for _ in range(1 << 10)]  # 64 GB
            case "leak":
                self._leaked.append(np.ones(1 << 20))
            case "segfault":
                ctypes.string_at(0)
            case "print":
                print("hello from the environment")
            case "nan":
                return float("nan")
        return 1.0
