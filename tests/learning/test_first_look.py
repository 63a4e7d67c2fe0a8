"""A first look at an environment: figures of a second, by a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from genkidama.config.recommended import Look
from genkidama.config.sections import Environment
from genkidama.learning.environments import adapted
from genkidama.learning.first_look import explained, look, play
from genkidama.learning.first_look import spaces as seen_spaces


class Clock:
    """A clock that goes on by a step's time at each second look at it: two looks make a step."""

    def __init__(self, seconds: float) -> None:
        self.now, self._step, self._looks = 0.0, seconds, 0

    def __call__(self) -> float:
        self._looks += 1
        self.now += self._step / 2
        return self.now


class Counting(gymnasium.Env[Any, Any]):
    """An episode of `length` steps, terminated or not; each step is rewarded with `reward`."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = spaces.Discrete(3)
    built = 0

    def __init__(self, length: int = 5, terminates: bool = True, fails_at: int = 0) -> None:
        self.length, self.terminates, self.fails_at = length, terminates, fails_at
        self.taken: list[Any] = []
        self.closed = False
        Counting.built += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.taken.append(action)
        if len(self.taken) == self.fails_at:
            raise ValueError("stuck")
        self.steps += 1
        over = self.steps == self.length
        ends, stops = over and self.terminates, over and not self.terminates
        return self.seen(), self.reward(action), ends, stops, {}

    def seen(self) -> Any:
        return np.array([self.steps, -7.0], np.float32)

    def reward(self, action: Any) -> float:
        return float(self.steps == self.length)

    def close(self) -> None:
        self.closed = True


def played(environment: gymnasium.Env[Any, Any], step: float = 0.01) -> dict[str, Any]:
    return play(adapted(environment, Environment(id="x:y")), Clock(step))


def test_a_second_of_random_actions_gives_the_figures() -> None:
    environment = Counting()
    found = played(environment)
    steps = found["steps"]
    assert 50 < steps <= 100 and len(environment.taken) == steps
    assert set(environment.taken) == {0, 1, 2}
    assert found["step_seconds"] == pytest.approx(0.005)
    assert found["reset_seconds"] == pytest.approx(0.005)
    assert found["episodes"] == found["terminated"] == steps // 5
    assert found["length"] == 5 and found["mean_return"] == 1.0
    assert (found["reward_low"], found["reward_high"]) == (0.0, 1.0)
    assert found["rewarded"] == pytest.approx(steps // 5 / steps)
    assert found["largest"] == 7.0 and found["problem"] == ""


def test_one_whose_episode_does_not_end_is_played_for_two_seconds() -> None:
    found = played(Counting(10_000, terminates=False))
    assert 100 < found["steps"] <= 200 and found["episodes"] == 0
    assert found["mean_return"] is None
    assert played(Counting(3, terminates=False))["terminated"] == 0


def test_what_was_seen_before_an_error_counts() -> None:
    found = played(Counting(fails_at=8))
    assert (found["steps"], found["episodes"]) == (7, 1)
    assert "stuck" in found["problem"]
    assert list(played(Counting(fails_at=1))) == ["problem"]


class Masked(Counting):
    """Two columns, of which some choices are invalid, and invalid ones an error."""

    observation_space = spaces.Dict(
        {"observation": spaces.Box(0, 1, (1,)), "action_mask": spaces.MultiBinary(5)}
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def seen(self) -> Any:
        return {"observation": np.zeros(1, np.float32), "action_mask": np.array([0, 1, 1, 0, 1])}


def test_random_actions_are_valid() -> None:
    environment = Masked()
    assert played(environment)["steps"] > 50
    assert {tuple(each) for each in environment.taken} == {(1, 0), (1, 2)}
    found = seen_spaces(adapted(environment, Environment(id="x:y")))
    assert found["choices"] == (2, 3) and found["masked"] and found["shape"] == (1,)


class Costly(Counting):
    """Actions cost, and nothing else is told."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reward(self, action: Any) -> float:
        return -0.1 * float(np.square(action).sum())


class Dense(Costly):
    """Actions cost, and the state does."""

    def reward(self, action: Any) -> float:
        return super().reward(action) - self.steps


def test_the_cost_of_actions_is_told_from_that_of_states() -> None:
    assert played(Costly())["action_cost"] == pytest.approx(1.0)
    assert played(Dense())["action_cost"] < 0.5
    assert played(Counting())["action_cost"] == 0.0


