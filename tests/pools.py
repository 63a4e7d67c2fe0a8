"""What of EnvPool's module Genkidama uses, in Python, over the tests' corridors.

It begins anew in the step after an episode's end, as EnvPool does, and refuses what EnvPool cannot
take. Under the name `envpool` in `sys.modules` it stands for EnvPool where that is not installed.
"""

from __future__ import annotations

import weakref
from collections import namedtuple
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from tests.environments import CORRIDOR_LENGTH, Corridor

Array = npt.NDArray[Any]

__version__ = "0.0"

#: The pools that there are.
ALIVE: weakref.WeakSet[_Pool] = weakref.WeakSet()

_DEFAULTS = {
    "num_envs": 1,
    "batch_size": 0,
    "num_threads": 0,
    "max_num_players": 1,
    "seed": 42,
    "max_episode_steps": 20,
}
_Config = namedtuple("_Config", list(_DEFAULTS), defaults=list(_DEFAULTS.values()))


class _Spec:
    _state_keys = ["info:env_id", "done", "reward", "trunc", "obs"]
    _action_keys = ["env_id", "players.env_id", "action"]
    _action_spec = (np.dtype(np.int32), [], ()), (np.dtype(np.int32), [], ()), ("<i4", [-1], ())
    action_space = Corridor.action_space

    def __init__(self, name: str, config: _Config) -> None:
        tiny = np.finfo(np.float32).tiny
        self.config = config
        self.observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(
            tiny, np.array([1.0] + [np.finfo(np.float32).max] * (CORRIDOR_LENGTH - 1), np.float32)
        )
        if name == "Maze-v0":
            self._state_keys = ["done", "reward", "trunc", "obs:x", "obs:y"]


class _Pool:
    def __init__(self, seeds: list[int]) -> None:
        self._corridors = [Corridor() for _ in seeds]
        for corridor, seed in zip(self._corridors, seeds, strict=True):
            assert 0 <= seed < 2**31
            corridor.np_random, _ = gymnasium.utils.seeding.np_random(seed)
        self._over = [True] * len(seeds)
        self._answer: list[Array] | None = None
        ALIVE.add(self)

    def _reset(self, lanes: Array) -> None:
        assert lanes.dtype == np.int32
        self._answer_with(lanes, [self._begun(lane) for lane in lanes])

    def _begun(self, lane: int) -> tuple[Array, float, bool, bool]:
        self._over[lane] = False
        return self._corridors[lane].reset()[0], 0.0, False, False

    def _send(self, sent: list[Array]) -> None:
        lanes, players, actions = sent
        assert lanes.dtype == players.dtype == actions.dtype == np.int32
        assert (lanes == players).all() and lanes.shape == actions.shape
        steps = []
        for lane, action in zip(lanes, actions, strict=True):
            if self._over[lane]:
                steps.append(self._begun(lane))
                continue
            observation, reward, terminated, truncated, _ = self._corridors[lane].step(action)
            self._over[lane] = terminated or truncated
            steps.append((observation, reward, self._over[lane], truncated))
        self._answer_with(lanes, steps)

    def _answer_with(self, lanes: Array, steps: list[tuple[Array, float, bool, bool]]) -> None:
        assert self._answer is None, "what came of the last call was not received"
        observations, rewards, over, truncated = zip(*steps, strict=True)
        self._answer = [
            lanes,
            np.array(over),
            np.array(rewards, np.float32),
            np.array(truncated),
            np.array(observations),
        ]

    def _recv(self) -> list[Array]:
        answer, self._answer = self._answer, None
        assert answer is not None
        return answer


def list_all_envs() -> list[str]:
    return ["Corridor-v0", "Maze-v0"]


def make_spec(name: str, **options: Any) -> _Spec:
    assert name in list_all_envs()
    unknown = next((key for key in options if key not in _DEFAULTS), None)
    if unknown is not None:
        raise TypeError(f"Config.__new__() got an unexpected keyword argument {unknown!r}")
    if not isinstance(options.get("num_threads", 0), int):
        raise TypeError(
            "__init__(): incompatible constructor arguments. These are:\n 1. so\n 2. so"
        )
    return _Spec(name, _Config(**options))


def make_gymnasium(name: str, seed: list[int], **options: Any) -> _Pool:
    config = make_spec(name, **options).config
    assert (config.num_envs, config.num_threads) == (len(seed), 1)
    return _Pool(seed)
