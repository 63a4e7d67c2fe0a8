"""Networks that act and value: a base class for one's own, and perceptrons for vector observations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from genkidama.errors import ConfigurationError
from genkidama.experiment import Network as NetworkSettings
from genkidama.learning.heads import head_for

__all__ = ["ActorCritic", "Network"]

Array = npt.NDArray[Any]

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}


class Network(nn.Module):
    """The base of all networks (the thesis' GeneralNeuralNet, §4.3). Subclass it with plain torch:

        class Mine(genkidama.Network):
            def __init__(self, observation_space, action_space, settings):
                super().__init__()
                self.body = nn.Linear(observation_space.shape[0], 64)
                self.policy = nn.Linear(64, head_for(action_space).outputs)
                self.value = nn.Linear(64, 1)

            def forward(self, observations):
                hidden = torch.relu(self.body(observations))
                return self.policy(hidden), self.value(hidden).squeeze(1)

    and name it in the experiment: `network.name = "my_module:Mine"`. The constructor gets the two
    spaces and the `[network]` section, whose `options` are free. Initialize the weights in it; the
    random generator is seeded with the experiment's seed. All parameters must be float32; buffers
    are not exchanged and so must be constant.
    """

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of the policy and the values. Shapes: observations (B, ...); (B, outputs) and (B,)."""
        raise NotImplementedError

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zeroes the gradients where they lie, whatever is asked: they are views into one vector and must remain so."""
        super().zero_grad(set_to_none=False)

    def acting(self) -> Callable[[Array], Array]:
        """A function from one observation (as the space has it) to the policy's outputs (outputs,).

        It is good for the weights as they are now, and asked for anew before each batch of steps.
        Override it where something faster than a forward pass of batch size 1 exists.
        """

        def outputs(observation: Array) -> Array:
            with torch.inference_mode():
                batch = torch.as_tensor(observation, dtype=torch.float32).unsqueeze(0)
                result: Array = self(batch)[0][0].numpy()
                return result

        return outputs


class ActorCritic(Network):
    """Perceptrons for policy and value, separate or with shared hidden layers.

    For Box actions the logarithms of the standard deviations are parameters of their own that do not
    depend on the state, starting at 0.
    """

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], settings: NetworkSettings) -> None:
        super().__init__()
        if not isinstance(observation_space, gymnasium.spaces.Box) or len(observation_space.shape) != 1:
            raise ConfigurationError(
                f"network.name = 'actor-critic': takes vectors, but the environment's observation space is {observation_space}; "
                "name a network of your own as 'module:Class'"
            )
        head = head_for(action_space)
        self._continuous = isinstance(action_space, gymnasium.spaces.Box)
        policy_outputs = head.columns if self._continuous else head.outputs
        self._activation = settings.activation
        self._shared = settings.shared
        widths = (observation_space.shape[0], *settings.hidden)
        if settings.shared:
            self.body = _perceptron(widths, settings)
            self.policy = nn.Sequential(nn.Linear(widths[-1], policy_outputs))
            self.value = nn.Sequential(nn.Linear(widths[-1], 1))
        else:
            self.policy = _perceptron(widths, settings, policy_outputs)
            self.value = _perceptron(widths, settings, 1)
        if self._continuous:
            self.log_deviation = nn.Parameter(torch.zeros(policy_outputs))
        self._initialize(settings)

    def _initialize(self, settings: NetworkSettings) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                if settings.initialization == "normal":
                    nn.init.normal_(layer.weight, 0.0, settings.initial_deviation)
                else:
                    gain = {id(self.policy[-1]): 0.01, id(self.value[-1]): 1.0}.get(id(layer), 2.0**0.5)
                    nn.init.orthogonal_(layer.weight, gain)
                nn.init.zeros_(layer.bias)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(observations) if self._shared else observations
        outputs = self.policy(hidden)
        if self._continuous:
            outputs = torch.cat((outputs, self.log_deviation.expand_as(outputs)), 1)
        return outputs, self.value(hidden).squeeze(1)

    def acting(self) -> Callable[[Array], Array]:
        """The policy in NumPy: at batch size 1 several times faster than torch."""
        if self._activation not in ("tanh", "relu"):
            return super().acting()
        trunk = list(self.body) if self._shared else []
        layers = [layer for layer in (*trunk, *self.policy) if isinstance(layer, nn.Linear)]
        # Each layer is one matrix with the bias as its last column, and each input ends with a 1.
        matrices = [np.column_stack((layer.weight.detach().numpy(), layer.bias.detach().numpy())) for layer in layers]
        inputs = [np.ones(matrix.shape[1], np.float32) for matrix in matrices]
        steps = [(matrix, x, following[:-1]) for matrix, x, following in zip(matrices, inputs, inputs[1:], strict=False)]
        first, (last, last_input) = inputs[0][:-1], (matrices[-1], inputs[-1])
        activate: Callable[..., Any] = np.tanh if self._activation == "tanh" else _relu
        dot = np.dot
        deviation = self.log_deviation.detach().numpy() if self._continuous else None

        def outputs(observation: Array) -> Array:
            first[:] = observation
            for matrix, x, result in steps:
                dot(matrix, x, result)
                activate(result, result)
            policy: Array = dot(last, last_input)
            return policy if deviation is None else np.concatenate((policy, deviation))

        return outputs


def _relu(x: Array, out: Array) -> Array:
    result: Array = np.maximum(x, 0.0, out=out)
    return result


def _perceptron(widths: tuple[int, ...], settings: NetworkSettings, outputs: int | None = None) -> nn.Sequential:
    """Linear layers with the activation after each hidden one."""
    layers: list[nn.Module] = []
    for inputs, width in pairwise(widths):
        layers += [nn.Linear(inputs, width), _ACTIVATIONS[settings.activation]()]
    if outputs is not None:
        layers.append(nn.Linear(widths[-1], outputs))
    return nn.Sequential(*layers)
