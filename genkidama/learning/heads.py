"""Heads: a network's outputs as a distribution over actions.

A head is stateless: `outputs` are the numbers that a network's policy emits for one observation,
and every function takes a batch of them. Acting works on NumPy arrays, learning on tensors.
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

from genkidama.learning.environments import columns, converter, supported
from genkidama.learning.numpy_gradients import categorical_slopes, gaussian_slopes

__all__ = [
    "Categorical",
    "Gaussian",
    "Head",
    "same_owner",
    "head_for",
    "samples_of_lanes",
]

Array = npt.NDArray[Any]

#: Steps whose random numbers are drawn at once: one draw a step costs more than a forward
#: pass.
_BLOCK = 1024

_LOG_2PI = math.log(2.0 * math.pi)


class Head(Protocol):
    """A distribution over actions, given a network's outputs."""

    #: Numbers that the policy of a network emits.
    outputs: int
    #: Numbers that an action takes in the replay tensor, which holds them as float32.
    columns: int
    #: The type that they have in truth, and for learners.
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

    def sample(self, outputs: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
        """One action for each of a batch of observations.

        With probability `epsilon` an action is uniformly random. All is on the device of
        `outputs` and `generator`. Shapes: outputs (B, outputs); result (B, columns), int64 or
        float32, without gradients.
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

    def sample(self, outputs: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
        """Gumbel-max, as `sampler`: −log E of a standard exponential E is standard Gumbel noise."""
        noise = torch.empty_like(outputs).exponential_(generator=generator).log_()
        actions = (outputs - noise).argmax(1, keepdim=True)
        if not epsilon:
            return actions
        random = torch.empty_like(actions).random_(self.outputs, generator=generator)
        return torch.where(_chosen(actions, epsilon, generator), random, actions)

    def together(
        self, rng: np.random.Generator, epsilon: float, lanes: int
    ) -> Callable[[Array], tuple[Array, list[Any]]]:
        """As `samples_of_lanes` says, by Gumbel-max as `sampler`."""
        rows: list[Array] = []
        block = -(-_BLOCK // lanes)

        def draw() -> list[Array]:
            noise = rng.gumbel(size=(block * lanes, self.outputs)).astype(np.float32)
            if epsilon:
                random = np.flatnonzero(rng.random(len(noise)) < epsilon)
                noise[random, rng.integers(self.outputs, size=len(random))] = np.float32(1e30)
            return list(noise.reshape(block, lanes, self.outputs))

        def sample(outputs: Array) -> tuple[Array, list[Any]]:
            nonlocal rows
            if not rows:
                rows = draw()
            actions = (outputs + rows.pop()).argmax(1)
            return actions[:, None], (actions + self._start).tolist()

        return sample

    slopes = staticmethod(categorical_slopes)

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
        self.columns = columns(space)
        self.outputs = 2 * self.columns
        self.to_environment: Callable[[Array], Array] = converter(space)
        # The range of uniformly random actions: the bounds, or ±1 where there are none.
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        self._low = np.where(np.isfinite(low), low, -1.0)
        self._high = np.where(np.isfinite(high), high, 1.0)

    def log_probability(self, outputs: Tensor, actions: Tensor) -> Tensor:
        mean, log_deviation = outputs.chunk(2, 1)
        z = (actions - mean) * torch.exp(-log_deviation)
        return -(0.5 * z * z + log_deviation + 0.5 * _LOG_2PI).sum(1)

    def entropy(self, outputs: Tensor) -> Tensor:
        _, log_deviation = outputs.chunk(2, 1)
        return (log_deviation + 0.5 * (1.0 + _LOG_2PI)).sum(1)

    def sampler(self, rng: np.random.Generator, epsilon: float) -> Callable[[Array], Array]:
        rows: list[Array] = []
        low, high = self._low, self._high

        def sample(outputs: Array) -> Array:
            nonlocal rows
            if not rows:
                rows = list(rng.standard_normal((_BLOCK, self.columns), np.float32))
            if epsilon and rng.random() < epsilon:
                return rng.uniform(low, high).astype(np.float32)
            action: Array = outputs[: self.columns] + np.exp(outputs[self.columns :]) * rows.pop()
            return action

        return sample

    def sample(self, outputs: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
        mean, log_deviation = outputs.detach().chunk(2, 1)
        actions = mean + torch.exp(log_deviation) * torch.empty_like(mean).normal_(
            generator=generator
        )
        if not epsilon:
            return actions
        low, high = (mean.new_tensor(bounds) for bounds in (self._low, self._high))
        random = low + (high - low) * torch.empty_like(mean).uniform_(generator=generator)
        return torch.where(_chosen(actions, epsilon, generator), random, actions)

    def together(
        self, rng: np.random.Generator, epsilon: float, lanes: int
    ) -> Callable[[Array], tuple[Array, list[Any]]]:
        """As `samples_of_lanes` says."""
        shape = (lanes, self.columns)

        def sample(outputs: Array) -> tuple[Array, list[Any]]:
            noise = rng.standard_normal(shape, np.float32)
            actions = outputs[:, : self.columns] + np.exp(outputs[:, self.columns :]) * noise
            if epsilon:
                random = np.flatnonzero(rng.random(lanes) < epsilon)
                actions[random] = rng.uniform(self._low, self._high, (len(random), self.columns))
            return actions, [self.to_environment(action) for action in actions]

        return sample

    def mode(self, outputs: Array) -> Array:
        return outputs[: self.columns].copy()

    slopes = staticmethod(gaussian_slopes)


def same_owner(owner: object, name: str, *others: str) -> bool:
    """True if the owner's method `name` is made for its `others`.

    A subclass with others of its own does not inherit what was made for its base's.
    """
    for kind in type(owner).__mro__:
        if name in vars(kind):
            return True
        if not vars(kind).keys().isdisjoint(others):
            return False
    return False


def samples_of_lanes(
    head: Head, rng: np.random.Generator, epsilon: float, lanes: int
) -> Callable[[Array], tuple[Array, list[Any]]]:
    """A function from the outputs of several lanes (lanes, outputs) to their actions.

    It gives them as they are stored (lanes, columns), and as the environments take them. A
    user's head needs no form of its own for it: a method `together` with these arguments, but the
    first, is only faster.
    """
    if same_owner(head, "together", "sampler", "to_environment"):
        found: Callable[[Array], tuple[Array, list[Any]]]
        found = head.together(rng, epsilon, lanes)  # type: ignore[attr-defined]
        return found
    one = head.sampler(rng, epsilon)

    def sample(outputs: Array) -> tuple[Array, list[Any]]:
        actions = [one(row) for row in outputs]
        stored = np.asarray(actions).reshape(lanes, head.columns)
        return stored, [head.to_environment(action) for action in actions]

    return sample


def _chosen(actions: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    """A random choice of a batch's actions that become uniformly random: bool (B, 1)."""
    return torch.rand(len(actions), 1, generator=generator, device=actions.device) < epsilon


def head_for(space: gymnasium.Space[Any]) -> Head:
    """The head for an action space.

    Raises:
        ConfigurationError: the space is neither Discrete nor a Box of floats.
    """
    space = supported(space)
    return Categorical(space) if isinstance(space, gymnasium.spaces.Discrete) else Gaussian(space)
