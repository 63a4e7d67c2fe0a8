"""The action cycle of environments with a clock: how long it takes from one action to the next.

Laws of this file:
- Counts only grow and have one writer, so a reader takes the difference to what it read before.
- A cycle is counted in hundredths of a period, so a percentile is exact to 1 % of the period.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["COUNTS", "CycleReader", "Cycles"]

Array = npt.NDArray[Any]

#: Bins of 1 % of a period; the last one has all longer cycles.
_BINS = 1000

#: Numbers of one process' counts, int64: the bins, late steps, and safe actions.
COUNTS = _BINS + 2

#: The fewest cycles of a percentile.
_LEAST = 100


class Cycles:
    """The counts of one environment.

    Args:
        period: seconds of a step.
        counts: int64 (COUNTS,), memory that the reader sees, too.
    """

    def __init__(self, period: float, counts: Array) -> None:
        self._period, self._counts = period, counts

    def add(self, seconds: float, late: bool, safe: bool) -> None:
        """Counts a cycle.

        Args:
            seconds: since the action before.
            late: whether the action came more than a tenth of a period after its time.
            safe: whether the safe action stood in for that of the policy.
        """
        place = min(_BINS - 1, int(100.0 * seconds / self._period))
        self._counts[place] += 1
        if late:
            self._counts[_BINS] += 1
        if safe:
            self._counts[_BINS + 1] += 1


class CycleReader:
    """The figures of a child's environments, for its pushes.

    Args:
        period: seconds of a step.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._before = np.zeros(COUNTS, np.int64)

    def figures(self, counts: Array) -> dict[str, float]:
        """Milliseconds of the median and of the 99th percentile since the last figures, and the
        late steps and safe actions so far; empty while there are too few new cycles.

        Args:
            counts: int64 (processes, COUNTS).
        """
        now = counts.sum(0)
        grown = (now - self._before)[:_BINS].cumsum()
        if grown[-1] < _LEAST:
            return {}
        self._before = now
        places = np.searchsorted(grown, grown[-1] * np.array([0.5, 0.99])) + 1
        median, high = (places * 10.0 * self._period).tolist()
        return {
            "cycle_p50_ms": median,
            "cycle_p99_ms": high,
            "late_steps": float(now[_BINS]),
            "safe_steps": float(now[_BINS + 1]),
        }
