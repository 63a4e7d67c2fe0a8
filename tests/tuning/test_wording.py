"""Numbers, times and names as people read them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from genkidama.tuning.wording import clock, short_names, show


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (8521.4, "8,521"),
        (231.44, "231.4"),
        (0.00033, "0.00033"),
        (3, "3"),
        (12345, "12,345"),
        (True, "True"),
        ("sgd", "sgd"),
        (math.nan, "–"),
    ],
)
def test_numbers_for_people(value: Any, expected: str) -> None:
    assert show(value) == expected


def test_names_are_as_short_as_they_can_be() -> None:
    assert short_names(["a.rate", "b.rate", "c.gamma", "optimizer.name"]) == {
        "a.rate": "a.rate",
        "b.rate": "b.rate",
        "c.gamma": "gamma",
        "optimizer.name": "optimizer.name",
    }


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (42.54, "42.5 s"), (59.99, "60 s"), (725, "12:05"), (11220, "3:07:00")],
)
def test_times_read_like_a_clock(seconds: float, expected: str) -> None:
    assert clock(seconds) == expected
