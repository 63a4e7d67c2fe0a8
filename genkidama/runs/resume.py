"""The start of a run: its stop condition, if none is given, and its directory, new or resumed.

One program starts a run at a time. It holds a lock from before it writes anything until its
processes have ended. A parent that another starter has started holds the lock of the history.
"""

from __future__ import annotations

import fcntl
import math
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from genkidama.config.allowlist import allowing, modules
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import recording
from genkidama.config.sections import Environment, Stop
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runs.run import HISTORY, LOGS, OWNER, SETTINGS, TRIALS, Run, new_directory
from genkidama.runs.sharded_checkpoint import CHECKPOINTS
from genkidama.runs.warm_start import source_of
from genkidama.runtime.import_strings import (
    check_environment,
    draws,
    environment_spec,
    is_import_string,
)
from genkidama.runtime.script import with_notebook
from genkidama.server.trial import reached

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

    It is `out`, or a new one under `runs/`; or `resume`, that of a run to go on with. `resumable`
    gives the lock back.
    """
    path = Path("runs" if out is None else out)
    allow = modules(experiment.to_dict())
    if experiment.algorithm.demonstrations:
        experiment = _with_readable(experiment)
    try:
        if resume is not None:
            if out is not None and Path(out) != Path(resume):
                raise ConfigurationError(
                    f"--out {out}: a resumed run stays in its directory {resume}; "
                    "give one of the two"
                )
            run = Run.open(resume, allow)
        else:
            source_of(experiment)
            run = Run(new_directory(experiment.name) if out is None else path, allow)
            if any(any((run.path / name).glob("*")) for name in (CHECKPOINTS, TRIALS)):
                raise ConfigurationError(
                    f"--out {path}: holds a run already; go on with it by "
                    f"--resume {shlex.quote(str(path))}, or choose another directory"
                )
        path = run.path
        (path / SETTINGS).parent.mkdir(parents=True, exist_ok=True)
        _lock(path)
        try:
            experiment = with_notebook(experiment, path)
            (path / OWNER).unlink(missing_ok=True)  # its link may have been opened, and opens once
            (path / SETTINGS).write_text(experiment.to_toml(), encoding="utf-8")
        except BaseException:
            _unlock(path)
            raise
    except OSError as error:
        raise EnvironmentFailure(
            f"--out {path}: cannot be written: {error.strerror}; choose another directory"
        ) from None
    return Run(path, modules(experiment.to_dict()))  # a notebook's class has a module now


def _with_readable(experiment: Experiment) -> Experiment:
    """The experiment, with paths of demonstrations that hold in any folder of this machine.

    Raises:
        ConfigurationError: one is not there.
    """
    paths = [Path(path).absolute() for path in experiment.algorithm.demonstrations]
    for path in paths:
        if not path.is_file():
            raise ConfigurationError(
                f"algorithm.demonstrations: {path}: no such file; {recording(path)} makes one"
            )
    return experiment.with_settings({"algorithm.demonstrations": list(map(str, paths))})


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


def _unlock(path: Path) -> None:
    if (lock := _held.pop(path.absolute(), None)) is not None:
        os.close(lock)


def _gets(file: int, seconds: float) -> bool:
    """Locks a file; False if another process holds the lock for all these seconds."""
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


def finished(run: Run, experiment: Experiment) -> str:
    """The reason why a plain run is finished and the command that resumes it; empty if not."""
    reason, _ = _reached(run, experiment.stop)
    return f"{run.path} is finished: {reason}; go on: {go_on(run, experiment)}" if reason else ""


def go_on(run: Run, experiment: Experiment) -> str:
    """The command that resumes a plain run beyond the limits that it has reached."""
    _, limits = _reached(run, experiment.stop)
    words = ["genkidama train --resume", shlex.quote(str(run.path))]
    words += [allowing(modules(experiment.to_dict())).strip()]
    words += [f"--set stop.{key}={value:.15g}" for key, value in limits.items()]
    return " ".join(filter(None, words))


def _reached(run: Run, stop: Stop) -> tuple[str, dict[str, float]]:
    """The stop condition that a run has reached, and limits with which it could be resumed."""
    if not run.checkpoints:
        return "", {}
    snapshot = run.load(best=False).snapshot
    mean = snapshot.mean_return if len(snapshot.returns) >= stop.window else None
    done = (snapshot.updates, snapshot.episodes, snapshot.steps, snapshot.seconds)
    limits: dict[str, float] = {
        key: 2 * (limit if have < 2 * limit else math.ceil(have))
        for key, have in zip(("updates", "episodes", "steps", "seconds"), done, strict=True)
        if (limit := getattr(stop, key)) is not None and have >= limit
    }
    if stop.mean_return is not None and mean is not None and mean >= stop.mean_return:
        best = max(snapshot.returns[-stop.window :])
        limits["mean_return"] = _next_goal(mean, best)
        if best <= mean and len(limits) == 1 and stop.steps is None:
            limits["steps"] = 2 * snapshot.steps  # a goal that may be out of reach ends nothing
    return reached(stop, mean, *done), limits


def _next_goal(mean: float, best: float) -> float:
    """A goal beyond a mean return, and where some episode has been: an environment may allow no
    more than that."""
    higher = float(math.ceil(mean + 0.1 * abs(mean)))
    midway = (mean + best) / 2.0
    for goal in (float(math.floor(midway)), round(midway, 1)):
        if goal > mean:
            return min(higher, goal)
    return higher


def afterwards(run: Run, again: str) -> list[str]:
    """The lines that end a command: what is kept of a run, and the commands that follow.

    Args:
        again: the command that goes on with the run.
    """
    path = shlex.quote(str(run.path))
    folder = path + allowing(run.allow)
    lines = [f"run: {run.path}"]
    commands = [("its page:", f"genkidama serve {path}")]
    if run.trials:
        commands.append(("report:", f"genkidama report {path}"))
    elif run.checkpoints:
        lines[0] += f", saved: version {run.snapshot.version}"
        commands.append(("play again:", f"genkidama evaluate {folder}"))
        if draws(run.experiment.environment, run.allow):
            commands.insert(0, ("watch it:", f"genkidama play {folder}"))
    return [*lines, *(f"  {name:<12}{line}" for name, line in (*commands, ("go on:", again)))]


@contextmanager
def resumable(run: Run, verb: str) -> Iterator[None]:
    """Meanwhile an interruption says how this command resumes the run, if there is one.

    Afterwards others may use the directory.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        if run.checkpoints or run.trials:
            folder = shlex.quote(str(run.path)) + allowing(run.allow)
            error.add_note("\n".join(afterwards(run, f"genkidama {verb} --resume {folder}")))
        raise
    finally:
        _unlock(run.path)


