"""The active trials: which are drawn, where, and how large."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from genkidama.hypertrick.rule import Verdict
from genkidama.tuning.figures.survivors import active_trials
from genkidama.tuning.findings import Findings, read
from tests.tuning.studies import SPACE, make_study


def panels(findings: Findings) -> list[Axes]:
    """A panel a phase, without the bar of colours."""
    figure = active_trials(findings, None)
    assert figure is not None
    return [axes for axes in figure.axes if axes.get_title().startswith("phase ")]


def test_each_phase_shows_the_trials_that_have_ended_it() -> None:
    findings = read(make_study(trials=12, phases=3))
    for phase, axes in enumerate(panels(findings)):
        reports = [report for _, report in findings.reports_of(phase)]
        scored = [report for report in reports if not math.isnan(report.score)]
        stay = sum(report.verdict is Verdict.CONTINUE for report in scored)
        drawn = [len(np.asarray(marks.get_offsets())) for marks in axes.collections]
        assert drawn == [count for count in (stay, len(scored) - stay) if count]
        assert len(axes.lines[0].get_xdata()) == len(reports) - len(scored)
        assert axes.get_title().startswith(f"phase {phase}: {len(reports)} trial")


@pytest.mark.parametrize(
    ("keys", "across", "up"),
    [
        (["optimizer.learning_rate", "algorithm.batch_size"], "log", "log"),
        (["optimizer.learning_rate"], "log", "linear"),
        (["optimizer.name", "optimizer.learning_rate"], "linear", "log"),
    ],
)
def test_an_axis_has_the_scale_of_its_setting(keys: list[str], across: str, up: str) -> None:
    space: dict[str, Any] = {key: SPACE[key] for key in keys}
    study = make_study(trials=4, phases=1, space=space, score=lambda p, phase, rng: rng.normal())
    (axes,) = panels(read(study))
    assert (axes.get_xscale(), axes.get_yscale()) == (across, up)
    if "choices" in space[keys[0]]:
        labels = [label.get_text() for label in axes.get_xticklabels()]
        assert labels == space[keys[0]]["choices"]


def test_nothing_is_drawn_without_a_score() -> None:
    assert active_trials(read(make_study(until=1.0)), None) is None
    assert active_trials(read(make_study(trials=3, score=lambda *_: math.nan)), None) is None
