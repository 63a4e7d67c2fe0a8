"""EnvPool's environments as lanes: its rules on a stand-in, and EnvPool where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import _first_seed, make_environment, make_lanes
from genkidama.runtime.import_strings import check_environment
from tests import pools
from tests.environments import Corridor
from tests.helpers import python
from tests.learning.test_environments import (
    Array,
    Expected,
    assert_both_ends,
    assert_lanes_show,
    assert_plays_as,
    by_hand,
)

CORRIDOR = Environment(id="envpool:Corridor-v0")
LANDER = Environment(id="envpool:LunarLander-v3", options={"max_episode_steps": 90})


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", pools)


@pytest.fixture
def envpool() -> Any:
    return pytest.importorskip("envpool", reason="pip install 'genkidama-rl[envpool]': 300 MB")


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("count", [1, 3])
def test_lanes_show_what_plain_environments_show(count: int) -> None:
    actions = np.random.default_rng(1).integers(2, size=(200, count))
    first = _first_seed(7, count)
    expected = [by_hand(Corridor(), first + lane, list(actions[:, lane])) for lane in range(count)]
    assert_both_ends(expected)
    assert_lanes_show(make_lanes(CORRIDOR, count), 7, actions, expected)


@pytest.mark.usefixtures("stand_in")
def test_one_lane_is_a_plain_environment() -> None:
    assert_plays_as(make_environment(CORRIDOR), Corridor())


@pytest.mark.usefixtures("stand_in")
def test_a_pool_lives_from_the_first_reset_to_close() -> None:
    before = len(pools.ALIVE)
    lanes = make_lanes(CORRIDOR, 2)
    assert len(pools.ALIVE) == before  # so a nursery that has asked for the spaces may fork
    lanes.reset(0)
    lanes.reset(1)
    assert len(pools.ALIVE) == before + 1
    lanes.close()
    assert len(pools.ALIVE) == before


@pytest.mark.usefixtures("stand_in")
def test_bounds_that_mean_none_are_none() -> None:
    space = make_environment(CORRIDOR).observation_space
    assert isinstance(space, gymnasium.spaces.Box) and space.dtype == np.float32
    assert (space.low == -np.inf).all()
    assert space.high[0] == 1.0 and (space.high[1:] == np.inf).all()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Corridor-v9", "did you mean 'envpool:Corridor-v0'?"),
        ("X", "its envpool.list_all_envs() names them"),
    ],
)
def test_what_envpool_does_not_know_is_told_in_one_line(name: str, hint: str) -> None:
    sentence = f"environment.id = 'envpool:{name}': EnvPool 0.0 does not know it; {hint}"
    check_told(Environment(id=f"envpool:{name}"), sentence)


def check_told(settings: Environment, sentence: str) -> None:
    for make in (make_environment, lambda settings: make_lanes(settings, 2)):
        with pytest.raises(ConfigurationError) as caught:
            make(settings)
        assert str(caught.value) == sentence


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"enable_wind": True}, "it got an unexpected keyword argument 'enable_wind'"),
        ({"seed": 3}, "'seed' is no option of an experiment"),
        ({"max_episode_steps": 0}, "max_episode_steps = 0 is no number of steps"),
        ({"num_threads": "two"}, "a value has the wrong type"),
    ],
    ids=str,
)
def test_an_option_that_envpool_does_not_take_is_told_in_one_line(
    options: dict[str, Any], problem: str
) -> None:
    check_told(
        Environment(id="envpool:Corridor-v0", options=options),
        f"environment.options = {options!r}: EnvPool's 'Corridor-v0' cannot take them: {problem}; "
        "its options: num_threads, max_episode_steps; "
        "Gymnasium's, without 'envpool:', may have others",
    )


@pytest.mark.usefixtures("stand_in")
def test_observations_in_several_arrays_are_refused() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"^environment.id = 'envpool:Maze-v0': its spaces are .* one array",
    ):
        make_environment(Environment(id="envpool:Maze-v0"))


def test_envpool_is_looked_for_early_and_imported_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lander = Environment(id="envpool:LunarLander-v3")
    monkeypatch.setitem(sys.modules, "envpool", None)
    for look in (
        lambda: check_environment(Experiment(environment=lander)),
        lambda: make_environment(lander),
    ):
        with pytest.raises(ConfigurationError) as caught:
            look()
        assert str(caught.value) == (
            "environment.id = 'envpool:LunarLander-v3': needs EnvPool, which is not installed: "
            "pip install 'genkidama-rl[envpool]'"
        )
    monkeypatch.delitem(sys.modules, "envpool")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envpool.py").write_text("raise FileNotFoundError('atari/roms')")
    check_environment(Experiment(environment=lander))  # importing EnvPool takes 110 MB
    with pytest.raises(ConfigurationError) as caught:
        make_environment(lander)
    assert str(caught.value) == (
        "environment.id = 'envpool:LunarLander-v3': importing EnvPool fails: FileNotFoundError: "
        "atari/roms (envpool.py:1); install all of it: pip install 'genkidama-rl[envpool]'"
    )


# EnvPool itself.


def test_real_lanes_show_what_envpool_shows_alone(envpool: Any) -> None:
    """By its public functions, one environment at a time, the step after an end taken by hand."""

    def alone(seed: int, actions: Array) -> tuple[Array, list[Expected]]:
        pool = envpool.make_gymnasium(
            "LunarLander-v3", num_envs=1, num_threads=1, seed=[seed], **LANDER.options
        )
        first = pool.reset()[0][0].copy()
        steps: list[Expected] = []
        for action in actions:
            observations, rewards, terminated, truncated, _ = pool.step(np.array([action]))
            ends = bool(terminated[0]), bool(truncated[0])
            final = None
            if any(ends):
                final = observations[0]
                observations = pool.step(np.array([0]))[0]
            steps.append((observations[0], float(rewards[0]), *ends, final))
        return first, steps

    actions = np.random.default_rng(1).integers(4, size=(300, 5))
    first = _first_seed(7, 5)
    expected = [alone(first + lane, actions[:, lane]) for lane in range(5)]
    assert_both_ends(expected)
    assert_lanes_show(make_lanes(LANDER, actions.shape[1]), 7, actions, expected)


def test_a_real_pools_arrays_are_its_users(envpool: Any) -> None:
    """What one step returned is not written over by the next."""
    lanes = make_lanes(LANDER, 4)
    rng = np.random.default_rng(0)
    shown = [np.array(lanes.reset(3))]
    kept: list[Any] = [shown[0]]
    for _ in range(100):
        observations = lanes.step(rng.integers(4, size=4).tolist())[0]
        kept.append(observations)
        shown.append(np.array(observations))
    lanes.close()
    np.testing.assert_array_equal(np.array(kept), np.array(shown))


@pytest.mark.parametrize("name", ["CartPole-v1", "LunarLanderContinuous-v3", "Pong-v5"])
def test_real_environments_of_several_kinds_are_stepped(envpool: Any, name: str) -> None:
    lanes = make_lanes(Environment(id=f"envpool:{name}"), 3)
    observations = lanes.reset(0)
    lanes.action_space.seed(0)
    for _ in range(30):
        assert all(lanes.observation_space.contains(one) for one in observations)
        observations = lanes.step([lanes.action_space.sample() for _ in range(3)])[0]
    lanes.close()


def test_a_real_pool_has_threads_only_while_it_lives(envpool: Any) -> None:
    process = psutil.Process()

    def threads(**options: int) -> int:
        before = process.num_threads()
        environment = make_environment(Environment(id="envpool:CartPole-v1", options=options))
        assert process.num_threads() == before
        environment.reset()
        during = process.num_threads()
        environment.close()
        assert process.num_threads() == before
        return during - before

    one = threads()
    assert one == 2  # one steps, the other makes room for what comes next
    assert threads(num_threads=2) == one + 1


def test_a_real_pool_needs_no_torch_and_says_nothing(envpool: Any) -> None:
    code = """
import sys
from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.learning.environments import make_lanes
lanes = make_lanes(Environment(id="envpool:LunarLander-v3"), 2)
lanes.reset(0)
lanes.step([0, 1])
lanes.close()
assert "torch" not in sys.modules
"""
    found = python("-c", code)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
