"""HyperTrick: its rule, by which trials continue after a phase, and its equations. Pure.

Heinrich and Frosio, "Metaoptimization on a distributed system for deep reinforcement learning"
(arXiv 1902.02725), §3.2. A search starts W₀ workers (here *trials*), each trains for up to N_p
phases and reports a metric after each. No trial waits for another: the verdict is the reply to the
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
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from hashlib import blake2b
from numbers import Integral, Real
from typing import TypeAlias

import msgspec

from genkidama.errors import ConfigurationError

#: The error of a float that stands for a whole number.
ROUNDING = 1e-9


def workers_before_selection(workers: int, eviction_rate: float, phase: int) -> int:
    """W_p^DCM = W₀(1−√r)(1−r)^p, rounded down (eq. 2): reports of a phase that always pass."""
    return math.floor(
        workers * (1 - math.sqrt(eviction_rate)) * (1 - eviction_rate) ** phase + ROUNDING
    )


def expected_workers(workers: int, eviction_rate: float, phase: int) -> float:
    """E[W_p] = W₀(1−r)^p (eq. 1): workers expected to run phase `phase`, counted from 0."""
    return workers * (1.0 - eviction_rate) ** phase


def expected_runs(
    workers: int,
    phases: int,
    eviction_rate: float,
    decide_after: Sequence[int] | None = None,
    collecting: int | None = None,
) -> list[float]:
    """Workers expected to run each phase, if a metric says nothing about the next one.

    Of the workers that come to a decision, as many pass early as eq. 2 says, and 1−√r of the rest.
    With all W₀ in eq. 2 that is eq. 1, and the mean of the result ÷ W₀ is eq. 9, E[α] =
    (1−(1−r)^N_p)/(r·N_p). With fewer (a cohort, `collecting`), nearly √r are stopped instead of r.
    """
    chosen = range(phases - 1) if decide_after is None else decide_after
    decisions = {phase: number for number, phase in enumerate(chosen)}
    stays = 1.0 - math.sqrt(eviction_rate)
    first = min(workers, collecting or workers)
    running, runs = float(workers), []
    for phase in range(phases):
        runs.append(running)
        if phase in decisions:
            early = first * stays * (1.0 - eviction_rate) ** decisions[phase]
            running = early + stays * (running - early) if early < running else running
    return runs


def geometric_phases(phases: int, factor: int = 3, first: int = 1) -> tuple[int, ...]:
    """The phases after which 1, `factor`, `factor`², … times `first` phases are done.

    The last phase is none of them. `geometric_phases(27)` is `(0, 2, 8)`: decisions after 1, 3 and
    9 phases of 27.
    """
    check_natural("phases", phases)
    check_natural("factor", factor, least=2)
    check_natural("first", first)
    done, chosen = first, []
    while done < phases:
        chosen.append(done - 1)
        done *= factor
    return tuple(chosen)


# The rule.

#: Orders the reports of a phase: whether it is a number, the metric, the hash of its trial.
_Key: TypeAlias = tuple[float, float, int]


class Verdict(StrEnum):
    """The fate of a trial after a phase."""

    CONTINUE = "continue"
    STOP = "stop"
    #: Waits, without a node, for the other trials of its rung.
    PAUSE = "pause"
    #: Goes on with the weights of another one, and with its settings, perturbed.
    COPY = "copy"


class Mode(StrEnum):
    """The reason of a verdict."""

    #: Among the first W_p^DCM of its phase: passes whatever it reports.
    COLLECTION = "collection"
    #: Compared with the reports before it.
    SELECTION = "selection"
    #: No decision after this phase.
    NONE = "none"
    #: The metric is NaN: the trial has failed.
    FAILURE = "failure"


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """A report and the decision on it."""

    trial: int
    phase: int
    metric: float
    #: It was the n-th report of its phase, counted from 1.
    order: int
    #: The number of earlier reports of its phase that are worse.
    worse: int
    mode: Mode
    verdict: Verdict
    #: The trial that is copied.
    source: int | None = None


class SearchRule(ABC):
    """A rule of a search of W₀ workers and N_p phases, with its memory of all reports."""

    #: The phases, from 0, after which anything is decided, ascending.
    decide_after: tuple[int, ...]
    #: Whether trials learn side by side: if there are more than nodes, they take turns.
    takes_turns = False

    def __init__(self, workers: int, phases: int) -> None:
        check_natural("workers", workers)
        check_natural("phases", phases)
        self.workers = workers
        self.phases = phases
        #: Trials have numbers below this one.
        self.numbers = workers
        #: Numbers of which no trial will report, so that none may wait for it.
        self.left_out: set[int] = set()
        self._decisions: dict[tuple[int, int], Decision] = {}

    def report(self, trial: int, phase: int, metric: float) -> Verdict:
        """Decides on the metric that a trial reports after a phase, both counted from 0. A higher
        metric is better; NaN means that the trial has failed.

        Raises:
            ConfigurationError: no such phase, or a metric that is no number.
        """
        return self.decide(trial, phase, metric).verdict

    def decide(self, trial: int, phase: int, metric: float) -> Decision:
        """`report`, with the reason."""
        if not is_number(metric):
            raise ConfigurationError(
                f"trial {trial}, phase {phase}: metric = {metric!r}: "
                "expected a number; NaN for a trial that failed"
            )
        if not is_whole(phase) or not 0 <= phase < self.length(trial):
            raise ConfigurationError(
                f"trial {trial}: phase = {phase!r}: expected 0 to {self.length(trial) - 1}"
            )
        metric = float(metric)
        if (earlier := self._decisions.get((trial, phase))) is not None:
            return earlier
        decision = self._judge(trial, phase, metric)
        self.restore([decision])
        return decision

    def restore(self, decisions: Iterable[Decision]) -> None:
        """Adds decisions, as those from before a restart, in their order. Their verdicts stay."""
        for decision in decisions:
            self._count(decision)
            self._decisions[decision.trial, decision.phase] = decision

    @property
    def decisions(self) -> list[Decision]:
        """All decisions, oldest first."""
        return list(self._decisions.values())

    def settle(self) -> list[Decision]:
        """The decisions on paused trials that can be made by now, those that continue first, and of
        these the best."""
        return []

    def length(self, trial: int) -> int:
        """Phases of a trial that is never stopped."""
        return self.phases

    def began(self, trial: int, phase: int) -> int:
        """The phase with which the training began that a phase belongs to."""
        return 0

    @property
    @abstractmethod
    def expected_completion_rate(self) -> float:
        """The expected share of all W₀·N_p phases to be run, while metrics are stationary."""

    @abstractmethod
    def _judge(self, trial: int, phase: int, metric: float) -> Decision:
        """The decision on a new report."""

    @abstractmethod
    def _count(self, decision: Decision) -> None:
        """Adds a decision to the memory."""


class HyperTrick(SearchRule):
    """The rule of the paper.

    Args:
        workers: W₀, how many trials are started in all, at least 1.
        phases: N_p, at least 1.
        eviction_rate: r, the share of trials that is meant to end after each phase, within (0, 1).
        decide_after: the phases after which anything is decided, ascending; all but the last if
            absent. The exponent p of eqs. 1 and 2 then counts decisions. `geometric_phases` gives a
            useful choice.
        cohort: if given, W₀ of eq. 2 is this number (and not `workers`, if that is larger). Only
            this many trials collect data; all later ones are selected, against all reports of
            their phase so far, so that √r of them end and not r. For a search with as many trials
            as time allows. Not in the paper.
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
        super().__init__(workers, phases)
        check_rate(eviction_rate)
        if cohort is not None:
            check_natural("cohort", cohort)
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
        self._reports: defaultdict[int, list[_Key]] = defaultdict(list)
        #: By phase, how many of its reports were answered with CONTINUE.
        self._passed: Counter[int] = Counter()

    @property
    def expected_completion_rate(self) -> float:
        """Equation 9, but for decisions after some phases only and a cohort, which both count."""
        collecting = self.workers if self.adaptive else self.cohort
        runs = expected_runs(
            self.workers, self.phases, self.eviction_rate, self.decide_after, collecting
        )
        return sum(runs) / (self.workers * self.phases)

    def _quantile(self, phase: int) -> float:
        """The quantile below which the next report is stopped: √r, or the controller's."""
        if not self.adaptive:
            return math.sqrt(self.eviction_rate)
        index = self.decide_after.index(phase)
        arrived = self._passed[self.decide_after[index - 1]] if index else 0
        expected = expected_workers(self.workers, self.eviction_rate, index)
        arrivals = max(expected, arrived) - len(self._reports[phase])
        following = expected_workers(self.workers, self.eviction_rate, index + 1)
        places = following - self._passed[phase]
        return min(1.0, max(0.0, 1.0 - places / arrivals)) if arrivals > 0 else 1.0

    def _judge(self, trial: int, phase: int, metric: float) -> Decision:
        worse = bisect_left(self._reports[phase], self._key(trial, phase, metric))
        order = len(self._reports[phase]) + 1
        mode, verdict = self._verdict(phase, metric, order, worse)
        return Decision(trial, phase, metric, order, worse, mode, verdict)

    def _count(self, decision: Decision) -> None:
        phase = decision.phase
        insort(self._reports[phase], self._key(decision.trial, phase, decision.metric))
        self._passed[phase] += decision.verdict is Verdict.CONTINUE

    def _verdict(self, phase: int, metric: float, order: int, worse: int) -> tuple[Mode, Verdict]:
        if math.isnan(metric):
            return Mode.FAILURE, Verdict.STOP
        if phase not in self.decide_after:
            return Mode.NONE, Verdict.CONTINUE
        index = self.decide_after.index(phase)
        collecting = min(self.workers, self.cohort or self.workers)
        if order <= workers_before_selection(collecting, self.eviction_rate, index):
            return Mode.COLLECTION, Verdict.CONTINUE
        below = worse < (order - 1) * self._quantile(phase) - ROUNDING
        return Mode.SELECTION, Verdict.STOP if below else Verdict.CONTINUE

    def _key(self, trial: int, phase: int, metric: float) -> _Key:
        """Orders reports: NaN first, then by metric, equal ones by the hash."""
        tie = int.from_bytes(
            blake2b(f"{self.seed}:{trial}:{phase}".encode(), digest_size=8).digest(), "big"
        )
        return (0.0, 0.0, tie) if math.isnan(metric) else (1.0, float(metric), tie)


def is_whole(value: object) -> bool:
    """NumPy's numbers too; no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """NumPy's numbers too; not a whole number that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return not isinstance(value, Integral) or abs(int(value)) < 2**1023


def check_natural(name: str, value: int, least: int = 1) -> None:
    if not is_whole(value) or value < least:
        raise ConfigurationError(
            f"{name} = {value!r}: a whole number of at least {least} is needed"
        )


def check_rate(value: float) -> None:
    if not is_number(value) or not 0.0 < value < 1.0:
        raise ConfigurationError(
            f"eviction_rate = {value!r}: a number between 0 and 1, exclusively, is needed"
        )
