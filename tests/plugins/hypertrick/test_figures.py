"""Figures of a search: files that are pictures, and what each shows."""

from __future__ import annotations

import math
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from genkidama.plugins.hypertrick import report
from genkidama.plugins.hypertrick.figures import (
    best_score,
    busy,
    draw,
    importances,
    learning_curves,
    limit,
    settings,
)
from genkidama.plugins.hypertrick.study import Importances, StudySnapshot, read
from genkidama.runs import figure_style
from genkidama.runs.figure_style import STYLE
from genkidama.runs.run import EXPERIMENT, Run
from tests.plugins.hypertrick.studies import COMPLETE, SPACE, make_study, phase, written

RATE, NAME = "optimizer.learning_rate", "optimizer.name"
#: A search of two settings.
TWO: dict[str, Any] = {
    "space": {RATE: SPACE[RATE], NAME: SPACE[NAME]},
    "score": lambda params, phase, rng: params[RATE] + phase + rng.normal(),
}
SEARCH = """environment.id = "A-v0"
search = { trials = 1, phases = 1, phase_steps = 1, space."child.beta" = { choices = [0.5] } }
"""
ALL = {"timeline", "learning_curves", "settings", "best_score", "importances"}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Draws a study's figures; they are laid out, but no file is written. Gives their names."""

    def only_laid_out(figure: Any, path: Path) -> list[Path]:
        figure.draw_without_rendering()
        return [path]

    monkeypatch.setattr(figure_style, "_write", only_laid_out)
    return lambda study: {path.name for path in draw(read(study), tmp_path, None)}


def check(paths: list[Path]) -> set[str]:
    """That each is a picture of some size, PNG and SVG; gives their names."""
    for path in paths:
        if path.suffix == ".png":
            data = path.read_bytes()
            assert data.startswith(b"\x89PNG") and data.endswith(b"IEND\xaeB`\x82")
            width, height = struct.unpack(">II", data[16:24])
            assert 600 <= width <= 3600 and 300 <= height <= 2400, path
        else:
            assert path.suffix == ".svg" and ElementTree.parse(path).getroot().tag.endswith("svg")
    stems = {path.stem for path in paths}
    assert sorted(path.name for path in paths) == sorted(
        f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")
    )
    return stems


