"""Model: a network whose numbers are one flat vector, with all that is needed to act.

Laws of this file:
- The network's parameters are views into `model.vector`, their gradients views into
  `model.gradient`: writing to the vector changes the network, and `zero_grad` can never detach
  anything.
- The vector's first `trainable` numbers are parameters; running statistics follow. NumPy
  reads and writes them, so on a device other than the CPU they are kept in the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genkidama.config.experiment import Experiment
from genkidama.config.plugin import find, load
from genkidama.config.sections import Algorithm, Environment
from genkidama.errors import ConfigurationError
from genkidama.learning.heads import Categorical, Head, head_for
from genkidama.learning.networks import NETWORKS, Network
from genkidama.learning.numpy_gradients import NumpyMLP
from genkidama.protocol.vector import STATISTICS, Signature
from genkidama.runtime.import_strings import is_import_string, load_object
from genkidama.runtime.user_errors import describe_error

__all__ = ["CUT", "Model", "NetworkView", "RunningMeanStd", "Spaces", "learner_class", "scaled"]

Array = npt.NDArray[Any]

#: Normalized observations are cut to this many standard deviations.
CUT = 10.0


#: Above this count the past is halved: float32 sums keep their precision, and old policies' states
#: fade.
_FADE = 1e6

_EPSILON = 1e-8

#: The learners of the core. Plug-ins have others.
_LEARNERS = {"a3c": "genkidama.learning.a3c:A3C", "ppo": "genkidama.learning.ppo:PPO"}


class Spaces(Protocol):
    """The spaces of an environment; any `gymnasium.Env` has them."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]: ...

    @property
    def action_space(self) -> gymnasium.Space[Any]: ...


class NetworkView(NamedTuple):
    """A model's network over other numbers: only to be looked through."""

    network: Network
    #: The same in NumPy, if there is such a form of it.
    by_hand: NumpyMLP | None


