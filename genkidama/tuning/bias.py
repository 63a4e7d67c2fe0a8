"""What the order of the reports has done to the trials of a search.

A rule compares a report only with those before it, and HyperTrick lets the first of a phase pass.
So trials that start early or run fast have an advantage. Here each decision is compared with the
one that all reports of its phase would have led to (with Hyperband: those of its bracket). Equal
metrics count as equal: the rule's hash, which orders them, is no merit.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from genkidama.formats import plural
from genkidama.hypertrick.equations import ROUNDING
from genkidama.hypertrick.rule import Mode, Verdict
from genkidama.tuning.findings import Findings
from genkidama.tuning.methods import METHODS, SearchRule
from genkidama.tuning.records import PhaseRecord, TrialRecord
from genkidama.tuning.wording import section, wrapped

__all__ = ["OrderBias", "order_bias", "order_section"]


@dataclass(frozen=True)
class OrderBias:
    """What the order did; (trial, phase) pairs, by phase."""

    #: Passed early (in HyperTrick: in data collection) although the metric is below the threshold.
    lucky: tuple[tuple[int, int], ...]
    #: Stopped although the metric is not below the threshold.
    unlucky: tuple[tuple[int, int], ...]
    #: Spearman's rank correlation between a trial's number and its completed phases, of the trials
    #: that were stopped or completed; negative if early trials came further. NaN if it cannot be
    #: told.
    correlation: float
    #: How many trials the correlation is of.
    trials: int


def order_bias(findings: Findings) -> OrderBias:
    """Judges every report again, against all reports of its phase.

    The threshold is the √r quantile of them. With `adaptive` it is the quantile that leaves as many
    as equation 1 says: that of r, or a higher one if more trials than expected have come so far. Of
    Hyperband and ASHA it is the lowest score of the best 1/η.
    """
    rule = findings.settings.rule()
    early = METHODS[findings.settings.method].early
    reports = {phase: findings.reports_of(phase) for phase in rule.decide_after}
    scores: dict[tuple[int, int], list[float]] = {}
    for phase, found in reports.items():
        for trial, report in found:
            insort(
                scores.setdefault((phase, rule.peers(trial.number)), []), _or_worst(report.score)
            )
    arrived = {phase: _arrived(rule, findings, phase) for phase in rule.decide_after}

    def below(trial: TrialRecord, report: PhaseRecord) -> bool:
        known = scores[report.phase, rule.peers(trial.number)]
        not_better = bisect_right(known, _or_worst(report.score)) - 1
        bar = rule.bar(report.phase, len(known), arrived[report.phase])
        return not_better < bar - ROUNDING

    def those(wanted: Callable[[TrialRecord, PhaseRecord], bool]) -> tuple[tuple[int, int], ...]:
        return tuple(
            (trial.number, phase)
            for phase, found in reports.items()
            for trial, report in sorted(found, key=lambda item: item[0].number)
            if wanted(trial, report)
        )

    ended = findings.of_state("completed", "stopped")
    return OrderBias(
        lucky=those(
            lambda trial, report: (
                report.mode in early and report.verdict is Verdict.CONTINUE and below(trial, report)
            )
        ),
        unlucky=those(
            lambda trial, report: (
                report.mode is Mode.SELECTION
                and report.verdict is Verdict.STOP
                and not below(trial, report)
            )
        ),
        correlation=_correlation(ended),
        trials=len(ended),
    )


def _arrived(rule: SearchRule, findings: Findings, phase: int) -> int:
    """How many trials have passed the decision before that of `phase`."""
    index = rule.decide_after.index(phase)
    if not index:
        return 0
    return sum(
        report.verdict is Verdict.CONTINUE
        for _, report in findings.reports_of(rule.decide_after[index - 1])
    )


def _correlation(trials: list[TrialRecord]) -> float:
    done = [trial.phases_done for trial in trials]
    if len(set(done)) < 2:
        return math.nan
    # SciPy's statistics take a second to import.
    from scipy.stats import spearmanr  # type: ignore[import-untyped]

    return float(spearmanr([trial.number for trial in trials], done).statistic)


def _or_worst(score: float) -> float:
    return -math.inf if math.isnan(score) else score


def order_section(findings: Findings) -> str:
    """The part of the report about it."""
    title = "What the order of the reports did"
    method = METHODS[findings.settings.method]
    if not method.order:
        return section(title, [f"Nothing: {method.title} stops nobody."])
    bias = order_bias(findings)
    states = {trial.number: trial.state for trial in findings.trials}
    completed = [item for item in bias.lucky if states[item[0]] == "completed"]
    others = len(bias.lucky) - len(completed)
    lines = wrapped(f"{method.order} Judged again with all reports of each phase so far:")
    lines += wrapped(
        "Completed, but passed at least one phase only because they were early: "
        f"{_listed(completed)}."
        + (
            f" Others passed that way {plural(others, 'time')} and did not complete."
            if others
            else ""
        )
    )
    lines += wrapped(
        f"Stopped, but would pass against all reports of the phase: {_listed(bias.unlucky)}."
    )
    if math.isnan(bias.correlation):
        lines.append("Whether trials that started early came further cannot be told yet.")
    else:
        chance = 1 / math.sqrt(bias.trials - 1)
        lines += wrapped(
            f"Rank correlation between start order and phases completed: {bias.correlation:+.2f} "
            f"over {bias.trials} trials (below 0: trials that started early came further; "
            f"by chance alone about ±{chance:.2f})."
        )
    return section(title, lines)


def _listed(pairs: Sequence[tuple[int, int]]) -> str:
    """`trial 3 (phases 0, 2–4), trial 8 (phase 2)`, or `none`."""
    phases: dict[int, list[int]] = {}
    for trial, phase in pairs:
        phases.setdefault(trial, []).append(phase)
    return (
        ", ".join(
            f"trial {trial} (phase{'s' * (len(found) > 1)} {_ranges(found)})"
            for trial, found in sorted(phases.items())
        )
        or "none"
    )


def _ranges(numbers: Sequence[int]) -> str:
    """`0, 2–4` for 0, 2, 3, 4."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join("–".join(map(str, dict.fromkeys((run[0], run[-1])))) for run in runs)
