"""What Optuna draws of a search: with the installed version, and with trials that were stopped."""

from __future__ import annotations

import math
from typing import Any

import matplotlib
import numpy as np
import optuna
import pytest
from matplotlib.axes import Axes

from genkidama.figures.style import STYLE
from genkidama.tuning.figures.optunas import best_score, importances, settings
from genkidama.tuning.findings import Findings, read
from genkidama.tuning.importance import Importances
from tests.tuning.studies import SPACE, make_study


@pytest.fixture(scope="module")
def search() -> tuple[optuna.Study, Findings]:
    study = make_study(trials=24, phases=4, until=900)
    findings = read(study)
    assert all(map(findings.of_state, ("completed", "stopped", "failed", "running")))
    return study, findings


def dots(axes: Axes) -> Any:
    """Where the points of a panel lie, of all kinds of them."""
    return np.concatenate([np.asarray(found.get_offsets()) for found in axes.collections])


def test_the_settings_of_every_trial_with_a_score_are_drawn(
    search: tuple[optuna.Study, Findings],
) -> None:
    with matplotlib.rc_context(STYLE):
        figure = settings(*search)
    assert figure is not None
    panels = {axes.get_xlabel(): axes for axes in figure.axes if axes.get_xlabel() in SPACE}
    assert set(panels) == set(SPACE)
    expected = sorted(trial.score for trial in search[1].ranking)
    assert sorted(dots(panels["optimizer.learning_rate"])[:, 1]) == pytest.approx(expected)


def test_the_best_score_is_that_of_completed_trials(search: tuple[optuna.Study, Findings]) -> None:
    with matplotlib.rc_context(STYLE):
        figure = best_score(*search)
    assert figure is not None and search[1].best is not None
    (line,) = figure.axes[0].lines
    assert line.get_ydata()[-1] == search[1].best.score
    completed = {trial.number: trial.score for trial in search[1].of_state("completed")}
    assert dict(dots(figure.axes[0])) == pytest.approx(completed)


def test_the_shares_are_our_forests() -> None:
    study = make_study(trials=6, phases=2)
    shares = dict(zip(SPACE, (0.5, 0.3, 0.2, 0.0), strict=True))
    known = Importances(shares=shares, optuna={}, r2=-0.5, trials=6, caution="few")
    with matplotlib.rc_context(STYLE):
        figure = importances(study, known)
    assert figure is not None
    bars = sorted(bar.get_width() for bar in figure.axes[0].patches)
    assert bars == pytest.approx(sorted(shares.values()))
    assert (
        "R² = -0.50; too uncertain"
        in figure.axes[0].get_title(loc="left") + figure.axes[0].get_title()
    )
    nothing = Importances(dict.fromkeys(SPACE, 0.0), {}, math.nan, 6, "all scores are equal")
    assert importances(study, nothing) is None and importances(study, None) is None
