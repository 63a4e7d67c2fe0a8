"""How a plain run stands, gathered from its events: what all displays and summaries show. Pure.

Laws of this file:
- Times are those of the events. Who shows a moment between two events says what time it is then.
- What was done before a parent was started again counts as done, and not as done by it.
- When a run is over, its children leave. It still counts as theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import UNSET

from genkidama.diagnostics import DIAGNOSTICS, WEIGHTS, weight_of
from genkidama.events import Event, Exchange, Joined, Left, Measures, Resumed, Started, Stopped
from genkidama.experiment import Experiment
from genkidama.formats import duration, plural, rate, remaining

__all__ = ["Curve", "Member", "Pace", "Standing", "newest"]

#: A speed is that of the last so many seconds.
_WINDOW = 10.0

#: Points of a speed lie so many seconds apart.
_GRAIN = 0.1

#: A curve keeps so many points at most.
_POINTS = 400

#: So many children that have left are remembered.
_MOST_AWAY = 100

#: Measures that add up over children; of the others the mean is shown.
_SUMMED = ("pps", "tps")

#: Diagnostics that a log's line has, and how it calls them.
_SAID = {"entropy": "entropy", "approximate_kl": "KL", "explained_variance": "EV", "q_mean": "Q"}


class Pace:
    """How fast a count grows."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()
        self._last = (0.0, 0)

    def add(self, time: float, count: int) -> None:
        """Takes in what the count is at `time`, which never goes back."""
        points = self._points
        self._last = (time, count)
        if not points or time - points[-1][0] >= _GRAIN:
            points.append(self._last)
        while time - points[0][0] > _WINDOW:
            points.popleft()

    def rate(self, now: float) -> float:
        """How much a second it has grown of late, never below 0 though a killed parent forgets
        some."""
        if not self._points or now - self._last[0] > _WINDOW:
            return 0.0
        first, before = self._points[0]
        last, after = self._last
        return max(0.0, (after - before) / (last - first)) if last > first else 0.0


