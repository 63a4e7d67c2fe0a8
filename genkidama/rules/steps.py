"""How a gradient becomes a step of θ_P: `[optimizer]` in NumPy. Pure.

The cores' rules in `genkidama.learning.optimizers` do the same on tensors, which a parent does not
have; `tests/rules/test_steps.py` holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from genkidama.averaging import RuleState
from genkidama.rules.pace import BLOCK
from genkidama.settings import Optimizer
from genkidama.weights import DTYPE, Vector, length

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

#: Which numbers a block has, two buffers of its length, and what is kept of it.
_Block: TypeAlias = tuple[slice, Vector, Vector, list[Vector]]


class Steps:
    """One optimizer over a vector whose length the first gradient tells."""

    def __init__(self, settings: Optimizer) -> None:
        self._settings = settings
        self._kept: dict[str, Vector] = {}
        self._made = 0
        self._buffers = np.empty((2, BLOCK), DTYPE)
        #: A small vector costs as much in views as in arithmetic, so they are made once.
        self._blocks: list[_Block] = []
        directions: dict[str, _Direction] = {
            "sgd": self._sgd,
            "rmsprop": self._rmsprop,
            "adagrad": self._adagrad,
            "adam": self._adam,
        }
        self._direct = directions[settings.name]

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
