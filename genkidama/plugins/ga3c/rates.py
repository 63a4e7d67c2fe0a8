"""What the threads of an engine do a second, and how large and how late their batches are."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.plugins.ga3c.slots import Count

__all__ = ["Rates"]


class Rates:
    """Reads the counters of all threads."""

    def __init__(self) -> None:
        self._counted = np.zeros(len(Count), np.int64)
        self._counted_at = 0.0

    def begin(self) -> None:
        """The first span begins now."""
        self._counted_at = time.monotonic()

    def figures(self, counters: npt.NDArray[Any]) -> dict[str, float]:
        """What was done since the last call.

        Args:
            counters: by `Count`, of all threads together.
        """
        now = time.monotonic()
        done, seconds = counters - self._counted, now - self._counted_at
        self._counted, self._counted_at = counters, now
        predictions, batches, rollouts, steps, updates, lag = done.tolist()
        return {
            "tps": rollouts / seconds,
            "pps": predictions / seconds,
            "updates": updates / seconds,
            # A mean of nothing is no figure. NaN is left out.
            "prediction_batch": predictions / batches if batches else math.nan,
            "training_batch": steps / updates if updates else math.nan,
            "lag": lag / steps if steps else math.nan,
        }
