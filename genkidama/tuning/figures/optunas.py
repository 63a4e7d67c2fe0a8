"""The figures that Optuna draws: score against each setting, the best score so far, importances.

Optuna's own figures see completed trials only. So the settings are drawn of a copy of the study in
which every trial with a score has completed with it, and the importances are those of our forest.
The best score is of completed trials by definition (`records.py`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
import optuna
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from optuna.importance import BaseImportanceEvaluator
from optuna.trial import TrialState, create_trial

from genkidama.tuning.figures.scale import limit
from genkidama.tuning.findings import Findings
from genkidama.tuning.importance import Importances

__all__ = ["best_score", "importances", "settings"]


def settings(study: optuna.Study, findings: Findings) -> Figure | None:
    """The last score of each trial against each of its settings."""
    known = {trial.number: trial.score for trial in findings.ranking}
    if not known:
        return None
    copy = _empty_study()
    for trial in study.get_trials(deepcopy=False):
        if trial.number in known:
            copy.add_trial(
                create_trial(
                    state=TrialState.COMPLETE,
                    value=known[trial.number],
                    params=trial.params,
                    distributions=trial.distributions,
                )
            )
    plots = _drawn(lambda plot: plot.plot_slice(copy, target_name="last score"))
    figure = _titled(plots[0], "Last scores of all trials against each setting")
    figure.set_size_inches(max(6.4, 3.6 * len(plots)), 4.8)
    for axes in plots:
        axes.xaxis.set_minor_formatter(NullFormatter())  # they would cover each other
        limit(axes, list(known.values()))
    return figure


def best_score(study: optuna.Study, findings: Findings) -> Figure | None:
    """The scores of the completed trials, and the best so far, by trial."""
    if not findings.improvements:
        return None
    (axes,) = _drawn(lambda plot: plot.plot_optimization_history(study, target_name="score"))
    limit(axes, [trial.score for trial in findings.of_state("completed")])
    return _titled(axes, "The best score so far, of the trials that completed")


def importances(study: optuna.Study, known: Importances | None) -> Figure | None:
    """How much each setting matters, as a forest over all trials says."""
    if known is None or not any(known.shares.values()):
        return None
    shares = known.shares

    class Ours(BaseImportanceEvaluator):
        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            return shares

    (axes,) = _drawn(
        lambda plot: plot.plot_param_importances(study, evaluator=Ours(), target_name="share")
    )
    caution = "; too uncertain to rely on" if known.caution else ""
    return _titled(
        axes,
        f"How much each setting matters to a forest over {known.trials} ended trials\n"
        f"(cross-validated R² = {known.r2:.2f}{caution})",
    )


def _empty_study() -> optuna.Study:
    """A study in memory, made without a word about it."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    optuna.logging.set_verbosity(before)
    return study


def _drawn(draw: Callable[[Any], Any]) -> list[Axes]:
    """The panels that a function of Optuna's draws. It uses pyplot, which forgets them here."""
    if "matplotlib.pyplot" not in sys.modules:
        matplotlib.use("agg")  # otherwise pyplot opens a way to the screen
    import matplotlib.pyplot as pyplot  # after the choice above, as Optuna's figures
    import optuna.visualization.matplotlib as plot

    with warnings.catch_warnings():  # the functions are called experimental since Optuna 2
        warnings.simplefilter("ignore")
        found = draw(plot)
    panels = list(np.atleast_1d(found))
    pyplot.close(panels[0].figure)
    return panels


def _titled(axes: Axes, title: str) -> Figure:
    """The figure of this panel, with a title and without a layout: Optuna's cannot be laid out."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.suptitle("")
    figure.set_layout_engine(None)
    axes.set_title(title, fontsize=11)
    return figure
