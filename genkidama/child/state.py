"""A child's own state on disk: its weights and its optimizer's, so that it resumes after a restart.

The parent's checkpoints hold θ_P; what only the child has (θ_C, momenta) lies here, as safetensors,
written as atomically as a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
import safetensors
import safetensors.numpy
import structlog

from genkidama.errors import EnvironmentFailure
from genkidama.system.files import write_atomically

__all__ = ["load_state", "save_state"]

log = structlog.get_logger()


def save_state(path: Path, digest: str, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Writes the arrays for the network with this signature digest.

    Raises:
        EnvironmentFailure: the file cannot be written; an older one is untouched.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFailure(f"{path.parent}: cannot be made: {error.strerror}") from None
    write_atomically(path, safetensors.numpy.save(arrays, metadata={"signature": digest}))


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
