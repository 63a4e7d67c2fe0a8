"""Update rules on flat vectors whose state may be shared by many cores (Hogwild!).

Each rule is torch.optim's of the same name, written for one vector: a core applies its own gradient
to weights and state that other cores change at the same time, without a lock (Niu et al. 2011; Mnih
et al. 2016 §4.3 for the shared statistics).

Laws of this file:
- Weights, state and gradient are arrays, or tensors on any device: a rule uses functions that NumPy
  and torch both have. Everything else that it needs is private, so each core, and each thread, has
  a separate rule over the shared memory.
- A step writes in place and allocates nothing: intermediate results go into one buffer, which the
  rule keeps, and into the gradient.
- What makes many passes over arrays makes them over a block after the other, which stays in the
  cache.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.config.sections import Optimizer as OptimizerSettings
from genkidama.learning.rollout import Numbers

#: The number of state vectors of each rule.
STATE_ROWS = {"sgd": 1, "rmsprop": 1, "adagrad": 1, "adam": 2}

#: Numbers of a block: a few vectors of it fit into a second-level cache.
_BLOCK = 16_384


def blocks(size: int) -> list[slice]:
    """The places of a vector's blocks; at least one."""
    return [slice(start, start + _BLOCK) for start in range(0, max(1, size), _BLOCK)]


def follow(target: npt.NDArray[Any], weights: npt.NDArray[Any], rate: float) -> None:
    """θ⁻ ← (1−τ)θ⁻ + τθ with the rate τ, in place."""
    for part in blocks(len(target)):
        change = weights[part] - target[part]
        change *= np.float32(rate)
        target[part] += change


def library(numbers: Numbers) -> Any:
    """The module with functions of these numbers: numpy, or torch."""
    return sys.modules[type(numbers).__module__]


class Optimizer:
    """A rule; arguments as for `make_optimizer`."""

    def __init__(
        self, settings: OptimizerSettings, weights: Numbers, state: Numbers, clock: npt.NDArray[Any]
    ) -> None:
        self._settings = settings
        self._weights, self._state = weights, state
        self._clock = clock
        self._xp = library(weights)
        self._buffer = self._xp.empty_like(weights)

    def step(self, gradient: Numbers, learning_rate: float) -> None:
        """Applies a gradient (n,), which may be changed, to the weights, in place. With
        `weight_decay` g ← g + λθ before the rule, as torch.optim's."""
        if decay := self._settings.weight_decay:
            gradient += self._xp.multiply(self._weights, decay, out=self._buffer)
        self._apply(gradient, learning_rate)

    def _apply(self, gradient: Numbers, learning_rate: float) -> None:
        raise NotImplementedError

    def _descend(self, direction: Numbers, rate: float) -> None:
        """θ ← θ − rate·direction, which is spent."""
        direction *= rate
        self._weights -= direction

    def _divided(self, gradient: Numbers, epsilon: float) -> Numbers:
        """g/(√s + ε) with the state s."""
        denominator = self._xp.sqrt(self._state[0], out=self._buffer)
        denominator += epsilon
        return self._xp.divide(gradient, denominator, out=self._buffer)


class SGD(Optimizer):
    """v ← μv + g; θ ← θ − ηv."""

    def _apply(self, gradient: Numbers, learning_rate: float) -> None:
        if self._settings.momentum:
            velocity = self._state[0]
            velocity *= self._settings.momentum
            velocity += gradient
            gradient = velocity
        self._weights -= self._xp.multiply(gradient, learning_rate, out=self._buffer)


class RMSprop(Optimizer):
    """s ← ρs + (1−ρ)g²; θ ← θ − ηg/(√s + ε), as in torch.

    With `epsilon_inside` θ ← θ − ηg/√(s + ε): Mnih et al. 2016, eq. S2 and S3.
    """

    def _apply(self, gradient: Numbers, learning_rate: float) -> None:
        xp, buffer = self._xp, self._buffer
        squares = self._state[0]
        decay, epsilon = self._settings.decay, self._settings.epsilon
        squares *= decay
        xp.square(gradient, out=buffer)
        buffer *= 1.0 - decay
        squares += buffer
        if self._settings.epsilon_inside:
            xp.sqrt(xp.add(squares, epsilon, out=buffer), out=buffer)
            direction = xp.divide(gradient, buffer, out=buffer)
        else:
            direction = self._divided(gradient, epsilon)
        self._descend(direction, learning_rate)


