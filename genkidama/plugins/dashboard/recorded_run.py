"""A run's document, read from the directory of a run, whether that has ended or goes on."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, GenkidamaError
from genkidama.runs.history import Follower
from genkidama.runs.run import HISTORY, Run
from genkidama.runs.status import RunStatus
from genkidama.server.events import Event, from_line

__all__ = ["RecordedRun", "find_runs"]

#: Lines are taken in together, so that there are so many points of the curve at most.
_POINTS = 2000

#: How long a line is, more or less.
_LINE_BYTES = 250


class RecordedRun:
    """The document of a run directory, which grows with its history.

    Args:
        path: the directory.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        #: What is damaged; empty if nothing is.
        self.problem = ""
        self._unknown: dict[str, str] = {}
        try:
            self.experiment = Run.open(path).experiment
        except GenkidamaError as error:
            self.experiment = Experiment()  # which says nothing of this run
            self._unknown = dict.fromkeys(("environment", "algorithm", "backend", "rule"), "?")
            self.problem = str(error)
        self.status = RunStatus(self.experiment)
        if self.problem:
            self.status.advice.append(self.problem)
        #: The time of the newest event.
        self.time = 0.0
        self._follower = Follower(path / HISTORY)
        self._follower.position = 0
        self._together = 1

    @property
    def behind(self) -> bool:
        """Whether `read` has not come to the end yet."""
        return self._follower.behind

    def read(self) -> None:
        """Takes in the next piece, of 1 MiB at most, of what the history says."""
        lines = iter(self._follower.read())
        with suppress(OSError):
            size = self._follower.path.stat().st_size
            self._together = max(1, size // _LINE_BYTES // _POINTS)
        while chunk := list(islice(lines, self._together)):
            events = [event for line in chunk if (event := self._event(line)) is not None]
            self.status.take(events)
            if events:
                self.time = events[-1].time
        if self._follower.skipped:
            self._damaged("a line is longer than any that a parent writes")

    def _event(self, line: bytes) -> Event | None:
        try:
            return from_line(line)
        except msgspec.ValidationError:
            return None  # a line that another program wrote
        except msgspec.DecodeError as error:
            self._damaged(str(error))
            return None

    def _damaged(self, problem: str) -> None:
        if not self.problem:
            self.problem = f"{self._follower.path}: is damaged: {problem}; that line is left out"
            self.status.advice.append(self.problem)

    def summary(self, url: str) -> dict[str, Any]:
        """A row of the list of runs, with the run's curve."""
        whole = self.status.snapshot(self.time)
        run, learning = whole["run"], whole["learning"]
        told = ("environment", "algorithm", "backend", "rule", "alpha", "beta", "state", "reason")
        return {
            "name": self.name,
            "url": url,
            **{key: run[key] for key in told},
            **self._unknown,
            **({"state": "damaged", "reason": self.problem} if self.problem else {}),
            "seed": self.experiment.seed,
            "elapsed": run["elapsed"],
            **{key: learning[key] for key in ("mean_return", "steps", "episodes", "curve")},
        }


def find_runs(folders: list[Path]) -> list[Path]:
    """The runs in these folders: each is a run, or holds some.

    Raises:
        ConfigurationError: there is none in one of them.
    """
    found: dict[Path, None] = {}
    for folder in folders:
        here = [folder] if _is_run(folder) else []
        if not here and folder.is_dir():
            here = sorted(each for each in folder.iterdir() if _is_run(each))
        if not here:
            raise ConfigurationError(
                f"{folder}: holds no run; give a run directory, or a folder with some, as runs/"
            )
        found.update(dict.fromkeys(here))
    return list(found)


def _is_run(path: Path) -> bool:
    return (path / HISTORY).is_file()
