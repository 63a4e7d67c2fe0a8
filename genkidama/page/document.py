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
from typing import Any

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
from genkidama.page.children import Child, Children, FactsOf
from genkidama.page.searched import Searched
from genkidama.page.series import Series, short
from genkidama.standing import Standing
from genkidama.tuning.standing import SearchStanding

__all__ = ["SCHEMA", "Document"]

#: The document's version. A key that is added leaves it as it is.
SCHEMA = 1

_CURVE_ROWS, _DIAGNOSTIC_ROWS = 400, 200

#: Children choose the names of what they measure: so many are shown.
_MOST_FIGURES = 64

#: The newest warnings stand among the notes, and so long; the history keeps them.
_MOST_WARNINGS = 5
_WARNING_SECONDS = 600.0


class Document:
    """The status of one run.

    Args:
        experiment: the settings.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.standing: Standing | SearchStanding
        self.search: Searched | None = None
        if experiment.search is None:
            self.standing = Standing(experiment)
        else:
            self.standing = SearchStanding(experiment)
            self.search = Searched(self.standing)
        self.children = Children()
        self.refusals: Counter[str] = Counter()
        #: What the diagnostics of the parent's rule say.
        self.advice: list[str] = []
        self.parts: list[dict[str, Any]] | None = None
        #: What the page itself costs: `viewers`, and `seconds` of CPU time.
        self.page: dict[str, float] | None = None
        #: Whether there is `/plotly.js`: a browser that asks in vain says so in its console.
        self.plotly = False
        self._software = ""
        self._started = 0.0
        self._joined = False
        #: By what they say, when that was said last.
        self._warnings: dict[str, float] = {}
        self._evaluation: dict[str, Any] | None = None
        self._episodes: dict[int | None, int] = {}
        self._curve = Series(("seconds", "steps", "mean_return"), _CURVE_ROWS)
        self._diagnostics: dict[str, Series] = {}

    # What comes in.

    def take(self, events: Iterable[Event]) -> None:
        """Takes in events, oldest first. Of many exchanges together the last ones are looked at."""
        newest: dict[str, Exchange] = {}
        measured: Measures | None = None
        for event in events:
            if type(event) is Exchange:
                self.children.count(event)
                newest[event.child] = event
            elif type(event) is Measures:
                measured = event
                self._measure(event)
            else:
                self._note(newest)
                newest = {}
                self._take_rare(event)
        self._note(newest)
        if measured is not None:
            self._diagnose(measured.time)

    def _note(self, newest: dict[str, Exchange]) -> None:
        """Looks at the newest exchange of each child."""
        if not newest:
            return
        last = max(newest.values(), key=lambda each: each.time)
        for event in newest.values() if self.search else (last,):
            self.standing.take(event)
            self._episodes[None if event.trial is UNSET else event.trial] = event.episodes
        for event in newest.values():
            self.children.exchanged(event)
        if self.search is None and last.mean_return is not None:
            self._grow(last.time, last.mean_return)

    def _grow(self, time: float, value: float) -> None:
        seconds = round(self.standing.elapsed(time), 3)
        self._curve.add(seconds, self.children.steps, short(value))

    def _measure(self, event: Measures) -> None:
        self.standing.take(event)
        self.children.measured(event)

    def _diagnose(self, time: float) -> None:
        seconds = round(self.standing.elapsed(time), 3)
        for name, value in self.figures().items():
            series = self._diagnostics.get(name)
            if series is None and len(self._diagnostics) < _MOST_FIGURES:
                series = Series(("seconds", "value"), _DIAGNOSTIC_ROWS)
                self._diagnostics[name] = series
            if series is not None:
                series.add(seconds, short(value))

    def _take_rare(self, event: Event) -> None:
        self.standing.take(event)
        if self.search is not None:
            self.search.take(event)
            self._score(event)
        match event:
            case Started() | Resumed():
                self._begin(event)
            case Joined():
                self._joined = True
                self.children.joined(event)
            case Left():
                if not self.standing.reason:
                    self.children.left(event.child, event.reason)
            case Refused():
                self.refusals[event.code] += event.times
            case Warned():
                self._warnings.pop(event.reason, None)
                self._warnings[event.reason] = event.time
            case Evaluated():
                self._evaluate(event)
            case Stopped():
                for series in (self._curve, *self._diagnostics.values()):
                    series.finish()

    def _score(self, event: Event) -> None:
        """A search's curve is that of its best trial."""
        standing = self.standing
        if isinstance(standing, SearchStanding) and standing.best is not None:
            score = short(standing.scores[standing.best])
            rows = self._curve.rows
            if not rows or rows[-1][2] != score:
                self._grow(event.time, score)

    def _notes(self, now: float) -> list[str]:
        """What the parent's rule advises, and warnings of late."""
        newest = list(self._warnings.items())[-_MOST_WARNINGS:]
        self._warnings = dict(each for each in newest if now - each[1] < _WARNING_SECONDS)
        return [*self.advice, *self._warnings]

    def _begin(self, event: Started | Resumed) -> None:
        self._software = event.software
        self._started = event.time
        self._joined = False
        for name in list(self.children.rows):
            self.children.left(name, "the parent was started again")

    def _evaluate(self, event: Evaluated) -> None:
        self._evaluation = {
            "mean": event.mean,
            "std": event.std,
            "episodes": event.episodes,
            "solved": event.solved,
            "threshold": event.threshold,
        }

    # What goes out.

    def whole(self, now: float, facts: FactsOf = lambda _: None) -> dict[str, Any]:
        """All of it, for one who is then given each change.

        Args:
            now: seconds, as the events have them.
            facts: what is known of a child beside the events.
        """
        return self._with(now, "status", self.children.all(now, facts), Series.whole)

    def change(self, now: float, facts: FactsOf = lambda _: None) -> dict[str, Any]:
        """What is new since the last change; arguments as `whole` takes them."""
        found, gone = self.children.take_changed(now, facts)
        return {**self._with(now, "change", found, Series.send), "gone": gone}

    def catch_up(self) -> None:
        """Nobody watches: all that there is counts as sent."""
        for series in (self._curve, *self._diagnostics.values()):
            series.send()
        self.children.catch_up()

    def figures(self) -> dict[str, float]:
        """What was measured last, over all children; by a learner beside the parent, too."""
        standing = self.standing
        return standing.figures() if isinstance(standing, Standing) else {}

    @property
    def state(self) -> str:
        """`"waiting"` for children, `"training"` or `"over"`."""
        if self.standing.reason:
            return "over"
        return "training" if self._joined else "waiting"

    def _with(
        self,
        now: float,
        kind: str,
        children: list[Child],
        told: Callable[[Series], dict[str, Any]],
    ) -> dict[str, Any]:
        """The document, with these children, and with curves as `told` gives them."""
        standing = self.standing
        last = standing.last if isinstance(standing, Standing) else None
        mean = last.mean_return if last else None
        update = last.update if last else 0.0
        if isinstance(standing, SearchStanding):
            update = float(standing.reports)
            mean = None if standing.best is None else standing.scores[standing.best]
        return {
            "schema": SCHEMA,
            "type": kind,
            "time": round(now, 3),
            "plotly": self.plotly,
            "run": self._run(now),
            "learning": {
                "update": update,
                "version": last.version if last else 0,
                "episodes": sum(self._episodes.values()),
                "steps": self.children.steps,
                "steps_per_second": short(standing.speed(now)),
                "mean_return": mean,
                "curve": told(self._curve),
                "figures": self.figures(),
                "diagnostics": {name: told(each) for name, each in self._diagnostics.items()},
            },
            "children": children,
            "refusals": self.refusals,
            "search": None if self.search is None else self.search.to_dict(),
            "parts": self.parts,
            "evaluation": self._evaluation,
            "page": self.page,
        }

    def _run(self, now: float) -> dict[str, Any]:
        settings = self.experiment
        standing = self.standing
        return {
            "name": standing.run,
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
            "notes": self._notes(now),
        }
