"""How a search stands, gathered from its events."""

from __future__ import annotations

from typing import Any

import pytest

from genkidama.events import Event, Resumed, Stopped, TrialEnded
from genkidama.tuning.standing import SearchStanding
from tests.helpers import small
from tests.stories import PLAN, assigned, exchange, join, leave, report


def searched(*events: Event, **plan: Any) -> SearchStanding:
    standing = SearchStanding(small(search=PLAN | plan))
    for event in events:
        standing.take(event)
    return standing


def test_a_search_tells_its_trials_its_best_and_how_long_it_takes() -> None:
    standing = searched(
        join(0.0),
        *(assigned(0.0, trial) for trial in range(3)),
        report(30.0, 0, 7.0),
        report(40.0, 1, None),
        report(60.0, 2, 9.0),
        TrialEnded(time=60.0, trial=1, state="failed", reason="no episode"),
    )
    assert standing.line(60.0) == (  # 4 reports of phase 0 are expected, and 3 of phase 1
        "CartPole-v1 43% · 3 of 4 trials · 1 failed, 2 running · "
        "best 9.0 (trial 2) · 1 node · 1:00 · about 1:20 left"
    )


@pytest.mark.parametrize(
    ("plan", "share"),
    [
        ({}, "14%"),
        ({"method": "random"}, "12%"),
        ({"phases": 4, "decisions": "geometric", "factor": 3}, "8%"),  # after phases 0 and 2
        ({"seconds": 60.0}, "50%"),
    ],
)
def test_the_share_is_that_of_the_reports_to_expect(plan: dict[str, Any], share: str) -> None:
    standing = searched(assigned(0.0, 0), report(30.0, 0, 7.0), **plan)
    assert f"{standing.share(30.0):.0%}" == share


@pytest.mark.parametrize(
    ("plan", "share"),
    [
        ({}, "22%"),  # 10 reports of 30·(1 + .36 + .36² + .36³) = 46
        ({"cohort": 5}, "26%"),  # of about 38
        ({"cohort": 5, "adaptive": True}, "22%"),
        ({"method": "random"}, "8%"),
    ],
)
def test_a_search_with_a_cohort_expects_fewer_reports(plan: dict[str, Any], share: str) -> None:
    ten = [report(float(second), 0, 1.0) for second in range(10)]
    sizes = {"trials": 30, "phases": 4, "eviction_rate": 0.64, **plan}
    assert f"{searched(assigned(0.0, 0), *ten, **sizes).share(10.0):.0%}" == share


def test_the_best_trial_is_the_best_that_completed() -> None:
    running = [assigned(0.0, 0), report(1.0, 0, 7.0), report(2.0, 0, 9.0)]
    assert searched(*running).best == 0  # nothing has completed
    completed = [
        assigned(3.0, 1),
        report(4.0, 1, 8.0),
        report(5.0, 1, 2.0),
        TrialEnded(time=5.0, trial=1, state="completed", reason="all phases are done"),
    ]
    assert searched(*running, *completed).best == 1
    failed = [
        assigned(6.0, 2),
        report(7.0, 2, 99.0),
        report(8.0, 2, None),
        TrialEnded(time=8.0, trial=2, state="failed", reason="no metric"),
    ]
    assert searched(*failed).best is None
    assert searched(*failed, *running).best == 0


def test_nodes_come_and_go_and_train_one_trial_after_another() -> None:
    first, second = exchange(1.0, steps=100, child="a"), exchange(3.0, steps=300, child="a")
    first.trial = second.trial = 5
    standing = searched(join(0.0, "a"), assigned(0.0, 5, "a"), first, second)
    node = standing.nodes["a"]
    assert (node.trial, node.phase, node.exchanged) == (5, 0, 3.0)
    assert standing.returns == {5: 21.0}
    assert standing.speed(3.0) == pytest.approx(100.0)
    standing.take(leave(4.0, "a"))
    assert standing.there() == 0


def test_a_search_that_goes_on_says_so_and_one_that_is_over_keeps_its_nodes() -> None:
    resumed = Resumed(time=0.0, run="r", software="1", trials=3, reports=4)
    standing = searched(resumed, join(0.0), assigned(0.0, 3), report(10.0, 3, 1.0))
    assert standing.reports == 5
    assert standing.left(10.0) == pytest.approx(20.0)  # 7 are expected, and one took 10 s
    standing.take(Stopped(time=11.0, reason="all trials are done"))
    standing.take(leave(12.0, "pi"))
    assert (standing.there(), standing.reason) == (1, "all trials are done")
    assert standing.left(12.0) is None
