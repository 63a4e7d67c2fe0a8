"""Mistakes in a user's environment: each is a sentence, before anything starts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from genkidama.cli.cluster import train
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.environment_checks import check_spaces, try_environment
from genkidama.learning.environments import make_environment
from tests.helpers import small


def tried(experiment: Experiment) -> list[str]:
    """What is said of its environment before a run."""
    environment = make_environment(experiment.environment, check=try_environment)
    return check_spaces(experiment, environment)


GOOD: dict[str, Any] = {
    "space": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "actions": spaces.Discrete(2),
    "first": (np.zeros(3, np.float32), {}),
    "given": (np.zeros(3, np.float32), 1.0, False, False, {}),
}


SENSORS = spaces.Dict({"dial": GOOD["space"], "lamps": spaces.Tuple([spaces.Discrete(2)])})


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
        (
            {"space": SENSORS, "first": ({"dial": np.array([0, np.nan, 0]), "lamps": (1,)}, {})},
            "reset()['dial'] gives nan at [1] of the observation",
        ),
        (
            {"space": SENSORS, "first": ({"dial": GOOD["first"][0], "lamps": (2,)}, {})},
            "reset()['lamps'][0] gives the observation 2, which is not in Discrete(2)",
        ),
        (
            {"space": SENSORS, "first": ({"dial": GOOD["first"][0]}, {})},
            "reset() gives the observation {'dial': ",
        ),
    ],
)
def test_a_mistake_is_a_sentence(
    changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Told, "parts", {**GOOD, **changes})
    name = f"{__name__}:Told"
    with pytest.raises(ConfigurationError) as caught:
        tried(small(environment={"id": name}))
    assert str(caught.value).startswith(f"environment.id = {name!r}: {said}")
    assert "\n" not in str(caught.value)


def test_parts_of_an_observation_may_be_what_it_may_be_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doubles = {"dial": GOOD["space"].high.astype(np.float64) + 1.0, "lamps": (1,)}
    told = {"space": SENSORS, "first": (doubles, {}), "given": step(observation=doubles)}
    monkeypatch.setattr(Told, "parts", {**GOOD, **told})
    tried(small(environment={"id": f"{__name__}:Told"}))


class Old(Told):
    """Gym's interface of before 2022, and a wrapper that knows it."""

    def reset(self) -> Any:
        return self.parts["first"][0]

    def step(self, action: Any) -> Any:
        return self.parts["given"][1:]


class Renewed(gymnasium.Wrapper[Any, Any, Any, Any]):
    def reset(self, **_: Any) -> Any:
        return self.env.reset(), {}  # type: ignore[call-arg]

    def step(self, action: Any) -> Any:
        return GOOD["given"]


class Changing(Told):
    def reset(self, **_: Any) -> Any:
        self.observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        return np.zeros(4, np.float32), {}


class Bare:
    def step(self, action: Any) -> None: ...


def failing() -> Told:
    raise AssertionError


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Old", "reset() takes no seed, as in the old Gym; since Gymnasium it is `def reset("),
        ("Changing", "reset() gives an observation of shape (4,), its observation_space says (3,)"),
        ("Bare", "gives a Bare, expected a gymnasium.Env; derive its class from gymnasium.Env"),
        ("failing", "cannot be built: AssertionError (tests/learning/test_environment_checks.py:"),
    ],
)
def test_a_mistake_of_the_whole_class_is_a_sentence(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        tried(small(environment={"id": f"{__name__}:{name}"}))
    assert str(caught.value).startswith(f"environment.id = '{__name__}:{name}': {said}")
    if name == "failing":
        assert ", in failing: raise AssertionError)" in str(caught.value)


def talking() -> Old:
    print("Hello from a package")
    warnings.warn("it is deprecated", DeprecationWarning, stacklevel=1)
    return Old()


def test_what_cannot_be_trained_is_refused_before_anything_is_created(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=r":talking': reset\(\) takes no seed, as in the "):
        train(small(environment={"id": f"{__name__}:talking"}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists() and capfd.readouterr() == ("", "")


def test_wrappers_of_ones_own_are_tried_with_it() -> None:
    wrapper = {"name": f"{__name__}:Renewed"}
    tried(small(environment={"id": f"{__name__}:Old", "wrappers": [wrapper]}))


def told(**parts: Any) -> Told:
    made = Told()
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def mixed() -> Told:
    return told(action_space=spaces.Tuple((spaces.Discrete(2), spaces.Box(0.0, 1.0, (1,)))))


def graph() -> Told:
    space = spaces.Graph(spaces.Box(0.0, 1.0, (1,)), None)
    seen = space.sample()
    parts = {**GOOD, "first": (seen, {}), "given": (seen, *GOOD["given"][1:])}
    return told(observation_space=space, parts=parts)


def huge() -> Told:
    return told(action_space=spaces.Box(0, 10**6, (1,), np.int64))


def named() -> Told:
    space = spaces.Dict({"mission": spaces.Text(9), "seen": GOOD["space"]})
    made = told(observation_space=space)
    made.parts = {**GOOD, "first": ({"mission": "go", "seen": GOOD["first"][0]}, {})}
    made.parts["given"] = (made.parts["first"][0], *GOOD["given"][1:])
    return made


def pictures() -> Told:
    space = spaces.Box(0, 255, (130, 128, 3), np.uint8)
    made = told(observation_space=space)
    picture = np.zeros((130, 128, 3), np.uint8)
    made.parts = {"first": (picture, {}), "given": (picture, *GOOD["given"][1:])}
    return made


@pytest.mark.parametrize(
    ("name", "algorithm", "said"),
    [
        ("mixed", "dqn", "algorithm.name = 'dqn': values a number of actions, but the action spac"),
        ("graph", "a3c", "environment: its observations are Graph("),
        ("huge", "a3c", "environment: its action space Box(0, 1000000, (1,), int64) has 1000001 "),
        ("mixed", "a3c", ""),
    ],
)
def test_spaces_that_cannot_be_learned_are_refused_by_name(
    name: str, algorithm: str, said: str
) -> None:
    experiment = small(environment={"id": f"{__name__}:{name}"})
    experiment = experiment.with_settings({"algorithm.name": algorithm})
    if not said:
        tried(experiment)
        return
    with pytest.raises(ConfigurationError) as caught:
        tried(experiment)
    assert str(caught.value).startswith(said)


def test_what_is_left_out_and_what_is_too_large_is_said() -> None:
    for name, said in (
        (
            "named",
            "environment: 'mission' of the observations has no fixed length, and is left out",
        ),
        ("pictures", "environment: images of 128 × 130 pixels learn slowly; smaller ones in grey "),
    ):
        experiment = small(environment={"id": f"{__name__}:{name}"})
        (line,) = tried(experiment)
        assert line.startswith(said)


def test_a_good_one_and_those_of_others_pass() -> None:
    assert tried(small(environment={"id": f"{__name__}:Told"})) == []
    assert tried(small()) == []
