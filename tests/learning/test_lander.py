"""The lean lander, to the bit beside Gymnasium's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.box2d.lunar_lander import LunarLander, heuristic

from genkidama.child.collector import make_slots
from genkidama.config.sections import Environment
from genkidama.learning import lander
from genkidama.learning.environments import make_environment, make_lanes
from genkidama.learning.heads import head_for
from genkidama.learning.lander import LeanLander
from tests.helpers import small

LANDER = Environment(id="LunarLander-v3")
CONTINUOUS = Environment(id="LunarLander-v3", options={"continuous": True})


@pytest.fixture(scope="module", autouse=True)
def verdict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One of what is installed, and not of this user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        lander._agrees.cache_clear()
        yield
    lander._agrees.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache without verdicts, and a process that has not decided."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lander._agrees.cache_clear()
    yield tmp_path / "genkidama"
    lander._agrees.cache_clear()


def lean(**options: Any) -> gymnasium.Env[Any, Any]:
    return make_environment(Environment(id="LunarLander-v3", options=options), lean=True)


def at_random(environment: Any, observation: Any) -> Any:
    if environment.unwrapped.continuous:
        return environment.draws.normal(0.0, 1.0, 2).astype(np.float32)
    return environment.draws.integers(4)  # as a head gives it


def lands(environment: Any, observation: Any) -> Any:
    action = heuristic(environment.unwrapped, observation)
    return action if environment.unwrapped.continuous else int(action)


def hovers(environment: Any, observation: Any) -> int:
    """Lands on a pad that is half the view above the pad, until the time limit."""
    return int(heuristic(environment.unwrapped, observation - np.array([0, 0.5] + [0] * 6)))


def played(
    environment: Any, choose: Callable[[Any, Any], Any], episodes: int
) -> Iterator[tuple[bytes, float, bool, bool]]:
    """What the environment gives, from the same seed and by the same choices."""
    environment.draws = np.random.default_rng(1)
    environment.action_space.seed(1)
    for episode in range(episodes):
        observation, _ = environment.reset(seed=7 if episode == 0 else None)
        reward, terminated, truncated = 0.0, False, False
        while not (terminated or truncated):
            yield observation.tobytes(), float(reward), terminated, truncated
            step = environment.step(choose(environment, observation))
            observation, reward, terminated, truncated, _ = step
            assert observation.dtype == np.float32 and observation.shape == (8,)
        yield observation.tobytes(), float(reward), terminated, truncated


@pytest.mark.parametrize(
    ("choose", "episodes", "ends"),
    [(at_random, 24, (-100.0, True, False)), (lands, 8, (100.0, True, False)), (hovers, 2, None)],
)
def test_observations_rewards_and_ends_are_gymnasiums_to_the_bit(
    choose: Callable[[Any, Any], Any], episodes: int, ends: tuple[float, bool, bool] | None
) -> None:
    environment = lean()
    assert type(environment.unwrapped) is LeanLander
    ours = list(played(environment, choose, episodes))
    assert len(ours) > 2000
    assert ours == list(played(make_environment(LANDER), choose, episodes))
    last = [one[1:] for one in ours if one[2] or one[3]]
    assert ends in last if ends else any(truncated for _, _, truncated in last)


@pytest.mark.parametrize(
    "options",
    [
        {"enable_wind": True, "wind_power": 9.0},
        {"gravity": -4.0, "max_episode_steps": 50},
    ],
    ids=str,
)
def test_every_option_plays_as_gymnasiums(options: dict[str, Any]) -> None:
    settings = Environment(id="LunarLander-v3", options=options)
    ours, gymnasiums = lean(**options), make_environment(settings)
    assert list(played(ours, lands, 3)) == list(played(gymnasiums, lands, 3))


def test_one_that_is_shown_has_gymnasiums_smoke() -> None:
    """It is in the pictures alone, and lean steps make none."""
    settings = Environment(id="LunarLander-v3", options={"render_mode": "rgb_array"})
    found = []
    for environment in (lean(render_mode="rgb_array"), make_environment(settings)):
        environment.reset(seed=7)
        for _ in range(20):
            environment.step(2)
        puffs = [(*puff.position, puff.ttl) for puff in environment.unwrapped.particles]
        found.append(puffs)
    assert found[0] == found[1] and len(found[0]) > 5


@pytest.mark.parametrize(("choose", "episodes"), [(at_random, 16), (lands, 6)])
def test_continuous_engines_are_gymnasiums_to_the_bit(
    choose: Callable[[Any, Any], Any], episodes: int
) -> None:
    ours, gymnasiums = lean(continuous=True), make_environment(CONTINUOUS)
    assert type(ours.unwrapped) is LeanLander
    found = list(played(ours, choose, episodes))
    assert len(found) > 1000 and found == list(played(gymnasiums, choose, episodes))


@pytest.mark.parametrize(
    "action", [[0.7, -0.6], np.array([np.nan, np.nan]), np.array([1, -1]), np.array([9.0, -9.0])]
)
def test_any_two_numbers_are_an_action_as_gymnasium_takes_them(action: Any) -> None:
    ours, gymnasiums = lean(continuous=True), make_environment(CONTINUOUS)
    seen = []
    for environment in (ours, gymnasiums):
        environment.reset(seed=3)
        step = environment.unwrapped.step(action)
        seen.append((step[0].tobytes(), *map(float, step[1:4])))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("action", [4, -1, 0.5])
def test_an_action_that_is_none_is_refused_as_by_gymnasium(action: object) -> None:
    environment = lean()
    environment.reset(seed=0)
    with pytest.raises(AssertionError, match="invalid"):
        environment.step(action)


def test_training_is_lean_and_all_else_plays_gymnasiums_own() -> None:
    assert type(make_environment(LANDER).unwrapped) is LunarLander
    assert type(make_slots(small()).unwrapped) is not LeanLander  # another environment
    assert type(make_slots(small(environment={"id": "LunarLander-v3"})).unwrapped) is LeanLander
    lanes: Any = make_lanes(LANDER, 2)
    assert {type(one.unwrapped) for one in lanes.environments} == {LeanLander}


@pytest.mark.parametrize("settings", [LANDER, CONTINUOUS])
def test_what_a_head_gives_is_played_lean(
    settings: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = make_environment(settings, lean=True)
    head = head_for(environment.action_space)
    action = head.sampler(np.random.default_rng(0), 0.0)(np.zeros(head.outputs, np.float32))
    environment.reset(seed=0)
    monkeypatch.delattr(LunarLander, "step")
    environment.step(head.to_environment(action))


def test_another_lander_of_gymnasiums_is_used_as_it_is_and_that_is_said_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert type(lean().unwrapped) is LeanLander
    (good,) = cache.iterdir()
    step = LunarLander.step

    def heavier(self: Any, action: Any) -> Any:
        observation, reward, *rest = step(self, action)
        return observation, reward - 1e-9, *rest

    monkeypatch.setattr(LunarLander, "step", heavier)
    assert type(lean().unwrapped) is type(lean().unwrapped) is LunarLander
    error = capfd.readouterr().err
    assert error.count("\n") == error.count("Gymnasium") == 1 and "slower" in error
    (bad,) = set(cache.iterdir()) - {good}
    assert (good.read_text(), bad.read_text()) == ("yes\n", "no\n")


def test_a_verdict_is_remembered_and_no_cache_does_no_harm(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[bool] = []

    def decide() -> bool:
        decided.append(True)
        return True

    monkeypatch.setattr(lander, "_plays_the_same", decide)
    for _ in range(2):
        lean()
        lander._agrees.cache_clear()
    assert len(decided) == 1
    next(cache.iterdir()).write_text("perhaps")  # nothing that we wrote
    lean()
    assert len(decided) == 2
    lander._agrees.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert type(lean().unwrapped) is LeanLander and len(decided) == 3
