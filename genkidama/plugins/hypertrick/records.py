"""The words of a search, and what is kept of it: of its settings, of a trial, of a phase. Pure.

    study.user_attrs["genkidama"]     `SearchRecord`
    trial.params                      dotted settings, `TrialRecord.params`; a list as JSON text
    trial.intermediate_values         metric by phase, from 0
    trial.state                       by `OPTUNAS_STATES`
    trial.user_attrs["phases"]        `PhaseRecord`, one a phase
    trial.user_attrs["checkpoint"]    `TrialRecord.checkpoint`
    trial.user_attrs["reason"]        `TrialRecord.reason`

Laws of this file:
- All code that writes or reads one of these uses these names.
- A trial's score is its last metric: that of its newest weights. A failed trial has none.
- The *best* trial has the highest score of the trials that completed, that is, ran all phases. Only
  if none did, it has the highest score of all trials. Of equal ones it is the first that was
  started. So the noise of early reports, of which there are many more, does not
  choose.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from genkidama._version import __version__
from genkidama.config.experiment import Experiment
from genkidama.plugins.hypertrick.methods import METHODS, SearchRule
from genkidama.plugins.hypertrick.rule import Decision, Mode, Verdict
from genkidama.plugins.hypertrick.space import parse_space

__all__ = [
    "OPTUNAS_STATES",
    "PhaseRecord",
    "SearchRecord",
    "State",
    "TrialRecord",
    "best_trial",
    "end_of",
]

#: What a trial does, or how it ended. A waiting trial has no node at the moment.
State: TypeAlias = Literal["waiting", "running", "completed", "stopped", "failed"]

#: What an Optuna study calls a trial that has ended. All others are RUNNING there as soon as their
#: settings are drawn. A trial that is WAITING there has only been asked for (`enqueue_trial`).
OPTUNAS_STATES: dict[State, str] = {"completed": "COMPLETE", "stopped": "PRUNED", "failed": "FAIL"}


class PhaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One phase that a trial has reported."""

    phase: int
    """From 0."""
    node: str
    """Who trained it."""
    start: float
    """Seconds of the search's time, from its first trial on, without downtime."""
    end: float
    """Seconds of the search's time."""
    metric: float | None
    """Higher is better. None stands for NaN, which JSON lacks."""
    order: int = 0
    """It was the n-th report of its phase, from 1."""
    worse: int = 0
    """So many of the reports before it were worse."""
    mode: Mode
    """Why the verdict came out as it did."""
    verdict: Verdict
    """What the trial did next."""
    steps: int = 0
    """Environment steps of the trial so far."""
    episodes: int = 0
    """Episodes of the trial so far."""
    report: int = 0
    """The running number of this report in the search."""

    @property
    def score(self) -> float:
        """The metric as a number; NaN if it was no finite one."""
        return math.nan if self.metric is None or not math.isfinite(self.metric) else self.metric

    def decision(self, trial: int) -> Decision:
        """What the rule had decided, given the trial's number."""
        metric = math.nan if self.metric is None else self.metric
        return Decision(trial, self.phase, metric, self.order, self.worse, self.mode, self.verdict)


@dataclass(frozen=True)
class TrialRecord:
    """One configuration and how far it came."""

    number: int
    state: State
    #: The settings that make it differ from the others: dotted setting and value.
    params: dict[str, Any]
    phases: list[PhaseRecord] = field(default_factory=list)
    #: Why it ended, if anyone wrote that down.
    reason: str = ""
    #: Its newest checkpoint's path, within the run's directory; empty if there is none.
    checkpoint: str = ""

    @property
    def score(self) -> float:
        """The last metric; NaN if the trial failed or has not reported yet."""
        return math.nan if self.state == "failed" or not self.phases else self.phases[-1].score

    @property
    def phases_done(self) -> int:
        """How many phases it has run to their end."""
        return sum(phase.mode is not Mode.FAILURE for phase in self.phases)


class SearchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How the search was meant."""

    version: str = ""
    """Of the Genkidama that wrote this."""
    method: Literal["hypertrick", "hyperband", "asha", "random"]
    """Random search stops nobody."""
    workers: int
    """W₀: how many trials are started in all."""
    phases: int
    """N_p: how many phases a trial runs that is never stopped."""
    eviction_rate: float
    """r: the share of trials that is meant to end after each decision; √r with a `cohort`."""
    decide_after: list[int]
    """The phases, from 0, after which HyperTrick decides anything."""
    cohort: int | None = None
    """W₀ of equation 2, if it is not `workers`: so many trials collect data for all that follow."""
    adaptive: bool = False
    """Whether the rule stops more when fewer than expected were stopped so far."""
    reduction_factor: int | None = None
    """η of Hyperband and ASHA; that of their papers if absent."""
    least_phases: int = 1
    """r of Hyperband and ASHA: phases before a trial's first decision."""
    sampler: str = ""
    """Where trials' settings come from."""
    phase_unit: str = "steps"
    """What `phase_length` counts."""
    phase_length: float = 0.0
    """How long a phase is."""
    space: dict[str, Any]
    """What is searched, by dotted setting."""
    experiment: dict[str, Any] = {}
    """The base experiment, which each trial changes in the searched settings."""

    @classmethod
    def of(cls, experiment: Experiment) -> SearchRecord:
        """What is kept of an experiment with a `[search]`."""
        settings = experiment.search
        assert settings is not None
        space = parse_space(settings.space)
        plain = {key: value for key, value in experiment.to_dict().items() if key != "search"}
        return cls(
            version=__version__,
            method=settings.method,
            workers=settings.trials,
            phases=settings.phases,
            eviction_rate=settings.eviction_rate,
            decide_after=list(settings.decide_after),
            cohort=settings.cohort or None,
            adaptive=settings.adaptive,
            reduction_factor=settings.reduction_factor,
            least_phases=settings.least_phases,
            sampler=settings.sampler,
            phase_unit=settings.unit,
            phase_length=settings.length,
            space={key: msgspec.to_builtins(dimension) for key, dimension in space.items()},
            experiment=plain,
        )

    def rule(self, workers: int | None = None, seed: int = 0) -> SearchRule:
        """The rule that decides in this search; random search decides nothing.

        Args:
            workers: W₀, if it is not this search's.
            seed: of the hash that orders equal metrics.

        Raises:
            ConfigurationError: there is no such rule.
        """
        return METHODS[self.method].rule(self, workers or self.workers, seed)


def end_of(phases: list[PhaseRecord], count: int) -> State | None:
    """The state in which these reports leave a trial of `count` phases; None while it goes on."""
    if phases and phases[-1].mode is Mode.FAILURE:
        return "failed"
    if phases and phases[-1].verdict is Verdict.STOP:
        return "stopped"
    return "completed" if len(phases) >= count else None


def best_trial(scores: Mapping[int, float], completed: Collection[int]) -> int | None:
    """The best trial, as the laws of this file define it; None if no trial has a score.

    Args:
        scores: by trial; NaN is none.
        completed: the trials that ran all phases.
    """
    known = {trial: score for trial, score in scores.items() if not math.isnan(score)}
    finished = {trial: known[trial] for trial in completed if trial in known}
    return max(finished or known, key=lambda trial: (known[trial], -trial), default=None)
