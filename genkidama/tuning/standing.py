"""How a search stands, gathered from its events: what all displays and summaries show. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import UNSET

from genkidama.events import (
    Event,
    Exchange,
    Joined,
    Left,
    Measures,
    PhaseReported,
    Resumed,
    Started,
    Stopped,
    TrialAssigned,
    TrialEnded,
)
from genkidama.experiment import Experiment
from genkidama.formats import duration, plural, remaining
from genkidama.standing import Curve, Pace, newest
from genkidama.tuning.records import SearchRecord, best_trial

__all__ = ["Node", "SearchStanding"]


@dataclass
class Node:
    """One node, there or gone."""

    #: Why it is not there; empty while it is.
    away: str = ""
    #: The trial that it trains; None while it waits for one.
    trial: int | None = None
    phase: int = 0
    #: When its trial last exchanged; None before the first time.
    exchanged: float | None = None
    #: What its backend measured last, with this trial.
    figures: dict[str, float] = field(default_factory=dict)


class SearchStanding:
    """How a search stands.

    Args:
        experiment: with a `[search]`.
    """

    def __init__(self, experiment: Experiment) -> None:
        assert experiment.search is not None
        self.search = experiment.search
        self.name = experiment.environment.id
        self.run = ""
        #: Why the search is over; empty while it goes on.
        self.reason = ""
        rule = SearchRecord.of(experiment).rule()
        #: How many reports to expect in all, as the rule has it.
        self._expected = rule.expected_completion_rate * rule.workers * rule.phases
        #: By trial, its state.
        self.states: dict[int, str] = {}
        #: By trial, its last metric; NaN where it has none.
        self.scores: dict[int, float] = {}
        #: By trial, the mean return as its last exchange has it.
        self.returns: dict[int, float | None] = {}
        self.nodes: dict[str, Node] = {}
        #: The best score over time.
        self.curve = Curve()
        self.reports = 0
        #: Reports made before this parent.
        self._resumed = 0
        self._steps: Counter[int] = Counter()
        self._pace = Pace()
        self._began: float | None = None

    def take(self, event: Event) -> None:
        """Takes in one event."""
        match event:
            case Started() | Resumed():
                self._begin(event)
            case Joined():
                self._node(event.child).away = ""
            case Left():
                if not self.reason:
                    self._node(event.child).away = event.reason or "left"
            case TrialAssigned():
                self._assign(event)
            case Exchange():
                self._take_exchange(event)
            case Measures():
                node = self._node(event.child)
                if event.trial == node.trial:
                    node.figures = newest(node.figures, event.figures)
            case PhaseReported():
                self._take_report(event)
            case TrialEnded():
                self.states[event.trial] = event.state
                if event.state == "failed":
                    self.scores.pop(event.trial, None)
            case Stopped():
                self.reason = event.reason

    def _node(self, name: str) -> Node:
        return self.nodes.setdefault(name, Node())

    def _begin(self, event: Started | Resumed) -> None:
        self.run = event.run
        self.reason = ""
        if isinstance(event, Resumed) and event.reports is not UNSET:
            self._resumed = event.reports
            self.reports = event.reports
        for node in self.nodes.values():
            node.away = node.away or "the parent was started again"

    def _assign(self, event: TrialAssigned) -> None:
        self.states[event.trial] = "running"
        self._began = event.time if self._began is None else self._began
        node = self._node(event.child)
        node.trial = event.trial
        node.phase = event.phase
        node.exchanged = None
        node.figures = {}

    def _take_exchange(self, event: Exchange) -> None:
        if event.trial is UNSET:
            return
        done = event.steps - self._steps[event.trial]
        self._steps[event.trial] = event.steps
        # Of a trial that goes on, nobody knows here what was done before.
        if event.trial in self.returns:
            self._steps[-1] += max(0, done)
        self._pace.add(event.time, self._steps[-1])
        self.returns[event.trial] = event.mean_return
        self._node(event.child).exchanged = event.time

    def _take_report(self, event: PhaseReported) -> None:
        self.reports += 1
        self.scores[event.trial] = math.nan if event.metric is None else event.metric
        self._node(event.node).phase = event.phase + 1
        best = self.best
        if best is not None:
            self.curve.add(event.time, self.scores[best])

    @property
    def best(self) -> int | None:
        """The best trial so far; None if none has a score."""
        completed = {trial for trial, state in self.states.items() if state == "completed"}
        return best_trial(self.scores, completed)

    def leading(self) -> Node | None:
        """The node that measures, and whose trial has the best return; None if none does."""
        found = [node for node in self.nodes.values() if node.figures and not node.away]
        return max(found, key=self._return_of, default=None)

    def _return_of(self, node: Node) -> float:
        value = None if node.trial is None else self.returns.get(node.trial)
        return -math.inf if value is None else value

    def counts(self) -> str:
        """As `3 completed, 2 running`."""
        counts = Counter(self.states.values())
        states = ("completed", "stopped", "failed", "running")
        return ", ".join(f"{counts[state]} {state}" for state in states if counts[state]) or "none"

    def there(self) -> int:
        """How many nodes take part, or took part to the end."""
        return sum(not node.away for node in self.nodes.values())

    def speed(self, now: float) -> float:
        """Environment steps a second of all nodes."""
        return self._pace.rate(now)

    def elapsed(self, now: float) -> float:
        """Seconds since the first trial that began here."""
        return 0.0 if self._began is None else now - self._began

    def share(self, now: float) -> float:
        """How much of the search is done, in [0, 1]."""
        share = min(1.0, self.reports / self._expected)
        if self.search.seconds and self._began is not None:
            share = max(share, min(1.0, self.elapsed(now) / self.search.seconds))
        return share

    def left(self, now: float) -> float | None:
        """How many seconds it still takes, about; None if nobody knows."""
        if self.reason:
            return None
        return remaining(self.elapsed(now), self._resumed / self._expected, self.share(now))

    def line(self, now: float) -> str:
        """All of it in one line, for a log."""
        return " · ".join(self._parts(now))

    def _parts(self, now: float) -> Iterator[str]:
        yield f"{self.name} {self.share(now):.0%}"
        yield f"{len(self.states)} of {plural(self.search.trials, 'trial')}"
        yield self.counts()
        best = self.best
        if best is not None:
            yield f"best {self.scores[best]:.1f} (trial {best})"
        yield plural(self.there(), "node")
        yield duration(self.elapsed(now))
        left = self.left(now)
        if left is not None:
            yield f"about {duration(left)} left"
