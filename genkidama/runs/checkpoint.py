"""Checkpoints: a weight vector and everything needed to resume a run, in one safetensors file.

Laws of this file:
- A file is complete or absent: it is written beside its name, flushed to the disk, then renamed.
  A failure on the way leaves the earlier file untouched.
- The tensors carry their names and shapes, so that any reader of safetensors can load them as a
  `state_dict`; everything else is JSON in the metadata, one key for each field of `Snapshot`.
- The state of the parent's rule is beside them, each array under a name that begins with
  `STATE_PREFIX`. A rule without state, as `Blend`, adds nothing.
- Reading executes nothing, and a file that is broken in any way is a `ConfigurationError`. A
  checksum finds a flipped bit. All numbers in a file are finite.
- The last few checkpoints are kept, and the best one beside them.
- Only `newest_readable` chooses among several files, for a parent, `--resume`, an evaluation and
  a search.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from genkidama._version import __version__
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.protocol.shard import Shard
from genkidama.protocol.vector import DTYPE, Signature, Vector, is_finite, unflatten
from genkidama.protocol.vector import checksum as _checksum
from genkidama.runtime.files import disk_errors, flush_folder, make_folder, write_atomically
from genkidama.server.rules.blend import RuleState
from genkidama.server.trial import STATE_PREFIX, Snapshot

#: What the metadata's `format` says; a change that old readers cannot ignore raises the number.
FORMAT = "genkidama-1"

#: The file of a run with the spaces of its environment, as `genkidama.learning.spaces` has them.
SPACES = "spaces.json"

_SUFFIX = ".safetensors"
_VERSION = re.compile(r"version-(\d{10,})\.safetensors\Z")
_FIELDS = Snapshot.__struct_fields__

_CHECKSUM = "checksum"


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint file."""

    path: Path | None
    signature: Signature
    #: float32, shape (signature.size,), writable, shared with nobody.
    vector: Vector
    snapshot: Snapshot
    #: What the parent's rule remembers: float32 or float64 arrays by name.
    state: RuleState = field(default_factory=dict)

    @property
    def part(self) -> Shard:
        """The shard of the parent that wrote it."""
        return Shard.parse(self.snapshot.part)

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
        source = str(self.path or "the checkpoint")
        return Experiment.from_dict(self.snapshot.experiment, source)


def save(
    path: str | Path,
    signature: Signature,
    vector: Vector,
    snapshot: Snapshot,
    state: RuleState | None = None,
) -> None:
    """Writes a checkpoint over the file at `path`; a failure leaves that whole.

    The vector is float32 (signature.size,); `state` is what the parent's rule remembers, float32 or
    float64. An EnvironmentFailure says that the disk refuses it, or a number is NaN or infinite.
    """
    metadata = {name: msgspec.json.encode(getattr(snapshot, name)).decode() for name in _FIELDS}
    # safetensors sorts its tensors, so their order must be stored.
    metadata["signature"] = msgspec.json.encode(signature.entries).decode()
    metadata["format"] = FORMAT
    metadata["software"] = __version__
    tensors: RuleState = {**unflatten(vector, signature)}
    for name, array in (state or {}).items():
        tensors[STATE_PREFIX + name] = np.asarray(array, order="C")
    if name := _not_finite(tensors):
        raise EnvironmentFailure(
            f"{path}: not written: {name!r} holds NaN or infinity; "
            "the checkpoints before it stay, go on from one of them"
        )
    metadata[_CHECKSUM] = _checksum(tensors, metadata)
    write_atomically(Path(path), safetensors.numpy.save(tensors, metadata))


