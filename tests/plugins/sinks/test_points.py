"""What lines of a history say to sinks."""

from __future__ import annotations

import json

from genkidama.plugins.sinks.points import Point, Points
from genkidama.server.events import Event, as_lines
from tests.helpers import small
from tests.stories import PLAN, exchange, join, measures, report


def told(*events: Event, **sections: object) -> list[Point]:
    points = Points(small(**sections))
    lines = as_lines(events).splitlines()
    return [point for line in lines if (point := points.of(json.loads(line))) is not None]


def test_the_values_are_those_of_the_history() -> None:
    found = told(
        join(0.0, "a"),
        join(0.0, "b"),
        exchange(1.0, 2.5, 100, 4, None, "a"),
        measures(1.0, "a", entropy=1.0, samples=300.0),
        exchange(2.0, 3.0, 150, 5, 21.0, "b"),
        measures(2.0, "b", entropy=0.2, samples=100.0, lag=2.0),
    )
    assert found == [
        Point(100, 1.0, {"run/episodes": 4, "run/updates": 2.5, "a/staleness": 0}),
        Point(100, 1.0, {"a/entropy": 1.0, "a/samples": 300.0, "learning/entropy": 1.0}),
        Point(
            150,
            2.0,
            {"run/episodes": 5, "run/updates": 3.0, "run/mean_return": 21.0, "b/staleness": 0},
        ),
        Point(
            150,
            2.0,
            {"b/entropy": 0.2, "b/samples": 100.0, "b/lag": 2.0, "learning/entropy": 0.8},
        ),
    ]


def test_a_trial_of_a_search_has_its_own_figures_and_steps() -> None:
    found = told(report(3.0, 7, 12.5), report(4.0, 8, None), search=PLAN)
    assert found == [Point(10, 3.0, {"trial-7/metric": 12.5})]


def test_other_lines_say_nothing() -> None:
    assert Points(small()).of({"event": "news", "time": 1.0}) is None
