"""Environments with a vectorized form; Gymnasium knows them once this module is imported."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.environments import Corridor

#: As `environment.id`: `tests.environments:Corridor`, and several of them stepped by Gymnasium.
CORRIDORS = "tests.vectorized:tests/Corridors-v0"

#: The same, but these begin anew in the step after the one that ends an episode.
LATE_CORRIDORS = "tests.vectorized:tests/LateCorridors-v0"


def corridors(
    num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([Corridor] * num_envs, autoreset_mode=autoreset_mode)


def late_corridors(num_envs: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    return corridors(num_envs)


class Renamed(SyncVectorEnv):
    """Corridors that begin anew at once and give the last observations as `key`, or not at all."""

    def __init__(self, num_envs: int = 3, key: str = "") -> None:
        super().__init__([Corridor] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        self._key = key

    def step(self, actions: Any) -> Any:
        *result, infos = super().step(actions)
        last = infos.pop("final_obs", None)
        return *result, infos | ({self._key: last} if self._key and last is not None else {})


gymnasium.register("tests/Corridors-v0", entry_point=Corridor, vector_entry_point=corridors)
gymnasium.register(
    "tests/LateCorridors-v0", entry_point=Corridor, vector_entry_point=late_corridors
)
