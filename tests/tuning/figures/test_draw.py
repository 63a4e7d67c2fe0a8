"""All figures of a search; what each shows is tested beside this."""

from __future__ import annotations

import math
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from genkidama.errors import EnvironmentFailure
from genkidama.figures import style
from genkidama.tuning import importance, report
from genkidama.tuning.figures.draw import draw
from genkidama.tuning.findings import read
from tests.tuning.studies import SPACE, make_study, url_of

ALL = {"timeline", "learning_curves", "settings", "active_trials", "best_score", "importances"}


@pytest.fixture(autouse=True)
def small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the forests say is tested elsewhere."""
    monkeypatch.setattr(importance, "_TREES", 3)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Draws a study's figures; they are laid out, but no file is written. Gives their names."""

    def only_laid_out(figure: Any, path: Path) -> list[Path]:
        figure.draw_without_rendering()
        return [path]

    monkeypatch.setattr(style, "_write", only_laid_out)
    return lambda study: {path.name for path in draw(study, read(study), tmp_path, None)}


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
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_study(tmp_path, trials=10, phases=2)
    before = dict(matplotlib.rcParams)
    managers = matplotlib._pylab_helpers.Gcf.get_all_fig_managers()
    text = report.report(url_of(tmp_path), "search", tmp_path / "new" / "figures", "runs/x")
    assert check(list((tmp_path / "new" / "figures").iterdir())) == ALL
    assert f"12 files in {tmp_path / 'new' / 'figures'}" in text
    assert "genkidama train --resume runs/x/trials/" in text
    after = dict(matplotlib.rcParams)
    assert after.pop("backend") and before.pop("backend")
    assert after == before
    assert matplotlib._pylab_helpers.Gcf.get_all_fig_managers() == managers
    assert capfd.readouterr() == ("", "")


def test_no_figure_of_nothing(drawn: Any) -> None:
    assert drawn(make_study(until=-1.0)) == set()
    assert drawn(make_study(until=1.0)) == set()


def test_one_trial_on_one_node_with_one_setting(drawn: Any) -> None:
    space = {"optimizer.learning_rate": SPACE["optimizer.learning_rate"]}
    study = make_study(
        trials=1,
        phases=1,
        nodes=1,
        space=space,
        score=lambda params, phase, rng: params["optimizer.learning_rate"],
    )
    assert drawn(study) == ALL - {"importances"}


def test_all_trials_failed_at_once(drawn: Any) -> None:
    assert drawn(make_study(trials=6, score=lambda *_: math.nan)) == {"timeline"}


def test_constant_scores_and_texts_that_look_like_formulas(drawn: Any) -> None:
    space = {
        "a.b": {"choices": ["$x", "y$", "a quite long choice of words", [1, 2]]},
        "c.b": {"low": 0.0, "high": 1.0},
    }
    study = make_study(trials=6, phases=2, space=space, method="random", score=lambda *_: 3.0)
    assert drawn(study) == ALL - {"importances"}


def test_a_search_of_which_nothing_has_completed_has_no_best_score_to_draw(drawn: Any) -> None:
    assert drawn(make_study(trials=6, until=200)) == ALL - {"importances", "best_score"}


def test_a_folder_that_cannot_be_made_is_the_machines_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    study = make_study(trials=2)
    with pytest.raises(EnvironmentFailure, match=r"cannot write figures into .*file"):
        draw(study, read(study), tmp_path / "file", None)
