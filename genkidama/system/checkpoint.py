"""Checkpoints: a weight vector and all that a run needs to go on, as one safetensors file.

Laws of this file:
- A file is complete or absent: it is written beside its name, flushed to the disk, then renamed.
  What goes wrong on the way leaves the file that was there before untouched.
- The tensors carry their names and shapes, so that any reader of safetensors can load them as a
  `state_dict`; everything else is JSON in the metadata, one key for each field of `Snapshot`.
- What the parent's rule remembers stands beside them, each array under a name that begins with
  `STATE_PREFIX`. A rule that remembers nothing, as `Blend`, leaves nothing there.
- Reading executes nothing, and a file that is broken in any way is a `ConfigurationError`.
- The last few checkpoints are kept, and the best one beside them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

import genkidama
from genkidama.averaging import RuleState
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.experiment import Experiment
from genkidama.parts import Part
from genkidama.system.files import write_atomically
from genkidama.trial import STATE_PREFIX, Snapshot
from genkidama.weights import DTYPE, Signature, Vector, unflatten

__all__ = ["FORMAT", "Checkpoint", "CheckpointFolder", "load", "save"]

#: What the metadata's `format` says; a change that old readers cannot ignore raises the number.
FORMAT = "genkidama-1"

_SUFFIX = ".safetensors"
_VERSION = re.compile(r"version-(\d{10,})\.safetensors\Z")
_FIELDS = Snapshot.__struct_fields__


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds."""

    path: Path | None
    signature: Signature
    #: float32, shape (signature.size,), writable, shared with nobody.
    vector: Vector
    snapshot: Snapshot
    #: What the parent's rule remembers: float32 or float64 arrays by name.
    state: RuleState = field(default_factory=dict)

    @property
    def part(self) -> Part:
        """Which part of a parent has written it."""
        return Part.parse(self.snapshot.part)

    @property
    def whole(self) -> Signature:
        """The signature of the network, of which the vector may be a part."""
        return Signature.of(self.snapshot.whole) if self.snapshot.whole else self.signature

    @property
    def experiment(self) -> Experiment:
        """The settings of the run that wrote it.

        Raises:
            ConfigurationError: this version of the software does not know or allow one of them.
        """
        return Experiment.from_dict(
            self.snapshot.experiment, source=str(self.path or "the checkpoint")
        )


def save(
    path: str | Path,
    signature: Signature,
    vector: Vector,
    snapshot: Snapshot,
    state: RuleState | None = None,
) -> None:
    """Writes a checkpoint, replacing the file at `path` if there is one.

    Args:
        signature: what the vector's numbers mean.
        vector: float32, shape (signature.size,), only read.
        state: what the parent's rule remembers, float32 or float64, only read.

    Raises:
        EnvironmentFailure: the disk is full, the folder is not writable, …; the old file is whole.
        ValueError: the vector does not fit the signature.
    """
    metadata = {name: msgspec.json.encode(getattr(snapshot, name)).decode() for name in _FIELDS}
    # safetensors sorts its tensors, so their order must be told.
    metadata["signature"] = msgspec.json.encode(signature.entries).decode()
    metadata["format"] = FORMAT
    metadata["software"] = genkidama.__version__
    tensors: RuleState = {**unflatten(vector, signature)}
    for name, array in (state or {}).items():
        tensors[STATE_PREFIX + name] = np.asarray(array, order="C")
    write_atomically(Path(path), safetensors.numpy.save(tensors, metadata))


