"""All figures of a search, written into a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import optuna
from matplotlib.figure import Figure

from genkidama.errors import EnvironmentFailure
from genkidama.tuning.figures.curves import learning_curves
from genkidama.tuning.figures.optunas import best_score, importances, settings
from genkidama.tuning.figures.style import STYLE
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
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in makers.items():
            with matplotlib.rc_context(STYLE):
                figure = make()
                if figure is not None:
                    paths += _write(figure, folder / name)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot write figures into {folder}: {error.strerror or error}; give another folder"
        ) from None
    return paths


def _write(figure: Figure, path: Path) -> list[Path]:
    """Writes the figure to `path`.png and `path`.svg.

    It is laid out once, for both files; one without a layout is cut to what it shows.
    """
    box = None if figure.get_layout_engine() is not None else "tight"
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    figure.savefig(png, dpi=150, bbox_inches=box)
    figure.savefig(svg, bbox_inches=box, metadata={"Date": None})
    return [png, svg]
