"""An experiment's network before any training, as tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from genkidama.config.experiment import Experiment
from genkidama.learning.environments import closing_environment, make_environment, played
from genkidama.learning.model import Model
from genkidama.runs.checkpoint import save
from genkidama.runs.warm_start import first_snapshot


def make(
    receive: Callable[[], Any], send: Callable[[Any], None], settings: dict[str, Any], path: Path
) -> None:
    """Writes the checkpoint."""
    experiment = Experiment.from_dict(settings)
    with closing_environment(make_environment(played(experiment.environment))) as environment:
        model = Model(experiment, environment)
    save(path, model.signature, model.numbers, first_snapshot(experiment))
    send(None)


def describe(
    receive: Callable[[], Any], send: Callable[[Any], None], settings: dict[str, Any]
) -> None:
    """Says the signature's entries and its digest."""
    experiment = Experiment.from_dict(settings)
    with closing_environment(make_environment(experiment.environment)) as environment:
        found = Model(experiment, environment).signature
    send((found.entries, found.digest))
