"""Figures of plain runs: learning curves, children, diagnostics, final performance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# First of all, since it says what to install if Matplotlib is missing.
from genkidama.runs.figure_style import COLOURS, GREY, INK, plain, write_all

# isort: split
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from genkidama.errors import ConfigurationError
from genkidama.protocol.diagnostics import DIAGNOSTICS
from genkidama.runs.curves import AXES, band, columns, measured
from genkidama.runs.run import Run

Numbers = npt.NDArray[np.float64]

#: Staleness is shown as means over this many spans of the run.
_SPANS = 60

#: Most children that are distinguished by colour.
_MOST_CHILDREN = len(COLOURS)

#: Charts of diagnostics in a row.
_COLUMNS = 3


@dataclass(frozen=True)
class Series:
    """Runs that differ in nothing but their seeds."""

    label: str
    runs: list[Run]


def series_of(runs: Sequence[Run]) -> list[Series]:
    """The runs, those together whose experiments differ in name and seed alone."""
    found: dict[str, Series] = {}
    for run in runs:
        experiment = run.experiment
        if experiment.search is not None:
            raise ConfigurationError(f"{run.path}: is a search, which `genkidama report` draws")
        settings = experiment.to_dict()
        settings.pop("name")
        settings.pop("seed")
        found.setdefault(repr(settings), Series(run.path.name, [])).runs.append(run)
    return [
        Series(f"{one.label} and {len(one.runs) - 1} more", one.runs) if len(one.runs) > 1 else one
        for one in found.values()
    ]


def draw_runs(runs: Sequence[Run], folder: Path, over: str = "steps") -> list[Path]:
    """Writes `learning`, `children` (of a single run), `diagnostics` and `returns` into `folder`,
    PNG and SVG, over one of `genkidama.runs.curves.AXES`. Returns the files.
    """
    if over not in AXES:
        raise ConfigurationError(f"over = {over!r}: expected one of {', '.join(AXES)}")
    series = series_of(runs)
    makers = {
        "learning": lambda: _learning(series, over),
        "children": lambda: _children(runs[0], over) if len(runs) == 1 else None,
        "diagnostics": lambda: draw_diagnostics(series, over),
        "returns": lambda: _returns(series),
    }
    paths = write_all(makers, folder)
    if not paths:
        names = ", ".join(str(run.path) for run in runs)
        raise ConfigurationError(f"{names}: no episode has ended yet, so there is nothing to draw")
    return paths


def _curve(run: Run, over: str) -> tuple[Numbers, Numbers]:
    found = columns(run.history())
    points = [
        (x, y)
        for x, y in zip(found[over], found["mean_return"], strict=True)
        if y is not None and math.isfinite(y)
    ]
    x, y = np.array(points, np.float64).reshape(-1, 2).T
    return x, y


def _learning(series: Sequence[Series], over: str) -> Figure | None:
    """The mean training returns; of several seeds the median, and the quartiles as a band."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for number, one in enumerate(series):
        if curves := [curve for run in one.runs if len((curve := _curve(run, over))[0])]:
            draw_curves(axes, curves, COLOURS[number % len(COLOURS)], one.label)
    if not axes.lines:
        return None
    run = series[0].runs[0]
    threshold = run.experiment.solved
    if threshold is None and run.evaluation is not None:
        threshold = run.evaluation.get("threshold")
    if threshold is not None:  # the mean from which on the task counts as solved
        axes.axhline(threshold, color=GREY, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.annotate("solved", (0.995, threshold), xycoords=("axes fraction", "data"),
                      ha="right", va="bottom", fontsize=8, color=GREY)  # fmt: skip
    axes.set_title(f"Mean return of the last {run.experiment.stop.window} training episodes")
    axes.set_xlabel(AXES[over])
    axes.set_ylabel("return")
    if len(series) > 1 or len(series[0].runs) > 1:
        axes.legend(loc="lower right")
    _thousands(axes)
    return figure


def draw_curves(
    axes: Axes, curves: Sequence[tuple[Numbers, Numbers]], colour: str, label: str
) -> None:
    """One curve, x and y, as a line; several as the median, and the quartiles as a band."""
    if len(curves) == 1:
        axes.plot(*curves[0], color=colour, linewidth=1.6, label=plain(label))
        return
    for x, y in curves:
        axes.plot(x, y, color=colour, linewidth=0.5, alpha=0.35)
    middle = band(curves)
    axes.fill_between(middle.x, middle.low, middle.high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(middle.x, middle.median, color=colour, linewidth=2.0, label=plain(label))


def _children(run: Run, over: str) -> Figure | None:
    """Exchanges of each child, how stale they were, and how far from the parent's their weights."""
    found = columns(run.history())
    children = sorted(set(found["child"]))
    if not children:
        return None
    who = np.array(found["child"])
    place = np.array(found[over], np.float64)
    stale = np.array(found["staleness"], np.float64)
    far = np.array(found["distance"], np.float64)  # None is NaN: it is not judged at each push
    judged = ~np.isnan(far)
    rows = 3 if judged.any() else 2
    figure = Figure(figsize=(9, 3 * rows), layout="constrained")
    charts = figure.subplots(rows, 1, sharex=True)
    for number, child in enumerate(children[:_MOST_CHILDREN]):
        own = who == child
        colour = COLOURS[number]
        charts[0].plot(place[own], np.arange(1, own.sum() + 1), color=colour, label=plain(child))
        charts[1].plot(*_means(place[own], stale[own]), color=colour)
        if (seen := own & judged).any():
            charts[2].plot(place[seen], far[seen], ".", color=colour, markersize=4)
    left_out = len(children) - _MOST_CHILDREN
    more = f" (of {left_out} more children not shown)" * (left_out > 0)
    charts[0].set_title(f"Exchanges{more}")
    charts[1].set_title("Staleness: versions that other pushes had made meanwhile (means)")
    if rows == 3:
        charts[2].set_title("Disagreement: |θ_C − θ_P| / |θ_P| as the child pushes")
    charts[-1].set_xlabel(AXES[over])
    charts[0].legend(loc="upper left")
    _thousands(charts[0])
    return figure


def _means(x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    spans = [part for part in np.array_split(np.arange(len(x)), _SPANS) if len(part)]
    return (
        np.array([x[part].mean() for part in spans]),
        np.array([y[part].mean() for part in spans]),
    )


def draw_diagnostics(series: Sequence[Series], over: str) -> Figure | None:
    """A chart a figure; of a single run a line a child, of several a colour a series."""
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
        _thousands(axes)
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


def _returns(series: Sequence[Series]) -> Figure | None:
    """The returns of the evaluated episodes of all runs."""
    found: list[tuple[str, Numbers]] = []
    for one in series:
        for run in one.runs:
            evaluation: dict[str, Any] = run.evaluation or {}
            if evaluation.get("returns"):
                found.append((run.path.name, np.array(evaluation["returns"], np.float64)))
    return draw_densities(found) if found else None


def draw_densities(found: Sequence[tuple[str, Numbers]]) -> Figure:
    """Returns of evaluated episodes, by name, as densities with their quartiles."""
    figure = Figure(figsize=(9, 1.6 + 0.7 * len(found)), layout="constrained")
    axes = figure.subplots()
    for number, (name, returns) in enumerate(reversed(found)):
        colour = COLOURS[(len(found) - 1 - number) % len(COLOURS)]
        if np.ptp(returns) > 0.0:
            parts: Any = axes.violinplot(
                [returns], positions=[number], orientation="horizontal", widths=0.8,
                showextrema=False, points=200,
            )  # fmt: skip
            parts["bodies"][0].set(facecolor=colour, alpha=0.35, linewidth=0)
        low, middle, high = np.quantile(returns, [0.25, 0.5, 0.75])
        axes.plot([low, high], [number, number], color=colour, linewidth=5, solid_capstyle="butt")
        axes.plot(middle, number, "o", color="white", markeredgecolor=INK, markersize=5)
        axes.annotate(
            f"{plain(name)}: {returns.mean():.1f} ± {returns.std():.1f}",
            (0.005, number + 0.32), xycoords=("axes fraction", "data"), fontsize=8, color=INK,
        )  # fmt: skip
    axes.set_yticks([])
    axes.set_ylim(-0.6, len(found) - 0.4)
    axes.set_xlabel("return of an evaluated episode (bar: the middle half; dot: the median)")
    axes.set_title("Returns of the evaluated episodes")
    return figure


def _thousands(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
