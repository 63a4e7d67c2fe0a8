"""What the nursery of agents does before any agent is forked from it."""

from __future__ import annotations

from typing import Any

import gymnasium

from genkidama.plugins.ga3c.agent_forkserver import warm_up
from tests.helpers import small

DONE: list[str] = []


class Watched(gymnasium.Env[Any, Any]):
    """Notes what is done with it."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        DONE.append("reset")
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        DONE.append("step")
        return self.observation_space.sample(), 0.0, False, False, {}

    def close(self) -> None:
        DONE.append("close")


def test_the_environment_makes_one_step_and_is_closed() -> None:
    DONE.clear()
    warm_up(small(environment={"id": f"{__name__}:Watched"}))
    assert DONE == ["reset", "step", "close"]
