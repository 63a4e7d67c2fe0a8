"""Asynchronous Successive Halving: ASHA, and Hyperband's brackets of it. Pure.

Li et al., "Hyperband" (arXiv 1603.06560), and Li et al., "A System for Massively Parallel
Hyperparameter Tuning" (arXiv 1810.05934). η is the reduction factor, r the least number of phases.
A *rung* is a number of phases after which a trial is judged: r·η^k.

Laws of this file:
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
- A report of the same trial and phase is answered again and counted once.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from itertools import accumulate

from genkidama.plugins.hypertrick.rule import (
    Decision,
    Mode,
    SearchRule,
    Verdict,
    check_natural,
    geometric_phases,
)


def bracket_sizes(phases: int, factor: int, least: int = 1) -> tuple[int, ...]:
    """Trials that Hyperband begins in each bracket, ⌈(s_max+1)/(s+1)·η^s⌉ from s_max down to 0.

    For 27 phases and η = 3 they are 27, 12, 6 and 4.
    """
    check_natural("phases", phases)
    check_natural("factor", factor, least=2)
    check_natural("least", least)
    highest = 0
    while least * factor ** (highest + 1) <= phases:
        highest += 1
    return tuple(-((highest + 1) * factor**s // -(s + 1)) for s in range(highest, -1, -1))


class Halving(SearchRule):
    """The rule of Successive Halving, without waiting.

    `factor` is η, at least 2: one trial of η passes a rung. `least` is r, the phases before the
    first rung. With `brackets` it runs Hyperband's brackets, otherwise its first alone: ASHA.
    """

    def __init__(
        self, *, workers: int, phases: int, factor: int, least: int = 1, brackets: bool = False
    ) -> None:
        super().__init__(workers, phases)
        sizes = bracket_sizes(phases, factor, least)
        self.factor = factor
        #: By bracket, the end of its trials in a turn.
        self._ends = tuple(accumulate(sizes if brackets else sizes[:1]))
        #: By bracket, the phases after which anything is decided.
        self._rungs = [
            geometric_phases(phases, factor, least * factor**bracket)
            for bracket in range(len(self._ends))
        ]
        self.decide_after = self._rungs[0]
        #: By bracket and phase, whether each report is a number, and its metric, worst first.
        self._reports: defaultdict[tuple[int, int], list[tuple[bool, float]]] = defaultdict(list)

    def peers(self, trial: int) -> int:
        """The bracket of a trial: it is compared with the trials of the same one."""
        return bisect_right(self._ends, trial % self._ends[-1])

    def _judge(self, trial: int, phase: int, metric: float) -> Decision:
        """The decision; its order and worse count the reports of the same bracket."""
        reports = self._reports[self.peers(trial), phase]
        worse = bisect_left(reports, _key(metric))
        better = len(reports) - bisect_right(reports, _key(metric))
        order = len(reports) + 1
        mode = Mode.SELECTION if phase in self._rungs[self.peers(trial)] else Mode.NONE
        stop = mode is Mode.SELECTION and better >= self._places(order)
        if math.isnan(metric):
            mode = Mode.FAILURE
            stop = True
        verdict = Verdict.STOP if stop else Verdict.CONTINUE
        return Decision(trial, phase, metric, order, worse, mode, verdict)

    def _count(self, decision: Decision) -> None:
        insort(self._reports[self.peers(decision.trial), decision.phase], _key(decision.metric))

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

    def _places(self, reports: int) -> int:
        """The number of reports, of this many, that are good enough."""
        return max(1, reports // self.factor)


def _key(metric: float) -> tuple[bool, float]:
    """Orders reports: NaN first, then by metric."""
    return (False, 0.0) if math.isnan(metric) else (True, metric)
