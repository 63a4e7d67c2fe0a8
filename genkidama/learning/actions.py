"""What an environment takes as an action, and how an action is stored. Imports no torch."""

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
    """A function from an action as it is stored to what the environment takes.

    A stored action is float32 (columns,). Errors as `supported`. Discrete actions are stored
    counted from 0. Those of a Box are stored as they were drawn and clipped to the space's bounds
    here.
    """
    space = supported(space)
    if isinstance(space, gymnasium.spaces.Discrete):
        start = int(space.start)

        def number(action: Array) -> int:
            return int(action[0]) + start

        return number
    low = space.low.reshape(-1)
    high = space.high.reshape(-1)
    shape = space.shape

    def clipped(action: Array) -> Array:
        return np.clip(action, low, high).reshape(shape)

    return clipped
