"""What a search has left behind, read from its study into plain values, and what follows from it.

Laws of this file:
- The study is only read. Everything else here is a function of `StudySnapshot` alone: the same
  study gives the same report.
- A metric that is no finite number counts as NaN. A trial whose last report failed has failed,
  whatever the study calls it.
- The best trial, and a trial's score, are what `records.py` says.
- Occupancy: busy node-seconds ÷ Σ over nodes of (end of the search − start of the node's first
  phase). Only reported phases are busy: a phase under way, or one that was lost with its node, is
  not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.records import (
    OPTUNAS_STATES,
    PhaseRecord,
    SearchRecord,
    State,
    TrialRecord,
    best_trial,
)
from genkidama.plugins.hypertrick.rule import Mode
from genkidama.plugins.hypertrick.space import Dimension, parse_space

if TYPE_CHECKING:
    import optuna

__all__ = ["StudySnapshot", "Improvement", "Span", "read", "read_trials"]


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
    """A trial that completed with a better score than all that had completed before it."""

    time: float
    score: float
    trial: int


@dataclass(frozen=True)
class StudySnapshot:
    """A search as it stands in its study: plain values."""

    name: str
    settings: SearchRecord
    space: dict[str, Dimension]
    trials: tuple[TrialRecord, ...]

    def of_state(self, *states: State) -> list[TrialRecord]:
        """The trials in one of these states, by number."""
        return [trial for trial in self.trials if trial.state in states]

    @property
    def ended(self) -> list[TrialRecord]:
        """The trials that nobody trains any more, by number."""
        return self.of_state(*OPTUNAS_STATES)

    @cached_property
    def search_time(self) -> float:
        """Seconds of search time until the newest report; 0 before the first."""
        return max((phase.end for trial in self.trials for phase in trial.phases), default=0.0)

    @cached_property
    def ranking(self) -> list[TrialRecord]:
        """The trials that have a score, best first; of equal ones the first to be started."""
        return sorted(
            (trial for trial in self.trials if not math.isnan(trial.score)),
            key=lambda trial: (-trial.score, trial.number),
        )

    @cached_property
    def best(self) -> TrialRecord | None:
        """The best trial; None before the first score."""
        number = best_trial(
            {trial.number: trial.score for trial in self.trials},
            {trial.number for trial in self.of_state("completed")},
        )
        return next((trial for trial in self.trials if trial.number == number), None)

    @cached_property
    def improvements(self) -> list[Improvement]:
        """How the best score rose: completed trials better than all before them, oldest first."""
        found: list[Improvement] = []
        for trial in sorted(
            self.of_state("completed"),
            key=lambda trial: (
                (trial.phases[-1].end, trial.phases[-1].report) if trial.phases else ()
            ),
        ):
            if not math.isnan(trial.score) and (not found or trial.score > found[-1].score):
                found.append(Improvement(trial.phases[-1].end, trial.score, trial.number))
        return found

    @cached_property
    def timeline(self) -> dict[str, list[Span]]:
        """By node, in the order in which they joined, the phases that it ran, oldest first."""
        found: dict[str, list[Span]] = {}
        for trial in self.trials:
            for phase in trial.phases:
                last = phase is trial.phases[-1] and trial.state in OPTUNAS_STATES
                found.setdefault(phase.node, []).append(
                    Span(
                        trial.number,
                        phase.phase,
                        phase.start,
                        phase.end,
                        trial.state if last else "",
                    )
                )
        for spans in found.values():
            spans.sort(key=lambda span: (span.start, span.end))
        return dict(sorted(found.items(), key=lambda item: (item[1][0].start, item[0])))

    @property
    def occupancy(self) -> float:
        """The share of the nodes' time that was spent in phases; NaN without any time."""
        offered = sum(self.search_time - spans[0].start for spans in self.timeline.values())
        return sum(map(_covered, self.timeline.values())) / offered if offered > 0 else math.nan

    @property
    def completion_rate(self) -> float:
        """The paper's α of the trials that have ended: phases run ÷ phases if nobody were stopped.

        NaN before the first has ended.
        """
        done = sum(trial.phases_done for trial in self.ended)
        return done / (len(self.ended) * self.settings.phases) if self.ended else math.nan

    @property
    def expected_completion_rate(self) -> float:
        """E[α] of as many trials as have ended, as the rule has it."""
        return self.settings.rule(len(self.ended)).expected_completion_rate

    def reports_of(self, phase: int) -> list[tuple[TrialRecord, PhaseRecord]]:
        """The trials that reported after phase `phase`, in the order of their reports."""
        found = [
            (trial, report)
            for trial in self.trials
            for report in trial.phases
            if report.phase == phase
        ]
        return sorted(found, key=lambda item: (item[1].report, item[1].end, item[0].number))


def read(study: optuna.Study) -> StudySnapshot:
    """A study's findings so far; it may still be running.

    Raises:
        ConfigurationError: the study was not written by a search of Genkidama, or in another way
            than this version's.
    """
    source = f"study {study.study_name!r}"
    attributes = study.user_attrs.get("genkidama")
    if attributes is None:
        raise ConfigurationError(
            f"{source} has no attribute 'genkidama': "
            "a study that `genkidama search` has made is needed"
        )
    if [direction.name for direction in study.directions] != ["MAXIMIZE"]:
        directions = [direction.name.lower() for direction in study.directions]
        raise ConfigurationError(f"{source}: directions = {directions}: ['maximize'] is needed")
    settings: SearchRecord = _convert(attributes, SearchRecord, f"{source}, attribute 'genkidama'")
    try:
        settings.rule()
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}, attribute 'genkidama': {error}") from None
    space = parse_space(settings.space, f"{source}, space")
    return StudySnapshot(study.study_name, settings, space, tuple(read_trials(study, space)))


def read_trials(study: optuna.Study, space: dict[str, Dimension]) -> list[TrialRecord]:
    """The trials of a study, by number.

    Raises:
        ConfigurationError: one of them was written in another way than this version's.
    """
    return [
        _trial(trial, space, f"study {study.study_name!r}, trial {trial.number}")
        for trial in sorted(study.get_trials(deepcopy=False), key=lambda trial: trial.number)
    ]


def _trial(
    trial: optuna.trial.FrozenTrial, space: dict[str, Dimension], source: str
) -> TrialRecord:
    about = trial.user_attrs
    phases: list[PhaseRecord] = _convert(
        about.get("phases", []), list[PhaseRecord], f"{source}, attribute 'phases'"
    )
    names = {theirs: ours for ours, theirs in OPTUNAS_STATES.items()}
    begun: State = "waiting" if trial.state.name == "WAITING" else "running"
    state = names.get(trial.state.name, begun)
    if state == "stopped" and phases and phases[-1].mode is Mode.FAILURE:
        state = "failed"
    return TrialRecord(
        number=trial.number,
        state=state,
        params={key: _value(space.get(key), label) for key, label in trial.params.items()},
        phases=phases,
        reason=str(about.get("reason", "")),
        checkpoint=str(about.get("checkpoint", "")),
    )


def _value(dimension: Dimension | None, label: Any) -> Any:
    """The setting's value for what the study calls it: lists are kept there as JSON text."""
    try:
        return label if dimension is None else dimension.value(label)
    except ValueError:  # not one of the choices: somebody else's trial
        return label


def _convert(value: Any, kind: Any, source: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"{source}: {str(error).replace('`', '')}; this version of Genkidama cannot read it"
        ) from None


def _covered(spans: Iterable[Span]) -> float:
    """Seconds that are within at least one of the spans, which are sorted by their start."""
    total, until = 0.0, -math.inf
    for span in spans:
        total += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total