class Curve:
    """Values over time, thinned out as they become many."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []
        self._gap = 0.0

    def add(self, time: float, value: float) -> None:
        """Takes in one value; `time` never goes back."""
        points = self._points
        if len(points) > 1 and points[-1][0] - points[-2][0] < self._gap:
            points[-1] = (time, value)
            return
        points.append((time, value))
        if len(points) > _POINTS:
            self._gap = 2.0 * (time - points[0][0]) / _POINTS
            self._points = points[::2]

    @property
    def points(self) -> list[tuple[float, float]]:
        """Times and values."""
        return self._points


@dataclass
class Member:
    """One child, there or gone."""

    since: float
    #: Why it is not there; empty while it is.
    away: str = ""
    #: When it last exchanged; None before the first time.
    exchanged: float | None = None
    staleness: int = 0
    steps: int = 0
    pace: Pace = field(default_factory=Pace)
    #: What its backend measured last.
    figures: dict[str, float] = field(default_factory=dict)


class Standing:
    """How a plain run stands.

    Args:
        experiment: for the stop conditions.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.stop = experiment.stop
        self.name = experiment.environment.id
        self.algorithm = experiment.algorithm.name
        self.run = ""
        #: Why the run is over; empty while it goes on.
        self.reason = ""
        self.last: Exchange | None = None
        self.curve = Curve()
        self.members: dict[str, Member] = {}
        self._pace = Pace()
        #: What a learner beside the parent measured last.
        self._learner: dict[str, float] = {}
        self._began: float | None = None
        #: Seconds of training before this parent.
        self._before = 0.0
        #: How much was done before the first exchange that was seen here.
        self._share_before: float | None = None

    def take(self, event: Event) -> None:
        """Takes in one event."""
        match event:
            case Exchange():
                self._take_exchange(event)
            case Measures():
                if event.backend == "learner":
                    self._learner = newest(self._learner, event.figures)
                elif (member := self.members.get(event.child)) is not None:
                    member.figures = newest(member.figures, event.figures)
            case Started() | Resumed():
                self._begin(event)
            case Joined():
                self._began = event.time if self._began is None else self._began
                self.members.pop(event.child, None)
                self.members[event.child] = Member(event.time)
            case Left():
                self._take_leave(event.child, event.reason)
            case Stopped():
                self.reason = event.reason

    def _begin(self, event: Started | Resumed) -> None:
        self.run = event.run
        self.reason = ""
        if isinstance(event, Resumed) and event.seconds is not UNSET:
            self._before = event.seconds
            self._began = None
        for name in self.members:
            self._take_leave(name, "the parent was started again")

    def _take_leave(self, child: str, reason: str) -> None:
        if self.reason or child not in self.members:
            return
        self.members[child].away = reason or "left"
        gone = [name for name, member in self.members.items() if member.away]
        for name in gone[:-_MOST_AWAY]:
            del self.members[name]

    def _take_exchange(self, event: Exchange) -> None:
        done = event.steps - (self.last.steps if self.last else event.steps)
        self.last = event
        if self._share_before is None:
            self._share_before = self.share(event.time) or 0.0
        self._pace.add(event.time, event.steps)
        if event.mean_return is not None:
            self.curve.add(event.time, event.mean_return)
        member = self.members.get(event.child)
        if member is not None:
            member.exchanged = event.time
            member.staleness = event.staleness
            member.steps += max(0, done)
            member.pace.add(event.time, member.steps)

    def there(self) -> int:
        """How many children take part, or took part to the end."""
        return sum(not member.away for member in self.members.values())

    def speed(self, now: float) -> float:
        """Environment steps a second."""
        return self._pace.rate(now)

    def elapsed(self, now: float) -> float:
        """Seconds of training, those before a resumption included."""
        return self._before + (0.0 if self._began is None else now - self._began)

    def share(self, now: float) -> float | None:
        """How much of the strictest countable stop condition is used up; None without one."""
        stop, last = self.stop, self.last
        used = [(self.elapsed(now), stop.seconds)]
        if last is not None:
            used += [
                (last.update, stop.updates),
                (last.episodes, stop.episodes),
                (last.steps, stop.steps),
            ]
        shares = [have / limit for have, limit in used if limit]
        if not shares and not (stop.updates or stop.episodes or stop.steps):
            return None
        return min(1.0, max(shares, default=0.0))

    def left(self, now: float) -> float | None:
        """How many seconds it takes at most, judged by what was done here; None if nobody knows."""
        share = self.share(now)
        if share is None or self.reason:
            return None
        return remaining(self.elapsed(now) - self._before, self._share_before or 0.0, share)

    def figures(self) -> dict[str, float]:
        """What the backends measured last: sums of rates, means of all else.

        In a mean of a diagnostic a child counts as much as the samples that it learned from.
        """
        sources = [member.figures for member in self.members.values() if not member.away]
        found: dict[str, list[tuple[float, float]]] = {}
        for figures in (self._learner, *sources):
            for name, value in figures.items():
                found.setdefault(name, []).append((value, weight_of(name, figures)))
        return {
            name: sum(value * weight for value, weight in pairs)
            / (1.0 if name in _SUMMED else sum(weight for _, weight in pairs))
            for name, pairs in found.items()
            if name not in WEIGHTS
        }

    def line(self, now: float) -> str:
        """All of it in one line, for a log."""
        return " · ".join(self._parts(now))

    def _parts(self, now: float) -> Iterator[str]:
        last = self.last
        share = self.share(now)
        yield self.name if share is None else f"{self.name} {share:.0%}"
        if last is not None:
            if last.mean_return is not None:
                goal = "" if self.stop.mean_return is None else f" of {self.stop.mean_return:g}"
                yield f"mean return {last.mean_return:.1f}{goal}"
            yield f"update {last.update:,.0f}"
            yield plural(last.episodes, "episode")
            yield plural(last.steps, "step")
            yield f"{self.speed(now):,.0f}/s"
        figures = self.figures()
        yield from (f"{key.upper()} {rate(figures[key])}" for key in _SUMMED if key in figures)
        if "lag" in figures:
            yield f"lag {figures['lag']:.1f}"
        yield from (f"{word} {figures[key]:.3g}" for key, word in _SAID.items() if key in figures)
        yield plural(self.there(), "child")
        yield duration(self.elapsed(now))
        left = self.left(now)
        if left is not None:
            yield f"at most {duration(left)} left"


def newest(before: dict[str, float], figures: dict[str, float]) -> dict[str, float]:
    """What was measured last. Diagnostics are not in every line, so the last ones stay."""
    return {
        name: value for name, value in before.items() if name in DIAGNOSTICS + WEIGHTS
    } | figures
