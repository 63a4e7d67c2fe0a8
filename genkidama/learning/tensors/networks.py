"""Networks of tensors: a base class for users, perceptrons with any activation, convolutions.

Perceptrons take vectors, convolutions take images.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from genkidama.config.sections import Network as NetworkSettings
from genkidama.errors import ConfigurationError
from genkidama.learning.actions import INVALID
from genkidama.learning.perceptron import Perceptron, initialize, layout, policy_outputs

Array = npt.NDArray[Any]

#: Values of `network.activation`.
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
}


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

    #: True if `forward` takes images of uint8 as they are, and not only their numbers as float32.
    takes_bytes = False

    #: The same over the same numbers in NumPy, if there is such a form of it.
    by_hand: Perceptron | None = None

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of the policy, and the values.

        Shapes: observations (B, ...), float32; results (B, outputs) and (B,).
        """
        raise NotImplementedError

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zeroes the gradients in place, whatever is asked: they must remain views."""
        super().zero_grad(set_to_none=False)

    def acting(self) -> Callable[[Array], Array]:
        """A function from one observation (as the space has it) to the policy's outputs (outputs,).

        It is good for the weights as they are now, and asked for anew before each batch of steps.
        Override it where something faster than a forward pass of batch size 1 exists.
        """

        if self.by_hand is not None:
            return self.by_hand.acting()

        def outputs(observation: Array) -> Array:
            with torch.inference_mode():
                batch = torch.as_tensor(observation, dtype=torch.float32).unsqueeze(0)
                result: Array = self(batch)[0][0].numpy()
                return result

        return outputs

    def acting_together(self) -> Callable[[Array], Array]:
        """As `acting`, from observations (m, ...) to outputs (m, outputs), which the next call may
        overwrite."""
        if self.by_hand is not None:
            return self.by_hand.acting_together()

        def outputs(observations: Array) -> Array:
            with torch.inference_mode():
                result: Array = self(torch.as_tensor(observations, dtype=torch.float32))[0].numpy()
                return result

        return outputs


class ActorCritic(Network):
    """Perceptrons for policy and value, separate or with shared hidden layers.

    For Box actions the logarithms of the standard deviations are parameters of their own that do
    not depend on the state, starting at 0.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        settings: NetworkSettings,
    ) -> None:
        super().__init__()
        parts = dict(layout(observation_space, action_space, settings))
        self._continuous = "log_deviation" in parts
        self._shared = settings.shared
        outputs = policy_outputs(action_space)
        widths = (next(shape[1] for shape in parts.values() if len(shape) == 2), *settings.hidden)
        if settings.shared:
            self.body = _perceptron(widths, settings)
            self.policy = nn.Sequential(nn.Linear(widths[-1], outputs))
            self.value = nn.Sequential(nn.Linear(widths[-1], 1))
        else:
            self.policy = _perceptron(widths, settings, outputs)
            self.value = _perceptron(widths, settings, 1)
        if self._continuous:
            self.log_deviation = nn.Parameter(torch.zeros(outputs))
        _initialize(self, settings)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(observations) if self._shared else observations
        outputs = self.policy(hidden)
        if self._continuous:
            outputs = torch.cat((outputs, self.log_deviation.expand_as(outputs)), 1)
        return outputs, self.value(hidden).squeeze(1)


