"""A trained policy for scripts, games and robots: observations in, actions and explanations out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import msgspec
import numpy as np
import numpy.typing as npt

from genkidama.config.allowlist import check_imports
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.actions import INVALID, MaskedBox
from genkidama.learning.environments import make_environment, played
from genkidama.learning.forms import as_tensors
from genkidama.learning.heads import Categorical, Gaussian, MultiCategorical
from genkidama.learning.model import Model, Spaces
from genkidama.learning.observations import FlatBox
from genkidama.learning.recurrence import behind
from genkidama.learning.spaces import spaces_of
from genkidama.runs import sharded_checkpoint
from genkidama.runs.checkpoint import SPACES, Checkpoint
from genkidama.runs.export import export

if TYPE_CHECKING:
    from torch import nn

Array = npt.NDArray[Any]


def model_of(checkpoint: Checkpoint, spaces: Spaces) -> Model:
    """The model of a checkpoint, with its weights."""
    model = Model(checkpoint.experiment, spaces)
    if (difference := model.signature.difference(checkpoint.signature)) is not None:
        raise ConfigurationError(
            f"{checkpoint.path or 'the checkpoint'}: its network is not the one that its "
            f"experiment describes: {difference}"
        )
    model.numbers[:] = checkpoint.vector
    return model


def _spaces_beside(checkpoint: Checkpoint) -> Any:
    """The described spaces in the directory of a checkpoint's run, if they are there: then a policy
    needs no robot. An environment of a plug-in is played as another."""
    if checkpoint.path is None or checkpoint.experiment.environment.prefix:
        return None
    with suppress(OSError, ValueError, IndexError):
        return json.loads((checkpoint.path.parents[1] / SPACES).read_bytes())
    return None


class Policy:
    """The weights of a checkpoint, ready to act.

    Args:
        checkpoint: as `genkidama.Checkpoint.load` or `Run.load` give it.
        seed: of the sampled actions.
        allow: modules that the checkpoint's settings may have imported, beside Genkidama's and
            Gymnasium's; `"*"` for all (docs/security.md).

    Raises:
        ConfigurationError: its environment or network cannot be made here, do not fit it, or are
            of a module that is not allowed.
    """

    def __init__(self, checkpoint: Checkpoint, seed: int = 0, allow: Iterable[str] = ()) -> None:
        source = str(checkpoint.path or "the checkpoint")
        check_imports(checkpoint.experiment.to_dict(), allow, source)
        #: The settings that it was trained with.
        self.experiment: Experiment = checkpoint.experiment
        #: The file that it comes from, if any, and the parent's count of pushes then.
        self.checkpoint = checkpoint.path
        self.version = checkpoint.snapshot.version
        spaces = spaces_of(played(self.experiment.environment), _spaces_beside(checkpoint))
        self.observation_space, self.action_space = spaces
        #: The network over its vector.
        self.model = model_of(checkpoint, spaces)
        self._one = self.model.network.acting()
        self._many = self.model.network.acting_together()
        self._normalize = self.model.normalizer()
        self._sample = self.model.head.sampler(np.random.default_rng(seed), 0.0)

    @classmethod
    def load(cls, path: str | Path, seed: int = 0, allow: Iterable[str] = ()) -> Policy:
        """The policy in a checkpoint file; errors also as `genkidama.Checkpoint.load`."""
        return cls(sharded_checkpoint.load(path), seed, allow)

    def __repr__(self) -> str:
        source = "weights" if self.checkpoint is None else self.checkpoint
        return f"<Policy for {self.experiment.environment.id}: {source}, version {self.version}>"

    @property
    def module(self) -> nn.Module:
        """The network, plain torch: observations (B, …) to policy outputs (B, outputs), V (B,).

        It takes observations as the network was trained with them: where the experiment normalizes
        them, normalize first, or use `predict`. Its parameters are this policy's.

        Raises:
            ConfigurationError: torch is not installed.
        """
        network: nn.Module = as_tensors(self.model, self, "Policy.module").network
        return network

    def make_environment(self, **options: Any) -> gymnasium.Env[Any, Any]:
        """The environment that it was trained in, wrappers included.

        In place of one of EnvPool's it is Gymnasium's of the same id.

        Args:
            options: more keyword arguments for it, as `render_mode="human"`.

        Raises:
            ConfigurationError: it cannot be made.
        """
        settings = played(self.experiment.environment)
        changed = msgspec.structs.replace(settings, options={**settings.options, **options})
        return make_environment(changed)

    def predict(
        self,
        observation: Any,
        state: Array | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_mask: Any = None,
    ) -> tuple[Any, Array | None]:
        """The action for one observation, or those for many, as Stable-Baselines3 has it.

        Observations are normalized here if the experiment says so.

        Args:
            observation: of the shape of `observation_space`, or (n, that shape). Also one in parts
                (Dict, Tuple) as the environment itself gives it.
            state: what the call before has returned, (H,) or (n, H), of a policy with a memory
                (`network.memory`); None at the beginning. One without ignores it.
            episode_start: whether the observation, or which of them (n,), begins an episode: the
                state before it is then forgotten.
            deterministic: takes the most probable action instead of a sampled one.
            action_mask: of that one observation, if it is not in it.

        Returns:
            The action as the environment takes it, or an array of n of them, or a list where they
            are in parts; and the new state, or None without a memory.

        Raises:
            ValueError: the observation or the state has another shape.
        """
        space = self.observation_space
        shape = space.shape or ()
        in_parts = not isinstance(observation, np.ndarray | list)
        if isinstance(space, MaskedBox):
            whole = not in_parts and np.shape(observation) == shape
            if isinstance(observation, dict) or (action_mask is not None and not whole):
                observation = space.join(observation, action_mask)
        elif isinstance(space, FlatBox) and (
            in_parts or np.shape(observation) == space.inner.shape != shape
        ):
            observation = space.join(observation)
        given = np.asarray(observation, np.float32)
        if given.shape[-len(shape) :] != shape or given.ndim > len(shape) + 1:
            raise ValueError(
                f"an observation of shape {given.shape}: expected {shape}, or n of them as "
                f"(n, {', '.join(map(str, shape))})"
            )
        alone = given.ndim == len(shape)
        if self.model.memory:
            given = self._recalled(given[None] if alone else given, state, episode_start)
            given = given[0] if alone else given
        if self._normalize is not None:
            given = self._normalize(given)
        head = self.model.head
        choose = head.mode if deterministic else self._sample
        if alone:
            found: Any = head.to_environment(choose(self._one(given)))
        else:
            actions = [head.to_environment(choose(row)) for row in self._many(given)]
            found = actions if self.action_space.shape is None else np.asarray(actions)
        if not self.model.memory:
            return found, None
        after = np.array(self.model.network.state)  # the next call may overwrite it
        return found, after[0] if alone else after

    def explain(self, observation: Any, state: Array | None = None) -> Explanation:
        """Explains one observation: probabilities, or means ± spread, or Q values; and V(s).

        Args:
            observation: of the shape of `observation_space`.
            state: of a policy with a memory, as for `predict`: that before this observation.

        Raises:
            ValueError: the observation or the state has another shape.
        """
        given, shape = np.asarray(observation), self.observation_space.shape
        if given.shape != shape:
            raise ValueError(f"an observation of shape {given.shape}: expected {shape}")
        if self.model.memory:
            given = self._recalled(given[None], state)[0]
        return explain(self.model, given)

    def _recalled(self, observations: Array, state: Any, starts: Any = None) -> Array:
        """Observations (n, …) behind the states of the memory."""
        shape = len(observations), self.model.memory
        states = np.zeros(shape, np.float32)
        if state is not None:
            given = np.asarray(state, np.float32)
            if given.shape not in (shape, shape[1:] if len(observations) == 1 else shape):
                raise ValueError(
                    f"a state of shape {given.shape}: expected {shape[1:]} for one observation, or "
                    f"{shape} for {len(observations)}"
                )
            states[:] = given
        if starts is not None:
            states[np.broadcast_to(np.asarray(starts, np.bool_).reshape(-1), len(states))] = 0.0
        return behind(states, observations)

    def to_c(self, path: str | Path) -> Path:
        """Writes the policy as one header, C99 and C++, for a robot's firmware.

        The names in it begin with the file's: `balance.h` has `balance_act`, the most probable
        action for an observation as the environment gives it. It allocates nothing. With a memory
        its second argument is the state, `float[BALANCE_MEMORY]`, which the caller sets to 0 when
        an episode begins, and each call overwrites. If there is a compiler (`cc`, or that in `CC`),
        it is compared with NumPy on 1,000 observations first.

        Raises:
            ConfigurationError: there is no form of its network or head in C.
            EnvironmentFailure: it does not compile or computes something else, or the file cannot
                be written; an older one stays as it was.
        """
        return export(self, "c", path).path

    def to_js(self, path: str | Path) -> Path:
        """Writes the policy as an ES module, for pages and Node.js: `act(observation)`, or
        `act(observation, state)` with a memory.

        As `to_c`, also its errors; if there is `node`, that compares it.
        """
        return export(self, "js", path).path

    def to_onnx(self, path: str | Path) -> Path:
        """Writes the policy for ONNX Runtime and the like, and checks it as `to_c` does.

        Its input is `observation`, float32 (B, …), as the environment gives it. Its outputs are
        `outputs` (logits; or means and logarithms of deviations; or both), `value`, and `action`:
        the most probable one, as the environment takes it. A custom head, and actions in parts
        (Dict, Tuple), have no `action` there. With a memory `state` is another input, float32
        (B, H), which is 0 when an episode begins, and `next_state` another output.

        Raises:
            ConfigurationError: torch is not installed.
            EnvironmentFailure: another package for it is missing, ONNX Runtime computes something
                else, or the file cannot be written; an older one stays as it was.
        """
        return export(self, "onnx", path).path


@dataclass(frozen=True)
class Explanation:
    """Output of a policy for one observation, in the units of the environment."""

    #: Content of `actions`: probabilities of actions, means of a continuous action, or Q values.
    #: A custom head has none of these.
    kind: Literal["probabilities", "means", "values", "unknown"]
    #: float32, (actions,) or (numbers of an action,); empty if unknown. Of several columns, one
    #: after the other. An invalid action has the least Q value of all.
    actions: Array
    #: Standard deviations of means, of their shape; else None.
    spread: Array | None
    #: V(s), the expected discounted return from here, in units of the environment's rewards. Of
    #: DQN it is the largest Q value, of SAC the Q value of the most probable action, or NaN where
    #: a learner beside the parent keeps the critics.
    value: float


def explain(model: Model, observation: Array) -> Explanation:
    """Explains an observation, as the environment gives it.

    Rewards may be scaled, clipped or normalized for learning. V and Q are given without the scale
    and the normalization, but clipped rewards stay clipped.
    """
    outputs, values = model.evaluate(model.native(model.seen(np.asarray(observation)[None])))
    unit = _unit(model)
    said = outputs[0]
    value = float(values[0])
    if getattr(model.head, "greedy", False):
        q = said + (value - said.mean()) if model.experiment.algorithm.dueling else said
        q = np.maximum(q, q[q > INVALID].min())
        return Explanation("values", q / unit, None, float(q.max()) / unit)
    if isinstance(model.head, Categorical):
        pi = np.exp(said - said.max())
        return Explanation("probabilities", pi / pi.sum(), None, value / unit)
    if isinstance(model.head, MultiCategorical):
        pi = model.head.probabilities(said)
        return Explanation("probabilities", pi, None, value / unit)
    if isinstance(model.head, Gaussian):
        mean, log_deviation = np.split(said, 2)
        spread = model.head.deviation(log_deviation)
        if model.head.squashes:
            action = np.tanh(mean)
            mean, slope = model.head.to_environment(action).reshape(-1), 1.0 - action * action
            one = np.ones_like(action)
            reach = model.head.to_environment(one) - model.head.to_environment(-one)
            spread = 0.5 * reach.reshape(-1) * slope * spread
        return Explanation("means", mean, spread, value / unit)
    return Explanation("unknown", np.zeros(0, np.float32), None, value / unit)


def _unit(model: Model) -> float:
    """The value as which a reward of 1 is learned, clipping left out."""
    scale = model.experiment.environment.reward_scale
    returns = model.moments("returns")
    return scale if returns is None else scale / float(returns.mean_and_deviation()[1][0])
