"""Actions: the spaces that have a policy, actions as they are stored, and masks. Imports no torch.

A mask says which choices are valid at an observation: 1 for each that is, else 0. It travels as the
observation's last numbers, so it is wherever the observation is: in batches, in a replay, on the
wire, at GA3C's predictors. A network takes what stands before it, and its outputs for invalid
choices become `INVALID`: their probability and their gradient are 0 (Huang & Ontañón 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeGuard

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.spaces.utils import flatten, flatten_space

from genkidama.errors import ConfigurationError, EnvironmentFailure

Array = npt.NDArray[Any]

Supported: TypeAlias = "Box | Discrete | MultiDiscrete | MultiBinary"

#: The output for an invalid choice. It is finite, so its product with a probability of 0 is 0, and
#: below whatever else is added to outputs.
INVALID = np.float32(-1e38)

#: The key of a mask, in an observation or in `info`.
_KEY = "action_mask"


def supported(space: gymnasium.Space[Any]) -> Supported:
    """The action space itself, if there is a policy for it.

    Raises:
        ConfigurationError: it is no Discrete, MultiDiscrete, MultiBinary, or Box of floats.
    """
    if isinstance(space, Discrete | MultiDiscrete | MultiBinary):
        return space
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        return space
    raise ConfigurationError(
        f"environment: its action space is {space}; Discrete, MultiDiscrete, MultiBinary and Box "
        "(floats) are supported"
    )


def choices(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    """The number of choices in each column of a discrete action; () for a Box. Errors as
    `supported`."""
    space = supported(space)
    if isinstance(space, Discrete):
        return (int(space.n),)
    if isinstance(space, MultiDiscrete):
        return tuple(space.nvec.reshape(-1).tolist())
    return (2,) * int(np.prod(space.shape)) if isinstance(space, MultiBinary) else ()


def columns(space: gymnasium.Space[Any]) -> int:
    """The length of a stored action; errors as `supported`."""
    return len(choices(space)) or int(np.prod(space.shape or ()))


def action_of(space: gymnasium.Space[Any], numbers: Any) -> Any:
    """The action that a user gives by its numbers; None if it is none of the space's."""
    with suppress(TypeError, ValueError, OverflowError):
        action = np.asarray(numbers, space.dtype).reshape(space.shape or ())[()]
        return action if space.contains(action) else None
    return None


def converter(space: gymnasium.Space[Any]) -> Callable[[Array], Any]:
    """A function from an action as it is stored to what the environment takes.

    A stored action is (columns,), of float32 or of its head's type. Errors as `supported`. Discrete
    actions are stored counted from 0. Those of a Box are stored as they were drawn and clipped to
    the space's bounds here.
    """
    space = supported(space)
    if isinstance(space, Discrete):
        start = int(space.start)

        def number(action: Array) -> int:
            return int(action[0]) + start

        return number
    shape = space.shape
    if isinstance(space, Box):
        low, high = space.low.reshape(-1), space.high.reshape(-1)

        def clipped(action: Array) -> Array:
            return np.clip(action, low, high).reshape(shape)

        return clipped
    first = np.zeros(shape, np.int64) + getattr(space, "start", 0)
    dtype = space.dtype

    def numbers(action: Array) -> Array:
        return (action.reshape(shape) + first).astype(dtype)

    return numbers


# Masks.


def mask_size(space: gymnasium.Space[Any]) -> int:
    """The number of the last numbers of an observation that are its mask; 0 if it has none."""
    return space.size if isinstance(space, MaskedBox) else 0


class MaskedBox(Box):
    """Observations as vectors that end with a mask.

    Args:
        space: of the environment's observations: a Dict in which the mask has the key
            `action_mask`, or without masks.
        size: numbers of a mask: the choices of each column, one column after the other.
    """

    def __init__(self, space: gymnasium.Space[Any], size: int) -> None:
        #: The one key of a Dict beside that of its mask. None: there are several, or there is none.
        self._key: str | None = None
        if _has_key(space):
            others = {key: part for key, part in space.spaces.items() if key != _KEY}
            self._key = next(iter(others)) if len(others) == 1 else None
            space = Dict(others) if self._key is None else others[self._key]
        #: The space of observations without masks.
        self.inner = space
        flat = flatten_space(space)
        assert isinstance(flat, Box)
        #: The space of what a network takes: images as they are, all else in one vector.
        self.rest = space if isinstance(space, Box) and space.shape else flat
        self.size = size
        dtype: Any = np.uint8 if flat.dtype == np.uint8 else np.float32
        low, high = np.append(flat.low, np.zeros(size)), np.append(flat.high, np.ones(size))
        super().__init__(low.astype(dtype), high.astype(dtype), dtype=dtype)

    def join(self, observation: Any, mask: Any = None) -> Array:
        """An observation and its mask in one vector. A mask without anything valid counts as none.

        Args:
            observation: as the environment gives it.
            mask: of any shape, or a tuple of one for each column, as Gymnasium's spaces take it;
                without it, it is in the Dict of observations.

        Raises:
            EnvironmentFailure: the mask has another size.
        """
        if mask is None:
            mask = observation[_KEY]
            if self._key is not None:
                observation = observation[self._key]
        if isinstance(mask, tuple):
            mask = np.concatenate([np.ravel(part) for part in mask])
        valid = np.ravel(np.asarray(mask, np.bool_))
        if len(valid) != self.size:
            raise EnvironmentFailure(
                f"an action mask of {len(valid)} numbers: expected {self.size}, one for each choice"
            )
        joined = np.empty(self.shape, self.dtype)
        joined[: -self.size] = np.asarray(flatten(self.inner, observation))
        joined[-self.size :] = valid if valid.any() else 1
        return joined


def _has_key(space: gymnasium.Space[Any]) -> TypeGuard[Dict]:
    return isinstance(space, Dict) and _KEY in space.spaces and len(space.spaces) > 1


class ActionMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations are those of a `MaskedBox`.

    Args:
        environment: with discrete actions.
        informs: whether masks are in `info`; else they are in its Dict of observations.
    """

    def __init__(self, environment: gymnasium.Env[Any, Any], informs: bool) -> None:
        super().__init__(environment)
        self._informs = informs
        size = sum(choices(environment.action_space))
        self.observation_space = MaskedBox(environment.observation_space, size)

    @classmethod
    def around(cls, environment: gymnasium.Env[Any, Any], informs: bool) -> gymnasium.Env[Any, Any]:
        """The environment as it is, or in this wrapper if it has masks.

        Raises:
            ConfigurationError: there are to be masks, but the actions are continuous.
        """
        actions = environment.action_space
        if informs and not choices(actions):
            raise ConfigurationError(
                f"environment.action_mask = 'info': the action space is {actions}, and only "
                "discrete actions have masks; leave it out"
            )
        if informs or (_has_key(environment.observation_space) and not isinstance(actions, Box)):
            return cls(environment, informs)
        return environment

    def reset(self, **options: Any) -> tuple[Array, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return self._joined(observation, info), info

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._joined(observation, info), reward, terminated, truncated, info

    def _joined(self, observation: Any, info: dict[str, Any]) -> Array:
        space = self.observation_space
        assert isinstance(space, MaskedBox)
        if not self._informs:
            return space.join(observation)
        if (mask := info.get(_KEY)) is None:
            raise EnvironmentFailure(
                "environment.action_mask = 'info': the environment's info has no 'action_mask'"
            )
        return space.join(observation, mask)
