"""The blend with pushes that do not all count the same: FedAsync, and buffered. Pure.

Sources: Xie et al. 2019, "Asynchronous Federated Optimization"; Nguyen et al. 2022, "Federated
Learning with Buffered Asynchronous Aggregation". With no option it is the documented `Blend`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from genkidama.config.decoding import convert
from genkidama.protocol.vector import Vector, blend
from genkidama.server.rules.blend import Rule, RuleState, Update, diagnose
from genkidama.server.rules.buffer import Buffer
from genkidama.server.rules.options import WeightedOptions

__all__ = ["HEAVIEST", "PushWeights", "Weighted", "age_weight"]


# ------------------------------------------------------------------------------------------------
# What a push counts: by its age, by its work, by its child's speed. Pure.
#
# Sources: Xie et al. 2019, "Asynchronous Federated Optimization", §5.2, for the three functions of
# staleness; McMahan et al. 2017 for weights by work.

#: A push counts for at most so many mean ones: one that comes after an hour without a parent
#: reports the work of that hour.
HEAVIEST = 4.0

#: How much of a running mean the newest figure is.
_NEW = 0.1

_MEAN = "mean_steps"
_SPEED, _ARRIVAL = "speed.", "arrival."


def age_weight(options: WeightedOptions, staleness: int) -> float:
    """The weight of a push by its staleness, in (0, 1]; 1 at staleness 0."""
    match options.staleness:
        case "polynomial":
            return float((1.0 + staleness) ** -options.staleness_decay)
        case "hinge":
            late = staleness - options.staleness_grace
            return 1.0 if late <= 0.0 else 1.0 / (1.0 + options.staleness_decay * late)
    return 1.0


class PushWeights:
    """Weighs one push after the other, and remembers the means that it compares them with.

    A weight is in [0, `HEAVIEST`], and 1 for a push that is fresh and like the others.
    """

    def __init__(self, options: WeightedOptions) -> None:
        self._options = options
        #: Means by the name that the state gives them.
        self._figures: dict[str, float] = {}

    def __call__(self, push: Update) -> float:
        age = age_weight(self._options, push.staleness)
        match self._options.by:
            case "steps":
                return age * self._by_steps(push)
            case "speed":
                return age * self._by_speed(push)
        return age

    def state(self) -> RuleState:
        return {name: np.array([figure]) for name, figure in self._figures.items()}

    def restore(self, state: RuleState) -> None:
        """Takes its own arrays out of a rule's state."""
        mine = (_MEAN, _SPEED, _ARRIVAL)
        self._figures = {
            name: float(array[0]) for name, array in state.items() if name.startswith(mine)
        }

    def _by_steps(self, push: Update) -> float:
        mean = self._figures.get(_MEAN, 0.0) or float(push.steps)
        steps = min(float(push.steps), HEAVIEST * mean)
        self._figures[_MEAN] = mean + _NEW * (steps - mean)
        return steps / mean if mean else 1.0

    def _by_speed(self, push: Update) -> float:
        figures = self._figures
        before = figures.get(_ARRIVAL + push.child)
        figures[_ARRIVAL + push.child] = push.seconds
        if before is not None and push.seconds > before:
            now = push.steps / (push.seconds - before)
            known = figures.get(_SPEED + push.child, now)
            figures[_SPEED + push.child] = known + _NEW * (now - known)
        speeds = [value for name, value in figures.items() if name.startswith(_SPEED)]
        mean = sum(speeds) / len(speeds) if speeds else 0.0
        if not mean or _SPEED + push.child not in figures:
            return 1.0
        return min(HEAVIEST, figures[_SPEED + push.child] / mean)


class Weighted(Rule):
    """θ_P ← (1−α_w)θ_P + α_w·θ̄, with α_w = min(1, α·w̄).

    θ̄ is the weighted mean of the pushes that make a step, w̄ their mean weight.

    Args:
        alpha: the share of a push with weight 1, in [0, 1].
        options: see `WeightedOptions`.

    Raises:
        ConfigurationError: an option is unknown, or out of its range.
    """

    convex = True

    def __init__(self, alpha: float, **options: Any) -> None:
        self._alpha = alpha
        checked = convert(options, WeightedOptions, "parent.rule_options")
        self._weigh = PushWeights(checked)
        self._buffer = Buffer(checked)

    def apply(self, parent: Vector, push: Update) -> None:
        batch = self._buffer.add(push.vector, self._weigh(push), push)
        if batch is None or not batch.weight:
            return
        if batch.count > 1:
            batch.total /= batch.weight
        blend(parent, batch.total, min(1.0, self._alpha * batch.weight / batch.count))

    def state(self) -> RuleState:
        return {**self._weigh.state(), **self._buffer.state()}

    def restore(self, state: RuleState) -> None:
        self._weigh.restore(state)
        self._buffer.restore(state)

    def diagnose(self, beta: float, children: int) -> list[str]:
        return diagnose(self._alpha, beta, children)
