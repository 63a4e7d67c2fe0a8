from __future__ import annotations

import numpy as np
import pytest

from genkidama.protocol.vector import DTYPE
from genkidama.server.rules.options import WeightedOptions
from genkidama.server.rules.weighted import HEAVIEST, PushWeights, age_weight
from tests.server.rules import contribution, copied

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

    # The fast child makes 60 steps a second, the slow one 20.
    assert [push("fast", 0.0), push("slow", 0.0)] == [1.0, 1.0]  # nothing is known yet
    assert push("fast", 1.0) == 1.0
    assert push("slow", 3.0) == pytest.approx(20 / 40)
    assert push("fast", 2.0) == pytest.approx(60 / 40)


def test_a_new_one_goes_on_with_what_the_old_one_knew() -> None:
    old, new = (PushWeights(WeightedOptions(by="speed", staleness="polynomial")) for _ in range(2))
    for second, child in enumerate(["a", "b.c", "a", "b.c"]):
        old(contribution(ONE, child=child, seconds=second, steps=10 * (second + 1)))
    new.restore(copied(old.state()) | {"velocity": ONE})
    push = contribution(ONE, child="a", seconds=9.0, staleness=2)
    assert new(push) == old(push) != 1.0
