"""Observations that become a vector, images, and what is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiDiscrete, Sequence, Text, Tuple
from gymnasium.spaces.utils import flatten

from genkidama.errors import ConfigurationError
from genkidama.learning.observations import FlatBox, is_image


def pixels(*shape: int, dtype: Any = np.uint8) -> Box:
    return Box(0, 255, shape, dtype)


def test_bytes_with_the_axes_of_images_are_images_and_boards_and_numbers_are_none() -> None:
    for shape in ((84, 84, 3), (4, 84, 84), (5, 5, 3), (4, 96, 96, 3), (36, 40)):
        assert is_image(pixels(*shape))
        assert not is_image(pixels(*shape, dtype=np.float32))
    for space in (pixels(8, 8), pixels(35, 90), pixels(128), Dict({"a": pixels(9, 9, 3)})):
        assert not is_image(space)


@pytest.mark.parametrize(
    "space",
    [
        Discrete(4, start=7),
        MultiDiscrete([3, 4]),
        Box(-1.0, 1.0, ()),
        Tuple((Dict({"b": Box(-1.0, 1.0, (2, 2)), "a": Discrete(3)}), Discrete(2))),
        Dict({"only": Discrete(3)}),
    ],
    ids=str,
)
def test_whatever_has_a_fixed_length_is_a_vector_of_float32(space: Any) -> None:
    flat = FlatBox(space)
    space.seed(3)
    sample = space.sample()
    joined = flat.join(sample)
    assert joined.dtype == flat.dtype == np.float32 and joined in flat and not flat.dropped
    assert np.array_equal(joined, np.asarray(flatten(space, sample), np.float32).reshape(-1))


def test_a_dict_loses_what_has_no_fixed_length_and_keeps_its_order() -> None:
    inner = Dict([("z", Discrete(2)), ("note", Text(3)), ("a", Box(-1.0, 1.0, (1,)))])
    space = Dict([("seen", inner), ("mission", Text(9)), ("path", Sequence(Discrete(2)))])
    flat = FlatBox(space)
    assert flat.dropped == ["note", "mission", "path"]
    given = {"mission": "go", "path": (1, 0), "seen": {"note": "x", "a": [0.5], "z": 1}}
    assert flat.join(given).tolist() == [0.0, 1.0, 0.5]


def test_a_dict_with_an_image_alone_is_that_image() -> None:
    flat = FlatBox(Dict({"camera": Dict({"front": pixels(40, 30, 3)}), "mission": Text(9)}))
    assert is_image(flat) and flat.shape == (40, 30, 3)
    picture = np.full((40, 30, 3), 7, np.uint8)
    assert flat.join({"camera": {"front": picture}, "mission": ""}) is picture


@pytest.mark.parametrize(
    "space",
    [
        Text(4),
        Sequence(Discrete(2)),
        Graph(Box(-1.0, 1.0, (2,)), None),
        Tuple((Text(4), Discrete(2))),
        Dict({"a": Text(4)}),
    ],
    ids=str,
)
def test_what_has_no_fixed_length_at_all_is_refused_by_name(space: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FlatBox(space)
    assert str(caught.value) == (
        f"environment: its observations are {space}, which have no fixed length; put a wrapper of "
        "your own around it that gives a Box (environment.wrappers)"
    )
