"""The figures of runs, made of real directories with histories that were written by hand."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.plugins.figures import OVER, plots, run_plot
from genkidama.plugins.figures.plots import Series, draw_diagnostics, draw_runs, series_of
from genkidama.runs.curves import AXES
from genkidama.runs.evaluation import Evaluation
from genkidama.runs.figure_style import COLOURS
from genkidama.runs.run import Run
from tests.runs.test_curves import exchange


def run(
    path: Path, seed: int = 0, rows: int = 50, distance: float | None = None, **settings: object
) -> Run:
    path.mkdir()
    experiment = Experiment(name="tried", seed=seed).with_settings(dict(settings))
    (path / "experiment.toml").write_text(experiment.to_toml())
    lines = [{"time": 0.0, "event": "join", "child": "a"}]
    lines += [
        exchange(float(i), 10 * i, None if i < 3 else i * 1.5 + seed, child="ab"[i % 2])
        for i in range(1, rows)
    ]
    for line in lines[5::5] if distance is not None else []:
        line["distance"] = distance
    (path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Run(path)


def test_one_run_has_its_curve_and_its_children(tmp_path: Path) -> None:
    one = run(tmp_path / "one")
    found = Evaluation(
        np.array([1.0, 2.0, 3.0]), Path("best"), 70.0, False, 0, "Moon-v1", "Moon-v1"
    )
    one.record_evaluation(found.to_dict(), found.returns.tolist(), now=99.0)
    written = draw_runs([one], tmp_path / "figures")
    assert [path.name for path in written if path.suffix == ".png"] == [
        "learning.png",
        "children.png",
        "returns.png",
    ]
    for path in written:
        start = path.read_bytes()[:5]
        assert start == (b"\x89PNG\r" if path.suffix == ".png" else b"<?xml")


def test_children_have_a_chart_of_their_disagreement_where_it_was_judged(tmp_path: Path) -> None:
    old = run(tmp_path / "old")
    figure = plots._children(old, "steps")
    assert figure is not None and len(figure.axes) == 2
    new = run(tmp_path / "new", distance=0.25)
    figure = plots._children(new, "steps")
    assert figure is not None
    *_, chart = figure.axes
    assert chart.get_title().startswith("Disagreement")
    drawn = {line.get_color(): line.get_xydata().tolist() for line in chart.lines}
    assert drawn == {  # each fifth push is judged
        COLOURS[0]: [[10.0 * i, 0.25] for i in (10, 20, 30, 40)],
        COLOURS[1]: [[10.0 * i, 0.25] for i in (5, 15, 25, 35, 45)],
    }


def test_runs_that_differ_in_their_seeds_are_one_line(tmp_path: Path) -> None:
    runs = [run(tmp_path / f"s{seed}", seed) for seed in range(3)]
    other = run(tmp_path / "other", 7, **{"algorithm.gamma": 0.5})
    found = series_of([*runs, other])
    assert [(one.label, len(one.runs)) for one in found] == [("s0 and 2 more", 3), ("other", 1)]
    written = draw_runs([*runs, other], tmp_path / "figures", over="seconds")
    assert [path.name for path in written] == ["learning.png", "learning.svg"]


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    young = run(tmp_path / "young", rows=2)
    with pytest.raises(ConfigurationError, match=r"over = 'miles': expected one of steps, seconds"):
        draw_runs([young], tmp_path, over="miles")
    (young.path / "history.jsonl").write_text("")
    with pytest.raises(ConfigurationError, match=r"young: no episode has ended yet"):
        draw_runs([young], tmp_path / "figures")
    searched = {"search.phase_steps": 10, "search.space": {"algorithm.gamma": [0.5, 0.9]}}
    searching = run(tmp_path / "search", **searched)
    with pytest.raises(ConfigurationError, match=r"search: is a search, which `genkidama report`"):
        draw_runs([searching], tmp_path / "figures")


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


def test_runs_are_drawn_beside_a_single_one_or_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = run(tmp_path / "one"), run(tmp_path / "two", seed=1)
    assert run_plot(Namespace(runs=[one.path], out=None, over="seconds")) == 0
    assert (one.path / "figures" / "learning.png").is_file()
    assert run_plot(Namespace(runs=[one.path, two.path], out=None, over="steps")) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "figures/learning.svg"


def test_curves_can_be_drawn_over_each_of_their_axes() -> None:
    assert tuple(AXES) == OVER
