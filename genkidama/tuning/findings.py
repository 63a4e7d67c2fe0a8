"""What a search has left behind, read from its Optuna study into plain values, and what follows from them.

Laws of this file:
- The study is only read. Everything else here is a function of `Findings` alone: the same study gives the same report.
- A metric that is no finite number counts as NaN. A trial whose last report failed has failed, whatever the study calls it.
- A trial's score is its last metric: that of its newest checkpoint. Failed trials have none.
- The best trial is the best of those that ran all phases; only if there is none, the best of all.
- Occupancy: busy node-seconds ÷ Σ over nodes of (end of the search − start of the node's first phase). Only reported phases
  are busy: a phase under way, or one that was lost with its node, is not.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.hypertrick.space import Dimension, parse_space

if TYPE_CHECKING:
    import optuna

__all__ = [
    "Findings",
    "Improvement",
    "OrderBias",
    "Phase",
    "Settings",
    "Span",
    "Trial",
    "open_study",
    "order_bias",
    "read",
    "without_password",
]

State: TypeAlias = Literal["complete", "stopped", "failed", "running", "waiting"]

_STATES: dict[str, State] = {
    "COMPLETE": "complete",
    "PRUNED": "stopped",
    "FAIL": "failed",
    "RUNNING": "running",
    "WAITING": "waiting",
}

#: What floats may be off by where a whole number is meant; the rule's own.
_ROUNDING = 1e-9


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the search was meant: the study's attribute "genkidama"."""

    version: str = ""
    """Genkidama's, that began the search."""
    method: Literal["hypertrick", "random"]
    """Random search stops nobody."""
    workers: int
    """W₀: how many trials are started in all."""
    phases: int
    """N_p: how many phases a trial runs that is never stopped."""
    eviction_rate: float
    """r: the share of trials that is meant to end after each decision."""
    decide_after: list[int]
    """The phases, from 0, after which anything is decided."""
    cohort: int | None = None
    """So many trials that start one after another are a population of their own; all are one if absent."""
    phase_unit: str = "steps"
    """What `phase_length` counts."""
    phase_length: float = 0.0
    """How long a phase is."""
    space: dict[str, Any]
    """What is searched, by dotted setting."""
    experiment: dict[str, Any] = {}
    """The base experiment, which each trial changes in the searched settings."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One phase that a trial has reported; an element of the trial's attribute "phases"."""

    phase: int
    """From 0."""
    node: str
    """Who ran it."""
    start: float
    """Seconds of search time."""
    end: float
    """Seconds of search time."""
    metric: float | None
    """Higher is better; NaN if it was no finite number, and never None once it is read."""
    order: int = 0
    """It was the n-th report of this phase, from 1."""
    worse: int = 0
    """So many of the reports before it were worse."""
    mode: Literal["collection", "selection", "none", "failure"]
    """Why the verdict came out as it did; the rule's `Mode`."""
    verdict: Literal["continue", "stop"]
    """What the trial did next."""
    steps: int = 0
    """Environment steps of the trial so far."""
    episodes: int = 0
    """Episodes of the trial so far."""
    report: int = 0
    """The report's number within the search."""

    @property
    def score(self) -> float:
        """The metric as a number."""
        return math.nan if self.metric is None or not math.isfinite(self.metric) else self.metric


@dataclass(frozen=True)
class Trial:
    """One configuration and how far it came."""

    number: int
    state: State
    #: By dotted setting, as the study holds them.
    params: dict[str, Any]
    phases: tuple[Phase, ...]
    #: Why it ended, if anyone wrote that down.
    reason: str
    #: Its newest checkpoint's path, within the run's directory; empty if there is none.
    checkpoint: str

    @cached_property
    def score(self) -> float:
        """The last metric; NaN if it failed or has not reported yet."""
        return math.nan if self.state == "failed" or not self.phases else self.phases[-1].score

    @property
    def phases_done(self) -> int:
        """So many phases it has run to their end."""
        return sum(phase.mode != "failure" for phase in self.phases)


@dataclass(frozen=True)
class Span:
    """A phase on a node's timeline."""

    trial: int
    phase: int
    start: float
    end: float
    #: What became of the trial, if this was its last phase and it has ended; "" otherwise.
    ending: str


@dataclass(frozen=True)
class Improvement:
    """A report that was better than all before it."""

    time: float
    score: float
    trial: int
    phase: int


