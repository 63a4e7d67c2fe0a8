"""Spaces as plain data: what is read is what was written, whatever kind it is."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.sections import Environment
from genkidama.learning.actions import MaskedBox
from genkidama.learning.observations import FlatBox
from genkidama.learning.spaces import KnownSpaces, data_of, describe_spaces, space_of, spaces_of

shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
floats = st.sampled_from([np.float16, np.float32, np.float64])
integers = st.sampled_from([np.int8, np.uint8, np.int32, np.int64])


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    shape = draw(shapes)
    size = int(np.prod(shape))
    if draw(st.booleans()):
        dtype = draw(integers)
        info = np.iinfo(dtype)
        numbers = st.integers(int(info.min), int(info.max))
    else:
        dtype = draw(floats)
        width = np.dtype(dtype).itemsize * 8
        numbers = st.floats(allow_nan=False, width=width)  # type: ignore[assignment]
    bounds = [
        sorted(draw(st.lists(numbers, min_size=2, max_size=2)))
        for _ in range(1 if draw(st.booleans()) else size)
    ]
    low, high = (np.resize(np.array([b[i] for b in bounds], dtype), shape) for i in (0, 1))
    return spaces.Box(low, high, shape, dtype)


multi_discrete = st.builds(
    lambda n, start: spaces.MultiDiscrete(n, start=start[: len(n)]),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.lists(st.integers(-9, 9), min_size=4, max_size=4),
)


def every(most: int) -> st.SearchStrategy[gymnasium.Space[Any]]:
    """Spaces of any kind, with discrete ones of at most so many choices."""
    simple = st.one_of(
        boxes(),
        st.builds(
            lambda n, start: spaces.Discrete(n, start=start),
            st.integers(1, most),
            st.integers(-most, most),
        ),
        multi_discrete,
        st.builds(spaces.MultiBinary, st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    )
    keys = st.text(max_size=3)
    return st.recursive(
        simple,
        lambda inner: st.one_of(
            st.builds(spaces.Tuple, st.lists(inner, min_size=1, max_size=3)),
            st.builds(spaces.Dict, st.dictionaries(keys, inner, min_size=1, max_size=3)),
        ),
        max_leaves=4,
    )


@given(every(2**40))
def test_a_space_is_read_as_it_was_written(space: gymnasium.Space[Any]) -> None:
    assert space_of(json.loads(json.dumps(data_of(space)))) == space


@given(every(20), st.integers(1, 9), st.integers(0, 3))
def test_so_is_one_of_observations_that_are_joined(
    space: gymnasium.Space[Any], size: int, free: int
) -> None:
    for joined in (FlatBox(space), MaskedBox(space, size, free)):
        read: Any = space_of(json.loads(json.dumps(data_of(joined))))
        assert type(read) is type(joined) and read == joined
    assert (read.size, read.choices, read.rest) == (joined.size, joined.choices, joined.rest)


def test_what_json_cannot_have_is_none_and_is_then_built() -> None:
    class Own(spaces.Discrete):
        """A kind of its own is written as what it derives from."""

    environment = KnownSpaces(spaces.Box(-1.0, 1.0, (2,)), Own(3))
    assert describe_spaces(environment) == [
        {"box": [-1.0, 1.0], "shape": [2], "dtype": "float32"},
        {"discrete": 3, "start": 0},
    ]
    assert describe_spaces(environment._replace(action_space=spaces.Text(3))) is None
    assert spaces_of(Environment(id="CartPole-v1"), None).action_space == spaces.Discrete(2)
