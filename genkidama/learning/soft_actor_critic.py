"""Actor and twin critics of SAC (Haarnoja et al. 2018), forward and backward, in NumPy.

The vector has the policy first, so that a child that only acts can have the policy alone. Behind it
are the critics and log α:

    policy.{2i}.weight (outputs, inputs), policy.{2i}.bias (outputs,)          the last: 2·columns
    critics.{2i}.weight (2, outputs, inputs), critics.{2i}.bias (2, outputs)   the last: 1
    temperature.log_alpha ()

Both critics are one batched product a layer, and the observed actions and those of the policy are
two halves of one batch. All memory is made once for each size of a minibatch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama.config.experiment import Experiment
from genkidama.learning.actions import columns
from genkidama.learning.perceptron import ACTIVATIONS, Entries, Perceptron, initialize, layout
from genkidama.protocol.vector import Signature, unflatten

Array = npt.NDArray[Any]

#: Bounds of log σ: beyond, the density of an action has no meaning in float32.
LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION = -20.0, 2.0

#: The initial log σ: tanh of a normal number of this deviation is nearly uniform in [−1, 1].
INITIAL_LOG_DEVIATION = math.log(0.87)

#: Added to the variance in a layer norm, as in torch.
_EPSILON = np.float32(1e-5)

_HALF_LOG_2PI = np.float32(0.5 * math.log(2.0 * math.pi))
_LOG_4 = np.float32(2.0 * math.log(2.0))


class Drawn(NamedTuple):
    """Actions of a policy, and what the way back needs of them. All (B, columns) but `log_pi`."""

    #: a = tanh(m + σε).
    actions: Array
    #: log π(a|s) in the space of a, (B,).
    log_pi: Array
    #: σ·ε.
    spread: Array
    #: True where log σ is within its bounds.
    within: Array


def drawn(outputs: Array, noise: Array) -> Drawn:
    """The actions that standard normal noise ε (B, columns) makes of outputs (B, 2·columns).

    log π(a) = Σ log N(u; m, σ) − log(1 − tanh²u), with u = m + σε and a = tanh u (Haarnoja et al.
    2018, eq. 26), where log(1 − tanh²u) = 2(log 2 − u − log(1 + e^−2u)).
    """
    width = noise.shape[1]
    raw = outputs[:, width:]
    log_deviation = raw.clip(LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION)
    spread = np.exp(log_deviation)
    spread *= noise
    u = outputs[:, :width] + spread
    each = noise * noise
    each *= np.float32(-0.5)
    each -= log_deviation
    each -= _HALF_LOG_2PI
    each -= log_slope(u)
    return Drawn(np.tanh(u), each.sum(1), spread, log_deviation == raw)


def log_slope(u: Array) -> Array:
    """log(1 − tanh²u), exact also where tanh u is 1."""
    size = np.abs(u)
    tail = np.log1p(np.exp(np.float32(-2.0) * size))
    result: Array = _LOG_4 - np.float32(2.0) * (size + tail)
    return result


class TwinCritics:
    """Two perceptrons Q₁ and Q₂ of the same layers, from (s, a) to a number.

    Args:
        parts: W (2, outputs, inputs) and b (2, outputs) of each layer in turns.
        activation: σ, behind each layer but the last.
        normalize: whether a layer norm without parameters is in front of each σ (Ba et al. 2016).
        gradients: memory for the gradients of the parts; without it there is no way back.
    """

    def __init__(
        self,
        parts: Sequence[Array],
        activation: str,
        normalize: bool,
        gradients: Sequence[Array] | None = None,
    ) -> None:
        self._weights, self._biases = parts[::2], parts[1::2]
        self._activation = ACTIVATIONS[activation]
        self._normalize = normalize
        if gradients is not None:
            self._weight_gradients, self._bias_gradients = gradients[::2], gradients[1::2]
        self._rows = 0

    def inputs(self, rows: int) -> Array:
        """The memory (rows, observation + columns) of the next `forward`, to be written to."""
        if rows != self._rows:
            self._make_room(rows)
        return self._x

    def forward(self) -> Array:
        """Q₁ and Q₂, (2, rows), of what `inputs` has. The next call overwrites them."""
        x: Array = self._x
        last = len(self._weights) - 1
        for number, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            y = self._results[number]
            np.matmul(x, weight.transpose(0, 2, 1), out=y)
            y += bias[:, None]
            if number < last:
                if self._normalize:
                    self._standardize(number)
                self._activation.apply(y)
            x = y
        return x[..., 0]

    def backward(self, at_values: Array, learned: int) -> Array:
        """Writes the gradient with respect to the parameters of the first `learned` rows.

        Args:
            at_values: the loss' gradient at the result of `forward`, (2, rows).

        Returns:
            That at the other rows of `inputs`, (rows − learned, observation + columns).
        """
        d: Array = at_values[..., None]
        for number in range(len(self._weights) - 1, -1, -1):
            weight = self._weights[number]
            if number < len(self._weights) - 1:
                self._activation.descend(d, self._results[number])
                if self._normalize:
                    self._through_norm(d, number)
            x = self._x[None] if number == 0 else self._results[number - 1]
            part = d[:, :learned]
            np.matmul(part.transpose(0, 2, 1), x[:, :learned], out=self._weight_gradients[number])
            np.matmul(self._ones[:, :learned], part, out=self._bias_gradients[number][:, None])
            if number == 0:
                below: Array = np.matmul(d[:, learned:], weight).sum(0)
                return below
            at_x = self._gradients[number - 1]
            product = np.multiply if weight.shape[1] == 1 else np.matmul
            product(d, weight, out=at_x)
            d = at_x
        raise AssertionError("there is a layer")

    def _standardize(self, number: int) -> None:
        """z ← (z − mean z)/deviation, over a layer's units."""
        y, kept = self._results[number], self._standardized[number]
        share = self._shares[number]
        y -= np.matmul(y, share)
        np.multiply(y, y, out=kept)
        inverse = np.matmul(kept, share)
        inverse += _EPSILON
        np.sqrt(inverse, out=inverse)
        np.divide(np.float32(1.0), inverse, out=self._inverses[number])
        y *= self._inverses[number]
        kept[:] = y  # σ overwrites the layer's result

    def _through_norm(self, d: Array, number: int) -> None:
        """d ← (d − mean d − ẑ·mean(d·ẑ))/deviation."""
        kept, share = self._standardized[number], self._shares[number]
        product = d * kept
        kept *= np.matmul(product, share)
        d -= np.matmul(d, share)
        d -= kept
        d *= self._inverses[number]

    def _make_room(self, rows: int) -> None:
        self._rows = rows
        widths = [weight.shape[1] for weight in self._weights]
        self._x = np.empty((rows, self._weights[0].shape[2]), np.float32)
        self._results = [np.empty((2, rows, width), np.float32) for width in widths]
        self._gradients = [np.empty_like(result) for result in self._results[:-1]]
        self._ones = np.ones((1, rows), np.float32)
        if self._normalize:
            self._standardized = [np.empty_like(result) for result in self._results[:-1]]
            self._inverses = [np.empty((2, rows, 1), np.float32) for _ in widths[:-1]]
            self._shares = [np.full((width, 1), 1.0 / width, np.float32) for width in widths[:-1]]


