"""Model: a network whose numbers are one flat vector, with all that is needed to act and to learn.

Laws of this file:
- The network's parameters are views into `model.vector`, their gradients views into
  `model.gradient`: writing to the vector changes the network.
- The vector's first `trainable` numbers are parameters; running statistics follow.
- Initial numbers are drawn by NumPy whatever computes with them, so a seed means the same with
  torch and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import gymnasium
import msgspec
import numpy as np
import numpy.typing as npt

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.actions import MaskedBox, choices
from genkidama.learning.exploration import Exploration
from genkidama.learning.forms import learner_class, load_tensors, tensor_setting
from genkidama.learning.heads import (
    Categorical,
    Gaussian,
    Head,
    Mixed,
    MultiCategorical,
    head_for,
)
from genkidama.learning.observations import is_image
from genkidama.learning.optimizers import library
from genkidama.learning.perceptron import Entries, MaskedPerceptron, Perceptron, initialize, layout
from genkidama.learning.recurrence import sequence_starts
from genkidama.learning.rollout import Numbers, Rollout
from genkidama.protocol.vector import STATISTICS, Signature
from genkidama.runtime.import_strings import user_errors
from genkidama.server.rules.outliers import LossStatistics

Array = npt.NDArray[Any]

#: Normalized observations are cut to this many standard deviations.
CUT = 10.0

#: Above this count the past is halved: old policies' states fade.
_FADE = 1e6

_EPSILON = 1e-8

#: A variance below this part of the mean's square is lost in float32 sums.
_LEAST_VARIANCE = 1e-6


class Spaces(Protocol):
    """The spaces of an environment; any `gymnasium.Env` has them."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]: ...

    @property
    def action_space(self) -> gymnasium.Space[Any]: ...


