"""Running means and deviations that travel with the weights.

A `RunningMeanStd` is a view of `1 + 2d` numbers at the end of the weight vector: a count, d sums
and d sums of squares. All three are linear in the data, so blending two vectors blends two samples:
the result is the moments of a weighted mixture, whatever the counts were. (Means and deviations
blended directly would not be.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["RunningMeanStd"]

Array = npt.NDArray[Any]

#: Above this count the past is halved: float32 sums keep their precision, and old policies' states
#: fade.
_FADE = 1e6

_EPSILON = 1e-8


class RunningMeanStd:
    """Count, sums and sums of squares of d-dimensional data, in float32 memory that is given."""

    def __init__(self, memory: Array) -> None:
        self._count = memory[:1]
        self._sum, self._squares = np.split(memory[1:], 2)

    @staticmethod
    def size(dimension: int) -> int:
        """How many numbers the memory for d-dimensional data has."""
        return 1 + 2 * dimension

    def add(self, data: Array) -> None:
        """Takes in a batch of shape (n, d). There is no lock: one of two additions may get lost."""
        data = data.astype(np.float64)
        if self._count[0] > _FADE:
            self._count *= 0.5
            self._sum *= 0.5
            self._squares *= 0.5
        self._count += len(data)
        self._sum += data.sum(0)
        self._squares += np.square(data).sum(0)

    def mean_and_deviation(self) -> tuple[Array, Array]:
        """Both of shape (d,), float32; 0 and 1 while there is no data."""
        count = float(self._count[0])
        if count < 2.0:
            return np.zeros_like(self._sum), np.ones_like(self._sum)
        mean = self._sum.astype(np.float64) / count
        variance = np.maximum(self._squares.astype(np.float64) / count - mean * mean, 0.0)
        return mean.astype(np.float32), np.sqrt(variance + _EPSILON).astype(np.float32)
