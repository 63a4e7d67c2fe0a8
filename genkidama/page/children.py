"""The children of a run as rows of a table, and which of the rows have changed. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec import UNSET

from genkidama.events import Exchange, Joined, Measures
from genkidama.page.series import short
from genkidama.standing import Pace

__all__ = ["Child", "Children", "Facts", "FactsOf"]

#: So many children that have left are shown.
_MOST_AWAY = 100


class Facts(msgspec.Struct):
    """What a parent knows of a child that is there, beside the events."""

    address: str | None = None
    cores: int | None = None
    software: str = ""
    updates: float = 0.0
    steps: int = 0
    last_return: float | None = None
    round_trip: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0


#: Gives the facts of a child by its name; None where there are none.
FactsOf: TypeAlias = Callable[[str], Facts | None]


class Child(msgspec.Struct):
    """One row of `children`."""

    name: str
    state: str = "training"
    why: str = ""
    address: str | None = None
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


class Children:
    """All children that are there, and the last ones that left."""

    def __init__(self) -> None:
        self.rows: dict[str, Child] = {}
        self._paces: dict[str, Pace] = {}
        #: By trial, the steps that its last exchange told of.
        self._counted: dict[int | None, int] = {}
        #: Names whose rows may differ from those that were sent, and of those that fell out.
        self._changed: set[str] = set()
        self._gone: list[str] = []
        #: Names of those whose speed is above 0: it sinks, though they say nothing.
        self._moving: set[str] = set()

    @property
    def steps(self) -> int:
        """Environment steps of all trials."""
        return sum(self._counted.values())

    def count(self, event: Exchange) -> None:
        """Who did how much: of every exchange, so this is short."""
        trial = None if event.trial is UNSET else event.trial
        done = event.steps - self._counted.get(trial, event.steps)
        self._counted[trial] = event.steps
        child = self.rows.get(event.child)
        if child is not None:
            child.updates += 1
            child.steps += max(0, done)
            if event.distance is not UNSET:
                child.distance = event.distance

    def exchanged(self, event: Exchange) -> None:
        """The last of some exchanges of one child, which were counted."""
        child = self.rows.get(event.child)
        if child is None:
            return
        child.exchanged = event.time
        child.staleness = event.staleness
        if event.trial is not UNSET:
            child.trial = event.trial
        self._paces[event.child].add(event.time, child.steps)
        self._changed.add(event.child)

    def measured(self, event: Measures) -> None:
        child = self.rows.get(event.child)
        if child is not None:
            child.figures = event.figures
            child.lag = event.figures.get("lag")
            self._changed.add(event.child)

    def joined(self, event: Joined) -> None:
        name = event.child
        before = self.rows.pop(name, None)
        child = Child(name, since=event.time)
        if before is not None:
            child.updates = before.updates
            child.steps = before.steps
        self.rows[name] = child
        self._paces[name] = Pace()
        if name in self._gone:
            self._gone.remove(name)
        self._changed.add(name)

    def left(self, name: str, reason: str) -> None:
        child = self.rows.get(name)
        if child is None:
            return
        child.state = "away"
        child.why = reason or "left"
        self._changed.add(name)
        away = [each for each, row in self.rows.items() if row.state == "away"]
        for each in away[:-_MOST_AWAY]:
            del self.rows[each]
            del self._paces[each]
            self._gone.append(each)

    def all(self, now: float, facts: FactsOf) -> list[Child]:
        """All rows."""
        return [self._row(name, now, facts) for name in self.rows]

    def take_changed(self, now: float, facts: FactsOf) -> tuple[list[Child], list[str]]:
        """The rows that may have changed since the last call, and the names that fell out."""
        names = (self._changed | self._moving) & self.rows.keys()
        found = [self._row(name, now, facts) for name in names]
        self._moving = {child.name for child in found if child.steps_per_second}
        self._changed = set()
        gone, self._gone = self._gone, []
        return found, gone

    def catch_up(self) -> None:
        """All that there is counts as sent."""
        self._changed = set()
        self._gone = []
        self._moving = {name for name, row in self.rows.items() if row.steps_per_second}

    def _row(self, name: str, now: float, facts: FactsOf) -> Child:
        child = self.rows[name]
        known = facts(name) if child.state == "training" else None
        if known is not None:
            for field in Facts.__struct_fields__:
                setattr(child, field, getattr(known, field))
        child.steps_per_second = short(self._paces[name].rate(now))
        return child
