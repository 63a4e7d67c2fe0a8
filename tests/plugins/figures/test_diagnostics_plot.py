"""The figure of the diagnostics: which charts it has, and which lines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from genkidama.plugins.figures.diagnostics_plot import Series, draw_diagnostics
from tests.plugins.figures.test_plots import run


def test_a_chart_for_each_figure_that_was_measured_and_a_line_a_child(tmp_path: Path) -> None:
    one = run(tmp_path / "one")
    with (one.path / "history.jsonl").open("a") as file:
        for turn in range(6):
            line = {"time": 60.0 + turn, "event": "measures", "backend": "hogwild"}
            line |= {"child": "ab"[turn % 2], "entropy": 1.0 / (1 + turn), "kl": 1.0}
            line |= {"explained_variance": 0.5} if turn > 2 else {}
            file.write(json.dumps(line) + "\n")
    figure = draw_diagnostics([Series("one", [one])], "steps")
    assert figure is not None
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") or axes.get_title() for axes in shown] == [
        "entropy",
        "explained variance",
    ]
    first, second = shown[0].get_lines()
    np.testing.assert_allclose(first.get_ydata(), [1.0, 1 / 3, 1 / 5])
    np.testing.assert_allclose(second.get_ydata(), [1 / 2, 1 / 4, 1 / 6])
    assert set(first.get_xdata()) == {490.0}  # the steps of the newest exchange before
    together = draw_diagnostics([Series("two", [one, one])], "seconds")
    assert together is not None
    colours = {line.get_color() for line in together.axes[0].get_lines()}
    assert len(colours) == 1 and len(together.axes[0].get_lines()) == 4


def test_a_run_that_measured_nothing_has_no_such_figure(tmp_path: Path) -> None:
    assert draw_diagnostics([Series("old", [run(tmp_path / "old")])], "steps") is None
