"""Heads: a network's outputs as a distribution over actions.

A head is stateless: `outputs` are the numbers that a network's policy emits for one observation.
Acting and `slopes` work on arrays, the other functions on tensors, by methods of these alone, so
that nothing here imports torch.

The slopes of a head with outputs o, with z = (a − m)/σ:

    head          outputs o       ∂log π(a)/∂o        ∂H/∂o
    categorical   logits          1_a − π             −π(log π + H)
    gaussian      means m         z/σ                 0
                  log σ           z² − 1              1

Of several columns log π and H are sums over the columns, each of which is a categorical with logits
of its own, or a Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama.learning.actions import bounds, choices, converter, supported
from genkidama.learning.exploration import Exploration
from genkidama.learning.forms import made_for

if TYPE_CHECKING:
    from torch import Generator, Tensor

Array = npt.NDArray[Any]

#: Steps whose random numbers are drawn at once: one draw a step costs more than a forward
#: pass.
_BLOCK = 1024

_LOG_2PI = math.log(2.0 * math.pi)

#: The largest noise of a uniformly random action. It decides alone, but among valid choices.
_DECIDES = np.float32(1e30)


class Slopes(NamedTuple):
    """log π(a|s) of a batch, float32 (B,), and the way from there back to the outputs."""

    log_pi: Array
    #: The gradient at the outputs (B, outputs), given that at `log_pi` (B,) and at the entropy of
    #: each, which is the same number for all.
    back: Callable[[Array, float], Array]
    #: The entropy of each row, (B,), when it is called.
    entropy: Callable[[], Array]


def categorical_slopes(outputs: Array, actions: Array) -> Slopes:
    """Log π of actions (B, 1), counted from 0, and the way back from it; outputs (B, choices)."""
    shifted = outputs - outputs.max(1, keepdims=True)
    exponentials = np.exp(shifted)
    total = exponentials.sum(1, keepdims=True)
    log_pi = shifted - np.log(total)
    pi = exponentials / total
    rows = np.arange(len(outputs))
    taken = actions[:, 0]

    def back(at_log_pi: Array, at_entropy: float) -> Array:
        result: Array = pi * -at_log_pi[:, None]
        result[rows, taken] += at_log_pi
        if at_entropy:
            weighted = pi * log_pi
            result -= at_entropy * (weighted - pi * weighted.sum(1, keepdims=True))
        return result

    return Slopes(log_pi[rows, taken], back, lambda: -(pi * log_pi).sum(1))


def gaussian_slopes(outputs: Array, actions: Array) -> Slopes:
    """Log π of actions (B, columns) and the way back from it; outputs (B, 2·columns)."""
    columns = actions.shape[1]
    log_deviation = outputs[:, columns:]
    inverse = np.exp(-log_deviation)
    z = (actions - outputs[:, :columns]) * inverse
    log_pi = -(0.5 * z * z + log_deviation + np.float32(0.5 * _LOG_2PI)).sum(1)

    def back(at_log_pi: Array, at_entropy: float) -> Array:
        weight = at_log_pi[:, None]
        at_deviation = weight * (z * z - 1.0) + np.float32(at_entropy)
        return np.concatenate((weight * z * inverse, at_deviation), 1)

    return Slopes(log_pi, back, lambda: (log_deviation + 0.5 * (1.0 + _LOG_2PI)).sum(1))


def _noise(rng: np.random.Generator, shape: tuple[int, int], epsilon: float) -> Array:
    """Noise whose sum with outputs is largest at a sample, by Gumbel-max: float32 (rows, outputs).

    argmax(log π + G) with standard Gumbel noise G is a sample of π. With probability `epsilon` a
    row's noise decides alone.
    """
    noise = rng.gumbel(size=shape).astype(np.float32)
    if epsilon:
        random = np.flatnonzero(rng.random(len(noise)) < epsilon)
        noise[random] = _DECIDES * rng.random((len(random), shape[1]), np.float32)
    return noise


def _rows(draw: Callable[[], Array]) -> Iterator[Array]:
    """The rows of whatever is drawn, again and again."""
    while True:
        yield from draw()[::-1]


def _tensor_noise(outputs: Tensor, epsilon: float, generator: Generator) -> Tensor:
    """As `_noise`: −log E of a standard exponential E is standard Gumbel noise."""
    noise = outputs.new_empty(outputs.shape).exponential_(generator=generator).log_().neg_()
    if not epsilon:
        return noise
    random = float(_DECIDES) * outputs.new_empty(outputs.shape).uniform_(generator=generator)
    return random.where(_chosen(outputs, epsilon, generator), noise)


class Head(Protocol):
    """A distribution over actions, given a network's outputs."""

    #: Numbers that the policy of a network emits.
    outputs: int
    #: Numbers that an action takes in the replay tensor, which holds them as float32.
    columns: int
    #: The type that they have in truth, and for learners.
    dtype: type[np.generic]

    def slopes(self, outputs: Array, actions: Array) -> Slopes:
        """log π(a|s) and its gradient. Shapes: outputs (B, outputs), actions (B, columns) of
        `dtype`. A head without it, or with a `log_probability` of its own, learns on tensors."""
        ...

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

    def sample(self, outputs: Tensor, epsilon: float, generator: Generator) -> Tensor:
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
        return outputs.log_softmax(1).gather(1, actions.long()).squeeze(1)

    def entropy(self, outputs: Tensor) -> Tensor:
        log_pi = outputs.log_softmax(1)
        return -(log_pi.exp() * log_pi).sum(1)

    def sampler(self, rng: np.random.Generator, epsilon: float) -> Callable[[Array], np.int64]:
        noise = _rows(lambda: _noise(rng, (_BLOCK, self.outputs), epsilon))

        def sample(outputs: Array) -> np.int64:
            action: np.int64 = (outputs + next(noise)).argmax()
            return action

        return sample

    def sample(self, outputs: Tensor, epsilon: float, generator: Generator) -> Tensor:
        return (outputs + _tensor_noise(outputs, epsilon, generator)).argmax(1, keepdim=True)

    def together(
        self, rng: np.random.Generator, epsilon: float, lanes: int
    ) -> Callable[[Array], tuple[Array, list[Any]]]:
        """As `samples_of_lanes` says."""
        block = -(-_BLOCK // lanes)
        shape = block, lanes, self.outputs
        noise = _rows(lambda: _noise(rng, (block * lanes, self.outputs), epsilon).reshape(shape))

        def sample(outputs: Array) -> tuple[Array, list[Any]]:
            actions = (outputs + next(noise)).argmax(1)
            return actions[:, None], (actions + self._start).tolist()

        return sample

    slopes = staticmethod(categorical_slopes)

    def mode(self, outputs: Array) -> np.int64:
        action: np.int64 = outputs.argmax()
        return action

    def to_environment(self, action: np.int64) -> np.int64:
        return action + self._start if self._start else action


class MultiCategorical:
    """Several discrete columns, chosen independently of each other: the logits of one after those
    of the other."""

    dtype: type[np.generic] = np.int64

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self._sizes = choices(space)
        self.columns = len(self._sizes)
        self.outputs = sum(self._sizes)
        self.to_environment: Callable[[Array], Any] = converter(space)
        sizes = np.array(self._sizes)
        #: The output at which each column begins, and the column of each output.
        self._starts = sizes.cumsum() - sizes
        self._column = np.repeat(np.arange(self.columns), sizes)
        # The outputs of each column. Short ones repeat their first: argmax finds the earlier one.
        place = np.arange(sizes.max())
        #: (columns, choices).
        self.places = self._starts[:, None] + np.where(place < sizes[:, None], place, 0)

    def slopes(self, outputs: Array, actions: Array) -> Slopes:
        starts, column = self._starts, self._column
        shifted = outputs - np.maximum.reduceat(outputs, starts, 1)[:, column]
        exponentials = np.exp(shifted)
        total = np.add.reduceat(exponentials, starts, 1)[:, column]
        log_pi = shifted - np.log(total)
        pi = exponentials / total
        taken = np.arange(len(outputs))[:, None], actions + starts

        def back(at_log_pi: Array, at_entropy: float) -> Array:
            result: Array = pi * -at_log_pi[:, None]
            result[taken] += at_log_pi[:, None]
            if at_entropy:
                weighted = pi * log_pi
                sums = np.add.reduceat(weighted, starts, 1)[:, column]
                result -= at_entropy * (weighted - pi * sums)
            return result

        return Slopes(log_pi[taken].sum(1), back, lambda: -(pi * log_pi).sum(1))

    def probabilities(self, outputs: Array) -> Array:
        """Those of each column's choices, of outputs (outputs,): float32 of that shape."""
        pi: Array = np.exp(outputs - np.maximum.reduceat(outputs, self._starts)[self._column])
        return pi / np.add.reduceat(pi, self._starts)[self._column]

    def log_probability(self, outputs: Tensor, actions: Tensor) -> Tensor:
        parts = zip(outputs.split(self._sizes, 1), actions.long().split(1, 1), strict=True)
        each = [logits.log_softmax(1).gather(1, action) for logits, action in parts]
        result: Tensor = sum(each[1:], each[0]).squeeze(1)
        return result

    def entropy(self, outputs: Tensor) -> Tensor:
        parts = [logits.log_softmax(1) for logits in outputs.split(self._sizes, 1)]
        each = [-(log_pi.exp() * log_pi).sum(1) for log_pi in parts]
        result: Tensor = sum(each[1:], each[0])
        return result

    def sampler(self, rng: np.random.Generator, epsilon: float) -> Callable[[Array], Array]:
        noise = _rows(lambda: _noise(rng, (_BLOCK, self.outputs), epsilon))
        return lambda outputs: self.mode(outputs + next(noise))

    def sample(self, outputs: Tensor, epsilon: float, generator: Generator) -> Tensor:
        noisy = outputs + _tensor_noise(outputs, epsilon, generator)
        return noisy[:, self.places].argmax(2)

    def together(
        self, rng: np.random.Generator, epsilon: float, lanes: int
    ) -> Callable[[Array], tuple[Array, list[Any]]]:
        """As `samples_of_lanes` says."""

        def sample(outputs: Array) -> tuple[Array, list[Any]]:
            actions = self.mode(outputs + _noise(rng, (lanes, self.outputs), epsilon))
            return actions, [self.to_environment(action) for action in actions]

        return sample

    def mode(self, outputs: Array) -> Array:
        actions: Array = outputs[..., self.places].argmax(-1)
        return actions


class Gaussian:
    """Continuous actions: outputs are the means and then the logarithms of the standard deviations.

    The density is that of the unbounded sample; the environment receives it clipped to its bounds.
    """

    dtype: type[np.generic] = np.float32
    #: Whether tanh brings samples to the bounds.
    squashes = False
    #: σ of log σ.
    deviation: Any = staticmethod(np.exp)

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        low, high = bounds(space)
        self.columns = len(low)
        self.outputs = 2 * self.columns
        self.to_environment: Callable[[Array], Any] = converter(space)
        self._converter = self.to_environment
        self._box = (low, high, space.shape) if isinstance(space, gymnasium.spaces.Box) else None
        # The range of uniformly random actions: the bounds, ±1 where there are none, and 2 from a
        # single one that ±1 lies beyond.
        self._low = np.where(np.isfinite(low), low, np.minimum(-1.0, high - 2.0))
        self._high = np.where(np.isfinite(high), high, np.maximum(1.0, low + 2.0))

    def log_probability(self, outputs: Tensor, actions: Tensor) -> Tensor:
        mean, log_deviation = outputs.chunk(2, 1)
        z = (actions - mean) * (-log_deviation).exp()
        return -(0.5 * z * z + log_deviation + 0.5 * _LOG_2PI).sum(1)

    def entropy(self, outputs: Tensor) -> Tensor:
        _, log_deviation = outputs.chunk(2, 1)
        return (log_deviation + 0.5 * (1.0 + _LOG_2PI)).sum(1)

    def sampler(
        self, rng: np.random.Generator, epsilon: float, exploration: Exploration | None = None
    ) -> Callable[[Array], Array]:
        """As `Head.sampler`; an exploration's noise takes the place of a step's own."""
        noise = _rows(lambda: rng.standard_normal((_BLOCK, self.columns), np.float32))
        low, high = self._low, self._high
        columns, deviation = self.columns, self.deviation

        def sample(outputs: Array) -> Array:
            if epsilon and rng.random() < epsilon:
                return rng.uniform(low, high).astype(np.float32)
            if exploration is not None:
                action: Array = outputs[:columns] + exploration.noise[0]
            else:
                action = outputs[:columns] + deviation(outputs[columns:]) * next(noise)
            return np.tanh(action) if self.squashes else action

        return sample

    def sample(self, outputs: Tensor, epsilon: float, generator: Generator) -> Tensor:
        mean, log_deviation = outputs.detach().chunk(2, 1)
        noise = mean.new_empty(mean.shape).normal_(generator=generator)
        actions = mean + log_deviation.exp() * noise
        if self.squashes:
            actions = actions.tanh()
        if not epsilon:
            return actions
        low, high = (mean.new_tensor(bounds) for bounds in (self._low, self._high))
        random = low + (high - low) * mean.new_empty(mean.shape).uniform_(generator=generator)
        return random.where(_chosen(mean, epsilon, generator), actions)

    def together(
        self,
        rng: np.random.Generator,
        epsilon: float,
        lanes: int,
        exploration: Exploration | None = None,
    ) -> Callable[[Array], tuple[Array, list[Any]]]:
        """As `samples_of_lanes` says."""
        shape = (lanes, self.columns)

        def sample(outputs: Array) -> tuple[Array, list[Any]]:
            if exploration is not None:
                noise = exploration.noise[:lanes]
            else:
                noise = rng.standard_normal(shape, np.float32)
                noise *= self.deviation(outputs[:, self.columns :])
            actions = outputs[:, : self.columns] + noise
            if self.squashes:
                np.tanh(actions, out=actions)
            if epsilon:
                random = np.flatnonzero(rng.random(lanes) < epsilon)
                actions[random] = rng.uniform(self._low, self._high, (len(random), self.columns))
            if self._box is None or self.to_environment is not self._converter:
                return actions, [self.to_environment(action) for action in actions]
            # One call for all lanes, as each costs microseconds.
            least, most, each = self._box
            return actions, list(np.clip(actions, least, most).reshape(lanes, *each))

        return sample

    def mode(self, outputs: Array) -> Array:
        return outputs[: self.columns].copy()

    slopes = staticmethod(gaussian_slopes)


class Mixed:
    """Discrete columns and continuous ones, chosen independently of each other. Outputs are those
    of a `MultiCategorical` and then those of a `Gaussian`."""

    dtype: type[np.generic] = np.float32

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.discrete = MultiCategorical(space)
        self.continuous = Gaussian(space)
        self.columns = self.discrete.columns + self.continuous.columns
        self.outputs = self.discrete.outputs + self.continuous.outputs
        self.to_environment: Callable[[Array], Any] = converter(space)

    def _parted(self, outputs: Any) -> tuple[Any, Any]:
        logits = self.discrete.outputs
        return outputs[..., :logits], outputs[..., logits:]

    def slopes(self, outputs: Array, actions: Array) -> Slopes:
        logits, gaussian = self._parted(outputs)
        split = self.discrete.columns
        ours = self.discrete.slopes(logits, actions[:, :split].astype(np.int64))
        theirs = self.continuous.slopes(gaussian, actions[:, split:])

        def back(at_log_pi: Array, at_entropy: float) -> Array:
            parts = ours.back(at_log_pi, at_entropy), theirs.back(at_log_pi, at_entropy)
            return np.concatenate(parts, 1)

        return Slopes(ours.log_pi + theirs.log_pi, back, lambda: ours.entropy() + theirs.entropy())

    def log_probability(self, outputs: Tensor, actions: Tensor) -> Tensor:
        logits, gaussian = self._parted(outputs)
        split = self.discrete.columns
        discrete = self.discrete.log_probability(logits, actions[:, :split])
        return discrete + self.continuous.log_probability(gaussian, actions[:, split:])

    def entropy(self, outputs: Tensor) -> Tensor:
        logits, gaussian = self._parted(outputs)
        return self.discrete.entropy(logits) + self.continuous.entropy(gaussian)

    def sampler(self, rng: np.random.Generator, epsilon: float) -> Callable[[Array], Array]:
        def both(epsilon: float) -> Callable[[Array], Array]:
            discrete = self.discrete.sampler(rng, epsilon)
            continuous = self.continuous.sampler(rng, epsilon)
            return lambda outputs: self._joined(outputs, discrete, continuous)

        drawn = both(0.0)
        if not epsilon:
            return drawn
        uniform = both(1.0)
        return lambda outputs: (uniform if rng.random() < epsilon else drawn)(outputs)

    def sample(self, outputs: Tensor, epsilon: float, generator: Generator) -> Tensor:
        def both(epsilon: float) -> Tensor:
            logits, gaussian = self._parted(outputs.detach())
            actions = outputs.new_empty((len(outputs), self.columns))
            split = self.discrete.columns
            actions[:, :split] = self.discrete.sample(logits, epsilon, generator)
            actions[:, split:] = self.continuous.sample(gaussian, epsilon, generator)
            return actions

        if not epsilon:
            return both(0.0)
        return both(1.0).where(_chosen(outputs, epsilon, generator), both(0.0))

    def mode(self, outputs: Array) -> Array:
        return self._joined(outputs, self.discrete.mode, self.continuous.mode)

    def _joined(self, outputs: Array, *parts: Callable[[Array], Array]) -> Array:
        given = zip(parts, self._parted(outputs), strict=True)
        return np.concatenate([part(some) for part, some in given], dtype=np.float32)


def samples_of_lanes(
    head: Head,
    rng: np.random.Generator,
    epsilon: float,
    lanes: int,
    exploration: Exploration | None = None,
) -> Callable[[Array], tuple[Array, list[Any]]]:
    """A function from the outputs of several lanes (lanes, outputs) to their actions.

    It gives them as they are stored (lanes, columns), and as the environments take them. A
    user's head needs no form of its own for it: a method `together` with these arguments, but the
    first, is only faster. An exploration is a `Gaussian`'s.
    """
    if exploration is not None:
        assert isinstance(head, Gaussian)
        return head.together(rng, epsilon, lanes, exploration)
    if made_for(type(head), "together", "sampler", "to_environment"):
        found: Callable[[Array], tuple[Array, list[Any]]]
        found = head.together(rng, epsilon, lanes)  # type: ignore[attr-defined]
        return found
    one = head.sampler(rng, epsilon)

    def sample(outputs: Array) -> tuple[Array, list[Any]]:
        actions = [one(row) for row in outputs]
        stored = np.asarray(actions).reshape(lanes, head.columns)
        return stored, [head.to_environment(action) for action in actions]

    return sample


def _chosen(outputs: Tensor, epsilon: float, generator: Generator) -> Tensor:
    """A random choice of a batch's actions that become uniformly random: bool (B, 1)."""
    return outputs.new_empty((len(outputs), 1)).uniform_(generator=generator) < epsilon


def head_for(space: gymnasium.Space[Any]) -> Head:
    """The head for an action space.

    Raises:
        ConfigurationError: there is none, as `actions.supported` says.
    """
    space = supported(space)
    if isinstance(space, gymnasium.spaces.Discrete):
        return Categorical(space)
    if not choices(space):
        return Gaussian(space)
    return Mixed(space) if len(bounds(space)[0]) else MultiCategorical(space)


def is_plain(head: Head) -> bool:
    """True if its most probable action is that of a head of this file with one kind of action; a
    subclass may differ only in how it learns and samples."""
    kind = type(head)
    return any(
        issubclass(kind, each)
        and kind.mode is each.mode
        and getattr(kind, "to_environment", None) is getattr(each, "to_environment", None)
        for each in (Categorical, MultiCategorical, Gaussian)
    )
