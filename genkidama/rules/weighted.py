"""The blend with pushes that do not all count the same: FedAsync, and buffered. Pure.

Sources: Xie et al. 2019, "Asynchronous Federated Optimization"; Nguyen et al. 2022, "Federated
Learning with Buffered Asynchronous Aggregation". With no option it is the documented `Blend`.
"""

from __future__ import annotations

from typing import Any

from genkidama.averaging import Contribution, Rule, RuleState, blend, diagnose
from genkidama.decoding import convert
from genkidama.rules.buffer import Buffer
from genkidama.rules.options import WeightedOptions
from genkidama.rules.weighing import Weighing
from genkidama.weights import Vector

__all__ = ["Weighted"]


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
        self._weigh = Weighing(checked)
        self._buffer = Buffer(checked)

    def apply(self, parent: Vector, push: Contribution) -> None:
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
