"""What all figures have in common, by values."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

from genkidama.errors import EnvironmentFailure
from genkidama.runs.figure_style import STYLE, plain, write_all


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