def _not_finite(tensors: RuleState) -> str:
    """The first of these arrays that holds NaN or infinity; empty if none does."""
    return next((name for name, array in tensors.items() if not is_finite(array.reshape(-1))), "")


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
            metadata = file.metadata() or {}
            signature, snapshot = _metadata(metadata)
            for name, shape in signature.entries:  # all before the vector's memory is asked for
                found = file.get_slice(name)
                if found.get_dtype() != "F32" or tuple(found.get_shape()) != shape:
                    there = f"{found.get_dtype()} {list(found.get_shape())}"
                    raise ValueError(f"{name!r} is {there}, expected F32 {list(shape)}")
            for name in file.keys():  # noqa: SIM118
                # NumPy has no others of what may stand there.
                if (kind := file.get_slice(name).get_dtype()) not in ("F32", "F64"):
                    raise ValueError(f"{name!r} is {kind}, expected F32 or F64")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _CHECKSUM not in metadata:
            raise ValueError("it has no checksum")
        if metadata[_CHECKSUM] != _checksum(tensors, metadata):
            raise ValueError("its checksum is wrong, so it was damaged after it was written")
        if name := _not_finite(tensors):
            raise ValueError(f"{name!r} holds NaN or infinity")
        vector = np.empty(signature.size, DTYPE)
        for name, part in unflatten(vector, signature).items():
            part[...] = tensors[name]
        own = [name for name in tensors if name.startswith(STATE_PREFIX)]
        state = {name.removeprefix(STATE_PREFIX): tensors[name] for name in own}
    except (
        safetensors.SafetensorError,
        msgspec.DecodeError,
        ValueError,
        KeyError,
        OSError,
        RecursionError,
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
    stored = metadata.get("signature", "null")
    entries = msgspec.json.decode(stored, type=list[tuple[str, list[int]]])
    signature = Signature.of(entries)
    if any(n < 0 for _, shape in signature.entries for n in shape):
        raise ValueError("its signature has a negative dimension")
    fields = {name: msgspec.json.decode(metadata[name]) for name in _FIELDS if name in metadata}
    snapshot = msgspec.convert(fields, Snapshot)
    if snapshot.whole and Shard.parse(snapshot.part).of(Signature.of(snapshot.whole)) != signature:
        raise ValueError(f"it is not part {snapshot.part} of the network that it names")
    return signature, snapshot


def newest_readable(
    paths: Iterable[Path], unreadable: Callable[[str], None] = lambda _: None
) -> Checkpoint | None:
    """The first of these files that is whole, and whose settings can be read; None if none is.

    `unreadable` is called with one line for each file that had to be passed over. If none is good,
    and the settings in a whole one cannot be read, that is a ConfigurationError: another version of
    the software could go on with it.
    """
    strange: GenkidamaError | None = None
    for path in paths:
        found = None
        try:
            found = load(path)
            _ = found.experiment
            return found
        except GenkidamaError as error:
            unreadable(str(error))
            strange = strange or (error if found else None)
    if strange is not None:
        raise strange
    return None


class CheckpointFolder:
    """A run's `checkpoints/`: the last `keep` versions, at least 1, and the best."""

    def __init__(self, path: str | Path, keep: int = 5) -> None:
        self.path = Path(path)
        self.keep = keep

    @property
    def best_path(self) -> Path:
        return self.path / f"best{_SUFFIX}"

    def version_path(self, version: int) -> Path:
        return self.path / f"version-{version:010d}{_SUFFIX}"

    def prepare(self) -> None:
        """Makes the folder, removes partial files of a process that was killed, and flushes the
        names of whole ones, for which it may have had no time: they are gone on with."""
        make_folder(self.path)
        with disk_errors(self.path):
            for leftover in self.path.glob(".*.tmp"):
                leftover.unlink()
            flush_folder(self.path)

    def versions(self) -> list[int]:
        """The versions that have a file, ascending; none if there is no folder."""
        names: list[str] = []
        with disk_errors(self.path, "read"), suppress(FileNotFoundError, NotADirectoryError):
            names = os.listdir(self.path)
        return sorted(int(found[1]) for name in names if (found := _VERSION.match(name)))

    def save_latest(
        self,
        signature: Signature,
        vector: Vector,
        snapshot: Snapshot,
        state: RuleState | None = None,
    ) -> Path:
        """Writes `version-N.safetensors` and deletes all but the last `keep` versions up to N.

        Newer ones stay: they are unreadable, or this run would have started from them. The folder
        is made again if it has gone. Errors as `save`; nothing is deleted then.
        """
        path = self.version_path(snapshot.version)
        make_folder(self.path)
        save(path, signature, vector, snapshot, state)
        self.prune(snapshot.version)
        return path

    def prune(self, newest: int) -> None:
        """Deletes all but the last `keep` versions up to `newest`, as far as that can be done."""
        with suppress(EnvironmentFailure, OSError):
            older = [version for version in self.versions() if version <= newest]
            for version in older[: -self.keep]:
                self.version_path(version).unlink()

    def save_best(
        self,
        signature: Signature,
        vector: Vector,
        snapshot: Snapshot,
        state: RuleState | None = None,
    ) -> Path:
        """Writes `best.safetensors`; errors as `save`."""
        make_folder(self.path)
        save(self.best_path, signature, vector, snapshot, state)
        return self.best_path

    def latest(self, unreadable: Callable[[str], None] = lambda _: None) -> Checkpoint | None:
        """The newest good checkpoint, else the best one, else None; as `newest_readable`."""
        return newest_readable(self._files(), unreadable)

    def best(self, unreadable: Callable[[str], None] = lambda _: None) -> Checkpoint | None:
        """The best checkpoint, else the newest good one, else None; as `newest_readable`."""
        return newest_readable(sorted(self._files(), key=self.best_path.__ne__), unreadable)

    def _files(self) -> list[Path]:
        """The newest first, the best one last."""
        newest_first = map(self.version_path, reversed(self.versions()))
        return [*newest_first, *([self.best_path] if self.best_path.exists() else [])]
