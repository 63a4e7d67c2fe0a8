"""The methods that `simulator.py` can run: HyperTrick and its rivals. Pure.

    Independent   HyperTrick, random and grid search, and whatever decides by a function
    Halving       Successive Halving; Hyperband, brackets side by side
    Asha          asynchronous Successive Halving with promotions (Li et al. 2018)

Laws of this file:
- Trials are numbered from 0 in the order in which they are started. In `Halving` a bracket has its
  numbers in one row.
- A node goes on with its own trial before it takes another, as long as nothing is to be decided
  about it.
- A metric that is NaN ends its trial: it is never promoted and never survives a round.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from genkidama.plugins.hypertrick.hyperband import bracket_sizes
from genkidama.plugins.hypertrick.rule import HyperTrick, Verdict
from studies.hypertrick.simulator import Task


class Independent:
    """Each node runs one trial to its end and takes the next: none waits, moves or is preempted.

    Args:
        phases: N_p.
        stop: told every report, in order: trial, phase and metric. True ends the trial, as do NaN
            and the last phase.
        trials: how many are started in all; None for no end.
    """

    def __init__(
        self, phases: int, stop: Callable[[int, int, float], bool], trials: int | None = None
    ) -> None:
        self.phases, self.trials = phases, trials
        self._stop = stop
        self._started = 0
        self._next: dict[int, Task] = {}

    def next_task(self, node: int) -> Task | None:
        if node in self._next:
            return self._next.pop(node)
        if self.trials is not None and self._started >= self.trials:
            return None
        self._started += 1
        return self._started - 1, 0

    def report(self, node: int, task: Task, metric: float) -> bool:
        trial, phase = task
        if self._stop(trial, phase, metric) or math.isnan(metric) or phase == self.phases - 1:
            return False
        self._next[node] = (trial, phase + 1)
        return True


def hypertrick(rule: HyperTrick, *, endless: bool = False) -> Independent:
    """HyperTrick, the rule being what decides.

    `endless` starts trials as long as there is time (cohorts make sense of it).
    """

    def stop(trial: int, phase: int, metric: float) -> bool:
        return rule.report(trial, phase, metric) is Verdict.STOP

    return Independent(rule.phases, stop, None if endless else rule.workers)


def random_search(phases: int, trials: int | None = None) -> Independent:
    """Random search, or grid search: the problem says what is tried. Nothing is stopped."""
    return Independent(phases, lambda trial, phase, metric: False, trials)


def hyperband_rounds(phases: int, factor: int = 3) -> list[tuple[tuple[int, int], ...]]:
    """Rounds of Hyperband's brackets (Li et al. 2016, algorithm 1): (trials, phases by their end).

    Brackets begin with as many trials as the tables of the papers say.
    """
    sizes = bracket_sizes(phases, factor, as_in_tables=True)
    return [
        tuple((n // factor**i, phases // factor ** (s - i)) for i in range(s + 1))
        for s, n in zip(reversed(range(len(sizes))), sizes, strict=True)
    ]


@dataclass
class _Bracket:
    """One instance of Successive Halving as it runs."""

    rounds: Sequence[tuple[int, int]]
    first: int
    round: int = 0
    #: What waits for a node.
    ready: deque[Task] = field(default_factory=deque)
    #: How many of this round have not ended it.
    open: int = 0
    #: (metric, −trial) of those that have.
    scores: list[tuple[float, int]] = field(default_factory=list)


class Halving:
    """Successive Halving and, with several brackets, Hyperband.

    Brackets run side by side; a node that finds nothing to do in one turns to the next. A round's
    trials wait for each other at its end.

    Args:
        brackets: the rounds of each: (how many trials, after how many phases they are judged).
        repeat: whenever a node would be idle, all brackets begin once more with new trials.
    """

    def __init__(
        self,
        brackets: Sequence[Sequence[tuple[int, int]]],
        *,
        repeat: bool = False,
    ) -> None:
        self.brackets = brackets
        self.repeat = repeat
        self.trials = None if repeat else sum(rounds[0][0] for rounds in brackets)
        self._started = 0
        self._next: dict[int, Task] = {}
        self._brackets: list[_Bracket] = []
        self._bracket_of: dict[int, _Bracket] = {}
        self._begin()

    def next_task(self, node: int) -> Task | None:
        if node in self._next:
            return self._next.pop(node)
        task = self._take()
        if task is None and self.repeat:
            self._begin()
            task = self._take()
        return task

    def report(self, node: int, task: Task, metric: float) -> bool:
        trial, phase = task
        bracket = self._bracket_of[trial]
        if not math.isnan(metric):
            if phase + 1 < bracket.rounds[bracket.round][1]:
                self._next[node] = (trial, phase + 1)
                return True
            bracket.scores.append((metric, -trial))
        bracket.open -= 1
        if not bracket.open:
            self._end_round(bracket)
        return not math.isnan(metric) and phase + 1 < bracket.rounds[-1][1]

    def _begin(self) -> None:
        for rounds in self.brackets:
            bracket = _Bracket(rounds, self._started, open=rounds[0][0])
            for trial in range(self._started, self._started + rounds[0][0]):
                self._bracket_of[trial] = bracket
                bracket.ready.append((trial, 0))
            self._started += rounds[0][0]
            self._brackets.append(bracket)

    def _take(self) -> Task | None:
        for bracket in self._brackets:
            if bracket.ready:
                return bracket.ready.popleft()
        return None

    def _end_round(self, bracket: _Bracket) -> None:
        done = bracket.rounds[bracket.round][1]
        bracket.round += 1
        if bracket.round == len(bracket.rounds) or not bracket.scores:
            self._brackets.remove(bracket)
            return
        survivors = sorted(
            sorted(bracket.scores, reverse=True)[: bracket.rounds[bracket.round][0]],
            key=lambda score: -score[1],
        )
        bracket.ready.extend((-negative, done) for _, negative in survivors)
        bracket.open, bracket.scores = len(survivors), []


class Asha:
    """Asynchronous Successive Halving (Li et al. 2018, algorithm 2).

    Its rungs are after 1, η, η², … phases and the last.

    A free node promotes the best trial that is in the top 1/η of its rung and not yet promoted,
    from the highest rung down; with none it starts a new trial. Promoted trials go on where they
    stopped, on any node.
    """

    def __init__(self, phases: int, *, factor: int = 3, trials: int | None = None) -> None:
        self.phases = phases
        self.factor = factor
        self.trials = trials
        self.rungs: list[int] = []
        done = 1
        while done < phases:
            self.rungs.append(done)
            done *= factor
        self._started = 0
        self._next: dict[int, Task] = {}
        #: By rung, (−metric, trial) of those that reached it, best first, and who was promoted.
        self._reached: list[list[tuple[float, int]]] = [[] for _ in self.rungs]
        self._promoted: list[set[int]] = [set() for _ in self.rungs]

    def next_task(self, node: int) -> Task | None:
        if node in self._next:
            return self._next.pop(node)
        for rung in reversed(range(len(self.rungs))):
            reached, promoted = self._reached[rung], self._promoted[rung]
            for _, trial in reached[: len(reached) // self.factor]:
                if trial not in promoted:
                    promoted.add(trial)
                    return trial, self.rungs[rung]
        if self.trials is not None and self._started >= self.trials:
            return None
        self._started += 1
        return self._started - 1, 0

    def report(self, node: int, task: Task, metric: float) -> bool:
        trial, phase = task
        if math.isnan(metric) or phase == self.phases - 1:
            return False
        if phase + 1 in self.rungs:
            insort(self._reached[self.rungs.index(phase + 1)], (-metric, trial))
        else:
            self._next[node] = (trial, phase + 1)
        return True