def default_threshold(settings: Environment) -> float | None:
    """The mean return from which on Gymnasium calls the task solved, if it says so."""
    name = settings.plain_id
    if is_import_string(name):
        return None
    with suppress(ConfigurationError, ImportError):
        threshold: float | None = environment_spec(name).reward_threshold
        return threshold
    return None


def prepare(experiment: Experiment) -> tuple[Experiment, str]:
    """Checks the environment, and sets a stop condition: the first step of each start."""
    check_environment(experiment)
    return with_default_stop(experiment)


def with_default_stop(experiment: Experiment) -> tuple[Experiment, str]:
    """The experiment with a stop condition, and what to say about that and about schedules, which
    follow from a limit.

    If `[stop]` has a limit, or there is a `[search]`, it stays as it is and nothing is to be said.
    """
    stop = experiment.stop
    limits = (stop.updates, stop.episodes, stop.steps, stop.seconds)
    if experiment.searches or any(limit is not None for limit in limits):
        return experiment, ""
    said = [f"{key} stands still without a limit in [stop]" for key in _schedules(experiment)]
    way_out = ["give --set stop.seconds=600"] if said else []
    if stop.mean_return is None:
        name, goal = experiment.environment.id, experiment.solved
        if goal is None:
            goal = default_threshold(experiment.environment)
        if goal is None:
            end = "this run never ends, since nobody says when"
            way_out = ["end it with Ctrl-C, or give --set stop.seconds=600"]
        else:
            end = f"this run ends when the mean return over {stop.window} episodes "
            end += f"reaches {goal:g}, where"
            experiment = experiment.with_settings({"stop.mean_return": goal})
        said.insert(0, f"without a [stop] {end} {name} counts as solved")
    return experiment, "; ".join(said + way_out)


def _schedules(experiment: Experiment) -> list[str]:
    """The keys of the schedules that follow the progress of the run."""
    algorithm, optimizer = experiment.algorithm, experiment.optimizer
    found = {
        "algorithm.epsilon_schedule": not algorithm.epsilon_versions and algorithm.epsilon_schedule,
        "algorithm.entropy_schedule": algorithm.entropy_schedule,
        "optimizer.schedule": optimizer.schedule,
    }
    return [key for key, schedule in found.items() if schedule == "linear"]
