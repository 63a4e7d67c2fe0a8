"""HyperTrick's rule: which trials go on after a phase. Pure: no clock, no socket, no file.

Heinrich and Frosio, "Metaoptimization on a distributed system for deep reinforcement learning"
(arXiv 1902.02725), §3.2. A search starts W₀ workers (here *trials*), each trains for up to N_p
phases and reports a metric after each. Nobody waits for anybody: the verdict is the reply to the
report.

Laws of this file. Where the paper leaves room they are readings, with the reason:
- Phases count from 0. The text's "W₁^DCM = 8" for W₀ = 16, r = 25 % is eq. 2 at p = 0, and the
  proof starts there.
- W_p^DCM is rounded down (the text prints 4 for 4.5), safely: 25·(1−√.64) is 5, though floats say
  4.999….
- The n-th report of a phase passes if n ≤ W_p^DCM (data collection). Later ones (worker selection)
  are stopped if their metric is strictly below the √r quantile of all reports of that phase. Their
  own report is included, as in the example, where the fifth of five is judged. The reports of
  stopped trials are too, as the proof takes quantiles of all that reached the phase. The quantile
  interpolates linearly.
- After the last phase nothing is decided: the trial is complete. "At t = 6 … the first phase" in
  the example can only be the second, since W₁^DCM = 6 is the second's.
- Equal metrics are ordered by a seeded hash of trial and phase. So a metric with few values stops
  the right share, and the same reports always give the same verdicts.
- NaN, which is also what a crash counts as, is worse than any number, and stops its trial at once.
- A report of the same trial and phase is answered again and counted once.
- Equation 8 sums the workers that *pass* data collection where it should sum all that *run* a
  phase: all W₀ run the first. The least that can be reached is `(1 + Σ_{p<N_p−1} W_p^DCM / W₀) /
  N_p`. That is higher, unless rounding W_p^DCM down takes more: of 2 workers over 100 phases at r =
  1 % one may be stopped at once.
- r is the share that ends after a decision because early trials pass and √r of the late ones are
  stopped. With a `cohort` smaller than W₀ nearly all trials are late, so nearly √r of them end: 82
  % for r = 2/3. `expected_completion_rate` takes that into account.
- With `adaptive`, the quantile is not √r but what the proof's last step needs for the numbers as
  they are. Of W₀(1−r)^p arrivals, W₀(1−r)^(p+1) shall pass (eq. 1). The reports so far are
  subtracted from the arrivals, and the trials that have passed from the places. `1 − places left /
  arrivals left`, within [0, 1], is the share of the arrivals to come that must be stopped. If more
  have passed the decision before than eq. 1 expects, these are the arrivals. At the first selection
  that is √r, but for the rounding of eq. 2. It stays √r on average while metrics are what the proof
  assumes. It grows where ranks persist: there the survivors are better than what they are compared
  with, and too many pass. At 1 only a metric above all reports of its phase passes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import TypeAlias

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.equations import (
    ROUNDING,
    check_natural,
    check_rate,
    expected_runs,
    expected_workers,
    is_number,
    is_whole,
    workers_before_selection,
)

__all__ = ["Decision", "HyperTrick", "Mode", "Verdict", "checked_metric"]

#: Orders the reports of a phase: whether it is a number, the metric, the hash of its trial.
_Key: TypeAlias = tuple[float, float, int]


class Verdict(StrEnum):
    """What a trial does after a phase."""

    CONTINUE = "continue"
    STOP = "stop"


class Mode(StrEnum):
    """Why a verdict came out as it did."""

    #: Among the first W_p^DCM of its phase: passes whatever it reports.
    COLLECTION = "collection"
    #: Compared with the reports before it.
    SELECTION = "selection"
    #: No decision after this phase.
    NONE = "none"
    #: The metric is NaN: the trial has failed.
    FAILURE = "failure"


@dataclass(frozen=True)
class Decision:
    """One report and what was decided."""

    trial: int
    phase: int
    metric: float
    #: It was the n-th report of its phase, counted from 1.
    order: int
    #: So many of the reports before it are worse.
    worse: int
    mode: Mode
    verdict: Verdict


def checked_metric(trial: int, phase: int, metric: float, phases: int) -> float:
    """A report's metric as a float.

    Raises:
        ConfigurationError: no such phase, or a metric that is no number.
    """
    if not is_number(metric):
        raise ConfigurationError(
            f"trial {trial}, phase {phase}: metric = {metric!r}: "
            "expected a number; NaN for a trial that failed"
        )
    if not is_whole(phase) or not 0 <= phase < phases:
        raise ConfigurationError(f"trial {trial}: phase = {phase!r}: expected 0 to {phases - 1}")
    return float(metric)


class HyperTrick:
    """The rule with its memory of all reports.

    Args:
        workers: W₀, how many trials are started in all, at least 1.
        phases: N_p, at least 1.
        eviction_rate: r, the share of trials that is meant to end after each phase, within (0, 1).
        decide_after: the phases after which anything is decided, ascending; all but the last if
            absent. The exponent p of eqs. 1 and 2 then counts decisions. `geometric_phases` gives a
            useful choice.
        cohort: if given, W₀ of eq. 2 is this number (and not `workers`, if that is larger). Only so
            many of the trials collect data; all later ones are selected, against all reports of
            their phase so far, so that √r of them end and not r. For a search with as many trials
            as there is time for. Not in the paper.
        adaptive: adapt the quantile to how many have passed so far, to keep to the completion rate
            of eq. 9; see the last law of this file. Not in the paper.
        seed: of the hash that orders equal metrics.

    Raises:
        ConfigurationError: one of them is out of its range.
    """

    def __init__(
        self,
        *,
        workers: int,
        phases: int,
        eviction_rate: float,
        decide_after: Sequence[int] | None = None,
        cohort: int | None = None,
        adaptive: bool = False,
        seed: int = 0,
    ) -> None:
        check_natural("workers", workers)
        check_natural("phases", phases)
        check_rate(eviction_rate)
        if cohort is not None:
            check_natural("cohort", cohort)
        self.workers = workers
        self.phases = phases
        self.eviction_rate = eviction_rate
        self.decide_after = tuple(range(phases - 1) if decide_after is None else decide_after)
        allowed = sorted(set(self.decide_after).intersection(range(phases - 1)))
        if not all(map(is_whole, self.decide_after)) or list(self.decide_after) != allowed:
            raise ConfigurationError(
                f"decide_after = {self.decide_after!r}: "
                f"ascending phases from 0 to {phases - 2} are allowed"
            )
        self.cohort = cohort
        self.adaptive = adaptive
        self.seed = seed
        #: By phase, the keys of its reports, worst first.
        self._reports: dict[int, list[_Key]] = {}
        #: By phase, how many of its reports were answered with CONTINUE.
        self._passed: dict[int, int] = {}
        self._decisions: dict[tuple[int, int], Decision] = {}

    def report(self, trial: int, phase: int, metric: float) -> Verdict:
        """Takes in what a trial reports after a phase, and says whether it goes on.

        Args:
            trial: its number, from 0 in the order in which trials are started.
            phase: from 0.
            metric: higher is better; NaN means that the trial has failed.

        Raises:
            ConfigurationError: no such phase, or a metric that is no number.
        """
        return self.decide(trial, phase, metric).verdict

    def decide(self, trial: int, phase: int, metric: float) -> Decision:
        """As `report`, with the reason."""
        metric = checked_metric(trial, phase, metric, self.phases)
        found = self._decisions.get((trial, phase))
        if found is not None:
            return found
        reports = self._reports.setdefault(phase, [])
        key = self._key(trial, phase, metric)
        worse = bisect_left(reports, key)
        reports.insert(worse, key)
        order = len(reports)
        mode, verdict = self._judge(phase, metric, order, worse)
        decision = Decision(trial, phase, metric, order, worse, mode, verdict)
        self._remember(decision)
        return decision

    def restore(self, decisions: Iterable[Decision]) -> None:
        """Takes over what was decided before a restart, in its order.

        Verdicts are kept as they are.
        """
        for decision in decisions:
            reports = self._reports.setdefault(decision.phase, [])
            insort(reports, self._key(decision.trial, decision.phase, decision.metric))
            self._remember(decision)

    @property
    def decisions(self) -> list[Decision]:
        """All decisions, oldest first."""
        return list(self._decisions.values())

    def _remember(self, decision: Decision) -> None:
        self._decisions[decision.trial, decision.phase] = decision
        self._passed[decision.phase] = self._passed.get(decision.phase, 0) + (
            decision.verdict is Verdict.CONTINUE
        )

    @property
    def expected_completion_rate(self) -> float:
        """E[α] while metrics are stationary: the expected share of all W₀·N_p phases that are run.

        Equation 9, but for decisions after some phases only and a cohort, which both count.
        """
        collecting = self.workers if self.adaptive else self._collecting
        runs = expected_runs(
            self.workers, self.phases, self.eviction_rate, self.decide_after, collecting
        )
        return sum(runs) / (self.workers * self.phases)

    def threshold(self, phase: int, *, arrived: int, reported: int = 0, passed: int = 0) -> float:
        """Below which quantile of its phase the next report is stopped: √r, or the controller's.

        Args:
            phase: one after which something is decided.
            arrived: trials that have passed the decision before.
            reported: trials that have reported after the phase.
            passed: so many of them went on.
        """
        if not self.adaptive:
            return math.sqrt(self.eviction_rate)
        index = self.decide_after.index(phase)
        expected = expected_workers(self.workers, self.eviction_rate, index)
        arrivals = max(expected, arrived) - reported
        places = expected_workers(self.workers, self.eviction_rate, index + 1) - passed
        return min(1.0, max(0.0, 1.0 - places / arrivals)) if arrivals > 0 else 1.0

    @property
    def _collecting(self) -> int:
        return min(self.workers, self.cohort or self.workers)

    def _judge(self, phase: int, metric: float, order: int, worse: int) -> tuple[Mode, Verdict]:
        if math.isnan(metric):
            return Mode.FAILURE, Verdict.STOP
        if phase not in self.decide_after:
            return Mode.NONE, Verdict.CONTINUE
        index = self.decide_after.index(phase)
        if order <= workers_before_selection(self._collecting, self.eviction_rate, index):
            return Mode.COLLECTION, Verdict.CONTINUE
        quantile = self.threshold(
            phase,
            arrived=self._passed.get(self.decide_after[index - 1], 0) if index else 0,
            reported=order - 1,
            passed=self._passed.get(phase, 0),
        )
        below = worse < (order - 1) * quantile - ROUNDING
        return Mode.SELECTION, Verdict.STOP if below else Verdict.CONTINUE

    def _key(self, trial: int, phase: int, metric: float) -> _Key:
        """Orders reports: NaN first, then by metric, equal ones by the hash."""
        tie = int.from_bytes(
            blake2b(f"{self.seed}:{trial}:{phase}".encode(), digest_size=8).digest(), "big"
        )
        return (0.0, 0.0, tie) if math.isnan(metric) else (1.0, float(metric), tie)
