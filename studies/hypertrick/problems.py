"""Problems for `simulator.py`: made-up learning curves. Pure.

Laws of this file:
- What a trial is, how long its phases take and how its metric is disturbed depends on the seed, the
  trial's number and its configuration alone, never on the method or the order of events: methods
  are compared on the same draws.
- Regret is (f* − f(c)) / (f* − f_worst): f is the true value at the last phase, free of noise and
  crashes, c the configuration of the trial that leads (`Outcome.leader`), f* and f_worst are the
  largest and smallest f in the whole space. 0 is perfect; with nothing reported it is 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from studies.hypertrick.simulator import Configuration, Outcome

_Array = npt.NDArray[np.float64]

#: The space of all learning-curve problems is [0, 1] in so many dimensions.
DIMENSIONS = 3


@dataclass(frozen=True)
class LearningCurves:
    """Learning curves over a space of three hyperparameters in [0, 1], of unequal importance.

    The level q(x) is that of the higher of two hills, `height / (1 + d²/2)` at the distance d in
    widths, and the metric approaches it: `q·(1 − exp(−done/τ))` after `done` phases. Noise is on
    the level, so it grows with the metric. The unit of time is about the mean duration of a phase
    on a node of speed 1.
    """

    name: str
    seed: int
    phases: int
    #: The two hills: centre, width in each dimension, height.
    hills: tuple[tuple[Configuration, Configuration, float], ...]
    #: τ in phases, where the third hyperparameter is 0 and where it is 1 (geometric in between).
    slowness: tuple[float, float] = (8.0, 8.0)
    #: Standard deviations of the level, from report to report, and from trial to trial (a trial's
    #: luck stays with it).
    noise: float = 0.03
    luck: float = 0.02
    #: Duration of a phase where the second hyperparameter is 0 and where it is 1 (geometric in
    #: between).
    cost: tuple[float, float] = (1.0, 1.0)
    #: Phases differ by a factor exp(N(0, jitter)).
    jitter: float = 0.15
    #: The probability that a trial collapses at some phase for good, where the first hyperparameter
    #: is 1 (0 where it is 0).
    collapse: float = 0.0

    def value(self, configurations: _Array) -> _Array:
        """f: the true value after the last phase, shape (n,), of configurations of shape (n, 3)."""
        return self._level(configurations) * self._progress(configurations, self.phases)

    @cached_property
    def range(self) -> tuple[float, float]:
        """The smallest and largest f in the space: from a grid, the largest then refined."""
        axis = np.linspace(0.0, 1.0, 33)
        grid = np.stack(np.meshgrid(*[axis] * DIMENSIONS, indexing="ij"), -1).reshape(
            -1, DIMENSIONS
        )
        found = self.value(grid)
        centre, width = grid[int(np.argmax(found))], 1 / 32
        offsets = np.stack(
            np.meshgrid(*[np.linspace(-1, 1, 9)] * DIMENSIONS, indexing="ij"), -1
        ).reshape(-1, DIMENSIONS)
        for _ in range(8):
            around = np.clip(centre + width * offsets, 0.0, 1.0)
            centre, width = around[int(np.argmax(self.value(around)))], width / 3
        return float(found.min()), float(self.value(centre[None])[0])

    def regret(self, configuration: Configuration | None) -> float:
        """See the laws of this file."""
        if configuration is None:
            return 1.0
        low, high = self.range
        return max(0.0, (high - float(self.value(np.array([configuration]))[0])) / (high - low))

    def regret_of(self, outcome: Outcome) -> float:
        """The regret of what a search would choose at its end."""
        return self.regret(
            None if outcome.leader is None else outcome.configurations[outcome.leader.trial]
        )

    def configuration(self, trial: int) -> Configuration:
        return tuple(np.random.default_rng([self.seed, trial, 0, 1]).random(DIMENSIONS).tolist())

    def duration(self, trial: int, configuration: Configuration, phase: int) -> float:
        low, high = self.cost
        return float(
            low
            * (high / low) ** configuration[1]
            * math.exp(self.jitter * self._draws(trial)[1, phase])
        )

    def metric(self, trial: int, configuration: Configuration, phase: int) -> float:
        draws, here = self._draws(trial), np.array([configuration])
        level = self.noise * float(draws[0, phase])
        if self._collapses_at(configuration, draws) > phase:
            level += float(self._level(here)[0]) + self.luck * float(draws[2, 3])
        elif draws[2, 2] > 0:
            return math.nan
        return level * float(self._progress(here, phase + 1)[0])

    def _level(self, configurations: _Array) -> _Array:
        level = np.zeros(len(configurations))
        for centre, width, height in self.hills:
            distance = (((configurations - np.array(centre)) / np.array(width)) ** 2).sum(-1)
            level = np.maximum(level, height / (1.0 + distance / 2))
        return level

    def _progress(self, configurations: _Array, done: int) -> _Array:
        low, high = self.slowness
        return 1.0 - np.exp(-done / (low * (high / low) ** configurations[:, 2]))

    def _draws(self, trial: int) -> _Array:
        """Standard normal: row 0 is noise and row 1 jitter, by phase. Row 2 is the trial's own.

        It says whether the trial collapses, when and how, and its luck.
        """
        found = self._cache.get(trial)
        if found is None:
            found = self._cache[trial] = np.random.default_rng(
                [self.seed, trial, 0, 2]
            ).standard_normal((3, max(self.phases, 4)))
        return found

    @cached_property
    def _cache(self) -> dict[int, _Array]:
        return {}

    def _collapses_at(self, configuration: Configuration, draws: _Array) -> float:
        """The phase from which on the trial reports nothing good, or infinity."""
        whether, when = (0.5 * math.erfc(-float(draw) / math.sqrt(2)) for draw in draws[2, :2])
        return when * self.phases if whether < self.collapse * configuration[0] else math.inf


#: The learning-curve problems by name. `steady`: ranks persist. `crossing`: the higher hill learns
#: slowly, the lower one fast. `costly`: a phase takes up to 8 times as long, by hyperparameter.
#: `unstable`: noise, luck, and trials that collapse or crash.
LEARNING_CURVES: dict[str, dict[str, object]] = {
    "steady": {"slowness": (8.0, 8.0)},
    "crossing": {"slowness": (12.0, 3.0)},
    "costly": {"slowness": (12.0, 5.0), "cost": (0.3, 2.4)},
    "unstable": {"slowness": (10.0, 5.0), "noise": 0.06, "luck": 0.04, "collapse": 0.5},
}


def learning_curves(name: str, seed: int, phases: int) -> LearningCurves:
    """One draw of a problem of `LEARNING_CURVES`: the seed places its hills."""
    # Four words, the last of them different for each use: NumPy takes missing ones for 0, and
    # streams would coincide.
    rng = np.random.default_rng([seed, sorted(LEARNING_CURVES).index(name), 0, 3])
    first, second = rng.uniform(0.15, 0.85, (2, DIMENSIONS)).tolist()
    if name == "crossing":
        first[2], second[2] = 0.2, 0.9
    widths = (0.12, 0.25, 0.6)
    hills = ((tuple(first), widths, 1.0), (tuple(second), widths, 0.7))
    more: dict[str, Any] = LEARNING_CURVES[name]
    return LearningCurves(name, seed, phases, hills, **more)
