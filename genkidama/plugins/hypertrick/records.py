"""Records of a search, of its trials and of their phases, and the conclusions from them. Pure.

    study.user_attrs["genkidama"]     `experiment`, with `[search]`, and `version` of Genkidama
    trial.params                      dotted settings, `TrialRecord.params`; a list as JSON text
    trial.intermediate_values         metric by phase, from 0
    trial.state                       by `OPTUNA_STATES`
    trial.user_attrs["phases"]        `PhaseRecord`, one a phase
    trial.user_attrs["checkpoint"]    `TrialRecord.checkpoint`
    trial.user_attrs["reason"]        why it has ended, to be read in a dashboard

Laws of this file:
- All code that writes or reads one of these uses these names.
- A trial's score is its last metric: that of its newest weights. A failed trial has none.
- The *best* trial has the highest score of the trials that completed, that is, ran all phases. Only
  if none did, it has the highest score of all trials. Of equal ones it is the first that was
  started. Early reports are many and noisy, and do not choose.
- Occupancy: busy node-seconds ÷ Σ over nodes of (end of the search − start of the node's first
  phase). Only reported phases are busy: a phase under way, or one that was lost with its node, is
  not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from genkidama.plugins.hypertrick.rule import Decision, Mode, Verdict
from genkidama.plugins.hypertrick.settings import SearchSettings
from genkidama.plugins.hypertrick.space import Dimension

#: The names of the methods in a report.
TITLES = {
    "hypertrick": "HyperTrick",
    "successive_halving": "Successive Halving",
    "hyperband": "Hyperband",
    "asynchronous_hyperband": "Hyperband, asynchronous",
    "asha": "ASHA, stopping variant",
    "pbt": "Population Based Training",
    "random": "random search",
}

#: The state of a trial. A waiting trial has no node at the moment, a paused one waits for others.
State: TypeAlias = Literal["waiting", "running", "paused", "completed", "stopped", "failed"]

#: The state, in an Optuna study, of a trial that has ended. All others are RUNNING there as soon as
#: their settings are drawn. A trial that is WAITING there is only enqueued (`enqueue_trial`).
OPTUNA_STATES: dict[State, str] = {"completed": "COMPLETE", "stopped": "PRUNED", "failed": "FAIL"}


class PhaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A phase that a trial has reported."""

    phase: int
    """Its number, from 0."""
    node: str
    """The node that trained it."""
    start: float
    """Seconds of the search's time, from its first trial on, without downtime."""
    end: float
    """Seconds of the search's time."""
    metric: float | None
    """Higher is better. None means NaN, which JSON lacks."""
    order: int = 0
    """It was the n-th report of its phase, from 1."""
    worse: int = 0
    """The number of earlier reports of its phase that were worse."""
    mode: Mode
    """The reason of the verdict."""
    verdict: Verdict
    """The fate of the trial after it."""
    steps: int = 0
    """Environment steps of the trial so far."""
    episodes: int = 0
    """Episodes of the trial so far."""
    report: int = 0
    """The running number of this report in the search."""
    source: int | UnsetType = UNSET
    """The trial whose weights and settings it goes on with."""
    params: dict[str, Any] | UnsetType = UNSET
    """These settings, perturbed."""

    @property
    def score(self) -> float:
        """The metric as a number; NaN if it was no finite one."""
        return math.nan if self.metric is None or not math.isfinite(self.metric) else self.metric

    def decision(self, trial: int) -> Decision:
        """The rule's decision, given the trial's number."""
        metric = math.nan if self.metric is None else self.metric
        source = None if self.source is UNSET else self.source
        given = (self.order, self.worse, self.mode, self.verdict, source)
        return Decision(trial, self.phase, metric, *given)


@dataclass(frozen=True)
class TrialRecord:
    """A configuration and its reports."""

    number: int
    state: State
    #: The settings in which it differs from the others: dotted setting and value.
    params: dict[str, Any]
    phases: list[PhaseRecord] = field(default_factory=list)
    #: Its newest checkpoint's path, within the run's directory; empty if there is none.
    checkpoint: str = ""

    @property
    def score(self) -> float:
        """The last metric; NaN if the trial failed or has not reported yet."""
        return math.nan if self.state == "failed" or not self.phases else self.phases[-1].score

    @property
    def phases_done(self) -> int:
        """The number of phases that it has run to their end."""
        return sum(phase.mode is not Mode.FAILURE for phase in self.phases)


def state_after(phases: list[PhaseRecord], count: int) -> State | None:
    """The state in which these reports leave a trial of `count` phases; None if it continues."""
    if phases and phases[-1].mode is Mode.FAILURE:
        return "failed"
    if phases and phases[-1].verdict is Verdict.STOP:
        return "stopped"
    if phases and phases[-1].verdict is Verdict.PAUSE:
        return "paused"
    return "completed" if len(phases) >= count else None


