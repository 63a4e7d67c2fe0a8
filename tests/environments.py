"""Small environments whose best policies and values are known exactly."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Observation = npt.NDArray[Any]

#: The action that pays, for each context of the bandit.
BANDIT_BEST = (2, 0, 1)

#: Cells of the corridor that an agent can stand in; one step right of the last lies the goal.
CORRIDOR_LENGTH = 5


class Bandit(gymnasium.Env[Observation, Any]):
    """Episodes of one step: one of three contexts is shown, and one of three actions pays 1 there.

    The best policy has the value 1 in every context; a uniform one has 1/3.

    Args:
        start: number of the first action, as `Discrete` allows it.
        dtype: of the observations.
    """

    def __init__(self, start: int = 0, dtype: str = "float32") -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.dtype(dtype).type)
        self.action_space = gymnasium.spaces.Discrete(3, start=start)
        self._start = start
        self._contexts = np.eye(3, dtype=dtype)
        self._context = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._context = int(self.np_random.integers(3))
        return self._contexts[self._context].copy(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        reward = float(action - self._start == BANDIT_BEST[self._context])
        return self._contexts[self._context].copy(), reward, True, False, {}


class Doors(gymnasium.Env[Any, Any]):
    """Episodes of five steps: in each some doors are open, and the last open one pays 1.

    The first door of each column is always open, and the very last one never. A closed one fails.

    Args:
        columns: of an action; with several it is a MultiDiscrete.
        binary: whether it is a MultiBinary of three bits instead.
        place: where the mask is: `"key"`, `"info"`, or `"none"`.
    """

    def __init__(self, columns: int = 1, binary: bool = False, place: str = "key") -> None:
        spaces = gymnasium.spaces
        self.sizes = [2, 2, 2] if binary else [4, 3, 2][:columns]
        self.action_space = (
            spaces.MultiBinary(3)
            if binary
            else spaces.MultiDiscrete(self.sizes)
            if columns > 1
            else spaces.Discrete(4)
        )
        self._place = place
        seen = spaces.Box(0.0, 1.0, (3,), np.float32)
        mask = spaces.MultiBinary(sum(self.sizes))
        self.observation_space = (
            spaces.Dict({"action_mask": mask, "seen": seen}) if place == "key" else seen
        )

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        self.open = [self.np_random.random(size) < 0.6 for size in self.sizes]
        for doors in self.open:
            doors[0] = True
        self.open[-1][-1] = False
        seen = self.np_random.random(3, np.float32)
        if self._place == "key":
            return {"seen": seen, "action_mask": np.concatenate(self.open).astype(np.int8)}, {}
        return seen, {"action_mask": tuple(self.open)} if self._place == "info" else {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._steps += 1
        each = list(zip(self.open, np.ravel(action), strict=True))
        assert self._place == "none" or all(doors[chosen] for doors, chosen in each), each
        reward = float(np.mean([chosen == np.flatnonzero(doors)[-1] for doors, chosen in each]))
        observation, info = self._seen()
        return observation, reward, self._steps == 5, False, info


class Corridor(gymnasium.Env[Observation, int]):
    """A row of cells with a goal at its right end: action 1 goes right, 0 left; the goal pays 1.

    Episodes start in any cell and end at the goal or, cut by a time limit, after 20 steps. The best
    policy goes right everywhere; `corridor_values` are its values.
    """

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (CORRIDOR_LENGTH,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._cells = corridor_cells()
        self._cell, self._steps = 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._cell, self._steps = int(self.np_random.integers(CORRIDOR_LENGTH)), 0
        return self._cells[self._cell].copy(), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if action and self._cell == CORRIDOR_LENGTH - 1:
            return self._cells[self._cell].copy(), 1.0, True, False, {}
        self._cell = max(self._cell + (1 if action else -1), 0)
        return self._cells[self._cell].copy(), 0.0, False, self._steps >= 20, {}


class Endless(gymnasium.Env[Observation, Any]):
    """Pays 1 at every step and never terminates by itself; a time limit cuts it.

    It shows how many steps the episode has had. With a discount γ the value is 1/(1−γ), whatever
    the time limit is.

    Args:
        limit: steps after which the episode is truncated.
        terminates: whether it ends as a termination there instead.
        blind: whether it shows 0 always.
        seconds: how long a step takes.
    """

    observation_space = gymnasium.spaces.Box(0.0, 1000.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(
        self, limit: int = 4, terminates: bool = False, blind: bool = False, seconds: float = 0.0
    ) -> None:
        self._limit, self._terminates, self._blind, self._steps = limit, terminates, blind, 0
        self._seconds = seconds

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        if self._seconds:
            time.sleep(self._seconds)
        self._steps += 1
        over = self._steps == self._limit
        return self._observe(), 1.0, over and self._terminates, over and not self._terminates, {}

    def _observe(self) -> Observation:
        return np.array([0 if self._blind else self._steps], np.float32)


def bandit_contexts() -> Observation:
    """All observations of the bandit: shape (3, 3)."""
    return np.eye(3, dtype=np.float32)


def corridor_cells() -> Observation:
    """All observations of the corridor: shape (CORRIDOR_LENGTH, CORRIDOR_LENGTH)."""
    return np.eye(CORRIDOR_LENGTH, dtype=np.float32)


def corridor_values(gamma: float) -> Observation:
    """V* of every cell: γ to the power of the steps before the one that pays."""
    return np.array([gamma ** (CORRIDOR_LENGTH - 1 - cell) for cell in range(CORRIDOR_LENGTH)])
