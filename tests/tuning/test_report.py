from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import TrialState, create_trial
from scipy.stats import spearmanr

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.hypertrick.equations import completion_rate, minimum_completion_rate
from genkidama.tuning import importance, report
from genkidama.tuning.findings import Findings, Span, order_bias, read
from tests.tuning.studies import SPACE, distribution, make_study, url_of


@pytest.fixture(autouse=True)
def small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the forests say is tested elsewhere."""
    monkeypatch.setattr(importance, "_TREES", 3)


def phase(
    number: int,
    node: str,
    start: float,
    end: float,
    metric: float | None,
    mode: str = "collection",
    **more: Any,
) -> dict[str, Any]:
    return {
        "phase": number,
        "node": node,
        "start": start,
        "end": end,
        "metric": metric,
        "mode": mode,
        "verdict": "continue",
        **more,
    }


def written(*trials: tuple[TrialState, list[dict[str, Any]]], **settings: Any) -> Findings:
    """Findings of a study that was written by hand, of two phases and r = 1/4 unless told otherwise."""
    study = make_study(
        phases=2, until=-1.0, space={"x.y": {"low": 0.0, "high": 1.0}}, settings=settings
    )
    for state, phases in trials:
        values = {p["phase"]: math.nan if p["metric"] is None else p["metric"] for p in phases}
        study.add_trial(
            create_trial(
                state=state,
                value=phases[-1]["metric"] if state is TrialState.COMPLETE else None,
                params={"x.y": 0.5},
                distributions={"x.y": distribution({"low": 0.0, "high": 1.0})},
                intermediate_values=values,
                user_attrs={"phases": phases},
            )
        )
    return read(study)


COMPLETE, PRUNED, FAIL, RUNNING = (
    TrialState.COMPLETE,
    TrialState.PRUNED,
    TrialState.FAIL,
    TrialState.RUNNING,
)


def by_hand() -> Findings:
    return written(
        (
            COMPLETE,
            [phase(0, "a", 0, 10, 1.0, report=1), phase(1, "a", 10, 20, 4.0, "none", report=3)],
        ),
        (PRUNED, [phase(0, "b", 5, 10, 0.5, "selection", verdict="stop", report=2)]),
        (FAIL, [phase(0, "b", 12, 14, None, "failure", verdict="stop", report=4)]),
        (RUNNING, [phase(0, "b", 14, 24, 5.0, "selection", report=5)]),
        workers=6,
    )


# What follows from a study.


def test_the_values_of_a_search_written_by_hand() -> None:
    findings = by_hand()
    assert findings.search_time == 24
    assert {
        node: [(span.trial, span.ending) for span in spans]
        for node, spans in findings.timeline.items()
    } == {
        "a": [(0, ""), (0, "complete")],
        "b": [(1, "stopped"), (2, "failed"), (3, "")],
    }
    assert findings.occupancy == pytest.approx((20 + 5 + 2 + 10) / (24 + 19))
    assert findings.completion_rate == pytest.approx(
        3 / 6
    )  # the failed phase does not count as run
    assert [(step.time, step.score, step.trial) for step in findings.improvements] == [
        (10, 1.0, 0),
        (20, 4.0, 0),
        (24, 5.0, 3),
    ]
    assert [trial.number for trial in findings.ranking] == [3, 0, 1]
    assert findings.best is not None and findings.best.number == 0


def test_occupancy_counts_overlapping_phases_once() -> None:
    findings = written(
        (COMPLETE, [phase(0, "a", 0, 10, 1.0), phase(1, "a", 5, 12, 2.0)]),
        (RUNNING, [phase(0, "a", 6, 8, 2.0)]),
    )
    assert findings.occupancy == 1.0


def test_everything_that_a_real_search_wrote_is_read() -> None:
    study = make_study(until=700)
    findings = read(study)
    states = {"complete": COMPLETE, "stopped": PRUNED, "failed": FAIL, "running": RUNNING}
    for trial, frozen in zip(findings.trials, study.trials, strict=True):
        assert (trial.number, trial.params, states[trial.state]) == (
            frozen.number,
            frozen.params,
            frozen.state,
        )
        assert [p.phase for p in trial.phases] == list(frozen.intermediate_values)
        assert str([p.score for p in trial.phases]) == str(
            [float(v) for v in frozen.intermediate_values.values()]
        )
        if trial.state == "complete":
            assert trial.score == frozen.value
        assert math.isnan(trial.score) == (trial.state == "failed" or not trial.phases)
    assert {trial.state for trial in findings.trials} == {*states}
    assert findings.best is not None and findings.best.number == study.best_trial.number
    assert list(findings.space) == list(SPACE) and findings.settings.workers == 24


def test_a_metric_that_is_infinite_counts_as_no_number() -> None:
    findings = written((COMPLETE, [phase(0, "a", 0, 1, 2.0), phase(1, "a", 1, 2, math.inf)]))
    assert math.isnan(findings.trials[0].score) and findings.best is None


@given(st.floats(0.01, 0.99), st.integers(1, 30))
def test_the_expected_rates_are_the_papers_if_every_phase_decides(rate: float, phases: int) -> None:
    findings = by_hand()
    settings = type(findings.settings)(
        method="hypertrick",
        workers=9,
        phases=phases,
        eviction_rate=rate,
        decide_after=list(range(phases - 1)),
        space={},
    )
    findings = Findings("x", settings, {}, ())
    assert findings.expected_completion_rate == pytest.approx(completion_rate(rate, phases))
    assert findings.minimum_completion_rate == pytest.approx(minimum_completion_rate(rate, phases))


def test_the_expected_rate_with_fewer_decisions() -> None:
    findings = read(make_study(phases=4, until=-1.0, settings={"decide_after": [1]}))
    assert findings.expected_completion_rate == pytest.approx((1 + 1 + 0.75 + 0.75) / 4)


# The order bias.


def test_order_bias_by_hand() -> None:
    """r = 1/4: the lower half. Trial 0 passed as the first though it is the worst; trial 2 was stopped against 5 and 6 only."""
    findings = written(
        (
            COMPLETE,
            [phase(0, "a", 0, 1, 1.0, report=0), phase(1, "a", 1, 2, 1.0, "none", report=1)],
        ),
        (
            COMPLETE,
            [phase(0, "a", 2, 3, 6.0, report=2), phase(1, "a", 3, 4, 6.0, "none", report=3)],
        ),
        (PRUNED, [phase(0, "a", 4, 5, 4.0, "selection", verdict="stop", report=4)]),
        (PRUNED, [phase(0, "a", 5, 6, 3.0, "selection", verdict="stop", report=5)]),
        (PRUNED, [phase(0, "a", 6, 7, 2.0, "selection", verdict="stop", report=6)]),
    )
    bias = order_bias(findings)
    assert bias.lucky == ((0, 0),) and bias.unlucky == ((2, 0), (3, 0)) and bias.trials == 5
    assert bias.correlation == pytest.approx(spearmanr([0, 1, 2, 3, 4], [2, 2, 1, 1, 1]).statistic)
    told = report.text(findings)
    assert (
        "Completed, but passed at least one phase only because they were early: trial 0 (phase 0)."
        in told
    )
    assert (
        "would pass against all reports of the phase: trial 2 (phase 0), trial 3 (phase 0)." in told
    )


def slow_order_bias(findings: Findings) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """As the sentences say it, with NumPy's quantile."""
    lucky, unlucky = [], []
    for number in range(findings.settings.phases):
        reports = [(t, p) for t in findings.trials for p in t.phases if p.phase == number]
        for trial, report_ in reports:
            scores = [-1e6 if math.isnan(p.score) else p.score for _, p in reports]
            below = (-1e6 if math.isnan(report_.score) else report_.score) < np.quantile(
                scores, math.sqrt(findings.settings.eviction_rate)
            )
            if report_.mode == "collection" and below:
                lucky.append((trial.number, number))
            if report_.mode == "selection" and report_.verdict == "stop" and not below:
                unlucky.append((trial.number, number))
    return lucky, unlucky


