"""The figures of docs/results/thesis.md, drawn as `genkidama plot` draws runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from genkidama.plugins.figures.plots import draw_curves, draw_densities
from genkidama.runs.figure_style import COLOURS, GREY, write_all
from studies.thesis.cells import BEST, BETAS, CELLS, CHECKPOINTS, GRID, LEVELS, PAIRS, SIZES, Row
from studies.thesis.published import PATHS

# isort: split
from matplotlib.figure import Figure

Cells = Mapping[str, Sequence[Row]]


def draw(cells: Cells, folder: Path) -> list[Path]:
    """Writes what the rows allow into `folder`, each as PNG and SVG.

    Args:
        cells: rows by cell, as `statistics.by_cell` gives them.
    """
    makers = {
        "thesis-grid": lambda: _paths(cells),
        "thesis-returns": lambda: _returns(cells, [*GRID.values()]),
        "thesis-a3c": lambda: _returns(cells, [n for n in CELLS if CELLS[n].group == "a3c"]),
        "thesis-sizes": lambda: _sizes(cells),
        "thesis-staleness": lambda: _staleness(cells),
    }
    return write_all(makers, folder)


def _curves(rows: Sequence[Row]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        (points[:, 0], points[:, 1]) for row in rows if len(points := np.array(row["curve"], float))
    ]


def _paths(cells: Cells) -> Figure | None:
    """Tables 5.3 to 5.5: a chart for each α, a colour for each β, the thesis dashed."""
    if not any(cells.get(name) for name in GRID.values()):
        return None
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    for axes, alpha in zip(figure.subplots(1, 3, sharey=True), LEVELS, strict=True):
        for number, beta in enumerate(BETAS):
            name = GRID[alpha, beta]
            updates = np.arange(1, CHECKPOINTS + 1) * CELLS[name].every
            axes.plot(
                updates, PATHS[name], color=COLOURS[number], linewidth=1.0, linestyle=(0, (4, 3))
            )
            if rows := cells.get(name):
                draw_curves(axes, _curves(rows), COLOURS[number], f"β = {beta}, n = {len(rows)}")
        axes.axhline(200.0, color=GREY, linewidth=0.8)
        axes.set_title(f"α = {alpha}")
        axes.set_xlabel("updates (exchanges a child)")
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="upper left")
    figure.axes[0].set_ylabel("mean return of 500 episodes (dashed: the thesis)")
    return figure


def _returns(cells: Cells, names: Sequence[str]) -> Figure | None:
    """Figures 5.2 to 5.4: the episodes of all seeds after the last update."""
    found = [
        (
            f"{CELLS[name].label}, n = {len(cells[name])}",
            np.concatenate([row["returns"] for row in cells[name]]),
        )
        for name in names
        if cells.get(name)
    ]
    return draw_densities(found) if found else None


def _sizes(cells: Cells) -> Figure | None:
    """The median over seeds, and each seed, by the number of children."""
    if not any(CELLS[name].group == "sizes" for name in cells):
        return None  # the grid's two children alone say nothing
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (alpha, beta) in enumerate(PAIRS):
        found = [
            (place, [row["curve"][-1][1] for row in rows])
            for place, children in enumerate(SIZES)
            if (rows := cells.get(size_cell(children, alpha, beta)))
        ]
        if not found:
            continue
        colour = COLOURS[number]
        shift = 0.08 * (number - 1)
        for place, means in found:
            axes.plot([place + shift] * len(means), means, "o", color=colour, alpha=0.4)
        axes.plot(
            [place + shift for place, _ in found],
            [np.median(means) for _, means in found],
            color=colour,
            label=f"α = {alpha}, β = {beta}",
        )
    if not axes.lines:
        return None
    axes.axhline(200.0, color=GREY, linewidth=0.8)
    axes.set_xticks(range(len(SIZES)), [str(size) for size in SIZES])
    axes.set_xlabel("children, each with 4 cores; 16,000 episodes in all")
    axes.set_ylabel("mean return of 500 episodes")
    axes.legend(loc="lower left")
    return figure


def size_cell(children: int, alpha: float, beta: float) -> str:
    """The cell with so many children; two are in the grid."""
    return GRID[alpha, beta] if children == 2 else f"size-{children}-{alpha}-{beta}"


def _staleness(cells: Cells) -> Figure | None:
    """Of pushes over the run, by the number of children; and how far children end apart."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, children in enumerate(SIZES):
        rows = cells.get(size_cell(children, 0.9, 0.0), [])
        curves = [
            (np.arange(1, len(known) + 1) / len(known), known)
            for row in rows
            if len(known := _spans(row))
        ]
        if curves:
            draw_curves(left, curves, COLOURS[number], f"{children} children")
    names = [
        name
        for name in dict.fromkeys([BEST, *GRID.values()])
        if any(row["disagreement"]["between"] is not None for row in cells.get(name, []))
    ]
    for place, name in enumerate(reversed(names)):
        apart = [row["disagreement"]["between"] for row in cells[name]]
        right.plot(apart, [place] * len(apart), "o", color=COLOURS[0], alpha=0.5)
    if not left.lines and not names:
        return None
    left.set_title("Staleness: versions that other pushes had made meanwhile")
    left.set_xlabel("share of the run")
    if left.lines:
        left.legend(loc="best")
    right.set_title("Children apart at the end, by |θ_P|")
    right.set_yticks(range(len(names)), [CELLS[name].label for name in reversed(names)])
    return figure


def _spans(row: Row) -> np.ndarray:
    """The mean staleness of all children in each span of the run that has pushes."""
    spans = np.array(
        [child["staleness"] for child in row["exchanges"].values()], np.float64
    )  # None is NaN
    return spans.mean(axis=0)[~np.isnan(spans).any(axis=0)] if spans.size else np.empty(0)