def test_a_regression_explains_what_is_linear_in_the_squares() -> None:
    rng = np.random.default_rng(0)
    actions = list(rng.uniform(-1, 1, (100, 3)))
    linear = [3.0 - 2.0 * a[1] ** 2 + a[2] ** 2 for a in actions]
    assert explained(linear, actions, 1) == pytest.approx(1.0)
    assert explained(list(rng.normal(size=100)), actions, 1) < 0.2
    assert explained([1.0] * 100, actions, 1) == 0.0  # a constant needs no explanation
    assert explained([1.0, 2.0], actions[:2], 1) == 0.0


@pytest.mark.parametrize(
    ("observations", "expected"),
    [
        (spaces.Discrete(16), {"states": 16, "shape": (16,), "bounded": True}),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), {"image": True, "shape": (8, 8, 3)}),
        (
            spaces.Dict(
                desired_goal=spaces.Box(-np.inf, np.inf, (3,)), observation=spaces.Box(0, 1, (4,))
            ),
            {"shape": (7,), "bounded": False, "keys": ("desired_goal", "observation")},
        ),
    ],
)
def test_spaces_are_seen_as_a_network_takes_them(
    observations: Any, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "observation_space", observations)
    found = seen_spaces(adapted(Counting(), Environment(id="x:y")))
    assert {key: found[key] for key in expected} == expected


class Robot(Counting):
    """It has a clock of its own."""

    keeps_time = True

    def reset(self, **options: Any) -> Any:
        raise AssertionError("it moved")


@pytest.mark.parametrize("kind", [Counting, Robot])
def test_one_is_built_and_closed_and_a_robot_does_not_move(
    kind: type[Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Counting] = []

    def make(settings: Environment) -> Counting:
        made.append(kind())
        return made[-1]

    monkeypatch.setattr("genkidama.learning.first_look.bare_environment", make)
    monkeypatch.setattr("genkidama.learning.first_look.import_environment", lambda settings: None)
    monkeypatch.setattr("genkidama.learning.first_look._SECONDS", (0.01, 0.01))
    said: list[Look] = []
    receive: Callable[[], Any] = made.clear
    look(receive, said.append, Environment(id="x:y"))
    assert [each.closed for each in made] == [True]
    assert said[0].problem == ""
    assert said[0].clock == (kind is Robot) and (said[0].steps > 0) == (kind is Counting)


BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
VIEW = spaces.Box(0, 255, (3, 3, 2), np.uint8)
WORLD = spaces.Box(0, 255, (9, 9, 2), np.uint8)
TURN = spaces.Discrete(4)
CELLS = "it shows 3 × 3 cells of its world"
STATE = "its state_space is not what it shows"


@pytest.mark.parametrize(
    ("seen", "declared", "expected"),
    [
        (BOX, {}, ""),
        (BOX, {"state_space": BOX}, ""),
        (BOX, {"state_space": TURN}, STATE),
        (BOX, {"state_space": None}, ""),
        (spaces.Dict({"seen": BOX, "state": TURN}), {"state_space": TURN}, ""),
        (spaces.Dict({"image": VIEW, "direction": TURN}), {"agent_view_size": 3}, CELLS),
        (VIEW, {"agent_view_size": 3}, CELLS),
        (WORLD, {"agent_view_size": 3}, ""),  # a wrapper shows all of it
        (VIEW, {}, ""),
    ],
)
def test_an_environment_may_declare_that_it_shows_a_part(
    seen: Any, declared: dict[str, Any], expected: str
) -> None:
    environment = Counting()
    environment.observation_space = seen
    vars(environment).update(declared)
    found = seen_spaces(adapted(environment, Environment(id="x:y")))
    assert found["partial"] == expected


def test_a_wrapper_of_what_shows_all_does_not_make_it_a_part() -> None:
    environment = Counting()
    environment.observation_space = spaces.Box(-2.0, 2.0, (2,), np.float32)
    vars(environment)["state_space"] = environment.observation_space
    wrapped = gymnasium.wrappers.RescaleObservation(environment, np.float32(0), np.float32(1))
    assert seen_spaces(adapted(wrapped, Environment(id="x:y")))["partial"] == ""
