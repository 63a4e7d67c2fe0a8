from __future__ import annotations

import numpy as np
import pytest

from genkidama.protocol.messages import Kind
from genkidama.protocol.session import DeltaBase
from genkidama.protocol.vector import DTYPE, Signature

SIGNATURE = Signature.of([("weight", (2,)), ("statistics.observations", (1,))])
PARENT = np.array([1, 2, 30], DTYPE)
CHILD = np.array([1.5, 4, 50], DTYPE)
SLOPE = np.array([-1, 7], DTYPE)


@pytest.mark.parametrize(
    ("pushes", "gradient", "kind", "carried"),
    [
        ("weights", None, "weights", [1.5, 4, 50]),
        ("weights", SLOPE, "weights", [1.5, 4, 50]),
        ("difference", None, "difference", [0.5, 2, 50]),
        ("difference", SLOPE, "difference", [0.5, 2, 50]),
        ("gradient", SLOPE, "gradient", [-1, 7, 50]),
        ("gradient", None, "weights", [1.5, 4, 50]),
    ],
)
def test_a_push_carries_what_the_rule_takes_and_statistics_whole(
    pushes: Kind, gradient: np.ndarray | None, kind: str, carried: list[float]
) -> None:
    basis = DeltaBase(pushes)
    basis.take_over(PARENT)
    before = CHILD.tobytes()
    said, vector = basis.carried(CHILD, gradient, SIGNATURE)
    assert (said, vector.tolist(), vector.dtype) == (kind, carried, DTYPE)
    assert basis.pushed is CHILD
    assert CHILD.tobytes() == before
    assert PARENT.tolist() == [1, 2, 30]


def test_a_difference_without_an_answer_is_pushed_again_as_it_was() -> None:
    basis = DeltaBase("difference")
    basis.take_over(PARENT)
    first = basis.carried(CHILD, None, SIGNATURE)
    again = basis.carried(CHILD + DTYPE.type(1.0), None, SIGNATURE)
    assert again[1] is first[1] and basis.pushed is CHILD
    basis.take_over(PARENT)
    assert basis.carried(CHILD * 2, None, SIGNATURE)[1].tolist() == [2, 6, 100]


@pytest.mark.parametrize("pushes", ["weights", "difference", "gradient"])
def test_without_a_basis_the_weights_are_pushed(pushes: Kind) -> None:
    basis = DeltaBase(pushes)
    assert basis.carried(CHILD, SLOPE, SIGNATURE) == ("weights", CHILD)
    basis.take_over(PARENT)
    basis.take_over(None)
    assert basis.carried(CHILD, SLOPE, SIGNATURE) == ("weights", CHILD)