@pytest.mark.parametrize("cohort", [None, 8])
def test_order_bias_is_what_its_sentences_say(cohort: int | None) -> None:
    unlucky_ones = 0
    for seed in range(8):
        findings = read(
            make_study(
                trials=30,
                seed=seed,
                eviction_rate=0.2,
                settings={"cohort": cohort},
                score=lambda p, n, rng: float(rng.normal()),
            )
        )
        bias = order_bias(findings)
        assert (list(bias.lucky), list(bias.unlucky)) == slow_order_bias(findings)
        ended = findings.of_state("complete", "stopped")
        oracle = spearmanr([t.number for t in ended], [t.phases_done for t in ended]).statistic
        assert bias.correlation == pytest.approx(oracle)
        assert bias.lucky
        unlucky_ones += len(bias.unlucky)
    assert unlucky_ones


def test_equal_metrics_are_neither_lucky_nor_below() -> None:
    bias = order_bias(
        read(make_study(failing=(), not_a_number=(), score=lambda params, n, rng: 1.0))
    )
    assert bias.lucky == () and len(bias.unlucky) > 0


# The text.


def test_the_text_of_a_search_written_by_hand() -> None:
    told = report.text(by_hand(), "runs/a b")
    assert (
        told.splitlines()[0]
        == "search: HyperTrick (eviction rate 0.25), 6 trials of at most 2 phases of 500 episodes"
    )
    for line in (
        "Trials      4 of 6 started: 1 complete, 1 stopped, 1 failed, 1 running",
        "Search time 24 s on 2 nodes",
        "Occupancy   86.0 % of the nodes' time, of each from its first phase to the newest report",
        "Trial 0 ran all 2 phases and scored 4 in the last one.",
        "Trial 3 (running) scored more, 5, and has not run all phases.",
        "    x.y = 0.5",
        "Evaluate    genkidama evaluate 'runs/a b/trials/0000'",
        "Train on    genkidama train --resume 'runs/a b/trials/0000'",
        "Checkpoint  none was written",
        "3      running       5       1  0.5",
        "Too few trials have ended to tell.",
        "    0        4             1         1        1       1          0       1     5",
        "    1        1             0         0        0       0          1       4     4",
    ):
        assert line in told.splitlines(), line


