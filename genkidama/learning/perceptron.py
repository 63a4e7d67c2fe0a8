"""Perceptrons that act and value, forward and backward, in NumPy: the network `"actor-critic"`.

For layers of some 64 units torch spends more time on its bookkeeping, and on its tanh, than on the
products; decision 27 has the figures. The tests compare each gradient with that of autograd.

A layer is y = σ(xWᵀ + b). On the way back d is the loss' gradient at y: d ← d ⊙ σ′, ∂W = dᵀx,
∂b = Σd, and dW is the gradient at x. σ′ follows from y.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import prod, sqrt
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama.config.sections import Network as NetworkSettings
from genkidama.errors import ConfigurationError
from genkidama.learning.actions import INVALID, bounds
from genkidama.learning.exploration import LEAST_VARIANCE, Exploration
from genkidama.learning.heads import head_for
from genkidama.learning.recurrence import GRU, PARAMETERS, RecurrentStack, parameters
from genkidama.protocol.vector import Signature, unflatten

Array = npt.NDArray[Any]

#: Names and shapes of a network's parameters, in their order.
Entries = Sequence[tuple[str, tuple[int, ...]]]

#: Rows that `evaluate` computes at once: they stay in the cache.
_ROWS = 512


class Activation(NamedTuple):
    """An activation function σ."""

    #: x ← σ(x).
    apply: Callable[[Array], Any]
    #: d ← d ⊙ σ′, given y = σ(x), which is spent afterwards.
    descend: Callable[[Array, Array], Any]


def _through_tanh(d: Array, y: Array) -> None:
    np.multiply(y, y, out=y)
    np.subtract(1.0, y, out=y)
    d *= y


def _through_relu(d: Array, y: Array) -> None:
    d *= y > 0.0


#: By their names in `forms.ARRAY_ACTIVATIONS`. The others are torch's alone.
ACTIVATIONS = {
    "tanh": Activation(lambda x: np.tanh(x, out=x), _through_tanh),
    "relu": Activation(lambda x: np.maximum(x, 0.0, out=x), _through_relu),
}


class Layer(NamedTuple):
    """A linear layer: views of the network's numbers and of its gradient."""

    #: W (outputs, inputs) and b (outputs,).
    weight: Array
    bias: Array
    #: ∂W and ∂b.
    weight_gradient: Array
    bias_gradient: Array


def policy_outputs(action_space: gymnasium.Space[Any]) -> tuple[int, int]:
    """The number of outputs of a policy's last layer, and of logarithms of deviations behind them,
    which do not depend on the state. A head takes both."""
    deviations = len(bounds(action_space)[0])
    return head_for(action_space).outputs - deviations, deviations


def layout(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    settings: NetworkSettings,
) -> Entries:
    """The parameters of the network `"actor-critic"`, named as torch names those of its modules.

    Raises:
        ConfigurationError: observations are no numbers.
    """
    if not isinstance(observation_space, gymnasium.spaces.Box):
        raise ConfigurationError(
            "network.name = 'actor-critic': takes numbers, but the environment's observation "
            f"space is {observation_space}; name a network of your own as 'module:Class'"
        )
    outputs, deviations = policy_outputs(action_space)
    widths = (prod(observation_space.shape), *settings.hidden)
    last = settings.memory or widths[-1]
    stacks: dict[str, tuple[int, ...]] = (
        {"body": widths, "policy": (last, outputs), "value": (last, 1)}
        if settings.shared or settings.memory
        else {"policy": (*widths, outputs), "value": (*widths, 1)}
    )
    entries: list[tuple[str, tuple[int, ...]]] = []
    if deviations:
        entries.append(("log_deviation", deviation_shape(settings, last, deviations)))
    for stack, sizes in stacks.items():
        if settings.memory and stack == "policy":
            entries += parameters(widths[-1], settings.memory)
        for number, (inputs, width) in enumerate(pairwise(sizes)):
            # An activation stands between two layers.
            layer = f"{stack}.{2 * number}"
            entries += [(f"{layer}.weight", (width, inputs)), (f"{layer}.bias", (width,))]
    return entries


def deviation_shape(settings: NetworkSettings, features: int, columns: int) -> tuple[int, ...]:
    """The shape of the parameter `log_deviation`: one for each column of an action or, with gSDE,
    for each of the policy's last `features` and each column."""
    return (features, columns) if settings.sde_steps else (columns,)