class Model:
    """The network of an experiment over a vector of its own, or over one that is given.

    This class computes with NumPy. Where the experiment needs tensors, as `forms.tensor_setting`
    decides, `Model(…)` is a `genkidama.learning.tensors.tensor_model.TensorModel`.

    Args:
        experiment: `[network]`, `[environment]`, `[algorithm]` and the seed are used.
        environment: for its spaces.
        gradient: memory for the gradients, float32, shape (trainable,); a private one if absent.
        vector: memory of the network, float32: `signature.size` numbers, or the `trainable` ones
            alone. The network becomes a view of it and takes over its numbers. If absent, the
            network gets a private vector with its initial numbers.
        learns: whether it has what only learning needs, as critics. If absent, that is so unless
            the experiment's children act alone.

    Raises:
        ConfigurationError: the network or the learner's head cannot be built, they do not fit the
            spaces, or the experiment needs torch, which is not installed.
    """

    network: Any
    #: The vector again, or its copy in the host's memory where the vector is on a device.
    numbers: Array

    def __new__(cls, experiment: Experiment, environment: Spaces, *_: Any, **__: Any) -> Self:
        if cls is Model:
            experiment = seeing(experiment, environment.observation_space)
            head = head_of(experiment, environment.action_space)
            if setting := tensor_setting(experiment, head):
                kind: type[Self] = load_tensors("tensor_model:TensorModel", setting)
                return object.__new__(kind)
        return object.__new__(cls)

    def __init__(
        self,
        experiment: Experiment,
        environment: Spaces,
        gradient: Numbers | None = None,
        vector: Numbers | None = None,
        learns: bool | None = None,
    ) -> None:
        #: Whether it lacks what only learning needs.
        self.acts_only = experiment.sends_experience if learns is None else not learns
        #: The class of the learner's own network, or None.
        self.own_network = getattr(learner_class(experiment.algorithm), "network", None)
        space = environment.observation_space
        self.action_space = environment.action_space
        self.experiment = experiment = seeing(experiment, space)
        self.head = head_of(experiment, environment.action_space)
        #: The number of the last numbers of an observation that are its action mask.
        self.mask = space.size if isinstance(space, MaskedBox) else 0
        if self.mask not in (0, self.head.outputs):
            raise ConfigurationError(
                f"algorithm.name = {experiment.algorithm.name!r}: its head has "
                f"{self.head.outputs} outputs, which a mask of {self.mask} choices does not fit"
            )
        discrete = isinstance(self.head, Categorical | MultiCategorical | Mixed)
        #: The number of discrete actions in each of an action's first columns, counted from 0.
        #: Others are continuous, or of a head of the user's own.
        self.choices = choices(environment.action_space) if discrete else ()
        #: H: the number of an observation's first numbers that are the memory's state.
        self.memory = experiment.network.memory
        self.observation_shape = space.shape or ()
        self.observation_size = self.memory + int(np.prod(self.observation_shape))
        if self.memory:
            self.observation_shape = (self.observation_size,)
        #: True if an observation is an image of uint8.
        self.sees_bytes = space.dtype == np.uint8 and not self.memory
        entries = list(self._build(_seen(experiment, space), environment.action_space))
        self._check_exploration(dict(entries), environment.action_space)
        self.trainable = Signature.of(entries).size
        settings = experiment.environment
        if settings.normalize_observations:
            entries.append((STATISTICS[0], (RunningMeanStd.size(self.observation_size),)))
        if settings.normalize_rewards:
            entries.append((STATISTICS[1], (RunningMeanStd.size(1),)))
        #: The names and shapes of the vector's parts.
        self.signature = Signature.of(entries)
        self.vector = self._zeros(self.signature.size) if vector is None else vector
        self.gradient = self._zeros(self.trainable) if gradient is None else gradient
        #: What rounding has left of additions to running statistics: by their name, and whether
        #: they are this model's own or others'.
        self._rests: dict[tuple[str, bool], Array] = {}
        #: Of the updates that are learned with this model.
        self.losses = LossStatistics(experiment.algorithm.outlier_sigmas)
        self._attach(initial=vector is None)

    # Where a model of tensors differs.

    def _build(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> Entries:
        """The network's parameters. It needs no memory yet."""
        if self.own_network is not None:
            own: Entries = self.own_network.layout(
                observation_space, action_space, self.experiment, self.acts_only
            )
            return own
        return layout(observation_space, action_space, self.experiment.network)

    def _zeros(self, size: int) -> Numbers:
        return np.zeros(size, np.float32)

    def _attach(self, initial: bool) -> None:
        """Makes the network over vector and gradient, with its initial numbers if it has none."""
        self.numbers = self.vector
        self.network = self.twin(self.vector, self.gradient)
        if initial:
            rng = np.random.default_rng(self.experiment.seed)
            if self.own_network is None:
                initialize(self.network.parts.items(), self.experiment.network, rng)
            else:
                self.network.initialize(self.experiment, rng)
        self._check_outputs((2, self.network.outputs), (2,))

    def twin(self, vector: Numbers, gradient: Numbers | None = None) -> Any:
        """The same network as a view of another vector: float32 (trainable,), in host memory."""
        entries = [entry for entry in self.signature.entries if entry[0] not in STATISTICS]
        shape = (-1,) if self.mask or self.memory else self.observation_shape
        if self.own_network is not None:
            return self.own_network(entries, self.experiment, vector, gradient, shape)
        kind = MaskedPerceptron if self.mask else Perceptron
        return kind(entries, self.experiment.network.activation, vector, gradient, shape)

    def native(self, array: Array) -> Numbers:
        """An array as this model and its learner take it: itself, or a tensor on its device."""
        return array

    def generator(self, seed: int) -> Any:
        """The generator of a learner's random numbers, with a method `permutation(n)`."""
        return np.random.default_rng(seed)

    def joined(self, rollout: Rollout) -> Numbers:
        """The observations of its n steps, and of its k cuts if no values are given for them."""
        if rollout.cut_values is not None:
            return rollout.observations
        both = rollout.observations, rollout.cut_observations
        return library(rollout.observations).concatenate(both)

    def evaluate(self, observations: Numbers, network: Any = None) -> tuple[Array, Array]:
        """Outputs (m, outputs) and values (m,) of observations (m, …), without a way back.

        Args:
            network: instead of this model's own, as `twin` gives one.
        """
        evaluated: tuple[Array, Array] = (network or self.network).evaluate(observations)
        return evaluated

    def log_probability(self, outputs: Array, actions: Numbers) -> Array:
        """log π (m,) of actions (m, columns), given the network's outputs."""
        log_pi: Array = self.head.slopes(outputs, actions).log_pi
        return log_pi

    def gradients(self, learner: Any, rollout: Rollout, rng: Any) -> Iterator[Any]:
        """Each gradient that a learner takes from a rollout, one after the other, in `gradient`.

        After each comes its `Loss`, or None. The generator is one of `generator`'s.
        """
        found: Iterator[Any] = learner.gradients(rollout, rng)
        return found

    def survives_a_fork(self) -> bool:
        """True if a process that has taken a gradient can be forked, and take another one."""
        return True

    # The same for all models.

    def recalled(self, observation: Any, state: Array | None = None) -> Any:
        """An observation of the environment as the network takes it: behind the memory's state
        (1, H), that of an episode's beginning if absent. It is the same without a memory."""
        if not self.memory:
            return observation
        row = np.empty(self.observation_size, np.float32)
        row[: self.memory] = 0.0 if state is None else state[0]
        row[self.memory :] = observation if np.ndim(observation) == 1 else np.ravel(observation)
        return row

    def sequences(self, rollout: Rollout) -> tuple[Array, ...]:
        """The rows of `joined` at which a sequence of a memory begins, bool (n + k,).

        Each sequence begins with the state that was stored when it was played. Without a memory
        there are none: ().
        """
        if not self.memory:
            return ()
        longest = self.experiment.network.sequence_length
        cuts = 0 if rollout.cut_values is not None else len(rollout.cuts)
        return (np.append(sequence_starts(rollout.ends, longest), np.ones(cuts, np.bool_)),)

    def unrolled(self, observations: Numbers, starts: Array) -> Numbers:
        """The states (m, H) of a memory after each of m steps, without a way back.

        Args:
            observations: behind the states, as a rollout has them.
            starts: bool (m,), true where a sequence begins.
        """
        self.network(observations, starts)
        return self.network.state

    def exploration(self, rng: np.random.Generator, lanes: int) -> Exploration | None:
        """State-dependent noise of so many lanes; None if each step has noise of its own."""
        steps = self.experiment.network.sde_steps
        if not steps:
            return None
        features, columns = dict(self.signature.entries)["log_deviation"]
        return Exploration(rng, (features, columns), lanes, steps)

    def _check_exploration(
        self, parts: dict[str, tuple[int, ...]], space: gymnasium.Space[Any]
    ) -> None:
        settings = self.experiment.network
        box = isinstance(self.head, Gaussian)
        if not settings.sde_steps or (box and len(parts.get("log_deviation", ())) == 2):
            return
        networks = "networks 'actor-critic' and 'convolutional'"
        if self.own_network is not None:
            networks = "network 'actor-critic'"
        raise ConfigurationError(
            f"network.sde_steps = {settings.sde_steps}: is for Box actions and the {networks}, but "
            + (f"network.name = {settings.name!r}" if box else f"the action space is {space}")
            + "; set it to 0"
        )

    def _check_outputs(self, outputs: tuple[int, ...], values: tuple[int, ...]) -> None:
        """Refuses a network that does not fit the spaces, before anything starts."""
        if outputs != (2, self.head.outputs) or values != (2,):
            raise ConfigurationError(
                f"network.name = {self.experiment.network.name!r}: gives outputs {list(outputs)} "
                f"and values {list(values)} for 2 observations, "
                f"expected [2, {self.head.outputs}] and [2]"
            )

    def moments(self, name: str, numbers: Array | None = None) -> RunningMeanStd | None:
        """The running statistics `"observations"` or `"returns"` within `numbers`.

        Without `numbers`, the statistics in this model's vector. None if they are off.
        """
        part = self.signature.slices.get(f"statistics.{name}")
        if part is None:
            return None
        key = name, numbers is None
        if key not in self._rests:
            self._rests[key] = np.zeros(part.stop - part.start)
        memory = (self.numbers if numbers is None else numbers)[part]
        return RunningMeanStd(memory, self._rests[key])

    def mean_and_deviation(self) -> tuple[Array, Array] | None:
        """Those of the observations, in their shape, as for `moments`; a mask and a memory's state
        stay as they are."""
        moments = self.moments("observations")
        if moments is None:
            return None
        mean, deviation = moments.mean_and_deviation()
        if self.mask:
            mean[-self.mask :], deviation[-self.mask :] = 0.0, 1.0
        mean[: self.memory], deviation[: self.memory] = 0.0, 1.0
        return mean.reshape(self.observation_shape), deviation.reshape(self.observation_shape)

    def normalizer(self) -> Callable[[Array], Array] | None:
        """A function that normalizes observations, one or a batch, with the statistics as of now.

        None if they are off.
        """
        scale = self.mean_and_deviation()
        if scale is None:
            return None
        mean, deviation = scale

        def normalize(observations: Array) -> Array:
            result: Array = np.clip((observations - mean) / deviation, -CUT, CUT)
            return result.astype(np.float32, copy=False)

        return normalize

    def scaled(self, rewards: Array) -> Array:
        """The environment's rewards (n,) as they are learned from: times `reward_scale`, divided by
        the returns' deviation with `normalize_rewards`, and then cut to ± `clip_rewards`."""
        settings, returns = self.experiment.environment, self.moments("returns")
        scale = np.float32(settings.reward_scale)
        result = rewards * (scale if returns is None else scale / returns.mean_and_deviation()[1])
        if settings.clip_rewards:
            np.clip(result, -settings.clip_rewards, settings.clip_rewards, out=result)
        return result

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


def seeing(experiment: Experiment, space: gymnasium.Space[Any]) -> Experiment:
    """The experiment, whose network takes images if observations are some: the network
    `"actor-critic"` is then `"convolutional"`."""
    seen = space.rest if isinstance(space, MaskedBox) else space
    if experiment.network.name != "actor-critic" or not is_image(seen):
        return experiment
    network = msgspec.structs.replace(experiment.network, name="convolutional")
    return msgspec.structs.replace(experiment, network=network)


def head_of(experiment: Experiment, space: gymnasium.Space[Any]) -> Head:
    """The head for an action space: the learner's own if it has one.

    Raises:
        ConfigurationError: there is none, as `actions.supported` says, or it cannot be built.
    """
    own = getattr(learner_class(experiment.algorithm), "head", None)
    if own is None:
        return head_for(space)
    with user_errors(f"algorithm.name = {experiment.algorithm.name!r}: its head cannot be built"):
        head: Head = own(space)
    return head


def _seen(experiment: Experiment, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """The space of what a network gets to see: no masks, and normalized observations are floats."""
    if isinstance(space, MaskedBox):
        space = space.rest
    whole = space.dtype is not None and not np.issubdtype(space.dtype, np.floating)
    if experiment.environment.normalize_observations and whole:
        return gymnasium.spaces.Box(-CUT, CUT, space.shape)
    return space


class RunningMeanStd:
    """Count, sums and sums of squares of d-dimensional data, in float32 memory that is given.

    Args:
        memory: (1 + 2·d,).
        rest: float64, alike: what rounding has left of the additions before (Kahan 1965), since
            many small ones would not add up.
    """

    def __init__(self, memory: Array, rest: Array | None = None) -> None:
        self._memory = memory
        self._rest = np.zeros(len(memory)) if rest is None else rest
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
            self._memory *= 0.5
            self._rest *= 0.5
        sums = np.concatenate(([len(data)], data.sum(0), np.square(data).sum(0)))
        sums += self._memory + self._rest
        self._memory[:] = sums
        with np.errstate(invalid="ignore"):
            rest = sums - self._memory
        self._rest[:] = np.where(np.isfinite(rest), rest, 0.0)

    def mean_and_deviation(self) -> tuple[Array, Array]:
        """Both of shape (d,), float32; 0 and 1 while there is no data. A deviation is a thousandth
        of the mean at least."""
        count = float(self._count[0])
        if count < 2.0:
            return np.zeros_like(self._sum), np.ones_like(self._sum)
        mean = self._sum.astype(np.float64) / count
        square = mean * mean
        variance = self._squares.astype(np.float64) / count - square
        variance = np.maximum(variance, _LEAST_VARIANCE * square)
        return mean.astype(np.float32), np.sqrt(variance + _EPSILON).astype(np.float32)
