"""What a child has done since its last push: what of it is reported."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.protocol.messages import Push, decode_request, encode
from genkidama.protocol.session import LeftOut, PendingWork

NAN, INFINITY = float("nan"), float("inf")


def test_steps_and_returns_add_up_and_the_newest_measures_stay() -> None:
    work = PendingWork()
    assert work.add(10, [1.0], {"lag": 1.0, "pps": 5.0}) == LeftOut()
    assert work.add(20, [2.0, 3.0], {"lag": 2.0}) == LeftOut()
    assert work.add(5, [], {}) == LeftOut()
    assert work == PendingWork(35, [1.0, 2.0, 3.0], {"lag": 2.0})


@pytest.mark.parametrize(
    ("measures", "reported", "left_out"),
    [
        ({"lag": NAN, "pps": -INFINITY}, {"old": 0.0}, ()),
        ({"lag": 1.0, "pps": NAN}, {"lag": 1.0}, ()),
        ({"time": 1.0, "PPS": 1.0, "large": 1e31}, {"old": 0.0}, ("time", "PPS", "large")),
        ({"PPS": NAN, "lag": 2.0, "Lag": 3.0}, {"lag": 2.0}, ("Lag",)),
    ],
)
def test_measures_that_no_push_may_carry(
    measures: dict[str, float], reported: dict[str, float], left_out: tuple[str, ...]
) -> None:
    work = PendingWork(measures={"old": 0.0})
    assert work.add(0, [], measures) == LeftOut(measures=left_out)
    assert work.measures == reported


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY, 1.1e30, -1.1e30])
def test_returns_that_no_push_may_carry(value: float) -> None:
    work = PendingWork()
    assert work.add(1, [1.0, value, 1e30, value, -1e30], {}) == LeftOut(returns=2)
    assert work.returns == [1.0, 1e30, -1e30]


def test_a_day_without_a_parent_leaves_the_newest_returns() -> None:
    work = PendingWork()
    for first in range(0, 10_000, 50):
        assert work.add(1, [float(number) for number in range(first, first + 50)], {}) == LeftOut()
    assert work.returns == [float(number) for number in range(10_000 - 4_096, 10_000)]
    assert work.steps == 200


@given(
    st.lists(st.lists(st.floats(width=64)), max_size=5),
    st.dictionaries(st.text(max_size=5), st.floats(width=64), max_size=40),
)
def test_whatever_a_backend_says_fits_into_a_push(
    returns: list[list[float]], measures: dict[str, float]
) -> None:
    work = PendingWork()
    left_out = sum(work.add(1, values, measures).returns for values in returns)
    assert len(work.returns) + left_out == sum(map(len, returns))
    assert all(map(math.isfinite, work.returns))
    push = Push(version=0, sequence=1, returns=work.returns, measures=work.measures)
    assert decode_request(encode(push)) == push