class AdaGrad(Optimizer):
    """s ← s + g²; θ ← θ − ηg/(√s + ε) (Duchi et al. 2011)."""

    def _apply(self, gradient: Numbers, learning_rate: float) -> None:
        squares = self._state[0]
        squares += self._xp.square(gradient, out=self._buffer)
        self._descend(self._divided(gradient, self._settings.epsilon), learning_rate)


class Adam(Optimizer):
    """Kingma & Ba 2015, algorithm 1; the step count is shared as the moments are.

    By Cauchy and Schwarz |m|/√v is at most (1−β₁)/√((1−β₂)(1−β₁²/β₂)), 7.3 with the usual β. Where
    a sibling has changed one of the two and not yet the other, it may be millions. So it is cut.
    """

    def __init__(self, settings: OptimizerSettings, *memory: Any) -> None:
        super().__init__(settings, *memory)
        beta_1, beta_2 = settings.betas
        within = (1.0 - beta_2) * (1.0 - beta_1**2 / beta_2) if beta_2 > beta_1**2 else 0.0
        #: A little more, for what rounding adds.
        self._most = 1.01 * (1.0 - beta_1) / within**0.5 if within else math.inf
        weights, state = self._weights, self._state
        parts = blocks(len(weights)) if self._xp is np else [slice(None)]
        #: Each block's place, and its views of weights and both moments.
        self._parts = [(part, weights[part], state[0][part], state[1][part]) for part in parts]

    def _apply(self, gradient: Numbers, learning_rate: float) -> None:
        xp = self._xp
        beta_1, beta_2 = self._settings.betas
        self._clock[0] += 1.0
        t = float(self._clock[0])
        # η·m̂/(√v̂ + ε), its corrections taken out of the vectors: a pass less over each.
        correction = (1.0 - beta_2**t) ** 0.5
        rate = learning_rate * correction / (1.0 - beta_1**t)
        for part, weights, first, second in self._parts:
            slope, buffer = gradient[part], self._buffer[: len(weights)]
            xp.subtract(slope, first, out=buffer)
            buffer *= 1.0 - beta_1
            first += buffer
            xp.square(slope, out=buffer)
            buffer *= 1.0 - beta_2
            second *= beta_2
            second += buffer
            xp.sqrt(second, out=buffer)
            buffer += self._settings.epsilon * correction
            xp.divide(first, buffer, out=buffer)
            xp.clip(buffer, -self._most, self._most, out=buffer)
            buffer *= rate
            weights -= buffer


def make_optimizer(
    settings: OptimizerSettings, weights: Numbers, state: Numbers, clock: npt.NDArray[Any]
) -> Optimizer:
    """The rule that `[optimizer]` names.

    Args:
        weights: float32 (n,), stepped in place.
        state: float32 (STATE_ROWS[name], n), zeros at the start.
        clock: float64 (1,), the number of steps so far.
    """
    rules: dict[str, type[Optimizer]]
    rules = {"sgd": SGD, "rmsprop": RMSprop, "adagrad": AdaGrad, "adam": Adam}
    return rules[settings.name](settings, weights, state, clock)


class LeaveGradient(Optimizer):
    """Makes no step: the gradient stays where it is, for the parent, which makes the steps."""

    def __init__(self, *_: Any) -> None: ...

    def step(self, gradient: Numbers, learning_rate: float) -> None: ...


def clip_gradient(gradient: Numbers, limit: float) -> float:
    """Shortens the gradient to Euclidean norm `limit`, in place; the norm that it had."""
    norm = float(library(gradient).linalg.norm(gradient))
    if norm > limit:
        gradient *= limit / norm
    return norm
