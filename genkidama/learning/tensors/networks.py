"""Networks of tensors: a base class for users, perceptrons with any activation, convolutions.

Perceptrons take vectors, convolutions take images.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from genkidama.config.sections import Network as NetworkSettings
from genkidama.errors import ConfigurationError
from genkidama.learning.actions import INVALID
from genkidama.learning.exploration import LEAST_VARIANCE, Exploration
from genkidama.learning.perceptron import (
    Perceptron,
    deviation_shape,
    initialize,
    layout,
    policy_outputs,
)
from genkidama.learning.recurrence import packed

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

    def acting(self, exploration: Exploration | None = None) -> Callable[[Array], Array]:
        """A function from one observation (as the space has it) to the policy's outputs (outputs,).

        It is good for the weights as they are now, and asked for anew before each batch of steps.
        Override it where something faster than a forward pass of batch size 1 exists. A network of
        your own is never given an exploration.
        """

        if self.by_hand is not None:
            return self.by_hand.acting(exploration)
        if exploration is not None:
            together = self.acting_together(exploration)
            return lambda observation: together(np.asarray(observation)[None])[0]

        def outputs(observation: Array) -> Array:
            with torch.inference_mode():
                batch = torch.as_tensor(observation, dtype=torch.float32).unsqueeze(0)
                result: Array = self(batch)[0][0].numpy()
                return result

        return outputs

    def acting_together(self, exploration: Exploration | None = None) -> Callable[[Array], Array]:
        """As `acting`, from observations (m, ...) to outputs (m, outputs), which the next call may
        overwrite."""
        if self.by_hand is not None:
            return self.by_hand.acting_together(exploration)

        def outputs(observations: Array) -> Array:
            with torch.inference_mode():
                result: Array = self(torch.as_tensor(observations, dtype=torch.float32))[0].numpy()
                return result

        return outputs


class BuiltIn(Network):
    """A network whose log-deviations of Box actions are parameters of their own, or, with
    `network.sde_steps`, follow from its last hidden layer as `exploration` says.

    With `network.memory` a GRU is behind the hidden layers, and an observation stands behind its
    state, as `genkidama.learning.recurrence` has it.
    """

    #: (columns,), or (features, columns) with gSDE; None without Box actions.
    log_deviation: nn.Parameter | None

    #: None without a memory.
    memory: nn.GRU | None

    #: Its states after the rows that came last, (m, H).
    states: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("log_deviation", None)
        self.memory = None

    @property
    def state(self) -> Array:
        """With a memory: its states after the rows that were acted on last, (m, H)."""
        if self.by_hand is not None:
            return self.by_hand.state
        state: Array = self.states.numpy()
        return state

    def parts(self, observations: Tensor, *starts: Array) -> tuple[Tensor, Tensor, Tensor]:
        """The policy's last layer, the values and the policy's last hidden layer."""
        raise NotImplementedError

    def forward(self, observations: Tensor, *starts: Array) -> tuple[Tensor, Tensor]:
        """As `Network.forward`; where the space is uint8, observations may be so, too.

        With a memory, `starts` is bool (B,), true where a sequence begins; without it each row is
        one.
        """
        outputs, values, features = self.parts(observations, *starts)
        return self._with_deviation(outputs, features), values

    def _recalled(
        self, hidden: Callable[[Tensor], Tensor], rows: Tensor, starts: Array | None = None
    ) -> Tensor:
        """The last hidden layer, given the layers before the memory."""
        if self.memory is None:
            return hidden(rows)
        size = self.memory.hidden_size
        states, features = rows[:, :size], hidden(rows[:, size:])
        if starts is None:
            found: Tensor = self.memory(features[None], states[None].contiguous())[0][0]
        else:
            order, places, counts = packed(starts)
            index = torch.from_numpy(order).to(rows.device)
            sequences = nn.utils.rnn.PackedSequence(features[index], torch.tensor(counts))
            begin = states[index[: counts[0]]][None]
            after, _ = self.memory(sequences, begin)
            found = after.data[torch.from_numpy(places).to(rows.device)]
        self.states = found.detach()
        return found

    def acting_together(self, exploration: Exploration | None = None) -> Callable[[Array], Array]:
        if exploration is None or self.by_hand is not None:
            return super().acting_together(exploration)
        assert self.log_deviation is not None
        exploration.scale(self.log_deviation.detach().numpy())

        def outputs(observations: Array) -> Array:
            with torch.inference_mode():
                batch = torch.as_tensor(observations, dtype=torch.float32)
                outputs, _, features = self.parts(batch)
                exploration.explore(features.numpy())
                result: Array = self._with_deviation(outputs, features).numpy()
                return result

        return outputs

    def _with_deviation(self, outputs: Tensor, features: Tensor) -> Tensor:
        if self.log_deviation is None:
            return outputs
        log_deviation: Tensor = self.log_deviation
        if log_deviation.ndim == 1:
            return torch.cat((outputs, log_deviation.expand(outputs.shape[0], -1)), 1)
        variance = features.detach().square() @ (2.0 * log_deviation).exp() + LEAST_VARIANCE
        return torch.cat((outputs, 0.5 * variance.log()), 1)


class ActorCritic(BuiltIn):
    """Perceptrons for policy and value, separate or with shared hidden layers.

    For Box actions the logarithms of the standard deviations are parameters of their own that do
    not depend on the state, starting at 0, or those of gSDE (`network.sde_steps`).
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        settings: NetworkSettings,
    ) -> None:
        super().__init__()
        parts = dict(layout(observation_space, action_space, settings))
        self._shared = settings.shared or settings.memory > 0
        outputs, _ = policy_outputs(action_space)
        inputs = next(shape[1] for name, shape in parts.items() if name.endswith("weight"))
        widths = (inputs, *settings.hidden)
        if self._shared:
            last = settings.memory or widths[-1]
            self.body = _perceptron(widths, settings)
            self.memory = nn.GRU(widths[-1], last) if settings.memory else None
            self.policy = nn.Sequential(nn.Linear(last, outputs))
            self.value = nn.Sequential(nn.Linear(last, 1))
        else:
            self.policy = _perceptron(widths, settings, outputs)
            self.value = _perceptron(widths, settings, 1)
        if "log_deviation" in parts:
            self.log_deviation = nn.Parameter(torch.zeros(parts["log_deviation"]))
        _initialize(self, settings)

    def parts(self, observations: Tensor, *starts: Array) -> tuple[Tensor, Tensor, Tensor]:
        vectors = observations.flatten(1)
        features = hidden = self._recalled(self.body, vectors, *starts) if self._shared else vectors
        *layers, last = self.policy
        for layer in layers:
            features = layer(features)
        return last(features), self.value(hidden).squeeze(1), features


