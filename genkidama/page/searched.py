"""How a search stands, trial by trial, for the page. Pure."""

from __future__ import annotations

import math
from typing import Any

from genkidama.events import Event, PhaseReported, TrialAssigned, TrialEnded
from genkidama.tuning.methods import METHODS
from genkidama.tuning.standing import SearchStanding

__all__ = ["Searched"]

#: So many trials are shown, the newest ones and the best.
_MOST_TRIALS = 300

_STATES = {"completed": "finished"}


class Searched:
    """What the page shows of a search beside its standing.

    Args:
        standing: of the same search.
    """

    def __init__(self, standing: SearchStanding) -> None:
        self._standing = standing
        self._trials: dict[int, dict[str, Any]] = {}
        self._origin: float | None = None

    def take(self, event: Event) -> None:
        """Takes in one event, after the standing has."""
        match event:
            case TrialAssigned():
                self._assign(event)
            case PhaseReported():
                self._report(event)
            case TrialEnded():
                self._end(event)

    def to_dict(self) -> dict[str, Any]:
        """The document's `search`."""
        standing = self._standing
        best = standing.best
        found = None
        if best is not None:
            trial = self._trials.get(best, {})
            found = {
                "trial": best,
                "score": standing.scores[best],
                "settings": trial.get("settings", {}),
            }
        numbers = sorted(self._trials)
        shown = numbers[-_MOST_TRIALS:]
        if best is not None and best in self._trials and best not in shown:
            shown.insert(0, best)
        settings = {name: None for number in shown for name in self._trials[number]["settings"]}
        return {
            "method": METHODS[standing.search.method].title,
            "metric": "mean return",
            "nodes": list(standing.nodes),
            "phases": standing.search.phases,
            "count": len(numbers),
            "best": found,
            "settings": list(settings),
            "trials": [self._trials[number] for number in shown],
        }

    def _assign(self, event: TrialAssigned) -> None:
        self._origin = event.time if self._origin is None else self._origin
        trial = self._trials.setdefault(
            event.trial,
            {
                "number": event.trial,
                "state": "running",
                "score": None,
                "settings": event.params,
                "phases": [],
            },
        )
        trial["state"] = "running"
        _close(trial, self._seconds(event.time))
        self._open(trial, event.child, self._seconds(event.time))

    def _report(self, event: PhaseReported) -> None:
        trial = self._trials.get(event.trial)
        if trial is None:
            return
        # The parent's seconds of search go on over restarts; this page's origin may be later.
        self._origin = event.time - event.end if self._origin is None else self._origin
        trial["score"] = _number(event.metric)
        phases = trial["phases"]
        if phases and phases[-1]["to"] is None:
            phases[-1]["to"] = self._seconds(event.time)
            phases[-1]["score"] = _number(event.metric)
        self._open(trial, event.node, self._seconds(event.time))

    def _end(self, event: TrialEnded) -> None:
        trial = self._trials.get(event.trial)
        if trial is None:
            return
        trial["state"] = _STATES.get(event.state, event.state)
        phases = trial["phases"]
        if phases and phases[-1]["score"] is None and phases[-1]["to"] is None:
            # A phase that the end of the one before it had opened.
            if len(phases) > 1 and phases[-1]["from"] == phases[-2]["to"]:
                phases.pop()
            else:
                _close(trial, self._seconds(event.time))

    def _open(self, trial: dict[str, Any], node: str, start: float) -> None:
        trial["phases"].append({"node": node, "from": start, "to": None, "score": None})

    def _seconds(self, time: float) -> float:
        return round(time - (time if self._origin is None else self._origin), 3)


def _close(trial: dict[str, Any], end: float) -> None:
    phases = trial["phases"]
    if phases and phases[-1]["to"] is None:
        phases[-1]["to"] = end


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
