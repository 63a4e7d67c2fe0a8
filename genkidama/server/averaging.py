"""The parent's side of averaging in chunks: the number of children that push, and α. Pure.

A child that learns from the newest θ_P adds the difference θ_C − θ_base. Differences of n children
are nearly orthogonal, so their mean is √n too short; amplified more than twice, what all of them
agree on comes too often before anybody sees it. So each counts η = min(1/2, 2/n).
"""

from __future__ import annotations

from typing import Any

from genkidama.config.experiment import Experiment
from genkidama.config.schedules import following
from genkidama.server.events import AveragingChosen, Event

#: The memory of the count of children, in pushes of each.
_MEMORY = 8

#: The count's weights grow up to this before they are scaled down.
_LARGEST = 1e100

#: The share of the newest push in the mean staleness.
_NEW = 0.02

#: Beyond this many versions a child, a push counts the less, the staler it is.
_FRESH = 4.0

#: The smallest change of n that is reported, and the seconds between two reports.
_CHANGE, _SECONDS = 0.75, 2.0


class PushingChildren:
    """n, the number of children that push lately: (Σw)²/Σw², where w is a child's number of pushes.

    A push counts the less, the more pushes have come since. n is the number of children if all push
    equally often; one that pushes seldom counts as a part of one.
    """

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}
        #: Instead of older pushes counting less, each newer one counts more.
        self._newest = 1.0
        self._sum = self._squares = 0.0

    def note(self, child: str, joined: int) -> None:
        """Counts a push of this child, while so many take part."""
        self._newest *= 1.0 + 1.0 / (_MEMORY * max(4, joined))
        before = self._weights.get(child, 0.0)
        self._weights[child] = before + self._newest
        self._sum += self._newest
        self._squares += self._newest * (2.0 * before + self._newest)
        if self._newest > _LARGEST:
            self.restore(self.weights())

    def weights(self) -> dict[str, float]:
        """By child: w, in which the newest push of all counts one."""
        weights = self._weights.items()
        newest = self._newest
        return {name: weight / newest for name, weight in weights if weight > 1e-6 * newest}

    def restore(self, weights: dict[str, float]) -> None:
        """Goes on from a result of `weights`."""
        self._weights = weights
        self._newest = 1.0
        self._sum = sum(weights.values())
        self._squares = sum(weight * weight for weight in weights.values())

    @property
    def count(self) -> float:
        """n; 0 before the first push."""
        return self._sum * self._sum / self._squares if self._squares else 0.0


class Averaging:
    """Settings that follow the number of children with `child.exchange = "chunk"`.

    The experiment's `adapts` names them. `events` takes what the parent chose, whenever it changes.
    """

    def __init__(self, experiment: Experiment, events: list[Event]) -> None:
        self._experiment = experiment
        self._events = events
        #: A checkpoint keeps it: after a restart all push differences of an outage at once.
        self.pushing = PushingChildren()
        self._differences = experiment.pushes == "difference"
        self._staleness = 0.0
        self._reported, self._after = 0.0, 0.0

    @property
    def children(self) -> float:
        """n; 0 before the first push."""
        return self.pushing.count

    def push(self, child: str, joined: int, staleness: int, now: float) -> float | None:
        """Counts a push; returns α for it, or None if the experiment sets that.

        `staleness` are the versions since the child's base.
        """
        self.pushing.note(child, joined)
        n = self.pushing.count
        fresh = _FRESH * n
        self._staleness += _NEW * (min(float(staleness), fresh) - self._staleness)
        if abs(n - self._reported) >= _CHANGE and now >= self._after:
            self._reported, self._after = n, now + _SECONDS
            self._report(n, now)
        if "alpha" not in self._experiment.adapts:
            return None
        return self._alpha(n) * min(1.0, fresh / max(1.0, staleness))

    def _alpha(self, n: float) -> float:
        """η of a difference. A blend with α also takes back α of what others did meanwhile, so its
        η is α/(1 + α·s) at staleness s."""
        eta = min(0.5, 2.0 / n)
        return eta if self._differences else eta / max(0.5, 1.0 - eta * self._staleness)

    def _report(self, n: float, now: float) -> None:
        child = following(self._experiment, n)
        chosen: dict[str, Any] = {
            "alpha": round(self._alpha(n), 3),
            "lanes": round(child.lanes),
            "minibatch_size": child.minibatch_size,
            "learning_rate": round(self._experiment.optimizer.learning_rate * child.rate, 6),
        }
        chosen = {name: chosen[name] for name in self._experiment.adapts}
        children, staleness = round(n, 1), round(self._staleness, 1)
        event = AveragingChosen(time=now, children=children, staleness=staleness, **chosen)
        self._events.append(event)
