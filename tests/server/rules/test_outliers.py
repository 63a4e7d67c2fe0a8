from __future__ import annotations

import math
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.server.rules.outliers import LossStatistics


def taught(losses: list[float], sigmas: float = 10.0) -> LossStatistics:
    """Statistics of these losses, none of which is an outlier."""
    statistics = LossStatistics(sigmas)
    assert not any(map(statistics.is_outlier, losses))
    return statistics


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_the_first_losses_are_usual_and_weigh_the_same(losses: list[float]) -> None:
    sizes = [abs(loss) for loss in losses]
    count, mean, variance = taught(losses).numbers.tolist()
    assert count == len(losses)
    assert mean == pytest.approx(fmean(sizes), rel=1e-9, abs=1e-9)
    assert variance == pytest.approx(pvariance(sizes), rel=1e-9, abs=1e-3)


def test_after_a_hundred_the_newest_weighs_a_hundredth() -> None:
    statistics = taught([0.0, 2.0] * 50 + [2.0])
    assert statistics.numbers.tolist() == pytest.approx([101.0, 1.01, 0.99 * 1.01])


def test_beyond_the_border_a_loss_is_an_outlier_and_counts_as_the_border() -> None:
    statistics = taught([0.0, 2.0] * 10)
    _, mean, variance = statistics.numbers.tolist()
    border = mean + 10.0 * math.sqrt(variance)
    assert statistics.is_outlier(-100.0)
    assert statistics.outliers == 1
    new = 1.0 / 21.0
    expected = [21.0, 1.0 + new * 10.0, (1.0 - new) * (1.0 + new * 100.0)]
    assert statistics.numbers.tolist() == pytest.approx(expected)
    assert not taught([0.0, 2.0] * 10).is_outlier(border)


@pytest.mark.parametrize(("sigmas", "loss"), [(10.0, math.nan), (0.0, 1e9)])
def test_what_is_not_judged_is_not_counted(sigmas: float, loss: float) -> None:
    statistics = taught([loss] * 30, sigmas)
    assert (statistics.numbers.tolist(), statistics.outliers) == ([0.0, 0.0, 0.0], 0)
