"""How a plain run stands, gathered from its events."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.events import Event, Resumed, Started, Stopped
from genkidama.standing import Curve, Pace, Standing
from tests.helpers import small
from tests.stories import exchange, join, leave, measures


def told(*events: Event, **stop: Any) -> Standing:
    standing = Standing(small(stop=stop))
    for event in events:
        standing.take(event)
    return standing


def test_the_line_tells_what_is_reached() -> None:
    standing = told(join(10.0), exchange(20.0), exchange(22.0, 5.0, 1100, 12, 33.25), updates=10)
    assert standing.line(22.0) == (
        "CartPole-v1 50% · mean return 33.2 · update 5 · 12 episodes · 1,100 steps · 500/s · "
        "1 child · 0:12 · at most 0:15 left"
    )


def test_without_a_limit_nobody_knows_how_much_is_done() -> None:
    standing = told(join(0.0), exchange(2.0, mean=None), mean_return=195.0)
    assert (
        standing.line(2.0)
        == "CartPole-v1 · update 1 · 4 episodes · 100 steps · 0/s · 1 child · 0:02"
    )
    assert (standing.share(2.0), standing.left(2.0)) == (None, None)


def test_the_goal_stands_beside_the_mean_return() -> None:
    standing = told(join(0.0), exchange(2.0), mean_return=195.0)
    assert " · mean return 21.0 of 195 · " in standing.line(2.0)


@pytest.mark.parametrize(
    ("stop", "share"),
    [
        ({"updates": 4}, 0.5),
        ({"episodes": 8}, 0.5),
        ({"steps": 400}, 0.25),
        ({"seconds": 5.0}, 1.0),
        ({"seconds": 40.0}, 0.25),
        ({"updates": 4, "episodes": 5}, 0.8),
    ],
)
def test_the_strictest_condition_says_how_much_is_done(stop: dict[str, Any], share: float) -> None:
    assert told(join(0.0), exchange(10.0, update=2.0), **stop).share(10.0) == share


def test_the_speed_is_that_of_the_last_seconds() -> None:
    events = [exchange(float(t), steps=10 * t) for t in range(50)]
    standing = told(join(0.0), *events, exchange(50.0, steps=5490))
    assert standing.speed(50.0) == pytest.approx((5490 - 400) / 10)
    assert standing.speed(61.0) == 0.0  # nothing has come for longer than the window


def test_a_parent_that_was_killed_makes_no_speed_negative() -> None:
    standing = told(join(0.0), exchange(1.0, steps=500), exchange(2.0, steps=400))
    assert standing.speed(2.0) == 0.0


def test_what_was_done_before_a_resumption_counts_as_done_and_says_nothing_of_the_pace() -> None:
    resumed = Resumed(time=0.0, run="r", software="1", version=7, seconds=90.0)
    standing = told(
        resumed, join(0.0), exchange(0.0, update=50.0), exchange(10.0, update=60.0), updates=100
    )
    assert standing.line(10.0).endswith("1 child · 1:40 · at most 0:40 left")
    seconds = told(resumed, join(0.0), exchange(0.0), exchange(10.0), seconds=200.0)
    assert seconds.share(10.0) == 0.5  # 90 s before, 10 s since
    assert seconds.left(10.0) == pytest.approx(100.0)


def test_children_come_and_go_and_a_run_that_is_over_keeps_its_own() -> None:
    standing = told(join(0.0, "a"), join(1.0, "b"), leave(3.0, "a"))
    assert standing.there() == 1
    assert standing.members["a"].away == "stopped"
    over = Stopped(time=4.0, reason="100 updates done")
    for event in (over, leave(4.1, "b")):
        standing.take(event)
    assert (standing.there(), standing.reason) == (1, "100 updates done")
    standing.take(Resumed(time=9.0, run="r", software="1", version=7))
    assert (standing.there(), standing.reason) == (0, "")


def test_steps_are_those_of_the_child_that_pushed() -> None:
    standing = told(
        join(0.0, "a"),
        join(0.0, "b"),
        exchange(0.0, steps=0, child="a"),
        exchange(1.0, steps=100, child="a"),
        exchange(1.0, steps=130, child="b"),
        exchange(2.0, steps=200, child="a"),
    )
    assert {name: member.steps for name, member in standing.members.items()} == {"a": 170, "b": 30}
    assert standing.members["a"].pace.rate(2.0) == pytest.approx(85.0)


def test_rates_are_summed_and_all_else_is_averaged_over_what_the_children_said_last() -> None:
    standing = told(
        *(join(0.0, child) for child in "abc"),
        measures(1.0, "a", pps=7000.0, tps=7000.0, lag=7000.0),
        measures(2.0, "a", pps=1000.0, tps=4.25, lag=1.0),
        measures(2.0, "b", pps=500.5, lag=2.0),
        exchange(4.0),
    )
    assert standing.figures() == {"pps": 1500.5, "tps": 4.25, "lag": 1.5}
    assert " · PPS 1,500 · TPS 4.2 · lag 1.5 · 3 children · " in standing.line(4.0)


def test_in_a_mean_of_a_diagnostic_a_child_counts_as_much_as_it_learned_from() -> None:
    standing = told(
        *(join(0.0, child) for child in "ab"),
        measures(1.0, "a", entropy=1.0, samples=300.0, episode_length=10.0, episodes_ended=9.0),
        measures(1.0, "b", entropy=0.2, samples=100.0, episode_length=110.0, episodes_ended=1.0),
        measures(2.0, "b", lag=3.0),  # nothing was measured, so the last ones stay
        exchange(4.0),
    )
    assert standing.figures() == pytest.approx({"entropy": 0.8, "episode_length": 20.0, "lag": 3.0})
    assert " · lag 3.0 · entropy 0.8 · 2 children · " in standing.line(4.0)


def test_the_measures_of_a_child_that_leaves_go_with_it() -> None:
    standing = told(
        join(0.0, "a"), join(1.0, "b"), measures(2.0, "a", pps=900.0), measures(2.0, "b", pps=100.0)
    )
    standing.take(leave(3.0, "a"))
    assert standing.figures() == {"pps": 100.0}
    standing.take(join(5.0, "a"))  # it returns, and has measured nothing yet
    standing.take(measures(6.0, "nobody", pps=5.0))
    assert standing.figures() == {"pps": 100.0}
    standing.take(measures(6.0, "parent", "learner", loss=0.5))  # the one beside the parent
    assert standing.figures() == {"loss": 0.5, "pps": 100.0}


def test_a_start_names_the_run() -> None:
    assert told(Started(time=0.0, run="first", software="1")).run == "first"


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(-1e6, 1e6)), min_size=1, max_size=2000),
)
def test_a_curve_keeps_its_ends_and_few_points(steps: list[tuple[float, float]]) -> None:
    curve = Curve()
    now = 0.0
    for gap, value in steps:
        now += gap
        curve.add(now, value)
    assert len(curve.points) <= 400
    assert curve.points[0] == (steps[0][0], steps[0][1])
    assert curve.points[-1] == (now, steps[-1][1])
    assert [time for time, _ in curve.points] == sorted(time for time, _ in curve.points)


def test_many_points_are_thinned_out_evenly() -> None:
    curve = Curve()
    for moment in range(10_000):
        curve.add(float(moment), 2.0 * moment)
    assert 100 <= len(curve.points) <= 400
    assert curve.points[0] == (0.0, 0.0) and curve.points[-1] == (9999.0, 19998.0)
    gaps = [later[0] - sooner[0] for sooner, later in pairwise(curve.points)]
    assert max(gaps[:-1]) <= 10_000 / 50


@given(st.integers(1, 1000), st.floats(0.001, 1.0))
def test_a_steady_pace_is_found_whatever_the_grain(speed: int, gap: float) -> None:
    pace = Pace()
    for turn in range(200):
        pace.add(turn * gap, turn * speed)
    assert pace.rate(199 * gap) == pytest.approx(speed / gap)
