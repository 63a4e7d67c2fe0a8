"""The line that shows how a run goes."""

from __future__ import annotations

import io
from typing import Any

import pytest

from genkidama.experiment import Experiment
from genkidama.local.progress import Progress, SearchProgress, bar, duration
from tests.helpers import small


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def exchange(
    time: float, update: float = 1.0, steps: int = 100, episodes: int = 4, mean: float | None = 21.0
) -> dict[str, Any]:
    return {
        "time": time,
        "event": "exchange",
        "update": update,
        "steps": steps,
        "episodes": episodes,
        "mean_return": mean,
    }


def join(time: float, child: str = "pi") -> dict[str, Any]:
    return {"time": time, "event": "join", "child": child}


def measures(
    time: float, child: str = "pi", backend: str = "hogwild", **figures: float
) -> dict[str, Any]:
    return {"time": time, "event": backend, "child": child, **figures}


def told(
    *events: dict[str, Any], backend: str = "hogwild", **stop: Any
) -> tuple[Progress, io.StringIO]:
    file = io.StringIO()
    progress = Progress(small(stop=stop, child={"backend": backend}), file)
    for event in events:
        progress(event)
    return progress, file


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, "░░░░"), (0.5, "██░░"), (1.0, "████"), (-1.0, "░░░░"), (7.0, "████")],
)
def test_a_bar_has_its_width(share: float, expected: str) -> None:
    assert bar(share, 4) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, "0:00"), (42.4, "0:42"), (59.6, "1:00"), (725.0, "12:05"), (11220.0, "3:07:00")],
)
def test_durations_read_like_a_clock(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_the_line_tells_what_is_reached() -> None:
    progress, _ = told(join(10.0), exchange(20.0), exchange(22.0, 5.0, 1100, 12, 33.25), updates=10)
    assert progress.line() == (
        "CartPole-v1 ██████████░░░░░░░░░░  50% · mean return    33.2 · update 5 · 12 episodes · 1,100 steps · "
        "500/s · 1 children · 0:12 · at most 0:15 left"
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
    leave = {"time": 3.0, "event": "leave", "child": "a", "reason": "stopped"}
    progress, _ = told(join(0.0, "a"), join(1.0, "b"), leave, exchange(4.0))
    assert "1 children" in progress.line()


@pytest.mark.parametrize("backend", ["hogwild", "ga3c", "my.package:Backend"])
def test_measures_stand_behind_the_speed_whichever_the_backend(backend: str) -> None:
    figures = measures(2.0, backend=backend, pps=2950.4, tps=590.0, lag=1.24, trainers=2.0)
    progress, _ = told(join(0.0), exchange(2.0), figures, backend=backend)
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
    leave = {"time": 3.0, "event": "leave", "child": "a", "reason": "stopped"}
    figures = [
        join(0.0, "a"),
        join(1.0, "b"),
        measures(2.0, "a", pps=900.0, lag=9.0),
        measures(2.0, "b", pps=100.0),
    ]
    progress, _ = told(*figures, leave, exchange(4.0))
    assert " · PPS 100 · 1 children · " in progress.line()
    for event in (
        join(5.0, "a"),
        measures(6.0, "nobody", pps=5.0),
    ):  # it returns, and is not what it was
        progress(event)
    assert " · PPS 100 · 2 children · " in progress.line()
    progress(join(7.0, "b"))  # a parent that was killed has seen nobody leave
    assert " · 0/s · 2 children · " in progress.line()


def test_measures_that_the_line_does_not_show_leave_it_as_it_is() -> None:
    plain, _ = told(join(0.0), exchange(2.0))
    other, _ = told(join(0.0), exchange(2.0), measures(2.0, predictors=2.0))
    foreign, _ = told(join(0.0), exchange(2.0), measures(2.0, backend="ga3c", pps=9.0))
    assert plain.line() == other.line() == foreign.line()


def test_the_start_and_refusals_are_lines_of_their_own() -> None:
    _, file = told(
        {"time": 0.0, "event": "start", "run": "first"},
        {"time": 1.0, "event": "resume", "run": "first", "version": 7},
        {"time": 2.0, "event": "refused", "child": "", "code": "silent", "reason": "no hello"},
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
    progress(exchange(1.0))
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


def searched(*events: dict[str, Any], **search: Any) -> str:
    """The line about a search of 30 trials of 4 phases after these events, each a second after the one before."""
    plan = {"trials": 30, "phases": 4, "phase_steps": 10, "eviction_rate": 0.64, **search}
    space = {"algorithm.gamma": [0.9, 0.99]}
    progress = SearchProgress(
        Experiment.from_dict({"search": {"space": space, **plan}}), io.StringIO()
    )
    for second, event in enumerate(events):
        progress({"time": float(second), "child": "pi", **event})
    return progress.line()


def trial(number: int, *metrics: float | None, state: str = "") -> list[dict[str, Any]]:
    """What the history says of a trial."""
    lines: list[dict[str, Any]] = [{"event": "trial", "trial": number}]
    lines += [{"event": "report", "trial": number, "metric": metric} for metric in metrics]
    return [*lines, *([{"event": "trial_end", "trial": number, "state": state}] if state else [])]


def test_the_best_trial_of_a_search_is_the_best_that_completed() -> None:
    running = trial(0, 7.0, 9.0)
    assert "best 9.0 (trial 0)" in searched(*running)  # nothing has completed
    assert "best 2.0 (trial 1)" in searched(*running, *trial(1, 8.0, 2.0, state="completed"))
    failed = trial(2, 5.0, None, state="failed")
    assert "best" not in searched(*failed)
    assert "best 9.0 (trial 0)" in searched(*failed, *running)


def test_a_search_with_a_cohort_expects_fewer_reports() -> None:
    """10 reports of 30·(1 + .36 + .36² + .36³) = 46 are 22 %. With a cohort of 5 about 38 are expected."""
    reports = trial(0, *(1.0,) * 10)
    assert " 22% " in searched(*reports)
    assert " 26% " in searched(*reports, cohort=5)
    assert " 22% " in searched(*reports, cohort=5, adaptive=True)
    assert "  8% " in searched(*reports, method="random")
