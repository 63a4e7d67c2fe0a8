"""Gradients of our networks, heads and losses, written by hand in NumPy.

For layers of some 64 units torch spends more time on its bookkeeping, and on its tanh, than on the
products. The same gradients take half of the time of `loss.backward()` here; decision 20 has the
figures. The methods `losses` are the definition, and the tests compare the two.

A layer is y = σ(xWᵀ + b). On the way back d is the loss' gradient at y: d ← d ⊙ σ′, ∂W = dᵀx,
∂b = Σd, and dW is the gradient at x. σ′ follows from y.

Of a head with outputs o, with z = (a − m)/σ:

    head          outputs o       ∂log π(a)/∂o        ∂H/∂o
    categorical   logits          1_a − π             −π(log π + H)
    gaussian      means m         z/σ                 0
                  log σ           z² − 1              1

Of a loss over n steps, with s = 1/n where `algorithm.reduction` is "mean" and 1 where it is "sum":

    loss          ∂/∂log π_t                          ∂/∂V_t                  ∂/∂H_t
    A3C           −s·A_t                              2·s·c_v·(V_t − R_t)     −s·c_e
    PPO           −s·A_t·ρ_t, or 0 where the          2·s·c_v·(V_t − R_t)     −s·c_e
                  clipped ratio is the smaller term

    loss          ∂/∂Q(s, a)
    DQN           s·w·δ, with δ cut to ±κ
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from genkidama.config.sections import Algorithm

__all__ = [
    "ACTIVATIONS",
    "Layer",
    "NumpyMLP",
    "Slopes",
    "a3c_slopes",
    "categorical_slopes",
    "dqn_slopes",
    "gaussian_slopes",
    "layers_of",
    "ppo_slopes",
    "views_of",
]

Array = npt.NDArray[Any]

#: Rows that `evaluate` computes at once: they stay in the cache.
_ROWS = 512


class Activation(NamedTuple):
    """An activation function σ."""

    #: x ← σ(x).
    apply: Callable[[Array], Any]
    #: d ← d ⊙ σ′, given y = σ(x), which is spent afterwards.
    descend: Callable[[Array, Array], Any]


def _tanh(x: Array) -> None:
    np.tanh(x, out=x)


def _relu(x: Array) -> None:
    np.maximum(x, 0.0, out=x)


def _through_tanh(d: Array, y: Array) -> None:
    np.multiply(y, y, out=y)
    np.subtract(1.0, y, out=y)
    d *= y


def _through_relu(d: Array, y: Array) -> None:
    d *= y > 0.0


#: The functions that exist here. The others are torch's alone.
ACTIVATIONS = {
    "tanh": Activation(_tanh, _through_tanh),
    "relu": Activation(_relu, _through_relu),
}


class Layer(NamedTuple):
    """A linear layer: views of the network's numbers and of its gradient."""

    #: W (outputs, inputs) and b (outputs,).
    weight: Array
    bias: Array
    #: ∂W and ∂b.
    weight_gradient: Array
    bias_gradient: Array


def views_of(parameter: Tensor) -> tuple[Array, Array]:
    """A parameter's numbers and its gradient, which must exist."""
    assert parameter.grad is not None, "a model gives its parameters gradients"
    return parameter.detach().numpy(), parameter.grad.numpy()


def layers_of(stack: nn.Sequential) -> list[Layer]:
    """Its linear layers."""
    layers = []
    for layer in stack:
        if isinstance(layer, nn.Linear):
            weight, weight_gradient = views_of(layer.weight)
            bias, bias_gradient = views_of(layer.bias)
            layers.append(Layer(weight, bias, weight_gradient, bias_gradient))
    return layers


class NumpyMLP:
    """Policy and value, by way of a common trunk or without one.

    Args:
        activation: σ, behind each layer but the last of policy and value.
        trunk, policy, value: the layers of each; `trunk` may be empty.
        log_deviation: a parameter (columns,) and its gradient, where actions are continuous. The
            policy's outputs are then the means and these.
    """

    def __init__(
        self,
        activation: Activation,
        trunk: Sequence[Layer],
        policy: Sequence[Layer],
        value: Sequence[Layer],
        log_deviation: tuple[Array, Array] | None = None,
    ) -> None:
        self._trunk = _Stack(trunk, activation, len(trunk))
        self._policy = _Stack(policy, activation, len(policy) - 1)
        self._value = _Stack(value, activation, len(value) - 1)
        self._log_deviation = log_deviation

    def forward(self, observations: Array) -> tuple[Array, Array]:
        """Outputs of the policy (m, outputs), and values (m,).

        Args:
            observations: float32 (m, inputs). `backward` needs them again.
        """
        hidden = self._trunk.forward(observations)
        outputs = self._policy.forward(hidden)
        values = self._value.forward(hidden)[:, 0]
        return self._with_deviation(outputs), values

    def act(self, observations: Array) -> Array:
        """Outputs of the policy alone (m, outputs), as `forward` gives them."""
        return self._with_deviation(self._policy.forward(self._trunk.forward(observations)))

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
            columns = len(self._log_deviation[0])
            at_outputs[:, columns:].sum(0, out=self._log_deviation[1])
            at_outputs = np.ascontiguousarray(at_outputs[:, :columns])
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
        return np.column_stack((means, np.broadcast_to(log_deviation, means.shape)))


