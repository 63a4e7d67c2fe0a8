"""Population Based Training: its rule, and how a member explores. Pure.

Jaderberg et al., "Population Based Training of Neural Networks" (arXiv 1711.09846), algorithm 1.
All trials of a search are one population, and all are trained to their end. After each phase a
trial
1. exploits, by truncation selection: if its metric is among the worst 20 % of the population, it
   takes over the weights and settings of one of the best 20 %, drawn at random,
2. and then explores: each of these settings is perturbed, by the factor 0.8 or 1.2.

Laws of this file:
- No trial waits for another. A metric is compared with the newest one of each other member. A copy
  has none before it reports itself.
- Of n members that have reported, ⌊n·truncation⌋ are the worst and as many the best. So with 20 %
  nothing is copied before five have reported. Of equal ones the first to be started is the best.
- Only a member with a better metric is copied, and none that has ended its last phase. A member
  that has failed leaves the population.
- What is drawn depends on the seed, the trial and the phase alone.
"""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any

from genkidama.plugins.hypertrick.rule import ROUNDING, Decision, Mode, SearchRule, Verdict
from genkidama.plugins.hypertrick.space import Dimension


class PopulationBasedTraining(SearchRule):
    """The rule of Population Based Training. `truncation` is the share of the population that
    copies, and that is copied, at most 1/2."""

    takes_turns = True

    def __init__(
        self, *, workers: int, phases: int, truncation: float = 0.2, seed: int = 0
    ) -> None:
        super().__init__(workers, phases)
        self.decide_after = tuple(range(phases - 1))
        self._truncation = truncation
        self._seed = seed
        #: By member, its newest metric.
        self._newest: dict[int, float] = {}
        self._reports: Counter[int] = Counter()

    @property
    def expected_completion_rate(self) -> float:
        return 1.0

    def _judge(self, trial: int, phase: int, metric: float) -> Decision:
        order = self._reports[phase] + 1
        if math.isnan(metric):
            return Decision(trial, phase, metric, order, 0, Mode.FAILURE, Verdict.STOP)
        newest = self._newest | {trial: metric}
        ranking = sorted(newest, key=lambda member: (newest[member], -member))
        worse = ranking.index(trial)
        if phase == self.phases - 1:
            return Decision(trial, phase, metric, order, worse, Mode.NONE, Verdict.CONTINUE)
        many = math.floor(len(ranking) * self._truncation + ROUNDING)
        better = [
            member
            for member in ranking[len(ranking) - many :]
            if newest[member] > metric and (member, self.phases - 1) not in self._decisions
        ]
        if worse >= many or not better:
            return Decision(trial, phase, metric, order, worse, Mode.SELECTION, Verdict.CONTINUE)
        source = Random(f"{self._seed}:{trial}:{phase}").choice(better)  # noqa: S311
        return Decision(trial, phase, metric, order, worse, Mode.SELECTION, Verdict.COPY, source)

    def _count(self, decision: Decision) -> None:
        self._reports[decision.phase] += 1
        self._newest[decision.trial] = decision.metric
        if decision.verdict is not Verdict.CONTINUE:
            del self._newest[decision.trial]


def explore(space: dict[str, Dimension], params: dict[str, Any], chance: Random) -> dict[str, Any]:
    """The settings of a copy: each number times 0.8 or 1.2, in its range and by at least a step. A
    choice becomes one beside it in its list."""
    return {key: _perturb(space[key], value, chance) for key, value in params.items()}


def _perturb(dimension: Dimension, value: Any, chance: Random) -> Any:
    sign = chance.choice((-1, 1))
    if dimension.choices is not None:
        place = dimension.choices.index(value) + sign
        return dimension.choices[min(max(place, 0), len(dimension.choices) - 1)]
    assert dimension.low is not None
    assert dimension.high is not None
    moved = value * (1.0 + 0.2 * sign)
    low, high = dimension.low, dimension.high
    if step := dimension.step or (1 if dimension.whole else 0):
        before = round((value - low) / step)
        steps = round((moved - low) / step)
        steps = before + sign if steps == before else steps
        moved = low + step * min(max(steps, 0), math.floor((high - low) / step + ROUNDING))
    return (int if dimension.whole else float)(min(max(moved, low), high))
