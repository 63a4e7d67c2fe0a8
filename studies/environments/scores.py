"""From rows to figures: returns at equal wall clock and at equal steps, and their mean. Pure.

The interquartile mean is that of Agarwal et al. ("Deep Reinforcement Learning at the Edge of the
Statistical Precipice", 2021, §4.3): the mean of the middle half of all scores. Its interval is a
percentile bootstrap, stratified: of each environment seeds are drawn by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.store import Row
from studies.differences import Numbers, compare, interval

#: By environment and contender: rows by seed.
Rows = dict[tuple[str, str], dict[int, Row]]

OURS = "genkidama"


def grouped(rows: Iterable[Row]) -> Rows:
    """The rows by environment, contender and seed; of two with the same the later one counts."""
    found: Rows = {}
    for row in rows:
        found.setdefault((row["environment"], row["contender"]), {})[row["seed"]] = row
    return found


def at_steps(curve: Sequence[Sequence[float]], steps: float) -> float | None:
    """The training mean after so many steps, on the line between the points around them; None
    before the first, the last behind it. A fast program's points are 10,000s of steps apart.

    Args:
        curve: points of seconds, steps and mean return, in their order.
        steps: of the environment.
    """
    if not curve or steps < curve[0][1]:
        return None
    _, done, means = zip(*curve, strict=True)
    return float(np.interp(steps, done, means))


def at_equal_steps(ours: dict[int, Row], theirs: dict[int, Row]) -> tuple[list[float], list[float]]:
    """Training means of both programs with the seeds that both have, where the shorter one ends."""
    pairs = []
    for seed in sorted(ours.keys() & theirs.keys()):
        curves = ours[seed]["curve"], theirs[seed]["curve"]
        if all(curves):
            steps = min(curve[-1][1] for curve in curves)
            pairs.append([at_steps(curve, steps) for curve in curves])
    known = [(one, other) for one, other in pairs if one is not None and other is not None]
    return [one for one, _ in known], [other for _, other in known]


def outcome(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """`"win"` or `"loss"` where the interval of the medians' difference leaves 0 out, else `"tie"`;
    empty with fewer than three seeds in one of them."""
    if not ours or not theirs or (found := compare(ours, theirs)).clear is None:
        return ""
    return ("win" if found.value > 0.0 else "loss") if found.clear else "tie"


def normalized(values: Sequence[float], chance: float, reference: float) -> list[float]:
    """Returns on a line where random actions have 0 and the reference has 1."""
    return [(value - chance) / (reference - chance) for value in values]


def interquartile_mean(scores: Numbers) -> Numbers:
    """The mean of (…, n) scores without the lowest and the highest ⌊n/4⌋, to (…)."""
    cut = scores.shape[-1] // 4
    middle = np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut]
    found: Numbers = middle.mean(axis=-1)
    return found


def together(samples: Sequence[Sequence[float]]) -> tuple[float, tuple[float, float] | None]:
    """The interquartile mean of the scores of all environments, and its stratified interval."""

    def figure(*drawn: Numbers) -> Numbers:
        return interquartile_mean(np.concatenate(drawn, axis=1))

    value = interquartile_mean(np.concatenate([np.asarray(one) for one in samples]))
    return float(value), interval(samples, figure)


@dataclass(frozen=True)
class Standing:
    """Our outcomes beside a program, in two counts."""

    clock: Counter[str]
    steps: Counter[str]


def standing(rows: Rows, environments: Iterable[str], program: str) -> Standing:
    """Wins, ties and losses of ours over the environments where both have three seeds."""
    clock: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    for environment in environments:
        ours = rows.get((environment, OURS), {})
        theirs = rows.get((environment, program), {})
        clock[outcome(means(ours), means(theirs))] += 1
        steps[outcome(*at_equal_steps(ours, theirs))] += 1
    return Standing(clock, steps)


def means(rows: dict[int, Row]) -> list[float]:
    """The mean return of each seed's last weights."""
    return [rows[seed]["mean"] for seed in sorted(rows)]
