"""A status says what the events say, and stays small; viewers put it together from changes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.runs.status import Curve, Facts, RunStatus, Speed, fold, line
from genkidama.server.events import (
    Commanded,
    Evaluated,
    Event,
    Left,
    PushesRefused,
    Resumed,
    Started,
    Stopped,
    Warned,
)
from tests.helpers import small
from tests.stories import (
    BEGAN,
    as_json,
    began,
    join,
    leave,
    measured,
    measures,
    plain,
    pushed,
    told,
)


def test_a_run_as_its_events_tell_it() -> None:
    status = told(began("a", "b"), steps=1000)
    assert as_json(status.document(BEGAN + 1))["run"]["state"] == "training"
    status.take([pushed(1, "a"), pushed(2, "b", staleness=3), measured("b", 2.5, lag=0.4)])
    status.take([PushesRefused(time=BEGAN + 4, child="x", code="token", reason="none", count=3)])
    status.take([PushesRefused(time=BEGAN + 4, child="x", code="token", reason="none")])
    status.take([Warned(time=BEGAN + 4, reason="the disk is full"), pushed(30, "a", 9.0)])
    status.mark_sent()
    found = as_json(status.document(BEGAN + 11))
    assert found["schema"] == 1 and found["type"] == "status"
    run, learning = found["run"], found["learning"]
    assert (run["name"], run["software"], run["environment"]) == ("told", "1.2", "LunarLander-v3")
    assert (run["elapsed"], run["share"], run["state"]) == (10.0, 0.3, "training")
    assert run["left"] == pytest.approx(10 * 0.7 / 0.28, rel=0.2)
    assert run["notes"] == ["the disk is full"]
    assert (learning["version"], learning["episodes"], learning["steps"]) == (30, 30, 300)
    assert learning["mean_return"] == 29.5
    assert learning["curve"] == {
        "columns": ["seconds", "steps", "mean_return"],
        "rows": [[2.0, 20, 1.5], [9.0, 300, 29.5]],
    }
    assert learning["figures"] == {"lag": 0.4}
    assert learning["diagnostics"]["lag"]["rows"] == [[2.5, 0.4]]
    assert found["refusals"] == {"token": 4}
    a, b = found["children"]
    assert (a["updates"], a["steps"], a["exchanged"]) == (2, 280, BEGAN + 10)
    assert (b["updates"], b["steps"], b["staleness"], b["lag"]) == (1, 10, 3, 0.4)


def test_a_run_that_ends_keeps_its_children_and_its_last_return() -> None:
    status = told([*began("a"), pushed(1)], steps=10)
    status.take([Stopped(time=BEGAN + 3, reason="10 steps done")])
    status.take([Left(time=BEGAN + 4, child="a", reason="over")])
    status.take([_evaluated()])
    found = as_json(status.document(BEGAN + 900))
    assert (found["run"]["state"], found["run"]["reason"]) == ("over", "10 steps done")
    assert found["run"]["left"] is None
    # Neither an evaluation nor its readers make a run longer, or its speed lower.
    assert found["run"]["elapsed"] == 2.0 and found["learning"]["steps_per_second"] == 5.0
    resumed = Resumed(time=BEGAN + 999, run="told", software="1", seconds=2.0)
    status.take([resumed, *began("a")[1:], pushed(2, seconds=1001)])
    found = as_json(status.document(BEGAN + 1003))
    assert (found["run"]["started"], found["run"]["state"]) == (BEGAN, "training")
    assert found["children"][0]["state"] == "training"
    assert found["evaluation"]["mean"] == 200.0


def _evaluated() -> Evaluated:
    return Evaluated(
        time=BEGAN + 9,
        mean=200.0,
        std=1.0,
        minimum=9.0,
        quantiles={},
        solved=True,
        threshold=200.0,
        episodes=5,
        greedy=False,
        seed=0,
        checkpoint="best",
        mean_return=200.0,
    )


def test_a_parent_that_is_started_again_has_no_children_and_goes_on_counting() -> None:
    status = told([*began("a"), pushed(7)])
    status.take([Resumed(time=BEGAN + 50, run="told", software="1.3", seconds=8.0)])
    found = as_json(status.document(BEGAN + 60))
    assert found["run"]["state"] == "waiting" and found["run"]["software"] == "1.3"
    assert (found["children"][0]["state"], found["run"]["elapsed"]) == ("away", 8.0)


def test_what_all_changes_say_together_is_the_document() -> None:
    """A viewer who came early, one who came late, and one who asks at the end know the same."""
    chance = random.Random(5)
    names = [f"c{number}" for number in range(130)]
    status = told(began(*names[:5]))
    status.mark_sent()
    early = fold(None, as_json(status.document(BEGAN)))
    late = None
    for number in range(1, 1500):
        events: list[Event] = [pushed(number, chance.choice(names), number / 10)]
        if chance.random() < 0.3:
            events.append(measured(chance.choice(names), number / 10, lag=chance.random()))
        if chance.random() < 0.2:
            events = [*began(chance.choice(names))[1:], *events]
        if chance.random() < 0.2:
            events.append(Left(time=BEGAN + number, child=chance.choice(names), reason="off"))
        status.take(events)
        if number == 700:
            late = fold(None, as_json(status.document(BEGAN + number)))
        if chance.random() < 0.3 or number == 1499:
            message = as_json(status.change(BEGAN + number))
            early = fold(early, message)
            late = None if late is None else fold(late, message)
    whole = as_json(status.document(BEGAN + 1499))
    for seen in (early, late):
        assert seen is not None
        assert _sorted(seen) == _sorted(whole)
    assert len(whole["learning"]["curve"]["rows"]) > 100


def _sorted(document: dict[str, object]) -> dict[str, object]:
    children = document["children"]
    assert isinstance(children, list)
    plain = {**document, "children": sorted(children, key=lambda child: child["name"])}
    plain.pop("gone", None)
    return plain


def test_a_change_has_the_children_that_have_changed_and_no_others() -> None:
    status = told(began(*(f"c{number}" for number in range(1000))))
    status.change(BEGAN + 1)
    status.take([pushed(1, "c7"), pushed(2, "c9")])
    changed = status.change(BEGAN + 2, lambda name: Facts(address=f"of {name}", cores=4))
    assert {child.name for child in changed["children"]} == {"c7", "c9"}
    assert {child.address for child in changed["children"]} == {"of c7", "of c9"}
    assert status.change(BEGAN + 200)["children"] == []


def test_a_history_of_a_hundred_thousand_children_shows_the_newest() -> None:
    status = told(began(*(f"c{number}" for number in range(100_000))))
    shown = status.document(BEGAN + 1)["children"]
    assert [child.name for child in shown] == [f"c{number}" for number in range(95_904, 100_000)]
    assert len(as_json(status.document(BEGAN + 1))["children"]) == 4096


def test_figures_that_children_name_are_bounded() -> None:
    status = RunStatus(plain())
    status.take(began("a"))
    for number in range(200):
        status.take([measured("a", number, **{f"figure_{number}": 1.0})])
    assert len(status.change(BEGAN)["learning"]["diagnostics"]) == 64


def test_a_warning_stands_for_ten_minutes_and_stands_once() -> None:
    said = [
        Warned(time=BEGAN + seconds, reason=why) for seconds, why in ((1, "a"), (2, "b"), (90, "a"))
    ]
    status = told([*began("a"), *said])
    status.advice = ["alpha is odd"]

    def notes(seconds: float) -> Any:
        return status.document(BEGAN + seconds)["run"]["notes"]

    assert notes(100) == ["alpha is odd", "b", "a"]
    assert notes(603) == ["alpha is odd", "a"] and notes(691) == ["alpha is odd"]


# Rows of children.


def test_of_those_that_left_the_last_hundred_are_remembered() -> None:
    status = told([])
    for number in range(150):
        name = f"c{number}"
        status.take([*began(name)[1:], Left(time=BEGAN, child=name, reason="")])
    change = status.change(BEGAN)
    assert len(change["children"]) == len(status.children) == 100 and len(change["gone"]) == 50
    assert status.children["c149"].why == "left"
    status.take(began("c0")[1:])
    assert status.change(BEGAN)["gone"] == []


def test_a_child_that_returns_keeps_its_counts_and_loses_its_measures() -> None:
    status = told([*began("a"), pushed(1), pushed(2), measured("a", 3, lag=1.0)])
    status.take([Left(time=BEGAN + 3, child="a", reason="its link broke")])
    assert (status.children["a"].state, status.figures()) == ("away", {})
    status.take(began("a")[1:])
    child = status.children["a"]
    assert (child.updates, child.steps, child.state) == (2, 10, "training")
    assert status.figures() == {}


def test_a_speed_sinks_without_an_event() -> None:
    status = told(began("a"))
    for number in (1, 2, 3):
        status.take([pushed(number)])
    (row,) = status.change(BEGAN + 4)["children"]
    assert row.steps_per_second == 10.0
    (row,) = status.change(BEGAN + 40)["children"]
    assert row.steps_per_second == 0.0
    assert status.change(BEGAN + 41)["children"] == []


def test_what_a_child_did_before_a_restart_is_no_speed() -> None:
    status = told(began("a"))
    for number in (1, 2, 3):
        status.take([pushed(number)])
        status.children["a"].steps = 5_000_000 + 10 * number  # as the parent knows it
    (row,) = status.change(BEGAN + 4)["children"]
    assert row.steps_per_second == 10.0


def test_steps_are_those_of_the_child_that_pushed() -> None:
    status = told([*began("a", "b"), pushed(0, "a", 1), pushed(3, "a"), pushed(5, "b")])
    assert {name: row.steps for name, row in status.children.items()} == {"a": 30, "b": 20}


# Speeds and curves.


def test_a_parent_that_was_killed_makes_no_speed_negative() -> None:
    status = told([*began("a"), pushed(1, steps=500)])
    status.take([pushed(2, steps=400)])
    assert status.speed(BEGAN + 3) == 0.0


@given(st.integers(1, 1000), st.floats(0.001, 1.0))
def test_a_steady_speed_is_found_whatever_the_grain(steps: int, gap: float) -> None:
    speed = Speed()
    for turn in range(200):
        speed.add(turn * gap, turn * steps)
    assert speed.rate(199 * gap) == pytest.approx(steps / gap)
    assert speed.rate(199 * gap + 10.1) == 0.0


STEPS = st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 3)), max_size=200)


@given(steps=STEPS, most=st.sampled_from((2, 6, 12)))
def test_joining_what_was_sent_gives_the_curve(steps: list[tuple[float, int]], most: int) -> None:
    curve = Curve(("seconds", "value"), most)
    joined: list[Any] = []
    time = 0.0
    for index, (gap, sends) in enumerate(steps):
        time += gap
        curve.add(time, index)
        assert len(curve.rows) <= most
        for _ in range(sends):
            sent = curve.send()
            joined = sent["rows"] if sent.get("replace") else joined + sent["rows"]
            assert joined == curve.rows == curve.sent()["rows"]
    assert [row[0] for row in curve.rows] == sorted(row[0] for row in curve.rows)
    curve.finish()
    assert not steps or curve.rows[-1] == (round(time, 3), len(steps) - 1)


def test_a_million_points_are_few_and_the_last_one_counts_in_the_end() -> None:
    curve = Curve(("seconds", "value"), 400)
    for number in range(100_001):
        curve.add(number / 10, number)
    assert 100 < len(curve.rows) <= 400
    assert curve.rows[0] == (0.0, 0)
    curve.add(10_000.2, 7.1234567)
    curve.finish()
    assert curve.rows[-1] == (10_000.2, 7.12346)


# How much is done.


@pytest.mark.parametrize(
    ("stop", "share"),
    [
        ({"updates": 4}, 0.5),
        ({"episodes": 8}, 0.25),
        ({"steps": 100}, 0.2),
        ({"seconds": 1.0}, 1.0),
        ({"seconds": 8.0}, 0.25),
        ({"updates": 4, "episodes": 2}, 1.0),
        ({"mean_return": 200.0}, None),
    ],
)
def test_the_strictest_condition_says_how_much_is_done(
    stop: dict[str, Any], share: float | None
) -> None:
    assert told([*began("a"), pushed(2)], **stop).share(BEGAN + 3) == share


def test_a_run_that_has_reached_its_goal_is_all_done_and_one_that_was_stopped_is_not() -> None:
    for mean, share in ((195.0, 1.0), (100.0, 0.02)):
        status = told([*began("a"), pushed(2, mean_return=mean)], updates=100, mean_return=195.0)
        assert status.share(BEGAN + 3) == 0.02
        status.take([Stopped(time=BEGAN + 3, reason="so")])
        assert status.share(BEGAN + 3) == share


def test_what_was_done_before_a_restart_counts_as_done_and_not_in_the_pace() -> None:
    resumed = Resumed(time=BEGAN, run="r", software="1", version=7, seconds=90.0)
    status = told([resumed, *began("a")[1:]], updates=100)
    status.take([pushed(50, seconds=1)])
    status.take([pushed(60, seconds=10)])
    assert status.elapsed(BEGAN + 11) == 100.0
    assert status.left(BEGAN + 11) == pytest.approx(40.0)
    more = Commanded(time=BEGAN + 11, action="extend", by="owner", limits={"updates": 300})
    status.take([more])
    assert status.left(BEGAN + 11) == pytest.approx(240.0)
    # One that begins from nothing, as after a crash before the first checkpoint, has none before.
    status.take([Started(time=BEGAN + 20, run="r", software="1"), *began("a")[1:]])
    assert status.elapsed(BEGAN + 30) == 29.0


# Measures.


def test_rates_are_summed_and_all_else_is_averaged_over_what_the_children_said_last() -> None:
    status = told(
        [
            *began("a", "b", "c"),
            measured("a", 1, pps=7000.0, tps=7000.0, lag=7000.0),
            measured("a", 2, pps=1000.0, tps=4.25, lag=1.0),
            measured("b", 2, pps=500.5, lag=2.0),
            measured("nobody", 2, pps=5.0),
        ]
    )
    assert status.figures() == {"pps": 1500.5, "tps": 4.25, "lag": 1.5}
    beside = measured("parent", 2, loss=0.5)
    beside.backend = "learner"
    status.take([beside])
    assert status.figures() == {"pps": 1500.5, "tps": 4.25, "lag": 1.5, "loss": 0.5}


def test_in_a_mean_of_a_diagnostic_a_child_counts_as_much_as_it_learned_from() -> None:
    status = told(
        [
            *began("a", "b"),
            measured("a", 1, entropy=1.0, samples=300.0, episode_length=10.0, episodes_ended=9.0),
            measured("b", 1, entropy=0.2, samples=100.0, episode_length=110.0, episodes_ended=1.0),
            measured("b", 2, lag=3.0),  # nothing was measured, so the last ones stay
        ]
    )
    assert status.figures() == pytest.approx({"entropy": 0.8, "episode_length": 20.0, "lag": 3.0})


@pytest.mark.parametrize(
    ("of_a", "of_b"), [(0.0, 0.0), (-5.0, 5.0), (-5.0, -5.0), (1e308, 1e308), (1e200, 1.0)]
)
def test_weights_that_a_child_makes_up_end_nothing(of_a: float, of_b: float) -> None:
    status = told(
        [
            *began("a", "b"),
            measured("a", 1, episode_length=1e200, episodes_ended=of_a, lag=3.0),
            measured("b", 1, episode_length=30.0, episodes_ended=of_b, pps=0.0),
        ]
    )
    expected = {"lag": 3.0, "pps": 0.0}
    assert status.figures() == expected | ({"episode_length": 30.0} if of_b == 5.0 else {})


# In one line.


def test_the_line_tells_what_is_reached() -> None:
    status = told(began("a"), updates=100, mean_return=195.0)
    for number in (1, 2, 50):
        status.take([pushed(number, seconds=number / 5)])
    status.take([measured("a", 10, pps=1000.0, tps=4.25, lag=1.0, entropy=0.8)])
    assert line(as_json(status.snapshot(BEGAN + 11))) == (
        "LunarLander-v3 50% · mean return 49.5 (goal 195) · exchange 50 · 50 episodes · 500 steps"
        " · 50/s · PPS 1,000 · TPS 4.2 · lag 1.0 · entropy 0.8 · 1 child · 0:10 · at most 0:10 left"
    )


def test_without_a_limit_nobody_knows_how_much_is_done() -> None:
    status = told([*began("a"), pushed(1, mean_return=None)])
    assert line(as_json(status.snapshot(BEGAN + 2))) == (
        "LunarLander-v3 · exchange 1 · 1 episode · 10 steps · 0/s · 1 child · 0:01"
    )


def test_a_change_needs_a_document() -> None:
    with pytest.raises(ValueError, match="before the whole"):
        fold(None, as_json(told(began("a")).change(BEGAN)))


def test_the_settings_that_are_not_the_defaults_are_told_and_no_secret() -> None:
    experiment = Experiment.from_dict(
        {
            "environment": {"id": "CartPole-v1", "lanes": 8},
            "algorithm": {"gamma": 0.9, "batch_size": 512},
            "parent": {"rule": "experience", "tokens_file": "secret"},
        }
    )
    whole = RunStatus(experiment).snapshot(0.0)
    assert whole["settings"] == {
        "environment.lanes": 8,
        "algorithm.gamma": 0.9,
        "algorithm.batch_size": 512,
    }
    run = whole["run"]
    assert (run["alpha"], run["beta"]) == (None, None)  # nothing is blended
    assert run["cooperation"].startswith("children act, and one learner")
    blended = RunStatus(Experiment()).snapshot(0.0)["run"]
    assert (blended["alpha"], blended["beta"]) == (0.5, 0.5)
    shared = Experiment.from_dict(
        {
            "algorithm": {"name": "dqn"},
            "replay": {"steps": 9000, "url": "redis://:password@host"},
            "child": {"exchange": "free"},
        }
    )
    assert "password" not in str(RunStatus(shared).snapshot(0.0))


def test_children_whose_lanes_rest_are_among_the_notes() -> None:
    status = RunStatus(small())
    half = {"lanes": 4.0, "resting_lanes": 4.0}
    status.take([join(0.0, name) for name in ("a", "b", "c", "d")])
    status.take([measures(1.0, "a", throttled=1.0, **half), measures(1.0, "b", **half)])
    status.take([measures(1.0, "c", lanes=8.0, resting_lanes=0.0)])
    status.take([measures(1.0, "d", resting_lanes=1.0)])  # which says half of it
    assert status.document(1.0)["run"]["notes"] == [
        "a: throttled, so slower than they could be; cool them better",
        "a, b: throttled lately, 4 of 8 lanes",
        "d: throttled lately, 0 of 1 lanes",
    ]
    status.take([measures(2.0, "b", lanes=8.0, resting_lanes=0.0)])
    assert status.document(2.0)["run"]["notes"][1] == "a: throttled lately, 4 of 8 lanes"


def test_a_child_with_longer_exchanges_over_a_slow_link_is_among_the_notes() -> None:
    status = RunStatus(small())
    status.take([join(0.0, "a"), join(0.0, "b")])
    status.take([measures(1.0, "a", chunks=3.0), measures(1.0, "b", chunks=1.0)])
    assert status.document(1.0)["run"]["notes"] == ["a: a slow link, an exchange every 3 chunks"]
    status.take([measures(2.0, "a", loss=1.0)])  # which says nothing of it
    assert len(status.document(2.0)["run"]["notes"]) == 1
    status.take([measures(3.0, "a", chunks=1.0)])
    assert status.document(3.0)["run"]["notes"] == []


def test_the_energy_of_a_run_is_that_of_its_machines_while_they_are_there() -> None:
    status = RunStatus(small())
    status.take([join(0.0, "a"), join(0.0, "b")])
    assert status.watt_hours(5.0) is None
    status.take([measures(10.0, "a", watts=6.0, throttled=1.0), measures(10.0, "b", loss=1.0)])
    assert status.watt_hours(10.0) == pytest.approx(60.0 / 3600)
    assert status.watt_hours(30.0) == pytest.approx(180.0 / 3600)
    status.take([measures(20.0, "a", watts=3.0)])  # in the mean since it told them last
    assert status.watt_hours(20.0) == pytest.approx(90.0 / 3600)
    assert status.watt_hours(9999.0) == pytest.approx((90.0 + 3.0 * 120.0) / 3600)
    assert status.document(20.0)["run"]["notes"] == [
        "a: throttled, so slower than they could be; cool them better"
    ]
    status.take([leave(30.0, "a"), join(530.0, "a"), measures(540.0, "a", watts=1e30)])
    assert status.watt_hours(540.0) == pytest.approx((120.0 + 10_000.0 * 10.0) / 3600)
    assert "watts" not in status.figures() and "throttled" not in status.figures()
    status.take([Stopped(time=540.0, reason="over")])
    assert status.watt_hours(9999.0) == status.watt_hours(540.0)
