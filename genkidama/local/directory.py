"""The run directory before its parent comes: which one it is, what lies in it, how to go on.

One program starts a run at a time. It holds a lock from before it writes anything until its
processes have ended. A parent that another starter has begun holds the lock of the history.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.experiment import Experiment
from genkidama.local.results import Run
from genkidama.system.run import CHECKPOINTS, HISTORY, LOGS, SETTINGS, TRIALS, new_directory

__all__ = ["prepare_directory", "resumable"]

#: Its lock lies there.
_LOCK = f"{LOGS}/.lock"

#: A parent whose starter was killed is still writing its last checkpoint. It may take so long.
_PARTING_SECONDS = 5.0

#: By run directory: the lock that this program holds.
_held: dict[Path, int] = {}


def prepare_directory(
    experiment: Experiment, out: str | Path | None, resume: str | Path | None
) -> Run:
    """Makes a run directory ready for its parent, with the experiment in it, and locks it.

    `resumable` gives the lock back.

    Args:
        out: the directory; a new one under `runs/` if absent.
        resume: the directory of a run to go on with, instead of `out`.

    Raises:
        ConfigurationError: `out` holds a run already, or `resume` none; or somebody is using it.
        EnvironmentFailure: it cannot be written.
    """
    path = Path("runs" if out is None else out)
    try:
        if resume is None:
            run = Run(new_directory(experiment.name) if out is None else path)
            _check_empty(run)
        else:
            run = _opened(resume, out)
        path = run.path
        (path / SETTINGS).parent.mkdir(parents=True, exist_ok=True)
        _lock(path)
        (path / SETTINGS).write_text(experiment.to_toml(), encoding="utf-8")
    except OSError as error:
        raise EnvironmentFailure(
            f"--out {path}: cannot be written: {error.strerror}; choose another directory"
        ) from None
    return run


def _lock(path: Path) -> None:
    """Raises a `ConfigurationError` if another program, or a parent, is using this directory."""
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not _gets(lock, 0.0):
            raise _in_use(path, "another program runs it")
        if (path / HISTORY).exists():
            history = os.open(path / HISTORY, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if not _gets(history, _PARTING_SECONDS):
                    raise _in_use(path, "a parent is writing it")
            finally:
                os.close(history)
    except BaseException:
        os.close(lock)
        raise
    _held[path.absolute()] = lock


def _gets(file: int, seconds: float) -> bool:
    """Whether nobody else has locked a file, or gives it back within these seconds."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(0.1)


def _in_use(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path}: is in use: {why}; end that first, or choose another directory with --out"
    )


def _opened(resume: str | Path, out: str | Path | None) -> Run:
    if out is not None and Path(out) != Path(resume):
        raise ConfigurationError(
            f"--out {out}: a resumed run stays in its directory {resume}; give one of the two"
        )
    return Run.open(resume)


def _check_empty(run: Run) -> None:
    for name in (CHECKPOINTS, TRIALS):
        folder = run.path / name
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigurationError(
                f"--out {run.path}: holds a run already; "
                f"go on with it by --resume {run.path}, or choose another directory"
            )


@contextmanager
def resumable(run: Run, verb: str) -> Iterator[None]:
    """Meanwhile an interruption says how to go on, if there is anything to go on with.

    Afterwards others may use the directory.

    Args:
        verb: which command goes on, as `"train"`.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        if run.checkpoints or run.trials:
            error.add_note(f"go on with it: genkidama {verb} --resume {run.path}")
        raise
    finally:
        if (lock := _held.pop(run.path.absolute(), None)) is not None:
            os.close(lock)
