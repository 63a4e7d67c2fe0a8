"""One optimizer at the parent, and gradients from its children. Pure.

Sources: Nair et al. 2015, "Massively Parallel Methods for Deep Reinforcement Learning" (Gorila: its
parameter server applies AdaGrad, and leaves out gradients that are too old or whose loss is too
large); Mnih et al. 2016.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from genkidama.averaging import Contribution, Rule, RuleState
from genkidama.decoding import convert
from genkidama.rules.buffer import Buffer
from genkidama.rules.options import GradientOptions
from genkidama.rules.pace import Pace, blend_statistics, shortening
from genkidama.rules.steps import Steps
from genkidama.rules.weighing import Weighing
from genkidama.schedules import learning_rate
from genkidama.settings import Optimizer
from genkidama.weights import Vector

__all__ = ["OUTLIER", "STALE", "Gradient"]

#: Why a gradient is left out.
STALE, OUTLIER = "stale", "outlier"

#: So many losses are seen before one of them can be an outlier.
_FIRST_LOSSES = 20

#: How much of the running mean the newest loss is.
_NEW = 0.01

_LOSSES = "losses"


class Gradient(Rule):
    """θ_P ← θ_P − η·direction(ḡ), as `[optimizer]` says; ḡ is the weighted mean of the gradients.

    Args:
        alpha: not used; the learning rate is `optimizer.learning_rate`.
        optimizer: the settings.
        longest: `algorithm.max_gradient_norm`. Children keep to it, and a gradient that is longer
            all the same is cut to it. 0 means no limit.
        options: see `GradientOptions`.

    Raises:
        ConfigurationError: an option is unknown, or out of its range.
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
        self._weigh = Weighing(checked)
        self._buffer = Buffer(checked)
        self._pace = Pace(checked)
        self._steps = Steps(self._settings)
        #: Of absolute losses: their number, and their running mean and variance.
        self._losses = np.zeros(3)

    def apply(self, parent: Vector, push: Contribution) -> str | None:
        limit = self._options.max_staleness
        if limit is not None and push.staleness > limit:
            return STALE
        if self._is_outlier(push.loss):
            return OUTLIER
        size = len(parent) - push.statistics
        blend_statistics(parent, push)
        part = shortening(push, size, self._longest)
        batch = self._buffer.add(push.vector[:size], part * self._weigh(push), push)
        if batch is None:
            return None
        rate = learning_rate(self._settings, push.progress) * self._pace.factor(push)
        mean = batch.factor / batch.count
        longest = self._pace.longest(push)
        self._steps.apply(parent[:size], batch.total, rate, mean, longest)
        return None

    def _is_outlier(self, loss: float | None) -> bool:
        """Whether the loss is far above the others; it then counts as one at the border.

        So a loss that has grown for good becomes usual after a while.
        """
        sigmas = self._options.outlier_sigmas
        if not sigmas or loss is None:
            return False
        count, mean, variance = self._losses.tolist()
        border = mean + sigmas * math.sqrt(variance)
        far = count >= _FIRST_LOSSES and abs(loss) > border
        value = border if far else abs(loss)
        new = max(_NEW, 1.0 / (count + 1.0))
        apart = value - mean
        self._losses[:] = (
            count + 1.0,
            mean + new * apart,
            (1.0 - new) * (variance + new * apart * apart),
        )
        return far

    def state(self) -> RuleState:
        own: RuleState = {_LOSSES: self._losses} if self._losses[0] else {}
        parts = (self._weigh, self._buffer, self._pace, self._steps)
        for part in parts:
            own.update(part.state())
        return own

    def restore(self, state: RuleState) -> None:
        self._losses = state.get(_LOSSES, np.zeros(3))
        for part in (self._weigh, self._buffer, self._pace, self._steps):
            part.restore(state)
