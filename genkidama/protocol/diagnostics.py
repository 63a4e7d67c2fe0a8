"""Diagnostics of learning as running sums, of which orchestrators make means, and the cycles of
environments with a clock, from one action to the next. Pure NumPy.

Laws of this file:
- A row of sums has one writer and no lock. It only grows, so a reader takes the difference to what
  it read before.
- Sums and weights are written by one addition over the whole row. A reader that comes in between,
  within a fraction of a microsecond, is wrong by one update of many.
- A cycle is counted in hundredths of a period, so a percentile is exact to 1 % of the period.
- Noting costs some 25 µs, so it is done now and then, by samples or updates. All updates
  have the same chance.

`docs/notes/diagnostics.md` says what the figures mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: What a learner or a backend may note: each is a mean.
_NOTED = (
    *("loss", "policy_loss", "value_loss", "entropy", "approximate_kl", "clip_fraction"),
    *("td_error", "q_mean", "gradient_norm", "episode_length"),
)

#: What the explained variance is made from: means of R, R², R − V and (R − V)².
_MOMENTS = ("returns", "squared_returns", "residual", "squared_residual")

_ROWS = {name: row for row, name in enumerate((*_NOTED, *_MOMENTS))}

#: The diagnostics, in the order in which they are shown.
DIAGNOSTICS = (
    *(*_NOTED[:6], "explained_variance", *_NOTED[6:9]),
    *("learning_rate", "epsilon", "episode_length"),
)

#: How much they stand for: samples, and episodes for their length.
WEIGHTS = ("samples", "episodes_ended")

#: Figures of a child's machine, which `genkidama.child.health` measures, its cores' lanes, and the
#: chunks of an exchange over its link.
HEALTH = (
    *("celsius", "throttled", "undervoltage", "megahertz", "wifi_dbm", "free_megabytes"),
    *("watts", "lanes", "resting_lanes", "chunks"),
)

#: Steps of a core without the end of an episode, after which child and parent say so. It is more
#: than the longest episode of Gymnasium's, also where a core plays several.
ENDLESS_STEPS = 100_000

#: Of a process' sums: a row a figure, with the sum and its weight; float64.
SHAPE = (len(_ROWS), 2)

#: Samples after which an update is measured, or updates if that is earlier.
_SAMPLES = 2048
_UPDATES = 32

#: The explained variance of fewer samples says nothing.
_LEAST_SAMPLES = 64

#: Beyond this a ratio of probabilities says no more than that the policies differ.
_LARGEST_LOG_RATIO = 20.0

#: A value of this size is left out: training has diverged, and the sum would never be one again.
_LARGEST = 1e30


class Diagnostics:
    """Sums of one process or thread: its row in the reader's memory, float64, of `SHAPE`."""

    def __init__(self, sums: Array) -> None:
        self._sums = sums
        self._new = [0.0] * sums.size
        self._samples = _SAMPLES // 2
        self._updates = 0
        self._measured = False

    def due(self, samples: int) -> bool:
        """True if this update, with its samples, is to be measured. Call once an update."""
        self._samples += samples
        if self._samples < _SAMPLES and self._updates < _UPDATES:
            return False
        self._samples = self._updates = 0
        self._measured = True
        return True

    def add(self, weight: float, **means: float) -> None:
        """Notes means over samples, by their names; what is not finite is left out."""
        new = self._new
        for name, mean in means.items():
            if abs(mean) < _LARGEST:
                place = 2 * _ROWS[name]
                new[place] += weight * mean
                new[place + 1] += weight

    def add_values(self, values: Array, returns: Array) -> None:
        """Notes what the values V explain of the returns R that they learn from: both (n,)."""
        wide = returns.astype(np.float64)
        residual = wide - values
        n = len(wide)
        self.add(
            n,
            returns=wide.sum() / n,
            squared_returns=np.dot(wide, wide) / n,
            residual=residual.sum() / n,
            squared_residual=np.dot(residual, residual) / n,
        )

    def updated(self) -> bool:
        """Counts an update; whether the norm of its gradient is to be noted, by `close`."""
        self._updates += 1
        return self._measured or self._updates >= 2 * _UPDATES

    def close(self, norm: float) -> None:
        """Notes a gradient's norm, and gives all that was noted to the reader."""
        self.add(1.0, gradient_norm=norm)
        self._measured = False
        self._updates = 0
        self._sums += np.array(self._new).reshape(SHAPE)
        self._new = [0.0] * len(self._new)

    def ended(self, length: int) -> None:
        """Notes the end of an episode, with its steps."""
        self._sums[_ROWS["episode_length"]] += (length, 1.0)


