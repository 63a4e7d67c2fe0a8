"""What all figures have in common, by values."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from genkidama.errors import EnvironmentFailure
from genkidama.runs.figure_style import STYLE, evenly, jitter, plain, write_all


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


def test_figures_are_written_twice_and_what_shows_nothing_is_not(tmp_path: Path) -> None:
    def drawn() -> Figure:
        figure = Figure()
        figure.subplots().plot([1, 2])
        return figure

    written = write_all({"one": drawn, "none": lambda: None}, tmp_path / "new")
    assert [path.name for path in written] == ["one.png", "one.svg"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["one.png", "one.svg"]
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailure, match=r"cannot write figures into .*file"):
        write_all({"one": drawn}, tmp_path / "file")
