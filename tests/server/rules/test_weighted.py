from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.protocol.vector import DTYPE
from genkidama.server.rules.blend import Blend, Update
from genkidama.server.rules.weighted import Weighted
from tests.server.rules import apply_all, check_rule, contribution, pushes

OPTIONS: list[dict[str, Any]] = [
    {"staleness": "polynomial", "by": "steps"},
    {"staleness": "hinge", "staleness_grace": 1, "by": "speed", "buffer": 2},
    {"buffer": "children", "milliseconds": 500},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_keeps_the_promises(options: dict[str, Any]) -> None:
    check_rule(lambda alpha: Weighted(alpha, **options))


@given(pushes(), st.floats(0.0, 1.0))
def test_without_an_option_it_is_the_documented_blend(brought: list[Update], alpha: float) -> None:
    start = np.ones(len(brought[0].vector), DTYPE)
    ours = apply_all(Weighted(alpha), start, brought)
    assert ours.tobytes() == apply_all(Blend(alpha), start, brought).tobytes()


def test_a_stale_push_counts_less() -> None:
    rule = Weighted(0.5, staleness="polynomial", staleness_decay=1.0)
    parent = np.zeros(1, DTYPE)
    rule.apply(parent, contribution(np.full(1, 8.0, DTYPE), staleness=3))
    assert parent.tolist() == [1.0]  # α = 0.5 / 4


def test_a_buffer_is_a_blend_with_the_weighted_mean() -> None:
    rule = Weighted(0.5, staleness="polynomial", staleness_decay=1.0, buffer=2)
    parent = np.zeros(1, DTYPE)
    rule.apply(parent, contribution(np.full(1, 8.0, DTYPE), staleness=1))
    assert parent.tolist() == [0.0]
    rule.apply(parent, contribution(np.full(1, 2.0, DTYPE)))
    # The mean of 8 with weight ½ and 2 is 4; α is 0.5 times the mean weight ¾.
    assert parent.tolist() == [1.5]


def test_a_heavy_push_is_never_more_than_the_whole_parent() -> None:
    rule = Weighted(0.9, by="steps")
    parent = np.zeros(1, DTYPE)
    rule.apply(parent, contribution(np.zeros(1, DTYPE), steps=10))
    rule.apply(parent, contribution(np.full(1, 8.0, DTYPE), steps=40))
    assert parent.tolist() == [8.0]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"buffer": 0}, "parent.rule_options: buffer = 0: "),
        ({"staleness": "linear"}, "parent.rule_options: staleness = 'linear': expected one of"),
        ({"momentum": 0.5}, "parent.rule_options: momentum = 0.5: no such setting; "),
    ],
)
def test_a_wrong_option_is_told_in_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Weighted(0.5, **options)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