def test_the_whole_report_with_all_figures(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_report.py` has one with forests."""
    monkeypatch.setattr(report, "importances", lambda _: Importances({RATE: 0.7, NAME: 0.3}, 6))
    run = Run(tmp_path / "search")
    run.path.mkdir()
    make_study(run.path, trials=6, phases=2, **TWO)
    (run.path / EXPERIMENT).write_text(SEARCH)
    before = dict(matplotlib.rcParams)
    managers = matplotlib._pylab_helpers.Gcf.get_all_fig_managers()
    text = report.report_of(run, tmp_path / "new" / "figures")
    assert check(list((tmp_path / "new" / "figures").iterdir())) == ALL
    assert f"10 files in {tmp_path / 'new' / 'figures'}" in text
    assert f"genkidama train --resume {run.path}/trials/" in text
    after = dict(matplotlib.rcParams)
    assert after.pop("backend") and before.pop("backend")
    assert after == before
    assert matplotlib._pylab_helpers.Gcf.get_all_fig_managers() == managers
    assert capfd.readouterr() == ("", "")


ODD = {
    "a.b": {"choices": ["$x", "y$", "a quite long choice of words", [1, 2]]},
    "c.b": {"low": 0.0, "high": 1.0},
}


@pytest.mark.parametrize(
    ("made", "figures"),
    [
        ({"until": -1.0}, set()),
        ({"until": 1.0}, set()),
        (
            {"trials": 1, "phases": 1, "nodes": 1, "space": {RATE: SPACE[RATE]}}
            | {"score": lambda params, phase, rng: params[RATE]},
            ALL - {"importances"},
        ),
        ({"trials": 6, "score": lambda *_: math.nan}, {"timeline"}),
        (
            {"trials": 6, "phases": 2, "method": "random", "space": ODD, "score": lambda *_: 3.0},
            ALL - {"importances"},
        ),
        ({"trials": 6, "until": 200, **TWO}, ALL - {"importances", "best_score"}),
    ],
    ids=["nothing", "no score", "one trial", "all failed", "one score, odd texts", "none is done"],
)
def test_there_are_only_figures_of_what_is_known(
    drawn: Any, made: dict[str, Any], figures: set[str]
) -> None:
    assert drawn(make_study(**made)) == figures


@pytest.fixture(scope="module")
def search() -> StudySnapshot:
    findings = read(make_study(trials=24, phases=4, until=900))
    assert all(map(findings.of_state, ("completed", "stopped", "failed", "running")))
    return findings


def dots(axes: Axes) -> Any:
    """Where the points of a panel lie, of all kinds of them."""
    return np.concatenate([np.asarray(found.get_offsets()) for found in axes.collections])


def test_the_settings_of_every_trial_with_a_score_are_drawn(
    search: StudySnapshot,
) -> None:
    with matplotlib.rc_context(STYLE):
        figure = settings(search)
    assert figure is not None
    panels = {axes.get_xlabel(): axes for axes in figure.axes if axes.get_xlabel() in SPACE}
    assert set(panels) == set(SPACE)
    expected = sorted(trial.score for trial in search.ranking)
    assert sorted(dots(panels["optimizer.learning_rate"])[:, 1]) == pytest.approx(expected)


def test_the_best_score_is_that_of_completed_trials(search: StudySnapshot) -> None:
    figure = best_score(search)
    assert figure is not None and search.best is not None
    scores, best = figure.axes[0].lines
    assert best.get_ydata()[-1] == search.best.score
    completed = {trial.number: trial.score for trial in search.of_state("completed")}
    assert dict(zip(scores.get_xdata(), scores.get_ydata(), strict=True)) == completed


def test_the_bars_are_the_shares() -> None:
    shares = dict(zip(SPACE, (0.5, 0.3, 0.2, 0.0), strict=True))
    figure = importances(Importances(shares, 6, "few"))
    assert figure is not None
    bars = sorted(bar.get_width() for bar in figure.axes[0].patches)
    assert bars == pytest.approx(sorted(shares.values()))
    assert "6 ended trials; too uncertain" in figure.axes[0].get_title(loc="left") + (
        figure.axes[0].get_title()
    )
    assert importances(Importances(dict.fromkeys(SPACE, 0.0), 6)) is None
    assert importances(None) is None


def test_each_decision_has_its_mark() -> None:
    """A population of one node, of which the second trial copies the first."""
    good = [phase(0, "a", 0, 1, 5.0, "selection"), phase(1, "a", 2, 3, 6.0, "none")]
    bad = [phase(0, "a", 1, 2, 1.0, "selection", verdict="copy"), phase(1, "a", 3, 4, 7.0, "none")]
    figure = learning_curves(written((COMPLETE, good), (COMPLETE, bad), method="pbt"))
    assert figure is not None
    lines, labels = figure.axes[0].get_legend_handles_labels()
    marks = {label: [*line.get_ydata()] for line, label in zip(lines, labels, strict=True)}
    assert marks == {"selected": [5.0], "copied another": [1.0], "no decision": [6.0, 7.0]}


def test_one_score_that_diverged_does_not_hide_the_others() -> None:
    findings = read(
        make_study(
            trials=20,
            phases=2,
            score=lambda p, phase, rng: -1e9 if rng.random() < 0.04 else float(rng.normal()),
        )
    )
    assert min(phase.score for trial in findings.trials for phase in trial.phases) == -1e9
    figure = learning_curves(findings)
    assert figure is not None
    for axes in figure.axes:
        assert -20 < axes.get_ylim()[0] < -2 and axes.get_ylim()[1] < 20
        assert any("below" in text.get_text() for text in axes.texts)


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


def test_the_curve_of_the_occupancy_has_the_occupancys_area() -> None:
    findings = read(make_study(trials=12, phases=3, nodes=3))
    times, shares = busy(findings)
    joined = sorted(spans[0].start for spans in findings.timeline.values())
    offered = filled = 0.0
    for left, right, share in zip(times, times[1:], shares, strict=False):
        nodes = sum(start <= left for start in joined)
        offered += nodes * (right - left)
        filled += share * nodes * (right - left)
    assert filled / offered == pytest.approx(findings.occupancy)
