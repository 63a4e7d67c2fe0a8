"""Weights of another run that a new run begins with."""

from __future__ import annotations

from pathlib import Path

from genkidama.config.experiment import Experiment
from genkidama.config.plugin import every
from genkidama.errors import ConfigurationError
from genkidama.runs.checkpoint import Checkpoint, CheckpointFolder
from genkidama.runs.run import Run, weights_of
from genkidama.runs.sharded_checkpoint import CHECKPOINTS
from genkidama.server.trial import Snapshot


def found_weights(name: str | Path) -> Path:
    """The run directory or checkpoint file that is meant, fetched if it lies elsewhere.

    Args:
        name: a run's directory, a checkpoint file, or a name that a plug-in knows, as a repository
            of the Hugging Face Hub, `"NAME/REPO"`.

    Raises:
        ConfigurationError: there is no such thing.
        EnvironmentFailure: it cannot be fetched.
    """
    path = Path(name)
    if path.exists():
        return path
    for _, fetch in every("weights"):
        if (fetched := fetch(str(name))) is not None:
            return Path(fetched)
    raise ConfigurationError(f"{name}: no such run directory or checkpoint file")


def begin_with(run: Run, experiment: Experiment, name: str | Path) -> None:
    """Puts weights into a new run as its first version; its counters begin at 0.

    Args:
        run: the new one, prepared and without checkpoints.
        experiment: its settings.
        name: as `found_weights` takes it; of a run, the best weights.

    Raises:
        ConfigurationError: there are none, or they are of another network.
        EnvironmentFailure: they cannot be fetched, or not be written.
    """
    weights: Checkpoint = weights_of(found_weights(name)).checkpoint
    theirs = weights.experiment.network
    if theirs != experiment.network:
        raise ConfigurationError(
            f"{name}: its network is {theirs!r}, that of {experiment.name} is "
            f"{experiment.network!r}; train with its own settings, without a FILE.toml"
        )
    snapshot = Snapshot(
        version=1,
        exchanges=0,
        updates=0.0,
        episodes=0,
        steps=0,
        seconds=0.0,
        alpha=weights.snapshot.alpha,
        beta=weights.snapshot.beta,
        experiment=experiment.to_dict(),
    )
    folder = CheckpointFolder(run.path / CHECKPOINTS)
    folder.save_latest(weights.signature, weights.vector, snapshot)
