"""The line that shows how a run goes."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from genkidama.events import (
    Event,
    Exchange,
    Joined,
    Left,
    Measures,
    PhaseReported,
    Refused,
    Resumed,
    Started,
    TrialAssigned,
    TrialEnded,
    TrialFailed,
    Warned,
    as_lines,
)
from genkidama.local.progress import Progress, SearchProgress
from tests.helpers import small


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def exchange(
    time: float, update: float = 1.0, steps: int = 100, episodes: int = 4, mean: float | None = 21.0
) -> Exchange:
    return Exchange(
        time=time,
        child="pi",
        version=1,
        update=update,
        staleness=0,
        steps=steps,
        episodes=episodes,
        mean_return=mean,
    )


def join(time: float, child: str = "pi") -> Joined:
    return Joined(time=time, child=child, version=0, parameters=4)


def leave(time: float, child: str) -> Left:
    return Left(time=time, child=child, reason="stopped")


def measures(
    time: float, child: str = "pi", backend: str = "hogwild", **figures: float
) -> Measures:
    return Measures(time=time, backend=backend, child=child, figures=figures)


def lines(*events: Event | dict[str, Any]) -> list[dict[str, Any]]:
    """The events as a run's history gives them."""
    return [
        json.loads(as_lines([event])) if isinstance(event, Event) else event for event in events
    ]


def told(*events: Event | dict[str, Any], **stop: Any) -> tuple[Progress, io.StringIO]:
    file = io.StringIO()
    progress = Progress(small(stop=stop), file)
    for line in lines(*events):
        progress(line)
    return progress, file


def test_the_line_tells_what_is_reached() -> None:
    progress, _ = told(join(10.0), exchange(20.0), exchange(22.0, 5.0, 1100, 12, 33.25), updates=10)
    assert progress.line() == (
        "CartPole-v1 ██████████░░░░░░░░░░  50% · mean return    33.2 · update 5 · 12 episodes · "
        "1,100 steps · 500/s · 1 children · 0:12 · at most 0:15 left"
    )


def test_without_a_limit_there_is_no_bar() -> None:
    progress, _ = told(join(0.0), exchange(2.0, mean=None), mean_return=195.0)
    assert (
        progress.line()
        == "CartPole-v1 · update 1 · 4 episodes · 100 steps · 0/s · 1 children · 0:02"
    )


def test_the_goal_stands_beside_the_mean_return() -> None:
    progress, _ = told(join(0.0), exchange(2.0), mean_return=195.0)
    assert "mean return    21.0 of 195" in progress.line()


@pytest.mark.parametrize(
    ("stop", "share"),
    [
        ({"updates": 4}, " 50%"),
        ({"episodes": 8}, " 50%"),
        ({"steps": 400}, " 25%"),
        ({"seconds": 5.0}, "100%"),
        ({"updates": 4, "episodes": 5}, " 80%"),
    ],
)
def test_the_strictest_condition_fills_the_bar(stop: dict[str, Any], share: str) -> None:
    progress, _ = told(join(0.0), exchange(10.0, update=2.0), **stop)
    assert f" {share} · " in progress.line()


def test_the_speed_is_that_of_the_last_seconds() -> None:
    progress, _ = told(
        join(0.0), *(exchange(t, steps=10 * int(t)) for t in range(50)), exchange(50.0, steps=5490)
    )
    assert progress.steps_per_second == pytest.approx((5490 - 400) / 10)


def test_a_parent_that_was_killed_makes_no_speed_negative() -> None:
    progress, _ = told(join(0.0), exchange(1.0, steps=500), exchange(2.0, steps=400))
    assert progress.steps_per_second == 0.0


def test_a_resumed_run_estimates_from_what_it_does_itself() -> None:
    progress, _ = told(
        join(0.0), exchange(0.0, update=50.0), exchange(10.0, update=60.0), updates=100
    )
    assert progress.line().endswith("at most 0:40 left")


def test_children_come_and_go() -> None:
    progress, _ = told(join(0.0, "a"), join(1.0, "b"), leave(3.0, "a"), exchange(4.0))
    assert "1 children" in progress.line()


@pytest.mark.parametrize("backend", ["hogwild", "ga3c", "my.package:Backend"])
def test_measures_stand_behind_the_speed_whichever_the_backend(backend: str) -> None:
    figures = measures(2.0, backend=backend, pps=2950.4, tps=590.0, lag=1.24, trainers=2.0)
    progress, _ = told(join(0.0), exchange(2.0), figures)
    assert " · 0/s · PPS 2,950 · TPS 590 · lag 1.2 · 1 children · " in progress.line()


