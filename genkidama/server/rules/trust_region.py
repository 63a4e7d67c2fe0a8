"""The length of a step of θ_P: rate and trust region by the number of children. Pure.

n children make n steps in the time of one. Their steps are nearly uncorrelated, so they add up to
√n steps of one child. A rate divided by √n keeps the pace of one child. Averaged
gradients are less noisy, and allow a larger rate (Goyal et al. 2017).
"""

from __future__ import annotations

import math
from typing import Annotated

from genkidama.config.decoding import Meta, NotNegative
from genkidama.protocol.vector import Vector, length
from genkidama.server.rules.blend import Update
from genkidama.server.rules.weighted import WeightedOptions

#: A child that shortens its gradient to a limit may be beyond it by a rounding error.
_ROUNDING = 1.0001

#: Numbers worked on at a time, so that intermediate results stay in a second-level cache.
BLOCK = 16_384


Power = Annotated[float, Meta(ge=-1.0, le=1.0)]


class StepOptions(WeightedOptions, frozen=True):
    """Also the length of a step."""

    children_power: Power = 0.0
    """The rate is multiplied by n to this power while n children take part: 0.5 is √n, 1 is n, −0.5
    is 1/√n."""
    max_step: NotNegative = 0.0
    """Longest step of θ_P by its Euclidean norm, divided by √n while n children take part; 0 means
    no limit."""

    def factor(self, push: Update) -> float:
        """The factor of the rate of a step with this push."""
        return float(max(1, push.children) ** self.children_power)

    def longest(self, push: Update) -> float:
        """The longest step allowed, by its Euclidean norm; infinite if there is no limit."""
        return self.max_step / math.sqrt(max(1, push.children)) if self.max_step else math.inf


def shortening(push: Update, size: int, longest: float) -> float:
    """The factor that makes a push's trained numbers no longer than `longest`; 0 is no limit."""
    if not longest:
        return 1.0
    long = length(push.vector[:size]) if push.length is None else push.length
    return 1.0 if long <= longest * _ROUNDING else longest / long


def add_scaled(weights: Vector, change: Vector, rate: float) -> None:
    """`weights ← weights + rate·change`, in place; `change` is only read."""
    for start in range(0, len(weights), BLOCK):
        part = slice(start, start + BLOCK)
        weights[part] += change[part] * rate


def blend_statistics(parent: Vector, push: Update) -> None:
    """The push's running statistics, which are whole even behind a gradient: one part in n.

    They are counts and sums, so the result is the statistics of a mixture of both samples.
    """
    if push.statistics:
        theirs = push.vector[-push.statistics :]
        ours = parent[-push.statistics :]
        ours += (theirs - ours) * (1.0 / max(1, push.children))