@dataclass(frozen=True)
class Findings:
    """A search as it stands in its study: plain values."""

    name: str
    settings: Settings
    space: dict[str, Dimension]
    trials: tuple[Trial, ...]

    def of_state(self, *states: State) -> list[Trial]:
        """The trials in one of these states, by number."""
        return [trial for trial in self.trials if trial.state in states]

    @cached_property
    def search_time(self) -> float:
        """Seconds of search time until the newest report; 0 before the first."""
        return max((phase.end for trial in self.trials for phase in trial.phases), default=0.0)

    @cached_property
    def ranking(self) -> list[Trial]:
        """The trials that have a score, best first; of equal ones the first to be started."""
        return sorted(
            (trial for trial in self.trials if not math.isnan(trial.score)),
            key=lambda trial: (-trial.score, trial.number),
        )

    @property
    def best(self) -> Trial | None:
        """The best of the trials that ran all phases; if there is none, the best of all that have a score."""
        return next(
            (trial for trial in self.ranking if trial.state == "complete"),
            self.ranking[0] if self.ranking else None,
        )

    @cached_property
    def timeline(self) -> dict[str, list[Span]]:
        """By node, in the order in which they joined, the phases that it ran, oldest first."""
        found: dict[str, list[Span]] = {}
        for trial in self.trials:
            for phase in trial.phases:
                ending = (
                    trial.state
                    if phase is trial.phases[-1] and trial.state not in ("running", "waiting")
                    else ""
                )
                found.setdefault(phase.node, []).append(
                    Span(trial.number, phase.phase, phase.start, phase.end, ending)
                )
        for spans in found.values():
            spans.sort(key=lambda span: (span.start, span.end))
        return dict(sorted(found.items(), key=lambda item: (item[1][0].start, item[0])))

    @property
    def occupancy(self) -> float:
        """The share of the nodes' time that was spent in phases, as the head of this file defines it; NaN without any time."""
        offered = sum(self.search_time - spans[0].start for spans in self.timeline.values())
        return sum(map(_covered, self.timeline.values())) / offered if offered > 0 else math.nan

    @property
    def completion_rate(self) -> float:
        """The paper's α: phases completed ÷ phases if nobody were stopped, of the trials that have ended; NaN before the first."""
        ended = self.of_state("complete", "stopped", "failed")
        return (
            sum(trial.phases_done for trial in ended) / (len(ended) * self.settings.phases)
            if ended
            else math.nan
        )

    @property
    def expected_completion_rate(self) -> float:
        """E[α]: eq. 9, or the same sum if decisions are not made after every phase; 1 for random search."""
        if self.settings.method == "random":
            return 1.0
        stays, decided = 1.0 - self.settings.eviction_rate, set(self.settings.decide_after)
        running, total = 1.0, 0.0
        for phase in range(self.settings.phases):
            total += running
            running *= stays if phase in decided else 1.0
        return total / self.settings.phases

    @property
    def minimum_completion_rate(self) -> float:
        """min[α] = (1−√r)·E[α]: eq. 8 as printed, which no search can reach quite."""
        return (
            1.0
            if self.settings.method == "random"
            else (1.0 - math.sqrt(self.settings.eviction_rate)) * self.expected_completion_rate
        )

    @cached_property
    def improvements(self) -> list[Improvement]:
        """The best score over time: every report that was better than all before it, oldest first."""
        found: list[Improvement] = []
        reports = (
            (phase.end, phase.report, trial.number, phase)
            for trial in self.trials
            for phase in trial.phases
        )
        for time, _, number, phase in sorted(reports, key=lambda report: report[:3]):
            if not math.isnan(phase.score) and (not found or phase.score > found[-1].score):
                found.append(Improvement(time, phase.score, number, phase.phase))
        return found

    def reports_of(self, phase: int) -> list[tuple[Trial, Phase]]:
        """Who reported after phase `phase`, in the order of the reports."""
        found = [
            (trial, report)
            for trial in self.trials
            for report in trial.phases
            if report.phase == phase
        ]
        return sorted(found, key=lambda item: (item[1].report, item[1].end, item[0].number))

    def value(self, key: str, label: Any) -> Any:
        """The setting's value for what the study calls it: lists are kept there as JSON text."""
        try:
            return self.space[key].value(label)
        except ValueError:  # not one of the choices: somebody else's trial
            return label


@dataclass(frozen=True)
class OrderBias:
    """What the order of the reports has done to the trials; (trial, phase) pairs, by phase."""

    #: Passed in data collection although the metric is below the √r quantile of all reports of that phase.
    lucky: tuple[tuple[int, int], ...]
    #: Stopped although the metric is not below the √r quantile of all reports of that phase.
    unlucky: tuple[tuple[int, int], ...]
    #: Spearman's rank correlation between a trial's number and its completed phases, of the trials that were stopped or
    #: are complete; negative if those who started early came further. NaN if it cannot be told.
    correlation: float
    #: So many trials it is of.
    trials: int