class Window:
    """The growth of the sums since they were last read."""

    def __init__(self) -> None:
        self._before = np.zeros(SHAPE)

    def read(self, sums: Array) -> dict[str, float]:
        """The means since the last call, by name, of all writers' sums; without what was not noted.

        Beside them `samples` and `episodes_ended` say how much they stand for (`weight_of`).
        """
        grown = sums - self._before
        ripe = grown[:, 1] > 0.0
        moments = slice(len(_NOTED), None)
        ripe[moments] &= grown[moments, 1].min() >= _LEAST_SAMPLES
        self._before[ripe] = sums[ripe]
        means = {
            name: float(grown[row, 0] / grown[row, 1]) for name, row in _ROWS.items() if ripe[row]
        }
        of_returns = [means.pop(name) for name in _MOMENTS if name in means]
        if of_returns:
            means["explained_variance"] = _explained_variance(*of_returns)
        weights = zip(WEIGHTS, ("loss", "episode_length"), strict=True)
        counts = {name: float(grown[_ROWS[of], 1]) for name, of in weights if of in means}
        figures = {name: means[name] for name in DIAGNOSTICS if name in means}
        return {name: value for name, value in figures.items() if not math.isnan(value)} | counts


def _explained_variance(r: float, r2: float, e: float, e2: float) -> float:
    """1 − Var(R − V)/Var(R), or NaN where all returns are the same."""
    variance = r2 - r * r
    if variance <= 1e-12 * max(r2, 1e-12):
        return math.nan
    return 1.0 - max(0.0, e2 - e * e) / variance


def approximate_kl(log_ratio: Array) -> float:
    """The mean of ρ − 1 − log ρ over samples of the policy that acted: about KL(μ‖π).

    It is unbiased, never negative, and varies less than the mean of −log ρ (Schulman 2020,
    "Approximating KL divergence"). log ρ = log π(a|s) − log μ(a|s), (n,).
    """
    cut = np.minimum(log_ratio, _LARGEST_LOG_RATIO)
    return float((np.expm1(cut) - cut).mean())


def weight_of(name: str, figures: Mapping[str, float]) -> float:
    """The weight of a child's figure of this name in a mean over children, 0 at least."""
    if name not in DIAGNOSTICS:
        return 1.0
    of = "episodes_ended" if name == "episode_length" else "samples"
    return max(0.0, figures.get(of, 1.0))


#: Bins of 1 % of a period; the last one has all longer cycles.
_BINS = 1000

#: Numbers of one process' counts, int64: the bins, late steps, and safe actions.
CYCLE_COUNTS = _BINS + 2

#: The fewest cycles of a percentile.
_LEAST_CYCLES = 100


class Cycles:
    """The counts of one environment.

    Args:
        period: seconds of a step.
        counts: int64 (CYCLE_COUNTS,), memory that the reader sees, too.
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
        self._counts[_BINS] += late
        self._counts[_BINS + 1] += safe


class CycleReader:
    """The figures of a child's environments, for its pushes.

    Args:
        period: seconds of a step.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._before = np.zeros(CYCLE_COUNTS, np.int64)

    def figures(self, counts: Array) -> dict[str, float]:
        """Milliseconds of the median and of the 99th percentile since the last figures, and the
        late steps and safe actions so far; empty while there are too few new cycles.

        Args:
            counts: int64 (processes, CYCLE_COUNTS).
        """
        now = counts.sum(0)
        grown = (now - self._before)[:_BINS].cumsum()
        if grown[-1] < _LEAST_CYCLES:
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
