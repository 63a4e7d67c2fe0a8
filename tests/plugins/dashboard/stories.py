"""Events of runs that the tests of the page tell, and what they show."""

from __future__ import annotations

from typing import Any

import msgspec

from genkidama.config.experiment import Experiment
from genkidama.runs.status import RunStatus
from genkidama.server.events import Event, Exchange, Joined, Measures, Started

BEGAN = 1_000_000.0


def as_json(document: dict[str, Any]) -> dict[str, Any]:
    """What a viewer gets."""
    return dict(msgspec.json.decode(msgspec.json.encode(document)))


def plain(**stop: Any) -> Experiment:
    return Experiment.from_dict({"name": "told", "stop": stop})


def began(*children: str) -> list[Event]:
    found: list[Event] = [Started(time=BEGAN, run="told", software="1.2")]
    joins = [Joined(time=BEGAN + 1, child=name, version=0, parameters=4) for name in children]
    return [*found, *joins]


def exchange(number: int, child: str = "a", seconds: float = 0.0, **more: Any) -> Exchange:
    told = {"time": BEGAN + 1 + (seconds or number), "version": number, "update": float(number)}
    counts = {"staleness": 1, "episodes": number, "steps": 10 * number, "mean_return": number - 0.5}
    return Exchange(child=child, **{**told, **counts, **more})


def measures(child: str, seconds: float, **figures: float) -> Measures:
    return Measures(time=BEGAN + 1 + seconds, backend="ga3c", child=child, figures=figures)


def told(events: list[Event], **stop: Any) -> RunStatus:
    status = RunStatus(plain(**stop))
    status.take(events)
    return status
