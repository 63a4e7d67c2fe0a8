"""A Parent on a real socket in the loop of a test, and what it has written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from genkidama.config.experiment import Experiment
from genkidama.parent import Parent
from genkidama.server.events import Event


def experiment(**sections: dict[str, Any]) -> Experiment:
    return Experiment.from_dict({"name": "test", **sections})


@asynccontextmanager
async def running(settings: Experiment, out: Path) -> AsyncIterator[Parent]:
    """A parent that serves in a task of this loop, and is shut down at the end."""
    parent = Parent(settings, out=out, listen="127.0.0.1:0")
    await parent.startup()
    serving = asyncio.create_task(parent.serve())
    try:
        yield parent
    finally:
        parent.stop()
        await serving
        await parent.shutdown()


def history(out: Path | None) -> list[dict[str, Any]]:
    assert out is not None
    return [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]


def events(out: Path | None, kind: str) -> list[dict[str, Any]]:
    return [event for event in history(out) if event["event"] == kind]


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what the parent does after the last word that a child hears of it."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


class Notes:
    """A journal that keeps what it is given. The test is the clock."""

    def __init__(self) -> None:
        self.time = 0.0
        self.events: list[Event] = []
        self.problems: list[str] = []

    def now(self) -> float:
        return self.time

    def note(self, event: Event) -> None:
        self.events.append(event)

    def complain(self, problem: str) -> None:
        self.problems.append(problem)
