"""Mistakes in a user's environment: each is a sentence, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from genkidama.cli.cluster import train
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError
from genkidama.learning.environment_checks import try_environment
from tests.helpers import small

GOOD: dict[str, Any] = {
    "space": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "actions": spaces.Discrete(2),
    "first": (np.zeros(3, np.float32), {}),
    "given": (np.zeros(3, np.float32), 1.0, False, False, {}),
}


class Told(gymnasium.Env[Any, Any]):
    """Gives what the test has put into `parts`."""

    parts: dict[str, Any] = GOOD

    def __init__(self) -> None:
        self.observation_space = self.parts["space"]
        self.action_space = self.parts["actions"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.parts["first"]

    def step(self, action: Any) -> Any:
        return self.parts["given"]


def step(**changes: Any) -> tuple[Any, ...]:
    names = ("observation", "reward", "terminated", "truncated", "info")
    return tuple(changes.get(name, value) for name, value in zip(names, GOOD["given"], strict=True))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"space": None}, "observation_space is None, expected a space"),
        ({"first": np.zeros(3)}, "reset() gives a ndarray, expected the tuple (observation, info)"),
        ({"first": (np.zeros(2), {})}, "reset() gives an observation of shape (2,), its"),
        ({"first": (np.array([0, np.nan, 0]), {})}, "reset() gives nan at [1] of the observation"),
        ({"first": (np.array(["a"] * 3), {})}, "reset() gives an observation of <U1, expected num"),
        ({"given": GOOD["given"][1:]}, "step() gives a tuple of 4, expected the tuple (obs"),
        ({"given": step(reward=float("nan"))}, "step() gives the reward nan, expected a finite"),
        ({"given": step(reward=[1.0] * 2)}, "step() gives the reward [1.0, 1.0], expected a fin"),
        ({"given": step(terminated=None)}, "step() gives terminated = None, expected True or F"),
        (
            {"space": spaces.Box(0, 255, (3,), np.uint8)},
            "reset() gives an observation of float32, its observation_space says uint8",
        ),
        (
            {"space": spaces.Discrete(4), "first": (4, {})},
            "reset() gives the observation 4, which is not in Discrete(4)",
        ),
    ],
)
def test_a_mistake_is_a_sentence(
    changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Told, "parts", {**GOOD, **changes})
    name = f"{__name__}:Told"
    with pytest.raises(ConfigurationError) as caught:
        train(small(environment={"id": name}), out=tmp_path / "run")
    assert str(caught.value).startswith(f"environment.id = {name!r}: {said}")
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_a_good_one_and_those_of_others_pass() -> None:
    try_environment(Environment(id=f"{__name__}:Told"))
    try_environment(Environment(id="CartPole-v1"))
