"""MLflow: a run of the experiment `genkidama`, or of `MLFLOW_EXPERIMENT_NAME`.

`MLFLOW_TRACKING_URI` says where; without it, MLflow's own default holds.
"""

from __future__ import annotations

import os

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from genkidama.plugins.sinks.points import Point
from genkidama.plugins.sinks.registry import RunInfo

__all__ = ["MLflow"]

#: MLflow refuses longer values of parameters, and more of them at once.
_LONGEST, _MOST = 500, 100


class MLflow:
    """A `Sink`. A run that goes on, goes on there, too."""

    def __init__(self, about: RunInfo) -> None:
        self._client = client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "genkidama")
        experiment = client.get_experiment_by_name(name)
        place = client.create_experiment(name) if experiment is None else experiment.experiment_id
        same = f"attributes.run_name = '{about.name}'"
        if found := client.search_runs([place], same, max_results=1):
            self._run = found[0].info.run_id
            client.update_run(self._run, status="RUNNING")
            return
        self._run = client.create_run(place, run_name=about.name).info.run_id
        settings = [Param(key, str(value)[:_LONGEST]) for key, value in about.settings.items()]
        for start in range(0, len(settings), _MOST):
            client.log_batch(self._run, params=settings[start : start + _MOST])

    def write(self, point: Point) -> None:
        time = int(1000 * point.time)
        metrics = [Metric(name, value, time, point.steps) for name, value in point.figures.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)
