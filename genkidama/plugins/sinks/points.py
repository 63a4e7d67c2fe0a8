"""What a line of a run's history says to a sink: figures by name, and where on the axis. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from genkidama.config.experiment import Experiment
from genkidama.protocol.diagnostics import DIAGNOSTICS
from genkidama.runs.status import RunStatus
from genkidama.server.events import (
    Evaluated,
    Event,
    Exchange,
    Measures,
    PhaseReported,
    from_line,
)

__all__ = ["Point", "Points"]


class Point(NamedTuple):
    """Figures of one moment."""

    #: Environment steps, of the run or of a search's trial.
    steps: int
    #: Unix seconds.
    time: float
    #: By name: `run/…` is the whole, `learning/…` the mean over children, `NAME/…` a child,
    #: `trial-N/…` a trial of a search, `evaluation/…` the last of all.
    figures: dict[str, float]


class Points:
    """Makes points of a run's lines, in their order.

    Args:
        experiment: of the run.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._status = RunStatus(experiment) if experiment.search is None else None
        #: By trial of a search, or None: its environment steps.
        self._steps: dict[int | None, int] = {}

    def of(self, line: dict[str, Any]) -> Point | None:
        """The point of a line of the history; None if it has no figures."""
        event = from_line(line)
        if event is None:
            return None
        # For means over children a status needs no exchanges, which are most of the lines.
        if self._status is not None and not isinstance(event, Exchange):
            self._status.take((event,))
        trial = getattr(event, "trial", None)
        trial = trial if isinstance(trial, int) else None
        if isinstance(event, Exchange | PhaseReported):
            self._steps[trial] = event.steps
        figures = dict(self._figures(event, "" if trial is None else f"trial-{trial}/"))
        if not figures:
            return None
        return Point(self._steps.get(trial, 0), event.time, figures)

    def _figures(self, event: Event, of_trial: str) -> Iterator[tuple[str, float]]:
        match event:
            case Exchange():
                whole = of_trial or "run/"
                yield whole + "episodes", event.episodes
                yield whole + "updates", event.update
                if event.mean_return is not None:
                    yield whole + "mean_return", event.mean_return
                yield f"{event.child}/staleness", event.staleness
            case Measures():
                for name, value in event.figures.items():
                    yield f"{of_trial or f'{event.child}/'}{name}", value
                if self._status is not None:
                    together = self._status.figures()
                    yield from (
                        (f"learning/{name}", together[name])
                        for name in DIAGNOSTICS
                        if name in event.figures and name in together
                    )
            case PhaseReported() if event.metric is not None:
                yield of_trial + "metric", event.metric
            case Evaluated():
                for name in ("mean", "std", "minimum"):
                    if (value := getattr(event, name)) is not None:
                        yield f"evaluation/{name}", value