def order_bias(findings: Findings) -> OrderBias:
    """Compares each decision with the one that all reports of its phase would have led to.

    Equal metrics count as equal here: the rule's hash, which orders them, is no merit.
    """
    settings = findings.settings
    reports: dict[int, list[float]] = {}
    for trial in findings.trials:
        for report in trial.phases:
            reports.setdefault(report.phase, []).append(_or_worst(report.score))
    for scores in reports.values():
        scores.sort()

    def below(report: Phase) -> bool:
        scores = reports[report.phase]
        not_better = bisect_right(scores, _or_worst(report.score)) - 1
        return not_better < (len(scores) - 1) * math.sqrt(settings.eviction_rate) - _ROUNDING

    def those(wanted: Callable[[Trial, Phase], bool]) -> tuple[tuple[int, int], ...]:
        found = [
            (report.phase, trial.number)
            for trial in findings.trials
            for report in trial.phases
            if wanted(trial, report)
        ]
        return tuple((number, phase) for phase, number in sorted(found))

    ended = findings.of_state("complete", "stopped")
    return OrderBias(
        lucky=those(lambda trial, report: report.mode == "collection" and below(report)),
        unlucky=those(
            lambda trial, report: (
                report.mode == "selection" and report.verdict == "stop" and not below(report)
            )
        ),
        correlation=_rank_correlation(
            [trial.number for trial in ended], [trial.phases_done for trial in ended]
        ),
        trials=len(ended),
    )


def open_study(url: str, name: str) -> optuna.Study:
    """The study `name` in the storage `url`, for example `sqlite:///runs/search/study.db`.

    Raises:
        ConfigurationError: Optuna or the database's driver is not installed, or there is no such study.
        EnvironmentFailure: the database cannot be read.
    """
    try:
        import optuna
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise ConfigurationError(
            "a search's report needs Optuna: pip install 'genkidama[search]'"
        ) from None
    if (
        url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists()
    ):  # opening it would make an empty one
        raise ConfigurationError(
            f"study {name!r}: there is no file {url.removeprefix('sqlite:///')}; has the search begun?"
        )
    shown = without_password(url)
    try:
        return optuna.load_study(study_name=name, storage=url)
    except KeyError:
        known = ", ".join(optuna.get_all_study_names(url)) or "none"
        raise ConfigurationError(f"study {name!r} is not in {shown}; it holds: {known}") from None
    except ImportError as error:
        problem = str(error).splitlines()[0]
        raise ConfigurationError(
            f"study {name!r} in {shown}: {problem}; for PostgreSQL: pip install 'genkidama[postgresql]'"
        ) from None
    except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        raise EnvironmentFailure(
            f"study {name!r} in {shown}: cannot be read: {str(error).splitlines()[0]}"
        ) from None


def without_password(url: str) -> str:
    """A storage's URL as people may see it."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return url


def read(study: optuna.Study) -> Findings:
    """A study's findings so far; it may still be running.

    Raises:
        ConfigurationError: the study was not written by a search of Genkidama, or in another way than this version's.
    """
    source = f"study {study.study_name!r}"
    attributes = study.user_attrs.get("genkidama")
    if attributes is None:
        raise ConfigurationError(
            f"{source} has no attribute 'genkidama': a study that `genkidama search` has made is needed"
        )
    if [direction.name for direction in study.directions] != ["MAXIMIZE"]:
        raise ConfigurationError(
            f"{source}: directions = {[d.name.lower() for d in study.directions]}: ['maximize'] is needed"
        )
    settings = _convert(attributes, Settings, f"{source}, attribute 'genkidama'")
    if settings.phases < 1 or settings.workers < 1 or not 0.0 < settings.eviction_rate < 1.0:
        raise ConfigurationError(
            f"{source}: workers = {settings.workers!r}, phases = {settings.phases!r}, eviction_rate = {settings.eviction_rate!r}: "
            "at least 1, at least 1, and between 0 and 1 are needed"
        )
    trials = tuple(
        _trial(trial, source)
        for trial in sorted(study.get_trials(deepcopy=False), key=lambda trial: trial.number)
    )
    return Findings(
        study.study_name, settings, parse_space(settings.space, f"{source}, space"), trials
    )


def _trial(trial: optuna.trial.FrozenTrial, source: str) -> Trial:
    phases = _convert(
        trial.user_attrs.get("phases", []),
        tuple[Phase, ...],
        f"{source}, trial {trial.number}, attribute 'phases'",
    )
    phases = tuple(msgspec.structs.replace(phase, metric=phase.score) for phase in phases)
    state = _STATES[trial.state.name]
    if state == "stopped" and phases and phases[-1].mode == "failure":
        state = "failed"
    reason, checkpoint = (str(trial.user_attrs.get(key, "")) for key in ("reason", "checkpoint"))
    return Trial(trial.number, state, dict(trial.params), phases, reason, checkpoint)


def _convert(value: Any, kind: Any, source: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"{source}: {str(error).replace('`', '')}; this version of Genkidama cannot read it"
        ) from None


def _or_worst(score: float) -> float:
    return -math.inf if math.isnan(score) else score


def _covered(spans: Iterable[Span]) -> float:
    """Seconds that are within at least one of the spans, which are sorted by their start."""
    total, until = 0.0, -math.inf
    for span in spans:
        total += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total


def _rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: the correlation of the ranks, equal values sharing theirs. NaN if one of them is constant."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return math.nan
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Sequence[float]) -> Any:
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[index]
