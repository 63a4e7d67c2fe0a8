"""A search for hyperparameters, as the parent sees it: which node trains which trial, and what becomes of it.

The metaoptimization service of Heinrich and Frosio (arXiv 1902.02725, §3): a *node* is a child. It says
hello and is given a trial, pushes its weights while it trains, and hears in the reply to a push whether
the phase that has just ended was the trial's last. Then it says hello again.

Laws of this file:
- Pure: `now` (seconds, never going back) is handed in, new configurations are offered from outside.
- A trial belongs to one node at a time, a node trains one trial at a time, and only the owner's pushes count.
- A node that vanishes may return to its trial; after `search.return_seconds` another one goes on with the
  trial's last weights. A node that fails gives its trial back; a trial that has failed on
  1 + `search.retries` nodes, or whose weights have become NaN, counts as the worst of its phase and ends.
- A trial under way with nobody to train it goes before a new configuration.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from genkidama.errors import ConfigurationError
from genkidama.experiment import Experiment
from genkidama.hypertrick.rule import Decision, Mode, Verdict
from genkidama.hypertrick.space import parse_space
from genkidama.trial import Trial
from genkidama.tuning.records import PhaseRecord, SearchRecord, State

__all__ = ["Search", "SearchTrial"]

#: A node that finds no trial asks again after so many seconds: while a configuration is being sampled, and
#: while only other nodes' trials are under way, one of which might need another node.
_SOON_SECONDS, _LATER_SECONDS = 0.2, 2.0


@dataclass
class SearchTrial(Trial):
    """A trial of a search."""

    #: The settings that make it differ from the others.
    params: dict[str, Any] = field(default_factory=dict)
    state: State = "waiting"
    #: The node that trains it.
    owner: str = ""
    failures: int = 0
    #: The nodes that could not train it: it goes to others first.
    failed_on: set[str] = field(default_factory=set)
    phases: list[PhaseRecord] = field(default_factory=list)
    #: Seconds that nodes have trained it.
    seconds: float = 0.0
    #: Search time at which the phase under way was begun by its owner, and when the owner was last heard.
    began: float = 0.0
    heard: float | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("completed", "stopped", "failed")


class Search:
    """Hands out trials and decides, after each phase, which go on.

    Args:
        experiment: with a `[search]`.
        note: called with `now`, the name of an event and its details, for the history.
    """

    def __init__(self, experiment: Experiment, note: Callable[..., None]) -> None:
        assert experiment.search is not None
        self.settings = settings = experiment.search
        self.space = parse_space(settings.space)
        self.rule = SearchRecord.of(experiment).rule(seed=experiment.seed)
        self.trials: dict[int, SearchTrial] = {}
        #: How many reports there were.
        self.reports = 0
        self._plain = msgspec.structs.replace(experiment, search=None)
        self._window = experiment.stop.window
        self._note = note
        self._waiting: deque[int] = deque()
        self._owned: dict[str, int] = {}
        self._absent: dict[int, float] = {}
        self._hungry: set[str] = set()
        self._changed: dict[int, SearchTrial] = {}
        self._before, self._began = 0.0, None  # type: float, float | None

    # Configurations.

    @property
    def wanted(self) -> int:
        """How many configurations should be offered: one for each node that waits for one, and at least one in stock."""
        fresh = sum(
            not (self.trials[number].phases or self.trials[number].failed_on)
            for number in self._waiting
        )
        return max(
            0, min(self.settings.trials - len(self.trials), max(1, len(self._hungry)) - fresh)
        )

    def offer(self, number: int, params: dict[str, Any], now: float) -> None:
        """A new configuration: dotted settings and their values."""
        self._add(number, params)
        trial = self.trials[number]
        trial.began = self.seconds(now)
        if trial.stop:
            self._fail(trial, trial.stop, now)
        else:
            self._waiting.append(number)

    # Nodes.

    def assign(self, child: str, now: float, training: int | None = None) -> SearchTrial | None:
        """The trial that this node shall train; None if there is none now.

        Args:
            training: the trial that the node says it is training already; it keeps it, unless somebody else has it.
        """
        mine = self._owned.get(child)
        if training is not None and training != mine and self._is_free(training):
            if mine is not None:
                self._orphan(self.trials[mine])
            if training in self._waiting:
                self._waiting.remove(training)
            mine = training
        number = self._next(child, now) if mine is None else mine
        if number is None:
            self._hungry.add(child)
            return None
        self._hungry.discard(child)
        self._absent.pop(number, None)
        trial = self.trials[number]
        if self._began is None:
            self._began = now
        trial.heard = None
        if trial.owner != child:
            trial.began = self.seconds(now)
            self._disown(trial)
            self._owned[child] = number
            if (
                trial.vector is None and training != number
            ):  # nothing is left of what it had learned
                trial.steps, trial.episodes, trial.seconds = 0, 0, 0.0
            trial.owner, trial.state = child, "running"
            self._note(
                now,
                "trial",
                trial=number,
                child=child,
                phase=len(trial.phases),
                params=trial.params,
            )
        return trial

    def owns(self, child: str, trial: Trial) -> bool:
        """Whether what this node says of that trial counts: it trains it, or has heard nothing of its end yet."""
        return isinstance(trial, SearchTrial) and trial.owner == child

    @property
    def wait(self) -> float:
        """In how many seconds a node that found no trial should ask again."""
        return _SOON_SECONDS if len(self.trials) < self.settings.trials else _LATER_SECONDS

    def vanished(self, child: str, now: float) -> None:
        """The node's connection is gone; its trial waits for its return."""
        self._hungry.discard(child)
        if child in self._owned:
            self._absent[self._owned[child]] = now

    def released(self, child: str) -> None:
        """The node goes for good: whoever comes next goes on with its trial."""
        self._hungry.discard(child)
        if child in self._owned:
            self._orphan(self.trials[self._owned[child]])

    def failed(self, child: str, reason: str, now: float) -> None:
        """The node could not train its trial."""
        number = self._owned.get(child)
        if number is None:
            return
        trial = self.trials[number]
        trial.failures += 1
        trial.failed_on.add(child)
        self._note(now, "trial_failed", trial=number, child=child, reason=reason)
        if trial.failures > self.settings.retries:
            self._fail(trial, reason, now)
        else:
            self.released(child)

    def diverged(self, trial: SearchTrial, now: float) -> None:
        """The trial's weights are no numbers any more, and no other node would save it."""
        self._fail(trial, "its weights became NaN or infinite", now)

    # Progress.

    def heard(self, trial: SearchTrial, now: float) -> None:
        """The owner has joined or pushed; the time between two of these is spent on the trial."""
        if trial.heard is not None:
            trial.seconds += now - trial.heard
        trial.heard = now

    def advance(self, trial: SearchTrial, now: float) -> list[Decision]:
        """Ends the phases that a push has completed; to be called after the push is counted. The decisions, oldest first."""
        decisions = []
        while (
            not trial.ended and self._done(trial) >= (len(trial.phases) + 1) * self.settings.length
        ):
            metric = trial.mean_return
            if metric is None:
                self._note(
                    now,
                    "warning",
                    trial=trial.number,
                    reason=_NO_EPISODE.format(len(trial.phases), trial.number),
                )
            decisions.append(self._report(trial, math.nan if metric is None else metric, now))
        return decisions

    def progress(self, trial: SearchTrial) -> float:
        """How much of all its phases a trial has done, in [0, 1]."""
        return min(1.0, self._done(trial) / (self.settings.length * self.settings.phases))

    def seconds(self, now: float) -> float:
        """Seconds of search, from the first trial's start on, without downtime."""
        return self._before + (now - self._began if self._began is not None else 0.0)

    def over(self, now: float) -> str:
        """Why the search is over; empty while it goes on."""
        limit = self.settings.seconds
        if limit is not None and self.seconds(now) >= limit:
            return f"{limit:g} seconds are over: {self}"
        if len(self.trials) >= self.settings.trials and all(
            trial.ended for trial in self.trials.values()
        ):
            return f"all trials are done: {self}"
        return ""

    def __str__(self) -> str:
        counts = Counter(trial.state for trial in self.trials.values())
        return (
            ", ".join(
                f"{counts[state]} {state}"
                for state in ("completed", "stopped", "failed", "running")
                if counts[state]
            )
            or "none begun"
        )

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
        trial.phases, trial.state = phases, state
        if phases:
            trial.steps, trial.episodes = phases[-1].steps, phases[-1].episodes
            trial.seconds = (
                len(phases) * self.settings.length if self.settings.unit == "seconds" else 0.0
            )
            trial.owner = phases[-1].node
        if not trial.ended and (
            end := _end_of(phases, self.settings.phases)
        ):  # all was written but this
            trial.state = end
            self._changed[number] = trial
        if trial.ended:
            trial.stop = f"it has {trial.state}"
        return trial

    def restored(self, now: float) -> None:
        """Lets the rule go on where the reports of all trials left off. Nodes find their trials; the others may be taken at once."""
        records = sorted(
            ((record, trial) for trial in self.trials.values() for record in trial.phases),
            key=lambda pair: pair[0].report,
        )
        self.rule.restore(_decision(trial, record) for record, trial in records)
        self.reports = max((record.report for record, _ in records), default=-1) + 1
        self._before = max((record.end for record, _ in records), default=0.0)
        # A node is with the trial for which it has reported last.
        for trial in sorted(
            self.trials.values(),
            key=lambda trial: trial.phases[-1].report if trial.phases else -1,
            reverse=True,
        ):
            assert trial.number is not None
            trial.began = self._before
            if trial.ended:
                continue
            if trial.stop:
                self._fail(trial, trial.stop, now)
            elif trial.owner and trial.owner not in self._owned:
                self._owned[trial.owner] = trial.number
                self._absent[trial.number] = now
                trial.state = "running"
            else:
                self._orphan(trial)
        self._waiting = deque(
            sorted(self._waiting, key=lambda number: (not self.trials[number].phases, number))
        )

    # Inside.

    def _add(self, number: int, params: dict[str, Any]) -> SearchTrial:
        """A trial; one whose settings do not go together says so in `stop`."""
        trial = self.trials[number] = SearchTrial(window=self._window, number=number, params=params)
        try:
            trial.experiment = self._plain.with_settings(params, source=f"trial {number}").to_dict()
        except ConfigurationError as error:  # settings that do not go together
            trial.stop = str(error)
        return trial

    def _disown(self, trial: SearchTrial) -> None:
        if self._owned.get(trial.owner) == trial.number:
            del self._owned[trial.owner]

    def _orphan(self, trial: SearchTrial) -> None:
        self._disown(trial)
        trial.owner, trial.state, trial.heard = "", "waiting", None
        assert trial.number is not None
        self._absent.pop(trial.number, None)
        if trial.phases or trial.steps:
            self._waiting.appendleft(trial.number)
        else:
            self._waiting.append(trial.number)

    def _is_free(self, number: int) -> bool:
        """Whether a node may keep a trial that it says it is training: nobody has it, or only by the study's word."""
        return number in self._waiting or (
            number in self._absent and self.trials[number].heard is None
        )

    def _next(self, child: str, now: float) -> int | None:
        for number, since in self._absent.items():
            if now - since >= self.settings.return_seconds:
                return number
        chosen = next(
            (number for number in self._waiting if child not in self.trials[number].failed_on), None
        )
        if chosen is None and self._waiting and not self._owned and not self.wanted:
            chosen = self._waiting[0]  # it has failed on this node, and there is no other
        if chosen is not None:
            self._waiting.remove(chosen)
        return chosen

    def _done(self, trial: SearchTrial) -> float:
        match self.settings.unit:
            case "steps":
                return trial.steps
            case "episodes":
                return trial.episodes
            case _:
                return trial.seconds

    def _report(self, trial: SearchTrial, metric: float, now: float) -> Decision:
        assert trial.number is not None
        phase, end = len(trial.phases), self.seconds(now)
        decision = self.rule.decide(trial.number, phase, metric)
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
        self._changed[trial.number] = trial
        trial.began = end
        self._note(now, "report", trial=trial.number, **msgspec.structs.asdict(record))
        if decision.mode is Mode.FAILURE:
            self._end(trial, "failed", f"no metric after phase {phase}", now)
        elif decision.verdict is Verdict.STOP:
            self._end(
                trial,
                "stopped",
                f"{metric:.1f} after phase {phase} is in the lower part of {decision.order} reports",
                now,
            )
        elif phase == self.settings.phases - 1:
            self._end(trial, "completed", "all phases are done", now)
        return decision

    def _fail(self, trial: SearchTrial, reason: str, now: float) -> None:
        trial.stop = reason
        self._report(trial, math.nan, now)

    def _end(self, trial: SearchTrial, state: State, reason: str, now: float) -> None:
        trial.state, trial.stop = state, trial.stop or reason
        self._disown(trial)
        assert trial.number is not None
        self._absent.pop(trial.number, None)
        self._note(now, "trial_end", trial=trial.number, state=state, reason=trial.stop)


_NO_EPISODE = "phase {} of trial {} ended without a single episode, which counts as the worst; make the phases of [search] longer"


def _end_of(phases: list[PhaseRecord], count: int) -> State | None:
    """The state in which these reports have left a trial of `count` phases; None while it goes on."""
    if phases and phases[-1].mode == Mode.FAILURE.value:
        return "failed"
    if phases and phases[-1].verdict == Verdict.STOP.value:
        return "stopped"
    return "completed" if len(phases) >= count else None


def _decision(trial: SearchTrial, record: PhaseRecord) -> Decision:
    assert trial.number is not None
    metric = math.nan if record.metric is None else record.metric
    return Decision(
        trial.number,
        record.phase,
        metric,
        record.order,
        record.worse,
        Mode(record.mode),
        Verdict(record.verdict),
    )
