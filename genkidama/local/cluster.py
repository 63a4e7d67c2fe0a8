"""`train` and `search`: a whole cluster on this machine, through real processes and real websockets.

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

from genkidama.capacity import expected_cores
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.experiment import Experiment
from genkidama.local.evaluation import evaluate
from genkidama.system.machine import available_bytes, available_cores
from genkidama.system.run import Run

__all__ = [
    "Event",
    "Process",
    "check_search",
    "listening_socket",
    "prepare_directory",
    "search",
    "summary",
    "train",
    "whole_lines",
]

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

#: A free port that only this machine reaches.
LOOPBACK = "127.0.0.1:0"

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
            there, this machine's CPU cores shared out among the children, as far as their memory allows.
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
        raise ConfigurationError(
            f"episodes = {episodes}: at least 1 is needed, or 0 for no evaluation"
        )
    if experiment.search is not None:
        raise ConfigurationError(
            f"{experiment.name}: has a [search]; start it with `genkidama search`, or take that section out"
        )
    run = prepare_directory(experiment, out, resume)
    try:
        _run(experiment, run, "child", children, cores, LOOPBACK, watch)
    except (KeyboardInterrupt, SystemExit) as error:
        if run.checkpoints:
            error.add_note(f"go on with it: genkidama train --resume {run.path}")
        raise
    if episodes:
        evaluate(run, episodes=episodes, seed=experiment.seed)
    return run


def search(
    experiment: Experiment,
    *,
    nodes: int = 2,
    cores: int | None = None,
    listen: str | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    watch: Callable[[Event], None] | None = None,
) -> Run:
    """Searches for hyperparameters until `[search]` says that it is over. Blocks.

    Args:
        experiment: all settings, with a `[search]`.
        nodes: child processes on this machine, each of which trains one trial after another; 0 leaves
            all trials to children on the network.
        cores: core processes of each node; if absent, as in `train`.
        listen: `HOST:PORT` that lets children on other machines take part; a free port of the loopback if absent.
        out: the run directory; a new one under `runs/` if absent.
        resume: a run directory with a search to go on with, instead of `out`.
        watch: is called with each new line of the history, about four times a second.

    Returns:
        The run; its `trials` are runs of their own, and `genkidama.tuning.report` tells what they came to.

    Raises:
        ConfigurationError: a setting is wrong, or `out` holds a run already.
        EnvironmentFailure: a process cannot start, or keeps dying.
    """
    check_search(experiment)
    if nodes < 0 or (nodes == 0 and listen is None):
        raise ConfigurationError(
            f"nodes = {nodes}: at least 1 is needed, or 0 with an address for nodes on the network to come to"
        )
    if cores is not None and cores < 1:
        raise ConfigurationError(f"cores = {cores}: at least 1 is needed")
    if (
        nodes
        and listen is not None
        and (experiment.parent.tokens_file or experiment.parent.certificate_file)
    ):
        raise ConfigurationError(
            f"nodes = {nodes}: a search that asks the network for tokens or TLS (parent.tokens_file, parent.certificate_file) starts none "
            "itself; give --nodes 0, and start `python -m genkidama.child` on each machine, also on this one"
        )
    run = prepare_directory(experiment, out, resume)
    try:
        _run(experiment, run, "node", nodes, cores, listen or LOOPBACK, watch)
    except (KeyboardInterrupt, SystemExit) as error:
        if run.trials:
            error.add_note(f"go on with it: genkidama search --resume {run.path}")
        raise
    return run


def check_search(experiment: Experiment) -> None:
    """That there is something to search.

    Raises:
        ConfigurationError: the experiment has no `[search]`.
    """
    if experiment.search is None:
        raise ConfigurationError(
            f"{experiment.name}: has no [search]; say what to vary, as examples/lunarlander/search.toml does"
        )


def _run(
    experiment: Experiment,
    run: Run,
    kind: str,
    count: int,
    cores: int | None,
    listen: str,
    watch: Callable[[Event], None] | None,
) -> None:
    if cores is None and experiment.child.cores == "auto":
        share, available = max(1, count), available_bytes()
        cores = expected_cores(
            None if available is None else available // share, max(1, available_cores() // share)
        )
    with _Cluster(
        experiment, run, [f"{kind}-{number}" for number in range(1, count + 1)], cores, listen
    ) as cluster:
        cluster.wait(watch or (lambda event: None))


def prepare_directory(
    experiment: Experiment, out: str | Path | None, resume: str | Path | None
) -> Run:
    """The run directory `out`, or a new one under `runs/`, or the one to go on with, with the experiment for its parent to read.

    Raises:
        ConfigurationError: `out` holds a run already, or `resume` none.
        EnvironmentFailure: it cannot be written.
    """
    if resume is not None:
        if out is not None and Path(out) != Path(resume):
            raise ConfigurationError(
                f"--out {out}: a resumed run stays in its directory {resume}; give one of the two"
            )
        run = Run.open(resume)
    else:
        run = Run(Path(out) if out is not None else _fresh(Path("runs"), experiment.name))
    try:
        if resume is None and any(
            (run.path / name).is_dir() and any((run.path / name).iterdir())
            for name in ("checkpoints", "trials")
        ):
            raise ConfigurationError(
                f"--out {run.path}: holds a run already; go on with it by --resume {run.path}, or choose another directory"
            )
        # The parent reads the experiment here, and makes it the run's own when it has seen that it fits the run.
        (run.path / "logs").mkdir(parents=True, exist_ok=True)
        (run.path / "logs" / "experiment.toml").write_text(experiment.to_toml(), encoding="utf-8")
    except OSError as error:
        raise EnvironmentFailure(
            f"--out {run.path}: cannot be written: {error.strerror}; choose another directory"
        ) from None
    return run


def _fresh(folder: Path, name: str) -> Path:
    stamp = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    path, number = folder / stamp, 1
    while path.exists():
        number += 1
        path = folder / f"{stamp}-{number}"
    return path


class Process:
    """One process of the cluster: its command, its log, and how often it was started again."""

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        descriptors: tuple[int, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name, self.log = name, log
        self._command, self._descriptors = command, descriptors
        self._environment = None if environment is None else {**os.environ, **environment}
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
            env=self._environment,
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
            raise EnvironmentFailure(
                f"{self.name} was killed {len(self._restarts)} times within a minute; see {self.log}"
            )
        self._close_input()
        self.start()

    def error(self) -> str:
        """The last `error: …` line that it wrote, without the word."""
        with self.log.open("rb") as file:
            file.seek(self._mark)
            lines = file.read().decode(errors="replace").splitlines()
        found = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (
            found[-1]
            if found
            else f"{self.name} ended with exit code {self.popen.returncode}; see {self.log}"
        )

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

    def __init__(
        self, experiment: Experiment, run: Run, children: list[str], cores: int | None, listen: str
    ) -> None:
        self._run = run
        self._history = run.path / "history.jsonl"
        self._position = whole_lines(self._history)
        # The socket is bound here and inherited: children may connect before the parent listens, and
        # a parent that is started again is found under the same address.
        self._socket = listening_socket(listen)
        self._alone = listen == LOOPBACK
        self._parts: list[Process] = []
        self._children, self._cores = children, cores

    def __enter__(self) -> _Cluster:
        path, descriptor = self._run.path, self._socket.fileno()
        host, port = self._socket.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1" if host == "0.0.0.0" else "::1"
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        os.set_inheritable(descriptor, True)
        try:
            command = [
                "genkidama.parent",
                str(path / "logs" / "experiment.toml"),
                "--listen",
                f"fd://{descriptor}",
                "--out",
                str(path),
            ]
            if self._alone:  # nobody else comes here: what the experiment asks of machines in a network would keep out its own children
                command += ["--tokens-file", "", "--certificate-file", "", "--key-file", ""]
            self.parent = self._start("parent", command, (descriptor,))
            for name in self._children:
                command = [
                    "genkidama.child",
                    "--parent",
                    f"ws://{address}",
                    "--name",
                    name,
                    "--state",
                    str(path / "children"),
                ]
                self._start(
                    name,
                    command if self._cores is None else [*command, "--cores", str(self._cores)],
                )
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, name: str, command: list[str], descriptors: tuple[int, ...] = ()) -> Process:
        process = Process(name, command, self._run.path / "logs" / f"{name}.log", descriptors)
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
                    raise (
                        ConfigurationError
                        if code == ConfigurationError.exit_code
                        else EnvironmentFailure
                    )(process.error())
            if (
                children
                and patience == math.inf
                and all(process.popen.poll() == 0 for process in children)
            ):
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


def listening_socket(listen: str) -> socket.socket:
    """A socket that accepts what comes to `HOST:PORT`, also before there is a parent to be given it.

    Raises:
        ConfigurationError, EnvironmentFailure: nobody can listen there.
    """
    from genkidama.system.address import (  # with the parent's websockets, which this process does without
        explain,
        parse_listen,
    )

    binding = parse_listen(listen)
    if "sock" in binding:
        return binding["sock"]
    host = binding["host"]
    try:
        return socket.create_server(
            (host, binding["port"]),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=256,
        )
    except OSError as error:
        raise explain(listen, error) from None


def whole_lines(path: Path) -> int:
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
