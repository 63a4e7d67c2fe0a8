"""The figure of the diagnostics of learning: one small chart for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# First of all, since it says what to install if Matplotlib is missing.
from genkidama.plugins.figures.style import COLOURS, plain

# isort: split
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from genkidama.protocol.diagnostics import DIAGNOSTICS
from genkidama.runs.curves import AXES, measured
from genkidama.runs.directory import Run

__all__ = ["Series", "draw_diagnostics"]

_COLUMNS = 3


@dataclass(frozen=True)
class Series:
    """Runs that differ in nothing but their seeds."""

    label: str
    runs: list[Run]


def draw_diagnostics(series: Sequence[Series], over: str) -> Figure | None:
    """A chart a figure; of a single run a line a child, of several a colour a series.

    Returns:
        None if no run has measured anything.
    """
    alone = len(series) == 1 and len(series[0].runs) == 1
    lines = [
        (number, one.label, measured(run.history(), DIAGNOSTICS, over))
        for number, one in enumerate(series)
        for run in one.runs
    ]
    names = [name for name in DIAGNOSTICS if any(name in found for _, _, found in lines)]
    if not names:
        return None
    rows = -(-len(names) // _COLUMNS)
    figure = Figure(figsize=(12, 0.6 + 2.3 * rows), layout="constrained")
    charts = figure.subplots(rows, _COLUMNS, squeeze=False, sharex=True).flat
    labelled: dict[str, Line2D] = {}
    for axes, name in zip(charts, names, strict=False):
        axes.set_title(name.replace("_", " "))
        axes.set_xlabel(AXES[over])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        for number, label, found in lines:
            for order, (child, (x, y)) in enumerate(sorted(found.get(name, {}).items())):
                colour = COLOURS[(order if alone else number) % len(COLOURS)]
                (line,) = axes.plot(x, y, color=colour, linewidth=1.0, alpha=0.8)
                labelled.setdefault(plain(child if alone else label), line)
    for axes in list(figure.axes)[len(names) :]:
        axes.set_visible(False)
    if len(labelled) > 1:
        shown = dict(list(labelled.items())[: len(COLOURS)])
        figure.legend(
            list(shown.values()), list(shown), loc="outside upper right", ncols=len(shown)
        )
    return figure