def initialize(
    parts: Iterable[tuple[str, Array]], settings: NetworkSettings, rng: np.random.Generator
) -> None:
    """Draws the initial numbers of a network as `network.initialization` says.

    Args:
        parts: name and memory of each parameter of `layout`, or of a network whose layers are named
            like that: each weight (outputs, …) is followed by its bias. They are written to.
    """
    parts = list(parts)
    weights = [name for name, _ in parts if _kind(name) == "weight"]
    # The last layers of policy and value, and what the orthogonal matrices are multiplied by.
    gains = {[name for name in weights if name.startswith("policy")][-1]: 0.01}
    gains[[name for name in weights if name.startswith("value")][-1]] = 1.0
    bound = 0.0
    for name, part in parts:
        kind = _kind(name)
        if kind == "weight":
            rows, inputs = len(part), prod(part.shape[1:])
            bound = 1.0 / sqrt(inputs)
            if settings.initialization == "normal":
                part[...] = rng.normal(0.0, settings.initial_deviation, part.shape)
            elif settings.initialization == "orthogonal":
                drawn = rng.normal(size=(max(rows, inputs), min(rows, inputs)))
                q, r = np.linalg.qr(drawn)
                q *= np.sign(np.diag(r))
                q = q if rows > inputs else q.T
                usual = 1.0 if name in PARAMETERS else sqrt(2.0)
                part[...] = gains.get(name, usual) * q.reshape(part.shape)
        if kind in ("weight", "bias") and settings.initialization == "uniform":
            part[...] = rng.uniform(-bound, bound, part.shape)
        elif name == "log_deviation":
            usual = -2.0 if settings.sde_steps else 0.0
            part[...] = usual if settings.log_deviation == "auto" else settings.log_deviation
        elif kind != "weight":
            part[...] = 0.0


def _kind(name: str) -> str:
    """`"weight"` of `"body.0.weight"` and of `"memory.weight_ih_l0"`."""
    return name.rpartition(".")[2].partition("_")[0]


