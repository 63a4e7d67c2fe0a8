"""How far the axis of scores reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from genkidama.figures.style import GREY
from genkidama.tuning.findings import Findings

__all__ = ["floor", "limit", "scores"]


def scores(findings: Findings) -> list[float]:
    """All scores that were reported, without NaN."""
    return [
        phase.score
        for trial in findings.trials
        for phase in trial.phases
        if not math.isnan(phase.score)
    ]


def floor(values: Sequence[float]) -> float:
    """Below this a score is so low that to show it would hide the others.

    It lies five interquartile ranges below the middle half.
    """
    low, high = np.quantile(values, [0.25, 0.75])
    return float(low - 5.0 * (high - low)) if high > low else min(values)


def limit(axes: Axes, values: Sequence[float]) -> None:
    """Leaves scores below the floor out of sight, and says so: one alone would hide the rest."""
    bottom, top = floor(values), max(values)
    below = sum(value < bottom for value in values)
    if below:
        axes.set_ylim(bottom, top + 0.08 * (top - bottom))
        axes.annotate(
            f"↓ {below} {'report' if below == 1 else 'reports'} below",
            (0.005, 0.02),
            xycoords="axes fraction",
            fontsize=8,
            color=GREY,
            va="bottom",
        )
