"""All figures of a search, written into a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import optuna
from matplotlib.figure import Figure

from genkidama.figures.style import write_all
from genkidama.tuning.figures.curves import learning_curves
from genkidama.tuning.figures.optunas import best_score, importances, settings
from genkidama.tuning.figures.survivors import active_trials
from genkidama.tuning.figures.timeline import timeline
from genkidama.tuning.findings import Findings
from genkidama.tuning.importance import Importances

__all__ = ["draw"]


def draw(
    study: optuna.Study, findings: Findings, folder: Path, known: Importances | None
) -> list[Path]:
    """Writes the figures into `folder`, which is made if needed, each as PNG and SVG.

    Args:
        study: that of the search.
        findings: of that study.
        folder: where to; files of an earlier report are replaced.
        known: the importances; None if they cannot be told.

    Returns:
        The files that were written.

    Raises:
        EnvironmentFailure: they cannot be written.
    """
    makers: dict[str, Callable[[], Figure | None]] = {
        "timeline": lambda: timeline(findings),
        "learning_curves": lambda: learning_curves(findings),
        "settings": lambda: settings(study, findings),
        "active_trials": lambda: active_trials(findings, known),
        "best_score": lambda: best_score(study, findings),
        "importances": lambda: importances(study, known),
    }
    return write_all(makers, folder)
