"""The spaces of an environment as plain data, for who computes without building one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from genkidama.config.sections import Environment
from genkidama.learning.actions import MaskedBox
from genkidama.learning.environments import closing_environment, make_environment
from genkidama.learning.observations import FlatBox

#: Two spaces, as JSON can have them.
Data: TypeAlias = list[dict[str, Any]]


class KnownSpaces(NamedTuple):
    """The spaces of an environment that is not there."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]


def spaces_of(settings: Environment, data: Data | None) -> KnownSpaces:
    """The spaces that were described; without that, an environment is built for them."""
    if data is not None:
        return KnownSpaces(*map(space_of, data))
    with closing_environment(make_environment(settings)) as environment:
        return KnownSpaces(environment.observation_space, environment.action_space)


def describe_spaces(environment: Any) -> Data | None:
    """The spaces of an environment, for observations and for actions; None if they are of another
    kind than JSON can have."""
    try:
        return [data_of(environment.observation_space), data_of(environment.action_space)]
    except TypeError:
        return None


def look(receive: Callable[[], Any], send: Callable[[Any], None], settings: Environment) -> None:
    """The task that builds an environment for its spaces alone, and closes it."""
    send(describe_spaces(spaces_of(settings, None)))


def data_of(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """A space as JSON can have it, for `space_of`. Raises a TypeError if it is of another kind."""
    match space:
        case MaskedBox():
            free = space.size - space.choices
            return {"masked": data_of(space.rest.inner), "size": space.choices, "free": free}
        case FlatBox():
            return {"flat": data_of(space.inner)}
        case spaces.Box():
            bounds = [_short(bound) for bound in (space.low, space.high)]
            return {"box": bounds, "shape": list(space.shape), "dtype": space.dtype.name}
        case spaces.Discrete():
            return {"discrete": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            start = np.zeros_like(space.nvec) + space.start
            numbers = {"multi-discrete": space.nvec.tolist(), "start": start.tolist()}
            return {**numbers, "dtype": space.dtype.name}
        case spaces.MultiBinary():
            return {"multi-binary": list(space.shape)}
        case spaces.Tuple():
            return {"tuple": [data_of(part) for part in space.spaces]}
        case spaces.Dict():
            return {"dict": {key: data_of(part) for key, part in space.spaces.items()}}
    raise TypeError(f"{space}: no such space can be written down")


def space_of(data: dict[str, Any]) -> gymnasium.Space[Any]:
    """The space that `data_of` has described."""
    (kind, value), *rest = data.items()
    others = dict(rest)
    match kind:
        case "masked":
            return MaskedBox(space_of(value), **others)
        case "flat":
            return FlatBox(space_of(value))
        case "box":
            shape, dtype = tuple(others["shape"]), np.dtype(others["dtype"])
            low, high = (np.full(shape, bound, dtype) for bound in value)
            return spaces.Box(low, high, shape, dtype.type)
        case "discrete":
            return spaces.Discrete(value, start=others["start"])
        case "multi-discrete":
            return spaces.MultiDiscrete(
                value, np.dtype(others["dtype"]).type, start=others["start"]
            )
        case "multi-binary":
            return spaces.MultiBinary(value)
        case "tuple":
            return spaces.Tuple([space_of(part) for part in value])
        case "dict":
            return spaces.Dict(OrderedDict((key, space_of(part)) for key, part in value.items()))
    raise ValueError(f"{kind!r}: no such space is known")


def _short(bound: Any) -> Any:
    """One number in place of an array of equal ones."""
    return bound.flat[0].item() if bound.size and (bound == bound.flat[0]).all() else bound.tolist()
