"""HyperTrick's rule: who may go on after a phase. Pure: no clock, no socket, no file.

Heinrich and Frosio, "Metaoptimization on a distributed system for deep reinforcement learning"
(arXiv 1902.02725), §3.2. A search starts W₀ workers (here *trials*), each trains for up to N_p phases
and reports a metric after each. Nobody waits for anybody: the verdict is the reply to the report.

Laws of this file, which are readings where the paper leaves room, with the reason:
- Phases count from 0. The text's "W₁^DCM = 8" for W₀ = 16, r = 25 % is eq. 2 at p = 0, and the proof
  starts there.
- W_p^DCM is rounded down (the text prints 4 for 4.5), safely: 25·(1−√.64) is 5, though floats say 4.999….
- The n-th report of a phase passes if n ≤ W_p^DCM (data collection). Later ones (worker selection) are
  stopped if their metric is strictly below the √r quantile of all reports of that phase: their own
  included, as in the example where the fifth of five is judged; those of stopped trials too, as the
  proof takes quantiles of all that reached the phase. The quantile interpolates linearly.
- After the last phase nothing is decided: the trial is complete. "At t = 6 … the first phase" in the
  example can only be the second, since W₁^DCM = 6 is the second's.
- Equal metrics are ordered by a seeded hash of trial and phase, so that a metric with few values stops
  the right share and the same reports always give the same verdicts.
- NaN, which is also what a crash counts as, is worse than any number, and stops its trial at once.
- A report of the same trial and phase is answered again and counted once.
- Equation 8 sums the workers who *pass* data collection where it should sum those who *run* a phase: all
  W₀ run the first. What can be reached at least is `(1 + Σ_{p<N_p−1} W_p^DCM / W₀) / N_p`.
  (It is higher, unless rounding W_p^DCM down takes more: of 2 workers over 100 phases at r = 1 % one may be stopped at once.)
- With `adaptive`, the quantile is not √r but what the proof's last step needs for the numbers as they are. Of
  W₀(1−r)^p arrivals, W₀(1−r)^(p+1) shall pass (eq. 1); those who have passed are subtracted from the second, those
  who have reported from the first, and `1 − places left / arrivals left`, within [0, 1], is the share of the
  arrivals to come that must be stopped. If more have passed the decision before than eq. 1 expects, they are the
  arrivals. This is √r at the first selection, but for the rounding of eq. 2, and stays √r on average while metrics
  are what the proof assumes; where ranks persist, so that survivors are better than what they are compared with and too many
  pass, it grows. At 1 only a metric above all reports of its phase passes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from numbers import Integral, Real
from typing import TypeAlias

from genkidama.errors import ConfigurationError

__all__ = [
    "Bracket",
    "Decision",
    "HyperTrick",
    "Mode",
    "Verdict",
    "completion_rate",
    "eviction_rate_for",
    "expected_workers",
    "geometric_phases",
    "hyperband_brackets",
    "minimum_completion_rate",
    "workers_before_selection",
]

#: What floats may be off by where a whole number is meant.
_ROUNDING = 1e-9

#: Orders the reports of a phase: whether it is a number, the metric, the hash of its trial.
_Key: TypeAlias = tuple[float, float, int]


class Verdict(Enum):
    """What a trial does after a phase."""

    CONTINUE = "continue"
    STOP = "stop"


class Mode(Enum):
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


def workers_before_selection(workers: int, eviction_rate: float, phase: int) -> int:
    """W_p^DCM = W₀(1−√r)(1−r)^p, rounded down (eq. 2): so many pass phase `phase` (from 0) unconditionally."""
    _check_natural("workers", workers)
    _check_rate(eviction_rate)
    return math.floor(
        workers * (1 - math.sqrt(eviction_rate)) * (1 - eviction_rate) ** phase + _ROUNDING
    )


def expected_workers(workers: int, eviction_rate: float, phase: int) -> float:
    """E[W_p] = W₀(1−r)^p (eq. 1): so many are expected to run phase `phase`, counted from 0."""
    _check_natural("workers", workers)
    _check_rate(eviction_rate)
    return workers * (1.0 - eviction_rate) ** phase


def completion_rate(eviction_rate: float, phases: int) -> float:
    """E[α] = (1−(1−r)^N_p)/(r·N_p) (eq. 9): the expected share of all W₀·N_p phases that are run."""
    _check_rate(eviction_rate)
    _check_natural("phases", phases)
    return (1.0 - (1.0 - eviction_rate) ** phases) / (eviction_rate * phases)


def minimum_completion_rate(eviction_rate: float, phases: int) -> float:
    """min[α] = (1−√r)·E[α] (eq. 8), as printed; one phase too low to be reached, see the head of this file."""
    return completion_rate(eviction_rate, phases) * (1.0 - math.sqrt(eviction_rate))


def eviction_rate_for(target: float, phases: int) -> float:
    """The r that gives a completion rate of `target`: eq. 9 solved by bisection.

    For 32.61 % over 27 phases it is 0.10846; the paper prints 10.82 %, which gives 32.68 %.

    Args:
        target: within (1/phases, 1), the open range that eq. 9 reaches.

    Raises:
        ConfigurationError: out of that range.
    """
    _check_natural("phases", phases)
    if not 1 / phases < target < 1:
        raise ConfigurationError(
            f"completion rate = {target!r}: with {phases} phases it lies between {1 / phases:.4g} and 1, exclusively"
        )
    low, high = 1e-12, 1.0 - 1e-12
    while high - low > 1e-15:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if completion_rate(middle, phases) > target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def geometric_phases(phases: int, factor: int = 3) -> tuple[int, ...]:
    """The phases, counted from 0, after which 1, `factor`, `factor`², … phases are done; the last is never one.

    `geometric_phases(27)` is `(0, 2, 8)`: decisions after 1, 3 and 9 phases of 27.
    """
    _check_natural("phases", phases)
    _check_natural("factor", factor, least=2)
    done, chosen = 1, []
    while done < phases:
        chosen.append(done - 1)
        done *= factor
    return tuple(chosen)


@dataclass(frozen=True)
class Bracket:
    """One of Hyperband's brackets: an instance of Successive Halving."""

    #: The paper's index, from s_max down to 0.
    s: int
    #: (n_i, r_i) of each round: how many configurations, and how many units of resource each has used by its end.
    rounds: tuple[tuple[int, int], ...]

    @property
    def completion_rate(self) -> float:
        """Σ n_i·r_i / (n_0·R): the share of the resource that running all to the end would take.

        As in HyperTrick's paper (Table 2) each round starts anew, so its rounds' resources add up.
        """
        return sum(n * r for n, r in self.rounds) / (self.rounds[0][0] * self.rounds[-1][1])


