"""TensorModel: the network of an experiment as a torch module, whose gradients autograd takes; and
its export to ONNX, for ONNX Runtime and the like.

Laws of this file:
- Parameters and their gradients are views into `model.vector` and `model.gradient`, and
  `zero_grad` can never detach anything.
- Running statistics are NumPy's, so on a device other than the CPU they are kept in host memory.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from genkidama._version import pip_install
from genkidama.config.experiment import Experiment
from genkidama.config.plugin import load
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.actions import first
from genkidama.learning.forms import ARRAY_ACTIVATIONS
from genkidama.learning.heads import Categorical, Gaussian, MultiCategorical, is_plain
from genkidama.learning.model import CUT, Model, Spaces
from genkidama.learning.perceptron import Entries
from genkidama.learning.rollout import Numbers, Rollout
from genkidama.learning.tensors.networks import NETWORKS, ActorCritic, Network, masked
from genkidama.runtime.import_strings import is_import_string, load_object, user_errors

Array = npt.NDArray[Any]

#: The device whose memory NumPy's arrays are in.
HOST = torch.device("cpu")


class _Generator(torch.Generator):
    """A generator of tensors, whose permutations are those that NumPy draws with the same seed."""

    permutation: Callable[[int], Array]


class TensorModel(Model):
    """A `Model` of tensors; arguments as there.

    Args:
        device: where network, vector and gradient are. Vector and gradient are arrays on `HOST`,
            and elsewhere tensors; `numbers` is then for `accelerator.DeviceWeights` to set.
    """

    network: Network

    def __init__(
        self,
        experiment: Experiment,
        environment: Spaces,
        gradient: Numbers | None = None,
        vector: Numbers | None = None,
        learns: bool | None = None,
        *,
        device: str | torch.device = HOST,
    ) -> None:
        self.device = torch.device(device)
        super().__init__(experiment, environment, gradient, vector, learns)

    def _build(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> Entries:
        settings = self.experiment.network
        setting = f"network.name = {settings.name!r}"
        own = is_import_string(settings.name)
        kind: Any = load_object(settings.name, "network.name") if own else NETWORKS[settings.name]
        if not (isinstance(kind, type) and issubclass(kind, Network)):
            raise ConfigurationError(f"{setting}: expected a subclass of genkidama.Network")
        self._kind = kind
        if self.mask:
            seen = observation_space.shape or ()
            shape = (self.observation_size - self.mask,) if self.memory else seen
            kind = masked(kind, shape, self.mask)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.experiment.seed)
            with user_errors(f"{setting}: cannot be built"):
                self.network = self._made(kind, observation_space, action_space)
        for part in self.network.modules():
            # An observation gives the same alone and among others.
            if isinstance(part, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd):
                part.eval()
        named = list(self.network.named_parameters())
        for name, parameter in named:
            decay = self.experiment.optimizer.weight_decay
            if decay and not parameter.requires_grad:
                raise ConfigurationError(
                    f"optimizer.weight_decay = {decay}: would wear away the parameter {name!r} of "
                    f"{settings.name!r}, which requires no gradient; set it to 0, or make that a "
                    "buffer"
                )
            if parameter.dtype != torch.float32:
                raise ConfigurationError(
                    f"{setting}: parameter {name!r} is {parameter.dtype}, expected float32"
                )
        size = list(self.observation_shape)
        with torch.no_grad(), user_errors(f"{setting}: does not take observations of shape {size}"):
            outputs, values = self.network(torch.zeros(2, *size))
        self._check_outputs(tuple(outputs.shape), tuple(values.shape))
        return [(name, tuple(parameter.shape)) for name, parameter in named]

    def _made(self, kind: type[Network], *spaces: gymnasium.Space[Any]) -> Network:
        """The network, or the learner's own around one of this kind."""
        if self.own_network is None:
            return kind(*spaces, self.experiment.network)
        around: Any = load(f"genkidama.learning.tensors.{self.own_network.tensors}")
        made: Network = around(kind, *spaces, self.experiment, self.acts_only)
        return made

    def _zeros(self, size: int) -> Numbers:
        if self.device == HOST:
            return super()._zeros(size)
        return torch.zeros(size, device=self.device)

    def _attach(self, initial: bool) -> None:
        vector, gradient = (
            torch.from_numpy(numbers) if isinstance(numbers, np.ndarray) else numbers
            for numbers in (self.vector, self.gradient)
        )
        self.network.to(self.device)
        with torch.no_grad():
            for parameter, numbers, slope in self._views(self.network, vector, gradient):
                if initial:
                    numbers.copy_(parameter)
                parameter.data = numbers
                parameter.grad = slope
        if isinstance(self.vector, np.ndarray):
            self.numbers = self.vector
            activation = self.experiment.network.activation
            if self._kind is ActorCritic and activation in ARRAY_ACTIVATIONS:
                self.network.by_hand = super().twin(self.vector)

    def _views(self, network: Network, *vectors: Tensor) -> Iterator[tuple[Any, ...]]:
        """Each parameter, and its parts of the vectors."""
        start = 0
        for parameter in network.parameters():
            part = slice(start, start + parameter.numel())
            yield parameter, *(vector[part].view(parameter.shape) for vector in vectors)
            start = part.stop

    def twin(self, vector: Numbers, gradient: Numbers | None = None) -> Network:
        network = deepcopy(self.network)
        network.by_hand = None
        given = torch.from_numpy(vector) if isinstance(vector, np.ndarray) else vector
        for parameter, numbers in self._views(network, given):
            parameter.data = numbers
            parameter.grad = None
            parameter.requires_grad_(False)
        return network

    def native(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def generator(self, seed: int) -> torch.Generator:
        generator = _Generator()
        generator.manual_seed(seed)
        generator.permutation = np.random.default_rng(seed).permutation
        return generator

    def evaluate(self, observations: Numbers, network: Any = None) -> tuple[Array, Array]:
        with torch.no_grad():
            outputs, values = (network or self.network)(self._tensor(observations))
        return outputs.cpu().numpy(), values.cpu().numpy()

    def unrolled(self, observations: Numbers, starts: Array) -> Tensor:
        with torch.no_grad():
            self.network(observations, starts)
        states: Tensor = self.network.states  # type: ignore[assignment]
        return states

    def log_probability(self, outputs: Array, actions: Numbers) -> Array:
        with torch.no_grad():
            log_pi = self.head.log_probability(self._tensor(outputs), self._tensor(actions))
        found: Array = log_pi.cpu().numpy()
        return found

    def _tensor(self, numbers: Numbers) -> Tensor:
        return numbers if isinstance(numbers, Tensor) else self.native(numbers)

    def gradients(self, learner: Any, rollout: Rollout, rng: torch.Generator) -> Iterator[Any]:
        """By autograd, from the learner's `losses`."""
        for loss in learner.losses(rollout, rng):
            self.gradient[:] = 0.0
            loss.backward()
            yield loss.item

    def survives_a_fork(self) -> bool:
        return survives_a_fork(lambda: torch.ones(1, requires_grad=True).sum().backward())


def survives_a_fork(work: Callable[[], object]) -> bool:
    """Tries whether a process that has done this work can be forked and do it again.

    Forked processes try it, and this one does nothing. Some builds of torch (Debian 13's 2.6) start
    threads at the first backward pass, and refuse another one in later forks. With such a build
    each core takes its first gradient by itself, which costs memory, not learning.
    """

    def once() -> bool:
        work()
        return True

    def forked(trial: Callable[[], bool]) -> bool:
        process = os.fork()
        if process == 0:
            code = 1
            try:
                code = int(not trial())
            finally:
                os._exit(code)
        return os.waitpid(process, 0)[1] == 0

    return forked(lambda: once() and forked(once))


def to_onnx(model: TensorModel, spaces: Spaces) -> bytes:
    """The content of the file that `Policy.to_onnx` writes.

    Raises:
        EnvironmentFailure: packages for it are missing.
    """
    try:
        import onnxscript  # noqa: F401  torch's exporter needs it
    except ImportError as error:
        raise EnvironmentFailure(f"to_onnx needs {error.name}: {pip_install('onnx')}") from None
    whole = _Whole(model, spaces.action_space).eval()
    shape = spaces.observation_space.shape or ()
    given = {"observation": torch.randn(3, *shape)}
    names = ["outputs", "value", "action"][: 3 if whole.acts else 2]
    if model.memory:
        given["state"] = torch.randn(3, model.memory)
        names.append("next_state")
    batch = {0: torch.export.Dim("batch")}
    logging.getLogger("torch.onnx").setLevel(
        logging.ERROR
    )  # it misses packages that are not needed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, of names that torch will drop
        program = torch.onnx.export(
            whole,
            tuple(given.values()),
            input_names=list(given),
            output_names=names,
            dynamic_shapes=dict.fromkeys(given, batch),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    return content


class _Whole(nn.Module):
    """From observations as the environment gives them to what the network says, and to actions."""

    mean: Tensor
    deviation: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, model: TensorModel, space: gymnasium.Space[Any]) -> None:
        super().__init__()
        self._network = model.network
        self._head = model.head
        self._space = space
        #: Whether it gives actions, too.
        self.acts = space.shape is not None and (
            is_plain(model.head) or bool(getattr(model.head, "squashes", False))
        )
        scale = model.mean_and_deviation()
        self._normalizes = scale is not None
        if scale is not None:
            for name, part in zip(("mean", "deviation"), scale, strict=True):
                self.register_buffer(name, torch.from_numpy(part))
        if isinstance(space, gymnasium.spaces.Box):
            self.register_buffer("low", torch.from_numpy(space.low).float())
            self.register_buffer("high", torch.from_numpy(space.high).float())

    def forward(self, observation: Tensor, state: Tensor | None = None) -> tuple[Tensor, ...]:
        if state is not None:
            observation = torch.cat((state, observation.flatten(1)), 1)
        if self._normalizes:
            observation = ((observation - self.mean) / self.deviation).clamp(-CUT, CUT)
        outputs, value = self._network(observation)
        found = self._acted(outputs, value)
        if state is None:
            return found
        after: Tensor = self._network.states  # type: ignore[assignment]
        return *found, after

    def _acted(self, outputs: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Both, and the actions if there are any."""
        if not self.acts:
            return outputs, value
        if isinstance(self._head, Categorical):
            assert isinstance(self._space, gymnasium.spaces.Discrete)
            return outputs, value, outputs.argmax(1) + int(self._space.start)
        if isinstance(self._head, MultiCategorical):
            action = outputs[:, torch.from_numpy(self._head.places)].argmax(2)
            begin = torch.as_tensor(first(self._space))
            return outputs, value, action.reshape(-1, *(self._space.shape or ())) + begin
        assert isinstance(self._head, Gaussian)
        mean = outputs[:, : self._head.columns].reshape(-1, *self.low.shape)
        if self._head.squashes:
            middle, reach = (self.high + self.low) / 2, (self.high - self.low) / 2
            mean = middle + reach * mean.tanh()
        return outputs, value, torch.minimum(torch.maximum(mean, self.low), self.high)