def test_the_text_of_a_real_search(tmp_path: Path) -> None:
    study = make_study(tmp_path, trials=8, phases=3)
    told = report.report(url_of(tmp_path), "search", None, "runs/lander")
    best = study.best_trial
    for key, value in best.params.items():
        assert f'    {key} = "{value}"' in told or f"    {key} = {value!r}" in told
    assert f"Checkpoint  runs/lander/{best.user_attrs['checkpoint']}" in told
    assert f"genkidama evaluate runs/lander/trials/{best.number:04d}\n" in told
    for title in (
        "The top five",
        "over time",
        "What the nodes did",
        "Which settings matter",
        "Phase by phase",
        "What the order",
    ):
        assert title in told
    assert "R² is" in told and "Figures" not in told
    assert max(map(len, told.splitlines())) <= 120 and len(told.splitlines()) < 100


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"until": -1.0}, "No trial has reported a score yet"),
        ({"until": 1.0}, "0 complete, 0 stopped, 0 failed, 1 running"),
        ({"trials": 1}, "Trial 0 ran all 5 phases"),
        ({"trials": 1, "until": 200}, "No trial has run all 5 phases yet."),
        ({"score": lambda params, number, rng: math.nan}, "24 failed"),
        ({"nodes": 1, "trials": 5}, "on 1 node\n"),
        ({"method": "random", "trials": 6}, "Nothing: random search stops nobody."),
        ({"score": lambda params, number, rng: 1.0, "trials": 8}, "Which settings matter"),
        ({"phases": 1, "trials": 5}, "at most 1 phase of"),
        (
            {
                "trials": 6,
                "space": {"a.b": {"choices": [[1, 2], [3]]}},
                "score": lambda params, number, rng: 1.0,
            },
            "    a.b = [1, 2]\n",
        ),
    ],
)
def test_the_text_when_there_is_little_to_say(options: dict[str, Any], expected: str) -> None:
    findings = read(make_study(**options))
    assert expected in report.text(findings) + "\n"
    assert report.summary_line(findings).startswith("search: ")


def test_the_line_for_logs() -> None:
    assert report.summary_line(by_hand()) == (
        "search: 3 of 6 trials done (1 complete, 1 stopped, 1 failed) · 1 running · 2 left · best 4 (trial 0) · completion rate 50.0 %"
    )
    assert report.summary_line(read(make_study(until=-1.0))) == (
        "search: 0 of 24 trials done (0 complete, 0 stopped, 0 failed) · 0 running · 24 left · no score yet · completion rate –"
    )


