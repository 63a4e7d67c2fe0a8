"""A real trackio project, in a folder."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path

import pytest

from genkidama.plugins.sinks.points import Point
from genkidama.plugins.sinks.registry import RunInfo
from genkidama.runs.directory import Run
from tests.helpers import small

# It is read when trackio is imported.
FOLDER = Path(os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp(prefix="trackio-")))

pytest.importorskip("trackio", reason="genkidama[trackio] is not installed")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_points_are_in_the_projects_database(tmp_path: Path) -> None:
    from genkidama.plugins.sinks.trackio import Trackio

    (tmp_path / "experiment.toml").write_text(small().to_toml())
    sink = Trackio(RunInfo(Run(tmp_path)))
    sink.write(Point(100, 1.5, {"run/mean_return": 21.25}))
    sink.close()
    (file,) = FOLDER.rglob("genkidama*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("select step, metrics from metrics").fetchall()
    assert any(step == 100 and "21.25" in str(metrics) for step, metrics in rows)
