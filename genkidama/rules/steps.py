"""How a gradient becomes a step of θ_P: `[optimizer]` in NumPy. Pure.

The cores' rules in `genkidama.learning.optimizers` do the same on tensors, which a parent does not
have; `tests/rules/test_steps.py` holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from genkidama.averaging import RuleState
from genkidama.rules.pace import BLOCK, norm
from genkidama.settings import Optimizer
from genkidama.weights import DTYPE, Vector

__all__ = ["Steps"]

#: What each rule keeps, vectors of θ_P's length.
_KEPT = {
    "sgd": ("velocity",),
    "rmsprop": ("squares",),
    "adagrad": ("squares",),
    "adam": ("first", "second"),
}
_CLOCK = "clock"

#: What a step follows from, and a factor of it, by a block's gradient, a buffer of its length and
#: what is kept of it.
_Direction: TypeAlias = Callable[[Vector, Vector, list[Vector]], tuple[Vector, float]]


class Steps:
    """One optimizer over a vector whose length the first gradient tells."""

    def __init__(self, settings: Optimizer) -> None:
        self._settings = settings
        self._kept: dict[str, Vector] = {}
        self._made = 0
        self._buffers = np.empty((2, BLOCK), DTYPE)
        self._directions: dict[str, _Direction] = {
            "sgd": self._sgd,
            "rmsprop": self._rmsprop,
            "adagrad": self._adagrad,
            "adam": self._adam,
        }

    def apply(
        self, weights: Vector, gradient: Vector, rate: float, factor: float, longest: float
    ) -> None:
        """A step down the gradient, in place.

        Args:
            weights: float32, shape (n,).
            gradient: float32, shape (n,), only read.
            rate: the learning rate.
            factor: what the gradient is multiplied by before anything else.
            longest: the longest step, by its Euclidean norm; infinite if there is no limit.
        """
        settings = self._settings
        for name in _KEPT[settings.name]:
            if name not in self._kept:
                self._kept[name] = np.zeros_like(weights)
        kept = [self._kept[name] for name in _KEPT[settings.name]]
        self._made += 1
        direct = self._directions[settings.name]
        whole = None if longest == np.inf else np.empty_like(weights)
        for start in range(0, len(weights), BLOCK):
            part = slice(start, start + BLOCK)
            ours = weights[part]
            step, spare = self._buffers[:, : len(ours)]
            slope = gradient[part]
            if factor != 1.0:
                slope = np.multiply(slope, factor, out=step)
            if settings.weight_decay:
                np.multiply(ours, settings.weight_decay, out=spare)
                slope = np.add(slope, spare, out=step)
            way, length = direct(slope, spare, [vector[part] for vector in kept])
            np.multiply(way, rate * length, out=step)
            if whole is None:
                ours -= step
            else:
                whole[part] = step
        if whole is not None:
            length = norm(whole)
            weights -= whole if length <= longest else whole * (longest / length)

    def state(self) -> RuleState:
        """Vectors of float32 by name, and how many steps were made."""
        return {**self._kept, _CLOCK: np.array([float(self._made)])} if self._made else {}

    def restore(self, state: RuleState) -> None:
        """Takes its own arrays out of a rule's state.

        Raises:
            ValueError: there are those of another optimizer.
        """
        if _CLOCK not in state:
            return
        names = _KEPT[self._settings.name]
        if missing := [name for name in names if name not in state]:
            raise ValueError(f"optimizer.name = {self._settings.name!r} needs {missing[0]!r}")
        self._kept = {name: state[name] for name in names}
        self._made = int(state[_CLOCK][0])

    def _sgd(self, gradient: Vector, spare: Vector, kept: list[Vector]) -> tuple[Vector, float]:
        if not self._settings.momentum:
            return gradient, 1.0
        velocity = kept[0]
        velocity *= self._settings.momentum
        velocity += gradient
        return velocity, 1.0

    def _adagrad(self, gradient: Vector, spare: Vector, kept: list[Vector]) -> tuple[Vector, float]:
        squares = kept[0]
        squares += np.multiply(gradient, gradient, out=spare)
        np.sqrt(squares, out=spare)
        spare += self._settings.epsilon
        return np.divide(gradient, spare, out=spare), 1.0

    # A mean that forgets is kept as a sum that forgets, which takes a pass less; the factor between
    # the two goes into ε and into the step.

    def _rmsprop(self, gradient: Vector, spare: Vector, kept: list[Vector]) -> tuple[Vector, float]:
        squares = kept[0]
        new = 1.0 - self._settings.decay
        squares *= self._settings.decay
        squares += np.multiply(gradient, gradient, out=spare)
        if self._settings.epsilon_inside:
            np.add(squares, self._settings.epsilon / new, out=spare)
            np.sqrt(spare, out=spare)
        else:
            np.sqrt(squares, out=spare)
            spare += self._settings.epsilon / new**0.5
        return np.divide(gradient, spare, out=spare), 1.0 / new**0.5

    def _adam(self, gradient: Vector, spare: Vector, kept: list[Vector]) -> tuple[Vector, float]:
        first, second = kept
        beta_1, beta_2 = self._settings.betas
        first *= beta_1
        first += gradient
        second *= beta_2
        second += np.multiply(gradient, gradient, out=spare)
        # η·m̂/(√v̂ + ε), with its corrections in ε and in the factor.
        unit = ((1.0 - beta_2**self._made) / (1.0 - beta_2)) ** 0.5
        np.sqrt(second, out=spare)
        spare += self._settings.epsilon * unit
        np.divide(first, spare, out=spare)
        return spare, unit * (1.0 - beta_1) / (1.0 - beta_1**self._made)
