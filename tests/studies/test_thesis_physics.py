"""LunarLander here and with gym 0.23, which Gymnasium stands in for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from genkidama.errors import EnvironmentFailure
from studies.thesis import lander_v2, physics
from tests.helpers import ROOT

#: gym's calls in Gymnasium's words, with the old world.
GYM = """
from gymnasium.envs.box2d.lunar_lander import heuristic
from studies.thesis.lander_v2 import make as make_v2

class Old:
    def __init__(self):
        self._new = make_v2()
        self.unwrapped = self._new.unwrapped
    def reset(self, seed):
        return self._new.reset(seed=seed)[0]
    def step(self, action):
        observation, reward, terminated, truncated, details = self._new.step(action)
        return observation, reward * {scale}, terminated or truncated, details

def make(name):
    assert name == "LunarLander-v2"
    return Old()
"""


def old(folder: Path, monkeypatch: pytest.MonkeyPatch, scale: float = 1.0) -> None:
    package = folder / "gym"
    (package / "envs/box2d").mkdir(parents=True)
    for name in ("", "envs", "envs/box2d"):
        (package / name / "__init__.py").touch()
    (package / "__init__.py").write_text(GYM.replace("{scale}", str(scale)))
    (package / "envs/box2d/lunar_lander.py").write_text("from gym import heuristic\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))


def test_episodes_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old(tmp_path, monkeypatch)
    assert physics.main([sys.executable, "--episodes", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("6 episodes with a mean return of ")
    assert "lander_v2: 6 of 6 are equal" in said


def test_another_reward_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old(tmp_path, monkeypatch, scale=1.001)
    _, v3, v2, *_ = physics.report(physics.episodes(sys.executable, 1))
    assert v3 == "LunarLander-v3: 0 of 3 are equal"
    assert v2 == "lander_v2: 0 of 3 are equal"


def test_an_episode_that_ends_sooner_there_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old(tmp_path, monkeypatch)
    whole = physics.episodes(sys.executable, 1)["0/0"]
    assert physics.equal(lander_v2.make(), 0, whole)
    assert not physics.equal(lander_v2.make(), 0, {what: one[:-1] for what, one in whole.items()})


def test_a_particle_costs_what_the_steps_with_more_of_them_take() -> None:
    rng = np.random.default_rng(0)
    particles = rng.integers(0, 400, 5_000)
    seconds = 1e-6 * (100.0 + 2.0 * particles) * rng.uniform(0.9, 1.1, 5_000)
    seconds[::50] = 1.0  # something else had the CPU
    found = physics.cost([{"particles": particles, "seconds": seconds}])
    assert found == pytest.approx((100.0, 2.0), rel=0.1)
    assert physics.cost([{"particles": 0 * particles, "seconds": seconds}]) is None


def test_the_lander_does_not_feel_its_particles() -> None:
    """They cost time alone, so what learns without them learns the same."""
    actions = np.random.default_rng(0).integers(0, 4, 1_000).tolist()
    with_them, without = (lander_v2.make(render_mode=mode) for mode in ("rgb_array", None))
    seen = []
    for environment in (with_them, without):
        observation, _ = environment.reset(seed=3)
        path = [(*observation.tolist(), 0.0)]
        for action in actions:
            observation, reward, terminated, truncated, _ = environment.step(action)
            path.append((*observation.tolist(), float(reward)))
            if terminated or truncated:
                break
        seen.append(path)
    assert seen[0] == seen[1]
    assert len(with_them.unwrapped.particles) > 30 > len(without.unwrapped.particles) == 0


def test_without_gym_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EnvironmentFailure, match="gym could not play: ModuleNotFoundError"):
        physics.episodes(sys.executable, 1)
    with pytest.raises(EnvironmentFailure, match="nowhere: cannot be run"):
        physics.episodes(str(tmp_path / "nowhere"), 1)
    with pytest.raises(SystemExit):
        physics.main([sys.executable, "--episodes", "0"])
    assert "--episodes: 0: a whole number of at least 1 is needed" in capsys.readouterr().err
