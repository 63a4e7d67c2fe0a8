"""The status of a search: who ran which trial, phase by phase, and how it went."""

from __future__ import annotations

from typing import Any

import pytest

from genkidama.plugins.hypertrick.status import SearchStatus
from genkidama.runs.status import RunStatus, line
from genkidama.server.events import Event, Joined, Left, PhaseReported, Resumed, Stopped, TrialEnded
from tests.helpers import small
from tests.stories import PLAN, as_json, assigned, exchange, join, measures, report


def searched(*events: Event, **plan: Any) -> RunStatus:
    status = RunStatus(small(search=PLAN | plan))
    status.take(events)
    return status


def search_of(status: RunStatus) -> SearchStatus:
    assert isinstance(status.search, SearchStatus)
    return status.search


def ended(seconds: float, trial: int, state: str) -> Event:
    return TrialEnded(time=seconds, trial=trial, state=state, reason="so")


def said(seconds: float, trial: int, phase: int, node: str, metric: float | None) -> Event:
    event = report(seconds, trial, metric)
    event.phase, event.node, event.end = phase, node, seconds
    return event


def test_a_paused_trial_has_no_node() -> None:
    status = searched(assigned(0, 1, "n"), method="hyperband")
    waits = said(4, 1, 0, "n", 5.0)
    assert isinstance(waits, PhaseReported)
    waits.verdict = "pause"
    status.take([waits])
    search = as_json(status.snapshot(10))["search"]
    assert (search["states"], search["method"]) == ({"paused": 1}, "Hyperband")
    assert search["trials"][0]["phases"] == [{"node": "n", "from": 0.0, "to": 4.0, "score": 5.0}]
    status.take([assigned(7, 1, "m"), said(9, 1, 1, "m", 8.0), ended(9, 1, "completed")])
    search = as_json(status.snapshot(10))["search"]
    assert [phase["from"] for phase in search["trials"][0]["phases"]] == [0.0, 7.0]


def test_trials_with_their_phases_nodes_and_scores() -> None:
    status = searched(Joined(time=0.0, child="n", version=0, parameters=1, trial=1))
    status.take([assigned(0, 1, "n"), assigned(0, 2, "m"), said(4, 1, 0, "n", 5.0)])
    status.take([said(5, 2, 0, "m", 1.0), ended(5, 2, "stopped")])
    status.take([assigned(7, 1, "m"), said(9, 1, 1, "m", 8.0), ended(9, 1, "completed")])
    status.take([assigned(9, 3, "n"), said(9, 4, 0, "", None)])
    found = as_json(status.snapshot(10))
    search = found["search"]
    assert search["method"] == "HyperTrick" and search["nodes"] == ["n", "m"]
    assert (search["count"], search["planned"]) == (3, 4)
    assert search["states"] == {"finished": 1, "stopped": 1, "running": 1}
    assert search["best"] == {"trial": 1, "score": 8.0, "settings": {}}
    one, two, three = search["trials"]
    assert [(each["state"], each["score"]) for each in (one, two, three)] == [
        ("finished", 8.0),
        ("stopped", 1.0),
        ("running", None),
    ]
    assert one["phases"] == [
        {"node": "n", "from": 0.0, "to": 4.0, "score": 5.0},
        {"node": "n", "from": 4.0, "to": 7.0, "score": None},
        {"node": "m", "from": 7.0, "to": 9.0, "score": 8.0},
    ]
    assert two["phases"] == [{"node": "m", "from": 0.0, "to": 5.0, "score": 1.0}]
    assert three["phases"] == [{"node": "n", "from": 9.0, "to": None, "score": None}]
    assert found["learning"]["mean_return"] == 8.0
    assert [row[2] for row in found["learning"]["curve"]["rows"]] == [5.0, 8.0]


