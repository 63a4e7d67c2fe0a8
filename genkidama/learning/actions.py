"""What an environment takes as an action, and how many numbers of the memory that is. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama.errors import ConfigurationError

__all__ = ["columns", "converter", "supported"]

Array = npt.NDArray[Any]


def supported(space: gymnasium.Space[Any]) -> gymnasium.spaces.Discrete | gymnasium.spaces.Box:
    """The action space itself, if there is a policy for it.

    Raises:
        ConfigurationError: the space is neither Discrete nor a Box of floats.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return space
    if isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return space
    raise ConfigurationError(
        f"environment: its action space is {space}; Discrete and Box (floats) are supported"
    )


def columns(space: gymnasium.Space[Any]) -> int:
    """How many numbers an action is stored as; errors as `supported`."""
    space = supported(space)
    return 1 if isinstance(space, gymnasium.spaces.Discrete) else int(np.prod(space.shape))


def converter(space: gymnasium.Space[Any]) -> Callable[[Array], Any]:
    """A function from an action as it is stored, (columns,) float32, to what the environment takes; errors as `supported`.

    Discrete actions are stored counted from 0. Those of a Box are stored as they were drawn and
    clipped to the space's bounds here.
    """
    space = supported(space)
    if isinstance(space, gymnasium.spaces.Discrete):
        start = int(space.start)

        def number(action: Array) -> int:
            return int(action[0]) + start

        return number
    low, high, shape = space.low.reshape(-1), space.high.reshape(-1), space.shape

    def clipped(action: Array) -> Array:
        return np.clip(action, low, high).reshape(shape)

    return clipped
