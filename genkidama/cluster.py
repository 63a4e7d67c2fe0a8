"""`train`: a whole cluster on this machine, through real processes and real websockets.

A run here is what it is on a shelf of Pis: one process of `genkidama.parent`, some of
`genkidama.child`, and this process, which only starts them, watches them, and ends them. Whichever
is killed is started again; whatever ends this process ends them all.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import msgspec

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.evaluation import evaluate
from genkidama.experiment import Experiment
from genkidama.machine import available_cores
from genkidama.run import Run

__all__ = ["summary", "train"]

#: How often this process looks at the others. It sleeps in between.
_LOOK_SECONDS = 0.25

#: The last line of a history is shorter than this.
_TAIL = 1 << 16

#: How long a process gets to end after SIGTERM: children 3 s, then the parent 2 s, so that all have ended within 5 s.
_CHILD_GRACE, _PARENT_GRACE = 3.0, 2.0

#: When all children have left, the parent's final checkpoint may take so long before something is wrong.
_PARTING_SECONDS = 60.0

#: A process that is killed so often within a minute will be killed again.
_MOST_RESTARTS = 5

Event = dict[str, Any]


def train(
    experiment: Experiment,
    *,
    children: int = 2,
    cores: int | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    episodes: int = 500,
    watch: Callable[[Event], None] | None = None,
) -> Run:
    """Trains until the experiment's stop condition, then evaluates. Blocks.

    Args:
        experiment: all settings.
        children: child processes, each with cores of its own.
        cores: core processes of each child; what the experiment says if absent, and with `"auto"`
            there, this machine's CPU cores shared out among the children.
        out: the run directory; a new one under `runs/` if absent.
        resume: a run directory to go on with, instead of `out`.
        episodes: length of the final evaluation; 0 for none.
        watch: is called with each new line of the history, about four times a second.

    Returns:
        The run; `run.evaluation` is its final evaluation.

    Raises:
        ConfigurationError: a setting is wrong, or `out` holds a run already.
        EnvironmentFailure: a process cannot start, or keeps dying.
    """
    if children < 1:
        raise ConfigurationError(f"children = {children}: at least 1 is needed")
    if cores is not None and cores < 1:
        raise ConfigurationError(f"cores = {cores}: at least 1 is needed")
    if episodes < 0:
        raise ConfigurationError(f"episodes = {episodes}: at least 1 is needed, or 0 for no evaluation")
    run = _directory(experiment, out, resume)
    if cores is None and experiment.child.cores == "auto":
        cores = max(1, available_cores() // children)
    try:
        with _Cluster(experiment, run, children, cores) as cluster:
            cluster.wait(watch or (lambda event: None))
    except (KeyboardInterrupt, SystemExit) as error:
        if run.checkpoints:
            error.add_note(f"go on with it: genkidama train --resume {run.path}")
        raise
    if episodes:
        evaluate(run, episodes=episodes, seed=experiment.seed)
    return run


def _directory(experiment: Experiment, out: str | Path | None, resume: str | Path | None) -> Run:
    if resume is not None:
        if out is not None and Path(out) != Path(resume):
            raise ConfigurationError(f"--out {out}: a resumed run stays in its directory {resume}; give one of the two")
        run = Run.open(resume)
    else:
        run = Run(Path(out) if out is not None else _fresh(Path("runs"), experiment.name))
    try:
        if resume is None and (run.path / "checkpoints").is_dir() and any((run.path / "checkpoints").iterdir()):
            raise ConfigurationError(
                f"--out {run.path}: holds a run already; go on with it by --resume {run.path}, or choose another directory"
            )
        # The parent reads the experiment here, and makes it the run's own when it has seen that it fits the run.
        (run.path / "logs").mkdir(parents=True, exist_ok=True)
        (run.path / "logs" / "experiment.toml").write_text(experiment.to_toml(), encoding="utf-8")
    except OSError as error:
        raise EnvironmentFailure(f"--out {run.path}: cannot be written: {error.strerror}; choose another directory") from None
    return run


def _fresh(folder: Path, name: str) -> Path:
    stamp = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    path, number = folder / stamp, 1
    while path.exists():
        number += 1
        path = folder / f"{stamp}-{number}"
    return path


class _Process:
    """One process of the cluster: its command, its log, and how often it was started again."""

    def __init__(self, name: str, command: list[str], log: Path, descriptors: tuple[int, ...] = ()) -> None:
        self.name, self.log = name, log
        self._command, self._descriptors = command, descriptors
        self._restarts: list[float] = []
        self._file: IO[bytes] = log.open("ab")
        self._mark = log.stat().st_size
        self.start()

    def start(self) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", *self._command, "--until-eof"],
            stdin=subprocess.PIPE,  # its other end dies with this process, and then so does that one
            stdout=self._file,
            stderr=self._file,
            pass_fds=self._descriptors,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others in order
        )

    def restart(self) -> None:
        """Starts it again after it was killed.

        Raises:
            EnvironmentFailure: it has been killed too often.
        """
        now = time.monotonic()
        self._restarts = [*(moment for moment in self._restarts if now - moment < 60.0), now]
        if len(self._restarts) > _MOST_RESTARTS:
            raise EnvironmentFailure(f"{self.name} was killed {len(self._restarts)} times within a minute; see {self.log}")
        self._close_input()
        self.start()

    def error(self) -> str:
        """The last `error: …` line that it wrote, without the word."""
        with self.log.open("rb") as file:
            file.seek(self._mark)
            lines = file.read().decode(errors="replace").splitlines()
        found = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return found[-1] if found else f"{self.name} ended with exit code {self.popen.returncode}; see {self.log}"

    def end(self, grace: float) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(max(0.0, grace))
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()

    def close(self) -> None:
        self._close_input()
        self._file.close()

    def _close_input(self) -> None:
        assert self.popen.stdin is not None
        with contextlib.suppress(OSError):
            self.popen.stdin.close()


class _Cluster:
    """One parent and its children, as processes. Entering starts them, leaving ends them."""

    def __init__(self, experiment: Experiment, run: Run, children: int, cores: int | None) -> None:
        self._run = run
        self._history = run.path / "history.jsonl"
        self._position = _whole_lines(self._history)
        # The socket is bound here and inherited: children may connect before the parent listens, and
        # a parent that is started again is found under the same address.
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._parts: list[_Process] = []
        self._children, self._cores = children, cores

    def __enter__(self) -> _Cluster:
        path, descriptor = self._run.path, self._socket.fileno()
        port = self._socket.getsockname()[1]
        os.set_inheritable(descriptor, True)
        try:
            command = ["genkidama.parent", str(path / "logs" / "experiment.toml"), "--listen", f"fd://{descriptor}", "--out", str(path)]
            self.parent = self._start("parent", command, (descriptor,))
            for number in range(1, self._children + 1):
                name = f"child-{number}"
                command = ["genkidama.child", "--parent", f"ws://127.0.0.1:{port}", "--name", name, "--state", str(path / "children")]
                self._start(name, command if self._cores is None else [*command, "--cores", str(self._cores)])
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, name: str, command: list[str], descriptors: tuple[int, ...] = ()) -> _Process:
        process = _Process(name, command, self._run.path / "logs" / f"{name}.log", descriptors)
        self._parts.append(process)
        return process

    def wait(self, watch: Callable[[Event], None]) -> None:
        """Returns when the run is over.

        Raises:
            GenkidamaError: what the parent or a child ended with.
        """
        children = [process for process in self._parts if process is not self.parent]
        patience = math.inf
        while self.parent.popen.poll() != 0:
            for process in self._parts:
                code = process.popen.poll()
                if code is None or (code == 0 and process is not self.parent):
                    continue
                if code < 0:
                    process.restart()
                else:
                    raise (ConfigurationError if code == ConfigurationError.exit_code else EnvironmentFailure)(process.error())
            if patience == math.inf and all(process.popen.poll() == 0 for process in children):
                patience = time.monotonic() + _PARTING_SECONDS
            if time.monotonic() > patience:
                raise EnvironmentFailure("all children were stopped, though the run is not over")
            self._read_history(watch)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.parent.popen.wait(_LOOK_SECONDS)
        deadline = time.monotonic() + _CHILD_GRACE
        for process in self._parts:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.0, deadline - time.monotonic()))
        self._read_history(watch)

    def _read_history(self, watch: Callable[[Event], None]) -> None:
        try:
            with self._history.open("rb") as file:
                file.seek(self._position)
                lines = file.read()
        except FileNotFoundError:
            return
        complete = lines[: lines.rfind(b"\n") + 1]
        self._position += len(complete)
        for line in complete.splitlines():
            watch(msgspec.json.decode(line))

    def __exit__(self, *_: object) -> None:
        children = [process for process in self._parts if process.name != "parent"]
        for process in children:
            if process.popen.poll() is None:
                process.popen.terminate()
        deadline = time.monotonic() + _CHILD_GRACE
        for process in children:
            process.end(deadline - time.monotonic())
        for process in self._parts:
            process.end(_PARENT_GRACE)
            process.close()
        self._socket.close()


def _whole_lines(path: Path) -> int:
    """How many bytes of a history are whole lines; what a crash has torn behind them, the next parent cuts off."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, size - _TAIL))
            return start + file.read().rfind(b"\n") + 1
    except FileNotFoundError:
        return 0


def summary(run: Run, before: Event | None = None) -> Event:
    """What `genkidama train --json` ends with: counts of this run, its speed and its evaluation."""
    snapshot = run.load().snapshot
    start = before or {"steps": 0, "seconds": 0.0}
    seconds = snapshot.seconds - start["seconds"]
    return {
        "run": str(run.path),
        "updates": snapshot.updates,
        "episodes": snapshot.episodes,
        "steps": snapshot.steps,
        "seconds": snapshot.seconds,
        "steps_per_second": (snapshot.steps - start["steps"]) / seconds if seconds > 0 else 0.0,
        "evaluation": run.evaluation,
    }
