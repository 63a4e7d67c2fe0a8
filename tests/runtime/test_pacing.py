"""Restarts, backoff, and repeated messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.runtime.pacing import Backoff, Once, Patience, RestartPolicy, Throttle

gaps = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=40)


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 5))
def test_a_worker_is_given_up_after_so_many_deaths_without_work(
    story: list[bool], most: int
) -> None:
    policy, row = RestartPolicy(most), 0
    for works in story:
        if works:
            policy.worked()
        else:
            assert policy.died(0.0) == 0.0
        row = 0 if works else row + 1
        assert (policy.deaths, policy.given_up) == (row, row >= most)


@given(gaps, st.floats(1.0, 200.0))
def test_deaths_count_for_a_window(gaps: list[float], window: float) -> None:
    policy = RestartPolicy(3, window=window)
    moments: list[float] = []
    for gap in gaps:
        moments.append((moments[-1] if moments else 0.0) + gap)
        policy.died(moments[-1])
        assert policy.deaths == 1 + sum(moments[-1] - each < window for each in moments[:-1])


@given(st.integers(1, 30), st.integers(0, 3), st.floats(0.01, 2.0))
def test_each_death_in_a_row_is_followed_by_a_longer_rest(
    deaths: int, at_once: int, rest: float
) -> None:
    policy = RestartPolicy(99, rest=rest, at_once=at_once)
    rests = [policy.died(0.0) for _ in range(deaths)]
    expected = [0.0] * at_once + [min(60.0, rest * 2.0**n) for n in range(deaths)]
    assert rests == expected[:deaths]
    policy.worked()
    assert policy.died(0.0) == expected[0]


def test_with_a_half_life_time_forgives_and_work_does_not() -> None:
    policy = RestartPolicy(99, rest=0.25, half_life=120.0)
    for _ in range(5):
        policy.died(0.0)
    policy.worked()
    assert policy.died(119.0) == 0.25 * 2.0**4
    assert policy.died(239.0) == 0.25 * 2.0**2  # 6 count as 3 now, and this is the fourth
    assert policy.died(1e9) == 0.0


@given(st.integers(0, 12), st.floats(0.0, 1.0, exclude_max=True))
def test_backoff_takes_a_random_part_of_a_bound_that_doubles(tries: int, chance: float) -> None:
    backoff = Backoff((0.5, 30.0), lambda: chance)
    first = backoff.wait()
    for _ in range(tries):
        bound = backoff.wait() / (0.1 + 0.9 * chance)
    if tries:
        assert bound == pytest.approx(min(30.0, 0.5 * 2.0**tries))
    assert 0.05 <= first < 0.5
    backoff.reset()
    assert backoff.wait() == first


def test_backoff_stays_small_for_early_tries() -> None:
    backoff = Backoff((0.5, 30.0), lambda: 1.0, early=5)
    waits = [backoff.wait() for _ in range(12)]
    assert waits == [0.5, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 4.0, 8.0, 16.0, 30.0]


def test_a_state_is_said_when_it_changes_and_no_state_is_nothing_to_say() -> None:
    once = Once()
    states = ("", "full", "full", "gone", "full", "", "full")
    assert [once.is_new(state) for state in states] == [
        False,
        True,
        False,
        True,
        True,
        False,
        True,
    ]


def test_the_first_of_a_kind_is_let_through_and_the_rest_summed_up() -> None:
    throttle = Throttle[str](1.0)
    assert throttle.add("finite", "a", 0.0)
    assert throttle.add("length", "b", 0.0)
    assert not throttle.add("finite", "c", 0.0)
    assert not throttle.add("finite", "d", 0.5)
    assert throttle.due(0.9) == []
    assert throttle.due(1.0) == [("d", 2)]
    assert not throttle.add("finite", "e", 1.5)  # an interval after a sum is quiet, too
    assert throttle.due(1.6, last=True) == [("e", 1)]
    assert throttle.due(9.0, last=True) == []
    assert throttle.add("finite", "f", 9.0)
    assert throttle.add("finite", "g", 10.0)  # a whole interval later
    assert not throttle.add("finite", "h", 10.999)


@given(st.lists(st.tuples(st.floats(0, 0.7), st.sampled_from("abc"))))
def test_all_messages_are_counted_in_few_lines(story: list[tuple[float, str]]) -> None:
    throttle, now = Throttle[str](1.0), 0.0
    told: list[tuple[str, int]] = []
    for pause, kind in story:
        now += pause
        told += throttle.due(now)
        if throttle.add(kind, kind, now):
            told.append((kind, 1))
    told += throttle.due(now, last=True)
    for kind in "abc":
        counts = [count for each, count in told if each == kind]
        assert sum(counts) == sum(each == kind for _, each in story)
        assert len(counts) <= now + 2


def test_an_answer_is_late_after_five_times_the_usual_wait_and_half_a_second() -> None:
    patience = Patience()
    assert patience.seconds == 0.5
    for seconds in (0.01, 0.02, 20.0):
        patience.waited(seconds)
    assert patience.seconds == 0.5  # a cut is not what is usual
    for _ in range(9):
        patience.waited(0.4)
    assert patience.seconds == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("usual", "hidden", "work", "expected"),
    [
        (None, 0.0, 0.1, 0.5),  # nothing is known of the link
        (0.001, 0.0, 0.1, 0.5),  # a quick one is waited for
        (0.017, 0.0, 0.1, 0.5),  # 17 of 117 ms: less than 15 %
        (0.018, 0.0, 0.1, 0.0),  # 18 of 118 ms
        (0.09, 0.1, 0.1, 0.5),  # it comes while something else is done
        (0.117, 0.1, 0.1, 0.585),
        (0.118, 0.1, 0.1, 0.1),
        (2.0, 0.1, 0.1, 0.1),
        (2.0, 0.1, 0.0, 10.0),  # no work was measured
        (2.0, 20.0, 0.1, 10.0),
    ],
)
def test_an_answer_that_would_hold_up_work_for_long_is_not_waited_for(
    usual: float | None, hidden: float, work: float, expected: float
) -> None:
    patience = Patience()
    for _ in range(0 if usual is None else 9):
        patience.waited(usual or 0.0)
    assert patience.beside(hidden, work) == pytest.approx(expected)


@given(st.lists(st.floats(0.0, 100.0), max_size=9), st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_an_answer_is_waited_for_where_the_link_costs_15_percent_at_most(
    waits: list[float], hidden: float, work: float
) -> None:
    patience = Patience()
    for seconds in waits:
        patience.waited(seconds)
    held_up = max(0.0, min(waits, default=0.0) - hidden)
    waited = patience.beside(hidden, work)
    assert waited <= patience.seconds
    if work and held_up / (work + held_up) > 0.15:
        assert waited <= hidden
    else:
        assert waited == patience.seconds
    patience.waited(0.0)  # the link is quick again
    assert patience.beside(hidden, work) == patience.seconds
