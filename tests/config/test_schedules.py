from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.config.schedules import (
    SCHEDULES,
    constant,
    exploration,
    following,
    learning_rate,
    linear,
)
from genkidama.config.sections import Algorithm, Optimizer

rates = st.floats(0.0, 1e30)
progresses = st.floats(0.0, 1.0)


@given(rates, rates, progresses)
def test_constant_stays(start: float, end: float, progress: float) -> None:
    assert constant(start, end, progress) == start


@pytest.mark.parametrize(
    ("progress", "value"),
    [(0.0, 8.0), (0.25, 6.5), (0.5, 5.0), (1.0, 2.0), (-0.5, 8.0), (7.0, 2.0)],
)
def test_linear_is_a_straight_line_that_ends(progress: float, value: float) -> None:
    assert linear(8.0, 2.0, progress) == value


@given(rates, rates, progresses, progresses)
def test_linear_stays_between_its_ends_and_never_turns(
    start: float, end: float, one: float, other: float
) -> None:
    earlier, later = sorted((one, other))
    slack = 1e-12 * max(start, end)
    assert min(start, end) - slack <= linear(start, end, one) <= max(start, end) + slack
    assert (linear(start, end, later) - linear(start, end, earlier)) * (
        1 if end >= start else -1
    ) >= -slack


@pytest.mark.parametrize(
    ("section", "key"),
    [
        (Optimizer, "schedule"),
        (Algorithm, "entropy_schedule"),
        (Algorithm, "epsilon_schedule"),
    ],
)
def test_every_schedule_that_a_file_may_name_exists(section: type, key: str) -> None:
    assert set(SCHEDULES) == set(typing.get_args(typing.get_type_hints(section)[key]))


@pytest.mark.parametrize(
    ("progress", "value"), [(0.0, 8.0), (0.1, 6.5), (0.4, 2.0), (0.7, 2.0), (1.0, 2.0)]
)
def test_a_rate_is_final_after_its_share_of_the_run(progress: float, value: float) -> None:
    settings = Optimizer(
        learning_rate=8.0, schedule="linear", final_learning_rate=2.0, schedule_fraction=0.4
    )
    assert learning_rate(settings, progress) == pytest.approx(value)


@pytest.mark.parametrize(
    ("progress", "part", "value"),
    [(0.0, 0.0, 1.0), (0.1, 0.0, 0.55), (0.2, 0.0, 0.1), (0.9, 0.0, 0.1), (0.2, 1.0, 1e-3)],
)
def test_exploration_is_annealed_and_may_differ_from_core_to_core(
    progress: float, part: float, value: float
) -> None:
    settings = Algorithm(
        epsilon=1.0,
        epsilon_schedule="linear",
        final_epsilon=0.1,
        epsilon_fraction=0.2,
        epsilon_spread=2.0,
    )
    assert exploration(settings, progress, 7.0, part) == pytest.approx(value)
    assert exploration(Algorithm(epsilon=0.3), progress, 7.0, part) == 0.3
    # By versions, whatever the run's progress is.
    counted = msgspec.structs.replace(settings, epsilon_versions=1000)
    assert exploration(counted, 0.9, 5000.0 * progress, part) == pytest.approx(value)


@pytest.mark.parametrize(
    ("children", "lanes", "minibatch", "rate"),
    [
        (0, 8, 64, 1),
        (1, 8, 64, 1),
        (4, 8, 64, 1),
        (5, 6.4, 51, 0.8**0.5 * 1.25),
        (8, 4, 32, 2**0.5),
        (16, 4, 32, 8**0.5),
    ],
)
def test_lanes_minibatch_and_rate_of_children(
    children: float, lanes: float, minibatch: int, rate: float
) -> None:
    experiment = Experiment.from_dict({"child": {"exchange": "chunk"}})
    assert following(experiment, children) == (lanes, minibatch, pytest.approx(rate))
    alone = experiment.with_settings({"child.adapt": []})
    assert following(alone, children) == (8, 64, 1)
    rates = experiment.with_settings({"child.adapt": ["learning_rate"]})
    assert following(rates, children) == (8, 64, pytest.approx(max(1, children / 4)))
