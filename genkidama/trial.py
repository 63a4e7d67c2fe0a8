"""A trial: one set of hyperparameters with its weights, and how far it has come. Pure.

A plain run has one, shared by all children. In a search each child trains one of its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import fsum
from typing import Any

import msgspec

from genkidama.weights import Signature, Vector

__all__ = ["Snapshot", "Trial"]


@dataclass
class Trial:
    """θ_P of one set of hyperparameters, what it means, and how far it has come."""

    #: Over so many of the last episodes `mean_return` is taken.
    window: int
    #: In a search, its number in the order of starting; None in a plain run.
    number: int | None = None
    #: The experiment with this trial's settings, as a child is told it.
    experiment: dict[str, Any] = field(default_factory=dict)
    signature: Signature | None = None
    vector: Vector | None = None
    #: How many pushes have been applied.
    version: int = 0
    episodes: int = 0
    steps: int = 0
    #: Why nobody trains it any more; empty while somebody may.
    stop: str = ""
    returns: deque[float] = field(default_factory=deque)
    _sum: float = 0.0
    _unchecked: int = 0

    def add_returns(self, returns: list[float]) -> None:
        kept = self.returns
        for value in returns:
            kept.append(value)
            self._sum += value
            if len(kept) > self.window:
                self._sum -= kept.popleft()
        self._unchecked += len(returns)
        if (
            self._unchecked >= self.window
        ):  # the running sum's rounding errors are thrown away now and then
            self._sum, self._unchecked = fsum(kept), 0

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last `window` episodes, of fewer if there are fewer, None if there are none."""
        return self._sum / len(self.returns) if self.returns else None

    def restore(self, snapshot: Snapshot, signature: Signature, vector: Vector) -> None:
        """Goes on where a checkpoint left off. The vector is taken over, not copied."""
        self.signature, self.vector, self.version = signature, vector, snapshot.version
        self.episodes, self.steps = snapshot.episodes, snapshot.steps
        self.add_returns(snapshot.returns)


class Snapshot(msgspec.Struct, kw_only=True):
    """A trial's state as a checkpoint's metadata holds it, beside the vector and its signature."""

    version: int
    exchanges: int
    updates: float
    episodes: int
    steps: int
    #: Seconds of training so far.
    seconds: float
    alpha: float
    beta: float
    mean_return: float | None = None
    returns: list[float] = []
    #: Per child: `exchanges`, `episodes`, `steps`.
    children: dict[str, dict[str, int]] = {}
    experiment: dict[str, Any] = {}
