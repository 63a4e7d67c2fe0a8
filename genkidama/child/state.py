"""A child's own state on disk: its weights and its optimizer's, so that it resumes after a restart.

The parent's checkpoints hold θ_P; what only the child has (θ_C, momenta) lies here, as safetensors,
written as atomically as a checkpoint.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy.typing as npt
import safetensors
import safetensors.numpy
import structlog

from genkidama.errors import EnvironmentFailure

__all__ = ["load_state", "save_state"]

log = structlog.get_logger()


def save_state(path: Path, digest: str, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Writes the arrays for the network with this signature digest.

    Raises:
        EnvironmentFailure: the file cannot be written; an older one is untouched.
    """
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(safetensors.numpy.save(arrays, metadata={"signature": digest}))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise EnvironmentFailure(
            f"{path}: the child's state cannot be saved: {error.strerror}"
        ) from None


def load_state(path: Path, digest: str) -> dict[str, npt.NDArray[Any]] | None:
    """The arrays, or None if there are none for this network; what cannot be used is logged and left alone."""
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(str(path), "np") as file:
            if (file.metadata() or {}).get("signature") != digest:
                log.warning("state belongs to another network, starting afresh", path=str(path))
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except (OSError, safetensors.SafetensorError) as error:
        log.warning("state cannot be read, starting afresh", path=str(path), reason=str(error))
        return None