class Convolutional(Network):
    """Convolutions and dense layers for images, channels first or last (`network.channels`).

    Policy and value are read from the same last layer. The defaults of `network.convolutions` with
    one hidden layer of 256 are GA3C's network (Babaeizadeh et al. 2017; Mnih et al. 2016, §5.1). A
    convolution of stride s gives ⌈size/s⌉ pixels: it is padded as TensorFlow does with "SAME", the
    odd pixel to the right and at the bottom. Images of uint8 are brought to [−1, 1); images of
    floats and of bool (as 0 and 1) are taken as they are. Box actions as in `ActorCritic`.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        settings: NetworkSettings,
    ) -> None:
        super().__init__()
        if not _is_image(observation_space):
            raise ConfigurationError(
                "network.name = 'convolutional': takes images of uint8, bool or floats, but the "
                f"environment's observation space is {observation_space}"
            )
        self._channels_last = settings.channels == "last"
        shape = observation_space.shape or ()
        if self._channels_last:
            height, width, channels = shape
            order = "height, width, channels"
        else:
            channels, height, width = shape
            order = "channels, height, width"
        self.takes_bytes = observation_space.dtype == np.uint8
        layers: list[nn.Module] = []
        for number, (outputs, kernel, stride) in enumerate(settings.convolutions, 1):
            if kernel > min(height, width):
                raise ConfigurationError(
                    f"network.convolutions = {settings.convolutions}: the kernel {kernel} of "
                    f"convolution {number} is larger than its images of {height} × {width}; "
                    f"{observation_space} is taken as {order} "
                    f"(network.channels = {settings.channels!r})"
                )
            layers += [
                *_same(channels, outputs, kernel, stride, (height, width)),
                ACTIVATIONS[settings.activation](),
            ]
            channels = outputs
            height = -(-height // stride)
            width = -(-width // stride)
        layers += [
            nn.Flatten(),
            *_perceptron((channels * height * width, *settings.hidden), settings),
        ]
        self.body = nn.Sequential(*layers)
        outputs = policy_outputs(action_space)
        self.policy = nn.Linear(settings.hidden[-1], outputs)
        self.value = nn.Linear(settings.hidden[-1], 1)
        self._continuous = isinstance(action_space, gymnasium.spaces.Box)
        if self._continuous:
            self.log_deviation = nn.Parameter(torch.zeros(outputs))
        _initialize(self, settings)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """As `Network.forward`; where the space is uint8, observations may be so, too."""
        if self._channels_last:
            observations = observations.permute(0, 3, 1, 2)
        if torch.is_grad_enabled() and observations.device.type == "cpu":
            # Channels last: more than twice as fast on the way back, and slower on the way forward.
            observations = observations.contiguous(memory_format=torch.channels_last)
        images = (
            torch.mul(observations, 1.0 / 128.0).sub_(1.0) if self.takes_bytes else observations
        )
        hidden = self.body(images)
        outputs = self.policy(hidden)
        if self._continuous:
            outputs = torch.cat((outputs, self.log_deviation.expand_as(outputs)), 1)
        return outputs, self.value(hidden).squeeze(1)


#: Values of `network.name`, beside import strings.
NETWORKS: dict[str, type[Network]] = {"actor-critic": ActorCritic, "convolutional": Convolutional}


def masked(kind: type[Network], shape: tuple[int, ...], size: int) -> type[Network]:
    """The class of the same network for observations that end with a mask of its outputs.

    Args:
        kind: takes observations of this shape.
        size: of the mask.
    """

    class Masked(kind):  # type: ignore[misc,valid-type]
        def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
            outputs, values = super().forward(observations[:, :-size].reshape(-1, *shape))
            valid = observations[:, -size:] > 0
            return outputs.where(valid, outputs.new_tensor(float(INVALID))), values

    return Masked


def _is_image(space: gymnasium.Space[Any]) -> bool:
    return (
        isinstance(space, gymnasium.spaces.Box)
        and len(space.shape) == 3
        and (space.dtype in (np.uint8, np.bool_) or np.issubdtype(space.dtype, np.floating))
    )


def _same(
    inputs: int, outputs: int, kernel: int, stride: int, size: tuple[int, int]
) -> list[nn.Module]:
    """A convolution of images of `size` (height, width) that gives ⌈size/stride⌉.

    The odd pixel of padding is at the right and below.
    """
    height, width = (
        max((-(-pixels // stride) - 1) * stride + kernel - pixels, 0) for pixels in size
    )
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, (height // 2, width // 2))
    odd = (0, width % 2, 0, height % 2)
    return [nn.ZeroPad2d(odd), convolution] if any(odd) else [convolution]


def _initialize(network: nn.Module, settings: NetworkSettings) -> None:
    """Weights and biases as `network.initialization` says, by the seed that torch has got."""
    parts = ((name, part.detach().numpy()) for name, part in network.named_parameters())
    initialize(parts, settings, np.random.default_rng(torch.initial_seed()))


def _perceptron(
    widths: tuple[int, ...], settings: NetworkSettings, outputs: int | None = None
) -> nn.Sequential:
    """Linear layers with the activation after each hidden one."""
    layers: list[nn.Module] = []
    for inputs, width in pairwise(widths):
        layers += [nn.Linear(inputs, width), ACTIVATIONS[settings.activation]()]
    if outputs is not None:
        layers.append(nn.Linear(widths[-1], outputs))
    return nn.Sequential(*layers)
