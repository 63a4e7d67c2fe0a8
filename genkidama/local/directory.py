"""The run directory before its parent comes: which one it is, what lies in it, how to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.experiment import Experiment
from genkidama.local.results import Run
from genkidama.system.run import CHECKPOINTS, SETTINGS, TRIALS, new_directory

__all__ = ["prepare_directory", "resumable"]


def prepare_directory(
    experiment: Experiment, out: str | Path | None, resume: str | Path | None
) -> Run:
    """Makes a run directory ready for its parent, with the experiment in it.

    Args:
        out: the directory; a new one under `runs/` if absent.
        resume: the directory of a run to go on with, instead of `out`.

    Raises:
        ConfigurationError: `out` holds a run already, or `resume` none.
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
        (path / SETTINGS).write_text(experiment.to_toml(), encoding="utf-8")
    except OSError as error:
        raise EnvironmentFailure(
            f"--out {path}: cannot be written: {error.strerror}; choose another directory"
        ) from None
    return run


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

    Args:
        verb: which command goes on, as `"train"`.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        if run.checkpoints or run.trials:
            error.add_note(f"go on with it: genkidama {verb} --resume {run.path}")
        raise
