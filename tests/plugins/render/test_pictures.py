"""Policies that are looked at play as in an evaluation, and every kind of environment draws."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.environments import make_environment
from genkidama.plugins.render.pictures import action_names, make_pictured, moments, pace
from genkidama.runs.evaluation_worker import play
from genkidama.runs.policy import Policy
from tests.helpers import ROOT, small, untrained


class Blind(gymnasium.Env[Any, Any]):
    """It takes no render_mode."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)


class Wrong(Blind):
    """It draws numbers that are no picture."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, **_: Any) -> Any:
        return np.zeros(2, np.float32), {}

    def render(self) -> Any:
        return np.zeros((4, 4))


class Failing(Wrong):
    """It draws, and then its step fails."""

    def render(self) -> Any:
        return np.zeros((4, 4, 3), np.uint8)

    def step(self, action: Any) -> Any:
        raise KeyError("my bug")


@pytest.mark.parametrize("deterministic", [False, True])
def test_its_episodes_are_those_of_an_evaluation(tmp_path: Path, deterministic: bool) -> None:
    policy = Policy(untrained(tmp_path, small()).load())
    environment = make_pictured(policy.experiment.environment)
    seen = list(moments(policy, environment, 2, 7, deterministic))
    expected = play(policy.model, policy.make_environment(), range(2), 7, deterministic)
    ends = [moment for moment in seen if moment.action is None]
    assert [moment.total for moment in ends] == expected
    assert [moment.step for moment in ends] == expected  # CartPole pays 1 a step
    assert len(seen) == sum(expected) + 2
    assert seen[0].picture.shape == (400, 600, 3)
    assert (seen[0].picture != seen[3].picture).any()
    assert seen[-1].explanation is seen[-2].explanation
    environment.close()


def test_some_steps_alone_are_looked_at_and_all_are_made(tmp_path: Path) -> None:
    policy = Policy(untrained(tmp_path, small()).load())
    environment = make_pictured(policy.experiment.environment)
    every = list(moments(policy, environment, 1, 0))
    fourth = list(moments(policy, environment, 1, 0, every=4))
    assert [moment.step for moment in fourth] == [*range(0, len(every) - 1, 4), len(every) - 1]
    assert fourth[-1].total == every[-1].total
    environment.close()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"id": f"{__name__}:Blind"}, "it does not take render_mode='rgb_array'"),
        ({"id": "envpool:Unheard-v1"}, "Gymnasium does not know it"),
    ],
)
def test_what_draws_nothing_is_an_error_of_one_line(settings: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"draws no pictures: {re.escape(why)}; `genki"):
        make_pictured(Environment(**settings))


def test_what_draws_no_picture_is_an_error_of_one_line(tmp_path: Path) -> None:
    name = f"{__name__}:Wrong"
    run = untrained(tmp_path, small(environment={"id": name}))
    policy = Policy(run.load(), allow=run.allow)
    with pytest.raises(ConfigurationError, match=r"render\(\) gives float64 of shape \(4, 4\)"):
        next(moments(policy, make_pictured(policy.experiment.environment), 1, 0))


def test_an_environment_that_fails_is_told_in_one_line(tmp_path: Path) -> None:
    name = f"{__name__}:Failing"
    run = untrained(tmp_path, small(environment={"id": name}))
    policy = Policy(run.load(), allow=run.allow)
    with pytest.raises(EnvironmentFailure, match=r"Failing fails while it plays: KeyError: 'my b"):
        list(moments(policy, make_pictured(policy.experiment.environment), 1, 0))


def test_an_environment_that_is_not_there_says_just_that() -> None:
    with pytest.raises(ConfigurationError, match="Gymnasium does not know it"):
        make_pictured(Environment(id="Moon-v9"))


def test_a_vectorized_form_is_looked_at_in_the_plain_one() -> None:
    environment = make_pictured(Environment(id="CartPole-v1", vectorized=True))
    assert environment.spec is not None and environment.spec.id == "CartPole-v1"
    assert environment.render_mode == "rgb_array"
    assert (action_names(environment), pace(environment)) == (["left", "right"], 50.0)


@pytest.mark.parametrize("kind", ["wrappers", "vectorized", "envpool"])
def test_an_atari_game_shows_its_own_colours(kind: str) -> None:
    pytest.importorskip("ale_py", reason="pip install 'genkidama[atari]'")
    if kind == "wrappers":
        settings = Experiment.load(ROOT / "examples/atari/breakout.toml").environment
    else:
        name = "envpool:Breakout-v5" if kind == "envpool" else "ALE/Breakout-v5"
        settings = Environment(id=name, vectorized=kind == "vectorized")
    environment = make_pictured(settings)
    if kind == "vectorized":  # what the policy knows
        trained = make_environment(settings)
        assert trained.observation_space.shape == environment.observation_space.shape
        assert trained.action_space == environment.action_space
        inside: Any = environment.unwrapped
        assert inside.ale.getFloat("repeat_action_probability") == pytest.approx(0.25)
    observation, _ = environment.reset(seed=0)
    assert observation.shape == (4, 84, 84)
    picture: Any = environment.render()
    assert picture.shape == (210, 160, 3)
    assert (picture.max(2) > picture.min(2)).any()  # neither black nor white nor grey
    assert action_names(environment) == ["NOOP", "FIRE", "RIGHT", "LEFT"]
    assert pace(environment) == 15.0
