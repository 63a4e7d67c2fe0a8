"""How far the axis of scores reaches, by values."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from genkidama.tuning.figures.scale import floor, limit, scores
from tests.tuning.studies import by_hand


def test_scores_are_what_was_reported_without_nan() -> None:
    assert scores(by_hand()) == [1.0, 4.0, 0.5, 5.0]


def test_only_a_score_far_below_the_others_lies_below_the_floor() -> None:
    assert floor([0.0, 1.0, 2.0, 3.0, 4.0]) == 1.0 - 5.0 * 2.0
    assert floor([7.0, 7.0, 7.0]) == 7.0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.0, 1.0, 2.0, 3.0, -1e9], ["↓ 1 report below"]),
        ([*map(float, range(20)), -1e9, -1e8], ["↓ 2 reports below"]),
        ([0.0, 1.0, 2.0, 3.0], []),
    ],
)
def test_what_a_limit_hides_is_counted(values: list[float], said: list[str]) -> None:
    axes = Figure().subplots()
    axes.plot(values)
    limit(axes, values)
    assert [text.get_text() for text in axes.texts] == said
    low, high = axes.get_ylim()
    assert (low > -100.0) == bool(said or min(values) >= 0.0)
    assert high >= max(values)
