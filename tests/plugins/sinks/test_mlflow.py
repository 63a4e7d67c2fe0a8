"""A real MLflow store, in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.plugins.sinks.points import Point
from genkidama.plugins.sinks.registry import RunInfo
from genkidama.runs.directory import Run
from tests.helpers import small

pytest.importorskip("mlflow", reason="genkidama[mlflow] is not installed")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_that_goes_on_goes_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    from genkidama.plugins.sinks.mlflow import MLflow, MlflowClient

    (tmp_path / "experiment.toml").write_text(small().to_toml())
    for steps in (100, 200):
        sink = MLflow(RunInfo(Run(tmp_path)))
        sink.write(Point(steps, 1.5, {"run/mean_return": steps / 8}))
        sink.close()
    client = MlflowClient()
    experiment = client.get_experiment_by_name("genkidama")
    (run,) = client.search_runs([experiment.experiment_id])
    found = client.get_metric_history(run.info.run_id, "run/mean_return")
    assert [(one.step, one.value, one.timestamp) for one in found] == [
        (100, 12.5, 1500),
        (200, 25.0, 1500),
    ]
    assert (run.data.params["name"], run.info.status) == ("small", "FINISHED")
