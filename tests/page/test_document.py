"""The document says what the events say, and stays small."""

from __future__ import annotations

import random
from typing import Any

import pytest

from genkidama.events import (
    Evaluated,
    Event,
    Left,
    Refused,
    Resumed,
    Stopped,
    Warned,
)
from genkidama.page.children import Facts
from genkidama.page.document import Document
from genkidama.page.folded import fold
from tests.page.stories import BEGAN, as_json, began, exchange, measures, plain, told


def test_a_run_as_its_events_tell_it() -> None:
    document = told(began("a", "b"), steps=1000)
    assert as_json(document.whole(BEGAN + 1))["run"]["state"] == "training"
    document.take([exchange(1, "a"), exchange(2, "b", staleness=3), measures("b", 2.5, lag=0.4)])
    document.take([Refused(time=BEGAN + 4, child="x", code="token", reason="none", count=3)])
    document.take([Refused(time=BEGAN + 4, child="x", code="token", reason="none")])
    document.take([Warned(time=BEGAN + 4, reason="the disk is full"), exchange(30, "a", 9.0)])
    document.catch_up()
    found = as_json(document.whole(BEGAN + 11))
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
    document = told([*began("a"), exchange(1)], steps=10)
    document.take([Stopped(time=BEGAN + 3, reason="10 steps done")])
    document.take([Left(time=BEGAN + 4, child="a", reason="over")])
    document.take([_evaluated()])
    found = as_json(document.whole(BEGAN + 4))
    assert (found["run"]["state"], found["run"]["reason"]) == ("over", "10 steps done")
    assert found["run"]["left"] is None
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
    document = told([*began("a"), exchange(7)])
    document.take([Resumed(time=BEGAN + 50, run="told", software="1.3", seconds=8.0)])
    found = as_json(document.whole(BEGAN + 60))
    assert found["run"]["state"] == "waiting" and found["run"]["software"] == "1.3"
    assert (found["children"][0]["state"], found["run"]["elapsed"]) == ("away", 8.0)


def test_what_all_changes_say_together_is_the_document() -> None:
    """A viewer who came early, one who came late, and one who asks at the end know the same."""
    chance = random.Random(5)
    names = [f"c{number}" for number in range(130)]
    document = told(began(*names[:5]))
    document.catch_up()
    early = fold(None, as_json(document.whole(BEGAN)))
    late = None
    for number in range(1, 1500):
        events: list[Event] = [exchange(number, chance.choice(names), number / 10)]
        if chance.random() < 0.3:
            events.append(measures(chance.choice(names), number / 10, lag=chance.random()))
        if chance.random() < 0.2:
            events = [*began(chance.choice(names))[1:], *events]
        if chance.random() < 0.2:
            events.append(Left(time=BEGAN + number, child=chance.choice(names), reason="off"))
        document.take(events)
        if number == 700:
            late = fold(None, as_json(document.whole(BEGAN + number)))
        if chance.random() < 0.3 or number == 1499:
            message = as_json(document.change(BEGAN + number))
            early = fold(early, message)
            late = None if late is None else fold(late, message)
    whole = as_json(document.whole(BEGAN + 1499))
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
    document = told(began(*(f"c{number}" for number in range(1000))))
    document.change(BEGAN + 1)
    document.take([exchange(1, "c7"), exchange(2, "c9")])
    changed = document.change(BEGAN + 2, lambda name: Facts(address=f"of {name}", cores=4))
    assert {child.name for child in changed["children"]} == {"c7", "c9"}
    assert {child.address for child in changed["children"]} == {"of c7", "of c9"}
    assert document.change(BEGAN + 200)["children"] == []


def test_figures_that_children_name_are_bounded() -> None:
    document = Document(plain())
    document.take(began("a"))
    for number in range(200):
        document.take([measures("a", number, **{f"figure_{number}": 1.0})])
    assert len(document.change(BEGAN)["learning"]["diagnostics"]) == 64


def test_a_warning_stands_for_ten_minutes_and_stands_once() -> None:
    said = [
        Warned(time=BEGAN + seconds, reason=why) for seconds, why in ((1, "a"), (2, "b"), (90, "a"))
    ]
    document = told([*began("a"), *said])
    document.advice = ["alpha is odd"]

    def notes(seconds: float) -> Any:
        return document.whole(BEGAN + seconds)["run"]["notes"]

    assert notes(100) == ["alpha is odd", "b", "a"]
    assert notes(603) == ["alpha is odd", "a"] and notes(691) == ["alpha is odd"]
