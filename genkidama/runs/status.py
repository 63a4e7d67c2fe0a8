"""The status of a run, folded from its events; displays, logs and monitors render it. Pure.

Laws of this file:
- Times are those of the events. To show a moment between two events, a display passes its time.
- Work from before a restart of the parent counts as done, and not as done by that parent.
- When a run is over, its children leave; they still count as its children.
- It stays small however long a run is: curves are thinned, and children that left are forgotten.
- A change holds the differences since the last change. All viewers get the same one.

`docs/reference/status.md` documents the JSON document that it renders.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import UNSET

from genkidama.config.experiment import Experiment
from genkidama.config.formatting import duration, energy, plural, rate, remaining
from genkidama.config.plugin import find
from genkidama.config.sections import Stop
from genkidama.protocol.diagnostics import DIAGNOSTICS, HEALTH, WEIGHTS, weight_of
from genkidama.server.events import (
    Commanded,
    Evaluated,
    Event,
    Exchange,
    Filmed,
    Joined,
    Left,
    Measures,
    PushesRefused,
    Resumed,
    Started,
    Stopped,
    TrialAssigned,
    Warned,
)
from genkidama.server.trial import reached

#: The document's version. A key that is added leaves it as it is.
SCHEMA = 1

#: Speeds are means over this many seconds, of points this many seconds apart.
_WINDOW, _GRAIN = 10.0, 0.1

#: The most points of the run's curve, and of a diagnostic's.
_CURVE_POINTS, _DIAGNOSTIC_POINTS = 400, 200

#: Children that left are remembered up to this many.
_MOST_AWAY = 100

#: No parent has as many children at once; a history that does shows the newest of them.
_MOST_CHILDREN = 4096

#: Children choose the names of their measures; this many get a curve.
_MOST_FIGURES = 64

#: The newest warnings are among the notes, for this long; the history keeps them all.
_MOST_WARNINGS = 5
_WARNING_SECONDS = 600.0

#: A child's watts hold for so long after it has told them, and are never more than this.
_WATTS_SECONDS, _MOST_WATTS = 120.0, 10_000.0

#: Troubles of machines, by their measure: the note about the children that have it.
_TROUBLES = {
    "throttled": "throttled, so slower than they could be; cool them better",
    "undervoltage": "their supply is too weak",
}

#: Measures that add up over children; of the others the mean is shown.
_SUMMED = ("pps", "tps")

#: Diagnostics in a line of a log, and their names there.
_SAID = {
    "entropy": "entropy",
    "approximate_kl": "KL",
    "explained_variance": "EV",
    "q_mean": "Q",
    "updates_per_step": "updates a step",
}

Point: TypeAlias = tuple[float | None, ...]


class Speed:
    """The rate at which a count grows, over the last seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()
        self._last = (0.0, 0)

    def add(self, time: float, count: int) -> None:
        """Takes in the count at `time`, which never goes back."""
        points = self._points
        self._last = (time, count)
        if not points or time - points[-1][0] >= _GRAIN:
            points.append(self._last)
            while time - points[0][0] > _WINDOW:
                points.popleft()

    def rate(self, now: float) -> float:
        """Growth per second; 0 after `_WINDOW` without news, or where a count has sunk."""
        if not self._points or now - self._last[0] > _WINDOW:
            return 0.0
        first, before = self._points[0]
        last, after = self._last
        return max(0.0, (after - before) / (last - first)) if last > first else 0.0