class Perceptron:
    """Policy and value, by way of a common trunk or without one, over flat memory. The trunk may
    end with a GRU; then an observation stands behind the state, as `recurrence` has it.

    Args:
        entries: as `layout` gives them.
        activation: σ, behind each layer but the last of policy and value.
        vector: the parameters' numbers, float32, one entry after the other. It is never copied.
        gradient: theirs, alike; without it there is no way back.
        shape: of an observation, whose numbers become one vector; a vector if absent.
    """

    #: True if a network takes images of uint8 as they are.
    takes_bytes = False

    def __init__(
        self,
        entries: Entries,
        activation: str,
        vector: Array,
        gradient: Array | None = None,
        shape: tuple[int, ...] = (-1,),
    ) -> None:
        self._shape = shape
        signature = Signature.of(entries)
        self.parts = unflatten(vector[: signature.size], signature)
        slopes = self.parts if gradient is None else unflatten(gradient, signature)
        layers: dict[str, list[Layer]] = {"body": [], "policy": [], "value": []}
        for name in self.parts:
            if name.endswith("weight"):
                bias = name.replace("weight", "bias")
                layers[name.partition(".")[0]].append(
                    Layer(self.parts[name], self.parts[bias], slopes[name], slopes[bias])
                )
        self._activation = ACTIVATIONS[activation]
        #: The layers before policy and value: a `_Stack`, or a `RecurrentStack` around it.
        self._trunk: Any = _Stack(layers["body"], self._activation, len(layers["body"]))
        self._recurrent = PARAMETERS[0] in self.parts
        if self._recurrent:
            ours = ([views[name] for name in PARAMETERS] for views in (self.parts, slopes))
            self._trunk = RecurrentStack(self._trunk, GRU(*ours))
        #: The trunk as `_act` uses it.
        self._hidden: Callable[[Array], Array] = self._trunk.forward
        self._policy = _Stack(layers["policy"], self._activation, len(layers["policy"]) - 1)
        self._value = _Stack(layers["value"], self._activation, len(layers["value"]) - 1)
        name, self._log_deviation = "log_deviation", None
        if name in self.parts:
            self._log_deviation = self.parts[name], slopes[name]

    @property
    def state(self) -> Array:
        """With a GRU: its states after the rows that were acted on last, (m, H)."""
        state: Array = self._trunk.state
        return state

    @property
    def outputs(self) -> int:
        """The number of the policy's outputs."""
        outputs = len(self._policy.layers[-1].bias)
        return (
            outputs if self._log_deviation is None else outputs + self._log_deviation[0].shape[-1]
        )

    def forward(self, observations: Array, *starts: Array) -> tuple[Array, Array]:
        """Outputs of the policy (m, outputs), and values (m,).

        Args:
            observations: float32 (m, inputs), or of their shape. `backward` needs them again.
            starts: with a GRU: bool (m,), true where a sequence begins. Without it each row is by
                itself, and there is no way back.
        """
        if observations.ndim > 2:
            observations = observations.reshape(len(observations), -1)
        hidden = self._trunk.forward(observations, *starts)
        outputs = self._policy.forward(hidden)
        values = self._value.forward(hidden)[:, 0]
        return self._with_deviation(outputs), values

    __call__ = forward

    def acting(self, exploration: Exploration | None = None) -> Callable[[Array], Array]:
        """A function from one observation (as the space has it) to the policy's outputs (outputs,).

        It is good for the weights as they are now, and asked for anew before each batch of steps.
        With an exploration, each call sets its noise.
        """
        below = [] if self._recurrent else self._trunk.layers
        # Each layer is one matrix with the bias as its last column, and each input ends with a 1.
        layers = (*below, *self._policy.layers)
        matrices = [np.column_stack((layer.weight, layer.bias)) for layer in layers]
        inputs = [np.ones(matrix.shape[1], np.float32) for matrix in matrices]
        results = [following[:-1] for following in inputs[1:]]
        steps = list(zip(matrices, inputs, results, strict=False))
        first, last = inputs[0][:-1].reshape(self._shape), inputs[-1]
        readout = matrices[-1]
        activate, dot = self._activation.apply, np.dot
        deviation = None if self._log_deviation is None else self._log_deviation[0]
        features = last[None, :-1]
        variances = None if deviation is None or deviation.ndim < 2 else np.exp(2.0 * deviation)
        if exploration is not None:
            assert deviation is not None
            exploration.scale(deviation)

        def outputs(observation: Array) -> Array:
            first[:] = observation
            for matrix, x, result in steps:
                dot(matrix, x, result)
                activate(result)
            policy: Array = dot(readout, last)
            if deviation is None:
                return policy
            if variances is None:
                return np.concatenate((policy, deviation))
            if exploration is not None:
                exploration.explore(features)
            variance = dot(np.square(features[0]), variances) + LEAST_VARIANCE
            return np.concatenate((policy, 0.5 * np.log(variance)))

        if self._recurrent:
            state = self._trunk.alone()
            return lambda row: outputs(state(row)[0])
        return outputs

    def acting_together(self, exploration: Exploration | None = None) -> Callable[[Array], Array]:
        """As `acting`, from observations (m, ...) to outputs (m, outputs), which the next call may
        overwrite."""
        if self._recurrent:
            self._hidden = self._trunk.acting()
        if exploration is None:
            return self._act
        assert self._log_deviation is not None
        exploration.scale(self._log_deviation[0])

        def outputs(observations: Array) -> Array:
            result = self._act(observations)
            exploration.explore(self._policy.features)
            return result

        return outputs

    def _act(self, observations: Array) -> Array:
        if observations.ndim > 2:
            observations = observations.reshape(len(observations), -1)
        return self._with_deviation(self._policy.forward(self._hidden(observations)))

    def evaluate(self, observations: Array) -> tuple[Array, Array]:
        """As `forward`, in new arrays, for any number of observations. There is no way back."""
        parts = [
            [part.copy() for part in self.forward(observations[start : start + _ROWS])]
            for start in range(0, len(observations), _ROWS)
        ]
        outputs, values = zip(*parts, strict=True)
        return np.concatenate(outputs), np.concatenate(values)

    def backward(self, at_outputs: Array, at_values: Array | None) -> None:
        """Writes the whole gradient, once for each `forward`: the way back spends its results.

        Args:
            at_outputs: of the loss, at the last `forward`'s outputs (m, outputs). It is changed.
            at_values: at its values (m,); None if the loss does not depend on them.
        """
        if self._log_deviation is not None:
            log_deviation, slope = self._log_deviation
            columns = log_deviation.shape[-1]
            at_deviation = at_outputs[:, -columns:]
            if log_deviation.ndim == 1:
                at_deviation.sum(0, out=slope)
            else:
                np.matmul(self._squares.T, at_deviation / self._variance, out=slope)
                slope *= np.exp(2.0 * log_deviation)
            at_outputs = np.ascontiguousarray(at_outputs[:, :-columns])
        shared = bool(self._trunk.layers)
        below = self._policy.backward(at_outputs, shared)
        if at_values is None:
            self._value.forget()
        else:
            beside = self._value.backward(at_values[:, None], shared)
            if shared:
                below += beside
        if shared:
            self._trunk.backward(below, False)

    def _with_deviation(self, means: Array) -> Array:
        if self._log_deviation is None:
            return means
        log_deviation = self._log_deviation[0]
        if log_deviation.ndim == 1:
            shape = len(means), len(log_deviation)
            return np.column_stack((means, np.broadcast_to(log_deviation, shape)))
        self._squares = np.square(self._policy.features)
        self._variance = self._squares @ np.exp(2.0 * log_deviation) + np.float32(LEAST_VARIANCE)
        return np.column_stack((means, 0.5 * np.log(self._variance)))


