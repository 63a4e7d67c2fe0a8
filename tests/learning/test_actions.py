from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.learning.actions import columns, converter
from genkidama.learning.heads import head_for
from tests.helpers import ROOT


def test_who_only_acts_imports_no_torch() -> None:
    code = (
        "import sys, genkidama.learning.actions, genkidama.learning.environments; "
        "print('torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (found.stdout.strip(), found.returncode) == ("False", 0), found.stderr


@given(st.integers(1, 1000), st.integers(-1000, 1000), st.data())
def test_discrete_actions_are_stored_counted_from_0_and_may_start_anywhere(
    n: int, start: int, data: st.DataObject
) -> None:
    space = Discrete(n, start=start)
    number = data.draw(st.integers(0, n - 1))
    action = converter(space)(np.array([number], np.float32))
    assert columns(space) == 1
    assert type(action) is int and action == start + number and space.contains(action)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
def test_continuous_actions_are_clipped_to_the_bounds_in_the_spaces_shape(
    shape: tuple[int, ...], dtype: type
) -> None:
    space = Box(-0.25, 0.5, shape, dtype)
    convert, size = converter(space), int(np.prod(shape))
    assert columns(space) == size
    for given_number, expected in ((-9.0, -0.25), (0.125, 0.125), (9.0, 0.5)):
        stored = np.full(size, given_number, np.float32)
        action = np.asarray(convert(stored))
        assert (
            action.shape == shape
            and (action == expected).all()
            and space.contains(action.astype(dtype))
        )
        assert (stored == given_number).all()  # what is stored is the sample


def test_each_number_has_its_own_bounds_and_some_have_none() -> None:
    space = Box(
        np.array([[-1.0, -np.inf], [0.0, -4.0]], np.float32),
        np.array([[1.0, np.inf], [2.0, np.inf]], np.float32),
    )
    assert converter(space)(np.array([-5.0, -5.0, -5.0, -5.0], np.float32)).tolist() == [
        [-1.0, -5.0],
        [0.0, -4.0],
    ]
    assert converter(space)(np.array([5.0, 5.0, 5.0, 5.0], np.float32)).tolist() == [
        [1.0, 5.0],
        [2.0, 5.0],
    ]


@pytest.mark.parametrize(
    "space",
    [Discrete(3), Discrete(2, start=7), Box(-1.0, 1.0, (2,)), Box(0.0, 0.5, (2, 2), np.float64)],
)
def test_a_head_stores_as_many_numbers_and_takes_them_to_the_same_action(
    space: gymnasium.Space[Any],
) -> None:
    head = head_for(space)
    assert head.columns == columns(space)
    sample, row = head.sampler(np.random.default_rng(0), 0.2), np.empty(head.columns, np.float32)
    for _ in range(50):
        action = sample(np.zeros(head.outputs, np.float32))
        row[:] = action
        assert np.array_equal(converter(space)(row), head.to_environment(action))


@pytest.mark.parametrize("ask", [columns, converter, head_for])
@pytest.mark.parametrize(
    "space",
    [MultiDiscrete([2, 3]), MultiBinary(3), Box(0, 255, (2,), np.uint8), Dict({"a": Discrete(2)})],
)
def test_other_spaces_are_refused_by_name(space: gymnasium.Space[Any], ask: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ask(space)
    assert (
        str(caught.value)
        == f"environment: its action space is {space}; Discrete and Box (floats) are supported"
    )