def load(path: str | Path) -> Checkpoint:
    """Reads a checkpoint.

    Raises:
        ConfigurationError: there is no such file, or it is damaged or no checkpoint of ours; the
            message is one line that names the file and the way out.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigurationError(
            f"{path}: no such checkpoint; name a {_SUFFIX} file or a run's directory"
        )
    try:
        with safetensors.safe_open(path, framework="np") as file:
            signature, snapshot = _metadata(file.metadata() or {})
            for name, shape in signature.entries:  # all before the vector's memory is asked for
                found = file.get_slice(name)
                if found.get_dtype() != "F32" or tuple(found.get_shape()) != shape:
                    there = f"{found.get_dtype()} {list(found.get_shape())}"
                    raise ValueError(f"{name!r} is {there}, expected F32 {list(shape)}")
            vector = np.empty(signature.size, DTYPE)
            for name, part in unflatten(vector, signature).items():
                part[...] = file.get_tensor(name)
            state = {
                name.removeprefix(STATE_PREFIX): file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118  # it is no dictionary
                if name.startswith(STATE_PREFIX)
            }
    except (
        safetensors.SafetensorError,
        msgspec.DecodeError,
        ValueError,
        KeyError,
        OSError,
    ) as error:
        problem = f"{error}".splitlines()[0]
        raise ConfigurationError(
            f"{path}: not a readable checkpoint: {problem}; "
            "use another checkpoint or delete this one"
        ) from None
    return Checkpoint(path, signature, vector, snapshot, state)


def _metadata(metadata: dict[str, str]) -> tuple[Signature, Snapshot]:
    if metadata.get("format") != FORMAT:
        raise ValueError(f"its format is {metadata.get('format')!r}, expected {FORMAT!r}")
    entries = msgspec.json.decode(
        metadata.get("signature", "null"), type=list[tuple[str, list[int]]]
    )
    signature = Signature.of(entries)
    if any(n < 0 for _, shape in signature.entries for n in shape):
        raise ValueError("its signature has a negative dimension")
    fields: dict[str, Any] = {
        name: msgspec.json.decode(metadata[name]) for name in _FIELDS if name in metadata
    }
    return signature, msgspec.convert(fields, Snapshot)


def _ignore(problem: str) -> None:
    pass


class CheckpointFolder:
    """A run's `checkpoints/`: the last `keep` versions and the best.

    Args:
        path: the folder; `prepare` makes it.
        keep: how many of the last versions stay, at least 1.
    """

    def __init__(self, path: str | Path, keep: int = 5) -> None:
        self.path = Path(path)
        self.keep = keep

    @property
    def best_path(self) -> Path:
        return self.path / f"best{_SUFFIX}"

    def version_path(self, version: int) -> Path:
        return self.path / f"version-{version:010d}{_SUFFIX}"

    def prepare(self) -> None:
        """Makes the folder, and removes what a process that was killed had begun to write.

        Raises:
            EnvironmentFailure: the folder cannot be made or written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for leftover in self.path.glob(".*.tmp"):
                leftover.unlink()
        except OSError as error:
            raise EnvironmentFailure(
                f"{self.path}: cannot be written: {error.strerror}; choose another directory"
            ) from None

    def versions(self) -> list[int]:
        """The versions that have a file, ascending; none if there is no folder."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(
                int(found[1]) for name in os.listdir(self.path) if (found := _VERSION.match(name))
            )
        return []

    def save_latest(
        self,
        signature: Signature,
        vector: Vector,
        snapshot: Snapshot,
        state: RuleState | None = None,
    ) -> Path:
        """Writes `version-N.safetensors` and deletes all but the last `keep` versions up to N.

        Newer ones stay: they are unreadable, or this run would have started from them.

        Raises:
            EnvironmentFailure: as `save`; nothing is deleted then.
        """
        path = self.version_path(snapshot.version)
        save(path, signature, vector, snapshot, state)
        older = [version for version in self.versions() if version <= snapshot.version]
        for version in older[: -self.keep]:
            with suppress(OSError):
                self.version_path(version).unlink()
        return path

    def save_best(
        self,
        signature: Signature,
        vector: Vector,
        snapshot: Snapshot,
        state: RuleState | None = None,
    ) -> Path:
        """Writes `best.safetensors`.

        Raises:
            EnvironmentFailure: as `save`.
        """
        save(self.best_path, signature, vector, snapshot, state)
        return self.best_path

    def latest(self, unreadable: Callable[[str], None] = _ignore) -> Checkpoint | None:
        """The newest checkpoint that can be read, else the best one, else None.

        Args:
            unreadable: called with one line for each file that had to be passed over.
        """
        paths = [self.version_path(version) for version in reversed(self.versions())]
        for path in [*paths, self.best_path] if self.best_path.exists() else paths:
            try:
                return load(path)
            except GenkidamaError as error:
                unreadable(str(error))
        return None
