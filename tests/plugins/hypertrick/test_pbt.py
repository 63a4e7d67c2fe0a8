"""Population Based Training's rule and its copies, by values."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.plugins.hypertrick.pbt import PopulationBasedTraining, explore
from genkidama.plugins.hypertrick.rule import Mode, Verdict
from genkidama.plugins.hypertrick.space import Dimension, parse_space

SPACE = parse_space(
    {
        "optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True},
        "algorithm.batch_size": {"low": 2, "high": 100},
        "algorithm.entropy_coefficient": {"low": 0.0, "high": 0.02, "step": 0.005},
        "algorithm.gamma": [0.9, 0.99, 0.999],
    }
)


def test_one_of_the_worst_fifth_copies_one_of_the_best_by_values() -> None:
    rule = PopulationBasedTraining(workers=10, phases=3)
    first = [rule.decide(trial, 0, 10.0 - trial) for trial in range(10)]
    assert {each.verdict for each in first[:4]} == {Verdict.CONTINUE}  # four are too few
    # The fifth is the worst of five. It has no metric then, so the next is the fifth again.
    assert [(each.verdict, each.source, each.worse) for each in first[4:]] == [
        (Verdict.COPY, 0, 0)
    ] * 6
    assert rule.decide(4, 1, 9.5).verdict is Verdict.CONTINUE
    again = rule.decide(3, 1, 6.5)
    assert (again.verdict, again.order, again.worse) == (Verdict.COPY, 2, 0)
    assert rule.decide(3, 1, 99.0) is again
    # A good one goes on as itself, and after the last phase nothing is copied.
    assert rule.decide(2, 1, 20.0).verdict is Verdict.CONTINUE
    assert rule.decide(2, 2, -20.0) == msgspec.structs.replace(
        again,
        trial=2,
        phase=2,
        metric=-20.0,
        order=1,
        mode=Mode.NONE,
        verdict=Verdict.CONTINUE,
        source=None,
    )


def test_who_has_failed_or_ended_is_not_copied() -> None:
    rule = PopulationBasedTraining(workers=5, phases=2, truncation=0.5)
    rule.report(0, 0, 9.0)
    rule.report(0, 1, 9.0)  # it has ended, and stays the best
    rule.report(1, 0, 8.0)
    assert rule.decide(2, 0, math.nan).mode is Mode.FAILURE
    assert rule.decide(3, 0, 7.0).verdict is Verdict.CONTINUE  # the best one of three has ended
    assert rule.decide(4, 0, 6.0).source == 1  # of four they are two


def test_equal_metrics_copy_nothing() -> None:
    rule = PopulationBasedTraining(workers=9, phases=2)
    assert {rule.report(trial, 0, 500.0) for trial in range(9)} == {Verdict.CONTINUE}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(0, 2**32))
def test_a_copy_is_of_one_of_the_best_and_a_restored_rule_decides_the_same(
    metrics: list[int], seed: int
) -> None:
    def make() -> PopulationBasedTraining:
        return PopulationBasedTraining(workers=6, phases=10, seed=seed)

    rule, newest = make(), dict[int, float]()
    for number, metric in enumerate(metrics):
        restored = make()
        restored.restore(rule.decisions)
        decision = rule.decide(number % 6, number // 6, float(metric))
        assert restored.decide(number % 6, number // 6, float(metric)) == decision
        newest[number % 6] = float(metric)
        if decision.source is not None:
            assert len(newest) >= 5 and metric == min(newest.values())
            assert newest[decision.source] == max(newest.values()) > metric
            del newest[number % 6]


def test_a_copy_explores_by_values() -> None:
    settings: dict[str, Any] = {
        "optimizer.learning_rate": 1e-3,
        "algorithm.batch_size": 10,
        "algorithm.entropy_coefficient": 0.005,
        "algorithm.gamma": 0.99,
    }
    found = [explore(SPACE, settings, Random(seed)) for seed in range(50)]
    assert {each["optimizer.learning_rate"] for each in found} == {8e-4, 1.2e-3}
    assert {each["algorithm.batch_size"] for each in found} == {8, 12}
    assert {each["algorithm.entropy_coefficient"] for each in found} == {0.0, 0.01}  # a step
    assert {each["algorithm.gamma"] for each in found} == {0.9, 0.999}
    assert len({tuple(each.values()) for each in found}) == 16  # each by itself


@pytest.mark.parametrize(
    ("dimension", "value", "expected"),
    [
        (Dimension(low=1e-5, high=1e-2), 1e-2, {8e-3, 1e-2}),
        (Dimension(low=2, high=100), 2, {2, 3}),
        (Dimension(low=0, high=0.5), 0.5, {0.4, 0.5}),  # one whole bound makes no whole numbers
        (Dimension(low=0.0, high=1.0), 0.0, {0.0}),
        (Dimension(low=0.0, high=0.9, step=0.4), 0.8, {0.4, 0.8}),
        (Dimension(choices=[1, 2]), 2, {1, 2}),
    ],
)
def test_a_copy_stays_in_its_range(
    dimension: Dimension, value: float, expected: set[float]
) -> None:
    found = {explore({"x": dimension}, {"x": value}, Random(seed))["x"] for seed in range(20)}
    assert found == expected
