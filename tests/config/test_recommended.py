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
from genkidama.config.examples import example as example_file
from genkidama.config.experiment import Experiment, read_toml
from genkidama.config.recommended import (
    Algorithm,
    Choice,
    Line,
    Look,
    a3c,
    convolution,
    describe,
    dqn,
    episode_steps,
    gsde,
    lanes,
    machines,
    perceptron,
    ppo,
    recommend,
    remembering,
    sac,
    short,
    stop,
    tells_nothing,
)
from genkidama.config.sections import flat

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
SLOW = {"step_seconds": 2e-3}
#: A robot, which was not played.
ROBOT = Look(shape=(4,), choices=(2,), limit=500, clock=True)
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
        (replace(BOARD, shape=(5, 10, 1)), "PPO with convolutions on GA3C", "PPO on a perceptron"),
        (replace(BOARD, shape=(4, 10, 3)), "PPO", "DQN"),
        (replace(BOARD, shape=(3, 3, 2)), "PPO", "DQN"),
        (replace(BOARD, shape=(10, 10)), "PPO", "DQN"),
        (replace(BOARD, shape=(10, 10, 10, 10)), "PPO", "DQN"),
        (replace(DISCRETE, step_seconds=1e-3), "PPO", "DQN"),  # not yet slow
        (replace(DISCRETE, step_seconds=2e-3), "DQN", "PPO"),
        (replace(CONTINUOUS, step_seconds=2e-3), "SAC, beside the parent", "PPO"),
        (replace(SILENT, step_seconds=2e-3), "SAC, beside the parent", "PPO"),
        (Look(shape=(5,), numbers=1, clock=True), "SAC, beside the parent", "PPO"),
        (Look(shape=(5,), choices=(3,), clock=True), "PPO", "A3C"),
        (replace(PICTURE, clock=True), "PPO on a perceptron", "PPO"),
        (replace(DISCRETE, choices=(4, 4), plain_actions=False), "PPO", "A3C"),
        (replace(DISCRETE, choices=(4, 4)), "PPO", "A3C"),  # whole numbers in a Box
        (replace(DISCRETE, plain_actions=False), "PPO", "A3C"),
        (replace(DISCRETE, numbers=2, plain_actions=False), "PPO", "A3C"),
        (replace(CONTINUOUS, finite_actions=False), "PPO", "A3C"),
        (replace(CONTINUOUS, plain_actions=False), "PPO", "A3C"),
        (replace(CONTINUOUS, lanes_at_once=2), "PPO", "A3C"),
        (replace(DISCRETE, lanes_at_once=2), "PPO", "A3C"),
        (replace(DISCRETE, agents=3), "PPO", "A3C"),
        (Look(shape=(8,), choices=(4,)), "PPO", "DQN"),
        (Look(problem="there was no 'mine' yet"), "PPO", "A3C"),
        (replace(DISCRETE, partial=PART), "PPO with a memory", "PPO"),
        (replace(CONTINUOUS, step_seconds=2e-3, partial=PART), "PPO with a memory", "PPO"),
        (replace(PICTURE, partial=PART), "PPO with a memory", "PPO"),
        (Look(shape=(5,), choices=(3,), clock=True, partial=PART), "PPO with a memory", "PPO"),
    ],
)
def test_the_first_rule_that_holds_chooses(look: Look, first: str, second: str) -> None:
    assert [choice.title for choice in recommend(look)] == [first, second]


QUICK = "a step takes 12 µs, so many can be played"
SAMPLES = "it learns from each step many times, so it takes fewer steps, and more time for each"


