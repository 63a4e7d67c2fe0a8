"""The blend with weights and buffers, which the other rules use, too. Pure.

Sources: Xie et al. 2019, "Asynchronous Federated Optimization" (§5.2: three functions of
staleness); Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation";
McMahan et al. 2017 (weights by work). Without options it equals `Blend`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from genkidama.config.decoding import Natural, NotNegative, Section, convert
from genkidama.protocol.vector import DTYPE, Vector, blend, length
from genkidama.server.rules.blend import Rule, RuleState, Update, diagnose
from genkidama.server.speeds import Speeds

#: The largest weight, relative to the mean: a push after an hour without a parent reports the work
#: of that hour.
HEAVIEST = 4.0

#: Share of the newest figure in a running mean.
_NEW = 0.1

_MEAN = "mean_steps"
_SPEED = "speed."
_SUM, _COUNTS = "waiting", "waiting_counts"

#: A sum with less weight has no mean in float32.
_LEAST = float(np.finfo(DTYPE).tiny)


class WeightedOptions(Section, frozen=True):
    """The weight of a push, and the number of pushes of a step."""

    staleness: Literal["constant", "hinge", "polynomial"] = "constant"
    """Weight of a push of staleness s: `"constant"` 1; `"polynomial"` (1+s)^−a; `"hinge"` 1 up
    to s = b, then 1/(1+a(s−b))."""
    staleness_decay: NotNegative = 0.5
    """a."""
    staleness_grace: NotNegative = 4.0
    """b, in versions."""
    by: Literal["push", "steps", "speed"] = "push"
    """Factor of the weight: `"push"` none; `"steps"` its environment steps, relative
    to the mean; `"speed"` its child's steps a second, relative to the mean of all children."""
    buffer: Natural | Literal["children"] = 1
    """Pushes of one step of θ_P; `"children"` means as many as children take part."""
    milliseconds: NotNegative = 0.0
    """Longest wait of a push for the buffer to fill. The first push after that makes the step with
    those that wait; 0 means that the buffer must be full."""


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
    """Weights of pushes by age, work and speed, relative to running means.

    A weight is in [0, `HEAVIEST`], and 1 for a push that is fresh and like the others.
    """

    def __init__(self, options: WeightedOptions) -> None:
        self._options = options
        self._mean_steps = 0.0
        self._speeds = Speeds()

    def __call__(self, push: Update) -> float:
        age = age_weight(self._options, push.staleness)
        match self._options.by:
            case "steps":
                return age * self._by_steps(push)
            case "speed":
                return age * self._by_speed(push)
        return age

    def state(self) -> RuleState:
        found = {_SPEED + name: np.array(each) for name, each in self._speeds.figures.items()}
        return {**found, **({_MEAN: np.array([self._mean_steps])} if self._mean_steps else {})}

    def forget(self, child: str) -> None:
        self._speeds.forget(child)

    def restore(self, state: RuleState) -> None:
        self._mean_steps = float(state.get(_MEAN, np.zeros(1))[0])
        self._speeds.figures = {
            name.removeprefix(_SPEED): (float(array[0]), float(array[1]), float(array[2]))
            for name, array in state.items()
            if name.startswith(_SPEED) and len(array) == 3
        }

    def _by_steps(self, push: Update) -> float:
        mean = self._mean_steps or float(push.steps)
        steps = min(float(push.steps), HEAVIEST * mean)
        self._mean_steps = mean + _NEW * (steps - mean)
        return steps / mean if mean else 1.0

    def _by_speed(self, push: Update) -> float:
        self._speeds.note(push.child, push.steps, push.seconds)
        speed = self._speeds.relative(push.child)
        return 1.0 if speed is None else min(HEAVIEST, speed)


@dataclass
class UpdateBatch:
    """Pushes that make one step."""

    #: Their weighted sum; read-only if `count` is 1.
    total: Vector
    #: A factor of `total`: the weight of a push that is alone.
    factor: float
    #: The sum of their weights.
    weight: float
    #: Their number.
    count: int
    #: An upper bound for the Euclidean norm of `factor` times `total`.
    length: float


class Buffer:
    """Adds up weighted vectors until they make a step (Nguyen et al. 2022, FedBuff).

    A push that waits has its reply at once. Without a clock of its own, the buffer is emptied when
    it is full, or by the first push that comes when the oldest has waited long enough.
    """

    def __init__(self, options: WeightedOptions) -> None:
        self._size = options.buffer
        self._seconds = options.milliseconds / 1e3
        self._total: Vector | None = None
        self._weight = 0.0
        self._count = 0
        self._since = 0.0

    def add(self, vector: Vector, weight: float, push: Update) -> UpdateBatch | None:
        """Adds a push; returns those that make a step now, or None if more are needed."""
        size = max(1, push.children) if self._size == "children" else self._size
        if size == 1 and not self._count:
            longest = math.inf if push.length is None else weight * push.length
            return UpdateBatch(vector, weight, weight, 1, longest)
        if self._total is None:
            self._total = np.zeros(len(vector), DTYPE)
        if not self._count:
            self._since = push.seconds
        self._total += weight * vector
        self._weight += weight
        self._count += 1
        late = self._seconds and push.seconds - self._since >= self._seconds
        if self._count < size and not late:
            return None
        batch = UpdateBatch(self._total, 1.0, self._weight, self._count, length(self._total))
        self._total = None
        self._weight = 0.0
        self._count = 0
        return batch

    def state(self) -> RuleState:
        if self._total is None:
            return {}
        counts = np.array([self._weight, self._count, self._since])
        return {_SUM: self._total, _COUNTS: counts}

    def restore(self, state: RuleState) -> None:
        self._total = state.get(_SUM)
        weight, count, since = state.get(_COUNTS, np.zeros(3))
        self._weight = float(weight)
        self._count = int(count)
        self._since = float(since)


class BufferedRule(Rule):
    """A rule that weighs pushes, and makes a step of several of them."""

    def __init__(self, options: WeightedOptions) -> None:
        self._weigh = PushWeights(options)
        self._buffer = Buffer(options)

    def forget(self, child: str) -> None:
        self._weigh.forget(child)

    def state(self) -> RuleState:
        return {**self._weigh.state(), **self._buffer.state()}

    def restore(self, state: RuleState) -> None:
        self._weigh.restore(state)
        self._buffer.restore(state)


class Weighted(BufferedRule):
    """θ_P ← (1−α_w)θ_P + α_w·θ̄, with α_w = min(1, α·w̄).

    θ̄ is the weighted mean of the pushes that make a step, w̄ their mean weight. The options are
    those of `WeightedOptions`.
    """

    convex = True

    def __init__(self, alpha: float, **options: Any) -> None:
        super().__init__(convert(options, WeightedOptions, "parent.rule_options"))
        self._alpha = alpha

    def apply(self, parent: Vector, push: Update) -> None:
        batch = self._buffer.add(push.vector, self._weigh(push), push)
        if batch is None or batch.weight < _LEAST:
            return
        if batch.count > 1:
            batch.total /= batch.weight
        alpha = self._alpha if push.alpha is None else push.alpha
        blend(parent, batch.total, min(1.0, alpha * batch.weight / batch.count))

    def diagnose(self, beta: float, children: int) -> list[str]:
        return diagnose(self._alpha, beta, children)
