"""Recommended settings: each rule by value, and that every look gives two files that load."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from genkidama.cli.init import written
from genkidama.config.experiment import Experiment
from genkidama.config.recommended import (
    Look,
    a3c,
    describe,
    dqn,
    gsde,
    lanes,
    machines,
    perceptron,
    ppo,
    recommend,
    sac,
    short,
    stop,
    tells_nothing,
)

#: Cheap, with two choices, and played: cart pole.
DISCRETE = Look(
    shape=(4,),
    choices=(2,),
    limit=500,
    steps=50_000,
    step_seconds=12e-6,
    reset_seconds=10e-6,
    episodes=2200,
    terminated=2200,
    length=22.0,
    reward_low=1.0,
    reward_high=1.0,
    mean_return=22.0,
    threshold=475.0,
)
#: Cheap, and its actions are continuous: a cheetah.
CONTINUOUS = replace(
    DISCRETE,
    choices=(),
    numbers=6,
    bounded=False,
    terminated=0,
    limit=1000,
    reward_low=-2.3,
    reward_high=1.6,
)
#: Nothing but the cost of actions is told: a car in a valley.
SILENT = replace(CONTINUOUS, reward_low=-0.1, reward_high=0.0, action_cost=1.0)
#: No goal was found: the same car with three choices.
BLIND = replace(DISCRETE, choices=(3,), reward_low=-1.0, reward_high=-1.0, terminated=0)
PICTURE = replace(DISCRETE, shape=(84, 84, 3), image=True)
BOARD = replace(DISCRETE, shape=(10, 10, 4))
PART = "it shows 7 × 7 cells of its world"


@pytest.mark.parametrize(
    ("look", "first", "second"),
    [
        (DISCRETE, "PPO", "DQN"),
        (CONTINUOUS, "PPO", "SAC"),
        (SILENT, "PPO with noise that follows the state (gSDE)", "SAC"),
        (BLIND, "PPO", "DQN"),
        (PICTURE, "PPO with convolutions on GA3C", "PPO on a perceptron"),
        (BOARD, "PPO with convolutions on GA3C", "PPO on a perceptron"),
        (replace(BOARD, shape=(3, 3, 2)), "PPO", "DQN"),
        (replace(DISCRETE, step_seconds=2e-3), "DQN", "PPO"),
        (replace(CONTINUOUS, step_seconds=2e-3), "SAC, beside the parent", "PPO"),
        (replace(SILENT, step_seconds=2e-3), "SAC, beside the parent", "PPO"),
        (Look(shape=(5,), numbers=1, clock=True), "SAC, beside the parent", "PPO"),
        (Look(shape=(5,), choices=(3,), clock=True), "PPO", "A3C"),
        (replace(PICTURE, clock=True), "PPO on a perceptron", "PPO"),
        (replace(DISCRETE, choices=(4, 4), plain_actions=False), "PPO", "A3C"),
        (replace(DISCRETE, numbers=2, plain_actions=False), "PPO", "A3C"),
        (replace(CONTINUOUS, finite_actions=False), "PPO", "A3C"),
        (replace(DISCRETE, agents=3), "PPO", "A3C"),
        (Look(shape=(8,), choices=(4,)), "PPO", "DQN"),
        (replace(DISCRETE, partial=PART), "PPO with a memory", "PPO"),
        (replace(CONTINUOUS, step_seconds=2e-3, partial=PART), "PPO with a memory", "PPO"),
        (replace(PICTURE, partial=PART), "PPO with a memory", "PPO"),
        (Look(shape=(5,), choices=(3,), clock=True, partial=PART), "PPO with a memory", "PPO"),
    ],
)
def test_the_first_rule_that_holds_chooses(look: Look, first: str, second: str) -> None:
    assert [choice.title for choice in recommend(look)] == [first, second]


def test_without_torch_a_perceptron_comes_first() -> None:
    first, second = recommend(PICTURE, torch=False)
    assert (first.title, first.options) == ("PPO on a perceptron", "")
    assert first.why == "torch is not installed, so there are no convolutions"
    assert second.options == " --children 1"
    wrappers = first.settings["environment"]["wrappers"]
    assert [each["name"] for each in wrappers] == ["GrayscaleObservation", "FlattenObservation"]
    assert perceptron(replace(PICTURE, ale=True)).settings["environment"]["options"] == {
        "obs_type": "ram"
    }


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (DISCRETE, False),  # episodes end at different times
        (BLIND, True),
        (SILENT, True),
        (replace(SILENT, action_cost=0.5), False),
        (replace(DISCRETE, reward_low=0.0, rewarded=0.001), False),
        (Look(), False),  # nothing was played
    ],
)
def test_a_reward_says_something_if_it_differs_with_the_state(look: Look, expected: bool) -> None:
    assert tells_nothing(look) is expected


@pytest.mark.parametrize(
    ("look", "count"),
    [
        (DISCRETE, 8),
        (replace(DISCRETE, step_seconds=2e-3), 1),
        (Look(clock=True), 1),
        (replace(DISCRETE, lanes_at_once=3), 3),
        (replace(DISCRETE, agents=3), 6),
        (replace(DISCRETE, agents=20), 20),
        (replace(DISCRETE, bytes=100_000_000, room=2_000_000_000), 4),
        (replace(DISCRETE, bytes=100_000_000, room=-5), 1),
        (replace(DISCRETE, bytes=100_000_000), 8),
    ],
)
def test_lanes_follow_the_time_of_a_step_and_the_memory(look: Look, count: int) -> None:
    assert lanes(look, 8) == count


def test_what_was_seen_sets_the_settings() -> None:
    assert ppo(CONTINUOUS).settings["algorithm"]["entropy_coefficient"] == 0.0
    assert ppo(DISCRETE).settings["algorithm"]["entropy_coefficient"] == 0.01
    walks = replace(CONTINUOUS, terminated=2200)
    assert [ppo(each).settings["algorithm"]["gamma"].value for each in (walks, CONTINUOUS)] == [
        0.999,
        0.99,
    ]
    assert ppo(replace(walks, mean_return=-100.0)).settings["algorithm"]["gamma"].value == 0.99
    assert ppo(replace(walks, length=200.0)).settings["algorithm"]["gamma"].value == 0.99
    assert gsde(SILENT).settings["algorithm"]["gamma"] == 0.9999
    assert sac(replace(CONTINUOUS, shape=(105,), step_seconds=0.01)).settings["network"][
        "hidden"
    ] == [128, 128]
    lasting = {"step_seconds": 0.01, "reward_low": 2.0, "reward_high": 2.0}
    assert sac(replace(CONTINUOUS, **lasting)).settings["algorithm"]["initial_value"].value == 100.0
    for other in (
        {"reward_high": 2.5},
        {"reward_low": 0.0, "reward_high": 0.0},
        {"reward_low": -1.0, "reward_high": -1.0},
    ):
        looked = replace(CONTINUOUS, **{**lasting, **other})
        assert "initial_value" not in sac(looked).settings["algorithm"]
    assert dqn(replace(DISCRETE, reward_low=-10.0)).settings["environment"]["reward_scale"][0] == (
        0.1
    )
    assert dqn(replace(DISCRETE, masked=True)).settings["algorithm"]["dueling"] is False
    assert "epochs" not in a3c(DISCRETE).settings["algorithm"]


@pytest.mark.parametrize(
    ("look", "window", "seconds"),
    [
        (DISCRETE, 100, 600),
        (CONTINUOUS, 50, 600),
        (replace(DISCRETE, step_seconds=0.1), 20, 1800),
        (replace(PICTURE, limit=27_000), 20, 1800),
    ],
)
def test_the_stop_follows_the_length_of_episodes(look: Look, window: int, seconds: int) -> None:
    given = {key: line.value for key, line in stop(look).items()}
    assert given == {"mean_return": 475.0, "window": window, "seconds": seconds}
    assert list(stop(replace(look, threshold=None))) == ["seconds"]


def test_the_figures_are_told() -> None:
    assert describe(DISCRETE) == {
        "observations": "4 numbers, up to 0",
        "actions": "2 choices",
        "time": "a step takes 12 µs, a reset 10 µs, building it 0 µs",
        "episodes": "22 steps, 2,200 of 2,200 ended by the task itself; the time limit is 500",
        "rewards": "always 1; 22 an episode",
        "solved": "from a mean return of 475 on",
        "machines": "with several, act: 2.6 times sooner than averaging in CartPole, whose steps "
        "are as quick (--way)",
    }
    assert "which the actions' squares alone explain" in describe(SILENT)["rewards"]
    assert describe(Look(clock=True))["not played"] == "it has a clock of its own"


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (DISCRETE, "act: 2.6 times sooner than averaging in CartPole"),
        (replace(DISCRETE, step_seconds=40e-6), "act if the parent's machine has a core to spare"),
        (CONTINUOUS, "act: 3 of 3 runs were solved in the continuous LunarLander"),
        (replace(CONTINUOUS, step_seconds=2e-3), "act if the parent's machine has a core to spare"),
        (BOARD, "act: 2.6 times sooner than averaging in MinAtar's Breakout"),
        (replace(PICTURE, step_seconds=2e-3), "act: 2.6 times"),
    ],
)
def test_the_best_way_to_use_machines_follows_from_the_kind_of_task(look: Look, words: str) -> None:
    assert machines(look).startswith(words)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.1e-5, "21 µs"), (3.2e-3, "3.2 ms"), (0.0, "0 µs"), (1.5, "1.5 s"), (0.5, "500 ms")],
)
def test_a_short_time_has_its_unit(seconds: float, text: str) -> None:
    assert short(seconds) == text


def times() -> st.SearchStrategy[float]:
    return st.floats(0.0, 30.0)


@st.composite
def looks(draw: st.DrawFn) -> Look:
    """A look whose figures may all occur together."""
    choices = tuple(draw(st.lists(st.integers(1, 50), max_size=3)))
    numbers = draw(st.integers(0 if choices else 1, 8))
    alone = len(choices) + (numbers > 0) == 1
    shape = tuple(draw(st.lists(st.integers(1, 100), min_size=1, max_size=4)))
    plain = draw(st.booleans())
    steps = draw(st.integers(0, 10**6))
    low, high = sorted(draw(st.tuples(*[st.floats(-1e6, 1e6)] * 2)))
    episodes = draw(st.integers(0, steps))
    return Look(
        shape=shape,
        image=len(shape) in (3, 4) and draw(st.booleans()),
        bounded=draw(st.booleans()),
        states=draw(st.sampled_from([0, shape[0]])),
        keys=draw(st.sampled_from([(), ("image", "direction"), ("desired_goal",)])),
        partial=draw(st.sampled_from(["", PART])),
        choices=choices,
        numbers=numbers,
        finite_actions=draw(st.booleans()),
        plain_actions=alone and draw(st.booleans()),
        masked=bool(choices) and draw(st.booleans()),
        lanes_at_once=0 if plain else draw(st.integers(0, 64)),
        agents=0 if plain else draw(st.integers(0, 64)),
        limit=draw(st.sampled_from([0, 1, 200, 27_000])),
        clock=plain and draw(st.booleans()),
        bytes=draw(st.integers(0, 10**10)),
        steps=steps,
        step_seconds=draw(times()),
        reset_seconds=draw(times()),
        episodes=episodes,
        terminated=draw(st.integers(0, episodes)),
        length=draw(st.floats(0, 1e6)),
        largest=draw(st.floats(0, 1e30)),
        reward_low=low,
        reward_high=high,
        rewarded=draw(st.floats(0.0, 1.0)),
        mean_return=draw(st.none() | st.floats(-1e9, 1e9)),
        action_cost=draw(st.floats(0.0, 1.0)),
        threshold=draw(st.none() | st.floats(-1e6, 1e6)),
        room=draw(st.none() | st.integers(-(10**9), 10**12)),
    )


def uncommented(text: str) -> str:
    """The lines of a setting that is off, switched on."""
    return re.sub(r"(?m)^# (?=\w+ = )", "", text)


RULES = {"act": "experience", "average": "difference", "thesis": "blend"}


@settings(max_examples=40)
@example(SILENT, True, "act")
@example(SILENT, True, "average")
@example(SILENT, True, "thesis")
@given(looks(), st.booleans(), st.sampled_from([*RULES]))
def test_both_choices_load_with_all_that_is_off(look: Look, torch: bool, way: str) -> None:
    choices = recommend(look, torch, way)
    text = written("mine.toml", "my_env:Mine-v0", look, *choices)
    assert max(map(len, text.splitlines())) <= 100
    head, mark, rest = text.partition("\n[environment]")
    first, _, other = rest.partition("\n# Second choice: ")
    second = re.sub("(?m)^# ?", "", other.partition("#\n")[2])
    for part, choice in ((mark + first, choices[0]), (second, choices[1])):
        for whole in (f"{head}\n{part}", uncommented(f"{head}\n{part}")):
            found: dict[str, Any] = tomllib.loads(whole)
            experiment = Experiment.from_dict(found)
            assert experiment.algorithm.name == choice.settings["algorithm"]["name"]
            assert experiment.environment.id == "my_env:Mine-v0"
            open_ = experiment.algorithm.name in ("ppo", "a3c") and not look.clock
            if open_ and experiment.child.backend != "ga3c":
                assert experiment.parent.rule == RULES[way]
            remembers = look.partial and choice is choices[0]
            assert experiment.network.memory == (64 if remembers else 0)
