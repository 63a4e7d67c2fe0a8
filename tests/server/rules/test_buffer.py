from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from genkidama.protocol.vector import DTYPE
from genkidama.server.rules.buffer import Buffer, UpdateBatch
from genkidama.server.rules.options import WeightedOptions
from tests.server.rules import contribution, copied


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
