"""How a child's learning goes, for its pushes: means of what its processes have noted."""

from __future__ import annotations

import time
from typing import Any

import numpy.typing as npt

from genkidama.config.experiment import Experiment
from genkidama.config.schedules import exploration, learning_rate
from genkidama.protocol.diagnostics import Window

__all__ = ["DiagnosticsReader"]

#: Means are taken over so many seconds at least: exchanges may come a hundred times a second.
_LEAST_SECONDS = 0.25


class DiagnosticsReader:
    """Reads the sums that a child's processes write.

    Args:
        experiment: for the schedules.
        cores: how many processes explore, each with its own ε; 0 where all have the same one.
    """

    def __init__(self, experiment: Experiment, cores: int = 0) -> None:
        self._optimizer = experiment.optimizer
        self._algorithm = experiment.algorithm
        self._parts = [core / max(1, cores - 1) for core in range(cores)]
        self._window = Window()
        self._next = 0.0

    def figures(self, sums: npt.NDArray[Any], progress: float) -> dict[str, float]:
        """The diagnostics since the last ones; none where these are too new, or nothing was noted.

        Args:
            sums: a row a process, float64 (processes, *SHAPE).
            progress: how much of the run is done, in [0, 1].
        """
        now = time.monotonic()
        if now < self._next:
            return {}
        found = self._window.read(sums.sum(0))
        if not found:
            return {}
        self._next = now + _LEAST_SECONDS
        if "samples" in found:
            found["learning_rate"] = learning_rate(self._optimizer, progress)
        algorithm = self._algorithm
        if algorithm.epsilon or algorithm.final_epsilon:
            shares = [exploration(algorithm, progress, part) for part in self._parts]
            found["epsilon"] = sum(shares) / len(shares) if shares else algorithm.epsilon
        return found
