"""trackio: a run of the project `genkidama`, or of `TRACKIO_PROJECT`; `trackio show` shows it."""

from __future__ import annotations

import os

import trackio

from genkidama.plugins.sinks.points import Point
from genkidama.plugins.sinks.registry import RunInfo

__all__ = ["Trackio"]


class Trackio:
    """A `Sink`. A run that goes on, goes on there, too."""

    def __init__(self, about: RunInfo) -> None:
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "genkidama"),
            name=about.name,
            config=about.settings,
            resume="allow",
            embed=False,
        )

    def write(self, point: Point) -> None:
        self._run.log(point.figures, step=point.steps)

    def close(self) -> None:
        self._run.finish()
