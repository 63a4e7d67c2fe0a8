"""A real W&B run, offline: what it logs is in the file that `wandb sync` would send."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.plugins.sinks.points import Point
from genkidama.plugins.sinks.registry import RunInfo
from genkidama.runs.directory import Run
from tests.helpers import small

pytest.importorskip("wandb", reason="genkidama[wandb] is not installed")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_points_are_in_the_offline_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from genkidama.plugins.sinks.wandb import WandB

    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "experiment.toml").write_text(small().to_toml())
    sink = WandB(RunInfo(Run(tmp_path)))
    sink.write(Point(100, 1.5, {"run/mean_return": 21.25}))
    sink.close()
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"mean_return" in file.read_bytes() and b"21.25" in file.read_bytes()
