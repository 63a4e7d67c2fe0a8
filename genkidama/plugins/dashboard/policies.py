"""Policies that a page plays by itself: their weights as JSON, and the run's checkpoints.

Laws of this file:
- Weights are encoded when somebody asks, and then for all who ask within `SECONDS`. A push costs
  nothing.
- Only the arrays that act are sent, at most `LARGEST` bytes of them. What cannot be played says
  why.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, GenkidamaError
from genkidama.plugins.dashboard.films import newest_film
from genkidama.protocol.vector import STATISTICS, Signature, Vector, unflatten
from genkidama.runs.checkpoint import CheckpointFolder, load
from genkidama.runs.sharded_checkpoint import CHECKPOINTS

#: Weights are this old at most, and are encoded this often at most.
SECONDS = 5.0

#: Bytes of weights that a page is sent.
LARGEST = 1 << 18

#: Bytes of a checkpoint that is read for a page: one with its rule's state has some times as many.
_LARGEST_FILE = 32 * LARGEST

#: Documents of checkpoints that are kept, to be sent to the next who asks.
_KEPT = 16

#: Learners whose most probable action the page computes: one of another name may have its own head.
_LEARNERS = ("a3c", "ppo", "dqn", "vtrace", "sac")

_ACTING = ("body.", "memory.", "policy.", STATISTICS[0])

#: The newest weights: their signature, vector and version; None if there are none.
Newest = Callable[[], tuple[Signature, Vector, int] | None]


def policy_document(
    experiment: Experiment, signature: Signature, vector: Vector, version: int
) -> dict[str, Any]:
    """All that a page needs to play these weights; `problem` instead where it cannot."""
    parts = {
        name: part
        for name, part in unflatten(vector, signature).items()
        if name.startswith(_ACTING)
    }
    size = sum(part.nbytes for part in parts.values())
    environment = experiment.environment
    found: dict[str, Any] = {
        "version": version,
        "environment": {
            "id": environment.id,
            "options": environment.options,
            "wrappers": [wrapper.name for wrapper in environment.wrappers],
        },
    }
    if experiment.network.name != "actor-critic" or not any(
        name.startswith("policy.") for name in parts
    ):
        return {**found, "problem": "its network is not the one that the page computes"}
    if experiment.algorithm.name not in _LEARNERS:
        return {**found, "problem": "its learner may have a head that the page does not compute"}
    if size > LARGEST:
        return {**found, "problem": f"its weights have {size:,} bytes, and {LARGEST:,} are sent"}
    numbers = b"".join(np.ascontiguousarray(part, "<f4").tobytes() for part in parts.values())
    return {
        **found,
        "activation": experiment.network.activation,
        "memory": experiment.network.memory,
        "squashes": experiment.algorithm.name == "sac",
        "arrays": [(name, part.shape) for name, part in parts.items()],
        "numbers": b64encode(numbers).decode(),
    }


class Policies:
    """The policies of a run in the directory `out`, as JSON.

    Args:
        experiment: gives its settings.
        out: its directory.
        newest: gives the weights of this moment; None if only checkpoints are shown.
    """

    def __init__(self, experiment: Callable[[], Experiment], out: Path, newest: Newest) -> None:
        self._experiment = experiment
        self._out = out
        self._folder = CheckpointFolder(out / CHECKPOINTS)
        self._newest = newest
        self._newest_made = -SECONDS
        self._document = b""
        #: The document of a checkpoint; an error is not kept.
        self._kept = lru_cache(_KEPT)(self._encoded)

    def document(self, version: int | None = None) -> bytes:
        """That of a checkpoint, or the newest with the versions of all checkpoints."""
        if version is not None:
            return self._checkpoint(version)
        now = time.monotonic()
        if now - self._newest_made >= SECONDS or not self._document:
            self._newest_made = now
            versions: list[int] = []
            problem, found = "", None
            try:
                versions = self._folder.versions()
                found = self._newest()
                if found is None and versions:
                    found = self._load(versions[-1])
            except GenkidamaError as error:
                problem = str(error)
            document: dict[str, Any] = {"problem": problem or "there are no weights yet"}
            if found is not None:
                document = policy_document(self._experiment(), *found)
            document["checkpoints"] = versions
            self._document = msgspec.json.encode(document)
        return self._document

    def film(self) -> bytes | None:
        """The newest film, MP4; None if there is none."""
        path = newest_film(self._out)
        try:
            return None if path is None else path.read_bytes()
        except OSError:
            return None

    def _checkpoint(self, version: int) -> bytes:
        try:
            return self._kept(version)
        except GenkidamaError as error:
            return msgspec.json.encode({"version": version, "problem": str(error)})

    def _encoded(self, version: int) -> bytes:
        return msgspec.json.encode(policy_document(self._experiment(), *self._load(version)))

    def _load(self, version: int) -> tuple[Signature, Vector, int]:
        path = self._folder.version_path(version)
        with suppress(FileNotFoundError):
            if (size := path.stat().st_size) > _LARGEST_FILE:
                raise ConfigurationError(f"{path.name}: has {size:,} bytes, too many for a page")
        checkpoint = load(path)
        if checkpoint.part.count > 1:
            raise ConfigurationError(f"{path.name}: is part {checkpoint.part} of the weights")
        return checkpoint.signature, checkpoint.vector, checkpoint.snapshot.version
