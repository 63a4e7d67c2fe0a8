"""Priorities of the replay tensor's rows, as trees of sums: one a core, in shared memory.

A row's probability is its priority over the sum of all (Schaul et al. 2016, §3.3). A tree has the
priorities in its lowest level, and each node above is the sum of `_BRANCHES` below it.

Laws of this file:
- A step gets the largest priority that anybody has given, as soon as its block is whole. Stops, and
  the rows that the core may write next, have 0.
- All cores write all trees, without a lock. A sum that two have written at once may be wrong until
  one of its rows changes again. So what a walk down finds is looked at once more, and is drawn anew
  if it is no step that can be read.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.child.replay_tensor import ReadView, ReplayTensor
from genkidama.child.shared_memory import SharedMemory

__all__ = ["SumTrees", "nodes_of"]

Array = npt.NDArray[Any]

#: Of wide trees few levels have to be walked, and NumPy adds up many numbers as fast as two.
_BRANCHES = 32

#: Added to each error, so that no step is forgotten.
_LEAST = 1e-3

#: So many walks find no step where there is none.
_TRIES = 1000


def _levels(rows: int) -> list[int]:
    """How many nodes each level has, the lowest first."""
    sizes = [max(1, -(-rows // _BRANCHES)) * _BRANCHES]
    while sizes[-1] > _BRANCHES:
        sizes.append(-(-(sizes[-1] // _BRANCHES) // _BRANCHES) * _BRANCHES)
    return sizes


def nodes_of(rows: int) -> int:
    """Nodes of the tree over so many rows."""
    return sum(_levels(rows))


class SumTrees:
    """The trees of all cores.

    Args:
        memory: the child's.
        replay: the tensor in it.
        exponent: α: a priority is (|δ| + 0.001)^α.
    """

    def __init__(self, memory: SharedMemory, replay: ReplayTensor, exponent: float) -> None:
        self._replay = replay
        self._exponent = exponent
        self._largest = memory.largest
        sizes = _levels(replay.tensor.shape[1])
        bounds = np.cumsum([0, *sizes])
        trees = memory.priorities
        #: (C, nodes, _BRANCHES) each, the lowest first.
        self._levels = [
            trees[:, start:stop].reshape(len(trees), -1, _BRANCHES)
            for start, stop in pairwise(bounds)
        ]
        self._rows = trees[:, : sizes[0]]

    def totals(self) -> Array:
        """The sum of each tree: float64 (C,)."""
        result: Array = self._levels[-1][:, 0].sum(1)
        return result

    def written(self, index: int, start: int, stops: int, head: int) -> None:
        """A core has written steps from `start` on, and stops from there to `head`."""
        room = 2 * self._replay.batch
        size = self._replay.tensor.shape[1]
        steps = np.arange(start, stops)
        wraps = head + room > size
        ahead = np.arange(stops, size if wraps else head + room)
        if wraps:
            ahead = np.concatenate((ahead, np.arange(room)))
        rows = np.concatenate((steps, ahead))
        given = np.zeros(len(rows))
        given[: len(steps)] = self._largest.max() or 1.0
        self._set(np.full(len(rows), index), rows, given)

    def prioritize(self, index: int, places: Array, errors: Array) -> None:
        """As `Replay.prioritize`; `index` is the core that does so."""
        given = np.power(np.abs(errors).astype(np.float64) + _LEAST, self._exponent)
        given[~np.isfinite(given)] = 0.0
        cores, rows = np.divmod(places, self._replay.tensor.shape[1])
        # What has become unreadable since it was drawn stays so.
        fresh = self._rows[cores, rows] > 0.0
        self._largest[index] = max(self._largest[index], given.max(initial=0.0))
        self._set(cores[fresh], rows[fresh], given[fresh])

    def draw(
        self,
        rng: np.random.Generator,
        look: ReadView,
        count: int,
        share: int | None,
        replacement: bool,
    ) -> tuple[Array, Array, Array]:
        """Cores and rows of steps in proportion to their priorities, and these: (B,) each.

        Raises:
            ValueError: no steps are there or, without replacement, fewer than `count`.
        """
        totals = self.totals()
        if share is not None:
            totals = np.where(np.arange(len(totals)) == share, totals, 0.0)
        if not replacement:
            cores, rows = self._without(rng, look, count, share)
            return cores, rows, self._rows[cores, rows]
        # One of each of as many equal parts: less depends on chance.
        parts = (np.arange(count) + rng.random(count)) / count
        for _ in range(_TRIES):
            if not totals.any():
                break
            cores, rows = self._walk(totals, parts)
            good = self._steps(look, cores, rows)
            if good.all():
                return cores, rows, self._rows[cores, rows]
            parts = np.where(good, parts, rng.random(count))
        raise ValueError(f"{count} steps asked for, 0 are there")

    def _steps(self, look: ReadView, cores: Array, rows: Array) -> Array:
        """Whether these are steps that can be read: (B,) bool."""
        start = look.start[cores]
        back = (rows >= start) & (rows < start + look.back[cores])
        readable = (rows < look.front[cores]) | back
        result: Array = readable & (self._replay.following[cores, rows] > 0.0)
        return result & (self._rows[cores, rows] > 0.0)

    def _without(
        self, rng: np.random.Generator, look: ReadView, count: int, share: int | None
    ) -> tuple[Array, Array]:
        """Each next one in proportion to what is left: Efraimidis & Spirakis 2006."""
        size = self._replay.tensor.shape[1]
        first = 0 if share is None else share
        shares = self._rows[:, :size] if share is None else self._rows[share : share + 1, :size]
        cores, rows = np.nonzero(shares)
        there = self._steps(look, cores + first, rows)
        cores, rows = cores[there] + first, rows[there]
        if count > len(rows):
            raise ValueError(f"{count} steps asked for, {len(rows)} are there")
        keys = rng.exponential(size=len(rows)) / self._rows[cores, rows]
        chosen = np.argpartition(keys, count - 1)[:count]
        return cores[chosen], rows[chosen]

    def _walk(self, totals: Array, parts: Array) -> tuple[Array, Array]:
        """The leaves at these parts, in [0, 1), of the sum of all trees."""
        ends = np.cumsum(totals)
        left = parts * ends[-1]
        cores = np.minimum(np.searchsorted(ends, left, side="right"), len(ends) - 1)
        left -= (ends - totals)[cores]
        nodes = np.zeros(len(parts), np.intp)
        rows = np.arange(len(parts))
        for level in reversed(self._levels):
            sums = level[cores, nodes].cumsum(1)
            branch = np.minimum((sums <= left[:, None]).sum(1), _BRANCHES - 1)
            left -= np.where(branch > 0, sums[rows, branch - 1], 0.0)
            nodes = nodes * _BRANCHES + branch
        return cores, np.minimum(nodes, self._replay.tensor.shape[1] - 1)

    def _set(self, cores: Array, rows: Array, given: Array) -> None:
        """Priorities of rows, and all sums above them."""
        self._rows[cores, rows] = given
        nodes = rows // _BRANCHES
        for level, above in pairwise(self._levels):
            parents, branches = np.divmod(nodes, _BRANCHES)
            above[cores, parents, branches] = level[cores, nodes].sum(1)
            nodes = parents
