"""What an environment gives must be numbers."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.child.collector import check_numbers, may_be_none
from genkidama.errors import EnvironmentFailure

NONE = (float("nan"), float("inf"), -float("inf"))


@settings(max_examples=30)
@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20),
    st.integers(0, 19),
    st.sampled_from(NONE),
    st.booleans(),
)
def test_one_that_is_none_is_found_wherever_it_is_and_named(
    numbers: list[float], place: int, none: float, reward: bool
) -> None:
    good = np.array(numbers, np.float32)
    check_numbers(good, good.reshape(-1, 1), good)
    bad = good.copy()
    bad[place % len(bad)] = none
    what = "as a reward" if reward else "in an observation"
    with pytest.raises(EnvironmentFailure, match=f"the environment gave NaN or infinity {what}; "):
        check_numbers(bad if reward else good, good, good if reward else bad[:, None])


@pytest.mark.filterwarnings("ignore:overflow")
def test_large_numbers_and_whole_ones_are_numbers() -> None:
    large = np.full(9, 3e38, np.float32)
    check_numbers(large, large, np.arange(9, dtype=np.uint8))


def test_spaces_of_whole_numbers_are_not_looked_at() -> None:
    assert may_be_none(gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32))
    assert not may_be_none(gymnasium.spaces.Box(0, 255, (2,), np.uint8))
    assert not may_be_none(gymnasium.spaces.Discrete(3))
