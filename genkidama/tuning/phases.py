"""A phase of a trial, as it is reported and kept. Pure."""

from __future__ import annotations

import math

import msgspec

from genkidama.hypertrick.rule import Decision, Mode, Verdict

__all__ = ["PhaseRecord", "end_of"]


class PhaseRecord(msgspec.Struct, kw_only=True):
    """One phase of a trial, as the knowledge database keeps it."""

    phase: int
    node: str
    #: Seconds of the search's time, from its first trial on, without downtime.
    start: float
    end: float
    #: None stands for NaN, which JSON lacks.
    metric: float | None
    #: Of `Decision`: the n-th report of its phase, and how many reports before it were worse.
    order: int
    worse: int
    #: Of `Decision`, too: how the rule decided, and what follows.
    mode: str
    verdict: str
    #: Of the trial so far.
    steps: int
    episodes: int
    #: The running number of this report in the search.
    report: int

    def decision(self, trial: int) -> Decision:
        """What the rule had decided, given the trial's number."""
        return Decision(
            trial,
            self.phase,
            math.nan if self.metric is None else self.metric,
            self.order,
            self.worse,
            Mode(self.mode),
            Verdict(self.verdict),
        )


def end_of(phases: list[PhaseRecord], count: int) -> str:
    """The state in which these reports leave a trial of `count` phases; empty while it goes on."""
    if phases and phases[-1].mode == Mode.FAILURE.value:
        return "failed"
    if phases and phases[-1].verdict == Verdict.STOP.value:
        return "stopped"
    return "completed" if len(phases) >= count else ""
