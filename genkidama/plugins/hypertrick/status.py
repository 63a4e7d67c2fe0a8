"""The part of a `RunStatus` that only a search has: its trials. Pure."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from msgspec import UNSET

from genkidama.config.experiment import Experiment
from genkidama.plugins.hypertrick.records import TITLES, best_trial
from genkidama.plugins.hypertrick.rule import Verdict
from genkidama.server.events import (
    Event,
    Exchange,
    Joined,
    PhaseReported,
    Resumed,
    TrialAssigned,
    TrialEnded,
)

#: The document has the newest trials, and the best.
_MOST_TRIALS = 300

#: States of trials in the document, by those of events, in the order in which they are counted.
_STATES = {"completed": "finished", "stopped": "stopped", "failed": "failed"} | {
    state: state for state in ("running", "paused")
}


class SearchStatus:
    def __init__(self, experiment: Experiment) -> None:
        self.share_before = 0.0
        self.reports = 0
        self.begin(experiment)
        #: By trial, its last metric; NaN where it has none.
        self.scores: dict[int, float] = {}
        self._states: dict[int, str] = {}
        #: By trial, its row in the document.
        self._trials: dict[int, dict[str, Any]] = {}
        #: Names of nodes, in the order in which they came.
        self._nodes: dict[str, None] = {}

    def take(self, event: Event, seconds: float) -> None:
        """Folds an event; of exchanges the last of each child is enough."""
        seconds = round(seconds, 3)
        match event:
            case Exchange():
                if event.trial is not UNSET and event.trial in self._trials:
                    self._trials[event.trial]["mean_return"] = event.mean_return
            case Joined():
                self._nodes[event.child] = None
            case Resumed():
                if event.reports is not UNSET:
                    self.reports = event.reports
                    self.share_before = event.reports / self._expected
            case TrialAssigned():
                self._assign(event, seconds)
            case PhaseReported():
                self._report(event, seconds)
            case TrialEnded():
                self._end(event, seconds)

    def best(self, among: set[int] | None = None) -> int | None:
        """The best trial so far, of those in `among` if given; None if none has a score."""
        completed = {trial for trial, state in self._states.items() if state == "completed"}
        if among is None:
            return best_trial(self.scores, completed)
        scores = {trial: self.scores[trial] for trial in among if trial in self.scores}
        return best_trial(scores, completed)

    @property
    def best_score(self) -> float | None:
        """The score of the best trial; None if none has one."""
        best = self.best()
        return None if best is None else self.scores[best]

    def begin(self, experiment: Experiment) -> None:
        assert experiment.search is not None
        self.settings = experiment.search
        rule = self.settings.rule()
        #: The number of reports to expect in all, according to the rule.
        self._expected: float = rule.expected_completion_rate * rule.workers * rule.phases

    def share(self, elapsed: float) -> float:
        """The share of the search that is done after `elapsed` seconds, in [0, 1]."""
        under_way = {"running", "paused"}.intersection(self._states.values())
        ended = len(self._states) >= self.settings.trials and not under_way
        share = 1.0 if ended else self.reports / self._expected
        if self.settings.seconds:
            share = max(share, elapsed / self.settings.seconds)
        return min(1.0, share)

    def document(self) -> dict[str, Any]:
        best = self.best()
        numbers = sorted(self._trials)
        shown = numbers[-_MOST_TRIALS:]
        if best is not None and best in self._trials and best not in shown:
            shown.insert(0, best)
        settings = {name: None for number in shown for name in self._trials[number]["settings"]}
        states = Counter(self._states.values())
        best_row = None
        if best is not None:
            of_best = self._trials.get(best, {}).get("settings", {})
            best_row = {"trial": best, "score": self.scores[best], "settings": of_best}
        return {
            "method": TITLES[self.settings.method],
            "metric": "mean return",
            "nodes": list(self._nodes),
            "phases": self.settings.phases,
            "count": len(numbers),
            "planned": self.settings.trials,
            "states": {name: states[state] for state, name in _STATES.items() if states[state]},
            "best": best_row,
            "settings": list(settings),
            "trials": [self._trials[number] for number in shown],
        }

    def _assign(self, event: TrialAssigned, seconds: float) -> None:
        self._nodes[event.child] = None
        self._states[event.trial] = "running"
        trial = self._trials.setdefault(
            event.trial,
            {
                "number": event.trial,
                "state": "",
                "score": None,
                "mean_return": None,
                "settings": {},
                "phases": [],
            },
        )
        trial |= {"state": "running", "settings": event.params}
        _close(trial, seconds)
        self._open(trial, event.child, seconds)

    def _report(self, event: PhaseReported, seconds: float) -> None:
        if event.node:  # that of a trial whose settings do not go together
            self._nodes[event.node] = None
        self.reports += 1
        self.scores[event.trial] = math.nan if event.metric is None else event.metric
        trial = self._trials.get(event.trial)
        if trial is None:
            return
        metric = None if event.metric is None or math.isnan(event.metric) else event.metric
        trial["score"] = metric
        phases = trial["phases"]
        if phases and phases[-1]["to"] is None:
            phases[-1]["to"] = seconds
            phases[-1]["score"] = metric
        if event.verdict in (Verdict.PAUSE, Verdict.COPY):
            self._states[event.trial] = trial["state"] = "paused"
        else:
            self._open(trial, event.node, seconds)

    def _end(self, event: TrialEnded, seconds: float) -> None:
        self._states[event.trial] = event.state
        if event.state == "failed":
            self.scores.pop(event.trial, None)
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
                _close(trial, seconds)

    def _open(self, trial: dict[str, Any], node: str, start: float) -> None:
        trial["phases"].append({"node": node, "from": start, "to": None, "score": None})


def _close(trial: dict[str, Any], end: float) -> None:
    phases = trial["phases"]
    if phases and phases[-1]["to"] is None:
        phases[-1]["to"] = end