class Curve:
    """Values over time, thinned as they become many. A point that was sent is never changed.

    Args:
        columns: names of a point's numbers; the first is a time in seconds.
        most: at most this many points are kept.
    """

    def __init__(self, columns: tuple[str, ...], most: int) -> None:
        self.columns = columns
        self.rows: list[Point] = []
        self._most = most
        self._gap = 0.0
        #: The newest point, while it comes too soon after the last row.
        self._newest: Point | None = None
        #: How many rows were sent; -1 when they have to be sent anew.
        self._sent = 0

    def add(self, time: float, *values: float | None) -> None:
        """Takes in one point; `time` never goes back."""
        time, rows = round(time, 3), self.rows
        if rows and time - (rows[-1][0] or 0.0) < self._gap:
            self._newest = (time, *values)
            return
        self._newest = None
        rows.append(_short((time, *values)))
        if len(rows) > self._most:
            self._gap = 2.0 * (time - (rows[0][0] or 0.0)) / self._most
            self.rows = rows[::2]
            self._sent = -1

    def finish(self) -> None:
        """No point follows: the newest becomes a row."""
        if self._newest is not None:
            self.rows.append(_short(self._newest))
            self._newest = None

    def sent(self) -> dict[str, Any]:
        """All rows that were sent, for one who is then sent each change."""
        rows = self.rows if self._sent < 0 else self.rows[: self._sent]
        return {"columns": self.columns, "rows": rows}

    def send(self) -> dict[str, Any]:
        """The rows that were not sent yet, or all in place of those that were; they count as
        sent."""
        replace = self._sent < 0
        found = {"columns": self.columns, "rows": self.rows[max(0, self._sent) :]}
        self._sent = len(self.rows)
        return {**found, "replace": True} if replace else found


def short(value: float) -> float:
    """Six digits: enough for eyes, and half as many bytes."""
    return float(f"{value:.6g}")


def _short(point: Point) -> Point:
    time, *values = point
    return (time, *(short(value) if type(value) is float else value for value in values))


class Facts(msgspec.Struct):
    """Facts that a parent knows of a connected child beside the events."""

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


class ChildStatus(Facts, kw_only=True):
    """One row of the document's `children`."""

    name: str
    state: str = "training"
    why: str = ""
    since: float = 0.0
    exchanged: float | None = None
    steps_per_second: float = 0.0
    staleness: int = 0
    lag: float | None = None
    distance: float | None = None
    trial: int | None = None
    #: The last measures of its backend. Diagnostics are not in every event, so the last ones stay.
    figures: dict[str, float] = {}


class SearchPart(Protocol):
    """The part of the status of a search. A plug-in makes it: `part(experiment)`."""

    #: The share of the search that was done before this parent.
    share_before: float
    #: Reports so far.
    reports: int

    @property
    def best_score(self) -> float | None:
        """The score of the best trial; None before the first."""

    def begin(self, experiment: Experiment) -> None:
        """Goes by these settings from now on."""

    def take(self, event: Event, seconds: float) -> None:
        """Folds one event, which came after so many seconds of the search."""

    def share(self, elapsed: float) -> float:
        """The share that is done after `elapsed` seconds, in [0, 1]."""

    def best(self, among: set[int] | None = None) -> int | None:
        """The best trial so far, of those in `among` if given; None if none has a score."""

    def document(self) -> dict[str, Any]:
        """The document's `search`."""