def best_trial(scores: Mapping[int, float], completed: Collection[int]) -> int | None:
    """The best trial by the laws of this file, given scores by trial; None if none has a score."""
    scored = {trial: score for trial, score in scores.items() if not math.isnan(score)}
    finished = {trial: scored[trial] for trial in completed if trial in scored}
    return max(finished or scored, key=lambda trial: (scored[trial], -trial), default=None)


@dataclass(frozen=True)
class Span:
    """A phase on a node's timeline."""

    trial: int
    phase: int
    start: float
    end: float
    #: The state of the trial, if this was its last phase and it has ended; "" otherwise.
    ending: str


@dataclass(frozen=True)
class StudySnapshot:
    """A study of a search at one moment, as plain values."""

    name: str
    settings: SearchSettings
    space: dict[str, Dimension]
    trials: tuple[TrialRecord, ...]

    @cached_property
    def phases(self) -> int:
        """The phases of the longest trial; with `search.restart` more than `search.phases`."""
        return max([self.settings.phases, *(len(trial.phases) for trial in self.trials)])

    def of_state(self, *states: State) -> list[TrialRecord]:
        """The trials in one of these states, by number."""
        return [trial for trial in self.trials if trial.state in states]

    @property
    def ended(self) -> list[TrialRecord]:
        """The trials that have ended, by number."""
        return self.of_state(*OPTUNA_STATES)

    @cached_property
    def search_time(self) -> float:
        """Seconds of search time until the newest report; 0 before the first."""
        return max((phase.end for trial in self.trials for phase in trial.phases), default=0.0)

    @cached_property
    def ranking(self) -> list[TrialRecord]:
        """The trials that have a score, best first; of equal ones the first to be started."""
        scored = (trial for trial in self.trials if not math.isnan(trial.score))
        return sorted(scored, key=lambda trial: (-trial.score, trial.number))

    @cached_property
    def best(self) -> TrialRecord | None:
        """The best trial; None before the first score."""
        number = best_trial(
            {trial.number: trial.score for trial in self.trials},
            {trial.number for trial in self.of_state("completed")},
        )
        return next((trial for trial in self.trials if trial.number == number), None)

    @cached_property
    def observed(self) -> tuple[TrialRecord, PhaseRecord] | None:
        """The best of all reports, with its trial: the configuration that algorithm 1 of
        HyperTrick's paper returns."""
        reports = [(t, p) for t in self.trials for p in t.phases if not math.isnan(p.score)]
        return max(reports, key=lambda pair: (pair[1].score, -pair[1].report), default=None)

    @cached_property
    def improvements(self) -> list[TrialRecord]:
        """Completed trials with a better score than all before them, oldest first."""
        steps: list[TrialRecord] = []
        completed = [trial for trial in self.of_state("completed") if trial.phases]
        for trial in sorted(completed, key=lambda t: (t.phases[-1].end, t.phases[-1].report)):
            if not math.isnan(trial.score) and (not steps or trial.score > steps[-1].score):
                steps.append(trial)
        return steps

    @cached_property
    def timeline(self) -> dict[str, list[Span]]:
        """The phases of each node, oldest first; nodes in the order in which they joined."""
        spans: dict[str, list[Span]] = {}
        for trial in self.trials:
            for phase in trial.phases:
                if not phase.node:  # its settings do not go together
                    continue
                last = phase is trial.phases[-1] and trial.state in OPTUNA_STATES
                ending = trial.state if last else ""
                spans.setdefault(phase.node, []).append(
                    Span(trial.number, phase.phase, phase.start, phase.end, ending)
                )
        for row in spans.values():
            row.sort(key=lambda span: (span.start, span.end))
        return dict(sorted(spans.items(), key=lambda item: (item[1][0].start, item[0])))

    @property
    def occupancy(self) -> float:
        """The share of the nodes' time that was spent in phases; NaN without any time."""
        offered = sum(self.search_time - spans[0].start for spans in self.timeline.values())
        return sum(map(_covered, self.timeline.values())) / offered if offered > 0 else math.nan

    @property
    def completion_rate(self) -> float:
        """The paper's α of the trials that have ended: phases run ÷ phases if none were stopped.
        NaN before the first has ended."""
        done = sum(trial.phases_done for trial in self.ended)
        return done / (len(self.ended) * self.settings.phases) if self.ended else math.nan

    @property
    def expected_completion_rate(self) -> float:
        """E[α] of as many trials as have ended, by the rule."""
        return self.settings.rule(len(self.ended)).expected_completion_rate

    def reports_of(self, phase: int) -> list[tuple[TrialRecord, PhaseRecord]]:
        """The trials that reported after phase `phase`, in the order of their reports."""
        reports = [(t, report) for t in self.trials for report in t.phases if report.phase == phase]
        return sorted(reports, key=lambda item: (item[1].report, item[1].end, item[0].number))


def _covered(spans: Iterable[Span]) -> float:
    """Seconds that are within at least one of the spans, which are sorted by their start."""
    total, until = 0.0, -math.inf
    for span in spans:
        total += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total
