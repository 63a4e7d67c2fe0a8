"""Update rules on flat vectors whose state may be shared by many cores (Hogwild!).

Each rule is torch.optim's of the same name, written for one vector: a core applies its own gradient
to weights and state that other cores change at the same time, without a lock (Niu et al. 2011; Mnih
et al. 2016 §4.3 for the shared statistics). torch.optim itself would work, but constructing any of
its optimizers imports 70 MB that every core would carry.

Weights, state and gradient may be on any device. Everything else that a rule needs is private. So
each core, and each thread, has a separate rule over the shared memory.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from genkidama.config.sections import Optimizer as OptimizerSettings

__all__ = ["STATE_ROWS", "Optimizer", "leave_gradient", "make_optimizer"]

#: The number of state vectors of each rule.
STATE_ROWS = {"sgd": 1, "rmsprop": 1, "adagrad": 1, "adam": 2}


class Optimizer(Protocol):
    def step(self, gradient: Tensor, learning_rate: float) -> None:
        """Applies one gradient (n,) to the weights, in place. The gradient may be changed."""
        ...


class SGD:
    """v ← μv + g; θ ← θ − ηv."""

    def __init__(self, settings: OptimizerSettings, weights: Tensor, state: Tensor) -> None:
        self._momentum = settings.momentum
        self._weights, self._velocity = weights, state[0]

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        if self._momentum:
            gradient = self._velocity.mul_(self._momentum).add_(gradient)
        self._weights.add_(gradient, alpha=-learning_rate)


class RMSprop:
    """s ← ρs + (1−ρ)g²; θ ← θ − ηg/(√s + ε), as in torch.

    With `epsilon_inside` θ ← θ − ηg/√(s + ε): Mnih et al. 2016, eq. S2 and S3.
    """

    def __init__(self, settings: OptimizerSettings, weights: Tensor, state: Tensor) -> None:
        self._decay = settings.decay
        self._epsilon = settings.epsilon
        self._inside = settings.epsilon_inside
        self._weights, self._squares = weights, state[0]
        self._buffer = torch.empty_like(weights)

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        self._squares.mul_(self._decay).addcmul_(gradient, gradient, value=1.0 - self._decay)
        if self._inside:
            factor = torch.add(self._squares, self._epsilon, out=self._buffer).rsqrt_()
            self._weights.addcmul_(gradient, factor, value=-learning_rate)
        else:
            denominator = torch.sqrt(self._squares, out=self._buffer).add_(self._epsilon)
            self._weights.addcdiv_(gradient, denominator, value=-learning_rate)


class AdaGrad:
    """s ← s + g²; θ ← θ − ηg/(√s + ε) (Duchi et al. 2011)."""

    def __init__(self, settings: OptimizerSettings, weights: Tensor, state: Tensor) -> None:
        self._epsilon = settings.epsilon
        self._weights, self._squares = weights, state[0]
        self._buffer = torch.empty_like(weights)

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        self._squares.addcmul_(gradient, gradient)
        denominator = torch.sqrt(self._squares, out=self._buffer).add_(self._epsilon)
        self._weights.addcdiv_(gradient, denominator, value=-learning_rate)


class Adam:
    """Kingma & Ba 2015, algorithm 1; the step count is shared as the moments are.

    By Cauchy and Schwarz |m|/√v is at most (1−β₁)/√((1−β₂)(1−β₁²/β₂)), 7.3 with the usual β. Where
    a sibling has changed one of the two and not yet the other, it may be millions. So it is cut.
    """

    def __init__(
        self, settings: OptimizerSettings, weights: Tensor, state: Tensor, clock: npt.NDArray[Any]
    ) -> None:
        self._betas, self._epsilon = settings.betas, settings.epsilon
        beta_1, beta_2 = self._betas
        within = (1.0 - beta_2) * (1.0 - beta_1**2 / beta_2) if beta_2 > beta_1**2 else 0.0
        #: A little more, for what rounding adds.
        self._most = 1.01 * (1.0 - beta_1) / within**0.5 if within else math.inf
        self._weights = weights
        self._first = state[0]
        self._second = state[1]
        self._clock = clock
        self._buffer = torch.empty_like(weights)

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        beta_1, beta_2 = self._betas
        self._clock[0] += 1.0
        t = float(self._clock[0])
        # η·m̂/(√v̂ + ε), its corrections taken out of the vectors: a pass less over each.
        correction = (1.0 - beta_2**t) ** 0.5
        self._first.lerp_(gradient, 1.0 - beta_1)
        self._second.mul_(beta_2).addcmul_(gradient, gradient, value=1.0 - beta_2)
        denominator = torch.sqrt(self._second, out=self._buffer).add_(self._epsilon * correction)
        ratio = torch.div(self._first, denominator, out=self._buffer)
        ratio.clamp_(-self._most, self._most)
        self._weights.add_(ratio, alpha=-learning_rate * correction / (1.0 - beta_1**t))


class _WeightDecay:
    """g ← g + λθ before the rule, as torch.optim's `weight_decay`."""

    def __init__(self, inner: Optimizer, weights: Tensor, weight_decay: float) -> None:
        self._inner = inner
        self._weights = weights
        self._weight_decay = weight_decay

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        self._inner.step(gradient.add_(self._weights, alpha=self._weight_decay), learning_rate)


def make_optimizer(
    settings: OptimizerSettings, weights: Tensor, state: Tensor, clock: npt.NDArray[Any]
) -> Optimizer:
    """The rule that `[optimizer]` names.

    Args:
        settings: the section.
        weights: float32 (n,), stepped in place.
        state: float32 (STATE_ROWS[name], n), zeros at the start.
        clock: float64 (1,), the number of steps so far.
    """
    rule: Optimizer
    match settings.name:
        case "sgd":
            rule = SGD(settings, weights, state)
        case "rmsprop":
            rule = RMSprop(settings, weights, state)
        case "adagrad":
            rule = AdaGrad(settings, weights, state)
        case "adam":
            rule = Adam(settings, weights, state, clock)
    return _WeightDecay(rule, weights, settings.weight_decay) if settings.weight_decay else rule


class _Left:
    """Makes no step: the gradient stays where it is, for whatever steps elsewhere."""

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        pass


def leave_gradient(
    settings: OptimizerSettings, weights: Tensor, state: Tensor, clock: npt.NDArray[Any]
) -> Optimizer:
    """In the place of `make_optimizer` where the parent makes the steps."""
    return _Left()


def clip_gradient(gradient: Tensor, limit: float) -> float:
    """Shortens the gradient to Euclidean norm `limit`, in place; the norm that it had."""
    norm: float = torch.linalg.vector_norm(gradient).item()
    if norm > limit:
        gradient.mul_(limit / norm)
    return norm
