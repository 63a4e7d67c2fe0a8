"""Lanes: the environments that one agent steps together. Needs no torch."""

from __future__ import annotations

from typing import Any, Protocol, SupportsFloat, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama.config.sections import Environment
from genkidama.learning.environments import make_environment, make_vectorized

__all__ = ["Lanes", "Step", "make_lanes"]

Array = npt.NDArray[Any]

#: One step of every lane: the observations to go on from, the rewards, which lanes terminated,
#: which were truncated, and the last observation of each episode that ended. Where an episode
#: ended, the observation to go on from is the first of the next one. A vectorized form gives arrays
#: where the others give lists.
Step: TypeAlias = tuple[
    list[Array] | Array,
    list[SupportsFloat] | Array,
    list[bool] | Array,
    list[bool] | Array,
    dict[int, Array],
]


class Lanes(Protocol):
    """Environments, numbered from 0. Each begins anew in the very step that ends its episode."""

    #: How many there are.
    count: int
    #: The spaces of a single lane.
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def reset(self, seed: int) -> list[Array] | Array:
        """The first observations. Each lane has a seed of its own, which follows from this one."""
        ...

    def step(self, actions: list[Any]) -> Step:
        """Takes one action in each lane.

        What it returns is good until the next step, which may overwrite all of it.
        """
        ...

    def close(self) -> None:
        """Gives back what the environments hold."""
        ...


def make_lanes(settings: Environment, count: int) -> Lanes:
    """`count` environments, in a vectorized form if they are EnvPool's or it is asked for.

    Raises:
        ConfigurationError: as `make_environment`.
    """
    if settings.vectorized or settings.envpool is not None:
        return _Vectorized(make_vectorized(settings, count), count)
    return _InTurn([make_environment(settings) for _ in range(count)])


def _first_seed(seed: int, count: int) -> int:
    """The first of `count` consecutive seeds below 2³¹, far from those of neighbouring `seed`s."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0]) % (2**31 - count)


class _InTurn:
    """Single environments, stepped one after the other."""

    def __init__(self, environments: list[gymnasium.Env[Any, Any]]) -> None:
        self.count = count = len(environments)
        self.observation_space, self.action_space = (
            environments[0].observation_space,
            environments[0].action_space,
        )
        self._environments = environments
        self._steps = [(lane, environment.step) for lane, environment in enumerate(environments)]
        # Filled anew in each step: new lists would cost a fast environment several per cent.
        self._result: Step = (
            [np.empty(0)] * count,
            [0.0] * count,
            [False] * count,
            [False] * count,
            {},
        )

    def reset(self, seed: int) -> list[Array]:
        first = _first_seed(seed, self.count)
        return [
            environment.reset(seed=first + lane)[0]
            for lane, environment in enumerate(self._environments)
        ]

    def step(self, actions: list[Any]) -> Step:
        result = observations, rewards, terminations, truncations, finals = self._result
        finals.clear()
        for lane, step in self._steps:
            observation, reward, terminated, truncated, _ = step(actions[lane])
            rewards[lane] = reward
            terminations[lane] = terminated
            truncations[lane] = truncated
            if terminated or truncated:
                finals[lane] = np.array(observation)  # the next one may overwrite it
                observation, _ = self._environments[lane].reset()
            observations[lane] = observation
        return result

    def close(self) -> None:
        for environment in self._environments:
            environment.close()


class _Vectorized:
    """Environments in their own vectorized form, which steps them in one call."""

    def __init__(self, environments: gymnasium.vector.VectorEnv[Any, Any, Any], count: int) -> None:
        self.count = count
        self.observation_space, self.action_space = (
            environments.single_observation_space,
            environments.single_action_space,
        )
        self._environments = environments
        self._dtype = environments.action_space.dtype

    def reset(self, seed: int) -> Array:
        observations: Array = self._environments.reset(seed=_first_seed(seed, self.count))[0]
        return observations

    def step(self, actions: list[Any]) -> Step:
        observations, rewards, terminated, truncated, infos = self._environments.step(
            np.asarray(actions, self._dtype)
        )
        ended = np.flatnonzero(terminated | truncated).tolist()
        finals = {lane: infos["final_obs"][lane] for lane in ended}
        return observations, rewards, terminated, truncated, finals

    def close(self) -> None:
        self._environments.close()
