from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from genkidama.errors import ConfigurationError
from genkidama.learning.starts import starts_of


class Line(gymnasium.Env[np.ndarray, int]):
    """Each step counts one, and the episode ends at `length`. It notes what it was asked."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, length: int = 100) -> None:
        self.length = length
        self.seeds: list[int | None] = []
        self.taken: list[int] = []
        self.state = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.taken = []
        self.state = np.array([0.0, (seed or 0) % 1000])
        return np.array(self.state, np.float32), {}

    def step(self, action: int) -> Any:
        self.taken.append(int(action))
        self.state[0] += 1.0
        over = self.state[0] >= self.length
        return np.array(self.state, np.float32), 1.0, over, False, {}


class Atari(Line):
    def get_action_meanings(self) -> list[str]:
        return ["UP", "NOOP", "DOWN"]


def begun(environment: Any, starts: str | None, recorded: Any = None, episode: int = 0) -> Any:
    sequence = np.random.SeedSequence((7, episode))
    return starts_of(starts, recorded)(environment, episode, sequence)


def test_null_actions_are_1_to_as_many_as_allowed_and_follow_from_the_seed() -> None:
    counts = []
    for episode in range(300):
        environment = Line()
        observation = begun(environment, "noop:5", episode=episode)
        assert environment.taken == [0] * len(environment.taken)
        assert observation[0] == len(environment.taken)
        counts.append(len(environment.taken))
        again = Line()
        begun(again, "noop:5", episode=episode)
        assert (again.taken, again.seeds) == (environment.taken, environment.seeds)
        plain = Line()
        begun(plain, None, episode=episode)
        assert plain.seeds == environment.seeds
    assert set(counts) == {1, 2, 3, 4, 5}
    assert np.bincount(counts)[1:].min() > 30


def test_the_action_that_does_nothing_is_ataris_noop_0_or_the_one_that_is_named() -> None:
    for environment, starts, action in (
        (Atari(), "noop:9", 1),
        (Line(), "noop:9", 0),
        (Line(), "noop:9:2", 2),
    ):
        begun(environment, starts)
        assert set(environment.taken) == {action}
    space = gymnasium.spaces.Discrete(3, start=4)
    environment = Line()
    environment.action_space = space
    begun(environment, "noop:9")
    assert set(environment.taken) == {4}


def test_an_episode_that_ends_meanwhile_begins_again() -> None:
    environment = Line(length=2)
    begun(environment, "noop:30")
    assert len(environment.seeds) > 1
    assert environment.state[0] < 2.0


def test_recorded_starts_are_played_in_turns() -> None:
    recorded = [
        [1, 2],
        {"seed": 5, "actions": [1]},
        {"state": [40.0, 2.0], "actions": [1, 1]},
        {"seed": 3},
    ]
    seen = []
    for episode in range(8):
        environment = Line()
        observation = begun(environment, "r.json", recorded, episode)
        seen.append((environment.taken, float(observation[0]), environment.seeds[0]))
    assert [entry[:2] for entry in seen[:4]] == [
        ([1, 2], 2.0),
        ([1], 1.0),
        ([1, 1], 42.0),
        ([], 0.0),
    ]
    assert [entry[:2] for entry in seen[4:]] == [entry[:2] for entry in seen[:4]]
    assert seen[1][2] == seen[5][2] == 5
    assert seen[0][2] != seen[4][2]


def test_a_state_is_put_only_where_it_is_what_the_policy_sees() -> None:
    wider = gymnasium.spaces.Box(-1e9, 2e9, (2,), np.float32)
    wrapped = gymnasium.wrappers.TransformObservation(Line(), lambda seen: seen + 1e9, wider)
    with pytest.raises(ConfigurationError, match=r"2 numbers cannot be put into Line; record a "):
        begun(wrapped, "r.json", [{"state": [40.0, 2.0]}])


def test_what_does_nothing_must_be_an_action() -> None:
    environment = Line()
    environment.action_space = gymnasium.spaces.Box(1.0, 2.0, (1,), np.float32)
    with pytest.raises(
        ConfigurationError, match=r"^starts = 'noop:3': \[0\.\] is no action of Box"
    ):
        begun(environment, "noop:3")


@pytest.mark.parametrize(
    ("starts", "recorded", "sentence"),
    [
        ("noop", None, "starts = 'noop': expected 'noop:N' or 'noop:N:ACTION'"),
        ("noop:x", None, "starts = 'noop:x': expected 'noop:N' or 'noop:N:ACTION'"),
        ("noop:0", None, "starts = 'noop:0': at least 1 null action is needed"),
        ("noop:3:9", None, "starts = 'noop:3:9': 9 is no action of Discrete(3)"),
        ("r.json", {}, "r.json: expected a list of at least one start"),
        ("r.json", [], "r.json: expected a list of at least one start"),
        (
            "r.json",
            [[1], {"action": [1]}],
            "r.json: start 1: expected a list of actions, or an object with 'actions', 'seed' and "
            "'state'",
        ),
        ("r.json", [["up"]], "r.json: start 0: action 0 = 'up': is none of Discrete(3)"),
        ("r.json", [[1, 7]], "r.json: start 0: action 1 = 7: is none of Discrete(3)"),
        (
            "r.json",
            [[1] * 200],
            "r.json: start 0: the episode ends with action 99, before the policy has begun",
        ),
        (
            "r.json",
            [{"state": [1.0]}],
            "r.json: start 0: a state of 1 numbers cannot be put into Line; record a seed and "
            "actions instead",
        ),
        ("r.json", [{"seed": -1}], "r.json: start 0: seed = -1: at least 0 is needed"),
        (
            "r.json",
            [{"state": ["a", 1.0]}],
            "r.json: start 0: state = ['a', 1.0]: expected finite numbers",
        ),
        (
            "r.json",
            [{"state": [None, 1.0]}],
            "r.json: start 0: state = [None, 1.0]: expected finite numbers",
        ),
    ],
)
def test_what_is_no_start_is_refused(starts: str, recorded: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        begun(Line(), starts, recorded)
    assert str(caught.value) == sentence
