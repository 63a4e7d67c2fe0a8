"""Robust aggregation against children that push false values, off by default. Pure.

A compromised (Byzantine) child pushes whatever the protocol allows: every finite vector. A rule
around the run's rule bounds the damage, by options of `[parent]`, if fewer than half of the
children are compromised:

- `push_limit`: a push is left out if it moves the weights much farther than pushes usually do.
- `push_window`: each push counts as the trimmed mean of the newest pushes of several children.
- `quarantine_after`: a child is ignored for a while after repeated rejections.

The usual distance is the median over the children of the usual distance of each, so frequent
pushes give a child no more weight. With fewer than `_CHILDREN` children it is the median of all.
A push that does not move the weights, as before a child has learned anything, is not among them.

Sources: Yin et al. 2018, "Byzantine-Robust Distributed Learning" (the coordinate-wise median and
trimmed mean); Sun et al. 2019, "Can You Really Backdoor Federated Learning?" (norms).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from statistics import median_low
from typing import Any

import msgspec
import numpy as np

from genkidama.config.sections import ParentSettings
from genkidama.errors import ConfigurationError
from genkidama.protocol.vector import BLOCK, Vector
from genkidama.server.rules.blend import Rule, Update

#: Reasons to leave a push out.
FAR, QUARANTINED = "far", "quarantined"

#: Newest distances of a child, whose median is usual for it.
_DISTANCES = 16

#: Pushes that move the weights before the first that can be too far.
_FIRST = 8

#: A move by a smaller share of the weights' norm is rounding, and no learning.
_STILL = 1e-6

#: Children from which on each has one vote.
_CHILDREN = 3


def robust(rule: Rule, settings: ParentSettings) -> Rule:
    """The rule, within a `Robust` rule if one of the options is on.

    Raises:
        ConfigurationError: they do not go with this rule.
    """
    if not (settings.push_limit or settings.push_window or settings.quarantine_after):
        return rule
    if rule.takes == "experience":
        raise ConfigurationError(
            f"parent.rule = {settings.rule!r}: rows are no weights; leave parent.push_limit, "
            "parent.push_window and parent.quarantine_after out"
        )
    return Robust(rule, settings)


class Robust(Rule):
    """A rule around a rule, which gets only the pushes that these options accept. Its statistics of
    the children are lost at a restart."""

    def __init__(self, rule: Rule, settings: ParentSettings) -> None:
        self.rule = rule
        self.takes = rule.takes  # type: ignore[misc]  # the same for all rules of a class but this
        self.convex = rule.convex  # type: ignore[misc]
        self._limit = settings.push_limit
        self._window = settings.push_window
        self._trim = settings.push_trim
        self._after = settings.quarantine_after
        self._seconds = settings.quarantine_seconds
        #: Of each child: how far its last pushes moved the trained numbers, and the statistics.
        self._trained: dict[str, deque[float]] = {}
        self._statistics: dict[str, deque[float]] = {}
        #: Of each child: whether its last pushes were left out or refused.
        self._faults: dict[str, deque[bool]] = {}
        self._until: dict[str, float] = {}
        #: The newest push of each child in the window.
        self._newest: dict[str, Vector] = {}

    def apply(self, parent: Vector, push: Update) -> str | None:
        child = push.child
        if push.seconds < self._until.get(child, -math.inf):
            return QUARANTINED
        far = self._limit > 0.0 and self._is_far(parent, push)
        self._note(child, far, push.seconds)
        if far:
            return FAR
        if self._window:
            self._newest.pop(child, None)
            self._newest[child] = push.vector.copy()
            while len(self._newest) > self._window:
                del self._newest[next(iter(self._newest))]
            push = msgspec.structs.replace(push, vector=self._mean(parent), length=None)
        return self.rule.apply(parent, push)

    def _mean(self, parent: Vector) -> Vector:
        """The trimmed mean of the window. Of two pushes either may be false, so the nearer one
        counts, number by number."""
        vectors = list(self._newest.values())
        if len(vectors) == 2:
            vectors.append(parent if self.takes == "weights" else np.zeros_like(parent))
        return trimmed_mean(vectors, self._trim)

    def _is_far(self, parent: Vector, push: Update) -> bool:
        size = len(parent) - push.statistics
        start = parent[:size] if self.takes == "weights" else None
        distance = _distance(push.vector[:size], start)
        still = 0.0 if start is None else _STILL * _distance(start, None)
        # Else those who have not learned yet would make the first that have too far.
        far = not distance <= still and self._judge(self._trained, push.child, distance)
        if push.statistics:
            shift = _shift(push.vector[size:], parent[size:])
            far = self._judge(self._statistics, push.child, shift) or far
        return far

    def _judge(self, distances: dict[str, deque[float]], child: str, distance: float) -> bool:
        usual = _usual(distances.values())
        distances.setdefault(child, deque(maxlen=_DISTANCES)).append(distance)
        return not distance <= self._limit * usual  # a NaN is far, too

    def _note(self, child: str, fault: bool, now: float) -> None:
        if not self._after:
            return
        faults = self._faults.setdefault(child, deque(maxlen=2 * self._after))
        faults.append(fault)
        if sum(faults) >= self._after:
            self._until[child] = now + self._seconds
            faults.clear()

    def refused(self, child: str) -> None:
        if child in self._faults:
            self._faults[child].append(True)
        self.rule.refused(child)

    def forget(self, child: str) -> None:
        for by_child in (self._trained, self._statistics, self._newest):
            by_child.pop(child, None)
        self.rule.forget(child)


def _inner(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: getattr(self.rule, name)(*arguments)


# The inner rule does the rest.
for _name in vars(Rule).keys() - vars(Robust).keys():
    if callable(getattr(Rule, _name)) and not _name.startswith("_"):
        setattr(Robust, _name, _inner(_name))


def trimmed_mean(vectors: list[Vector], trim: float) -> Vector:
    """Number by number the mean without the largest and the smallest ones. `trim` is the share that
    is left out at each end; 0.5 is the median. A single vector is the mean."""
    count = len(vectors)
    if count == 1:
        return vectors[0]
    out = min(int(trim * count), (count - 1) // 2)
    mean = np.empty_like(vectors[0])
    for start in range(0, len(mean), BLOCK):
        kept = _sorted([vector[start : start + BLOCK] for vector in vectors])[out : count - out]
        # Divided before they are added: the sum of two finite numbers may be infinite.
        part = np.float32(1 / len(kept))
        total = kept[0] * part
        for row in kept[1:]:
            total += row * part
        mean[start : start + BLOCK] = total
    return mean


def _sorted(rows: list[Vector]) -> list[Vector]:
    """The rows with each column sorted, by transposition. NumPy's own sort takes a column at a time
    and so costs eight times as much for the few rows of a window."""
    for turn in range(len(rows)):
        for low in range(turn % 2, len(rows) - 1, 2):
            pair = rows[low], rows[low + 1]
            rows[low] = np.minimum(*pair)
            rows[low + 1] = np.maximum(*pair)
    return rows


def _usual(by_child: Iterable[deque[float]]) -> float:
    """The usual distance: infinity while that cannot be known."""
    judged = [list(distances) for distances in by_child if distances]
    if sum(map(len, judged)) < _FIRST:
        return math.inf
    if len(judged) < _CHILDREN:
        return median_low([distance for distances in judged for distance in distances])
    return median_low([median_low(distances) for distances in judged])


def _distance(vector: Vector, start: Vector | None) -> float:
    """Euclidean, from `start` or, without it, from zero; infinity if it is too long for a float."""
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for begin in range(0, len(vector), BLOCK):
            block = vector[begin : begin + BLOCK]
            if start is not None:
                block = block - start[begin : begin + BLOCK]
            total += float(block.dot(block))
    return math.sqrt(total) if total < math.inf else math.inf


def _shift(ours: Vector, before: Vector) -> float:
    """The distance of running statistics: the largest difference of a mean, in deviations of
    `before`, or of the logarithm of a deviation."""
    farthest = 0.0
    with np.errstate(all="ignore"):
        for mine, theirs in zip(_moments(ours), _moments(before), strict=True):
            shifts = np.abs(mine[0] - theirs[0]) / theirs[1], np.abs(np.log(mine[1] / theirs[1]))
            farthest = max(farthest, *(float(np.max(shift, initial=0.0)) for shift in shifts))
    return farthest


def _moments(statistics: Vector) -> list[tuple[Any, Any]]:
    """Mean and deviation of the observations and of the returns, as far as there are any. Each
    group is a count, d sums and d sums of squares: an odd number of numbers."""
    size = len(statistics)
    groups = [statistics] if size % 2 else [statistics[: size - 3], statistics[size - 3 :]]
    moments = []
    for group in groups:
        numbers = group.astype(np.float64)
        count = max(1.0, numbers[0])
        half = len(numbers) // 2
        mean = numbers[1 : half + 1] / count
        variance = numbers[half + 1 :] / count - mean * mean
        moments.append((mean, np.sqrt(np.maximum(variance, 0.0) + 1e-8)))
    return moments