def test_a_search_tells_its_trials_its_best_and_how_long_it_takes() -> None:
    status = searched(
        join(0.0),
        *(assigned(0.0, trial) for trial in range(3)),
        report(30.0, 0, 7.0),
        report(40.0, 1, None),
        report(60.0, 2, 9.0),
        ended(60.0, 1, "failed"),
    )
    # 4 reports of phase 0 are expected, and 3 of phase 1
    assert line(as_json(status.snapshot(60.0))) == (
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
    status = searched(assigned(0.0, 0), report(30.0, 0, 7.0), **plan)
    assert f"{status.share(30.0):.0%}" == share


def test_a_search_whose_trials_have_all_ended_is_all_done() -> None:
    for trials, share in ((1, True), (2, False)):
        ends = (assigned(0.0, 0), report(1.0, 0, 7.0), ended(2.0, 0, "stopped"))
        assert (searched(*ends, trials=trials).share(2.0) == 1.0) == share


def test_the_best_trial_is_the_best_that_completed() -> None:
    running = [assigned(0.0, 0), report(1.0, 0, 7.0), report(2.0, 0, 9.0)]
    assert search_of(searched(*running)).best() == 0  # nothing has completed
    completed = [assigned(3.0, 1), report(4.0, 1, 8.0), report(5.0, 1, 2.0)]
    completed.append(ended(5.0, 1, "completed"))
    assert search_of(searched(*running, *completed)).best() == 1
    assert search_of(searched(*running, *completed)).best({0}) == 0
    failed = [assigned(6.0, 2), report(7.0, 2, 99.0), report(8.0, 2, None), ended(8.0, 2, "failed")]
    assert search_of(searched(*failed)).best() is None
    assert search_of(searched(*failed[:2], failed[3])).best() is None  # its score is gone, too
    assert search_of(searched(*failed, *running)).best() == 0


def test_a_node_has_a_trial_and_a_trial_the_mean_return_of_its_last_exchange() -> None:
    pushed = exchange(1.0, steps=100, child="a")
    pushed.trial = 5
    status = searched(join(0.0, "a"), assigned(0.0, 5, "a"), pushed)
    assert status.children["a"].trial == 5
    assert search_of(status).document()["trials"][0]["mean_return"] == 21.0


def test_measures_are_of_the_trial_that_a_node_trains() -> None:
    status = searched(join(0.0, "a"), assigned(0.0, 5, "a"))
    old = measures(1.0, "a", entropy=1.0)
    old.trial = 5
    status.take([old])
    assert status.children["a"].figures == {"entropy": 1.0}
    status.take([assigned(2.0, 6, "a"), old])
    assert (status.children["a"].trial, status.children["a"].figures) == (6, {})


def test_a_resumed_search_says_so_and_one_that_is_over_keeps_its_nodes() -> None:
    resumed = Resumed(time=0.0, run="r", software="1", trials=3, reports=4)
    status = searched(resumed, join(0.0), assigned(0.0, 3), report(10.0, 3, 1.0))
    assert search_of(status).reports == 5
    assert status.left(10.0) == pytest.approx(20.0)  # 7 are expected, and one took 10 s
    status.take([Stopped(time=11.0, reason="all trials are done")])
    status.take([Left(time=12.0, child="pi", reason="stopped")])
    assert status.children["pi"].state == "training"
    assert status.reason == "all trials are done"
    assert status.left(12.0) is None


def test_a_searchs_clock_stands_while_nothing_searches_and_its_best_never_sinks() -> None:
    status = searched(join(0.0), assigned(0.0, 0), said(10.0, 0, 0, "pi", 9.0), ended(10.0, 0, "x"))
    status.take([assigned(10.0, 1), said(20.0, 1, 0, "pi", 5.0), ended(20.0, 1, "completed")])
    status.take([Stopped(time=21.0, reason="SIGTERM")])
    assert as_json(status.snapshot(4000.0))["run"]["elapsed"] == 21.0
    assert search_of(status).best_score == 5.0  # the best trial is one that completed
    status.take([Resumed(time=5000.0, run="r", software="1", seconds=20.0, reports=2)])
    status.take([join(5001.0), assigned(5002.0, 2), said(5007.0, 2, 0, "pi", 9.5)])
    status.take([ended(5007.0, 2, "completed")])
    found = as_json(status.snapshot(5010.0))
    assert (found["run"]["elapsed"], found["learning"]["mean_return"]) == (28.0, 9.5)
    assert found["search"]["trials"][2]["phases"][0] | {"node": ""} == {
        "node": "",
        "from": 20.0,
        "to": 25.0,
        "score": 9.5,
    }
    assert [row[2] for row in found["learning"]["curve"]["rows"]] == [9.0, 9.5]
