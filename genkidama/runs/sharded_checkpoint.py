"""Checkpoints of a sharded parent: the files of all shards read as one, and one cut into slices.

Laws of this file:
- The first shard's file identifies the checkpoint. Of each other shard, the file with the nearest
  version is used. All shards write at the same moments, so that is one of the same moment, or the
  newest of a shard that was gone.
- The result equals the file that a parent in one process would have written. So a run may
  continue with another number of shards.
- Of a rule's state, float32 arrays as long as the weights are split like them. The rest is the
  first shard's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from genkidama.errors import ConfigurationError, GenkidamaError
from genkidama.protocol.shard import WHOLE, Shard
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.runs.checkpoint import Checkpoint, CheckpointFolder
from genkidama.runs.checkpoint import load as load_file

CHECKPOINTS = "checkpoints"
PARTS = "parts"

Array: TypeAlias = npt.NDArray[Any]


def directory_of(run: Path, part: Shard) -> Path:
    """The directory of a shard: of the first the run's, of the second `parts/2-of-3/`."""
    return run if part.is_first else run / PARTS / f"{part.number}-of-{part.count}"


def run_of(directory: Path, part: Shard) -> Path:
    """The run's directory, of the one that `directory_of` gives."""
    return directory if part.is_first else directory.parents[1]


def load(path: str | Path) -> Checkpoint:
    """Reads a checkpoint, from all its files if it is one of a parent in parts."""
    return join(load_file(path))


def newest(run: Path, part: Shard, unreadable: Callable[[str], None]) -> Checkpoint | None:
    """The checkpoint that this shard resumes from; None if there is none.

    `unreadable` is called with one line for each file that had to be passed over. A run that was in
    other parts, and lacks the files of one, is a ConfigurationError.
    """
    own = _folder(run, part).latest(unreadable)
    if part.is_first and (own is None or own.part == part):
        return own
    first = _folder(run, WHOLE)
    problem = ""
    for version in reversed(first.versions()):
        if own is not None and own.part == part and version <= own.snapshot.version:
            return own
        try:
            found = load_file(first.version_path(version))
            if found.part.count != part.count:
                return cut(join(found), part)
        except GenkidamaError as error:
            problem = problem or str(error)
            unreadable(str(error))
    if own is not None and own.part != part:
        raise ConfigurationError(f"{problem}; or go on in {own.part.count} parts")
    return own


def cut(whole: Checkpoint, part: Shard) -> Checkpoint:
    """The slice of a checkpoint that belongs to a shard."""
    if part == WHOLE:
        return whole
    signature = whole.signature
    numbers = part.numbers(signature)
    lengths = _lengths(signature)
    state = {
        name: array[numbers] if _is_cut(array, lengths) else array
        for name, array in whole.state.items()
    }
    entries = [*signature.entries]
    snapshot = msgspec.structs.replace(whole.snapshot, part=str(part), whole=entries)
    return Checkpoint(whole.path, part.of(signature), whole.vector[numbers].copy(), snapshot, state)


def join(first: Checkpoint) -> Checkpoint:
    """The whole checkpoint that this one is the first part of; the same if it is whole."""
    if first.part == WHOLE:
        return first
    assert first.path is not None
    if not first.part.is_first:
        raise ConfigurationError(
            f"{first.path}: is part {first.part} of a checkpoint; name the run's directory"
        )
    count = first.part.count
    run = first.path.absolute().parent.parent
    parts = [first, *(_like(first, run, Shard(number, count)) for number in range(2, count + 1))]
    state = {name: _joined(name, array, parts) for name, array in first.state.items()}
    snapshot = msgspec.structs.replace(first.snapshot, part=str(WHOLE), whole=[])
    vector: Vector = np.concatenate([part.vector for part in parts])
    return Checkpoint(first.path, first.whole, vector, snapshot, state)


def _like(first: Checkpoint, run: Path, part: Shard) -> Checkpoint:
    """The checkpoint of this part that is nearest to one of the first part."""
    folder = _folder(run, part)
    version = first.snapshot.version
    found = sorted(_readable(folder), key=lambda each: abs(each.snapshot.version - version))
    if not found:
        raise ConfigurationError(
            f"{first.path}: is part {first.part}, and {folder.path} holds no checkpoint of part "
            f"{part}; copy it there"
        )
    if difference := first.whole.difference(found[0].whole):
        raise ConfigurationError(
            f"{found[0].path}: not of the network of {first.path}: {difference}"
        )
    return found[0]


def _readable(folder: CheckpointFolder) -> Iterator[Checkpoint]:
    for path in (*map(folder.version_path, folder.versions()), folder.best_path):
        with suppress(ConfigurationError):  # another one is nearly as good
            yield load_file(path)


def _joined(name: str, array: Array, parts: list[Checkpoint]) -> Array:
    if not _is_cut(array, _lengths(parts[0].signature)):
        return array
    none = (np.zeros(_lengths(part.signature)[0], DTYPE) for part in parts)
    found = zip(parts, none, strict=True)
    return np.concatenate([part.state.get(name, zero) for part, zero in found])


def _is_cut(array: Array, lengths: tuple[int, int]) -> bool:
    return array.dtype == DTYPE and array.ndim == 1 and len(array) in lengths


def _lengths(signature: Signature) -> tuple[int, int]:
    """The lengths of the trained numbers and of the whole vector."""
    return signature.size - signature.statistics, signature.size


def _folder(run: Path, part: Shard) -> CheckpointFolder:
    return CheckpointFolder(directory_of(run, part) / CHECKPOINTS)