class SoftActorCritic(Perceptron):
    """The network of SAC over flat memory; arguments as for `genkidama.learning.model.Model.twin`.

    Its outputs are means and log σ of u, where tanh u is the action. Its value of an observation is
    the smaller Q of the policy's mode, or NaN where it is the policy alone.
    """

    #: The same of tensors.
    tensors = "soft_networks:SoftNetwork"

    def __init__(
        self,
        entries: Entries,
        experiment: Experiment,
        vector: Array,
        gradient: Array | None = None,
    ) -> None:
        activation = experiment.network.activation
        policy = [entry for entry in entries if entry[0].startswith("policy")]
        size = Signature.of(policy).size
        super().__init__(policy, activation, vector, None if gradient is None else gradient[:size])
        signature = Signature.of(entries)
        self.parts = unflatten(vector[: signature.size], signature)
        self.critics: TwinCritics | None = None
        if len(policy) == len(entries):
            return
        slopes = None if gradient is None else unflatten(gradient, signature)
        names = [name for name in self.parts if name.startswith("critics")]
        self.critics = TwinCritics(
            [self.parts[name] for name in names],
            activation,
            experiment.algorithm.layer_norm,
            None if slopes is None else [slopes[name] for name in names],
        )
        self.log_alpha = self.parts["temperature.log_alpha"]
        self._at_log_alpha = None if slopes is None else slopes["temperature.log_alpha"]

    @staticmethod
    def layout(
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        experiment: Experiment,
        acts_only: bool,
    ) -> Entries:
        """The parameters, as the module says; those of the policy alone if it `acts_only`.

        Raises:
            ConfigurationError: observations are no vectors.
        """
        settings = experiment.network
        layout(observation_space, action_space, settings)  # refuses what is no vector
        width, numbers = (observation_space.shape or ())[0], columns(action_space)
        entries: list[tuple[str, tuple[int, ...]]] = []
        stacks = {"policy": (width, *settings.hidden, 2 * numbers)}
        if not acts_only:
            stacks["critics"] = (width + numbers, *settings.hidden, 1)
        for stack, sizes in stacks.items():
            twins = (2,) if stack == "critics" else ()
            for number, (inputs, outputs) in enumerate(pairwise(sizes)):
                layer = f"{stack}.{2 * number}"
                entries.append((f"{layer}.weight", (*twins, outputs, inputs)))
                entries.append((f"{layer}.bias", (*twins, outputs)))
        return entries if acts_only else [*entries, ("temperature.log_alpha", ())]

    def initialize(self, experiment: Experiment, rng: np.random.Generator) -> None:
        """Draws the initial numbers as `network.initialization` says; α is 1."""
        initialize_soft(self.parts, experiment, rng)

    def forward(self, observations: Array, *starts: Array) -> tuple[Array, Array]:
        """As `Perceptron.forward`."""
        outputs = self._policy.forward(observations)
        if self.critics is None:
            return outputs, np.full(len(outputs), np.nan, np.float32)
        x = self.critics.inputs(len(outputs))
        width = observations.shape[1]
        x[:, :width] = observations
        np.tanh(outputs[:, : outputs.shape[1] // 2], out=x[:, width:])
        return outputs, self.critics.forward().min(0)

    __call__ = forward

    def policy(self, observations: Array) -> Array:
        """The outputs alone, (B, 2·columns). The next call overwrites them."""
        return self._policy.forward(observations)

    def target(
        self,
        following: Array,
        rewards: Array,
        discounts: Array,
        noise: Array,
        behind: SoftActorCritic,
    ) -> Array:
        """y = r + γ(min Q⁻(s′, a′) − α·log π(a′|s′)), float32 (B,), with a′ of the policy.

        Haarnoja et al. 2018, eq. 3 and 7, with the smaller of two target critics (§4.2).

        Args:
            following: s′, (B, observation).
            rewards, discounts: r, and γ or 0 after a termination, (B,).
            noise: standard normal, (B, columns).
            behind: the network over θ⁻.
        """
        assert behind.critics is not None
        new = drawn(self.policy(following), noise)
        x = behind.critics.inputs(len(following))
        width = following.shape[1]
        x[:, :width] = following
        x[:, width:] = new.actions
        soft: Array = behind.critics.forward().min(0)
        soft -= math.exp(float(self.log_alpha)) * new.log_pi
        soft *= discounts
        soft += rewards
        return soft

    def learn(
        self, observations: Array, actions: Array, targets: Array, noise: Array, entropy: float
    ) -> dict[str, Array]:
        """Writes the whole gradient of

            mean of ½(Q₁ − y)² + ½(Q₂ − y)²                (the critics alone)
            + mean of α·log π(a_π|s) − min Q(s, a_π)       (the policy alone)
            − mean of log α·(log π(a_π|s) + H̄)             (log α alone)

        with a_π = tanh(m + σε): Haarnoja et al. 2018, eq. 5, 9 and 18, the last with log α in the
        place of α.

        Args:
            observations, actions: s (B, observation) and a (B, columns).
            targets: y (B,).
            noise: ε (B, columns), standard normal.
            entropy: H̄, the policy's target.

        Returns:
            Q₁ and Q₂ of a (2, B), those of a_π (2, B), and log π(a_π|s) (B,).
        """
        assert self.critics is not None
        count, width = observations.shape
        new = drawn(self.policy(observations), noise)
        x = self.critics.inputs(2 * count)
        x[:count, :width] = observations
        x[count:, :width] = observations
        x[:count, width:] = actions
        x[count:, width:] = new.actions
        values = self.critics.forward().copy()
        known, own = values[:, :count], values[:, count:]
        share = np.float32(1.0 / count)
        slopes = np.empty_like(values)
        np.subtract(known, targets, out=slopes[:, :count])
        slopes[:, :count] *= share
        first = own[0] <= own[1]
        slopes[0, count:] = first * -share
        slopes[1, count:] = ~first * -share
        at_actions = self.critics.backward(slopes, count)[:, width:]
        alpha = np.float32(math.exp(float(self.log_alpha)) * float(share))
        # With u = m + σε: ∂log π/∂u = 2a through tanh alone, and ∂log π/∂log σ = −1 beside it.
        at_u = 1.0 - new.actions * new.actions
        at_u *= at_actions
        at_u += (np.float32(2.0) * alpha) * new.actions
        at_outputs = np.empty((count, 2 * noise.shape[1]), np.float32)
        at_outputs[:, : noise.shape[1]] = at_u
        at_u *= new.spread
        at_u -= alpha
        at_u *= new.within
        at_outputs[:, noise.shape[1] :] = at_u
        self._policy.backward(at_outputs, False)
        assert self._at_log_alpha is not None
        self._at_log_alpha[...] = -(float(new.log_pi.mean()) + entropy)
        return {"known": known, "own": own, "log_pi": new.log_pi}


def initialize_soft(
    parts: dict[str, Array], experiment: Experiment, rng: np.random.Generator
) -> None:
    """Draws the initial numbers of a network of `SoftActorCritic.layout`, which are written to."""
    policy = [(name, part) for name, part in parts.items() if name.startswith("policy")]
    if "temperature.log_alpha" not in parts:
        value = [("value.weight", np.empty((1, 1), np.float32))]
        initialize([*policy, *value], experiment.network, rng)
    else:
        for twin in range(2):
            value = [
                (name.replace("critics", "value"), part[twin])
                for name, part in parts.items()
                if name.startswith("critics")
            ]
            initialize([*policy, *value], experiment.network, rng)
        parts["temperature.log_alpha"][...] = 0.0
    (_, weight), (_, bias) = policy[-2:]
    if experiment.network.initialization != "orthogonal":  # whose gain is as small
        weight *= 0.01
    bias[: len(bias) // 2] = 0.0
    bias[len(bias) // 2 :] = INITIAL_LOG_DEVIATION