def test_rates_are_summed_and_the_lag_is_averaged_over_what_the_children_said_last() -> None:
    progress, _ = told(
        *(join(0.0, child) for child in "abc"),
        measures(1.0, "a", pps=7000.0, tps=7000.0, lag=7000.0),
        measures(2.0, "a", pps=1000.0, tps=4.25, lag=1.0),
        measures(2.0, "b", pps=500.5, lag=2.0),
        exchange(4.0),
    )
    assert (
        " · PPS 1,500 · TPS 4.2 · lag 1.5 · 3 children · " in progress.line()
    )  # c has said nothing


def test_the_measures_of_a_child_that_leaves_go_with_it() -> None:
    figures = [
        join(0.0, "a"),
        join(1.0, "b"),
        measures(2.0, "a", pps=900.0, lag=9.0),
        measures(2.0, "b", pps=100.0),
    ]
    progress, _ = told(*figures, leave(3.0, "a"), exchange(4.0))
    assert " · PPS 100 · 1 children · " in progress.line()
    progress.take(join(5.0, "a"))  # it returns, and has measured nothing yet
    progress.take(measures(6.0, "nobody", pps=5.0))
    assert " · PPS 100 · 2 children · " in progress.line()
    progress.take(join(7.0, "b"))  # a parent that was killed has seen nobody leave
    assert " · 0/s · 2 children · " in progress.line()


def test_measures_that_the_line_does_not_show_leave_it_as_it_is() -> None:
    plain, _ = told(join(0.0), exchange(2.0))
    other, _ = told(join(0.0), exchange(2.0), measures(2.0, predictors=2.0))
    assert plain.line() == other.line()


def test_measures_as_older_versions_wrote_them_are_shown_too() -> None:
    old = {"time": 2.0, "event": "ga3c", "child": "pi", "pps": 2950.4}
    progress, _ = told(join(0.0), exchange(2.0), old)
    assert " · PPS 2,950 · " in progress.line()


def test_the_start_and_refusals_are_lines_of_their_own() -> None:
    _, file = told(
        Started(time=0.0, run="first", software="1"),
        Resumed(time=1.0, run="first", software="1", version=7),
        Refused(time=2.0, child="", code="silent", reason="no hello"),
        {"time": 3.0, "event": "something new"},
    )
    assert file.getvalue().splitlines() == [
        "training CartPole-v1 with a3c: run first",
        "training CartPole-v1 with a3c: run first goes on from version 7",
        "refused a connection: no hello",
    ]


def test_in_a_log_lines_are_rare_and_the_last_one_is_there() -> None:
    progress, file = told(
        join(0.0), *(exchange(float(t), update=t) for t in range(1, 50)), updates=100
    )
    progress.close()
    lines = file.getvalue().splitlines()
    assert len(lines) == 2
    assert "update 49" in lines[-1]


def test_on_a_terminal_the_line_is_written_over_and_over() -> None:
    file = Terminal()
    progress = Progress(small(), file)
    progress.take(exchange(1.0))
    progress.say("by the way")
    progress.close()
    first, rest = file.getvalue().split("\r\033[K")[1:3]
    assert first.startswith("CartPole-v1 · ") and not first.endswith("\n")
    assert rest == "by the way\n" or rest == ""
    assert file.getvalue().endswith("\n")


def test_a_run_without_an_exchange_leaves_nothing() -> None:
    progress, file = told(join(0.0))
    progress.close()
    assert file.getvalue() == ""


# A search.

PLAN: dict[str, Any] = {
    "trials": 4,
    "phases": 2,
    "phase_steps": 10,
    "eviction_rate": 0.25,
    "space": {"optimizer.learning_rate": [0.1, 0.2]},
}


def assigned(time: float, trial: int) -> TrialAssigned:
    return TrialAssigned(time=time, trial=trial, child="pi", phase=0, params={})


def report(time: float, trial: int, metric: float | None) -> PhaseReported:
    return PhaseReported(
        time=time,
        trial=trial,
        phase=0,
        node="pi",
        start=0.0,
        end=1.0,
        metric=metric,
        order=1,
        worse=0,
        mode="collect",
        verdict="continue",
        steps=10,
        episodes=1,
        report=0,
    )


