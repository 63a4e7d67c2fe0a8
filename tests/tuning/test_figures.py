from __future__ import annotations

import math
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
import pytest

from genkidama.errors import EnvironmentFailure
from genkidama.tuning import figures, importance, report
from genkidama.tuning.figures import draw
from genkidama.tuning.findings import read
from tests.tuning.studies import SPACE, make_study, url_of

ALL = {"timeline", "learning_curves", "settings", "active_trials", "best_score", "importances"}


@pytest.fixture(autouse=True)
def small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the forests say is tested elsewhere."""
    monkeypatch.setattr(importance, "_TREES", 3)


def check(paths: list[Path]) -> set[str]:
    """That each is a picture of some size, PNG and SVG; gives their names."""
    for path in paths:
        if path.suffix == ".png":
            data = path.read_bytes()
            assert data.startswith(b"\x89PNG") and data.endswith(b"IEND\xaeB`\x82")
            width, height = struct.unpack(">II", data[16:24])
            assert 600 <= width <= 2400 and 300 <= height <= 2400
        else:
            assert path.suffix == ".svg" and ElementTree.parse(path).getroot().tag.endswith("svg")
    stems = {path.stem for path in paths}
    assert sorted(path.name for path in paths) == sorted(
        f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")
    )
    return stems


def test_the_whole_report_with_all_figures(tmp_path: Path) -> None:
    make_study(tmp_path, trials=10, phases=3, until=500)
    before = dict(matplotlib.rcParams)
    text = report.report(url_of(tmp_path), "search", tmp_path / "new" / "figures", "runs/x")
    assert check(list((tmp_path / "new" / "figures").iterdir())) == ALL
    assert (
        f"12 files in {tmp_path / 'new' / 'figures'}" in text
        and "genkidama train --resume runs/x/trials/" in text
    )
    assert dict(matplotlib.rcParams) == before


def test_no_figure_of_nothing(tmp_path: Path) -> None:
    assert draw(read(make_study(until=-1.0)), tmp_path / "none") == []
    assert draw(read(make_study(until=1.0)), tmp_path / "running") == []


def test_one_trial_on_one_node_with_one_setting(tmp_path: Path) -> None:
    space = {"optimizer.learning_rate": SPACE["optimizer.learning_rate"]}
    study = make_study(
        trials=1,
        phases=1,
        nodes=1,
        space=space,
        score=lambda params, phase, rng: params["optimizer.learning_rate"],
    )
    assert check(draw(read(study), tmp_path)) == ALL - {"importances"}


def test_all_trials_failed_at_once(tmp_path: Path) -> None:
    study = make_study(trials=6, score=lambda params, phase, rng: math.nan)
    assert check(draw(read(study), tmp_path)) == {"timeline"}


def test_constant_scores_and_texts_that_look_like_formulas(tmp_path: Path) -> None:
    space = {
        "a.b": {"choices": ["$x", "y$", "a quite long choice of words", "[1, 2]"]},
        "c.b": {"low": 0.0, "high": 1.0},
    }
    study = make_study(
        trials=6, phases=2, space=space, method="random", score=lambda params, phase, rng: 3.0
    )
    assert check(draw(read(study), tmp_path)) == ALL - {"importances"}


def test_one_score_that_diverged_does_not_hide_the_others(tmp_path: Path) -> None:
    findings = read(
        make_study(
            trials=20,
            phases=2,
            score=lambda p, phase, rng: -1e9 if rng.random() < 0.04 else float(rng.normal()),
        )
    )
    assert min(phase.score for trial in findings.trials for phase in trial.phases) == -1e9
    figure = figures._learning_curves(findings)
    assert figure is not None
    for axes in figure.axes:
        assert -20 < axes.get_ylim()[0] < -2 and axes.get_ylim()[1] < 20
        assert any("below" in text.get_text() for text in axes.texts)


def test_the_curve_of_the_occupancy_has_the_occupancys_area() -> None:
    findings = read(make_study(trials=12, phases=3, nodes=3))
    times, shares = figures._busy(findings)
    joined = sorted(spans[0].start for spans in findings.timeline.values())
    offered = busy = 0.0
    for left, right, share in zip(times, times[1:], shares, strict=False):
        nodes = sum(start <= left for start in joined)
        offered += nodes * (right - left)
        busy += share * nodes * (right - left)
    assert busy / offered == pytest.approx(findings.occupancy)


def test_a_folder_that_cannot_be_made_is_the_machines_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailure, match=r"cannot write figures into .*file"):
        draw(read(make_study(trials=2)), tmp_path / "file")
