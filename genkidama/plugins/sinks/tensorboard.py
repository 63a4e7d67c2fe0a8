"""TensorBoard: event files in the run's directory, which `tensorboard --logdir runs` shows."""

from __future__ import annotations

from pathlib import Path

from tensorboardX import SummaryWriter

from genkidama.plugins.sinks.points import Point
from genkidama.plugins.sinks.registry import RunInfo

__all__ = ["TensorBoard"]


class TensorBoard:
    """A `Sink`.

    Args:
        about: the run.
        folder: where the event files go; `tensorboard/` in the run's directory if absent.
    """

    def __init__(self, about: RunInfo, folder: Path | None = None) -> None:
        self._writer = SummaryWriter(str(folder or about.folder / "tensorboard"), flush_secs=5)
        self._writer.add_text("experiment", f"```toml\n{about.experiment.to_toml()}\n```")

    def write(self, point: Point) -> None:
        for name, value in point.figures.items():
            self._writer.add_scalar(name, value, point.steps, walltime=point.time)

    def close(self) -> None:
        self._writer.close()
