"""Displays of a parent for other machines and of a child that has joined one, on a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from genkidama.cli.progress import LiveDisplay, Progress
from genkidama.config.formatting import duration, plural, rate
from genkidama.parent.extensions import Observer
from genkidama.server.events import Event, PushesRefused, TrialFailed, Warned

if TYPE_CHECKING:
    from genkidama.child.child import Child


class ParentProgress(Progress):
    """The display of `genkidama train`. The parent's log has the warnings."""

    def _say(self, event: Event) -> None:
        if not isinstance(event, PushesRefused | TrialFailed | Warned):
            super()._say(event)


class ParentDisplay(Observer):
    """Shows the events of the parent in this process."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            self._progress.take(event)


class ChildDisplay(LiveDisplay):
    """A child's own work, and its connection."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._began = time.monotonic()
        self._mean: float | None = None
        super().__init__()

    def draw(self, width: int, height: int) -> Any:
        from rich.text import Text

        return Text(self.line().replace(" · ", "\n", 1))

    def line(self) -> str:
        counts = self._child.counts
        seconds = max(1e-3, time.monotonic() - self._began)
        if returns := list(counts.returns):
            self._mean = sum(returns) / len(returns)
        name = self._child.name or "this machine"
        return " · ".join(
            (
                f"{name}: {self._child.status}",
                duration(seconds),
                *(() if self._mean is None else (f"mean return {self._mean:.1f}",)),
                plural(counts.exchanges, "exchange"),
                plural(counts.episodes, "episode"),
                f"{counts.steps:,} steps",
                f"{rate(counts.steps / seconds)}/s",
            )
        )
