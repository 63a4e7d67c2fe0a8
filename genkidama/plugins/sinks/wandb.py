"""Weights & Biases: a run of the project `genkidama`, or of `WANDB_PROJECT`.

`WANDB_MODE=offline` writes into the run's directory. `wandb sync` carries that to the service.
"""

from __future__ import annotations

import os

import wandb

from genkidama.plugins.sinks.points import Point
from genkidama.plugins.sinks.registry import RunInfo

__all__ = ["WandB"]


class WandB:
    """A `Sink`. A run that goes on, goes on there, too."""

    def __init__(self, about: RunInfo) -> None:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "genkidama"),
            name=about.name,
            id=about.name,
            resume="allow",
            dir=str(about.folder),
            config=about.settings,
            settings=wandb.Settings(console="off", quiet=True),
        )
        # Its own steps never go back, but those of a search's trials do.
        self._run.define_metric("steps")
        self._run.define_metric("*", step_metric="steps")

    def write(self, point: Point) -> None:
        self._run.log({"steps": point.steps, **point.figures})

    def close(self) -> None:
        self._run.finish()
