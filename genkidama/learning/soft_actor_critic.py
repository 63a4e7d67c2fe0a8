"""Actor and twin critics of SAC (Haarnoja et al. 2018), forward and backward, in NumPy.

The vector has the policy first, so that a child that only acts can have the policy alone. Behind it
are the critics and log α:

    policy.{2i}.weight (outputs, inputs), policy.{2i}.bias (outputs,)          the last: 2·columns
    critics.{2i}.weight (2, outputs, inputs), critics.{2i}.bias (2, outputs)   the last: 1
    temperature.log_alpha ()

With gSDE (`network.sde_steps`) the policy's last layer gives the means alone, and in front of it is
`log_deviation` (features, columns), from which log σ(s) follows as `exploration` says.

Both critics are one batched product a layer. All memory is made once for each size of a minibatch,
and little of it, so that it stays in the processor's cache: the target critics are computed in that
of the critics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama.config.experiment import Experiment
from genkidama.learning.actions import columns
from genkidama.learning.exploration import LEAST_VARIANCE
from genkidama.learning.perceptron import ACTIVATIONS, Entries, Perceptron, initialize, layout
from genkidama.learning.rollout import Transitions
from genkidama.protocol.vector import Signature, unflatten

Array = npt.NDArray[Any]

#: Bounds of log σ: beyond, the density of an action has no meaning in float32.
LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION = -20.0, 2.0

#: The initial log σ: tanh of a normal number of this deviation is nearly uniform in [−1, 1].
INITIAL_LOG_DEVIATION = math.log(0.87)

#: Added to the variance in a layer norm, as in torch.
_EPSILON = np.float32(1e-5)

#: The policy's parameters, by their beginnings.
_ACTS = ("policy", "log_deviation")

_HALF_LOG_2PI = np.float32(0.5 * math.log(2.0 * math.pi))
_LOG_4 = np.float32(2.0 * math.log(2.0))


class Drawn(NamedTuple):
    """Actions of a policy, and what the way back needs of them. All (columns, B) but `log_pi`."""

    #: a = tanh(m + σε).
    actions: Array
    #: log π(a|s) in the space of a, (B,).
    log_pi: Array
    #: σ·ε.
    spread: Array
    #: True where log σ is within its bounds.
    within: Array


def drawn(outputs: Array, noise: Array) -> Drawn:
    """The actions that standard normal noise ε (columns, B) makes of outputs (2·columns, B).

    log π(a) = Σ log N(u; m, σ) − log(1 − tanh²u), with u = m + σε and a = tanh u (Haarnoja et al.
    2018, eq. 26).
    """
    columns = len(noise)
    raw = outputs[columns:]
    log_deviation = raw.clip(LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION)
    spread = np.exp(log_deviation)
    spread *= noise
    u = outputs[:columns] + spread
    each = noise * noise
    each *= np.float32(-0.5)
    each -= log_deviation
    each -= log_slope(u)
    log_pi = each.sum(0)
    log_pi -= np.float32(columns) * _HALF_LOG_2PI
    return Drawn(np.tanh(u), log_pi, spread, log_deviation == raw)


def log_slope(u: Array) -> Array:
    """log(1 − tanh²u) = 2(log 2 − |u| − log(1 + e^−2|u|)), exact also where tanh u is 1."""
    size = np.abs(u)
    result: Array = np.exp(np.float32(-2.0) * size)
    np.log1p(result, out=result)
    result += size
    result *= np.float32(-2.0)
    result += _LOG_4
    return result


def dropout(
    rng: np.random.Generator, rate: float, shapes: Sequence[tuple[int, ...]]
) -> list[Array]:
    """Random factors of these shapes: 0 at this rate, to 1/65,536, and 1/(1 − rate) elsewhere."""
    least, factor = round(rate * 65_536), np.float32(1.0 / (1.0 - rate))
    return [
        (rng.integers(65_536, size=shape, dtype=np.uint16) >= least) * factor for shape in shapes
    ]


class Perceptrons:
    """k perceptrons of the same layers, forward and backward.

    A step is a column: so rows are long, also those of a single output. The inputs of each layer
    end with a row of ones, and [W b] is one matrix. Dropout is between it and a layer norm (Hiraoka
    et al. 2022, fig. 1).

    Args:
        parts: W (k, outputs, inputs) and b (k, outputs) of each layer in turns.
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
        self._matrices = [
            np.empty((*weight.shape[:2], weight.shape[2] + 1), np.float32)
            for weight in self._weights
        ]
        self._steps = 0
        self._factors: Sequence[Array] = ()

    def inputs(self, steps: int) -> Array:
        """The memory (inputs, steps) of the next `forward`, to be written to."""
        if steps != self._steps:
            self._make_room(steps)
        return self._inputs[0][0, :-1]

    def forward(
        self,
        factors: Sequence[Array] = (),
        others: Perceptrons | None = None,
        *,
        unchanged: bool = False,
    ) -> Array:
        """The results (k, outputs, steps) of what `inputs` has. The next call overwrites them.

        Args:
            factors: of each hidden layer's units, (k, width, steps), as `dropout` draws them; they
                count on the way back, too. None are all 1.
            others: the perceptrons whose numbers count, in this one's memory: what is in the cache
                stays there.
            unchanged: whether the numbers are those of the last call.
        """
        self._factors = factors
        if not unchanged:
            numbers = others or self
            for number, matrix in enumerate(self._matrices):
                matrix[..., :-1] = numbers._weights[number]
                matrix[..., -1] = numbers._biases[number]
        for number, matrix in enumerate(self._matrices):
            y = self._results[number]
            np.matmul(matrix, self._inputs[number], out=y)
            if number < len(self._matrices) - 1:
                if factors:
                    y *= factors[number]
                if self._normalize:
                    self._standardize(number)
                self._activation.apply(y)
        return y

    @property
    def features(self) -> Array:
        """The inputs of the last layer of the first perceptron at the last `forward`."""
        return self._inputs[-1][0, :-1]

    @property
    def widths(self) -> list[int]:
        """The units of each hidden layer."""
        return [weight.shape[1] for weight in self._weights[:-1]]

    def backward(self, d: Array) -> None:
        """Writes the gradient with respect to the parameters.

        Args:
            d: the loss' gradient at the results of the last n steps, (k, outputs, n). It does not
                depend on those before.
        """
        n = d.shape[2]
        for number in range(len(self._weights) - 1, -1, -1):
            x = self._inputs[number][..., -n:]
            np.matmul(d, x[:, :-1].transpose(0, 2, 1), out=self._weight_gradients[number])
            np.matmul(d, x[0, -1], out=self._bias_gradients[number])
            if number:
                d = self._below(d, number)

    def at_inputs(self, d: Array, first: int) -> Array:
        """The gradient at the `inputs` from row `first` on, (inputs − first, steps), in the place
        of `backward`. The argument is as there, for all steps."""
        for number in range(len(self._weights) - 1, 0, -1):
            d = self._below(d, number)
        below: Array = np.matmul(self._weights[0][..., first:].transpose(0, 2, 1), d).sum(0)
        return below

    def _below(self, d: Array, number: int) -> Array:
        """The gradient at the layer before, in front of its σ. It spends that layer's results."""
        n, weight = d.shape[2], self._weights[number].transpose(0, 2, 1)
        shape = len(weight), weight.shape[1], n
        result = self._gradients[number - 1][: math.prod(shape)].reshape(shape)
        if weight.shape[2] == 1:  # an outer product, for which matmul is slow
            np.einsum("kij,kjn->kin", weight, d, out=result)
        else:
            np.matmul(weight, d, out=result)
        self._activation.descend(result, self._results[number - 1][..., -n:])
        if self._normalize:
            self._through_norm(result, number - 1)
        if self._factors:
            result *= self._factors[number - 1][..., -n:]
        return result

    def _standardize(self, number: int) -> None:
        """z ← (z − mean z)/deviation, over a layer's units."""
        y, kept = self._results[number], self._standardized[number]
        share = self._shares[number]
        y -= np.matmul(share, y)
        np.multiply(y, y, out=kept)
        inverse = np.matmul(share, kept)
        inverse += _EPSILON
        np.sqrt(inverse, out=inverse)
        np.divide(np.float32(1.0), inverse, out=self._inverses[number])
        y *= self._inverses[number]
        kept[:] = y  # σ overwrites the layer's result

    def _through_norm(self, d: Array, number: int) -> None:
        """d ← (d − mean d − ẑ·mean(d·ẑ))/deviation."""
        n, share = d.shape[2], self._shares[number]
        kept = self._standardized[number][..., -n:]
        product = d * kept
        kept *= np.matmul(share, product)
        d -= np.matmul(share, d)
        d -= kept
        d *= self._inverses[number][..., -n:]

    def _make_room(self, steps: int) -> None:
        self._steps = steps
        k, last, _ = self._weights[-1].shape
        widths = [weight.shape[2] for weight in self._weights]
        self._inputs = [
            np.ones((k if number else 1, width + 1, steps), np.float32)
            for number, width in enumerate(widths)
        ]
        self._results = [x[:, :-1] for x in self._inputs[1:]]
        self._gradients = [np.empty(result.size, np.float32) for result in self._results]
        self._results.append(np.empty((k, last, steps), np.float32))
        if self._normalize:
            self._standardized = [np.empty_like(each) for each in self._results[:-1]]
            self._inverses = [np.empty((k, 1, steps), np.float32) for _ in self._standardized]
            self._shares = [np.full((1, width), 1.0 / width, np.float32) for width in widths[1:]]


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
        shape: tuple[int, ...] = (-1,),
    ) -> None:
        activation = experiment.network.activation
        policy = [entry for entry in entries if entry[0].startswith(_ACTS)]
        size = Signature.of(policy).size
        slope = None if gradient is None else gradient[:size]
        super().__init__(policy, activation, vector, slope, shape)
        signature = Signature.of(entries)
        self.parts = unflatten(vector[: signature.size], signature)
        self.critics: Perceptrons | None = None
        if len(policy) == len(entries):
            return
        slopes = None if gradient is None else unflatten(gradient, signature)

        def stack(name: str, normalize: bool) -> Perceptrons:
            """The layers of this name, of each twin or of one."""
            names = [each for each in self.parts if each.startswith(name)]
            own, theirs = (
                [array[each] if name == "critics" else array[each][None] for each in names]
                for array in (self.parts, slopes or self.parts)
            )
            return Perceptrons(own, activation, normalize, theirs if slopes else None)

        self._actor = stack("policy", False)
        self._at_deviation = None if slopes is None else slopes.get("log_deviation")
        self.critics = stack("critics", experiment.algorithm.layer_norm)
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
            ConfigurationError: observations are no numbers.
        """
        settings = experiment.network
        layout(observation_space, action_space, settings)  # refuses what is no Box
        width, numbers = math.prod(observation_space.shape or ()), columns(action_space)
        entries: list[tuple[str, tuple[int, ...]]] = []
        if settings.sde_steps:
            entries.append(("log_deviation", (settings.hidden[-1], numbers)))
        outputs = numbers if settings.sde_steps else 2 * numbers
        stacks = {"policy": (width, *settings.hidden, outputs)}
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
        outputs = self._act(observations)
        if self.critics is None:
            return outputs, np.full(len(outputs), np.nan, np.float32)
        x = self.critics.inputs(len(outputs))
        seen = _vectors(observations)
        width = seen.shape[1]
        x[:width] = seen.T
        np.tanh(outputs[:, : outputs.shape[1] // 2].T, out=x[width:])
        return outputs, self.critics.forward()[:, 0].min(0)

    __call__ = forward

    def learn(
        self,
        steps: Transitions,
        noise: Array,
        entropy: float,
        behind: SoftActorCritic,
        factors: Callable[[], Sequence[Array]] = tuple,
    ) -> dict[str, Array]:
        """Writes the whole gradient of

            mean of ½(Q₁ − y)² + ½(Q₂ − y)²                (the critics alone)
            + mean of α·log π(a_π|s) − min Q(s, a_π)       (the policy alone)
            − mean of log α·(log π(a_π|s) + H̄)             (log α alone)

        with y = r + γ(min Q⁻(s′, a′) − α·log π(a′|s′)) and a_π, a′ = tanh(m + σε): Haarnoja et al.
        2018, eq. 3, 5, 7, 9 and 18, with the smaller of two target critics (§4.2) and log α in the
        place of α.

        Args:
            steps: s, a, r, s′, and γ or 0 after a termination, of B steps.
            noise: ε of a′ and of a_π, (2, B, columns), standard normal.
            entropy: H̄, the policy's target.
            behind: the network over θ⁻.
            factors: those of `Perceptrons.forward`, new ones for each of Q⁻(s′, a′), Q(s, a) and
                Q(s, a_π).

        Returns:
            `targets` y (B,), `known` Q₁ and Q₂ of a (2, B), `own` those of a_π (2, B), and `log_pi`
            log π(a_π|s) (B,).
        """
        assert self.critics is not None
        _, count, columns = noise.shape
        before, after = _vectors(steps.observations), _vectors(steps.following)
        width = before.shape[1]
        alpha = math.exp(float(self.log_alpha))
        seen = self._actor.inputs(2 * count)
        seen[:, :count], seen[:, count:] = after.T, before.T
        outputs = self._actor.forward()[0]
        if self._log_deviation is not None:
            variances = np.exp(2.0 * self._log_deviation[0])
            squares = np.square(self._actor.features)
            variance = variances.T @ squares
            variance += np.float32(LEAST_VARIANCE)
            outputs = np.concatenate((outputs, np.float32(0.5) * np.log(variance)))
        new = drawn(outputs, noise.reshape(2 * count, columns).T)

        x = self.critics.inputs(count)
        x[:width], x[width:] = seen[:, :count], new.actions[:, :count]
        targets: Array = self.critics.forward(factors(), behind.critics)[:, 0].min(0)
        targets -= np.float32(alpha) * new.log_pi[:count]
        targets *= steps.discounts
        targets += steps.rewards

        x[:width], x[width:] = seen[:, count:], steps.actions.T
        known = self.critics.forward(factors())[:, 0].copy()
        share = np.float32(1.0 / count)
        slopes = known - targets
        slopes *= share
        self.critics.backward(slopes[:, None])

        actions, log_pi = new.actions[:, count:], new.log_pi[count:]
        x[width:] = actions
        own = self.critics.forward(factors(), unchanged=True)[:, 0].copy()
        np.less_equal(own[0], own[1], out=slopes[0])
        np.subtract(np.float32(1.0), slopes[0], out=slopes[1])
        slopes *= -share
        at_actions = self.critics.at_inputs(slopes[:, None], width)
        # With u = m + σε: ∂log π/∂u = 2a through tanh alone, and ∂log π/∂log σ = −1 beside it.
        at_outputs = np.empty((1, 2 * columns, count), np.float32)
        at_u, at_log_deviation = at_outputs[0, :columns], at_outputs[0, columns:]
        alpha_share = np.float32(alpha) * share
        np.multiply(actions, actions, out=at_u)
        np.subtract(np.float32(1.0), at_u, out=at_u)
        at_u *= at_actions
        at_u += (np.float32(2.0) * alpha_share) * actions
        np.multiply(at_u, new.spread[:, count:], out=at_log_deviation)
        at_log_deviation -= alpha_share
        at_log_deviation *= new.within[:, count:]
        if self._log_deviation is not None:
            at_log_deviation /= variance[:, count:]
            assert self._at_deviation is not None
            np.matmul(squares[:, count:], at_log_deviation.T, out=self._at_deviation)
            self._at_deviation *= variances
            at_outputs = at_outputs[:, :columns]
        self._actor.backward(at_outputs)
        assert self._at_log_alpha is not None
        self._at_log_alpha[...] = -(float(log_pi.sum()) / count + entropy)
        return {"targets": targets, "known": known, "own": own, "log_pi": log_pi}


def _vectors(observations: Array) -> Array:
    """Observations (B, …) as (B, numbers)."""
    return observations.reshape(len(observations), -1) if observations.ndim > 2 else observations


def begin_at(parts: dict[str, Array], value: float) -> None:
    """Adds a value to what the critics of these parts give, by the bias of their last layer."""
    last = [name for name in parts if name.startswith("critics") and name.endswith("bias")][-1]
    parts[last] += np.float32(value)


def initialize_soft(
    parts: dict[str, Array], experiment: Experiment, rng: np.random.Generator
) -> None:
    """Draws the initial numbers of a network of `SoftActorCritic.layout`, which are written to."""
    policy = [(name, part) for name, part in parts.items() if name.startswith(_ACTS)]
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
        begin_at(parts, experiment.algorithm.initial_value)
    (_, weight), (_, bias) = policy[-2:]
    if experiment.network.initialization != "orthogonal":  # whose gain is as small
        weight *= 0.01
    bias[:] = 0.0
    if "log_deviation" not in parts:
        bias[len(bias) // 2 :] = INITIAL_LOG_DEVIATION
