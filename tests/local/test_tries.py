"""How an evaluation stands."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.local.tries import Tries


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_mean_and_deviation_are_numpys(returns: list[float]) -> None:
    tries = Tries(len(returns))
    for value in returns:
        tries.take(value, 0.0)
    assert tries.mean == pytest.approx(float(np.mean(returns)), abs=1e-4)
    assert tries.std == pytest.approx(float(np.std(returns)), rel=1e-6, abs=1e-4)
    assert (tries.minimum, tries.share(0.0)) == (min(returns), 1.0)


def test_the_line_tells_how_far_it_is() -> None:
    tries = Tries(4)
    tries.begin(100.0)
    assert tries.line(100.0) == "evaluating 0 of 4 episodes · 0:00"
    tries.take(10.0, 105.0)
    assert tries.left(106.0) is None  # it took 5 s to start, and nobody knows how long an episode
    tries.take(20.0, 107.0)
    assert tries.line(107.0) == (
        "evaluating 2 of 4 episodes · mean return 15.0 ± 5.0 · 0:07 · about 0:04 left"
    )
    for _ in range(2):
        tries.take(15.0, 111.0)
    assert tries.line(111.0) == "evaluating 4 of 4 episodes · mean return 15.0 ± 3.5 · 0:11"
