"""A search for hyperparameters, as the parent sees it: which trials there are, and which go on.

The metaoptimization service of Heinrich and Frosio (arXiv 1902.02725, §3). A *node* is a child. It
says hello and is given a trial, and pushes its weights while it trains. The reply to a push says
whether the phase that has just ended was the trial's last. Then the node says hello again.

Laws of this file:
- Pure: `now` (seconds, never going back) is handed in, new configurations are offered from outside.
- Only the pushes of a trial's owner count; `Assignments` says which node that is.
- A node that fails gives its trial back. A trial that has failed on 1 + `search.retries` nodes, or
  whose weights have become NaN, counts as the worst of its phase and ends.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from genkidama.config.experiment import Experiment
from genkidama.config.formatting import plural
from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.assignments import Assignments, SearchTrial
from genkidama.plugins.hypertrick.records import PhaseRecord, SearchRecord, State, end_of
from genkidama.plugins.hypertrick.rule import Mode, Verdict
from genkidama.plugins.hypertrick.settings import SearchSettings
from genkidama.plugins.hypertrick.space import parse_space
from genkidama.protocol.vector import Vector
from genkidama.server.events import (
    Event,
    PhaseReported,
    TrialAssigned,
    TrialEnded,
    TrialFailed,
    Warned,
)
from genkidama.server.rules.blend import Rule, Update
from genkidama.server.trial import ProgressCounter, Trial

__all__ = ["PhaseRecord", "Replace", "Search", "SearchTrial"]

#: A node that finds no trial asks again so soon, while a configuration is being sampled.
_SOON_SECONDS = 0.2

#: It asks again so late when other nodes have all trials. One of them may give its trial back.
_LATER_SECONDS = 2.0


class Replace(Rule):
    """How a search uses a push: a trial becomes what its owner pushes."""

    convex = True

    def apply(self, parent: Vector, push: Update) -> None:
        parent[:] = push.vector


class Search:
    """Hands out trials and decides, after each phase, which go on: the `Trials` of a search.

    Args:
        experiment: with a `[search]`.
    """

    shared = False

    def __init__(self, experiment: Experiment) -> None:
        assert experiment.search is not None
        self.settings: SearchSettings = experiment.search
        settings = self.settings
        self.space = parse_space(settings.space)
        self.rule: Rule = Replace()
        #: Says after each phase which trials go on.
        self.judge = SearchRecord.of(experiment).rule(seed=experiment.seed)
        #: Nobody trains this one. It tells a node that the search is over.
        self.trial = Trial(window=experiment.stop.window, experiment=experiment.to_dict())
        self.tally = ProgressCounter()
        self.events: list[Event] = []
        self.roster = Assignments(settings.return_seconds)
        #: All trials that were begun, by number.
        self.trials = self.roster.trials
        #: How many reports there were.
        self.reports = 0
        self._plain = msgspec.structs.replace(experiment, search=None)
        self._window = experiment.stop.window
        self._changed: dict[int, SearchTrial] = {}
        self._before = 0.0
        self._began: float | None = None

    # Configurations.

    @property
    def wanted(self) -> int:
        """How many configurations should be offered: one for each node that waits, at least one."""
        missing = max(1, len(self.roster.hungry)) - self.roster.fresh
        return max(0, min(self.settings.trials - len(self.trials), missing))

    def offer(self, number: int, params: dict[str, Any], now: float) -> None:
        """A new configuration: dotted settings and their values."""
        trial = self._add(number, params)
        trial.began = self.seconds(now)
        if trial.stop:
            self._fail(trial, trial.stop, now)
        else:
            self.roster.waiting.append(number)

    # Nodes.

    def assign(self, child: str, now: float, training: int | None = None) -> SearchTrial | None:
        """The trial that this node shall train; None if there is none now.

        Args:
            training: the trial that the node says it is training already. It keeps that one, unless
                somebody else has it.
        """
        trial = self.roster.find(child, now, training, more=self.wanted > 0)
        if trial is None:
            return None
        if self._began is None:
            self._began = now
        trial.heard = None
        if trial.owner != child:
            trial.began = self.seconds(now)
            self.roster.own(child, trial)
            if trial.vector is None and training != trial.number:
                # Nothing is left of what it had learned.
                trial.steps = 0
                trial.episodes = 0
                trial.seconds = 0.0
            self.events.append(
                TrialAssigned(
                    time=now,
                    trial=trial.index,
                    child=child,
                    phase=len(trial.phases),
                    params=trial.params,
                )
            )
        return trial

    def owns(self, child: str, trial: Trial) -> bool:
        """Whether the node trains that trial, or has heard nothing of its end yet."""
        return isinstance(trial, SearchTrial) and trial.owner == child

    @property
    def wait(self) -> float:
        """In how many seconds a node that found no trial should ask again."""
        return _SOON_SECONDS if len(self.trials) < self.settings.trials else _LATER_SECONDS

    def vanished(self, child: str, now: float) -> None:
        """The node's connection is gone; its trial waits for its return."""
        self.roster.vanished(child, now)

    def left(self, child: str, trial: Trial, failed: bool, reason: str, now: float) -> None:
        """The node goes for good, and the next one that asks goes on with its trial."""
        if not self.owns(child, trial):
            return
        if failed and child in self.roster.owned:
            self._failed(child, reason, now)
        else:
            self.roster.released(child)

    def _failed(self, child: str, reason: str, now: float) -> None:
        trial = self.trials[self.roster.owned[child]]
        trial.failures += 1
        trial.failed_on.add(child)
        self.events.append(TrialFailed(time=now, trial=trial.index, child=child, reason=reason))
        if trial.failures > self.settings.retries:
            self._fail(trial, reason, now)
        else:
            self.roster.released(child)

    # Progress.

    def joined(self, trial: Trial, now: float) -> None:
        """The owner has joined, and goes on."""
        if isinstance(trial, SearchTrial):
            trial.hear(now)

    def share(self, child: str, children: int) -> int:
        return 0

    def pushed(self, trial: Trial, now: float, child: str, steps: int) -> None:
        """The owner has pushed: the phases that this completes are over."""
        if isinstance(trial, SearchTrial):
            trial.hear(now)
            self._advance(trial, now)

    def diverged(self, trial: Trial, now: float) -> None:
        """The trial's weights are no numbers any more, and no other node would save it."""
        if isinstance(trial, SearchTrial):
            self._fail(trial, "its weights became NaN or infinite", now)

    def progress(self, trial: Trial, now: float) -> float:
        """How much of all its phases a trial has done, in [0, 1]."""
        if not isinstance(trial, SearchTrial):
            return 1.0
        return min(
            1.0, trial.done(self.settings.unit) / (self.settings.length * self.settings.phases)
        )

    def seconds(self, now: float) -> float:
        """Seconds of search, from the first trial's start on, without downtime."""
        return self._before + (now - self._began if self._began is not None else 0.0)

    def over(self, now: float) -> str:
        """Why the search is over; empty while it goes on."""
        limit = self.settings.seconds
        if limit is not None and self.seconds(now) >= limit:
            return f"{limit:g} seconds are over: {self}"
        all_begun = len(self.trials) >= self.settings.trials
        if all_begun and all(trial.ended for trial in self.trials.values()):
            return f"all trials are done: {self}"
        return ""

    @property
    def version(self) -> UnsetType:
        """Each trial has a version of its own."""
        return UNSET

    def describe(self, connected: int, now: float) -> str:
        """As `2 nodes, 5 of 16 trials: 1 completed, 2 stopped, 2 running`."""
        trials = plural(self.settings.trials, "trial")
        return f"{plural(connected, 'node')}, {len(self.trials)} of {trials}: {self}"

    def __str__(self) -> str:
        counts = Counter(trial.state for trial in self.trials.values())
        states: list[State] = ["completed", "stopped", "failed", "running"]
        found = [f"{counts[state]} {state}" for state in states if counts[state]]
        return ", ".join(found) or "none begun"

    def take_changed(self) -> list[SearchTrial]:
        """The trials that have reported since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed.values())

    # After a restart.

    def restore(
        self, number: int, params: dict[str, Any], state: State, phases: list[PhaseRecord]
    ) -> SearchTrial:
        """Takes over one trial of the study. `restored` is to be called after the last."""
        trial = self._add(number, params)
        trial.phases = phases
        trial.state = state
        if phases:
            trial.steps = phases[-1].steps
            trial.episodes = phases[-1].episodes
            if self.settings.unit == "seconds":
                trial.seconds = len(phases) * self.settings.length
            trial.owner = phases[-1].node
        if not trial.ended and (end := end_of(phases, self.settings.phases)):
            # All was written but this.
            trial.state = end
            self._changed[number] = trial
        if trial.ended:
            trial.stop = f"it has {trial.state}"
        return trial

    def restored(self, now: float) -> None:
        """Lets the rule go on where the reports of all trials left off.

        Nodes find their trials; the others may be taken at once.
        """
        records = [(record, trial) for trial in self.trials.values() for record in trial.phases]
        records.sort(key=lambda pair: pair[0].report)
        self.judge.restore(record.decision(trial.index) for record, trial in records)
        self.reports = max((record.report for record, _ in records), default=-1) + 1
        self._before = max((record.end for record, _ in records), default=0.0)
        for trial in self.trials.values():
            trial.began = self._before
            if trial.stop and not trial.ended:
                self._fail(trial, trial.stop, now)
        self.roster.restored(now)

    # Inside.

    def _add(self, number: int, params: dict[str, Any]) -> SearchTrial:
        """A trial; one whose settings do not go together says so in `stop`."""
        trial = self.trials[number] = SearchTrial(window=self._window, number=number, params=params)
        try:
            trial.experiment = self._plain.with_settings(params, source=f"trial {number}").to_dict()
        except ConfigurationError as error:
            trial.stop = str(error)
        return trial

    def _advance(self, trial: SearchTrial, now: float) -> None:
        """Ends the phases that a push has completed."""
        length = self.settings.length
        while (
            not trial.ended and trial.done(self.settings.unit) >= (len(trial.phases) + 1) * length
        ):
            metric = trial.mean_return
            if metric is None:
                reason = _NO_EPISODE.format(len(trial.phases), trial.number)
                self.events.append(Warned(time=now, trial=trial.index, reason=reason))
            self._report(trial, math.nan if metric is None else metric, now)

    def _report(self, trial: SearchTrial, metric: float, now: float) -> None:
        phase = len(trial.phases)
        end = self.seconds(now)
        decision = self.judge.decide(trial.index, phase, metric)
        record = PhaseRecord(
            phase=phase,
            node=trial.owner,
            start=trial.began,
            end=end,
            metric=None if math.isnan(metric) else metric,
            order=decision.order,
            worse=decision.worse,
            mode=decision.mode,
            verdict=decision.verdict,
            steps=trial.steps,
            episodes=trial.episodes,
            report=self.reports,
        )
        self.reports += 1
        trial.phases.append(record)
        self._changed[trial.index] = trial
        trial.began = end
        self.events.append(
            PhaseReported(time=now, trial=trial.index, **msgspec.structs.asdict(record))
        )
        if decision.mode is Mode.FAILURE:
            self._end(trial, "failed", f"no metric after phase {phase}", now)
        elif decision.verdict is Verdict.STOP:
            place = f"is too low among {plural(decision.order, 'report')}"
            self._end(trial, "stopped", f"{metric:.1f} after phase {phase} {place}", now)
        elif phase == self.settings.phases - 1:
            self._end(trial, "completed", "all phases are done", now)

    def _fail(self, trial: SearchTrial, reason: str, now: float) -> None:
        trial.stop = reason
        self._report(trial, math.nan, now)

    def _end(self, trial: SearchTrial, state: State, reason: str, now: float) -> None:
        trial.state = state
        trial.stop = trial.stop or reason
        self.roster.retire(trial)
        self.events.append(TrialEnded(time=now, trial=trial.index, state=state, reason=trial.stop))


_NO_EPISODE = (
    "phase {} of trial {} ended without a single episode, which counts as the worst; "
    "make the phases of [search] longer"
)
