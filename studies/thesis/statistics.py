"""From rows to what the seeds of a cell come to. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb

import numpy as np

from studies.differences import LEAST, Difference, Numbers, compare, interval, medians
from studies.thesis.cells import UPDATES, Row

#: The rows of two cells.
Pair = tuple[Sequence[Row], Sequence[Row]]


def passages(rows: Iterable[Row], level: float) -> list[float]:
    """Each seed's `passage`."""
    return [passage([mean for _, mean, _ in row["curve"]], level) for row in rows]


@dataclass(frozen=True)
class Summary:
    """What the seeds of a cell come to, after the last update."""

    seeds: int
    #: Of the seeds' means.
    median: float
    #: Of the median, over seeds.
    interval: tuple[float, float] | None
    #: The median of the deviations of a seed's episodes.
    deviation: float
    #: How many seeds have a mean above 200.
    solved: int
    #: How many had one at any checkpoint.
    landed: int


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


def landed(rows: Iterable[Row]) -> int:
    """How many had a mean above 200 at any checkpoint."""
    return sum(max(point[1] for point in row["curve"]) > 200.0 for row in rows)


def better(row: Row) -> float:
    """The mean of the better child's own weights at the end; the children were judged."""
    return float(max(mean for mean, _ in row["children"].values()))


def summary(rows: Sequence[Row]) -> Summary:
    """Of at least one row."""
    means = finals(rows)
    return Summary(
        seeds=len(rows),
        median=float(np.median(means)),
        interval=interval([means], medians),
        deviation=float(np.median([row["curve"][-1][2] for row in rows])),
        solved=sum(mean > 200.0 for mean in means),
        landed=landed(rows),
    )


def difference(ours: Sequence[Row], others: Sequence[Row]) -> Difference:
    """How far one cell lies above another after the last update; both have rows."""
    return compare(finals(ours), finals(others))


def enough(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs of cells that both have three seeds or more."""
    return [pair for pair in pairs if min(map(len, pair)) >= LEAST]


def luck(pairs: Iterable[Pair]) -> float | None:
    """How likely counts of runs that were ever above 200 are, if no cell has more than luck.

    Fisher's exact test, two-sided, over all pairs together: each pair's own count is taken for
    granted, and what is added up is how many of these are the first cell's.

    Args:
        pairs: of cells, those with `enough` seeds count.

    Returns:
        None without a pair.
    """
    found = enough(pairs)
    if not found:
        return None
    likely = np.ones(1)  # of each sum of the first cells' counts
    seen = 0
    for ours, others in found:
        first, most = landed(ours), len(ours)
        both = first + landed(others)
        seen += first
        ways = [
            comb(most, one) * comb(len(others), both - one) for one in range(min(most, both) + 1)
        ]
        likely = np.convolve(likely, np.array(ways) / comb(most + len(others), both))
    # Sums that are as likely as the one that was seen count, whatever the last bit says.
    return float(likely[likely <= likely[seen] * (1.0 + 1e-9)].sum())


def sooner(pairs: Iterable[Pair], level: float) -> Difference | None:
    """By how many updates the first cells come to a mean sooner: the mean over the pairs.

    Each pair's difference is that of the medians over seeds.

    Args:
        pairs: of cells, those with `enough` seeds count.
        level: a mean return.

    Returns:
        None without a pair.
    """
    samples = [passages(rows, level) for ours, others in enough(pairs) for rows in (others, ours)]
    if not samples:
        return None

    def mean(*groups: Numbers) -> Numbers:
        middles = np.array([medians(group) for group in groups])
        result: Numbers = (middles[::2] - middles[1::2]).mean(axis=0)
        return result

    value = float(mean(*(np.array([sample]) for sample in samples))[0])
    return Difference(value, interval(samples, mean))


@dataclass(frozen=True)
class Standing:
    """Where single runs of others lie among ours, over all cells together."""

    #: That both have.
    cells: int
    #: In how many of them the others' run lies above the median of ours.
    above: int
    #: How likely places so far from the middle are if their run were one more seed of ours.
    chance: float


def standing(cells: Mapping[str, Sequence[Row]], others: Mapping[str, float]) -> Standing | None:
    """Compares one run a cell with our seeds of it (van Elteren 1960, exact and two-sided).

    A run's place is the number of our seeds below it, of n, and ½ for a seed that is equal. With
    nothing to tell the run from ours each of the n + 1 places is as likely. Places are added up
    with the weights 1/(n + 2).

    Args:
        cells: our rows.
        others: the mean after the last update, by cell.

    Returns:
        None if there is no cell with rows.
    """
    distance = Fraction(0)
    sums = {Fraction(0): Fraction(1)}  # how likely each is
    above = known = 0
    for name, mean in others.items():
        ours = finals(cells.get(name, []))
        if not ours:
            continue
        known += 1
        above += mean > float(np.median(ours))
        places = len(ours) + 1
        place = sum(Fraction((mean > one) + (mean >= one), 2) for one in ours)
        distance += (place - Fraction(len(ours), 2)) / (places + 1)
        steps = [(other - Fraction(len(ours), 2)) / (places + 1) for other in range(places)]
        added: defaultdict[Fraction, Fraction] = defaultdict(Fraction)
        for total, likely in sums.items():
            for step in steps:
                added[total + step] += likely / places
        sums = added
    if not known:
        return None
    chance = sum(likely for total, likely in sums.items() if abs(total) >= abs(distance))
    return Standing(known, above, float(chance))
