"""Actions: the spaces that have a policy, actions as they are stored, and masks. Imports no torch.

A mask says which choices are valid at an observation: 1 for each that is, else 0. It travels as the
observation's last numbers, so it is wherever the observation is: in batches, in a replay, on the
wire, at GA3C's predictors. A network takes what stands before it, and its outputs for invalid
choices become `INVALID`: their probability and their gradient are 0 (Huang & Ontañón 2022).

An action space may be a Tuple or Dict of others, nested at will. A stored action has the discrete
columns of all parts before the continuous ones, and each in the order of its space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias, TypeGuard, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.observations import FlatBox

Array = npt.NDArray[Any]

Supported: TypeAlias = "Box | Discrete | MultiDiscrete | MultiBinary | Tuple[Any] | Dict"

#: Choices of all columns of an action together, at most: each is an output of the network.
_MOST_CHOICES = 65_536

#: The output for an invalid choice. It is finite, so its product with a probability of 0 is 0, and
#: below whatever else is added to outputs.
INVALID = np.float32(-1e38)

#: The key of a mask, in an observation or in `info`.
_KEY = "action_mask"


def supported(space: gymnasium.Space[Any]) -> Supported:
    """The action space itself, if there is a policy for it.

    Raises:
        ConfigurationError: a part of it is no Discrete, MultiDiscrete, MultiBinary or Box, or has
            too many choices.
    """
    total, count = 0, 0
    for part in _parts(space):
        if not isinstance(part, Box | Discrete | MultiDiscrete | MultiBinary):
            where = "is" if part is space else "has the part"
            raise ConfigurationError(
                f"environment: its action space {where} {part}; Discrete, MultiDiscrete, "
                "MultiBinary, Box, and a Tuple or Dict of these are supported"
            )
        total, count = total + sum(_sizes(part)), count + 1
    if not count:
        raise ConfigurationError(f"environment: its action space is {space}, with no action in it")
    if total > _MOST_CHOICES:
        raise ConfigurationError(
            f"environment: its action space {space} has {total} choices of whole numbers, "
            f"at most {_MOST_CHOICES} are supported; give it narrower bounds, or floats"
        )
    return cast(Supported, space)


def _parts(space: gymnasium.Space[Any]) -> Iterator[gymnasium.Space[Any]]:
    """The spaces in a Tuple or Dict, at any depth, in its order; any other one itself."""
    if isinstance(space, Tuple | Dict):
        for each in _inside(space):
            yield from _parts(each)
    else:
        yield space


def _inside(space: Tuple[Any] | Dict) -> Iterable[gymnasium.Space[Any]]:
    return space.spaces.values() if isinstance(space, Dict) else space.spaces


def _sizes(part: gymnasium.Space[Any]) -> tuple[int, ...]:
    """The number of choices in each column of a space without parts; () for a Box of floats."""
    if isinstance(part, Discrete):
        return (int(part.n),)
    if isinstance(part, MultiDiscrete):
        return tuple(part.nvec.reshape(-1).tolist())
    if isinstance(part, MultiBinary):
        return (2,) * int(np.prod(part.shape))
    if not isinstance(part, Box) or part.dtype.kind == "f":
        return ()
    bounds = zip(part.low.reshape(-1).tolist(), part.high.reshape(-1).tolist(), strict=True)
    return tuple(int(high) - int(low) + 1 for low, high in bounds)


def choices(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    """The number of choices in each discrete column of an action; () if none is discrete. Errors as
    `supported`."""
    return tuple(size for part in _parts(supported(space)) for size in _sizes(part))


def bounds(space: gymnasium.Space[Any]) -> tuple[Array, Array]:
    """The lowest and the highest numbers of the continuous columns, (columns,) each, float."""
    parts = [
        part for part in _parts(supported(space)) if isinstance(part, Box) and not _sizes(part)
    ]
    nothing = np.zeros(0, np.float32)
    low = np.concatenate([nothing, *(part.low.reshape(-1) for part in parts)])
    return low, np.concatenate([nothing, *(part.high.reshape(-1) for part in parts)])


def columns(space: gymnasium.Space[Any]) -> int:
    """The length of a stored action; errors as `supported`."""
    return len(choices(space)) + len(bounds(space)[0])


def first(space: gymnasium.Space[Any]) -> Any:
    """The action whose numbers are stored as 0, if all are discrete: a number, or an array."""
    return space.low.astype(np.int64) if isinstance(space, Box) else getattr(space, "start", 0)


def action_of(space: gymnasium.Space[Any], numbers: Any) -> Any:
    """The action that a user gives by its numbers; None if it is none of the space's.

    Those of a Tuple or Dict stand one behind the other, in its order.
    """
    with suppress(TypeError, ValueError, OverflowError):
        action: Any
        if isinstance(space, Tuple | Dict):
            ends = np.cumsum([columns(part) for part in _inside(space)])
            given = np.split(np.asarray(numbers), ends)
            beyond = given.pop().size
            actions = list(map(action_of, _inside(space), given))
            if beyond or any(action is None for action in actions):
                return None
            keys = space.spaces if isinstance(space, Dict) else ()
            action = dict(zip(keys, actions, strict=True)) if keys else tuple(actions)
        else:
            action = np.asarray(numbers, space.dtype).reshape(space.shape or ())
            action = action[()] if isinstance(space, Discrete) else action
        return action if space.contains(action) else None
    return None


def converter(space: gymnasium.Space[Any]) -> Callable[[Array], Any]:
    """A function from an action as it is stored to what the environment takes.

    A stored action is (columns,), of float32 or of its head's type. Errors as `supported`. Discrete
    actions are stored counted from 0. Those of a Box are stored as they were drawn and clipped to
    the space's bounds here.
    """
    space = supported(space)
    if isinstance(space, Tuple | Dict):
        return _together(space)
    if isinstance(space, Discrete):
        start = int(space.start)

        def number(action: Array) -> int:
            return int(action[0]) + start

        return number
    shape = space.shape
    if isinstance(space, Box) and space.dtype.kind == "f":
        low, high = space.low.reshape(-1), space.high.reshape(-1)

        def clipped(action: Array) -> Array:
            return np.clip(action, low, high).reshape(shape)

        return clipped
    begin = np.zeros(shape, np.int64) + first(space)
    dtype = space.dtype

    def numbers(action: Array) -> Array:
        found: Array = (action.reshape(shape) + begin).astype(dtype)
        return found

    return numbers


def _together(space: Tuple[Any] | Dict) -> Callable[[Array], Any]:
    """The same for a Tuple or Dict."""
    discrete, continuous = 0, len(choices(space))

    def made(part: gymnasium.Space[Any]) -> Callable[[Array], Any]:
        nonlocal discrete, continuous
        if isinstance(part, Dict):
            named = {key: made(each) for key, each in part.spaces.items()}
            return lambda action: {key: make(action) for key, make in named.items()}
        if isinstance(part, Tuple):
            makers = [made(each) for each in part.spaces]
            return lambda action: tuple(make(action) for make in makers)
        width, convert = columns(part), converter(part)
        if _sizes(part):
            begin = discrete
            discrete = end = begin + width
        else:
            begin = continuous
            continuous = end = begin + width
        return lambda action: convert(action[begin:end])

    return made(space)


# Masks.


class MaskedBox(Box):
    """Observations as vectors that end with a mask.

    Args:
        space: of the environment's observations: a Dict in which the mask has the key
            `action_mask`, or without masks.
        size: numbers of a mask: the choices of each column, one column after the other.
        free: outputs behind those of the choices, which are always valid.
    """

    def __init__(self, space: gymnasium.Space[Any], size: int, free: int = 0) -> None:
        if _has_key(space):
            given = sum(int(np.prod(part.shape or ())) for part in _parts(space.spaces[_KEY]))
            if given != size:
                raise ConfigurationError(
                    f"environment: its action_mask has {given} numbers, but the actions have "
                    f"{size} choices; give a number for each choice, or name the key otherwise"
                )
            space = Dict({key: part for key, part in space.spaces.items() if key != _KEY})
        #: The space of what a network takes: images as they are, all else in one vector.
        self.rest = FlatBox(space)
        #: Numbers of a mask as the environment gives it, and as it travels.
        self.choices, self.size = size, size + free
        dtype: Any = np.uint8 if self.rest.dtype == np.uint8 else np.float32
        low = np.append(self.rest.low, np.zeros(self.size))
        high = np.append(self.rest.high, np.ones(self.size))
        with np.errstate(over="ignore"):
            low, high = low.astype(dtype), high.astype(dtype)
        super().__init__(low, high, dtype=dtype)

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
        if isinstance(mask, tuple):
            mask = np.concatenate([np.ravel(part) for part in mask])
        valid = np.ravel(np.asarray(mask, np.bool_))
        if len(valid) != self.choices:
            raise EnvironmentFailure(
                f"an action mask of {len(valid)} numbers: expected {self.choices}, one for each "
                "choice"
            )
        joined = np.empty(self.shape, self.dtype)
        joined[: -self.size] = self.rest.join(observation).reshape(-1)
        joined[-self.size :] = 1
        if valid.any():
            joined[-self.size :][: self.choices] = valid
        return joined


def _has_key(space: gymnasium.Space[Any]) -> TypeGuard[Dict]:
    return isinstance(space, Dict) and _KEY in space.spaces and len(space.spaces) > 1


def has_masks(observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> bool:
    """True if observations of this space have masks of these actions."""
    return _has_key(observations) and bool(choices(actions))


class ActionMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations are those of a `MaskedBox`.

    Args:
        environment: with discrete actions.
        informs: whether masks are in `info`; else they are in its Dict of observations.
    """

    def __init__(self, environment: gymnasium.Env[Any, Any], informs: bool) -> None:
        super().__init__(environment)
        self._informs = informs
        actions = environment.action_space
        free = 2 * len(bounds(actions)[0])
        space = MaskedBox(environment.observation_space, sum(choices(actions)), free)
        self.observation_space = space

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
        if informs or has_masks(environment.observation_space, actions):
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