@pytest.mark.parametrize(
    ("look", "first", "second"),
    [
        (DISCRETE, QUICK, SAMPLES),
        (
            replace(DISCRETE, agents=3),
            QUICK,
            "it takes one update for each batch, the least time of all",
        ),
        (
            Look(shape=(8,), choices=(4,)),
            "it was not played, so its steps count as quick",
            SAMPLES,
        ),
        (BLIND, f"{QUICK}, and no reward was seen to differ, so it must play much", SAMPLES),
        (CONTINUOUS, f"{QUICK}, and actions are continuous", SAMPLES),
        (
            SILENT,
            "rewards tell nothing but the cost of actions, so it must explore far before it learns "
            "anything",
            SAMPLES,
        ),
        (
            replace(DISCRETE, **SLOW),
            "a step takes 2 ms, so their number decides",
            "it takes the least time for each step, and more steps",
        ),
        (
            ROBOT,
            "it has a clock: the number of steps decides, and acting must not wait",
            "it takes one update for each batch, the least time of all",
        ),
        (
            PICTURE,
            "observations are 84 × 84 × 3 in size, and neighbours belong together",
            "it needs no torch, and learns later",
        ),
        (
            replace(PICTURE, clock=True),
            "observations are 84 × 84 × 3 in size, and neighbours belong together",
            "it takes the least time for each step, and more steps",
        ),
        (
            replace(DISCRETE, partial=PART),
            f"{PART}, so it must remember what it has seen",
            "it takes the least time for each step, and more steps",
        ),
    ],
)
def test_each_choice_has_its_reason(look: Look, first: str, second: str) -> None:
    assert [choice.why for choice in recommend(look)] == [first, second]


def test_without_torch_a_perceptron_comes_first() -> None:
    first, second = recommend(PICTURE, torch=False)
    assert (first.title, first.options) == ("PPO on a perceptron", "")
    assert first.why == "torch is not installed, so there are no convolutions"
    assert second.options == " --children 1"
    assert second.why == "it sees what is beside what; it needs torch"
    assert recommend(DISCRETE, torch=False) == recommend(DISCRETE)


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (DISCRETE, False),  # episodes end at different times
        (BLIND, True),
        (SILENT, True),
        (replace(BLIND, steps=1), True),
        (replace(BLIND, reward_low=-1), True),
        (replace(SILENT, action_cost=0.95), False),
        (replace(SILENT, action_cost=0.96), True),
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
        (replace(DISCRETE, step_seconds=1e-3), 8),
        (replace(DISCRETE, step_seconds=2e-3), 1),
        (Look(clock=True), 1),
        (replace(DISCRETE, lanes_at_once=1), 8),
        (replace(DISCRETE, lanes_at_once=2), 2),
        (replace(DISCRETE, lanes_at_once=3, step_seconds=2e-3), 3),
        (replace(DISCRETE, agents=1), 8),
        (replace(DISCRETE, agents=3), 6),
        (replace(DISCRETE, agents=4), 8),
        (replace(DISCRETE, agents=5, step_seconds=2e-3), 5),
        (replace(DISCRETE, agents=20), 20),
        (replace(DISCRETE, bytes=100_000_000, room=2_000_000_000), 4),
        (replace(DISCRETE, bytes=100_000_000, room=-5), 1),
        (replace(DISCRETE, bytes=100_000_000), 8),
        (replace(DISCRETE, room=5), 8),
    ],
)
def test_lanes_follow_the_time_of_a_step_and_the_memory(look: Look, count: int) -> None:
    assert lanes(look, 8) == count


@example(100, 3200, 8)
@example(100, 3199, 8)
@example(100, 399, 8)
@given(st.integers(1, 10**12), st.integers(-(10**9), 10**13), st.integers(1, 1024))
def test_lanes_are_the_largest_power_of_two_in_a_quarter_of_the_memory(
    size: int, room: int, most: int
) -> None:
    count = lanes(replace(DISCRETE, bytes=size, room=room), most)
    assert count.bit_count() == 1 and count <= most
    assert count == 1 or 4 * count * size <= room
    assert 2 * count > most or 4 * 2 * count * size > room