class Model:
    """The network of an experiment over a vector of its own, or over one that is given.

    Args:
        experiment: `[network]`, `[environment]` and the seed are used.
        environment: for its spaces.
        gradient: memory for the gradients, float32, shape (trainable,), on `device`; a private one
            if absent.
        vector: memory of the network, float32, on `device`: `signature.size` numbers, or the
            `trainable` ones alone. The network becomes a view of it and takes over its numbers. If
            absent, the network gets a private vector with its initial numbers.
        device: where vector, gradient and network are.
    """

    #: The same memory as `vector`, for NumPy. Only on the CPU.
    numbers: Array
    #: The network in NumPy, if there is such a form of it and `vector` is on the CPU.
    by_hand: NumpyMLP | None = None

    def __init__(
        self,
        experiment: Experiment,
        environment: Spaces,
        gradient: Tensor | None = None,
        vector: Tensor | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.experiment = experiment
        self.device = torch.device(device)
        self.head = _head(experiment, environment.action_space)
        self.network = _build(experiment, environment)
        named = list(self.network.named_parameters())
        for name, parameter in named:
            if parameter.dtype != torch.float32:
                kind = experiment.network.name
                raise ConfigurationError(
                    f"network.name = {kind!r}: parameter {name!r} is {parameter.dtype}, "
                    "expected float32"
                )
        self._check_outputs(environment)
        self.trainable = sum(parameter.numel() for _, parameter in named)
        entries: list[tuple[str, tuple[int, ...]]] = [
            (name, tuple(parameter.shape)) for name, parameter in named
        ]
        self.observation_shape = environment.observation_space.shape or ()
        self.observation_size = int(np.prod(self.observation_shape))
        #: True if an observation is an image of uint8.
        self.sees_bytes = environment.observation_space.dtype == np.uint8
        settings = experiment.environment
        if settings.normalize_observations:
            entries.append((STATISTICS[0], (RunningMeanStd.size(self.observation_size),)))
        if settings.normalize_rewards:
            entries.append((STATISTICS[1], (RunningMeanStd.size(1),)))
        #: The names and shapes of the vector's parts.
        self.signature = Signature.of(entries)
        self.vector = (
            torch.zeros(self.signature.size, device=self.device) if vector is None else vector
        )
        self.gradient = (
            torch.zeros(self.trainable, device=self.device) if gradient is None else gradient
        )
        self.network.to(self.device)
        start = 0
        with torch.no_grad():
            for parameter in self.network.parameters():
                part = slice(start, start + parameter.numel())
                if vector is None:
                    self.vector[part] = parameter.reshape(-1)
                parameter.data = self.vector[part].view(parameter.shape)
                parameter.grad = self.gradient[part].view(parameter.shape)
                start = part.stop
        if self.device.type == "cpu":
            self.numbers = self.vector.numpy()
            self.by_hand = self.network.by_hand()

    def _check_outputs(self, environment: Spaces) -> None:
        """Refuses a network that does not fit the spaces, before anything starts."""
        name = self.experiment.network.name
        shape = environment.observation_space.shape or ()
        try:
            with torch.no_grad():
                outputs, values = self.network(torch.zeros(2, *shape))
        except Exception as error:  # a network of the user's own may raise anything
            raise ConfigurationError(
                f"network.name = {name!r}: does not take observations of shape {list(shape)}: "
                f"{describe_error(error)}"
            ) from error
        if outputs.shape != (2, self.head.outputs) or values.shape != (2,):
            raise ConfigurationError(
                f"network.name = {name!r}: gives outputs {list(outputs.shape)} and values "
                f"{list(values.shape)} for 2 observations, "
                f"expected [2, {self.head.outputs}] and [2]"
            )

    @property
    def choices(self) -> int:
        """The number of discrete actions; 0 if an action is a vector."""
        return self.head.outputs if isinstance(self.head, Categorical) else 0

    def acting(self) -> Callable[[Array], Array]:
        """A function from observations (m, ...) to the policy's outputs (m, outputs).

        It is good for the weights as they are now. The result is good until the next call.
        """
        return self.network.acting_together() if self.by_hand is None else self.by_hand.act

    def twin(self, vector: Tensor) -> NetworkView:
        """The same network as a view of another vector: float32 (trainable,), on the CPU."""
        network = deepcopy(self.network)
        start = 0
        for parameter in network.parameters():
            part = slice(start, start + parameter.numel())
            parameter.data = vector[part].view(parameter.shape)
            parameter.requires_grad_(False)
            # A form in NumPy has views of gradients, too. Nobody writes these.
            parameter.grad = torch.zeros(1).expand(parameter.shape)
            start = part.stop
        return NetworkView(network, network.by_hand())

    def moments(self, name: str, numbers: Array | None = None) -> RunningMeanStd | None:
        """The running statistics `"observations"` or `"returns"` within `numbers`.

        Without `numbers`, the statistics in this model's vector. None if they are off.
        """
        part = self.signature.slices.get(f"statistics.{name}")
        return (
            None
            if part is None
            else RunningMeanStd((self.numbers if numbers is None else numbers)[part])
        )

    def normalizer(self, numbers: Array | None = None) -> Callable[[Array], Array] | None:
        """A function that normalizes observations, one or a batch, with the statistics as of now.

        They are in `numbers` or, without it, in this model's vector. None if they are off.
        """
        moments = self.moments("observations", numbers)
        if moments is None:
            return None
        mean, deviation = (
            part.reshape(self.observation_shape) for part in moments.mean_and_deviation()
        )

        def normalize(observations: Array) -> Array:
            result: Array = np.clip((observations - mean) / deviation, -CUT, CUT)
            return result.astype(np.float32, copy=False)

        return normalize

    def seen(self, observations: Array) -> Array:
        """Observations (m, ...) of the environment as the network takes them, in a batch.

        They are normalized if the experiment says so, and bytes only where the network takes bytes.
        """
        normalize = self.normalizer()
        if normalize is not None:
            return normalize(observations)
        if self.network.takes_bytes:
            return observations
        return observations.astype(np.float32, copy=False)


def learner_class(algorithm: Algorithm) -> Any:
    """The class of the learner `algorithm.name`. No other one is imported.

    Raises:
        ConfigurationError: an import string that leads nowhere, or a name that nobody has.
    """
    name = algorithm.name
    if name in _LEARNERS:
        return load(_LEARNERS[name])
    if (kind := None if is_import_string(name) else find("learners", name)) is not None:
        return kind
    return load_object(name, "algorithm.name")


def _head(experiment: Experiment, space: gymnasium.Space[Any]) -> Head:
    """The learner's own head if it has one."""
    name = experiment.algorithm.name
    own = getattr(learner_class(experiment.algorithm), "head", None)
    if own is None:
        return head_for(space)
    try:
        head: Head = own(space)
    except ConfigurationError:
        raise
    except Exception as error:  # a head of the user's own may raise anything
        raise ConfigurationError(
            f"algorithm.name = {name!r}: its head cannot be built: {describe_error(error)}"
        ) from error
    return head


def _build(experiment: Experiment, environment: Spaces) -> Network:
    settings = experiment.network
    kind: Any = (
        load_object(settings.name, "network.name")
        if is_import_string(settings.name)
        else NETWORKS[settings.name]
    )
    if not (isinstance(kind, type) and issubclass(kind, Network)):
        raise ConfigurationError(
            f"network.name = {settings.name!r}: expected a subclass of genkidama.Network"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        try:
            return kind(
                _seen(experiment, environment.observation_space), environment.action_space, settings
            )
        except ConfigurationError:
            raise
        except Exception as error:  # a network of the user's own may raise anything
            raise ConfigurationError(
                f"network.name = {settings.name!r}: cannot be built: {describe_error(error)}"
            ) from error


def _seen(experiment: Experiment, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """The space of what a network gets to see: normalized observations are floats."""
    if (
        experiment.environment.normalize_observations
        and space.dtype is not None
        and not np.issubdtype(space.dtype, np.floating)
    ):
        return gymnasium.spaces.Box(-CUT, CUT, space.shape)
    return space


class RunningMeanStd:
    """Count, sums and sums of squares of d-dimensional data, in float32 memory that is given."""

    def __init__(self, memory: Array) -> None:
        self._count = memory[:1]
        self._sum, self._squares = np.split(memory[1:], 2)

    @staticmethod
    def size(dimension: int) -> int:
        """The length of the memory for d-dimensional data."""
        return 1 + 2 * dimension

    def add(self, data: Array) -> None:
        """Takes in a batch of shape (n, d). There is no lock: one of two additions may get lost."""
        data = data.astype(np.float64)
        if self._count[0] > _FADE:
            self._count *= 0.5
            self._sum *= 0.5
            self._squares *= 0.5
        self._count += len(data)
        self._sum += data.sum(0)
        self._squares += np.square(data).sum(0)

    def mean_and_deviation(self) -> tuple[Array, Array]:
        """Both of shape (d,), float32; 0 and 1 while there is no data."""
        count = float(self._count[0])
        if count < 2.0:
            return np.zeros_like(self._sum), np.ones_like(self._sum)
        mean = self._sum.astype(np.float64) / count
        variance = np.maximum(self._squares.astype(np.float64) / count - mean * mean, 0.0)
        return mean.astype(np.float32), np.sqrt(variance + _EPSILON).astype(np.float32)


def scaled(rewards: Array, settings: Environment, returns: RunningMeanStd | None) -> Array:
    """Rewards as they are learned from: times `reward_scale`, then cut to ± `clip_rewards`.

    Args:
        rewards: the environment's own, shape (n,).
        settings: `[environment]`.
        returns: moments of the discounted return, by whose deviation rewards are divided too; None
            without `normalize_rewards`.
    """
    scale = np.float32(settings.reward_scale)
    result = rewards * (scale if returns is None else scale / returns.mean_and_deviation()[1])
    if settings.clip_rewards:
        np.clip(result, -settings.clip_rewards, settings.clip_rewards, out=result)
    return result
