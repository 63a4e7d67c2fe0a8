"""How a file is written so that nobody ever reads half of it, and what helps if it cannot be."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from genkidama.errors import EnvironmentFailure

__all__ = ["make_folder", "way_out", "write_atomically"]

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


def way_out(error: OSError) -> str:
    """What helps against this error where something is to be written, in a few words."""
    return _WAYS_OUT.get(error.errno or 0, "choose another directory")


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, unless they are there.

    Raises:
        EnvironmentFailure: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # With `exist_ok` this means a file of that name.
        reason = NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        error = reason if isinstance(error, FileExistsError) else error
        raise EnvironmentFailure(
            f"{path}: cannot be made: {error.strerror}; {way_out(error)}"
        ) from None


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
            f"{path}: cannot be written: {error.strerror}; {way_out(error)}"
        ) from None
