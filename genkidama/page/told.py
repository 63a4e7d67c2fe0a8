"""A run's document, read from the directory of a run, whether that has ended or goes on."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from genkidama.errors import ConfigurationError
from genkidama.events import Event, from_line
from genkidama.system.history import Follower
from genkidama.system.run import HISTORY, Run
from genkidama.tuning.search_status import status_of

__all__ = ["ToldRun", "find_runs"]

#: Lines are taken in together, so that there are so many points of the curve at most.
_POINTS = 2000


class ToldRun:
    """The document of a run directory, which grows with its history.

    Args:
        path: the directory.

    Raises:
        ConfigurationError: it holds no run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        self.experiment = Run.open(path).experiment
        self.status = status_of(self.experiment)
        #: The time of the newest event.
        self.time = 0.0
        self._follower = Follower(path / HISTORY)
        self._follower.position = 0

    def read(self) -> None:
        """Takes in what the history says since the last call."""
        found = self._follower.read()
        lines = iter(found)
        while chunk := list(islice(lines, max(1, len(found) // _POINTS))):
            events = [event for line in chunk if (event := _event(line)) is not None]
            self.status.take(events)
            if events:
                self.time = events[-1].time

    def summary(self, url: str) -> dict[str, Any]:
        """A row of the list of runs, with the run's curve."""
        whole = self.status.snapshot(self.time)
        run, learning = whole["run"], whole["learning"]
        told = ("environment", "algorithm", "backend", "rule", "alpha", "beta", "state", "reason")
        return {
            "name": self.name,
            "url": url,
            **{key: run[key] for key in told},
            "seed": self.experiment.seed,
            "elapsed": run["elapsed"],
            **{key: learning[key] for key in ("mean_return", "steps", "episodes", "curve")},
        }


def _event(line: bytes) -> Event | None:
    try:
        return from_line(line)
    except msgspec.MsgspecError:
        return None  # a line that another program wrote


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
