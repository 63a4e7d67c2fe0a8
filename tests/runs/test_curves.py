"""A history as columns, and many curves as one, by values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.runs.curves import COLUMNS, band, columns, measured


def exchange(time: float, steps: int, mean: float | None, **fields: Any) -> dict[str, Any]:
    return {
        "time": time,
        "event": "exchange",
        "child": "a",
        "version": 1,
        "update": 0.5,
        "staleness": 2,
        "episodes": 3,
        "steps": steps,
        "mean_return": mean,
        **fields,
    }


def test_exchanges_become_rows_that_count_from_the_first_join() -> None:
    lines = [
        {"time": 90.0, "event": "start", "run": "r"},
        {"time": 100.0, "event": "join", "child": "a"},
        exchange(101.0, 10, None, distance=0.25),
        {"time": 102.0, "event": "join", "child": "b"},
        exchange(103.5, 20, -4.0, child="b", update=1.0),
        exchange(104.0, 30, 5.0, trial=3),
    ]
    found = columns(lines)
    assert tuple(found) == COLUMNS
    assert found["seconds"] == [1.0, 3.5]
    assert found["steps"] == [10, 20]
    assert found["mean_return"] == [None, -4.0]
    assert found["child"] == ["a", "b"]
    assert found["updates"] == [0.5, 1.0]
    assert found["distance"] == [0.25, None]


def test_a_pause_before_a_run_is_resumed_does_not_count() -> None:
    lines = [
        {"time": 100.0, "event": "join", "child": "a"},
        exchange(102.0, 10, 1.0),
        {"time": 500.0, "event": "resume", "run": "r", "seconds": 1.5},
        {"time": 502.0, "event": "join", "child": "a"},
        exchange(503.0, 20, 2.0),
    ]
    assert columns(lines)["seconds"] == [2.0, 2.5]


def test_a_band_reaches_as_far_as_all_curves_do() -> None:
    x = np.array([0.0, 10.0])
    found = band([(x, x), (x + 2.0, x), (np.array([0.0, 20.0]), np.array([0.0, 40.0]))])
    assert (found.x[0], found.x[-1]) == (2.0, 10.0)
    # At 10 the three are 10, 8 and 20.
    assert (found.median[-1], found.low[-1], found.high[-1]) == (10.0, 9.0, 15.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5))
def test_one_curve_is_its_own_band(values: list[float]) -> None:
    x = np.arange(len(values), dtype=np.float64)
    found = band([(x, np.array(values))])
    expected = np.interp(found.x, x, values)
    for part in found[1:]:
        assert np.allclose(part, expected)


@pytest.mark.parametrize("key", ["stdps", "steps"])
@pytest.mark.parametrize("read", [columns, lambda lines: measured(lines, ["loss"], "steps")])
def test_an_exchange_that_lacks_a_number_is_a_damaged_line(read: Any, key: str) -> None:
    exchange = {"time": 1.0, "event": "exchange", "episodes": 1, "update": 1.0, "mean_return": 1.0}
    lines = [{**exchange, "staleness": 0, key: ""}, {"time": 2.0, "event": "measures", "loss": 5.0}]
    with pytest.raises(ConfigurationError, match=r"is damaged: a line has no good 'steps'"):
        read(lines)
