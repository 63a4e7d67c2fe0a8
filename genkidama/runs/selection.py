"""Which weights are meant: those of a run, of a search, or of a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from genkidama.errors import ConfigurationError
from genkidama.runs import sharded_checkpoint
from genkidama.runs.checkpoint import Checkpoint
from genkidama.runs.directory import Run
from genkidama.runs.status import RunStatus
from genkidama.server.events import from_line

__all__ = ["Weights", "best_trial_of", "weights_of"]


@dataclass(frozen=True)
class Weights:
    """The weights that are played."""

    #: The run that they are of, of a search its best trial; None of a file.
    run: Run | None
    checkpoint: Checkpoint

    @property
    def path(self) -> Path:
        """The checkpoint's file."""
        assert self.checkpoint.path is not None
        return self.checkpoint.path

    def __str__(self) -> str:
        version = self.checkpoint.snapshot.version
        best = self.path.stem == "best"
        return f"best weights, version {version}" if best else f"weights of version {version}"


def weights_of(target: Run | str | Path, *, best: bool = True) -> Weights:
    """The weights of a run, its directory, a search's, or a checkpoint file.

    Args:
        best: of a run, takes the best by mean training return, if one is known; otherwise the
            newest. Of a search, the run is its best trial.

    Raises:
        ConfigurationError: there is no such run or file, or it holds no good weights.
    """
    if not isinstance(target, Run) and not Path(target).is_dir():
        return Weights(None, sharded_checkpoint.load(Path(target)))
    run = best_trial_of(target if isinstance(target, Run) else Run.open(target))
    return Weights(run, run.load(best=best, unreadable=_warn))


def best_trial_of(run: Run) -> Run:
    """The run itself or, of a search, its best trial.

    Raises:
        ConfigurationError: no trial of the search has a score and weights.
    """
    experiment = run.experiment
    if experiment.search is None:
        return run
    status = RunStatus(experiment)
    status.take(filter(None, map(from_line, run.history())))
    trials = {int(trial.path.name): trial for trial in run.trials if trial.checkpoints}
    best = None if status.search is None else status.search.best(set(trials))
    if best is None:
        raise ConfigurationError(
            f"{run.path}: no trial of this search has a score yet; go on later"
        )
    return trials[best]


def _warn(problem: str) -> None:
    print(f"warning: passed over {problem}", file=sys.stderr)
