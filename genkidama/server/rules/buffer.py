"""How many pushes make one step of θ_P: buffered aggregation (Nguyen et al. 2022, FedBuff). Pure.

Nobody waits: a push that has to wait is added up here, and its child gets θ_P at once. There is no
clock either. What waits is used when the buffer is full, or by the first push that comes when the
oldest has waited long enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from genkidama.protocol.vector import DTYPE, Vector, length
from genkidama.server.rules.blend import RuleState, Update
from genkidama.server.rules.options import WeightedOptions

__all__ = ["UpdateBatch", "Buffer"]

_SUM, _COUNTS = "waiting", "waiting_counts"


@dataclass
class UpdateBatch:
    """Pushes that make one step."""

    #: Their weighted sum, which may be written to only if `count` is above 1.
    total: Vector
    #: What `total` has yet to be multiplied by: the weight of a push that came alone.
    factor: float
    #: The sum of their weights.
    weight: float
    #: How many they are.
    count: int
    #: An upper bound for the Euclidean norm of `factor` times `total`.
    length: float


class Buffer:
    """Adds up weighted vectors until they make a step."""

    def __init__(self, options: WeightedOptions) -> None:
        self._size = options.buffer
        self._seconds = options.milliseconds / 1e3
        self._total: Vector | None = None
        self._weight = 0.0
        self._count = 0
        self._since = 0.0

    def add(self, vector: Vector, weight: float, push: Update) -> UpdateBatch | None:
        """Takes a push in.

        Args:
            vector: its numbers, float32, shape (n,), only read.
            weight: what it counts.

        Returns:
            The pushes that make a step now; None if more are needed.
        """
        size = max(1, push.children) if self._size == "children" else self._size
        if size == 1 and not self._count:
            longest = math.inf if push.length is None else weight * push.length
            return UpdateBatch(vector, weight, weight, 1, longest)
        if self._total is None:
            self._total = np.zeros(len(vector), DTYPE)
        if not self._count:
            self._since = push.seconds
        self._total += weight * vector
        self._weight += weight
        self._count += 1
        late = self._seconds and push.seconds - self._since >= self._seconds
        if self._count < size and not late:
            return None
        batch = UpdateBatch(self._total, 1.0, self._weight, self._count, length(self._total))
        self._total = None
        self._weight = 0.0
        self._count = 0
        return batch

    def state(self) -> RuleState:
        if self._total is None:
            return {}
        counts = np.array([self._weight, self._count, self._since])
        return {_SUM: self._total, _COUNTS: counts}

    def restore(self, state: RuleState) -> None:
        """Takes its own arrays out of a rule's state."""
        self._total = state.get(_SUM)
        weight, count, since = state.get(_COUNTS, np.zeros(3))
        self._weight = float(weight)
        self._count = int(count)
        self._since = float(since)
