"""How a file is written so that nobody ever reads half of it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from genkidama.errors import EnvironmentFailure

__all__ = ["write_atomically"]


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces the file at `path` by `content`. After a crash one of the two is there, whole.

    The content is written beside the file, flushed to the disk, and renamed. Then the folder is
    flushed, too, so that the new name survives a power cut.

    Raises:
        EnvironmentFailure: it could not be written; the old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise EnvironmentFailure(
            f"{path}: cannot be written: {error.strerror}; free space or choose another directory"
        ) from None
