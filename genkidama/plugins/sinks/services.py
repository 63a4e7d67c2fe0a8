"""Sinks for TensorBoard, W&B, MLflow and trackio. A resumed run continues its run there.

Their packages are imported by the threads that write to them: some take seconds.
"""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from genkidama.config.experiment import Experiment
from genkidama.config.sections import flat
from genkidama.runs.run import IDENTITY, SETTINGS, Run
from genkidama.runtime.files import write_atomically

#: MLflow refuses longer values and names of parameters, and more of them at once.
_LONGEST, _MOST = 250, 100

#: Sinks of one run, each in its thread, ask for the identity at the same time.
_drawing = threading.Lock()


class Point(NamedTuple):
    """Figures of one moment."""

    #: Environment steps, of the run or of a search's trial.
    steps: int
    #: Unix seconds.
    time: float
    #: By name: `run/…` is the whole, `learning/…` the mean over children, `NAME/…` a child,
    #: `trial-N/…` a trial of a search, `evaluation/…` the final evaluation.
    figures: dict[str, float]


@dataclass(frozen=True)
class RunInfo:
    """The run whose figures a sink receives."""

    run: Run

    @property
    def name(self) -> str:
        """The run's name: that of its directory."""
        return self.run.path.absolute().name

    @property
    def identity(self) -> str:
        """Random letters that tell the run from others of its name, drawn when they are first
        asked for. They are in the run's directory: who goes on with the run finds them."""
        file = self.run.path / IDENTITY
        with _drawing:
            if not file.exists():
                write_atomically(file, secrets.token_hex(8).encode())
            return file.read_text(encoding="utf-8").strip()

    @property
    def folder(self) -> Path:
        """The run's directory."""
        return self.run.path

    @cached_property
    def experiment(self) -> Experiment:
        """All settings, but for what strangers may not see: `Experiment.published`."""
        prepared = self.run.path / SETTINGS
        own = Experiment.load(prepared) if prepared.is_file() else self.run.experiment
        return own.published()

    @property
    def settings(self) -> dict[str, Any]:
        """All settings in one level, as `{"algorithm.gamma": 0.99}`."""
        return flat(self.experiment.to_dict())


def plain_name(name: str) -> str:
    """A name that all tools take: letters, digits and `_-./`; at most 200 characters."""
    return "".join(one if one.isascii() and (one.isalnum() or one in "_-./") else "_"
                   for one in name[:200])  # fmt: skip


class TensorBoard:
    """Event files, which `tensorboard --logdir runs` shows; in the run's directory if no folder is
    given."""

    def __init__(self, about: RunInfo, folder: Path | None = None) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder or about.folder / "tensorboard"), flush_secs=5)
        settings = about.experiment.to_toml().replace("\n", "\n    ")  # code, in Markdown
        self._writer.add_text("experiment", f"    {settings}")

    def write(self, point: Point) -> None:
        for name, value in point.figures.items():
            self._writer.add_scalar(name, value, point.steps, walltime=point.time)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """Weights & Biases: a run of the project `genkidama`, or of `WANDB_PROJECT`.

    `WANDB_MODE=offline` writes into the run's directory. `wandb sync` carries that to the service.
    """

    def __init__(self, about: RunInfo) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "genkidama"),
            name=about.name,
            id=about.identity,
            resume="allow",
            dir=str(about.folder),
            config=about.settings,
            settings=wandb.Settings(console="off", quiet=True),
        )
        # W&B's own steps never decrease, but those of a search's trials do.
        self._run.define_metric("steps")
        self._run.define_metric("*", step_metric="steps")

    def write(self, point: Point) -> None:
        self._run.log({"steps": point.steps, **point.figures})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """MLflow: a run of the experiment `genkidama`, or of `MLFLOW_EXPERIMENT_NAME`.
    `MLFLOW_TRACKING_URI` says where; without it, MLflow's own default holds."""

    def __init__(self, about: RunInfo) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "genkidama")
        experiment = client.get_experiment_by_name(name)
        place = client.create_experiment(name) if experiment is None else experiment.experiment_id
        tags = {"genkidama_identity": about.identity}
        same = f"tags.genkidama_identity = '{about.identity}'"
        if runs := client.search_runs([place], same, max_results=1):
            self._run = runs[0].info.run_id
            client.update_run(self._run, status="RUNNING")
            return
        self._run = client.create_run(place, tags=tags, run_name=about.name).info.run_id
        settings = [
            Param(plain_name(key), str(value)[:_LONGEST]) for key, value in about.settings.items()
        ]
        for start in range(0, len(settings), _MOST):
            client.log_batch(self._run, params=settings[start : start + _MOST])

    def write(self, point: Point) -> None:
        from mlflow.entities import Metric

        time = int(1000 * point.time)
        metrics = [Metric(name, value, time, point.steps) for name, value in point.figures.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class Trackio:
    """trackio: a run of the project `genkidama`, or of `TRACKIO_PROJECT`."""

    def __init__(self, about: RunInfo) -> None:
        import trackio

        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "genkidama"),
            name=f"{about.name}-{about.identity}",  # it knows runs by their names
            config=about.settings,
            resume="allow",
            embed=False,
        )

    def write(self, point: Point) -> None:
        self._run.log(point.figures, step=point.steps)

    def close(self) -> None:
        self._run.finish()