class MaskedPerceptron(Perceptron):
    """Perceptrons whose observations end with the mask of their outputs, as `actions` has it;
    arguments as for `Perceptron`."""

    def forward(self, observations: Array, *starts: Array) -> tuple[Array, Array]:
        k = self.outputs
        outputs, values = super().forward(observations[:, :-k], *starts)
        self._valid = observations[:, -k:] > 0.0
        return np.where(self._valid, outputs, INVALID), values

    __call__ = forward

    def acting(self, exploration: Exploration | None = None) -> Callable[[Array], Array]:
        k, unmasked = self.outputs, super().acting()

        def outputs(observation: Array) -> Array:
            return np.where(observation[-k:] > 0.0, unmasked(observation[:-k]), INVALID)

        return outputs

    def _act(self, observations: Array) -> Array:
        k = self.outputs
        outputs = super()._act(observations[:, :-k])
        return np.where(observations[:, -k:] > 0.0, outputs, INVALID)

    def backward(self, at_outputs: Array, at_values: Array | None) -> None:
        super().backward(at_outputs * self._valid, at_values)


class _Stack:
    """Layers, none or more, with the memory that their results and gradients take. So many of them
    are `activated`: σ is behind them."""

    def __init__(self, layers: Sequence[Layer], activation: Activation, activated: int) -> None:
        self.layers = list(layers)
        self._activation = activation
        self.activate = activation.apply
        self._activated = activated
        self._room = 0
        self._inputs: list[Array] = []

    @property
    def features(self) -> Array:
        """The inputs of the last layer at the last `forward`, (m, width)."""
        return self._inputs[-2]

    def forward(self, x: Array) -> Array:
        m = len(x)
        if m > self._room:
            self._make_room(m)
        self._inputs = [x]
        for number, layer in enumerate(self.layers):
            y = self._results[number][:m]
            np.matmul(x, layer.weight.T, out=y)
            y += layer.bias
            if number < self._activated:
                self._activation.apply(y)
            self._inputs.append(y)
            x = y
        return x

    def backward(self, d: Array, below: bool) -> Array:
        """Writes the layers' gradients, given that at the result of `forward`, which is changed if
        σ is behind the last layer.

        Returns that at the argument of `forward`, if the gradient `below` is wanted.
        """
        m = len(d)
        for number in range(len(self.layers) - 1, -1, -1):
            layer, x = self.layers[number], self._inputs[number]
            if number < self._activated:
                self._activation.descend(d, self._inputs[number + 1])
            np.matmul(d.T, x, out=layer.weight_gradient)
            np.matmul(self._ones[:m], d, out=layer.bias_gradient)  # faster than sums over columns
            if number or below:
                at_x = self._gradients[number][:m]
                # One output makes an outer product, which is faster as a plain one.
                product = np.multiply if len(layer.weight) == 1 else np.matmul
                product(d, layer.weight, out=at_x)
                d = at_x
        return d

    def forget(self) -> None:
        """The gradient of what nothing depends on."""
        for layer in self.layers:
            layer.weight_gradient[:] = 0.0
            layer.bias_gradient[:] = 0.0

    def _make_room(self, rows: int) -> None:
        self._room = rows
        widths = [layer.weight.shape for layer in self.layers]
        self._results = [np.empty((rows, outputs), np.float32) for outputs, _ in widths]
        self._ones = np.ones(rows, np.float32)
        self._gradients = [np.empty((rows, inputs), np.float32) for _, inputs in widths]
