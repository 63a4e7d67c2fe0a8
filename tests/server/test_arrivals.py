from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.server.trial import ExchangePacing


def test_nothing_is_said_before_a_childs_speed_is_known() -> None:
    arrivals = ExchangePacing(100)
    arrivals.note("a", 50, 1.0)
    assert arrivals.share("a") == 0
    arrivals.note("a", 50, 2.0)
    assert arrivals.share("a") == 100
    assert arrivals.share("b") == 0
    arrivals.forget("a")
    assert arrivals.share("a") == 0


@given(st.lists(st.floats(10.0, 10_000.0), min_size=1, max_size=6), st.integers(200, 5000))
def test_children_of_any_speeds_come_equally_often(speeds: list[float], steps: int) -> None:
    """Each pushes as soon as it has made the steps that it was told."""
    arrivals = ExchangePacing(steps)
    told = [steps] * len(speeds)
    due = [steps / speed for speed in speeds]
    came = [0] * len(speeds)
    for _ in range(40 * len(speeds)):
        child = due.index(min(due))
        arrivals.note(str(child), told[child], due[child])
        told[child] = arrivals.share(str(child)) or steps
        came[child] += 1
        due[child] += told[child] / speeds[child]
    known = [child for child, count in enumerate(came) if count > 1]
    mean = sum(speeds[child] for child in known) / len(known)
    for child in known:
        told = arrivals.share(str(child))
        assert told == pytest.approx(max(1, steps * speeds[child] / mean), abs=0.51, rel=1e-6)


def test_a_child_that_grows_slower_is_told_less() -> None:
    arrivals = ExchangePacing(100)
    now = 0.0
    for _ in range(30):
        now += 1.0
        arrivals.note("a", 100, now)
        arrivals.note("b", 100, now)
    assert (arrivals.share("a"), arrivals.share("b")) == (100, 100)
    for _ in range(40):
        now += 1.0
        arrivals.note("a", 10, now)
        arrivals.note("b", 100, now)
    assert arrivals.share("a") == pytest.approx(18, abs=1)
    assert arrivals.share("b") == pytest.approx(182, abs=1)
