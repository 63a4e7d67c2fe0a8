"""What the figures have in common, by values."""

from __future__ import annotations

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from genkidama.tuning.figures.style import STYLE, evenly, floor, jitter, limit, plain, scores
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


@given(st.integers(1, 200), st.integers(2, 12))
def test_some_of_the_phases_have_the_first_and_the_last_among_them(phases: int, most: int) -> None:
    chosen = evenly(phases, most)
    assert chosen == sorted(set(chosen))
    assert (chosen[0], chosen[-1]) == (0, phases - 1)
    assert len(chosen) == min(phases, most)


@given(st.integers(0, 10_000))
def test_jitter_stays_inside_and_neighbours_stand_apart(number: int) -> None:
    assert -0.2 <= jitter(number, 0.2) <= 0.2
    assert abs(jitter(number, 0.2) - jitter(number + 1, 0.2)) > 0.1


def test_a_price_is_no_formula() -> None:
    with matplotlib.rc_context(STYLE):
        figure = Figure()
        figure.suptitle(plain("$x^2$ and $y"))
        figure.draw_without_rendering()
    assert plain("$x$") == r"\$x\$"
