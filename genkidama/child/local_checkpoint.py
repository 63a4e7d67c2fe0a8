"""LocalCheckpoint: a child's own state on disk, from which it resumes after a restart.

Laws of this file:
- The parent's checkpoints hold θ_P; this state holds the child's own θ_C and momenta, as
  safetensors.
- A file is written as atomically as a checkpoint: after a crash or a power cut, the old file
  or the new one is there, complete.
- A state is one child's: a second child of the same name, as of another run on the same machine,
  keeps none while the first one lives.
- A state that cannot be read, or that belongs to another network, run or trial, is not used: the
  child starts anew, and the next save overwrites it. A state that cannot be written is logged and
  stops nothing.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy.typing as npt
import safetensors
import safetensors.numpy

from genkidama.child.backend import Backend
from genkidama.errors import EnvironmentFailure
from genkidama.runtime.files import make_folder, write_atomically
from genkidama.runtime.log import get_logger

#: Seconds between two saves.
_EVERY_SECONDS = 60.0

log = get_logger()


def save_state(path: Path, key: str, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Writes the arrays of an owner; `load_state` returns them for no other key."""
    make_folder(path.parent)
    write_atomically(path, safetensors.numpy.save(arrays, metadata={"signature": key}))


def load_state(path: Path, key: str) -> dict[str, npt.NDArray[Any]] | None:
    """The arrays, or None if there are none for this key. An unusable file is logged."""
    try:
        path.open("rb").close()  # safetensors takes every file that it may not read for none
        with safetensors.safe_open(str(path), "np") as file:
            if (file.metadata() or {}).get("signature") != key:
                log.warning(
                    "the saved state is of another network or run, so it is not used",
                    path=str(path),
                )
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        return None
    except (OSError, safetensors.SafetensorError) as error:
        log.warning(
            "the saved state cannot be read, so it is not used", path=str(path), reason=str(error)
        )
        return None


#: The locks of this process, which the kernel would give it twice.
_held: set[Path] = set()


class LocalCheckpoint:
    """A child's state in a folder; without a folder nothing is kept.

    Call `open` first, and again for each trial.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._path: Path | None = None
        self._key: Callable[[], str] = str
        #: By their files: the locks of this child.
        self._locks: dict[Path, int] = {}
        self._saving: asyncio.Future[None] | None = None

    def open(self, name: str, key: Callable[[], str]) -> None:
        """Selects the state of this child, for a network, a run and, in a search, a trial.

        Args:
            name: of the child.
            key: of these three; a run's may change, as its parent may return as another one.
        """
        self._path = None if self._folder is None else self._folder / f"{name}.safetensors"
        self._key = key
        if self._folder is not None and not self._owns(self._folder, name):
            log.warning(
                "another child uses this state, so this one keeps none; give it another --state",
                path=str(self._path),
            )
            self._path = None

    def _owns(self, folder: Path, name: str) -> bool:
        """True unless another child has the lock of this name's state."""
        lock = folder.resolve() / f".{name}.lock"
        if lock in self._locks or lock in _held:
            return lock in self._locks
        with suppress(EnvironmentFailure, OSError):  # whatever it is, a save will say it
            make_folder(folder)
            file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                # No process that is forked from this one holds this kind of lock.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._locks[lock] = file
                _held.add(lock)
            except OSError as error:
                os.close(file)
                return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def restore(self, backend: Backend) -> bool:
        """Restores the backend from the saved state, if there is one; whether there was."""
        arrays = None if self._path is None else load_state(self._path, self._key())
        if arrays is None:
            return False
        backend.restore(arrays)
        return True

    def close(self) -> None:
        """Leaves the state to others."""
        while self._locks:
            lock, file = self._locks.popitem()
            _held.discard(lock)
            os.close(file)

    async def keep(self, backend: Backend) -> None:
        """Saves every minute."""
        while self._path is not None:
            await asyncio.sleep(_EVERY_SECONDS)
            await self.save(backend)

    async def save(self, backend: Backend) -> None:
        """Saves in a thread, since an SD card may take its time. If the call is cancelled, its
        thread continues, and the next call waits for it."""
        if self._path is None:
            return
        if self._saving is not None:
            await asyncio.wait((self._saving,))
        writing = asyncio.to_thread(_write, self._path, self._key(), backend.state())
        self._saving = asyncio.ensure_future(writing)
        await asyncio.shield(self._saving)


def _write(path: Path, key: str, arrays: dict[str, npt.NDArray[Any]]) -> None:
    try:
        save_state(path, key, arrays)
    except EnvironmentFailure as error:
        log.error("state not saved", child=path.stem, reason=str(error))
