"""Rows as JSON lines, and who may write them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from genkidama.errors import ConfigurationError

__all__ = ["Row", "append", "only_one", "read"]

#: What one run has found.
Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """The whole lines of a file; none if it is not there.

    Raises:
        ConfigurationError: a whole line is no JSON object.
    """
    if not path.exists():
        return []
    rows: list[Row] = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break  # it was cut off as it was written
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise ConfigurationError(f"{path}:{number}: is no JSON object; delete that line")
        rows.append(row)
    return rows


def append(path: Path, row: Row) -> None:
    """Adds a line; one that was cut off before goes away."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Keeps a second `run` out of the folder.

    Raises:
        ConfigurationError: there is one already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"{folder}: another run works there; stop it, or give another folder with --work"
            ) from None
        yield
