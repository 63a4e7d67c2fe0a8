"""Observations: the spaces that a network can take, and those that become a vector. Imports no
torch."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Text, Tuple
from gymnasium.spaces.utils import flatten, flatten_space

from genkidama.errors import ConfigurationError, EnvironmentFailure

Array = npt.NDArray[Any]

#: What to do about an environment that gives what cannot be learned from.
WAY_OUT = "mend the environment, or put a wrapper around it"

#: Arrays of bytes with two axes are pictures if both have so many pixels; smaller ones are boards.
_LEAST_SIDE = 36


def is_image(space: gymnasium.Space[Any]) -> bool:
    """True if observations look like images: uint8, and three axes.

    Also without channels, if it is no small board, and with several images one behind the other.
    """
    if not isinstance(space, Box) or space.dtype != np.uint8:
        return False
    axes = len(space.shape)
    return axes in (3, 4) or (axes == 2 and min(space.shape) >= _LEAST_SIDE)


class FlatBox(Box):
    """Observations as one array of numbers.

    Those in parts (`Dict`, `Tuple`) stand one behind the other in a vector, and a whole number
    (`Discrete`) is one-hot, as `gymnasium.spaces.utils` has it. A Dict with one part is that part.
    Text and all that has no fixed length is left out of a Dict.

    Raises:
        ConfigurationError: no part of the space has a fixed length.
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        #: The keys of parts that were left out.
        self.dropped: list[str] = []
        part = _of_fixed_length(space, self.dropped)
        if part is None:
            raise ConfigurationError(
                f"environment: its observations are {space}, which have no fixed length; put a "
                "wrapper of your own around it that gives a Box (environment.wrappers)"
            )
        #: The environment's space without these.
        self.inner = part
        self._keys: list[str] = []
        while isinstance(part, Dict) and len(part.spaces) == 1:
            self._keys += part.spaces
            (part,) = part.spaces.values()
        self._part = part
        self._is_whole = isinstance(part, Box) and bool(part.shape)
        flat: Any = part if self._is_whole else flatten_space(part)
        dtype: Any = flat.dtype if self._is_whole else np.float32
        with np.errstate(over="ignore"):  # bounds beyond float32 are infinite there
            low, high = flat.low.astype(dtype), flat.high.astype(dtype)
        super().__init__(low, high, dtype=dtype)

    def join(self, observation: Any) -> Array:
        """An observation, as the environment gives it."""
        for key in self._keys:
            observation = observation[key]
        if self._is_whole:
            return np.asarray(observation)
        return np.asarray(flatten(self._part, observation), np.float32)


def _of_fixed_length(
    space: gymnasium.Space[Any], dropped: list[str]
) -> gymnasium.Space[Any] | None:
    """The space without what has no fixed length; None if nothing remains."""
    if isinstance(space, Dict):
        parts = {key: _of_fixed_length(part, dropped) for key, part in space.spaces.items()}
        dropped += [str(key) for key, part in parts.items() if part is None]
        # A plain dictionary's keys would be sorted.
        kept = OrderedDict((key, part) for key, part in parts.items() if part is not None)
        return Dict(kept) if kept else None
    if isinstance(space, Tuple):
        inner = [_of_fixed_length(part, dropped) for part in space.spaces]
        known = [part for part in inner if part is not None]
        return Tuple(known) if known and len(known) == len(inner) else None
    if isinstance(space, Text):
        return None
    try:
        return space if isinstance(flatten_space(space), Box) else None
    except NotImplementedError:  # a space of somebody else's
        return None


class Flat(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment whose observations are those of a `FlatBox`."""

    def __init__(self, environment: gymnasium.Env[Any, Any]) -> None:
        super().__init__(environment)
        self.observation_space = space = FlatBox(environment.observation_space)
        self.observation = space.join  # type: ignore[method-assign]

    @classmethod
    def around(cls, environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """The environment as it is, if its observations are arrays, or in this wrapper."""
        space = environment.observation_space
        return environment if isinstance(space, Box) and space.shape else cls(environment)


def check_numbers(rewards: Array, *observations: Array) -> None:
    """Checks a batch, in a few microseconds.

    Args:
        rewards: float, shape (n,).
        observations: any shapes; those of whole numbers cost nothing.

    Raises:
        EnvironmentFailure: one of them is NaN or infinite.
    """
    # A sum is NaN or infinite if any part is. If it is only too large, all parts are looked at.
    if not math.isfinite(rewards.sum()) and not np.isfinite(rewards).all():
        raise EnvironmentFailure(f"the environment gave NaN or infinity as a reward; {WAY_OUT}")
    for some in observations:
        if some.dtype.kind == "f" and not math.isfinite(some.sum()) and not np.isfinite(some).all():
            raise EnvironmentFailure(
                f"the environment gave NaN or infinity in an observation; {WAY_OUT}"
            )
