from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from genkidama.protocol.vector import DTYPE
from genkidama.server.rules.difference import DifferenceOptions
from genkidama.server.rules.trust_region import BLOCK, add_scaled, blend_statistics
from tests.server.rules import contribution

ONE = np.ones(1, DTYPE)


@pytest.mark.parametrize(
    ("power", "expected"),
    [(0.0, [1, 1, 1]), (0.5, [1, 2, 3]), (1.0, [1, 4, 9]), (-0.5, [1, 1 / 2, 1 / 3])],
)
def test_the_factor_follows_the_number_of_children(power: float, expected: list[float]) -> None:
    options = DifferenceOptions(children_power=power)
    found = [options.factor(contribution(ONE, children=n)) for n in (1, 4, 9)]
    assert found == pytest.approx(expected)
    assert options.factor(contribution(ONE, children=0)) == 1.0


def test_the_longest_step_is_shorter_with_more_children() -> None:
    push = contribution(ONE, children=4)
    assert DifferenceOptions(max_step=3.0).longest(push) == 1.5
    assert DifferenceOptions().longest(push) == math.inf


@pytest.mark.parametrize("size", [1, BLOCK, BLOCK + 1])
def test_a_scaled_vector_is_added(size: int) -> None:
    rng = np.random.default_rng(size)
    weights, change = rng.normal(size=(2, size)).astype(DTYPE)
    expected = weights + change * DTYPE.type(0.3)
    add_scaled(weights, change, 0.3)
    assert weights.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, [1, 2, 3]),
        ({"statistics": 2}, [1, 20, 30]),
        ({"statistics": 2, "children": 4}, [1, 6.5, 9.75]),
    ],
)
def test_statistics_are_mixed_one_part_in_n(more: dict[str, Any], expected: list[float]) -> None:
    parent = np.array([1, 2, 3], DTYPE)
    blend_statistics(parent, contribution(np.array([10, 20, 30], DTYPE), **more))
    assert parent.tolist() == expected