def test_ppo_by_values() -> None:
    assert ppo(DISCRETE) == Choice(
        "PPO",
        "",
        {
            "environment": {
                "normalize_observations": True,
                "normalize_rewards": True,
                "lanes": Line(8, "a step takes 12 µs: several share a pass of the network"),
            },
            "network": {"hidden": [64, 64]},
            "algorithm": {
                "name": "ppo",
                "gamma": 0.99,
                "gae_lambda": 0.95,
                "batch_size": Line(1024, "128 steps of each lane"),
                "epochs": 10,
                "minibatch_size": 128,
                "entropy_coefficient": 0.01,
                "max_gradient_norm": 0.5,
                "normalize_advantages": True,
            },
            "optimizer": {"name": "adam", "learning_rate": 1e-3, "schedule": "linear"},
            "parent": {"rule": "experience", "checkpoint_seconds": 5},
        },
    )


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The settings that differ, dotted, as they are afterwards; None is absent."""
    old, new = flat(before), flat(after)
    return {key: new.get(key) for key in old | new if old.get(key) != new.get(key)}


def known(name: str) -> dict[str, Any]:
    """The settings of an example, without `[stop]`, which a look sets."""
    return read_toml(example_file(name)) | {"stop": {}}


#: The settings of examples that no other environment takes over.
DROPPED = {"seed": None, "environment.id": None}

EXCLUSIVE = Line(True, "if a machine can have one open at a time", off=True)
TIME_LIMIT = Line(
    [{"name": "TimeLimit", "options": {"max_episode_steps": 1000}}],
    "if no episode ends by itself",
    off=True,
)
LATE_LIMIT = Line(
    [{"name": "TimeLimit", "options": {"max_episode_steps": 40_000}}],
    "a policy that goes nowhere would play for ever",
)
AT_ONCE = "one object is as many"
ALONE = {"environment.lanes": None, "environment.exclusive": EXCLUSIVE}
FEW_STEPS = {
    "algorithm.batch_size": Line(64, "64 steps of each lane"),
    "algorithm.minibatch_size": 64,
    "parent.rule_options": Line({"batch": 256}, "steps are few: learn from these"),
}
NEVER: dict[str, Any] = {"limit": 0, "episodes": 0, "terminated": 0, "length": 0.0, "steps": 1000}
ENDLESS = replace(DISCRETE, **NEVER)
#: Chance ends its episodes, late: a walk along a cliff.
LATE = NEVER | {"steps": 50_000, "episodes": 6, "terminated": 6, "length": 4000.0}
WANDERING = replace(DISCRETE, **LATE)


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (replace(DISCRETE, **SLOW), ALONE | FEW_STEPS),
        (replace(DISCRETE, **SLOW, shape=(8, 8)), ALONE | FEW_STEPS),
        (
            replace(DISCRETE, **SLOW, shape=(5, 13)),
            ALONE | FEW_STEPS | {"network.hidden": [128, 128]},
        ),
        (replace(DISCRETE, shape=(5, 13)), {}),
        (
            ROBOT,
            {
                **ALONE,
                **FEW_STEPS,
                "environment.period": Line(0.02, "seconds of a step: set it to yours"),
                "child.cores": 1,
            },
        ),
        (
            replace(ROBOT, period=0.05),
            {
                **ALONE,
                **FEW_STEPS,
                "environment.period": Line(0.05, "seconds of a step"),
                "child.cores": 1,
            },
        ),
        (
            CONTINUOUS,
            {
                "algorithm.entropy_coefficient": 0.0,
                "network.sde_steps": Line(16, "smooth exploration, for motors (gSDE)", off=True),
            },
        ),
        (replace(DISCRETE, numbers=2, plain_actions=False), {}),
        # Lanes.
        (Look(shape=(4,), choices=(2,), limit=500), {"environment.lanes": Line(8)}),
        (
            replace(DISCRETE, bytes=1, room=0),
            {
                "environment.lanes": None,
                "algorithm.batch_size": Line(128, "128 steps of each lane"),
            },
        ),
        (replace(DISCRETE, lanes_at_once=1), {}),
        *(
            (
                replace(DISCRETE, **at_once),
                {
                    "environment.lanes": Line(count, AT_ONCE),
                    "algorithm.batch_size": Line(count * steps, f"{steps} steps of each lane"),
                },
            )
            for at_once, count, steps in (
                ({"lanes_at_once": 2}, 2, 128),
                ({"agents": 3}, 6, 128),
                ({"agents": 20}, 20, 48),
                ({"agents": 32}, 32, 32),
                ({"agents": 100}, 100, 16),
            )
        ),
        (
            replace(DISCRETE, **SLOW, agents=5),
            {
                **FEW_STEPS,
                "environment.lanes": Line(5, AT_ONCE),
                "algorithm.batch_size": Line(320, "64 steps of each lane"),
            },
        ),
        # No end was seen.
        (ENDLESS, {"environment.wrappers": TIME_LIMIT}),
        (replace(ENDLESS, steps=50_000), {"environment.wrappers": TIME_LIMIT}),
        (replace(ENDLESS, steps=999), {}),
        (replace(ENDLESS, limit=1), {}),
        (replace(ENDLESS, episodes=1, length=900.0), {}),
        (replace(ENDLESS, lanes_at_once=1), {}),
        (WANDERING, {"environment.wrappers": LATE_LIMIT}),
        (replace(WANDERING, length=999.0), {}),
        (replace(WANDERING, terminated=5), {}),
        (replace(WANDERING, limit=1), {}),
        (replace(WANDERING, lanes_at_once=1), {}),
    ],
)
def test_what_was_seen_changes_the_settings(look: Look, expected: dict[str, Any]) -> None:
    assert changes(ppo(DISCRETE).settings, ppo(look).settings) == expected


CLIP = Line(0.1, "half of what is usual: each step is in four batches")
FOLLOWS = "absent: follows the number of children"
AVERAGE = {
    "parent.rule": "difference",
    "parent.checkpoint_seconds": None,
    "parent.alpha": Line(0.5, FOLLOWS, off=True),
    "child.exchange": "chunk",
    "algorithm.epochs": None,
    "algorithm.minibatch_size": Line(64, FOLLOWS, off=True),
    "algorithm.clip": CLIP,
    "optimizer.learning_rate": Line(1.4e-3, FOLLOWS, off=True),
}
THESIS = {
    "parent.rule": "blend",
    "parent.checkpoint_seconds": None,
    "parent.alpha": 0.5,
    "child.beta": 0.5,
    "child.exchange": "episode",
}


@pytest.mark.parametrize(
    ("look", "way", "expected"),
    [
        (DISCRETE, "thesis", THESIS),
        (replace(DISCRETE, **SLOW), "thesis", THESIS | {"parent.rule_options": None}),
        (DISCRETE, "average", AVERAGE | {"environment.lanes": Line(8, FOLLOWS, off=True)}),
        (replace(DISCRETE, bytes=1, room=0), "average", AVERAGE | {"environment.lanes": 1}),
        (replace(DISCRETE, agents=3), "average", AVERAGE),
        (replace(DISCRETE, agents=20), "average", AVERAGE),
        (ROBOT, "thesis", {}),
        (ROBOT, "average", {}),
    ],
)
def test_children_cooperate_in_the_way_that_was_named(
    look: Look, way: str, expected: dict[str, Any]
) -> None:
    assert changes(ppo(look).settings, ppo(look, way).settings) == expected
    more = a3c(look, way)
    assert more.title == "A3C"
    gone = ("algorithm.epochs", "algorithm.minibatch_size", "algorithm.clip")
    assert changes(ppo(look, way).settings, more.settings) == {"algorithm.name": "a3c"} | {
        key: None for key in gone if key in flat(ppo(look, way).settings)
    }


@pytest.mark.parametrize(
    ("look", "way", "expected"),
    [
        (SILENT, "act", {"parent.rule": "experience", "parent.checkpoint_seconds": 5}),
        (
            SILENT,
            "average",
            {
                "parent.rule": "difference",
                "parent.alpha": Line(0.5, FOLLOWS, off=True),
                "child.exchange": "chunk",
                "algorithm.epochs": None,
                "algorithm.clip": CLIP,
            },
        ),
        (
            replace(SILENT, agents=3),
            "thesis",
            {
                "environment.lanes": Line(6, AT_ONCE),
                "algorithm.batch_size": Line(192, "32 steps of each lane"),
                "parent.rule": "blend",
                "parent.alpha": 0.5,
                "child.beta": 0.5,
                "child.exchange": "episode",
            },
        ),
    ],
)
def test_gsde_is_the_car_in_the_valley(look: Look, way: str, expected: dict[str, Any]) -> None:
    found = gsde(look, way)
    assert found.title == "PPO with noise that follows the state (gSDE)"
    shared = "a step takes 12 µs: several share a pass of the network"
    assert changes(known("mountaincar"), found.settings) == {
        **DROPPED,
        "environment.lanes": Line(8, shared),
        "algorithm.batch_size": Line(256, "32 steps of each lane"),
        **expected,
    }


BESIDE = {
    **DROPPED,
    "environment.safe_action": None,
    "environment.safe_seconds": None,
    "environment.offline_seconds": None,
    "algorithm.initial_value": None,
}


@pytest.mark.parametrize(
    ("look", "way", "name", "expected"),
    [
        (CONTINUOUS, "act", "pendulum/sac", DROPPED),
        (CONTINUOUS, "thesis", "pendulum/sac", DROPPED),
        (
            replace(CONTINUOUS, **SLOW),
            "average",
            "pendulum/sac",
            DROPPED | {"environment.exclusive": EXCLUSIVE},
        ),
        (
            replace(CONTINUOUS, **SLOW, shape=(65,)),
            "act",
            "rotary/sac",
            BESIDE
            | {
                "environment.exclusive": EXCLUSIVE,
                "environment.period": None,
                "network.hidden": [128, 128],
                "child.cores": None,
            },
        ),
        (
            replace(ROBOT, choices=(), numbers=1, period=0.05),
            "act",
            "rotary/sac",
            BESIDE
            | {
                "environment.exclusive": EXCLUSIVE,
                "environment.period": Line(0.05, "seconds of a step"),
            },
        ),
    ],
)
def test_sac_is_beside_the_parent_where_steps_are_dear(
    look: Look, way: str, name: str, expected: dict[str, Any]
) -> None:
    found = sac(look, way)
    assert found.title == ("SAC, beside the parent" if name == "rotary/sac" else "SAC")
    assert changes(known(name), found.settings) == expected


@pytest.mark.parametrize(
    ("low", "high", "value"),
    [
        (2, 2.0, 100.0),
        (0.5, 0.5, 25.0),
        (1 / 3, 1 / 3, 16.666667),
        (2.0, 2.5, None),
        (0.0, 0.0, None),
        (-0.5, -0.5, None),
    ],
)
def test_a_reward_that_is_always_the_same_tells_sac_the_value_of_an_endless_episode(
    low: float, high: float, value: float | None
) -> None:
    looked = replace(CONTINUOUS, **SLOW, reward_low=low, reward_high=high)
    found = sac(looked).settings["algorithm"].get("initial_value")
    assert found == (None if value is None else Line(value, "of an episode without an end"))


@pytest.mark.parametrize(
    ("low", "high", "scale"),
    [(0.0, 1.0, 1.0), (-0.5, 0.5, 1.0), (-10.0, 1.0, 0.1), (-1.0, 30.0, 0.03), (0.0, 4.0, 0.2)],
)
def test_dqn_brings_rewards_below_1(low: float, high: float, scale: float) -> None:
    found = dqn(replace(DISCRETE, reward_low=low, reward_high=high))
    about = "errors are best below 1, where the loss is quadratic"
    assert found.title == "DQN"
    assert changes(known("cartpole/dqn"), found.settings) == {
        **DROPPED,
        "environment.reward_scale": Line(scale, about),
        "parent.checkpoint_seconds": 5,
        "parent.checkpoint_keep": None,
    }


def test_dqn_of_masked_actions_has_no_advantages() -> None:
    found = changes(dqn(DISCRETE).settings, dqn(replace(DISCRETE, masked=True)).settings)
    assert found == {"algorithm.dueling": False}


SMALL = {
    **DROPPED,
    "environment.options.game": None,
    "environment.options.use_minimal_action_set": None,
}
LARGE = {**DROPPED, "environment.options.reward_clipping": None, "network.convolutions": None}
NO_GAME = {**LARGE, "environment.vectorized": None, "environment.clip_rewards": None}
FIRST = {**SMALL, "network.channels": None}


@pytest.mark.parametrize(
    ("look", "name", "expected"),
    [
        (BOARD, "minatar/breakout", SMALL),
        (replace(BOARD, shape=(35, 84, 3)), "minatar/breakout", SMALL),
        (replace(BOARD, shape=(10, 12, 4)), "minatar/breakout", SMALL),
        (replace(BOARD, shape=(12, 10, 4)), "minatar/breakout", SMALL),
        (replace(BOARD, shape=(10, 10, 10)), "minatar/breakout", SMALL),
        (replace(BOARD, shape=(4, 10, 12)), "minatar/breakout", FIRST),
        (replace(BOARD, shape=(12, 10, 11)), "minatar/breakout", FIRST),
        (replace(BOARD, **SLOW), "minatar/breakout", {**SMALL, "ga3c.environments": 1}),
        (PICTURE, "atari/pong-ppo", NO_GAME),
        (replace(PICTURE, shape=(36, 84, 3)), "atari/pong-ppo", NO_GAME),
        (
            replace(PICTURE, ale=True),
            "atari/pong-ppo",
            {
                **LARGE,
                "environment.vectorized": Line(
                    True, "ALE repeats frames, scales and stacks by itself"
                ),
                "environment.options": Line(
                    {"reward_clipping": False}, "it would report clipped returns"
                ),
            },
        ),
    ],
)
def test_convolutions_are_those_of_an_example_with_pictures_of_this_size(
    look: Look, name: str, expected: dict[str, Any]
) -> None:
    found = convolution(look)
    assert (found.title, found.options) == ("PPO with convolutions on GA3C", " --children 1")
    assert changes(known(name), found.settings) == expected
    late = convolution(replace(look, **LATE)).settings["environment"]
    assert late.get("wrappers") == (None if look.ale else LATE_LIMIT)


GREY, FLAT = {"name": "GrayscaleObservation"}, {"name": "FlattenObservation"}


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (PICTURE, {"environment.wrappers": [GREY, FLAT]}),
        (replace(PICTURE, shape=(84, 84, 1)), {"environment.wrappers": [FLAT]}),
        (replace(PICTURE, shape=(84, 84, 4)), {"environment.wrappers": [FLAT]}),
        (replace(PICTURE, shape=(3, 84, 84)), {"environment.wrappers": [FLAT]}),
        (replace(PICTURE, **LATE), {"environment.wrappers": [*LATE_LIMIT.value, GREY, FLAT]}),
        (replace(PICTURE, **NEVER), {"environment.wrappers": [GREY, FLAT]}),
        (replace(PICTURE, ale=True), {"environment.options.obs_type": "ram"}),
        (BOARD, {}),
    ],
)
def test_a_perceptron_sees_each_pixel_or_a_games_memory(
    look: Look, expected: dict[str, Any]
) -> None:
    plain, seeing = ppo(look), perceptron(look)
    assert (seeing.title, seeing.options) == ("PPO on a perceptron", "")
    assert changes(plain.settings, seeing.settings) == expected
    remembers = remembering(replace(look, partial=PART))
    assert remembers.title == "PPO with a memory"
    assert changes(seeing.settings, remembers.settings) == {
        "network.memory": Line(64, f"{PART}; 0 (none) is faster, if what is seen suffices")
    }


@pytest.mark.parametrize(
    ("limit", "length", "steps", "expected"),
    [
        (500, 22.0, 50_000, 500),
        (0, 22.0, 50_000, 22.0),
        (0, 0.0, 1001, 1001),
        (0, 0.0, 999, 1000),
        (0, 0.0, 0, 1000),
    ],
)
def test_an_episode_may_last_to_its_limit(
    limit: int, length: float, steps: int, expected: float
) -> None:
    assert episode_steps(Look(limit=limit, length=length, steps=steps)) == expected


@pytest.mark.parametrize(
    ("look", "window", "seconds"),
    [
        (DISCRETE, 100, 600),
        (CONTINUOUS, 50, 600),
        (replace(DISCRETE, limit=0, length=22.0), 100, 600),
        (replace(DISCRETE, limit=0, length=800.0), 62, 600),  # of 62.5
        (replace(DISCRETE, limit=0, length=787.4), 64, 600),  # of 63.5001
        (replace(DISCRETE, limit=2381), 21, 600),
        (replace(DISCRETE, limit=2500), 20, 600),
        (replace(DISCRETE, limit=10_000), 20, 600),
        (replace(DISCRETE, step_seconds=0.1), 20, 1800),
        (ROBOT, 20, 1800),
        (PICTURE, 100, 1800),
        (replace(PICTURE, limit=27_000), 20, 1800),
    ],
)
def test_the_stop_follows_the_length_of_episodes(look: Look, window: int, seconds: int) -> None:
    time = {"seconds": Line(seconds, "at most; schedules end here")}
    assert stop(replace(look, threshold=None)) == time
    assert stop(replace(look, threshold=475.0)) == {
        "mean_return": Line(475.0, "from here on it counts as solved"),
        "window": Line(window, "of so many training episodes"),
        **time,
    }


def test_the_figures_are_told() -> None:
    assert describe(DISCRETE) == {
        "observations": "4 numbers, up to 0",
        "actions": "2 choices",
        "time": "a step takes 12 µs, a reset 10 µs, building it 0 µs",
        "episodes": "22 steps, 2,200 of 2,200 ended by the task itself; the time limit is 500",
        "rewards": "always 1; 22 an episode",
        "solved": "from a mean return of 475 on",
        "machines": "with several, act: 2.0 times sooner than averaging in CartPole, whose steps "
        "are as quick (--way)",
    }
    everything = Look(
        shape=(84, 84, 3),
        image=True,
        bounded=False,
        keys=("image", "direction"),
        choices=(2, 3, 4, 5, 6),
        numbers=1,
        finite_actions=False,
        plain_actions=False,
        masked=True,
        agents=3,
        limit=1000,
        build_seconds=1.5,
        problem="ValueError: it broke",
        steps=1,
        step_seconds=12e-6,
        reset_seconds=3.2e-3,
        largest=255.0,
        reward_low=-1.0,
        reward_high=2.0,
        rewarded=0.25,
    )
    assert describe(everything) == {
        "observations": "an image, 84 × 84 × 3 numbers, without bounds, up to 255, of the parts "
        "image, direction",
        "actions": "2 choices and 3 choices and 4 choices and 5 choices and … and 1 number, some "
        "of them masked, without bounds",
        "lanes": "one object has 3",
        "time": "a step takes 12 µs, a reset 3.2 ms, building it 1.5 s",
        "episodes": "none ended in 1 step; the time limit is 1,000",
        "rewards": "from -1 to 2, and 0 in 75 % of the steps",
        "problem": "ValueError: it broke",
        "machines": "with several, act: 2.8 times sooner than averaging in MinAtar's Breakout; "
        "average if the link to the parent is too slow for pictures (--way)",
    }


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (Look(shape=(8,), choices=(4,)), {"not played": "nothing was played"}),
        (Look(shape=(8,), choices=(4,), problem="it broke"), {"not played": "it broke"}),
        (
            Look(shape=(8,), choices=(4,), problem="it broke", clock=True),
            {"not played": "it has a clock of its own"},
        ),
        (
            Look(shape=(8,), choices=(4,), lanes_at_once=2),
            {"lanes": "one object has 2", "not played": "nothing was played"},
        ),
    ],
)
def test_what_was_not_played_says_why(look: Look, expected: dict[str, str]) -> None:
    spaces = {"observations": "8 numbers", "actions": "4 choices"}
    assert describe(look) == spaces | expected


@pytest.mark.parametrize(
    ("look", "subject", "sentence"),
    [
        (replace(DISCRETE, states=16, shape=(16,)), "observations", "one of 16 states"),
        (
            replace(DISCRETE, choices=(2, 3, 4, 5)),
            "actions",
            "2 choices and 3 choices and 4 choices and 5 choices",
        ),
        (CONTINUOUS, "actions", "6 numbers"),
        (replace(DISCRETE, lanes_at_once=1), "actions", "2 choices"),
        (
            replace(DISCRETE, length=1234.5),
            "episodes",
            "1,234 steps, 2,200 of 2,200 ended by the task itself; the time limit is 500",
        ),
        (
            replace(DISCRETE, limit=0, episodes=2201),
            "episodes",
            "22 steps, 2,200 of 2,201 ended by the task itself",
        ),
        (replace(ENDLESS, steps=50_000), "episodes", "none ended in 50,000 steps"),
        (replace(DISCRETE, reward_low=3, mean_return=None, reward_high=3.0), "rewards", "always 3"),
        (CONTINUOUS, "rewards", "from -2.3 to 1.6; 22 an episode"),
        (replace(CONTINUOUS, mean_return=0.0014), "rewards", "from -2.3 to 1.6; 0.001 an episode"),
        (
            SILENT,
            "rewards",
            "from -0.1 to 0, which the actions' squares alone explain; 22 an episode",
        ),
        (replace(SILENT, action_cost=0.95), "rewards", "from -0.1 to 0; 22 an episode"),
    ],
)
def test_a_figure_is_told_in_a_sentence(look: Look, subject: str, sentence: str) -> None:
    found = describe(look)
    assert found[subject] == sentence
    assert "lanes" not in found


SPARE = "act if the parent's machine has a core to spare, else average"


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (DISCRETE, "act: 2.0 times sooner than averaging in CartPole"),
        (replace(DISCRETE, step_seconds=30e-6), f"{SPARE}: 6.9 and 3.0 times as soon as one"),
        (replace(DISCRETE, step_seconds=40e-6), f"{SPARE}: 6.9 and 3.0 times as soon as one"),
        (CONTINUOUS, "act: 1.4 times sooner than averaging in the continuous"),
        (replace(CONTINUOUS, step_seconds=2e-3), f"{SPARE}; not measured with steps as slow"),
        (BOARD, "act: 2.8 times sooner than averaging in MinAtar's Breakout"),
        (replace(PICTURE, step_seconds=2e-3), "act: 2.8 times"),
    ],
)
def test_the_best_way_to_use_machines_follows_from_the_kind_of_task(look: Look, words: str) -> None:
    assert machines(look).startswith(words)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (2.1e-5, "21 µs"),
        (9.99e-4, "999 µs"),
        (1e-3, "1 ms"),
        (3.2e-3, "3.2 ms"),
        (0.5, "500 ms"),
        (1.0, "1 s"),
        (1.5, "1.5 s"),
        (9.5, "9.5 s"),
        (123.4, "123 s"),
    ],
)
def test_a_short_time_has_its_unit(seconds: float, text: str) -> None:
    assert short(seconds) == text


def times() -> st.SearchStrategy[float]:
    return st.floats(0.0, 30.0)


@pytest.mark.parametrize("algorithm", [ppo, a3c])
def test_states_are_not_normalized_and_are_explored_for_longer(algorithm: Algorithm) -> None:
    plain, states = (algorithm(replace(DISCRETE, states=n)).settings for n in (0, 16))
    assert states["environment"] == {
        key: value for key, value in plain["environment"].items() if key != "normalize_observations"
    }
    assert states["algorithm"] == plain["algorithm"] | {
        "entropy_coefficient": Line(0.05, "high, as no state tells of another; it falls to 0"),
        "entropy_schedule": "linear",
    }
    continuous = replace(CONTINUOUS, states=16)
    assert (
        algorithm(continuous).settings["algorithm"] == algorithm(CONTINUOUS).settings["algorithm"]
    )


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
