"""Steps along what children have learned: θ_P ← θ_P + α(θ_C − θ_base). Pure.

θ_base is the θ_P from which the child started, so a push never undoes what others have learned
meanwhile. Sources: Douillard et al. 2023, "DiLoCo" (Nesterov momentum over differences); Nguyen et
al. 2022 (buffered).
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from genkidama.config.decoding import Meta, NotNegative, convert
from genkidama.errors import ConfigurationError
from genkidama.protocol.vector import Vector, length
from genkidama.server.rules.blend import RuleState, Update, diagnose
from genkidama.server.rules.trust_region import (
    StepOptions,
    add_scaled,
    blend_statistics,
    shortening,
)
from genkidama.server.rules.weighted import BufferedRule

_VELOCITY = "velocity"
_LENGTH = "length_begun"


class DifferenceOptions(StepOptions, frozen=True):
    """`parent.rule_options` of `"difference"`: also the momentum."""

    momentum: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    """μ."""
    nesterov: bool = False
    """Use Nesterov's momentum."""
    max_difference: NotNegative = 10.0
    """A longer difference is cut to this multiple of the length of θ_P when the run began, or of √n
    for n numbers if that is more; 0 means no limit. Each shard of a parent bounds its own part."""


class Difference(BufferedRule):
    """v ← μv + Δ, then θ_P ← θ_P + α_n·v or, with Nesterov, θ_P + α_n(Δ + μv).

    Δ is the weighted sum of the differences that make a step, divided by their number. α_n is α
    times the factor for n children. The options are those of `DifferenceOptions`.
    """

    takes = "difference"

    def __init__(self, alpha: float, **options: Any) -> None:
        self._alpha = alpha
        self._options = checked = convert(options, DifferenceOptions, "parent.rule_options")
        if checked.nesterov and not checked.momentum:
            raise ConfigurationError(
                "parent.rule_options: nesterov = True: needs a momentum above 0"
            )
        super().__init__(checked)
        self._velocity: Vector | None = None
        #: How long θ_P was at the first difference; 0 before it.
        self._length = 0.0
        #: Upper bounds for the Euclidean norms of the last step and of the velocity.
        self._moved = 0.0
        self._fastest = 0.0

    def apply(self, parent: Vector, push: Update) -> None:
        size = len(parent) - push.statistics
        blend_statistics(parent, push)
        if self._options.max_difference and not self._length:
            self._length = max(length(parent[:size]), math.sqrt(size))
        part = shortening(push, size, self._options.max_difference * self._length)
        batch = self._buffer.add(push.vector[:size], part * self._weigh(push), push)
        self._moved = 0.0
        alpha = self._alpha if push.alpha is None else push.alpha
        if batch is None or not alpha:
            return
        factor = batch.factor / batch.count
        rate = alpha * self._options.factor(push)
        change = batch.total
        bound = batch.length / batch.count
        if self._options.momentum:
            change, bound = self._accelerated(change, factor, bound)
            factor = 1.0
        self._moved = rate * bound
        longest = self._options.longest(push)
        if longest < math.inf:
            long = rate * factor * length(change)
            rate *= min(1.0, longest / long) if long else 1.0
        add_scaled(parent[:size], change, rate * factor)

    def moved(self) -> float:
        return self._moved

    def _accelerated(self, change: Vector, factor: float, bound: float) -> tuple[Vector, float]:
        """The step that the momentum makes of a difference times a factor, whose norm is at most
        `bound`; and a bound for the step's norm.
        """
        momentum = self._options.momentum
        fresh: Vector = change * factor
        if self._velocity is None:
            self._velocity = np.zeros_like(fresh)
        self._velocity *= momentum
        self._velocity += fresh
        self._fastest = momentum * self._fastest + bound
        if not self._options.nesterov:
            return self._velocity, self._fastest
        return fresh + self._velocity * momentum, bound + momentum * self._fastest

    def state(self) -> RuleState:
        own: RuleState = {_LENGTH: np.array([self._length])} if self._length else {}
        if self._velocity is not None:
            own[_VELOCITY] = self._velocity
        return own | super().state()

    def restore(self, state: RuleState) -> None:
        self._velocity = state.get(_VELOCITY)
        self._fastest = 0.0 if self._velocity is None else length(self._velocity)
        self._length = float(state[_LENGTH][0]) if _LENGTH in state else 0.0
        super().restore(state)

    def diagnose(self, beta: float, children: int) -> list[str]:
        if not self._alpha:
            return diagnose(0.0, 1.0, 1)
        options = self._options
        children = max(1, children)
        alone = options.buffer == 1 and not options.max_step
        pace = self._alpha / (1.0 - options.momentum) * children**options.children_power
        if alone and pace * math.sqrt(children) > _FASTEST:
            fit = 1.0 / math.sqrt(children)
            return [
                f"alpha = {self._alpha:g}: {children} children's differences add up to "
                f"{pace * math.sqrt(children):.1f} times one child's pace; about {fit:.2f} keeps "
                "it, as children_power = -0.5 does for any number of children"
            ]
        return []


#: The pace, relative to one child, beyond which it is mentioned.
_FASTEST = 2.0
