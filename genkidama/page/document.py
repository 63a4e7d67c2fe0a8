"""How a run stands, as one JSON document: what the page, its feed and monitors are given. Pure.

Laws of this file:
- It is gathered from events. What the parent knows besides, as bytes and addresses, comes as
  `Facts`.
- It stays small however long a run is: curves are thinned, and children that left are forgotten.
- A change holds what is new since the change before. Whoever watches is given the same one.

`docs/page.md` has its tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from genkidama.events import (
    Evaluated,
    Event,
    Exchange,
    Joined,
    Left,
    Measures,
    Refused,
    Resumed,
    Started,
    Stopped,
    Warned,
)
from genkidama.experiment import Experiment
from genkidama.floods import times
from genkidama.page.searched import Searched
from genkidama.page.series import Series
from genkidama.standing import Pace, Standing
from genkidama.tuning.standing import SearchStanding

__all__ = ["SCHEMA", "Child", "Document", "Facts", "FactsOf"]

#: The document's version. A key that is added leaves it as it is.
SCHEMA = 1

_CURVE_ROWS, _DIAGNOSTIC_ROWS = 400, 200

#: Children choose the names of what they measure: so many are shown.
_MOST_FIGURES = 64

#: So many children that have left are shown.
_MOST_AWAY = 100

#: The newest warnings stand among the notes.
_MOST_WARNINGS = 5


class Facts(msgspec.Struct):
    """What a parent knows of a child that is there, beside the events."""

    address: str | None = None
    host: str = ""
    cores: int | None = None
    software: str = ""
    updates: float = 0.0
    steps: int = 0
    last_return: float | None = None
    round_trip: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    distance: float | None = None


#: Gives the facts of a child by its name; None where there are none.
FactsOf: TypeAlias = Callable[[str], Facts | None]


class Child(msgspec.Struct):
    """One row of `children`."""

    name: str
    state: str = "training"
    why: str = ""
    address: str | None = None
    host: str = ""
    cores: int | None = None
    software: str = ""
    since: float = 0.0
    exchanged: float | None = None
    updates: float = 0.0
    steps: int = 0
    steps_per_second: float = 0.0
    last_return: float | None = None
    staleness: int = 0
    lag: float | None = None
    round_trip: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    distance: float | None = None
    trial: int | None = None
    figures: dict[str, float] = {}


class Document:
    """The status of one run.

    Args:
        experiment: the settings.
        now: seconds, as the events have them.
        name: the run's name.
    """

    def __init__(self, experiment: Experiment, now: float = 0.0, name: str = "") -> None:
        self.experiment = experiment
        self.standing: Standing | SearchStanding
        self.search: Searched | None = None
        if experiment.search is None:
            self.standing = Standing(experiment)
        else:
            self.standing = SearchStanding(experiment)
            self.search = Searched(self.standing)
        self.children: dict[str, Child] = {}
        self.refusals: Counter[str] = Counter()
        #: What the diagnostics of the parent's rule say.
        self.advice: list[str] = []
        self.films: list[dict[str, Any]] = []
        self.parts: list[dict[str, Any]] | None = None
        self._name = name
        self._software = ""
        self._started = now
        self._joined = False
        self._warnings: list[str] = []
        self._evaluation: dict[str, Any] | None = None
        self._paces: dict[str, Pace] = {}
        self._figures: dict[str, float] = {}
        self._counted: dict[int | None, int] = {}
        self._episodes: dict[int | None, int] = {}
        self._curve = Series(("seconds", "steps", "mean_return"), _CURVE_ROWS)
        self._diagnostics: dict[str, Series] = {}
        self._diagnosed = 0.0
        #: Names whose rows may be others than those that were sent, and of those that fell out.
        self._changed: set[str] = set()
        self._gone: list[str] = []
        self._moving: set[str] = set()

    # What comes in.

    def take(self, events: Iterable[Event]) -> None:
        """Takes in events, oldest first. Of many exchanges together the last ones are looked at."""
        newest: dict[str, Exchange] = {}
        measured = False
        for event in events:
            if type(event) is Exchange:
                self._count(event)
                newest[event.child] = event
            elif type(event) is Measures:
                measured = True
                self._measure(event)
            else:
                self._note_exchanges(newest)
                newest = {}
                self._take_rare(event)
        self._note_exchanges(newest)
        if measured:
            self._diagnose()

    def _count(self, event: Exchange) -> None:
        """Who did how much: of every exchange, so this is short."""
        trial = None if event.trial is UNSET else event.trial
        done = event.steps - self._counted.get(trial, event.steps)
        self._counted[trial] = event.steps
        self._episodes[trial] = event.episodes
        child = self.children.get(event.child)
        if child is not None:
            child.updates += 1
            child.steps += max(0, done)

    def _note_exchanges(self, newest: dict[str, Exchange]) -> None:
        if not newest:
            return
        last = max(newest.values(), key=lambda each: each.time)
        for event in newest.values() if self.search else (last,):
            self.standing.take(event)
        for name, event in newest.items():
            child = self.children.get(name)
            if child is not None:
                child.exchanged = event.time
                child.staleness = event.staleness
                if event.trial is not UNSET:
                    child.trial = event.trial
                self._paces[name].add(event.time, child.steps)
                self._changed.add(name)
        if self.search is None and last.mean_return is not None:
            self._grow(last.time, last.mean_return)

    def _grow(self, time: float, value: float) -> None:
        seconds = round(self.standing.elapsed(time), 3)
        self._curve.add(seconds, self._steps(), _short(value))

    def _measure(self, event: Measures) -> None:
        self.standing.take(event)
        child = self.children.get(event.child)
        if event.backend == "learner":
            self._figures |= event.figures
        elif child is not None:
            child.figures = event.figures
            child.lag = event.figures.get("lag")
            self._changed.add(event.child)
        self._diagnosed = max(self._diagnosed, event.time)

    def _diagnose(self) -> None:
        for name, value in self.figures().items():
            series = self._diagnostics.get(name)
            if series is None:
                if len(self._diagnostics) >= _MOST_FIGURES:
                    continue
                series = Series(("seconds", "value"), _DIAGNOSTIC_ROWS)
                self._diagnostics[name] = series
            series.add(round(self.standing.elapsed(self._diagnosed), 3), _short(value))

    def _take_rare(self, event: Event) -> None:
        self.standing.take(event)
        if self.search is not None:
            self.search.take(event)
        match event:
            case Started() | Resumed():
                self._begin(event)
            case Joined():
                self._join(event)
            case Left():
                self._leave(event.child, event.reason)
            case Refused():
                self.refusals[event.code] += times(event)
            case Warned():
                self._warnings = [*self._warnings, event.reason][-_MOST_WARNINGS:]
            case Evaluated():
                self._evaluation = {
                    "mean": event.mean,
                    "std": event.std,
                    "episodes": event.episodes,
                    "solved": event.solved,
                    "threshold": event.threshold,
                }
            case Stopped():
                self._curve.finish()
            case _:
                self._score(event)

    def _score(self, event: Event) -> None:
        """A search's curve is that of its best trial."""
        standing = self.standing
        if isinstance(standing, SearchStanding) and standing.best is not None:
            score = standing.scores[standing.best]
            rows = self._curve.rows
            if not rows or rows[-1][2] != _short(score):
                self._grow(event.time, score)

    def _begin(self, event: Started | Resumed) -> None:
        self._name = event.run
        self._software = event.software
        self._started = event.time
        self._joined = False
        for name in self.children:
            self._leave(name, "the parent was started again")

    def _join(self, event: Joined) -> None:
        self._joined = True
        before = self.children.pop(event.child, None)
        child = Child(event.child, since=event.time)
        if before is not None:
            child.updates = before.updates
            child.steps = before.steps
        self.children[event.child] = child
        self._paces[event.child] = Pace()
        if event.child in self._gone:
            self._gone.remove(event.child)
        self._changed.add(event.child)

    def _leave(self, name: str, reason: str) -> None:
        child = self.children.get(name)
        if child is None or self.standing.reason:
            return
        child.state = "away"
        child.why = reason or "left"
        self._changed.add(name)
        away = [each for each, row in self.children.items() if row.state == "away"]
        for each in away[:-_MOST_AWAY]:
            del self.children[each]
            del self._paces[each]
            self._gone.append(each)

    # What goes out.

    def whole(self, now: float, facts: FactsOf = lambda _: None) -> dict[str, Any]:
        """All of it: to whom the changes are given that follow.

        Args:
            now: seconds, as the events have them.
        """
        children = [self._row(name, now, facts) for name in self.children]
        return self._with(now, "status", children, Series.whole)

    def change(self, now: float, facts: FactsOf = lambda _: None) -> dict[str, Any]:
        """What is new since the last change."""
        names = self._changed | self._moving
        self._changed = set()
        found = []
        for name in names:
            before = self.children.get(name)
            if before is None:
                continue
            found.append(self._row(name, now, facts))
            if before.steps_per_second:
                self._moving.add(name)  # its speed sinks though it says nothing
            else:
                self._moving.discard(name)
        gone, self._gone = self._gone, []
        self._moving.difference_update(gone)
        return {**self._with(now, "change", found, Series.send), "gone": gone}

    def catch_up(self) -> None:
        """Nobody watches: all that there is counts as sent."""
        for series in (self._curve, *self._diagnostics.values()):
            series.send()
        self._changed = set()
        self._gone = []

    def figures(self) -> dict[str, float]:
        """What was measured last, over all children; a learner's beside the parent, too."""
        standing = self.standing
        if isinstance(standing, Standing):
            return standing.figures()
        return self._figures

    @property
    def state(self) -> str:
        if self.standing.reason:
            return "over"
        return "training" if self._joined else "waiting"

    def _row(self, name: str, now: float, facts: FactsOf) -> Child:
        child = self.children[name]
        known = facts(name) if child.state == "training" else None
        if known is not None:
            for field in Facts.__struct_fields__:
                setattr(child, field, getattr(known, field))
        child.steps_per_second = _short(self._paces[name].rate(now))
        return child

    def _steps(self) -> int:
        return sum(self._counted.values())

    def _with(
        self,
        now: float,
        kind: str,
        children: list[Child],
        told: Callable[[Series], dict[str, Any]],
    ) -> dict[str, Any]:
        """The document, with these children and with curves as `told` gives them."""
        standing = self.standing
        last = standing.last if isinstance(standing, Standing) else None
        curve = self._curve
        mean = last.mean_return if last else (curve.rows[-1][2] if curve.rows else None)
        update = last.update if last else 0.0
        if isinstance(standing, SearchStanding):
            update = float(standing.reports)
        return {
            "schema": SCHEMA,
            "type": kind,
            "time": round(now, 3),
            "run": self._run(now),
            "learning": {
                "update": update,
                "version": last.version if last else 0,
                "episodes": sum(self._episodes.values()),
                "steps": self._steps(),
                "steps_per_second": _short(standing.speed(now)),
                "mean_return": mean,
                "curve": told(curve),
                "figures": self.figures(),
                "diagnostics": {name: told(each) for name, each in self._diagnostics.items()},
            },
            "children": children,
            "refusals": self.refusals,
            "search": None if self.search is None else self.search.to_dict(),
            "parts": self.parts,
            "films": self.films,
            "evaluation": self._evaluation,
        }

    def _run(self, now: float) -> dict[str, Any]:
        settings = self.experiment
        standing = self.standing
        return {
            "name": self._name,
            "kind": "plain" if self.search is None else "search",
            "environment": settings.environment.id,
            "algorithm": settings.algorithm.name,
            "backend": settings.child.backend,
            "software": self._software,
            "rule": settings.parent.rule,
            "alpha": settings.parent.alpha,
            "beta": settings.child.beta,
            "state": self.state,
            "reason": standing.reason,
            "started": self._started,
            "elapsed": round(standing.elapsed(now), 3),
            "share": standing.share(now),
            "left": standing.left(now),
            "goal": settings.stop.mean_return,
            "notes": [*self.advice, *self._warnings],
        }


def _short(value: float) -> float:
    """Six digits: enough for eyes, and half as many bytes."""
    return float(f"{value:.6g}")
