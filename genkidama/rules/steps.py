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

#: Makes the gradient of a block to the direction of its step, in place, given a second buffer.
_Direction: TypeAlias = Callable[[Vector, Vector, list[Vector]], None]


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
            np.multiply(gradient[part], factor, out=step)
            if settings.weight_decay:
                step += np.multiply(ours, settings.weight_decay, out=spare)
            direct(step, spare, [vector[part] for vector in kept])
            step *= rate
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

    def _sgd(self, step: Vector, spare: Vector, kept: list[Vector]) -> None:
        if self._settings.momentum:
            velocity = kept[0]
            velocity *= self._settings.momentum
            velocity += step
            step[:] = velocity

    def _adagrad(self, step: Vector, spare: Vector, kept: list[Vector]) -> None:
        squares = kept[0]
        squares += np.multiply(step, step, out=spare)
        np.sqrt(squares, out=spare)
        spare += self._settings.epsilon
        step /= spare

    def _rmsprop(self, step: Vector, spare: Vector, kept: list[Vector]) -> None:
        squares = kept[0]
        squares *= self._settings.decay
        np.multiply(step, step, out=spare)
        spare *= 1.0 - self._settings.decay
        squares += spare
        if self._settings.epsilon_inside:
            np.add(squares, self._settings.epsilon, out=spare)
            np.sqrt(spare, out=spare)
        else:
            np.sqrt(squares, out=spare)
            spare += self._settings.epsilon
        step /= spare

    def _adam(self, step: Vector, spare: Vector, kept: list[Vector]) -> None:
        first, second = kept
        beta_1, beta_2 = self._settings.betas
        # η·m̂/(√v̂ + ε), its corrections taken out of the vectors.
        correction = (1.0 - beta_2**self._made) ** 0.5
        first *= beta_1
        first += np.multiply(step, 1.0 - beta_1, out=spare)
        second *= beta_2
        np.multiply(step, step, out=spare)
        spare *= 1.0 - beta_2
        second += spare
        np.sqrt(second, out=spare)
        spare += self._settings.epsilon * correction
        np.divide(first, spare, out=step)
        step *= correction / (1.0 - beta_1**self._made)
