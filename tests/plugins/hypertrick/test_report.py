"""The report's text."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest

from genkidama.plugins.hypertrick import report, study
from genkidama.plugins.hypertrick.records import Span
from genkidama.plugins.hypertrick.report import gantt
from genkidama.plugins.hypertrick.study import read
from tests.plugins.hypertrick.studies import COMPLETE, by_hand, make_study, phase, written


@pytest.fixture(autouse=True)
def small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the forests say is tested elsewhere."""
    monkeypatch.setattr(study, "_TREES", 3)


def test_the_text_of_a_search_written_by_hand() -> None:
    told = report.text(by_hand(), "runs/a b")
    assert told.splitlines()[:2] == [
        "search: HyperTrick (eviction rate 0.25), 6 trials of at most 2 phases of 500",
        "episodes",
    ]
    for line in (
        "Trials      4 of 6 started: 1 completed, 1 stopped, 1 failed, 1 running",
        "Search time 24 s on 2 nodes",
        "Occupancy   86.0 % of the nodes' time, of each from its first phase to the",
        "            newest report",
        "Trial 0 ran all 2 phases and scored 4 in the last one.",
        "The best observed is trial 3 (running) with 5 after phase 0.",
        "    x.y = 0.5",
        "Evaluate    genkidama evaluate 'runs/a b/trials/0000'",
        "Train on    genkidama train --resume 'runs/a b/trials/0000' --children 1",
        "3      running        5       1  0.5",
        "Too few different trials have ended to tell.",
        "    0        4      1         1        1       1          0       1     5",
        "    1        1      0         0        0       0          1       4     4",
    ):
        assert line in told.splitlines(), line


def test_the_text_of_a_real_search() -> None:
    study = make_study(trials=8, phases=3)
    told = report.text(read(study), "runs/lander")
    best = study.best_trial
    for key, value in best.params.items():
        assert f'    {key} = "{value}"' in told or f"    {key} = {value!r}" in told
    assert f"genkidama evaluate runs/lander/trials/{best.number:04d}\n" in told
    for title in (
        "The top five",
        "over time",
        "What the nodes did",
        "Which settings matter",
        "Phase by phase",
    ):
        assert title in told
    assert "fANOVA" in told and "Figures" not in told
    # What is typed stays in one line, and a trial in a row. All else fits the smallest terminal.
    parts = [part for part in told.split("\n\n") if not part.startswith(("Evaluate", "The top"))]
    assert len(parts) >= 7
    assert max(len(line) for part in parts for line in part.splitlines()) <= 80
    assert len(told.splitlines()) < 110


def test_the_best_settings_are_toml() -> None:
    options = {"word": "π 🎮", "sizes": [1, 2.5], "more": True}
    space = {"network.options": {"choices": [options]}}
    lines = report.text(read(make_study(trials=1, phases=1, space=space, score=lambda *_: 1.0)))
    (line,) = [line for line in lines.splitlines() if line.startswith("    network.options = ")]
    assert tomllib.loads(line.strip()) == {"network": {"options": options}}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"until": -1.0}, "No trial has reported a score yet"),
        ({"until": 1.0}, "0 completed, 0 stopped, 0 failed, 1 running"),
        ({"trials": 1}, "Trial 0 ran all 5 phases"),
        ({"trials": 1, "until": 200}, "No trial has run all 5 phases yet."),
        ({"score": lambda params, number, rng: math.nan}, "24 failed"),
        ({"nodes": 1, "trials": 5}, "on 1 node\n"),
        (
            {"method": "asha", "phases": 9},
            "search: ASHA, stopping variant (reduction factor 4), 24 trials of at",
        ),
        (
            {"method": "hyperband", "phases": 9, "until": -1.0, "settings": {"restart": True}},
            "search: Hyperband (reduction factor 3, each rung from scratch)",
        ),
        (
            {"method": "successive_halving", "phases": 9, "nodes": 9, "trials": 9, "until": 200},
            "0 completed, 0 stopped, 0 failed, 0 running, 9 paused",
        ),
        ({"method": "asha", "phases": 9}, "if about 1/4 continue at each decision"),
        (
            {
                "method": "asynchronous_hyperband",
                "settings": {"reduction_factor": 2, "least_phases": 2},
            },
            "Hyperband, asynchronous (reduction factor 2, at least 2 phases)",
        ),
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


def test_with_restarts_a_trial_has_more_phases_than_the_search() -> None:
    rungs = [phase(number, "a", number, number + 1, 1.0, "none") for number in range(1 + 3 + 9)]
    told = report.text(written((COMPLETE, rungs), method="hyperband", phases=9, restart=True))
    assert "Trial 0 ran all its phases and scored 1 in the last one." in told.splitlines()
    assert "(a for 10, b for 11, …)" in told


def test_importances_that_are_known_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "importances", None)
    assert "Too few different trials" in report.text(by_hand(), shares=None)


def expectation(**settings: Any) -> str:
    """The line of the report that says what was to be expected."""
    study = make_study(trials=40, phases=4, eviction_rate=0.64, settings=settings)
    (line,) = [line for line in report.text(read(study)).splitlines() if "expected" in line]
    return line.strip()


def test_a_cohort_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """At r = 0.64, with 40 trials: 8 pass early, or 2 of a cohort of 10.

    Of the others √r = 80 % are stopped.
    """
    monkeypatch.setattr(report, "importances", lambda _: None)
    by_equation_9 = (1 + 0.36 + 0.36**2 + 0.36**3) / 4
    early = [2.0, 2.0 * 0.36, 2.0 * 0.36**2]
    runs = [40.0]
    for passed in early:
        runs.append(passed + 0.2 * (runs[-1] - passed))
    with_cohort = sum(runs) / 160
    assert expectation().startswith(f"expected {100 * by_equation_9:.1f} %, minimum ")
    assert expectation(cohort=10) == (
        f"expected {100 * with_cohort:.1f} %: "
        "after the data collection of a cohort of 10, √r = 80 % are stopped"
    )
    assert with_cohort < 0.9 * by_equation_9
    # The controller keeps to equation 9.
    assert expectation(cohort=10, adaptive=True).startswith(f"expected {100 * by_equation_9:.1f} %")
    study = make_study(trials=4, phases=2, settings={"cohort": 3, "adaptive": True})
    assert "(eviction rate 0.25, a cohort of 3 collects data, adaptive)" in report.text(read(study))


def test_a_nodes_line_shows_the_phase_at_each_columns_middle_and_the_endings() -> None:
    spans = [
        Span(0, 0, 0, 2, ""),
        Span(0, 1, 2, 4, "stopped"),
        Span(1, 0, 6, 9, "completed"),
        Span(2, 40, 9, 10, ""),
    ]
    assert gantt(spans, 10, 10) == "001×··00●+"
    assert gantt(spans, 10, 5) == "0×·●+"
    assert gantt([Span(0, 0, 0, 0, "failed")], 0, 3) == "!··"
