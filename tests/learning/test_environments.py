from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest

from genkidama.errors import ConfigurationError
from genkidama.experiment import Environment, Experiment
from genkidama.learning.environments import default_threshold, make_environment
from genkidama.plugs import check_environment
from tests.environments import BANDIT_BEST, CORRIDOR_LENGTH, Bandit, Corridor, Endless, corridor_values


def not_an_environment() -> str:
    return "a moon"


class Refusing(gymnasium.Env[Any, Any]):
    def __init__(self) -> None:
        raise OSError("no display")


@pytest.mark.parametrize("name", ["LunarLander-v3", "CartPole-v1", "Pendulum-v1"])
def test_a_gymnasium_id_is_made_without_rendering_and_without_the_checker(name: str) -> None:
    environment = make_environment(Environment(id=name))
    try:
        assert environment.spec is not None and environment.spec.id == name
        assert environment.render_mode is None
        assert not isinstance(environment, gymnasium.wrappers.PassiveEnvChecker)
        inner: Any = environment
        while isinstance(inner, gymnasium.Wrapper):
            assert not isinstance(inner, gymnasium.wrappers.PassiveEnvChecker)
            inner = inner.env
        observation, _ = environment.reset(seed=0)
        assert environment.observation_space.contains(observation)
    finally:
        environment.close()


def test_options_reach_the_environment() -> None:
    environment = make_environment(Environment(id="LunarLander-v3", options={"continuous": True, "max_episode_steps": 7}))
    try:
        assert isinstance(environment.action_space, gymnasium.spaces.Box)
        environment.reset(seed=0)
        assert [environment.step(np.zeros(2, np.float32))[3] for _ in range(7)] == [False] * 6 + [True]
    finally:
        environment.close()


def test_an_environment_of_ones_own_is_named_by_an_import_string() -> None:
    bandit = make_environment(Environment(id="tests.environments:Bandit", options={"start": 3}))
    assert isinstance(bandit, Bandit)
    assert bandit.action_space == gymnasium.spaces.Discrete(3, start=3)


@pytest.mark.parametrize(
    ("settings", "beginning"),
    [
        (Environment(id="MoonLander-v3"), "cannot be built: NameNotFound: "),
        (Environment(id="LunarLander-v99"), "cannot be built: VersionNotFound: "),
        (Environment(id="CartPole-v1", options={"gravity": 1}), "cannot be built: TypeError: "),
        (Environment(id="LunarLander-v3", options={"gravity": 5.0}), "cannot be built: "),
        (Environment(id="tests.environments:Bandit", options={"arms": 9}), "cannot be built: TypeError: "),
        (Environment(id="tests.environments:Casino"), "module 'tests.environments' has no 'Casino'"),
        (Environment(id="tests.casino:Bandit"), "cannot import 'tests.casino': "),
        (Environment(id="tests.environments:BANDIT_BEST"), "cannot be built: TypeError: 'tuple' object is not callable"),
        (Environment(id=f"{__name__}:not_an_environment"), "gives a str, expected a gymnasium.Env"),
        (Environment(id=f"{__name__}:Refusing"), "cannot be built: OSError: no display"),
    ],
    ids=lambda argument: argument.id if isinstance(argument, Environment) else "",
)
def test_what_cannot_be_built_is_told_in_one_line(settings: Environment, beginning: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_environment(settings)
    assert str(caught.value).startswith(f"environment.id = {settings.id!r}: {beginning}")
    assert len(str(caught.value).splitlines()) == 1


def test_what_gymnasium_knows_passes_the_early_check_and_what_it_does_not_know_does_not() -> None:
    for name in ("LunarLander-v3", "tests.environments:Bandit"):
        check_environment(Experiment(environment=Environment(id=name)))
    for name in ("MoonLander-v3", "tests.environments:Casino"):
        with pytest.raises(ConfigurationError, match=f"^environment.id = '{name}': "):
            check_environment(Experiment(environment=Environment(id=name)))


def test_gymnasium_says_from_when_on_a_task_is_solved() -> None:
    assert default_threshold(Environment(id="LunarLander-v3")) == 200.0
    assert default_threshold(Environment(id="Pendulum-v1")) is None
    assert default_threshold(Environment(id="tests.environments:Bandit")) is None
    assert default_threshold(Environment(id="MoonLander-v3")) is None


# The tests' own environments, whose optima other tests rely on.


@pytest.mark.parametrize("environment", [Bandit(), Corridor(), Endless(), Bandit(start=2, dtype="float64")], ids=lambda e: type(e).__name__)
def test_the_tests_environments_keep_gymnasiums_rules(environment: gymnasium.Env[Any, Any]) -> None:
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of infinite bounds and of missing render modes
        check_env(environment, skip_render_check=True)


def test_the_bandit_pays_for_one_action_in_each_context() -> None:
    bandit, contexts = Bandit(), set()
    bandit.reset(seed=0)
    for _ in range(60):
        observation, _ = bandit.reset()
        for action in range(3):
            _, reward, terminated, truncated, _ = bandit.step(action)
            assert (reward, terminated, truncated) == (float(action == BANDIT_BEST[int(observation.argmax())]), True, False)
        contexts.add(int(observation.argmax()))
    assert contexts == {0, 1, 2}


def test_the_corridors_values_are_the_discounted_returns_of_going_right() -> None:
    corridor, seen = Corridor(), {}
    corridor.reset(seed=0)
    while len(seen) < CORRIDOR_LENGTH:
        observation, _ = corridor.reset()
        start, discounted, power, over = int(observation.argmax()), 0.0, 1.0, False
        while not over:
            _, reward, over, _, _ = corridor.step(1)
            discounted += power * reward
            power *= 0.9
        seen[start] = discounted
    assert [seen[cell] for cell in range(CORRIDOR_LENGTH)] == pytest.approx(corridor_values(0.9).tolist())
