"""An environment that numbers what happens in it, and what an agent must see of it. No torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Numbered(gymnasium.Env[Array, Any]):
    """Shows its own number, the episode's and the step's.

    It pays (step + 1) + episode/4 − action/8. If actions are a Box, their sum counts as the action.

    Args:
        lengths: how long its episodes are, in turn; number n starts with the n-th of them.
        endings: how they end, in turn: "terminated", "truncated", "both".
        continuous: whether an action is two floats within ±1 and not a whole number from 2 to 6.
        dtype: of the observations.
        leak: how many bytes it keeps of every step.
    """

    #: How many were closed.
    closed = 0

    def __init__(
        self,
        lengths: Sequence[int] = (5,),
        endings: Sequence[str] = ("terminated",),
        continuous: bool = False,
        dtype: str = "float32",
        leak: int = 0,
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (3,), np.dtype(dtype).type)
        self.action_space: gymnasium.Space[Any] = (
            gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
            if continuous
            else gymnasium.spaces.Discrete(5, start=2)
        )
        self._lengths, self._endings, self._leak = lengths, endings, leak
        self._kept: list[Array] = []
        self._number, self._episode, self._step = 0, -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._number = seed % 100
        self._episode += 1
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        reward = self._step + 1 + self._episode / 4 - float(np.sum(action)) / 8
        self._step += 1
        if self._leak:
            self._kept.append(np.ones(self._leak, np.uint8))
        over = self._step == self._lengths[(self._number + self._episode) % len(self._lengths)]
        ending = self._endings[self._episode % len(self._endings)] if over else ""
        return (
            self._observe(),
            reward,
            ending in ("terminated", "both"),
            ending in ("truncated", "both"),
            {},
        )

    def close(self) -> None:
        Numbered.closed += 1

    def _observe(self) -> Array:
        return np.array((self._number, self._episode, self._step), self.observation_space.dtype)


class Cut(Numbered):
    """Loses its simulator."""

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        raise ConnectionResetError("simulator")


class TorchFree(Numbered):
    """Raises an error that says which modules of torch's its process has imported."""

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        raise RuntimeError(
            f"torch: {[name for name in sys.modules if name.partition('.')[0] == 'torch']}"
        )


def action(observation: Array, continuous: bool) -> list[float]:
    """What the tests' policy does, as it is stored.

    Counted from 0, or floats that may lie beyond the bounds.
    """
    number, episode, step = observation.tolist()
    first = number + 3 * episode + 7 * step
    return [first % 13 / 4 - 1.5, first % 7 / 4 - 0.75] if continuous else [first % 5]


def value(observation: Array) -> float:
    """What the tests' network says of an observation: another number for each."""
    number, episode, step = observation.tolist()
    return float(4096 * number + 64 * episode + step) + 0.5


@dataclass
class Step:
    """One step as a person would note it."""

    observation: list[float]
    action: list[float]
    value: float
    reward: float
    #: Of the episode so far, and undiscounted.
    discounted: float
    episode_return: float
    terminated: bool
    truncated: bool
    #: V of the observation after it, of the same episode.
    following: float

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated


def story(number: int, steps: int, gamma: float, options: dict[str, Any]) -> list[Step]:
    """So many steps with the tests' policy in the environment of this number: a plain loop."""
    environment = Numbered(**options)
    noted: list[Step] = []
    rewards: list[float] = []
    observation, _ = environment.reset(seed=number)
    while len(noted) < steps:
        stored = action(observation, options.get("continuous", False))
        taken = (
            np.clip(np.float32(stored), -1.0, 1.0)
            if options.get("continuous")
            else int(stored[0]) + 2
        )
        following, reward, terminated, truncated, _ = environment.step(taken)
        rewards.append(reward)
        discounted = sum(
            gamma ** (len(rewards) - 1 - k) * reward for k, reward in enumerate(rewards)
        )
        noted.append(
            Step(
                observation.tolist(),
                stored,
                value(observation),
                reward,
                discounted,
                sum(rewards),
                terminated,
                truncated,
                value(following),
            )
        )
        observation = following
        if noted[-1].over:
            rewards = []
            observation, _ = environment.reset()
    return noted