class _Stack:
    """Layers, one after the other, with the memory that their results and gradients take.

    Args:
        layers: none or more.
        activation: σ.
        activated: the number of layers with σ behind them.
    """

    def __init__(self, layers: Sequence[Layer], activation: Activation, activated: int) -> None:
        self.layers = list(layers)
        self._activation = activation
        self._activated = activated
        self._room = 0
        self._inputs: list[Array] = []

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
        """Writes the layers' gradients.

        Args:
            d: the gradient at what `forward` gave. It is changed if σ is behind the last layer.
            below: whether the gradient at what `forward` got is wanted.

        Returns:
            That gradient; senseless if it is not wanted.
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


# Heads.


class Slopes(NamedTuple):
    """log π(a|s) of a batch, float32 (B,), and the way from there back to the outputs."""

    log_pi: Array
    #: The gradient at the outputs (B, outputs), given that at `log_pi` (B,) and at the entropy of
    #: each, which is the same number for all.
    back: Callable[[Array, float], Array]


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

    return Slopes(log_pi[rows, taken], back)


def gaussian_slopes(outputs: Array, actions: Array) -> Slopes:
    """Log π of actions (B, columns) and the way back from it; outputs (B, 2·columns)."""
    columns = actions.shape[1]
    log_deviation = outputs[:, columns:]
    inverse = np.exp(-log_deviation)
    z = (actions - outputs[:, :columns]) * inverse
    log_pi = -(0.5 * z * z + log_deviation + np.float32(0.5 * math.log(2.0 * math.pi))).sum(1)

    def back(at_log_pi: Array, at_entropy: float) -> Array:
        weight = at_log_pi[:, None]
        at_deviation = weight * (z * z - 1.0) + np.float32(at_entropy)
        return np.concatenate((weight * z * inverse, at_deviation), 1)

    return Slopes(log_pi, back)


# Losses.


def a3c_slopes(
    value: Array, advantage: Array, returns: Array, c_e: float, algorithm: Algorithm
) -> tuple[Array, Array, float]:
    """The derivatives of `a3c_loss` with respect to log π (n,), V (n,) and each entropy.

    The arrays are (n,); `advantage` is normalized already if that is asked for.
    """
    share = _share(algorithm, len(value))
    return -share * advantage, *_of_value_and_entropy(value, returns, share, c_e, algorithm)


def ppo_slopes(
    log_pi: Array,
    old_log_pi: Array,
    value: Array,
    advantage: Array,
    returns: Array,
    c_e: float,
    algorithm: Algorithm,
) -> tuple[Array, Array, float]:
    """The derivatives of `ppo_loss` with respect to log π (m,), V (m,) and each entropy."""
    share = _share(algorithm, len(value))
    ratio = np.exp(log_pi - old_log_pi)
    counts = np.where(advantage > 0.0, ratio <= 1.0 + algorithm.clip, ratio >= 1.0 - algorithm.clip)
    at_log_pi = -share * advantage * ratio * counts
    return at_log_pi, *_of_value_and_entropy(value, returns, share, c_e, algorithm)


def dqn_slopes(error: Array, weights: Array, algorithm: Algorithm) -> Array:
    """The derivative of `dqn_loss` with respect to each Q(s, a): (m,), as its arguments."""
    if algorithm.huber:
        error = error.clip(-algorithm.huber, algorithm.huber)
    result: Array = (weights * error * _share(algorithm, len(error))).astype(np.float32, copy=False)
    return result


def _of_value_and_entropy(
    value: Array, returns: Array, share: np.float32, c_e: float, algorithm: Algorithm
) -> tuple[Array, float]:
    at_value = (2.0 * share * np.float32(algorithm.value_coefficient)) * (value - returns)
    return at_value, -float(share) * c_e


def _share(algorithm: Algorithm, n: int) -> np.float32:
    """s: the part of one step in a loss."""
    return np.float32(1.0 if algorithm.reduction == "sum" else 1.0 / n)
