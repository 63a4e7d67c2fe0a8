"""Atomic writes, temporary folders, verdicts to remember, and hints for errors of the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from genkidama.errors import ConfigurationError, EnvironmentFailure

#: What helps where a file cannot be written, by the system's number for the reason.
_WAYS_OUT = {
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "free space, or have this user's quota raised",
    errno.EFBIG: "raise the limit on a file's size (ulimit -f)",
    errno.EROFS: "make its disk writable again (mount -o remount,rw)",
    errno.EACCES: "let this user write there, or choose another directory",
    errno.EPERM: "let this user write there, or choose another directory",
    errno.ENOENT: "make its folder again, or choose another directory",
    errno.ENOTDIR: "move the file away that stands in a folder's place",
    errno.EISDIR: "move the folder away that stands in its place",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close programs, since this machine has too many open files",
    errno.EIO: "save what is there, since the disk fails, and choose another disk",
    errno.ESTALE: "mount the network's disk again",
    errno.ENAMETOOLONG: "choose a directory with a shorter name",
}


#: Folders for sockets and copies in the system's place for temporary files begin with this. In each
#: is a file that its owner keeps locked as long as it lives.
_SCRATCH = "genkidama-"
_LOCK = "lock"

#: By folder, the descriptor of its lock.
_held: dict[Path, int] = {}


def scratch_folder() -> Path:
    """Makes a temporary folder that only this user may enter, and removes those whose owners were
    killed before they could.

    It is to be removed by `remove_scratch`.
    """
    for each in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            _sweep(each)
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    young = folder / ".lock"
    descriptor = os.open(young, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    young.rename(folder / _LOCK)  # under this name it is locked from the first moment on
    _held[folder] = descriptor
    return folder


def remove_scratch(folder: Path) -> None:
    """Removes a folder of this process, with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    if (descriptor := _held.pop(folder, None)) is not None:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Removes a folder of this user; an OSError says that its lock is held, or that it has none."""
    if folder.lstat().st_uid != os.getuid():
        return
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def hint(error: OSError) -> str:
    """A hint, in a few words, for an error of writing."""
    return _WAYS_OUT.get(error.errno or 0, "choose another directory")


@contextmanager
def disk_errors(path: Path, done: str = "written") -> Iterator[None]:
    """Turns an `OSError` into an `EnvironmentFailure`: this cannot be written, and the way out."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFailure(
            f"{path}: cannot be {done}: {error.strerror}; {hint(error)}"
        ) from None


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, unless they are there."""
    with disk_errors(path, "made"):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:  # it is a file
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None


def remembered(name: str, decide: Callable[[], bool]) -> bool:
    """A verdict from this user's cache (`~/.cache/genkidama/NAME`), or else a new one for it.

    The name says everything that the verdict hangs on, such as versions. Nothing is remembered
    where the cache cannot be written.
    """
    above = os.environ.get("XDG_CACHE_HOME", "")
    path = Path(above or os.path.expanduser("~/.cache")) / "genkidama" / name
    with suppress(OSError, KeyError, ValueError):
        return {b"yes\n": True, b"no\n": False}[path.read_bytes()]
    verdict = decide()
    with suppress(EnvironmentFailure, ValueError):
        make_folder(path.parent)
        write_atomically(path, b"yes\n" if verdict else b"no\n")
    return verdict


def read_secret(path: str, key: str, way_out: str = "") -> tuple[str, bool]:
    """The text of a file, and whether everybody on this machine may read it; a ConfigurationError
    names the key of the setting."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(), bool(os.fstat(file.fileno()).st_mode & stat.S_IROTH)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
        raise ConfigurationError(f"{key}: cannot be read: {reason}{way_out}") from None


def write_atomically(path: Path, *parts: bytes | memoryview, concurrent: bool = False) -> None:
    """Replaces the file at `path` by these parts. After a crash one of the two is there, whole.

    They are written beside the file, flushed to the disk, and renamed. Then the folder is
    flushed, too, so that the new name survives a power cut. What a crash leaves beside it the next
    write replaces, unless writers may be `concurrent`: each of these has a file of its own.
    """
    own = f".{threading.get_native_id()}" if concurrent else ""
    temporary = path.with_name(f".{path.name}{own}.tmp")
    with disk_errors(path):
        try:
            with open(temporary, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    """Flushes a folder's names to the disk; an OSError says that the disk refuses."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
