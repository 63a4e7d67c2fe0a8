"""The speeds of children, by values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.server.speeds import Speeds


def relative(speeds: Speeds, *names: str) -> list[float | None]:
    return [speeds.relative(name) for name in names]


def test_nothing_is_said_before_a_childs_speed_is_known() -> None:
    speeds = Speeds()
    for second in (1.0, 2.0):
        speeds.note("a", 50, second)
        assert relative(speeds, "a", "b") == [None, None]
    speeds.note("a", 50, 3.0)
    assert relative(speeds, "a", "b") == [1.0, None]
    speeds.forget("a")
    assert relative(speeds, "a") == [None]


def test_a_push_without_steps_or_time_says_nothing_of_a_childs_speed() -> None:
    speeds = Speeds()
    for second in (0.0, 1.0, 2.0):
        speeds.note("a", 10, second)
        speeds.note("b", 30, second)
    speeds.note("a", 0, 3.0)
    speeds.note("b", 70, 2.0)
    assert relative(speeds, "a", "b") == [0.5, 1.5]


def test_a_child_that_grows_slower_is_told_less() -> None:
    speeds = Speeds()
    for second in range(110):
        speeds.note("a", 100 if second < 30 else 10, second)
        speeds.note("b", 100, second)
        if second == 29:
            assert relative(speeds, "a", "b") == [1.0, 1.0]
    assert relative(speeds, "a", "b") == pytest.approx([0.18, 1.82], abs=0.01)


@given(st.integers(2, 100_000), st.booleans(), st.booleans())
def test_the_work_of_a_cut_makes_no_child_fast(cut: int, noticed: bool, counted: bool) -> None:
    """It comes in the second push; the first one is that which had no answer."""
    speeds = Speeds()
    pushes = [(float(second), 1000) for second in range(20)]
    if counted:  # and the parent knows it when it comes again
        pushes.append((20.0, 1000))
    after = [] if counted else [(20.0 + cut, 1000)]
    after += [(21.0 + cut, 1000 * cut), *((22.0 + cut + i, 1000) for i in range(20))]
    for second, steps in pushes:
        speeds.note("a", steps, second)
    for second in range(3):
        speeds.note("b", 1000, float(second))
    if noticed:
        speeds.forget("a")
    for second, steps in after:
        speeds.note("a", steps, second)
        assert (speeds.relative("a") or 0.0) < 1.1
    assert speeds.relative("a") == pytest.approx(1.0, abs=0.1)
