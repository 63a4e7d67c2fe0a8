"""From rows to what the seeds of a cell come to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.differences import Difference, compare, interval, medians
from benchmarks.thesis.cells import UPDATES, Row

__all__ = ["Summary", "by_cell", "difference", "passage", "passages", "summary"]


def passages(rows: Iterable[Row], level: float) -> list[float]:
    """Each seed's `passage`."""
    return [passage([mean for _, mean, _ in row["curve"]], level) for row in rows]


@dataclass(frozen=True)
class Summary:
    """What the seeds of a cell come to, after the last update."""

    seeds: int
    #: Of the seeds' means.
    median: float
    low: float
    high: float
    #: Of the median, over seeds.
    interval: tuple[float, float] | None
    #: The median of the deviations of a seed's episodes.
    deviation: float
    #: How many seeds have a mean above 200.
    solved: int
    #: How many had one at any checkpoint.
    landed: int
    #: The best checkpoint's mean, in the median of the seeds.
    best: float
    #: Of θ_C from one another by |θ_P|, in the median of the seeds; None with one child.
    between: float | None


def by_cell(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each cell by seed; of two with the same seed the later one counts."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        found.setdefault(row["cell"], {})[row["seed"]] = row
    return {cell: [seeds[seed] for seed in sorted(seeds)] for cell, seeds in found.items()}


def finals(rows: Iterable[Row]) -> list[float]:
    """Each seed's mean after the last update."""
    return [row["curve"][-1][1] for row in rows]


def passage(means: Sequence[float], level: float) -> float:
    """After how many of the thesis' 2,000 updates the mean first was at least `level`.

    A run of more or fewer updates counts as if it had 2,000.

    Args:
        means: at moments that are evenly spread over the run.
        level: a mean return.

    Returns:
        One moment more than there is, if it never was.
    """
    number = next((number for number, mean in enumerate(means) if mean >= level), len(means))
    return UPDATES * (number + 1) / len(means)


def summary(rows: Sequence[Row]) -> Summary:
    """Of at least one row."""
    means = finals(rows)
    between = [
        apart for row in rows if (apart := row.get("disagreement", {}).get("between")) is not None
    ]
    return Summary(
        seeds=len(rows),
        median=float(np.median(means)),
        low=min(means),
        high=max(means),
        interval=interval([means], medians),
        deviation=float(np.median([row["curve"][-1][2] for row in rows])),
        solved=sum(mean > 200.0 for mean in means),
        landed=sum(max(point[1] for point in row["curve"]) > 200.0 for row in rows),
        best=float(np.median([max(point[1] for point in row["curve"]) for row in rows])),
        between=float(np.median(between)) if between else None,
    )


def difference(ours: Sequence[Row], others: Sequence[Row]) -> Difference:
    """How far one cell lies above another after the last update; both have rows."""
    return compare(finals(ours), finals(others))
