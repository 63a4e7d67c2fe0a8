"""Events of made-up runs, for tests of what shows how a run goes."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from genkidama.config.experiment import Experiment
from genkidama.runs.status import RunStatus
from genkidama.server.events import (
    Event,
    Exchange,
    Joined,
    Left,
    Measures,
    PhaseReported,
    Started,
    TrialAssigned,
    as_lines,
)

#: A small search.
PLAN: dict[str, Any] = {
    "trials": 4,
    "phases": 2,
    "phase_steps": 10,
    "eviction_rate": 0.25,
    "space": {"optimizer.learning_rate": [0.1, 0.2]},
}


def exchange(
    time: float,
    update: float = 1.0,
    steps: int = 100,
    episodes: int = 4,
    mean: float | None = 21.0,
    child: str = "pi",
) -> Exchange:
    return Exchange(
        time=time,
        child=child,
        version=1,
        update=update,
        staleness=0,
        steps=steps,
        episodes=episodes,
        mean_return=mean,
    )


def join(time: float, child: str = "pi") -> Joined:
    return Joined(time=time, child=child, version=0, parameters=4)


def leave(time: float, child: str) -> Left:
    return Left(time=time, child=child, reason="stopped")


def measures(
    time: float, child: str = "pi", backend: str = "hogwild", **figures: float
) -> Measures:
    return Measures(time=time, backend=backend, child=child, figures=figures)


def assigned(time: float, trial: int, child: str = "pi") -> TrialAssigned:
    return TrialAssigned(time=time, trial=trial, child=child, phase=0, params={})


def report(time: float, trial: int, metric: float | None) -> PhaseReported:
    return PhaseReported(
        time=time,
        trial=trial,
        phase=0,
        node="pi",
        start=0.0,
        end=1.0,
        metric=metric,
        order=1,
        worse=0,
        mode="collect",
        verdict="continue",
        steps=10,
        episodes=1,
        report=0,
    )


def lines(*events: Event | dict[str, Any]) -> list[dict[str, Any]]:
    """The events as a run's history gives them."""
    return [
        json.loads(as_lines([event])) if isinstance(event, Event) else event for event in events
    ]


# A run whose status is told.

#: When the runs of `began` began, in seconds.
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


def pushed(number: int, child: str = "a", seconds: float = 0.0, **more: Any) -> Exchange:
    told = {"time": BEGAN + 1 + (seconds or number), "version": number, "update": float(number)}
    counts = {"staleness": 1, "episodes": number, "steps": 10 * number, "mean_return": number - 0.5}
    return Exchange(child=child, **{**told, **counts, **more})


def measured(child: str, seconds: float, **figures: float) -> Measures:
    return Measures(time=BEGAN + 1 + seconds, backend="ga3c", child=child, figures=figures)


def told(events: list[Event], **stop: Any) -> RunStatus:
    status = RunStatus(plain(**stop))
    status.take(events)
    return status
