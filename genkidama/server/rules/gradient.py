"""One optimizer at the parent, and gradients from its children. Pure.

Sources: Nair et al. 2015, "Massively Parallel Methods for Deep Reinforcement Learning" (Gorila: its
parameter server applies AdaGrad, and leaves out gradients that are too old or whose loss is too
large); Mnih et al. 2016.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from genkidama.config.decoding import Count, NotNegative, convert
from genkidama.config.schedules import learning_rate
from genkidama.config.sections import Optimizer
from genkidama.protocol.vector import DTYPE, Vector, length
from genkidama.server.rules.blend import RuleState, Update
from genkidama.server.rules.outliers import LossStatistics
from genkidama.server.rules.trust_region import BLOCK, StepOptions, blend_statistics, shortening
from genkidama.server.rules.weighted import BufferedRule

#: The state of each optimizer: vectors of θ_P's length.
_KEPT = {
    "sgd": ("velocity",),
    "rmsprop": ("squares",),
    "adagrad": ("squares",),
    "adam": ("first", "second"),
}
_CLOCK = "clock"

#: Below this ε a gradient whose square is no float32 any more could make a long step.
_LEAST_EPSILON = 1e-15
_ROUNDING = 1.01

#: The direction of a step and a factor of it, from a block's gradient, a buffer of its length and
#: its state.
_Direction: TypeAlias = Callable[[Vector, Vector, list[Vector]], tuple[Vector, float]]

#: The slice of a block, two buffers of its length, and its state.
_Block: TypeAlias = tuple[slice, Vector, Vector, list[Vector]]


class NumpyOptimizer:
    """`[optimizer]` in NumPy, over a vector as long as the first gradient.

    `genkidama.learning.optimizers` does the same on tensors, which a parent does not have;
    `tests/learning/test_optimizers.py` compares the two.
    """

    def __init__(self, settings: Optimizer) -> None:
        self._settings = settings
        self._kept: dict[str, Vector] = {}
        self._made = 0
        #: An upper bound for the Euclidean norm of the velocity.
        self._fastest = 0.0
        self._buffers = np.empty((2, BLOCK), DTYPE)
        #: A small vector costs as much in views as in arithmetic, so they are made once.
        self._blocks: list[_Block] = []
        self._direct: _Direction = getattr(self, f"_{settings.name}")

    def apply(
        self, weights: Vector, gradient: Vector, rate: float, factor: float, longest: float
    ) -> None:
        """A step down the gradient times `factor`, in place, no longer than `longest`; all (n,)."""
        decay = self._settings.weight_decay
        self._made += 1
        whole = None if longest == np.inf else np.empty_like(weights)
        for part, step, spare, kept in self._blocks or self._divide(len(weights)):
            ours = weights[part]
            slope = gradient[part]
            if factor != 1.0:
                slope = np.multiply(slope, factor, step)
            if decay:
                np.multiply(ours, decay, spare)
                slope = np.add(slope, spare, step)
            way, scale = self._direct(slope, spare, kept)
            if whole is None:
                np.multiply(way, rate * scale, step)
                np.subtract(ours, step, ours)
            else:
                np.multiply(way, rate * scale, whole[part])
        if whole is not None:
            long = length(whole)
            weights -= whole if long <= longest else whole * (longest / long)

    def bound(self, size: int, rate: float, gradient: float) -> float:
        """An upper bound for the Euclidean norm of the step that `apply` has just made.

        `gradient` is a bound for the norm of the gradient times its factor.
        """
        settings = self._settings
        if settings.name == "sgd":
            self._fastest = settings.momentum * self._fastest + gradient
            return rate * self._fastest if not settings.weight_decay else math.inf
        if settings.epsilon < _LEAST_EPSILON:
            return math.inf
        # A number of the gradient is at most the root of the squares that hold its own.
        each = 1.0
        if settings.name == "rmsprop":
            each = (1.0 - settings.decay) ** -0.5
        elif settings.name == "adam":
            # By Cauchy and Schwarz over the two sums, with their corrections.
            beta_1, beta_2 = settings.betas
            if beta_1 * beta_1 >= beta_2:
                return math.inf
            each = ((1.0 - beta_1 * beta_1 / beta_2) * (1.0 - beta_2)) ** -0.5
        return _ROUNDING * rate * each * math.sqrt(size)

    def _divide(self, size: int) -> list[_Block]:
        """The blocks of a vector of this length."""
        names = _KEPT[self._settings.name]
        self._kept = {name: self._kept.get(name, np.zeros(size, DTYPE)) for name in names}
        for start in range(0, size, BLOCK):
            part = slice(start, min(start + BLOCK, size))
            step, spare = self._buffers[:, : part.stop - start]
            kept = [vector[part] for vector in self._kept.values()]
            self._blocks.append((part, step, spare, kept))
        return self._blocks

    def state(self) -> RuleState:
        """Vectors of float32 by name, and the number of steps."""
        return {**self._kept, _CLOCK: np.array([float(self._made)])} if self._made else {}

    def restore(self, state: RuleState) -> None:
        """Takes its own arrays out of a rule's state; a ValueError if there are another's."""
        names = _KEPT[self._settings.name] if _CLOCK in state else ()
        if missing := [name for name in names if name not in state]:
            raise ValueError(f"optimizer.name = {self._settings.name!r} needs {missing[0]!r}")
        self._kept = {name: state[name] for name in names}
        self._fastest = length(self._kept["velocity"]) if "velocity" in names else 0.0
        self._made = int(state[_CLOCK][0]) if names else 0
        self._blocks = []

    def _sgd(self, gradient: Vector, spare: Vector, kept: list[Vector]) -> tuple[Vector, float]:
        if not self._settings.momentum:
            return gradient, 1.0
        (velocity,) = kept
        np.multiply(velocity, self._settings.momentum, velocity)
        return np.add(velocity, gradient, velocity), 1.0

    def _adagrad(self, gradient: Vector, spare: Vector, kept: list[Vector]) -> tuple[Vector, float]:
        (squares,) = kept
        np.add(squares, np.square(gradient, spare), squares)
        np.sqrt(squares, spare)
        np.add(spare, self._settings.epsilon, spare)
        return np.divide(gradient, spare, spare), 1.0

    # A mean that forgets is kept as a sum that forgets, which takes a pass less; the factor between
    # the two goes into ε and into the step.

    def _rmsprop(self, gradient: Vector, spare: Vector, kept: list[Vector]) -> tuple[Vector, float]:
        (squares,) = kept
        new = 1.0 - self._settings.decay
        np.multiply(squares, self._settings.decay, squares)
        np.add(squares, np.square(gradient, spare), squares)
        if self._settings.epsilon_inside:
            np.add(squares, self._settings.epsilon / new, spare)
            np.sqrt(spare, spare)
        else:
            np.sqrt(squares, spare)
            np.add(spare, self._settings.epsilon / new**0.5, spare)
        return np.divide(gradient, spare, spare), 1.0 / new**0.5

    def _adam(self, gradient: Vector, spare: Vector, kept: list[Vector]) -> tuple[Vector, float]:
        first, second = kept
        beta_1, beta_2 = self._settings.betas
        np.multiply(first, beta_1, first)
        np.add(first, gradient, first)
        np.multiply(second, beta_2, second)
        np.add(second, np.square(gradient, spare), second)
        # η·m̂/(√v̂ + ε), with its corrections in ε and in the factor.
        unit = ((1.0 - beta_2**self._made) / (1.0 - beta_2)) ** 0.5
        np.sqrt(second, spare)
        np.add(spare, self._settings.epsilon * unit, spare)
        np.divide(first, spare, spare)
        return spare, unit * (1.0 - beta_1) / (1.0 - beta_1**self._made)


#: Reasons to leave a gradient out.
STALE, OUTLIER = "stale", "outlier"

_LOSSES = "losses"


class GradientOptions(StepOptions, frozen=True):
    """`parent.rule_options` of `"gradient"`: also limits of what is used."""

    max_staleness: Count | None = None
    """Greatest age of a gradient, in versions, that is used; absent means no limit."""
    outlier_sigmas: NotNegative = 0.0
    """Greatest distance of a gradient's loss above the running mean, in standard deviations, with
    which it is used; 0 means no limit."""


class Gradient(BufferedRule):
    """θ_P ← θ_P − η·direction(ḡ), as `[optimizer]` says.

    ḡ is the weighted sum of the gradients of a step, divided by their number. α is not used.
    Children keep to `algorithm.max_gradient_norm`, and a gradient that is longer all the same is
    cut to it; 0 means no limit. The options are those of `GradientOptions`.
    """

    takes = "gradient"

    def __init__(
        self,
        alpha: float,
        optimizer: Optimizer | None = None,
        longest: float = 0.0,
        /,
        **options: Any,
    ) -> None:
        self._longest = longest
        self._settings = optimizer or Optimizer()
        self._options = checked = convert(options, GradientOptions, "parent.rule_options")
        super().__init__(checked)
        self._steps = NumpyOptimizer(self._settings)
        self._losses = LossStatistics(checked.outlier_sigmas)
        self._moved = 0.0

    def moved(self) -> float:
        return self._moved

    def apply(self, parent: Vector, push: Update) -> str | None:
        self._moved = 0.0
        limit = self._options.max_staleness
        if limit is not None and push.staleness > limit:
            return STALE
        if push.loss is not None and self._losses.is_outlier(push.loss):
            return OUTLIER
        size = len(parent) - push.statistics
        blend_statistics(parent, push)
        part = shortening(push, size, self._longest)
        batch = self._buffer.add(push.vector[:size], part * self._weigh(push), push)
        if batch is None:
            return None
        rate = learning_rate(self._settings, push.progress) * self._options.factor(push)
        mean = batch.factor / batch.count
        longest = self._options.longest(push)
        self._steps.apply(parent[:size], batch.total, rate, mean, longest)
        self._moved = self._steps.bound(size, rate, batch.length / batch.count)
        return None

    def state(self) -> RuleState:
        numbers = self._losses.numbers
        own: RuleState = {_LOSSES: numbers} if numbers[0] else {}
        return own | super().state() | self._steps.state()

    def restore(self, state: RuleState) -> None:
        self._losses.numbers = state.get(_LOSSES, np.zeros(3))
        super().restore(state)
        self._steps.restore(state)
