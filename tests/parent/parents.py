"""Settings, events and a journal for tests of the parent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from genkidama.config.experiment import Experiment
from genkidama.server.events import Event
from tests.helpers import history


def experiment(**sections: dict[str, Any]) -> Experiment:
    return Experiment.from_dict({"name": "test", **sections})


def events(out: Path | None, kind: str) -> list[dict[str, Any]]:
    assert out is not None
    return history(out, kind)


class Notes:
    """A journal that keeps what it is given. The test is the clock."""

    def __init__(self) -> None:
        self.time = 0.0
        self.events: list[Event] = []
        self.problems: list[str] = []
        self.recalled: Sequence[Event] = ()

    def now(self) -> float:
        return self.time

    def note(self, event: Event) -> None:
        self.events.append(event)

    async def secure(self) -> None:
        pass

    def recall(self, events: Sequence[Event]) -> None:
        self.recalled = events

    def complain(self, problem: str) -> None:
        self.problems.append(problem)
