from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from genkidama.errors import ConfigurationError
from genkidama.learning.model import RunningMeanStd
from genkidama.protocol.vector import DTYPE, blend
from genkidama.server.rules.difference import Difference
from tests.server.rules import check_rule, contribution

OPTIONS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9, "nesterov": True, "staleness": "polynomial"},
    {"momentum": 0.5, "nesterov": True, "by": "speed"},
    {"momentum": 0.5, "buffer": 2, "children_power": -0.5},
    {"max_step": 0.5, "buffer": "children", "milliseconds": 300, "by": "steps"},
]
numbers = st.floats(-1e6, 1e6, width=32)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_keeps_the_promises(options: dict[str, Any]) -> None:
    check_rule(lambda alpha: Difference(alpha, **options))


def free(alpha: float, **options: Any) -> Difference:
    """One that cuts no difference."""
    return Difference(alpha, max_difference=0.0, **options)


def steps(rule: Difference, *changes: float, **more: Any) -> list[float]:
    """Where a parent of one number, which begins at 0, is after each difference."""
    parent = np.zeros(1, DTYPE)
    found = []
    for change in changes:
        rule.apply(parent, contribution(np.full(1, change, DTYPE), length=abs(change), **more))
        found.append(float(parent[0]))
    return found


@given(hnp.arrays(DTYPE, (2, 4), elements=numbers), st.floats(0.0, 1.0))
def test_from_the_newest_parent_the_rate_is_the_alpha_of_the_blend(
    pair: np.ndarray, alpha: float
) -> None:
    parent, child = pair
    blended = parent.copy()
    blend(blended, child, alpha)
    before = parent.copy()
    free(alpha).apply(parent, contribution(child - parent))
    # Roundings of the difference, of its multiple, and of the two sums.
    bound = 4 * np.finfo(DTYPE).eps * (np.abs(before) + np.abs(child)) + 1e-30
    assert (np.abs(parent - blended) <= bound).all()


@given(st.lists(numbers, min_size=1, max_size=6))
def test_at_rate_1_nothing_that_was_learned_is_taken_back(changes: list[float]) -> None:
    whole = steps(free(1.0), *changes)[-1]
    error = len(changes) * float(np.finfo(DTYPE).eps) * sum(map(abs, changes))
    assert whole == pytest.approx(sum(changes), abs=error + 1e-30)


def test_momentum_goes_on() -> None:
    # v is 1, 0.5, 0.25 + 1.
    rule = free(0.5, momentum=0.5)
    assert steps(rule, 1, 0, 1) == [0.5, 0.75, 1.375]
    assert rule.moved() == pytest.approx(0.625)


def test_nesterov_looks_ahead_as_torchs_sgd_does() -> None:
    # v is 1, 0.5, 0.25 − 3, and a step is 0.5 · (change + 0.5 · v).
    rule = free(0.5, momentum=0.5, nesterov=True)
    assert steps(rule, 1, 0, -3) == [0.75, 0.875, 0.875 - 0.5 * (3 + 0.5 * 2.75)]
    assert rule.moved() == pytest.approx(0.5 * (3 + 0.5 * 3.25))  # as if none took another back


def test_a_buffer_takes_the_mean() -> None:
    rule = free(1.0, buffer=2)
    assert steps(rule, 1, 3) == [0.0, 2.0]
    assert rule.moved() == 2.0


def test_the_rate_and_the_longest_step_know_the_children() -> None:
    assert steps(free(1.0, children_power=-0.5), 8, children=4) == [4.0]
    assert steps(free(1.0, max_step=3.0), 8, -1, children=4) == [1.5, 0.5]


@given(st.floats(-3e14, 3e14), st.sampled_from([0.0, 5.0]))
def test_a_difference_is_cut_to_the_length_that_the_weights_had_from_the_first_on(
    value: float, start: float
) -> None:
    parent = np.full(4, start, DTYPE)
    rule = Difference(1.0, max_difference=2.0)
    longest = 2.0 * max(2.0, 2.0 * start)  # √4, or the weights' own length
    for _ in range(3):
        before = parent.copy()
        rule.apply(parent, contribution(np.full(4, value, DTYPE)))
        moved = float(np.linalg.norm(parent - before))
        assert moved == pytest.approx(min(longest, 2.0 * abs(value)), rel=1e-3, abs=1e-5)


def test_statistics_are_the_childs_own() -> None:
    parent = np.array([1, 10], DTYPE)
    push = contribution(np.array([4, 20], DTYPE), statistics=1, children=2)
    free(0.5).apply(parent, push)
    assert parent.tolist() == [3.0, 15.0]


@settings(max_examples=20)
@given(st.integers(1, 8), st.integers(0, 7), st.integers(0, 2**32 - 1))
def test_statistics_of_the_parent_are_those_of_all_samples_whoever_saw_them(
    children: int, late: int, seed: int
) -> None:
    """Children that push in turns count the same, and so do their steps, of whatever age."""
    rng = np.random.default_rng(seed)
    rule, parent = free(0.5), np.zeros(4, DTYPE)
    bases = [parent.copy() for _ in range(late % children + 1)]
    own = rng.normal(0.0, 5.0, children)  # what each child sees differs
    batches: list[np.ndarray] = []
    for turn in range(400):
        batches.append(rng.normal(own[turn % children], 1.0 + turn % 2, 32))
        theirs = bases[0].copy()  # θ_P before the last pushes of others
        RunningMeanStd(theirs[1:]).add(batches[-1][:, None])
        rule.apply(parent, contribution(theirs, statistics=3, children=children))
        bases = [*bases[1:], parent.copy()]
    (mean,), (deviation,) = RunningMeanStd(parent[1:]).mean_and_deviation()
    everything = np.concatenate(batches)
    assert mean == pytest.approx(everything.mean(), abs=0.03 * everything.std())
    assert deviation == pytest.approx(everything.std(), rel=0.03)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"momentum": 1.0}, "parent.rule_options: momentum = 1.0: expected float < 1.0"),
        ({"nesterov": True}, "parent.rule_options: nesterov = True: needs a momentum above 0"),
    ],
)
def test_a_wrong_option_is_told_in_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Difference(0.5, **options)
    assert str(caught.value) == line


def test_a_pace_that_sums_noise_is_mentioned() -> None:
    assert Difference(0.5).diagnose(0.5, 4) == []
    (sentence,) = Difference(1.0).diagnose(0.5, 9)
    assert sentence.startswith(
        "alpha = 1: 9 children's differences add up to 3.0 times one child's pace; about 0.33 keeps"
    )
    assert Difference(1.0, children_power=-0.5).diagnose(0.5, 9) == []
    assert Difference(1.0, momentum=0.4).diagnose(0.5, 1) == []
    (sentence,) = Difference(1.0, momentum=0.6).diagnose(0.5, 1)
    assert "1 children's differences add up to 2.5 times" in sentence
    assert Difference(1.0, momentum=0.6).diagnose(0.5, 0) == [sentence]
    assert Difference(1.0, buffer="children").diagnose(0.5, 9) == []
    assert "nothing is learned" in Difference(0.0).diagnose(0.5, 0)[0]
