"""Successive Halving and Hyperband: as published, with waiting, and asynchronous (ASHA). Pure.

Li et al., "Hyperband" (arXiv 1603.06560), and Li et al., "A System for Massively Parallel
Hyperparameter Tuning" (arXiv 1810.05934). η is the reduction factor, r the least number of phases.
A *rung* is a number of phases after which a trial is judged.

Laws of `SynchronousHalving`:
- A rung is full when each of its trials has ended it or has failed. Then ⌊n/η⌋ of its n trials
  continue, at least one: the best, of equal ones those that were begun first. The others stop.
- Which trials continue is a function of the metrics alone, and not of the order of reports.
- Bracket s has its rungs after R/η^s, R/η^(s−1), …, R phases (rounded down), R being all phases.
- Hyperband's brackets have as many trials as the tables of both papers say (`bracket_sizes`).
  Trials fill them by their numbers; then it begins anew. The last bracket may be smaller.
- With `restart`, each rung trains its trials from scratch, as the paper of HyperTrick does. Phases
  are counted on: with rungs after 1, 3 and 9 phases they are 1 + 3 + 9 in all.

Laws of `Halving`, which is asynchronous:
- The rungs are after r·η^k phases.
- The verdict is the reply to the report: a trial continues if it is among the best 1/η of the
  reports of its rung so far, its own included. Of fewer than η reports the best continues.
- So a verdict may be wrong in hindsight, and a trial that is stopped stays stopped. Hyperband's
  original waits until a rung is full. ASHA's original pauses a trial, and resumes it if it is
  among the best 1/η later. Both would have a node wait, or move a trial.
- Verdicts are those of Optuna's `SuccessiveHalvingPruner`, which decides in this way, too, and in
  each bracket those of its `HyperbandPruner`. Equal metrics pass together.
- Bracket b has its first rung after r·η^b phases. Trials fill the brackets by their numbers, as
  many in each as Hyperband's algorithm 1 says, b = 0 first; then it begins anew. (Optuna draws a
  trial's bracket by a hash.) A bracket's rungs keep all reports, those of earlier turns too.
- After the last phase nothing is decided.
- NaN is worse than any number, and stops its trial at once. Optuna does not count such a report.

Laws of both:
- A report of the same trial and phase is answered again and counted once.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from genkidama.plugins.hypertrick.rule import (
    Decision,
    Mode,
    SearchRule,
    Verdict,
    check_natural,
    geometric_phases,
)


def bracket_sizes(
    phases: int, factor: int, least: int = 1, as_in_tables: bool = False
) -> tuple[int, ...]:
    """Trials that Hyperband begins in each bracket, from s_max down to 0.

    Its algorithm 1 says ⌈(s_max+1)/(s+1)·η^s⌉: 27, 12, 6 and 4 for 27 phases and η = 3. The tables
    of both papers have, `as_in_tables`, ⌊(s_max+1)/(s+1)⌋·η^s: 27, 9, 6 and 4.
    """
    check_natural("phases", phases)
    check_natural("factor", factor, least=2)
    check_natural("least", least)
    highest = 0
    while least * factor ** (highest + 1) <= phases:
        highest += 1
    if as_in_tables:
        return tuple((highest + 1) // (s + 1) * factor**s for s in range(highest, -1, -1))
    return tuple(-((highest + 1) * factor**s // -(s + 1)) for s in range(highest, -1, -1))


class _Rungs(SearchRule):
    """Trials in brackets, which they fill by their numbers, and of which one of η passes a rung."""

    def __init__(self, workers: int, phases: int, factor: int, sizes: Sequence[int]) -> None:
        super().__init__(workers, phases)
        self.factor = factor
        #: By bracket, the end of its trials in a turn.
        self._ends = tuple(accumulate(sizes))

    def bracket(self, trial: int) -> int:
        """The bracket of a trial: it is compared with the trials of the same one."""
        return bisect_right(self._ends, trial % self._ends[-1])

    def _places(self, trials: int) -> int:
        """The number of trials, of this many that have come to a rung, that continue."""
        return max(1, trials // self.factor)


class SynchronousHalving(_Rungs):
    """The rule of Successive Halving, as published: a rung waits for all its trials.

    `factor` is η, at least 2. `least` is r, the least number of phases before the first rung. With
    `brackets` it runs Hyperband's brackets, otherwise one with all trials. With `restart` trials
    that continue begin from scratch.
    """

    def __init__(
        self,
        *,
        workers: int,
        phases: int,
        factor: int,
        least: int = 1,
        brackets: bool = False,
        restart: bool = False,
    ) -> None:
        sizes = bracket_sizes(phases, factor, least, as_in_tables=True)
        super().__init__(workers, phases, factor, sizes if brackets else (sys.maxsize,))
        #: By bracket, the phases that are done at the end of each rung.
        self._rungs: list[tuple[int, ...]] = []
        for highest in range(len(sizes) - 1, len(sizes) - 1 - len(self._ends), -1):
            budgets = [phases // factor**s for s in range(highest, -1, -1)]
            self._rungs.append(tuple(accumulate(budgets) if restart else budgets))
        self._restart = restart
        self.decide_after = tuple(end - 1 for end in self._rungs[0][:-1])
        #: By trial and rung, the report with which the trial has ended the rung, or failed in it.
        self._ended: dict[tuple[int, int], Decision] = {}
        #: Trials whose rung may be full.
        self._reported: set[int] = set()

    def length(self, trial: int) -> int:
        return self._rungs[self.bracket(trial)][-1]

    def began(self, trial: int, phase: int) -> int:
        ends = (0, *self._rungs[self.bracket(trial)])
        return ends[bisect_right(ends, phase) - 1] if self._restart else 0

    def settle(self) -> list[Decision]:
        groups = {self._group(trial) for trial in self._reported | self.left_out}
        self._reported.clear()
        return [decision for group in sorted(groups) for decision in self._settle(group)]

    @property
    def expected_completion_rate(self) -> float:
        total = 0
        for group in {self._group(trial) for trial in range(self.workers)}:
            count, done = len(self._members(group)), 0
            for end in self._rungs[group[1]]:
                total += count * (end - done)
                done = end
                count = self._places(count)
        return total / (self.workers * self.phases)

    def _group(self, trial: int) -> tuple[int, int]:
        """The turn and the bracket of a trial."""
        return trial // self._ends[-1], self.bracket(trial)

    def _members(self, group: tuple[int, int]) -> list[int]:
        """The trials of a bracket."""
        turn, bracket = group
        first = turn * self._ends[-1]
        begin, end = (0, *self._ends)[bracket : bracket + 2]
        numbers = range(first + begin, min(first + end, self.numbers))
        return [trial for trial in numbers if trial not in self.left_out]

    def _judge(self, trial: int, phase: int, metric: float) -> Decision:
        """The decision; its order and worse count the reports that have ended the same rung."""
        members = self._members(self._group(trial))
        rung = self._rung(trial, phase)
        reports = [
            _key(self._ended[member, rung].metric)
            for member in members
            if (member, rung) in self._ended
        ]
        worse = sum(key < _key(metric) for key in reports)
        mode, verdict = Mode.NONE, Verdict.CONTINUE
        if math.isnan(metric):
            mode, verdict = Mode.FAILURE, Verdict.STOP
        elif phase + 1 in self._rungs[self.bracket(trial)][:-1]:
            mode, verdict = Mode.SELECTION, Verdict.PAUSE
        return Decision(trial, phase, metric, len(reports) + 1, worse, mode, verdict)

    def _count(self, decision: Decision) -> None:
        trial, phase = decision.trial, decision.phase
        self.numbers = max(self.numbers, trial + 1)
        ends = self._rungs[self.bracket(trial)]
        if decision.verdict is Verdict.STOP or phase + 1 in ends[:-1]:
            self._ended[trial, self._rung(trial, phase)] = decision
            self._reported.add(trial)

    def _rung(self, trial: int, phase: int) -> int:
        return bisect_right(self._rungs[self.bracket(trial)], phase)

    def _settle(self, group: tuple[int, int]) -> list[Decision]:
        """Decides on the paused trials of the rungs of a bracket that are full."""
        settled: list[Decision] = []
        members = self._members(group)
        for rung in range(len(self._rungs[group[1]]) - 1):
            if any((trial, rung) not in self._ended for trial in members):
                break
            reports = [self._ended[trial, rung] for trial in members]
            paused = [report for report in reports if report.verdict is Verdict.PAUSE]
            paused.sort(key=lambda report: (-report.metric, report.trial))
            # After a restart with more trials some may have been chosen before.
            before = sum(report.verdict is Verdict.CONTINUE for report in reports)
            places = self._places(len(members)) - before
            for place, report in enumerate(paused):
                verdict = Verdict.CONTINUE if place < places else Verdict.STOP
                decision = msgspec.structs.replace(report, verdict=verdict)
                self._ended[report.trial, rung] = decision
                self._decisions[report.trial, report.phase] = decision
                settled.append(decision)
            members = [
                trial for trial in members if self._ended[trial, rung].verdict is Verdict.CONTINUE
            ]
        return settled


class Halving(_Rungs):
    """The rule of Successive Halving, without waiting.

    `factor` is η, at least 2: one trial of η passes a rung. `least` is r, the phases before the
    first rung. With `brackets` it runs Hyperband's brackets, otherwise its first alone: ASHA.
    """

    def __init__(
        self, *, workers: int, phases: int, factor: int, least: int = 1, brackets: bool = False
    ) -> None:
        sizes = bracket_sizes(phases, factor, least)
        super().__init__(workers, phases, factor, sizes if brackets else sizes[:1])
        #: By bracket, the phases after which anything is decided.
        self._rungs = [
            geometric_phases(phases, factor, least * factor**bracket)
            for bracket in range(len(self._ends))
        ]
        self.decide_after = self._rungs[0]
        #: By bracket and phase, whether each report is a number, and its metric, worst first.
        self._reports: defaultdict[tuple[int, int], list[tuple[bool, float]]] = defaultdict(list)

    def _judge(self, trial: int, phase: int, metric: float) -> Decision:
        """The decision; its order and worse count the reports of the same bracket."""
        reports = self._reports[self.bracket(trial), phase]
        worse = bisect_left(reports, _key(metric))
        better = len(reports) - bisect_right(reports, _key(metric))
        order = len(reports) + 1
        mode = Mode.SELECTION if phase in self._rungs[self.bracket(trial)] else Mode.NONE
        stop = mode is Mode.SELECTION and better >= self._places(order)
        if math.isnan(metric):
            mode = Mode.FAILURE
            stop = True
        verdict = Verdict.STOP if stop else Verdict.CONTINUE
        return Decision(trial, phase, metric, order, worse, mode, verdict)

    def _count(self, decision: Decision) -> None:
        insort(self._reports[self.bracket(decision.trial), decision.phase], _key(decision.metric))

    @property
    def expected_completion_rate(self) -> float:
        """The expected share of all phases to be run, while metrics are stationary.

        The n-th report of a rung is then good enough with the chance ⌊n/η⌋/n, or 1/n if that is
        more. Each rung is reckoned with as many reports as are expected there.
        """
        turns, rest = divmod(self.workers, self._ends[-1])
        begins = (0, *self._ends)
        total = 0.0
        for bracket, rungs in enumerate(self._rungs):
            begin = begins[bracket]
            end = begins[bracket + 1]
            running = float(turns * (end - begin) + min(max(rest - begin, 0), end - begin))
            done = 0
            for phase in rungs:
                total += running * (phase + 1 - done)
                done = phase + 1
                running = self._passing(running)
            total += running * (self.phases - done)
        return total / (self.workers * self.phases)

    def _passing(self, arrivals: float) -> float:
        """Trials of these that pass a rung, if they come in any order; fractions count as such."""
        whole = math.floor(arrivals)
        share = [self._places(n) / n for n in range(1, whole + 2)]
        return sum(share[:whole]) + (arrivals - whole) * share[whole]


def _key(metric: float) -> tuple[bool, float]:
    """Orders reports: NaN first, then by metric."""
    return (False, 0.0) if math.isnan(metric) else (True, metric)
