"""Which sink has which name, and what a sink is."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.plugins.sinks.points import Point
from genkidama.runs.directory import SETTINGS, Run
from genkidama.runtime.import_strings import is_import_string, load_object

__all__ = ["SINKS", "RunInfo", "MakesSink", "Sink", "sink_maker"]

#: By name: the package that it needs, and the class that is the sink.
SINKS = {
    "tensorboard": ("tensorboardX", "genkidama.plugins.sinks.tensorboard:TensorBoard"),
    "wandb": ("wandb", "genkidama.plugins.sinks.wandb:WandB"),
    "mlflow": ("mlflow", "genkidama.plugins.sinks.mlflow:MLflow"),
    "trackio": ("trackio", "genkidama.plugins.sinks.trackio:Trackio"),
}


@dataclass(frozen=True)
class RunInfo:
    """The run that a sink is told of."""

    run: Run

    @property
    def name(self) -> str:
        """The run's name: that of its directory."""
        return self.run.path.absolute().name

    @property
    def folder(self) -> Path:
        """The run's directory."""
        return self.run.path

    @cached_property
    def experiment(self) -> Experiment:
        """All settings."""
        prepared = self.run.path / SETTINGS
        return Experiment.load(prepared) if prepared.is_file() else self.run.experiment

    @property
    def settings(self) -> dict[str, Any]:
        """All settings in one level, as `{"algorithm.gamma": 0.99}`."""
        return _flat(self.experiment.to_dict())


class Sink(Protocol):
    """What carries points to a tool. One thread makes all calls, the constructor's included.

    A sink of one's own is a class with these methods, named by `"module:Class"`.
    """

    def __init__(self, about: RunInfo) -> None: ...

    def write(self, point: Point) -> None:
        """Takes one point; steps may go back, as in a search."""
        ...

    def close(self) -> None:
        """The run is over, and all points are taken."""
        ...


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": one for key, one in _flat(value).items()}
        else:
            found[name] = value
    return found


#: Whatever makes a sink.
MakesSink: TypeAlias = Callable[[RunInfo], Any]


def sink_maker(wanted: str | MakesSink) -> tuple[str, MakesSink]:
    """The sink's name, and what makes it.

    Raises:
        ConfigurationError: there is no such sink, or its package is not installed.
    """
    if not isinstance(wanted, str):
        return getattr(wanted, "__name__", type(wanted).__name__), wanted
    if wanted in SINKS:
        package, place = SINKS[wanted]
        if importlib.util.find_spec(package) is None:
            raise ConfigurationError(
                f"sink {wanted!r}: needs {package}, which is not installed: "
                f"pip install 'genkidama[{wanted}]'"
            )
        return wanted, lambda about: load_object(place, "sink")(about)
    if is_import_string(wanted):
        return wanted, load_object(wanted, "sink")
    raise ConfigurationError(
        f"sink {wanted!r}: expected one of {', '.join(SINKS)}, or 'module:Class'"
    )
