"""What the figures have in common: colours, letters, limits, marks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from genkidama.errors import ConfigurationError
from genkidama.tuning.findings import Findings

try:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
except ImportError:
    raise ConfigurationError("figures need Matplotlib: pip install 'genkidama[search]'") from None

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "INK",
    "ORANGE",
    "RED",
    "SKY",
    "STYLE",
    "evenly",
    "floor",
    "jitter",
    "key",
    "limit",
    "plain",
    "scores",
]

BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
ORANGE = "#E69F00"
RED = "#D55E00"
INK, GREY = "#262626", "#8C8C8C"

STYLE: dict[Any, Any] = {
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titlepad": 8,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": "#ECECEC",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "genkidama",
    "text.color": INK,
    "xtick.color": GREY,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.color": GREY,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 9,
}


def key(label: str, marker: str, **style: Any) -> Line2D:
    """A mark in a legend."""
    return Line2D([], [], linestyle="", marker=marker, label=label, **style)


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


def evenly(phases: int, most: int) -> list[int]:
    """At most so many of the phases, the first and the last among them."""
    return sorted({round(index * (phases - 1) / (most - 1)) for index in range(most)})


def jitter(number: int, width: float) -> float:
    """Between −width and width; neighbours far apart, the same for the same trial."""
    return width * (2.0 * (number * 0.6180339887 % 1.0) - 1.0)


def plain(text: str) -> str:
    """Text that Matplotlib does not take for a formula."""
    return text.replace("$", r"\$")