def hyperband_brackets(resource: int, factor: int = 3) -> tuple[Bracket, ...]:
    """Hyperband's table (Li et al. 2016, algorithm 1) for R = `resource` and η = `factor`.

    In each bracket s: n = ⌈(s_max+1)/(s+1)·η^s⌉ configurations of R·η^−s units, of which ⌊n·η^−i⌋ see round i.
    HyperTrick's paper prints 27, 9, 6, 4 for R = 27, η = 3: ⌈·⌉ gives 12 for s = 2 and ⌊·⌋ of (s_max+1)/(s+1) gives 9,
    so that is what is computed here: n = ⌊(s_max+1)/(s+1)⌋·η^s.
    """
    _check_natural("resource", resource)
    _check_natural("factor", factor, least=2)
    highest = 0
    while factor ** (highest + 1) <= resource:
        highest += 1
    brackets = []
    for s in range(highest, -1, -1):
        n = (highest + 1) // (s + 1) * factor**s
        brackets.append(
            Bracket(s, tuple((n // factor**i, resource // factor ** (s - i)) for i in range(s + 1)))
        )
    return tuple(brackets)


class HyperTrick:
    """The rule with its memory of all reports.

    Args:
        workers: W₀, how many trials are started in all, at least 1.
        phases: N_p, at least 1.
        eviction_rate: r, the share of trials that is meant to end after each phase, within (0, 1).
        decide_after: the phases after which anything is decided, ascending; all but the last if absent.
            The exponent p of eqs. 1 and 2 then counts decisions. `geometric_phases` gives a useful choice.
        cohort: if given, W₀ of eq. 2 is this number (and not `workers`, if that is larger): only so many of the trials
            collect data, and all later ones are selected, against all reports of their phase so far. For a
            search with as many trials as there is time for. Not in the paper.
        adaptive: adapt the quantile to how many have passed so far, to keep to the completion rate of eq. 9;
            see the last law of this file. Not in the paper.
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
        _check_natural("workers", workers)
        _check_natural("phases", phases)
        _check_rate(eviction_rate)
        if cohort is not None:
            _check_natural("cohort", cohort)
        self.workers, self.phases, self.eviction_rate = workers, phases, eviction_rate
        self.decide_after = tuple(range(phases - 1) if decide_after is None else decide_after)
        allowed = sorted(set(self.decide_after).intersection(range(phases - 1)))
        if not all(map(_is_whole, self.decide_after)) or list(self.decide_after) != allowed:
            raise ConfigurationError(
                f"decide_after = {self.decide_after!r}: ascending phases from 0 to {phases - 2} are allowed"
            )
        self.cohort, self.adaptive, self.seed = cohort, adaptive, seed
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
        if not _is_number(metric):
            raise ConfigurationError(
                f"trial {trial}, phase {phase}: metric = {metric!r}: expected a number; NaN for a trial that failed"
            )
        if not _is_whole(phase) or not 0 <= phase < self.phases:
            raise ConfigurationError(
                f"trial {trial}: phase = {phase!r}: expected 0 to {self.phases - 1}"
            )
        metric = float(metric)
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
        """Takes over what was decided before a restart, in its order. Verdicts are kept, not judged again."""
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

    def _judge(self, phase: int, metric: float, order: int, worse: int) -> tuple[Mode, Verdict]:
        if math.isnan(metric):
            return Mode.FAILURE, Verdict.STOP
        if phase not in self.decide_after:
            return Mode.NONE, Verdict.CONTINUE
        collecting = min(self.workers, self.cohort or self.workers)
        if order <= workers_before_selection(
            collecting, self.eviction_rate, self.decide_after.index(phase)
        ):
            return Mode.COLLECTION, Verdict.CONTINUE
        below = worse < (order - 1) * self._quantile(phase, order) - _ROUNDING
        return Mode.SELECTION, Verdict.STOP if below else Verdict.CONTINUE

    def _quantile(self, phase: int, order: int) -> float:
        """Below which quantile of its phase the `order`-th report is stopped: √r, or the controller's."""
        if not self.adaptive:
            return math.sqrt(self.eviction_rate)
        index = self.decide_after.index(phase)
        before = self._passed.get(self.decide_after[index - 1], 0) if index else 0
        arrivals = max(expected_workers(self.workers, self.eviction_rate, index), before) - (
            order - 1
        )
        places = expected_workers(self.workers, self.eviction_rate, index + 1) - self._passed.get(
            phase, 0
        )
        return min(1.0, max(0.0, 1.0 - places / arrivals)) if arrivals > 0 else 1.0

    def _key(self, trial: int, phase: int, metric: float) -> _Key:
        """Orders reports: NaN first, then by metric, equal ones by the hash."""
        tie = int.from_bytes(
            blake2b(f"{self.seed}:{trial}:{phase}".encode(), digest_size=8).digest(), "big"
        )
        return (0.0, 0.0, tie) if math.isnan(metric) else (1.0, float(metric), tie)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    """NumPy's numbers too; not a whole number that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return not isinstance(value, Integral) or abs(int(value)) < 2**1023


def _check_natural(name: str, value: int, least: int = 1) -> None:
    if not _is_whole(value) or value < least:
        raise ConfigurationError(
            f"{name} = {value!r}: a whole number of at least {least} is needed"
        )


def _check_rate(value: float) -> None:
    if not _is_number(value) or not 0.0 < value < 1.0:
        raise ConfigurationError(
            f"eviction_rate = {value!r}: a number between 0 and 1, exclusively, is needed"
        )