#: Convolutions for images of at least so many pixels in height and width, and for smaller ones:
#: channels, kernel and stride of each.
_LARGE = 36
LARGE = ((16, 8, 4), (32, 4, 2))
SMALL = ((16, 3, 1),)


class Convolutional(BuiltIn):
    """Convolutions and dense layers for images, channels first or last (`network.channels`).

    Images may have no axis of channels, or be several, one behind the other: their channels are
    then taken together. Policy and value are read from the same last layer. The convolutions of
    `LARGE` with one hidden layer of 256 are GA3C's network (Babaeizadeh et al. 2017; Mnih et al.
    2016, §5.1). A convolution of stride s gives ⌈size/s⌉ pixels: it is padded as TensorFlow does
    with "SAME", the odd pixel to the right and at the bottom. Images of uint8 are brought to
    [−1, 1); images of floats and of bool (as 0 and 1) are taken as they are. Box actions as in
    `ActorCritic`.
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
        shape = observation_space.shape or ()
        image = (1, *shape)[-3:]
        auto = settings.channels == "auto" and image[2] < min(image[:2])
        self._channels_last = len(shape) > 2 and (settings.channels == "last" or auto)
        order = "channels, height, width"
        if self._channels_last:
            image = image[2], *image[:2]
            order = "height, width, channels"
        height, width = image[1:]
        channels = prod(shape) // (height * width)
        self._images = channels, height, width
        self.takes_bytes = observation_space.dtype == np.uint8
        layers: list[nn.Module] = []
        convolutions = settings.convolutions or (SMALL if min(height, width) < _LARGE else LARGE)
        for number, (outputs, kernel, stride) in enumerate(convolutions, 1):
            if kernel > min(height, width):
                raise ConfigurationError(
                    f"network.convolutions = {convolutions}: the kernel {kernel} of "
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
        last = settings.memory or settings.hidden[-1]
        self.memory = nn.GRU(settings.hidden[-1], last) if settings.memory else None
        outputs, deviations = policy_outputs(action_space)
        self._shape = shape
        self.policy = nn.Linear(last, outputs)
        self.value = nn.Linear(last, 1)
        if deviations:
            shape = deviation_shape(settings, last, deviations)
            self.log_deviation = nn.Parameter(torch.zeros(shape))
        _initialize(self, settings)

    def parts(self, observations: Tensor, *starts: Array) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self._recalled(self._features, observations, *starts)
        return self.policy(hidden), self.value(hidden).squeeze(1), hidden

    def _features(self, observations: Tensor) -> Tensor:
        """The last hidden layer before a memory."""
        if self.memory is not None:
            observations = observations.reshape(-1, *self._shape)
        if self._channels_last:
            observations = observations.movedim(-1, -3)
        if observations.ndim != 4:  # no channels, or several images
            observations = observations.reshape(-1, *self._images)
        if torch.is_grad_enabled() and observations.device.type == "cpu":
            # Channels last: more than twice as fast on the way back, and slower on the way forward.
            observations = observations.contiguous(memory_format=torch.channels_last)
        images = (
            torch.mul(observations, 1.0 / 128.0).sub_(1.0) if self.takes_bytes else observations
        )
        features: Tensor = self.body(images)
        return features


#: Values of `network.name`, beside import strings.
NETWORKS: dict[str, type[Network]] = {"actor-critic": ActorCritic, "convolutional": Convolutional}


def masked(kind: type[Network], shape: tuple[int, ...], size: int) -> type[Network]:
    """The class of the same network, which takes observations of this shape, for those that end
    with a mask of its outputs, of this size."""

    class Masked(kind):  # type: ignore[misc,valid-type]
        # A network's own know nothing of masks.
        acting, acting_together = Network.acting, Network.acting_together

        def forward(self, observations: Tensor, *starts: Array) -> tuple[Tensor, Tensor]:
            seen = observations[:, :-size].reshape(-1, *shape)
            outputs, values = super().forward(seen, *starts)
            valid = observations[:, -size:] > 0
            return outputs.where(valid, outputs.new_tensor(float(INVALID))), values

    return Masked


def _is_image(space: gymnasium.Space[Any]) -> bool:
    return (
        isinstance(space, gymnasium.spaces.Box)
        and len(space.shape) in (2, 3, 4)
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
