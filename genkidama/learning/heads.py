"""What a network's outputs mean as a distribution over actions.

A head is stateless: `outputs` are the numbers that a network's policy emits for one observation, and
every function takes a batch of them. Acting works on NumPy arrays, learning on tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from genkidama.errors import ConfigurationError

__all__ = ["Categorical", "Gaussian", "Head", "head_for"]

Array = npt.NDArray[Any]

#: How many steps' worth of random numbers are drawn at once: one draw a step would cost more than a forward pass.
_BLOCK = 1024

_LOG_2PI = math.log(2.0 * math.pi)


class Head(Protocol):
    """A distribution over actions, given a network's outputs."""

    #: Numbers that the policy of a network emits.
    outputs: int
    #: Numbers that an action takes in the replay tensor, which holds them as float32.
    columns: int
    #: What they are in truth, and what learners see.
    dtype: type[np.generic]

    def log_probability(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """log π(a|s). Shapes: outputs (B, outputs), actions (B, columns) as stored; result (B,)."""
        ...

    def entropy(self, outputs: Tensor) -> Tensor:
        """Entropy of π(·|s) in nats. Shapes: outputs (B, outputs); result (B,)."""
        ...

    def sampler(self, rng: np.random.Generator, epsilon: float) -> Callable[[Array], Any]:
        """A function from one observation's outputs (outputs,) to an action as it is stored.

        With probability `epsilon` the action is uniformly random.
        """
        ...

    def mode(self, outputs: Array) -> Any:
        """The most probable action, as it is stored."""
        ...

    def to_environment(self, action: Any) -> Any:
        """The stored action as the environment takes it."""
        ...


class Categorical:
    """Discrete actions: outputs are unnormalized log-probabilities."""

    columns = 1
    dtype: type[np.generic] = np.int64

    def __init__(self, space: gymnasium.spaces.Discrete) -> None:
        self.outputs = int(space.n)
        self._start = int(space.start)

    def log_probability(self, outputs: Tensor, actions: Tensor) -> Tensor:
        return -functional.cross_entropy(outputs, actions.long().squeeze(1), reduction="none")

    def entropy(self, outputs: Tensor) -> Tensor:
        log_pi = torch.log_softmax(outputs, 1)
        return -(log_pi.exp() * log_pi).sum(1)

    def sampler(self, rng: np.random.Generator, epsilon: float) -> Callable[[Array], np.int64]:
        """Gumbel-max: argmax(log π + G) with standard Gumbel noise G is a sample of π.

        A step that is to be uniformly random gets noise that decides alone.
        """
        rows: list[Array] = []

        def draw() -> list[Array]:
            noise = rng.gumbel(size=(_BLOCK, self.outputs)).astype(np.float32)
            if epsilon:
                random = np.flatnonzero(rng.random(_BLOCK) < epsilon)
                noise[random, rng.integers(self.outputs, size=len(random))] = np.float32(1e30)
            return list(noise)

        def sample(outputs: Array) -> np.int64:
            nonlocal rows
            if not rows:
                rows = draw()
            action: np.int64 = (outputs + rows.pop()).argmax()
            return action

        return sample

    def mode(self, outputs: Array) -> np.int64:
        action: np.int64 = outputs.argmax()
        return action

    def to_environment(self, action: np.int64) -> np.int64:
        return action + self._start if self._start else action


class Gaussian:
    """Continuous actions: outputs are the means and then the logarithms of the standard deviations.

    The density is that of the unbounded sample; the environment receives it clipped to its bounds.
    """

    dtype: type[np.generic] = np.float32

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        self.columns = int(np.prod(space.shape))
        self.outputs = 2 * self.columns
        self._shape = space.shape
        self._low, self._high = space.low.reshape(-1), space.high.reshape(-1)

    def log_probability(self, outputs: Tensor, actions: Tensor) -> Tensor:
        mean, log_deviation = outputs.chunk(2, 1)
        z = (actions - mean) * torch.exp(-log_deviation)
        return -(0.5 * z * z + log_deviation + 0.5 * _LOG_2PI).sum(1)

    def entropy(self, outputs: Tensor) -> Tensor:
        _, log_deviation = outputs.chunk(2, 1)
        return (log_deviation + 0.5 * (1.0 + _LOG_2PI)).sum(1)

    def sampler(self, rng: np.random.Generator, epsilon: float) -> Callable[[Array], Array]:
        rows: list[Array] = []
        low = np.where(np.isfinite(self._low), self._low, -1.0)
        high = np.where(np.isfinite(self._high), self._high, 1.0)

        def sample(outputs: Array) -> Array:
            nonlocal rows
            if not rows:
                rows = list(rng.standard_normal((_BLOCK, self.columns), np.float32))
            if epsilon and rng.random() < epsilon:
                return rng.uniform(low, high).astype(np.float32)
            action: Array = outputs[: self.columns] + np.exp(outputs[self.columns :]) * rows.pop()
            return action

        return sample

    def mode(self, outputs: Array) -> Array:
        return outputs[: self.columns].copy()

    def to_environment(self, action: Array) -> Array:
        return np.clip(action, self._low, self._high).reshape(self._shape)


def head_for(space: gymnasium.Space[Any]) -> Head:
    """The head for an action space.

    Raises:
        ConfigurationError: the space is neither Discrete nor a Box of floats.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return Categorical(space)
    if isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Gaussian(space)
    raise ConfigurationError(f"environment: its action space is {space}; Discrete and Box (floats) are supported")