def test_a_nodes_line_shows_the_phase_at_each_columns_middle_and_the_endings() -> None:
    spans = [
        Span(0, 0, 0, 2, ""),
        Span(0, 1, 2, 4, "stopped"),
        Span(1, 0, 6, 9, "complete"),
        Span(2, 40, 9, 10, ""),
    ]
    assert report.gantt(spans, 10, 10) == "001×··00●+"
    assert report.gantt(spans, 10, 5) == "0×·●+" or len(report.gantt(spans, 10, 5)) == 5
    assert report.gantt([Span(0, 0, 0, 0, "failed")], 0, 3) == "!··"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (8521.4, "8,521"),
        (231.44, "231.4"),
        (0.00033, "0.00033"),
        (3, "3"),
        (12345, "12,345"),
        (True, "True"),
        ("sgd", "sgd"),
        (math.nan, "–"),
    ],
)
def test_numbers_for_people(value: Any, expected: str) -> None:
    assert report.show(value) == expected


def test_phases_in_a_row_are_written_as_a_range() -> None:
    assert (
        report._listed([(3, 0), (3, 2), (3, 3), (3, 4), (1, 7), (1, 8)])
        == "trial 1 (phases 7–8), trial 3 (phases 0, 2–4)"
    )
    assert report._listed([]) == "none"


def test_names_are_as_short_as_they_can_be() -> None:
    assert report.short_names(["a.rate", "b.rate", "c.gamma", "optimizer.name"]) == {
        "a.rate": "a.rate",
        "b.rate": "b.rate",
        "c.gamma": "gamma",
        "optimizer.name": "optimizer.name",
    }


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (42.54, "42.5 s"), (59.99, "60 s"), (725, "12:05"), (11220, "3:07:00")],
)
def test_times_read_like_a_clock(seconds: float, expected: str) -> None:
    assert report.clock(seconds) == expected


# Studies that are not a search's.


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"workers": "many"}, "attribute 'genkidama': Expected int, got str - at $.workers"),
        ({"method": "grid"}, "Invalid enum value 'grid' - at $.method"),
        ({"eviction_rate": 1.5}, "eviction_rate = 1.5"),
        ({"phases": 0}, "phases = 0"),
        ({"space": {}}, "space: is empty"),
        ({"space": {"a.b": {"low": 2, "high": 1}}}, "a.b"),
    ],
)
def test_settings_that_cannot_be_read_are_named(settings: dict[str, Any], expected: str) -> None:
    study = make_study(until=-1.0, settings=settings)
    with pytest.raises(ConfigurationError) as error:
        read(study)
    assert (
        expected in str(error.value)
        and "study 'search'" in str(error.value)
        and "\n" not in str(error.value)
    )


def test_phases_that_cannot_be_read_are_named() -> None:
    study = make_study(trials=3, phases=2)
    study.add_trial(create_trial(state=RUNNING, user_attrs={"phases": [{"phase": 0}]}))
    with pytest.raises(
        ConfigurationError,
        match=r"study 'search', trial 3, attribute 'phases': .*missing required field",
    ):
        read(study)


def test_a_study_that_is_no_search_or_minimizes_is_named() -> None:
    with pytest.raises(ConfigurationError, match="study 'mine' has no attribute 'genkidama'"):
        read(optuna.create_study(study_name="mine", direction="maximize"))
    study = optuna.create_study(study_name="down")
    study.set_user_attr("genkidama", {})
    with pytest.raises(ConfigurationError, match=r"study 'down': directions = \['minimize'\]"):
        read(study)


def test_a_study_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    make_study(tmp_path, trials=1, phases=1)
    with pytest.raises(ConfigurationError, match=r"study 'serch' is not in .*; it holds: search"):
        report.report(url_of(tmp_path), "serch", None, "RUN")


def test_a_report_makes_no_file_and_says_what_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"study 'search': there is no file .*study\.db"):
        report.report(url_of(tmp_path), "search", None, "RUN")
    assert not list(tmp_path.iterdir())
    (tmp_path / "study.db").write_bytes(b"no database " * 1000)
    with pytest.raises(EnvironmentFailure, match=r"study 'search' in sqlite.*cannot be read"):
        report.report(url_of(tmp_path), "search", None, "RUN")


def test_nobody_was_lucky_where_nothing_was_decided() -> None:
    bias = order_bias(read(make_study(method="random", trials=5)))
    assert (bias.lucky, bias.unlucky, bias.trials) == ((), (), 5) and math.isnan(bias.correlation)
