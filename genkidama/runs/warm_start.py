"""A new run that begins with the weights of another: those of `parent.start`.

Laws of this file:
- An array is taken if one of this name and shape is there. All others get the first numbers that
  they would have without a start.
- Only arrays are read. Counters, the rule's state and the optimizer begin anew.
- A parent computes no first numbers: where the networks differ, a process of its own does.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

from genkidama.config.examples import ZOO, trained
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import plural
from genkidama.config.plugin import every
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.protocol.vector import unflatten
from genkidama.runs.checkpoint import Checkpoint, load
from genkidama.runs.run import weights_of
from genkidama.runtime.task import call
from genkidama.server.trial import Snapshot

#: So many arrays that are not taken are named.
_NAMED = 4


def found_weights(name: str | Path) -> Path:
    """The run directory or checkpoint file that is meant, fetched if it lies elsewhere.

    Args:
        name: a run's directory, a checkpoint file, `"zoo:NAME"`, or a name that a plug-in knows,
            as a repository of the Hugging Face Hub, `"NAME/REPO"`.

    Raises:
        ConfigurationError: there is no such thing.
        EnvironmentFailure: it cannot be fetched.
    """
    path = Path(name)
    if path.exists():
        return path
    if str(name).startswith(ZOO):
        return trained(str(name))
    for _, fetch in every("weights"):
        if (fetched := fetch(str(name))) is not None:
            return Path(fetched)
    raise ConfigurationError(f"{name}: no such run directory or checkpoint file")


def source_of(experiment: Experiment) -> Checkpoint | None:
    """The checkpoint that `parent.start` names: of a run its best, of a search its best trial's;
    None without a start.

    Raises:
        ConfigurationError: there is none.
        EnvironmentFailure: it cannot be fetched.
    """
    start = experiment.parent.start
    if not start:
        return None
    try:
        return weights_of(found_weights(start)).checkpoint
    except ConfigurationError as error:
        raise ConfigurationError(f"parent.start = {start!r}: {error}") from None


def warm_start(experiment: Experiment) -> tuple[Checkpoint, str] | None:
    """The first weights of a run that has a `parent.start`, and what was taken; else None.

    Raises:
        ConfigurationError: there are no such weights, or none of their arrays fits.
        EnvironmentFailure: the networks differ, and this machine cannot make the run's.
    """
    source = source_of(experiment)
    if source is None:
        return None
    same = _network(source.experiment) == _network(experiment)
    first = source if same else _first_weights(experiment)
    return overlay(source, first, experiment)


def overlay(
    source: Checkpoint, first: Checkpoint, experiment: Experiment
) -> tuple[Checkpoint, str]:
    """The weights of `first`, with the arrays of `source` that fit.

    Returns:
        The checkpoint of version 1, and a sentence on what was taken and what was not.

    Raises:
        ConfigurationError: no array fits.
    """
    theirs = unflatten(source.vector, source.signature)
    vector = first.vector.copy()
    left = []
    for name, array in unflatten(vector, first.signature).items():
        found = theirs.get(name)
        if found is not None and found.shape == array.shape:
            array[...] = found
        else:
            there = "missing there" if found is None else f"there {list(found.shape)}"
            left.append(f"{name} {list(array.shape)}, {there}")
    count = len(first.signature.entries)
    shown = "; ".join(left[:_NAMED]) + ("; …" if len(left) > _NAMED else "")
    if len(left) == count:
        raise ConfigurationError(
            f"parent.start = {experiment.parent.start!r}: none of its arrays fits this network: "
            f"{shown}"
        )
    words = f"{source.path}, version {source.snapshot.version}: "
    words += f"{count - len(left)} of {plural(count, 'array')} taken"
    words += f"; not taken: {shown}" if left else ""
    return Checkpoint(None, first.signature, vector, first_snapshot(experiment)), words


def first_snapshot(experiment: Experiment) -> Snapshot:
    """The counters of a run that has not begun, and has weights."""
    return Snapshot(
        version=1,
        exchanges=0,
        updates=0.0,
        episodes=0,
        steps=0,
        seconds=0.0,
        alpha=experiment.parent.alpha,
        beta=experiment.child.beta,
        experiment=experiment.to_dict(),
    )


def _network(experiment: Experiment) -> object:
    """All settings that names and shapes follow from."""
    names = (
        *("id", "options", "wrappers", "vectorized", "action_mask"),
        *("normalize_observations", "normalize_rewards"),
    )
    made_by = [getattr(experiment.environment, name) for name in names]
    name = experiment.algorithm.name
    # SAC's children that only act have the policy alone.
    return experiment.network, name, made_by, name == "sac" and experiment.sends_experience


def _first_weights(experiment: Experiment) -> Checkpoint:
    """The weights of this experiment's network before any training, made by another process."""
    start = f"parent.start = {experiment.parent.start!r}"
    if find_spec("gymnasium") is None:
        raise EnvironmentFailure(
            f"{start}: was trained with other settings of its network or environment, and without "
            "Gymnasium this machine cannot see what fits; install that here, too"
        )
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "first.safetensors"
            task = "genkidama.runs.first_weights:make", (experiment.to_dict(), file)
            call(experiment, *task, "it cannot be built")
            return load(file)
    except GenkidamaError as error:
        raise EnvironmentFailure(f"{start}: its network cannot be compared: {error}") from None
