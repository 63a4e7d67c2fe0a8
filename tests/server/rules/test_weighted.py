from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.protocol.vector import DTYPE
from genkidama.server.rules.blend import Blend, Rule, Update
from genkidama.server.rules.difference import Difference
from genkidama.server.rules.gradient import Gradient
from genkidama.server.rules.weighted import (
    HEAVIEST,
    Buffer,
    PushWeights,
    UpdateBatch,
    Weighted,
    WeightedOptions,
    age_weight,
)
from tests.server.rules import apply_all, check_rule, contribution, copied, pushes

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


def test_a_buffer_is_a_blend_with_the_weighted_mean() -> None:
    rule = Weighted(0.5, staleness="polynomial", staleness_decay=1.0, buffer=2)
    parent = np.zeros(1, DTYPE)
    rule.apply(parent, contribution(np.full(1, 8.0, DTYPE), staleness=1))
    assert parent.tolist() == [0.0]
    rule.apply(parent, contribution(np.full(1, 2.0, DTYPE)))
    # The mean of 8 with weight ½ and 2 is 4; α is 0.5 times the mean weight ¾.
    assert parent.tolist() == [1.5]


def test_pushes_of_hardly_any_weight_move_nothing() -> None:
    rule = Weighted(0.5, staleness="polynomial", staleness_decay=46, buffer=2)
    parent = np.ones(1, DTYPE)
    for _ in range(2):  # of weight 1e-46, which is 0 in float32
        rule.apply(parent, contribution(np.full(1, 8.0, DTYPE), staleness=9))
    assert parent.tolist() == [1.0]


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


ONE = np.ones(1, DTYPE)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, [1, 1, 1, 1]),
        ({"staleness": "polynomial"}, [1, 2**-0.5, 3**-0.5, 0.5]),
        ({"staleness": "polynomial", "staleness_decay": 1}, [1, 1 / 2, 1 / 3, 1 / 4]),
        ({"staleness": "hinge", "staleness_grace": 1}, [1, 1, 1 / 1.5, 1 / 2]),
        ({"staleness": "hinge", "staleness_grace": 2, "staleness_decay": 10}, [1, 1, 1, 1 / 11]),
    ],
)
def test_by_age_as_in_the_paper(options: dict[str, float], weights: list[float]) -> None:
    checked = WeightedOptions(**options)  # type: ignore[arg-type]
    assert [age_weight(checked, age) for age in range(4)] == pytest.approx(weights)
    weigh = PushWeights(checked)
    pushes = [contribution(ONE, staleness=age) for age in range(4)]
    assert [weigh(push) for push in pushes] == pytest.approx(weights)


def test_by_steps_relative_to_the_mean_so_far() -> None:
    weigh = PushWeights(WeightedOptions(by="steps"))
    weights = [weigh(contribution(ONE, steps=steps)) for steps in (100, 50, 10**6, 0)]
    # The mean is 100, 100, 95, and 95 + a tenth of 3 · 95.
    assert weights == pytest.approx([1.0, 0.5, HEAVIEST, 0.0])
    assert weigh(contribution(ONE, steps=100)) == pytest.approx(100 / (95 * 1.3 * 0.9))


def test_a_push_without_steps_is_the_first_and_harms_nothing() -> None:
    weigh = PushWeights(WeightedOptions(by="steps"))
    assert [weigh(contribution(ONE, steps=steps)) for steps in (0, 0, 7)] == [1.0, 1.0, 1.0]


def test_by_speed_relative_to_the_mean_of_the_children() -> None:
    weigh = PushWeights(WeightedOptions(by="speed"))

    def push(child: str, second: float) -> float:
        return weigh(contribution(ONE, steps=60, child=child, seconds=second))

    # The fast child makes 60 steps a second, the slow one 7.5.
    first = [push("fast", 0.0), push("slow", 0.0), push("fast", 1.0), push("slow", 8.0)]
    assert first == [1.0] * 4  # nothing is known yet
    assert push("fast", 2.0) == 1.0
    assert push("slow", 16.0) == pytest.approx(7.5 / 33.75)
    assert push("fast", 3.0) == pytest.approx(60 / 33.75)


