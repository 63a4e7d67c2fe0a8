"""Medians over seeds, how far they lie apart, and how a document writes it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

#: What stands for what is missing.
NONE = "–"
#: A bootstrap draws so often, always the same way.
_DRAWS = 20_000
_SEED = 18
#: Fewer seeds than this give no interval: a bootstrap of two says far too little.
LEAST = 3


def interval(
    samples: Sequence[Sequence[float]], figure: Callable[..., Numbers]
) -> tuple[float, float] | None:
    """The 95 % percentile bootstrap interval (Efron 1979) over seeds.

    Args:
        samples: of independent groups, each drawn from by itself.
        figure: of arrays (draws, n), one a group, to (draws,).

    Returns:
        Its ends; None if a group has fewer than three values.
    """
    if min(map(len, samples)) < LEAST:
        return None
    rng = np.random.default_rng(_SEED)
    drawn = [
        np.asarray(sample)[rng.integers(len(sample), size=(_DRAWS, len(sample)))]
        for sample in samples
    ]
    low, high = np.quantile(figure(*drawn), [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class Difference:
    """Of two groups' medians over seeds, the first less the second."""

    value: float
    #: None with fewer than three seeds in one of them.
    interval: tuple[float, float] | None

    @property
    def clear(self) -> bool | None:
        """Whether the interval leaves 0 out; None without one."""
        if self.interval is None:
            return None
        return self.interval[0] > 0.0 or self.interval[1] < 0.0


def compare(ours: Sequence[float], others: Sequence[float]) -> Difference:
    """How far the median of some values lies above that of others; neither is empty."""

    def less(a: Numbers, b: Numbers) -> Numbers:
        result: Numbers = medians(a) - medians(b)
        return result

    value = float(np.median(ours) - np.median(others))
    return Difference(value, interval([ours, others], less))


def medians(drawn: Any) -> Numbers:
    """For `interval`: of each draw, (draws, n) to (draws,)."""
    found: Numbers = np.median(drawn, axis=1)
    return found


def number(value: float, sign: bool = False) -> str:
    """With a real minus sign."""
    return f"{value:{'+' if sign else ''}.1f}".replace("-", "−")


def span(interval: tuple[float, float] | None) -> str:
    """An interval, if there is one."""
    return NONE if interval is None else f"{number(interval[0])} to {number(interval[1])}"


def middle(values: Sequence[float]) -> str:
    """Their median, with its interval if there is one."""
    ends = interval([values], medians)
    return number(float(np.median(values))) + (f" ({span(ends)})" if ends else "")


def verdict(found: Difference, more: str = "higher", less: str = "lower") -> str:
    """What a difference says, in a word or two."""
    match found.clear:
        case None:
            return "too few seeds"
        case False:
            return "no clear difference"
        case True:
            return more if found.value > 0.0 else less


def apart(found: Difference) -> str:
    """A difference, with its interval."""
    value = number(found.value, sign=True)
    return value if found.interval is None else f"{value} ({span(found.interval)})"


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of a page."""
    every = [f"| {' | '.join(line)} |\n" for line in (head, *lines)]
    return "".join([every[0], "|" + "---|" * len(head) + "\n", *every[1:]])