class RunStatus:
    """The status of one run.

    Args:
        experiment: its settings.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        #: The version that plays in the newest film.
        self.film: int | None = None
        #: The part of a search; None in a plain run.
        self.search: SearchPart | None = None
        if experiment.searches:
            self.search = find("status_parts", "search")(experiment)
        self.run = ""
        #: That of the newest event.
        self.time = 0.0
        #: The reason why the run is over; empty before.
        self.reason = ""
        #: The newest exchange.
        self.last: Exchange | None = None
        self.children: dict[str, ChildStatus] = {}
        self.refusals: Counter[str] = Counter()
        #: Keys of the document that a server fills in: names of children that the run's owner has
        #: excluded, the parts of a parent, and the page's own cost: `viewers`, and `seconds` of CPU
        #: time.
        self.excluded: list[str] = []
        self.parts: list[dict[str, Any]] | None = None
        self.page: dict[str, float] | None = None
        #: What the diagnostics of the parent's rule say.
        self.advice: list[str] = []
        self._software = ""
        self._started = 0.0
        self._joined = False
        #: The first and the last moment of training under this parent, and the seconds before it.
        self._began: float | None = None
        self._ended = math.inf
        self._before = 0.0
        #: The best score of a search so far.
        self._best: float | None = None
        #: The share that was done at this parent's first exchange.
        self._share_before: float | None = None
        #: By trial, or None: environment steps and episodes at its last exchange.
        self._steps: dict[int | None, int] = {}
        self._episodes: dict[int | None, int] = {}
        #: Steps that were seen here.
        self._done = 0
        self._speed = Speed()
        self._speeds: dict[str, Speed] = {}
        #: By child: its steps as far as they were seen here, which facts do not change.
        self._seen: Counter[str] = Counter()
        #: The last measures of a learner beside the parent.
        self._learner: dict[str, float] = {}
        #: Joules of the machines that tell their watts; by child, its watts and when it told them.
        self._joules = 0.0
        self._watts: dict[str, tuple[float, float]] = {}
        #: By text, when the warning was last heard.
        self._warnings: dict[str, float] = {}
        self._evaluation: dict[str, Any] | None = None
        self._curve = Curve(("seconds", "steps", "mean_return"), _CURVE_POINTS)
        self._diagnostics: dict[str, Curve] = {}
        #: Names of rows that may differ from those sent, of rows dropped since, and of rows whose
        #: speed is above 0: it sinks without an event.
        self._changed: set[str] = set()
        self._gone: dict[str, None] = {}
        self._moving: set[str] = set()
        #: The experiment whose settings were sent.
        self._told = experiment

    # Folding.

    def take(self, events: Iterable[Event]) -> None:
        """Folds events, oldest first. Of exchanges between others only each child's last is
        looked at closely, the rest are counted."""
        newest: dict[str, Exchange] = {}
        measured: Measures | None = None
        for event in events:
            self.time = event.time
            if type(event) is Exchange:
                self._count(event)
                newest[event.child] = event
            elif type(event) is Measures:
                measured = event
                self.take_measures(event)
            else:
                self._take_exchanges(newest)
                newest = {}
                self._take_rare(event)
        self._take_exchanges(newest)
        if measured is not None:
            self._extend_diagnostics(measured.time)

    def _count(self, event: Exchange) -> None:
        trial = None if event.trial is UNSET else event.trial
        # Of a trial that was resumed, the steps before are unknown here.
        done = event.steps - self._steps.get(trial, event.steps)
        self._steps[trial] = event.steps
        child = self.children.get(event.child)
        if child is not None:
            child.updates += 1
            if event.distance is not UNSET:
                child.distance = event.distance
            if done > 0:
                child.steps += done
                self._seen[event.child] += done
        if done > 0:
            self._done += done

    def _take_exchanges(self, newest: dict[str, Exchange]) -> None:
        """The newest exchange of each child, all of them counted."""
        if not newest:
            return
        for event in newest.values():
            self._episodes[None if event.trial is UNSET else event.trial] = event.episodes
            if self.search is not None:
                self.search.take(event, self.elapsed(event.time))
            child = self.children.get(event.child)
            if child is not None:
                child.exchanged = event.time
                child.staleness = event.staleness
                if event.trial is not UNSET:
                    child.trial = event.trial
                self._speeds[event.child].add(event.time, self._seen[event.child])
                self._changed.add(event.child)
        if len(newest) > 1:
            event = max(newest.values(), key=lambda each: each.time)
        self.last = event
        self._speed.add(event.time, self._done)
        if self.search is None:
            if event.mean_return is not None:
                self._curve.add(self.elapsed(event.time), self.steps, event.mean_return)
            if self._share_before is None:
                self._share_before = self.share(event.time) or 0.0

    def take_measures(self, event: Measures) -> None:
        """Folds the measures of a child, but for the curves of the means."""
        if event.backend == "learner":
            self._learner = _newest(self._learner, event.figures)
        child = self.children.get(event.child)
        if child is not None and (watts := event.figures.get("watts")) is not None:
            watts = min(max(watts, 0.0), _MOST_WATTS)
            _, since = self._watts.get(event.child, (watts, child.since))
            self._joules += _joules(watts, event.time - since)
            self._watts[event.child] = watts, event.time
        # Of a trial that the child has since left, measures say nothing of the next one.
        if child is not None and (event.trial is UNSET or event.trial == child.trial):
            child.figures = _newest(child.figures, event.figures)
            child.lag = child.figures.get("lag")
            self._changed.add(event.child)

    def _extend_diagnostics(self, time: float) -> None:
        seconds = self.elapsed(time)
        for name, value in self.figures().items():
            if name not in self._diagnostics and len(self._diagnostics) < _MOST_FIGURES:
                self._diagnostics[name] = Curve(("seconds", "value"), _DIAGNOSTIC_POINTS)
            if name in self._diagnostics:
                self._diagnostics[name].add(seconds, value)

    def _take_rare(self, event: Event) -> None:
        if self.search is not None:
            self.search.take(event, self.elapsed(event.time))
            score = self.search.best_score
            # That of the best trial may sink.
            if score is not None and (self._best is None or score > self._best):
                self._best = score
                self._curve.add(self.elapsed(event.time), self.steps, score)
        match event:
            case Started() | Resumed():
                self._begin(event)
            case Joined():
                self._join(event)
            case Left():
                if not self.reason:
                    self._leave(event.child, event.reason)
            case TrialAssigned():
                self._began = event.time if self._began is None else self._began
                if (child := self.children.get(event.child)) is not None:
                    child.trial = event.trial
                    child.figures = {}
                    child.lag = None
                    self._changed.add(event.child)
            case PushesRefused():
                self.refusals[event.code] += event.times
            case Warned():
                self._warnings.pop(event.reason, None)
                self._warnings[event.reason] = event.time
            case Evaluated():
                names = ("mean", "std", "episodes", "solved", "threshold")
                self._evaluation = {name: getattr(event, name) for name in names}
            case Filmed():
                self.film = event.version
            case Commanded(limits=dict(limits)):
                before = self.share(event.time)
                with suppress(msgspec.ValidationError):  # another program's line
                    stop = msgspec.convert(
                        {**msgspec.to_builtins(self.experiment.stop), **limits}, Stop
                    )
                    self.experiment = msgspec.structs.replace(self.experiment, stop=stop)
                if before and self._share_before:
                    self._share_before *= (self.share(event.time) or 0.0) / before
            case Stopped():
                self.reason = event.reason
                self._ended = event.time
                for curve in (self._curve, *self._diagnostics.values()):
                    curve.finish()

    def _begin(self, event: Started | Resumed) -> None:
        self.run = event.run
        self.reason = ""
        self._software = event.software
        self._started = self._started or event.time
        self._joined = False
        self._ended = math.inf
        seconds = event.seconds if isinstance(event, Resumed) else 0.0
        if seconds is not UNSET:
            self._before = seconds
            self._began = None
            self._share_before = None
        for name in list(self.children):
            self._leave(name, "the parent was started again")

    def _join(self, event: Joined) -> None:
        name = event.child
        self._joined = True
        if self._began is None and (self.search is None or event.trial is not UNSET):
            self._began = event.time
        before = self.children.pop(name, None)
        self._watts.pop(name, None)
        child = ChildStatus(name=name, since=event.time)
        child.trial = None if event.trial is UNSET else event.trial
        if before is not None:
            child.updates = before.updates
            child.steps = before.steps
        if len(self.children) >= _MOST_CHILDREN:
            self._forget(next(iter(self.children)))
        self.children[name] = child
        self._speeds[name] = Speed()
        self._gone.pop(name, None)
        self._changed.add(name)

    def _leave(self, name: str, reason: str) -> None:
        child = self.children.get(name)
        if child is None:
            return
        watts, since = self._watts.pop(name, (0.0, self.time))
        self._joules += _joules(watts, self.time - since)
        child.state = "away"
        child.why = reason or "left"
        self._changed.add(name)
        away = [each for each, row in self.children.items() if row.state == "away"]
        for each in away[:-_MOST_AWAY]:
            self._forget(each)

    def _forget(self, name: str) -> None:
        del self.children[name]
        del self._speeds[name]
        del self._seen[name]
        self._gone[name] = None

    # Reading.

    @property
    def state(self) -> str:
        """`"waiting"` for children, `"training"` or `"over"`."""
        return "over" if self.reason else "training" if self._joined else "waiting"

    @property
    def begun(self) -> bool:
        """True once there was an exchange or, in a search, a trial."""
        return self.last is not None or (self.search is not None and self._began is not None)

    @property
    def steps(self) -> int:
        """Environment steps of all trials."""
        return sum(self._steps.values())

    def _there(self) -> list[ChildStatus]:
        """The children that take part, or took part to the end."""
        return [child for child in self.children.values() if child.state == "training"]

    def speed(self, now: float) -> float:
        """Environment steps a second: of the last seconds, or of a whole run that is over."""
        if self.reason:
            return self.steps / (self.elapsed(now) or math.inf)
        return self._speed.rate(now)

    def elapsed(self, now: float) -> float:
        """Seconds of training, those before a restart included, and none after the end."""
        began = now if self._began is None else self._began
        return self._before + max(0.0, min(now, self._ended) - began)

    def watt_hours(self, now: float) -> float | None:
        """Energy under this parent of the machines that tell their watts; None if none does."""
        end = min(now, self._ended)
        rest = sum(_joules(watts, end - since) for watts, since in self._watts.values())
        return (self._joules + rest) / 3600.0 or None

    def share(self, now: float) -> float | None:
        """The used share of the strictest countable stop condition; None without one."""
        if self.search is not None:
            return self.search.share(self.elapsed(now))
        stop, last = self.experiment.stop, self.last
        done: tuple[float, int, int, float] = (0.0, 0, 0, self.elapsed(now))
        if last is not None:
            done = (last.update, last.episodes, last.steps, done[3])
            if self.reason and reached(stop, last.mean_return, *done):
                return 1.0
        limits = (stop.updates, stop.episodes, stop.steps, stop.seconds)
        shares = [have / limit for have, limit in zip(done, limits, strict=True) if limit]
        return min(1.0, max(shares)) if shares else None

    def left(self, now: float) -> float | None:
        """Seconds that are left at the pace of this parent; None if it cannot be estimated."""
        share = self.share(now)
        if share is None or self.reason:
            return None
        before = self.search.share_before if self.search else self._share_before or 0.0
        return remaining(self.elapsed(now) - self._before, before, share)

    def figures(self) -> dict[str, float]:
        """The last measures of all backends, and of a learner beside the parent: sums of rates,
        means of all else. Empty in a search, whose trials differ in their settings.

        In a mean of a diagnostic a child counts as much as the samples that it learned from. What
        comes to no number is left out: a child may say whatever is finite.
        """
        if self.search is not None:
            return {}
        found: dict[str, list[tuple[float, float]]] = {}
        for figures in (self._learner, *(child.figures for child in self._there())):
            for name, value in figures.items():
                found.setdefault(name, []).append((value, weight_of(name, figures)))
        together = {
            name: sum(value * weight for value, weight in pairs)
            / (1.0 if name in _SUMMED else sum(weight for _, weight in pairs) or math.nan)
            for name, pairs in found.items()
            if name not in WEIGHTS + HEALTH
        }
        return {name: value for name, value in together.items() if math.isfinite(value)}

    # Rendering.

    def document(self, now: float, facts: FactsOf = lambda _: None) -> dict[str, Any]:
        """The whole document as it was sent, for one who is then sent each change.

        Args:
            now: seconds, as the events have them.
            facts: gives what is known of a child beside the events.
        """
        children = [self._row(name, now, facts) for name in self.children]
        whole = self._render(now, "status", children, Curve.sent)
        return {**whole, "settings": self.experiment.changed()}

    def snapshot(self, now: float, facts: FactsOf = lambda _: None) -> dict[str, Any]:
        """The whole document where no changes are sent: all there is. Arguments as `document`."""
        self.mark_sent()
        return self.document(now, facts)

    def change(self, now: float, facts: FactsOf = lambda _: None) -> dict[str, Any]:
        """The changes since the last call. Arguments as `document`."""
        names = (self._changed | self._moving) & self.children.keys()
        children = [self._row(name, now, facts) for name in names]
        self._moving = {child.name for child in children if child.steps_per_second}
        self._changed = set()
        gone, self._gone = list(self._gone), {}
        found = {**self._render(now, "change", children, Curve.send), "gone": gone}
        if self._told is not self.experiment:
            self._told = self.experiment
            found["settings"] = self.experiment.changed()
        return found

    def mark_sent(self) -> None:
        """All there is counts as sent: no viewer is there to send it to."""
        for curve in (self._curve, *self._diagnostics.values()):
            curve.send()
        self._changed = set()
        self._gone = {}
        self._moving = {name for name, row in self.children.items() if row.steps_per_second}

    def _row(self, name: str, now: float, facts: FactsOf) -> ChildStatus:
        child = self.children[name]
        known = facts(name) if child.state == "training" else None
        if known is not None:
            for field in Facts.__struct_fields__:
                setattr(child, field, getattr(known, field))
        child.steps_per_second = short(self._speeds[name].rate(now))
        return child

    def _notes(self, now: float) -> list[str]:
        newest = list(self._warnings.items())[-_MOST_WARNINGS:]
        self._warnings = dict(each for each in newest if now - each[1] < _WARNING_SECONDS)
        found: dict[str, list[str]] = {words: [] for words in _TROUBLES.values()}
        for child in self._there():
            for figure, words in _TROUBLES.items():
                if child.figures.get(figure):
                    found[words].append(child.name)
            if resting := child.figures.get("resting_lanes"):
                lanes = child.figures.get("lanes", 0.0)
                words = f"throttled lately, {lanes:g} of {lanes + resting:g} lanes"
                found.setdefault(words, []).append(child.name)
            if (chunks := child.figures.get("chunks", 1.0)) > 1.0:
                words = f"a slow link, an exchange every {chunks:g} chunks"
                found.setdefault(words, []).append(child.name)
        troubles = []
        for words, names in found.items():
            if names:
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                troubles.append(f"{', '.join(names[:5])}{more}: {words}")
        return [*self.advice, *troubles, *self._warnings]

    def _render(
        self,
        now: float,
        kind: str,
        children: list[ChildStatus],
        rows: Callable[[Curve], dict[str, Any]],
    ) -> dict[str, Any]:
        experiment, search = self.experiment, self.search
        plain = self.last if search is None else None
        mean = plain.mean_return if plain else self._best
        return {
            "schema": SCHEMA,
            "type": kind,
            "time": round(now, 3),
            "run": {
                "name": self.run,
                "kind": "plain" if search is None else "search",
                "environment": experiment.environment.id,
                "algorithm": experiment.algorithm.name,
                "backend": experiment.child.backend,
                "software": self._software,
                "rule": experiment.parent.rule,
                "cooperation": experiment.cooperation,
                "alpha": experiment.alpha,
                "beta": experiment.beta,
                "state": self.state,
                "reason": self.reason,
                "started": self._started,
                "elapsed": round(self.elapsed(now), 3),
                "share": self.share(now),
                "left": self.left(now),
                "goal": experiment.stop.mean_return,
                "watt_hours": self.watt_hours(now),
                "notes": self._notes(now),
                "excluded": self.excluded,
                "film": self.film,
            },
            "learning": {
                "update": plain.update if plain else float(search.reports) if search else 0.0,
                "version": plain.version if plain else 0,
                "episodes": sum(self._episodes.values()),
                "steps": self.steps,
                "steps_per_second": short(self.speed(now)),
                "mean_return": mean,
                "curve": rows(self._curve),
                "figures": self.figures(),
                "diagnostics": {name: rows(each) for name, each in self._diagnostics.items()},
            },
            "children": children,
            "refusals": self.refusals,
            "search": None if search is None else search.document(),
            "parts": self.parts,
            "evaluation": self._evaluation,
            "page": self.page,
        }


def fold(before: dict[str, Any] | None, message: dict[str, Any]) -> dict[str, Any]:
    """The whole document after a message of the feed, as every viewer puts it together.

    Args:
        before: what this gave for the message before; None at the first.

    Raises:
        ValueError: the first message is not a whole document.
    """
    if message["type"] == "status":
        return message
    if before is None:
        raise ValueError("a change before the whole document")
    learning, known = message["learning"], before["learning"]
    rows = {child["name"]: child for child in before["children"]}
    for name in message["gone"]:
        rows.pop(name, None)
    rows.update((child["name"], child) for child in message["children"])
    diagnostics = dict(known["diagnostics"])
    for name, curve in learning["diagnostics"].items():
        diagnostics[name] = _extended(diagnostics.get(name), curve)
    curve = _extended(known["curve"], learning["curve"])
    return {
        **message,
        "settings": message.get("settings", before.get("settings", {})),
        "type": "status",
        "children": list(rows.values()),
        "learning": {**learning, "curve": curve, "diagnostics": diagnostics},
    }


def _extended(before: dict[str, Any] | None, curve: dict[str, Any]) -> dict[str, Any]:
    old = [] if before is None or curve.get("replace") else before["rows"]
    return {"columns": curve["columns"], "rows": old + curve["rows"]}


def line(document: dict[str, Any]) -> str:
    """A document, decoded from JSON, as one line for a log."""
    return " · ".join(_line(document))


def _line(document: dict[str, Any]) -> Iterator[str]:
    run, learning = document["run"], document["learning"]
    search = document["search"]
    name, share = run["environment"], run["share"]
    yield name if share is None else f"{name} {share:.0%}"
    if run["state"] != "training":
        yield run["state"]
    if search is not None:
        yield f"{search['count']} of {plural(search['planned'], 'trial')}"
        yield counts(search)
        if search["best"] is not None:
            yield f"best {search['best']['score']:.1f} (trial {search['best']['trial']})"
    else:
        if learning["mean_return"] is not None:
            goal = "" if run["goal"] is None else f" (goal {run['goal']:g})"
            yield f"mean return {learning['mean_return']:.1f}{goal}"
        yield f"exchange {learning['update']:,.0f}"
        yield plural(learning["episodes"], "episode")
        yield plural(learning["steps"], "step")
        yield f"{learning['steps_per_second']:,.0f}/s"
    figures = learning["figures"]
    yield from (f"{key.upper()} {rate(figures[key])}" for key in _SUMMED if key in figures)
    if "lag" in figures:
        yield f"lag {figures['lag']:.1f}"
    yield from (f"{word} {figures[key]:.3g}" for key, word in _SAID.items() if key in figures)
    there = sum(child["state"] == "training" for child in document["children"])
    yield plural(there, "child" if search is None else "node")
    yield duration(run["elapsed"])
    if run.get("watt_hours"):
        yield energy(run["watt_hours"])
    if run["left"] is not None:
        yield f"{'at most' if search is None else 'about'} {duration(run['left'])} left"


def counts(search: dict[str, Any]) -> str:
    """The trials of a document's `search`, as `3 finished, 2 running`."""
    return ", ".join(f"{number} {state}" for state, number in search["states"].items()) or "none"


def _joules(watts: float, seconds: float) -> float:
    return watts * min(max(seconds, 0.0), _WATTS_SECONDS)


def _newest(before: dict[str, float], figures: dict[str, float]) -> dict[str, float]:
    lasting = DIAGNOSTICS + WEIGHTS + HEALTH
    kept = {name: value for name, value in before.items() if name in lasting}
    return kept | figures