@pytest.mark.parametrize("kind", [Weighted, Difference, Gradient])
def test_a_child_that_is_gone_is_no_part_of_the_mean_speed(kind: Callable[..., Rule]) -> None:
    rule = kind(0.5, by="speed")
    for second in range(2):
        for child in ("a", "b"):
            rule.apply(np.zeros(1, DTYPE), contribution(ONE, child=child, seconds=second))
    assert {"speed.a", "speed.b"} <= set(rule.state())
    rule.forget("b")
    assert {name for name in rule.state() if "." in name} == {"speed.a"}


def test_a_new_one_goes_on_with_what_the_old_one_knew() -> None:
    old, new = (PushWeights(WeightedOptions(by="speed", staleness="polynomial")) for _ in range(2))
    for second, child in enumerate(["a", "b.c"] * 3):
        old(contribution(ONE, child=child, seconds=second, steps=10 * (second + 1)))
    new.restore(copied(old.state()) | {"velocity": ONE})
    push = contribution(ONE, child="a", seconds=9.0, staleness=2)
    assert new(push) == old(push) != 1.0


def add(
    buffer: Buffer, number: float, weight: float = 1.0, **more: Any
) -> tuple[float, float, float, int] | None:
    """The batch, if there is one: total, factor, weight, count."""
    vector = np.full(2, number, DTYPE)
    batch: UpdateBatch | None = buffer.add(vector, weight, contribution(vector, **more))
    return batch and (float(batch.total[1]), batch.factor, batch.weight, batch.count)


def test_each_push_alone_makes_a_step_unless_told_otherwise() -> None:
    buffer = Buffer(WeightedOptions())
    assert add(buffer, 3.0, 0.5) == (3.0, 0.5, 0.5, 1)
    assert buffer.state() == {}


def test_k_pushes_make_a_step() -> None:
    buffer = Buffer(WeightedOptions(buffer=3))
    for _ in range(2):
        assert add(buffer, 1.0) is None
        assert add(buffer, 2.0, 0.5) is None
        assert add(buffer, 4.0, 0.25) == (3.0, 1.0, 1.75, 3)


def test_as_many_as_take_part_make_a_step() -> None:
    buffer = Buffer(WeightedOptions(buffer="children"))
    assert add(buffer, 1.0, children=3) is None
    assert add(buffer, 2.0, children=2) == (3.0, 1.0, 2.0, 2)  # one has left
    assert add(buffer, 5.0, children=1) == (5.0, 1.0, 1.0, 1)
    assert add(buffer, 5.0, children=0) == (5.0, 1.0, 1.0, 1)
    assert [add(buffer, 1.0, children=4) for _ in range(3)] == [None] * 3
    assert add(buffer, 2.0, children=2) == (5.0, 1.0, 4.0, 4)  # two have left


def test_a_push_takes_along_what_has_waited_long_enough() -> None:
    buffer = Buffer(WeightedOptions(buffer=8, milliseconds=250))
    assert add(buffer, 1.0, seconds=10.0) is None
    assert add(buffer, 1.0, seconds=10.24) is None
    assert add(buffer, 1.0, seconds=10.25) == (3.0, 1.0, 3.0, 3)
    assert add(buffer, 1.0, seconds=10.49) is None  # it is the first that waits now
    assert add(buffer, 1.0, seconds=10.74) == (2.0, 1.0, 2.0, 2)


def test_what_waits_is_remembered() -> None:
    old, new = (Buffer(WeightedOptions(buffer=3, milliseconds=100)) for _ in range(2))
    add(old, 1.0, 0.5, seconds=5.0)
    new.restore(copied(old.state()))
    assert add(new, 2.0, seconds=5.05) is None
    assert add(new, 2.0, seconds=5.1) == pytest.approx((4.5, 1.0, 2.5, 3))