def searched(*events: Event, **plan: Any) -> tuple[SearchProgress, io.StringIO]:
    file = io.StringIO()
    progress = SearchProgress(small(search=PLAN | plan), file)
    for line in lines(*events):
        progress(line)
    return progress, file


def test_a_search_tells_its_trials_its_best_and_how_long_it_takes() -> None:
    progress, _ = searched(
        join(0.0),
        *(assigned(0.0, trial) for trial in range(3)),
        report(30.0, 0, 7.0),
        report(40.0, 1, None),
        report(60.0, 2, 9.0),
        TrialEnded(time=60.0, trial=1, state="failed", reason="no episode"),
    )
    assert progress.line() == (  # 4 reports of phase 0 are expected, and 3 of phase 1
        "CartPole-v1 █████████░░░░░░░░░░░  43% · 3 of 4 trials · 1 failed, 2 running · "
        "best 9.0 (trial 2) · 1 nodes · 1:00 · about 1:20 left"
    )


@pytest.mark.parametrize(
    ("plan", "share"),
    [
        ({}, " 14%"),
        ({"method": "random"}, " 12%"),
        ({"phases": 4, "decisions": "geometric", "factor": 3}, "  8%"),  # after phases 0 and 2
        ({"seconds": 60.0}, " 50%"),
    ],
)
def test_the_share_is_that_of_the_reports_to_expect(plan: dict[str, Any], share: str) -> None:
    progress, _ = searched(assigned(0.0, 0), report(30.0, 0, 7.0), **plan)
    assert f" {share} · " in progress.line()


def test_what_a_person_should_know_of_a_search_is_a_line_of_its_own() -> None:
    _, file = searched(
        Started(time=0.0, run="first", software="1"),
        Resumed(time=1.0, run="first", software="1", trials=3, reports=2),
        Refused(time=2.0, child="pi", code="order", reason="too early"),
        Warned(time=3.0, reason="the disk is full"),
        TrialFailed(time=4.0, trial=1, child="pi", reason="no memory"),
    )
    said = file.getvalue().splitlines()
    assert [line for line in said if not line.startswith("CartPole-v1 ")] == [
        "searching CartPole-v1 with hypertrick: run first",
        "searching CartPole-v1 with hypertrick: run first goes on after 2 reports",
        "refused pi: too early",
        "warning: the disk is full",
        "trial 1 failed on pi: no memory",
    ]


def test_a_search_without_a_trial_leaves_nothing() -> None:
    progress, file = searched(join(0.0))
    before = file.getvalue()
    progress.close()
    assert file.getvalue() == before


def best(*events: Event) -> str:
    """What the line says of the best trial."""
    found = [part for part in searched(*events)[0].line().split(" · ") if part.startswith("best")]
    return "".join(found)


def test_the_best_trial_of_a_search_is_the_best_that_completed() -> None:
    running = [assigned(0.0, 0), report(1.0, 0, 7.0), report(2.0, 0, 9.0)]
    assert best(*running) == "best 9.0 (trial 0)"  # nothing has completed
    completed = [
        assigned(3.0, 1),
        report(4.0, 1, 8.0),
        report(5.0, 1, 2.0),
        TrialEnded(time=5.0, trial=1, state="completed", reason="all phases are done"),
    ]
    assert best(*running, *completed) == "best 2.0 (trial 1)"
    failed = [
        assigned(6.0, 2),
        report(7.0, 2, 99.0),
        report(8.0, 2, None),
        TrialEnded(time=8.0, trial=2, state="failed", reason="no metric"),
    ]
    assert best(*failed) == ""
    assert best(*failed, *running) == "best 9.0 (trial 0)"


@pytest.mark.parametrize(
    ("plan", "share"),
    [
        ({}, " 22%"),  # 10 reports of 30·(1 + .36 + .36² + .36³) = 46
        ({"cohort": 5}, " 26%"),  # of about 38
        ({"cohort": 5, "adaptive": True}, " 22%"),
        ({"method": "random"}, "  8%"),
    ],
)
def test_a_search_with_a_cohort_expects_fewer_reports(plan: dict[str, Any], share: str) -> None:
    ten = [report(float(second), 0, 1.0) for second in range(10)]
    sizes = {"trials": 30, "phases": 4, "eviction_rate": 0.64, **plan}
    progress, _ = searched(assigned(0.0, 0), *ten, **sizes)
    assert f" {share} · " in progress.line()
