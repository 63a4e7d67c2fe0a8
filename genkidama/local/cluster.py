"""`train` and `search`: a whole cluster on this machine, with real processes and real websockets.

A run here is what it is on a shelf of Pis: one process of `genkidama.parent` and some of
`genkidama.child`. This process only starts them, watches them, and ends them. One that is killed is
started again. However this process ends, it ends them all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from genkidama.capacity import expected_cores
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.experiment import Experiment
from genkidama.local.directory import prepare_directory, resumable
from genkidama.local.evaluation import evaluate
from genkidama.local.nursery import SharedNursery
from genkidama.local.processes import Process, failure
from genkidama.parts import WHOLE, Part
from genkidama.rules.table import check_parts
from genkidama.system.address import listening_socket, local_address
from genkidama.system.history import Follower
from genkidama.system.machine import available_bytes, available_cores
from genkidama.system.run import CHILDREN, HISTORY, LOGS, SETTINGS, Run

__all__ = ["check_search", "search", "train"]

#: How often this process looks at the others. It sleeps in between.
_LOOK_SECONDS = 0.25

#: How long a child gets to end after SIGTERM.
_CHILD_GRACE = 3.0

#: How long the parent gets, when the children have ended: all have ended within 5 s.
_PARENT_GRACE = 2.0

#: When all children have left, the parent's final checkpoint may take so long.
_PARTING_SECONDS = 60.0

#: A free port that only this machine reaches.
_LOOPBACK = "127.0.0.1:0"

#: What a parent on the loopback is told. Only its own children come there. Tokens and certificates,
#: which the experiment asks of machines in a network, would keep them out.
_OPEN = ["--tokens-file", "", "--certificate-file", "", "--key-file", ""]


def train(
    experiment: Experiment,
    *,
    children: int = 2,
    cores: int | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    episodes: int = 500,
    shards: int | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
) -> Run:
    """Trains until the experiment's stop condition, then evaluates. Blocks.

    Args:
        experiment: all settings.
        children: child processes, each with cores of its own.
        cores: core processes of each child; what the experiment says if absent. If that is
            `"auto"`, this machine's CPU cores are shared out, as far as memory allows.
        out: the run directory; a new one under `runs/` if absent.
        resume: a run directory to go on with, instead of `out`.
        episodes: length of the final evaluation; 0 for none.
        shards: in how many parts the parent is, each a process; if absent, as many as in the run
            that goes on, or 1.
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
            f"{experiment.name}: has a [search]; "
            "start it with `genkidama search`, or take that section out"
        )
    if shards is None:
        shards = Run(Path(resume)).parts if resume is not None else 1
    check_parts(experiment, shards)
    run = prepare_directory(experiment, out, resume)
    names = [f"child-{number}" for number in range(1, children + 1)]
    cores = _cores(experiment, cores, children)
    with resumable(run, "train"), _Cluster(run, experiment, names, cores, parts=shards) as cluster:
        cluster.wait(watch)
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
    watch: Callable[[dict[str, Any]], None] | None = None,
) -> Run:
    """Searches for hyperparameters until `[search]` says that it is over. Blocks.

    Args:
        experiment: all settings, with a `[search]`.
        nodes: child processes on this machine, each of which trains one trial after another.
            0 leaves all trials to children on the network.
        cores: core processes of each node; if absent, as in `train`.
        listen: `HOST:PORT` that lets children on other machines take part; a free port of the
            loopback if absent.
        out: the run directory; a new one under `runs/` if absent.
        resume: a run directory with a search to go on with, instead of `out`.
        watch: is called with each new line of the history, about four times a second.

    Returns:
        The run; its `trials` are runs of their own. `genkidama.tuning.report` tells what they
        came to.

    Raises:
        ConfigurationError: a setting is wrong, or `out` holds a run already.
        EnvironmentFailure: a process cannot start, or keeps dying.
    """
    check_search(experiment)
    if nodes < 0 or (nodes == 0 and listen is None):
        raise ConfigurationError(
            f"nodes = {nodes}: at least 1 is needed, "
            "or 0 with an address for nodes on the network to come to"
        )
    if cores is not None and cores < 1:
        raise ConfigurationError(f"cores = {cores}: at least 1 is needed")
    guarded = experiment.parent.tokens_file or experiment.parent.certificate_file
    if nodes and listen is not None and guarded:
        raise ConfigurationError(
            f"nodes = {nodes}: a search that asks the network for tokens or TLS "
            "(parent.tokens_file, parent.certificate_file) starts none itself; give --nodes 0, "
            "and start `python -m genkidama.child` on each machine, also on this one"
        )
    run = prepare_directory(experiment, out, resume)
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    cores = _cores(experiment, cores, nodes)
    with resumable(run, "search"), _Cluster(run, experiment, names, cores, listen) as cluster:
        cluster.wait(watch)
    return run


def check_search(experiment: Experiment) -> None:
    """Checks that there is something to search.

    Raises:
        ConfigurationError: the experiment has no `[search]`.
    """
    if experiment.search is None:
        raise ConfigurationError(
            f"{experiment.name}: has no [search]; "
            "say what to vary, as examples/lunarlander/search.toml does"
        )


def _cores(experiment: Experiment, cores: int | None, children: int) -> int | None:
    """How many cores each child is told to use; None leaves it to the experiment."""
    if cores is not None or experiment.child.cores != "auto":
        return cores
    share = max(1, children)
    available = available_bytes()
    # A learner beside the parent takes a core, too.
    free = available_cores() - experiment.sends_experience
    return expected_cores(None if available is None else available // share, max(1, free // share))


class _Cluster:
    """One parent and its children, as processes. Entering starts them, leaving ends them.

    Args:
        run: the run directory, prepared.
        experiment: all settings.
        children: their names.
        cores: core processes of each child; None leaves it to the experiment.
        listen: where the parent listens; a free port of the loopback if absent.
        parts: in how many processes the parent is.
    """

    def __init__(
        self,
        run: Run,
        experiment: Experiment,
        children: list[str],
        cores: int | None,
        listen: str | None = None,
        parts: int = 1,
    ) -> None:
        self._path = run.path
        self._experiment = experiment
        self._names = children
        self._cores = cores
        self._alone = listen is None
        self._history = Follower(run.path / HISTORY)
        self._children: list[Process] = []
        #: The parent's parts; nearly always it is in one piece.
        self._parents: list[Process] = []
        self._nursery: SharedNursery | None = None
        # The sockets are bound here and inherited. So children may connect before the parent
        # listens, and a parent that is started again is found under the same address.
        self._sockets = [listening_socket(listen or _LOOPBACK) for _ in range(parts)]

    def __enter__(self) -> _Cluster:
        try:
            if self._names and self._experiment.child.backend == "hogwild":
                log = self._path / LOGS / "nursery.log"
                self._nursery = SharedNursery(self._experiment, log)
            for number, socket in enumerate(self._sockets, start=1):
                part = Part(number, len(self._sockets))
                name = "parent" if part == WHOLE else f"parent-{number}"
                command = self._parents_command(part, socket.fileno())
                self._parents.append(self._start(name, command, socket.fileno()))
            for name in self._names:
                self._children.append(self._start(name, self._childs_command(name)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, name: str, command: list[str], *descriptors: int) -> Process:
        return Process(name, command, self._path / LOGS / f"{name}.log", descriptors)

    def _parents_command(self, part: Part, descriptor: int) -> list[str]:
        command = ["genkidama.parent", str(self._path / SETTINGS)]
        command += ["--listen", f"fd://{descriptor}", "--out", str(self._path)]
        if part != WHOLE:
            command += ["--shard", str(part)]
        if self._experiment.sends_experience:
            command += self._nurserys_option()
        return command + (_OPEN if self._alone else [])

    def _childs_command(self, name: str) -> list[str]:
        url = ",".join(f"ws://{local_address(socket)}" for socket in self._sockets)
        command = ["genkidama.child", "--parent", url, "--name", name]
        command += ["--state", str(self._path / CHILDREN)]
        command += self._nurserys_option()
        return command if self._cores is None else [*command, "--cores", str(self._cores)]

    def _nurserys_option(self) -> list[str]:
        return [] if self._nursery is None else ["--nursery", self._nursery.address]

    def wait(self, watch: Callable[[dict[str, Any]], None] | None) -> None:
        """Returns when the run is over.

        Args:
            watch: is called with each new line of the history.

        Raises:
            GenkidamaError: what the parent or a child ended with.
        """
        parent = self._parents[0]  # it counts for all parts
        patience = math.inf
        while parent.code != 0:
            for process in (*self._parents, *self._children):
                _look_after(process)
            if patience == math.inf and self._deserted:
                patience = time.monotonic() + _PARTING_SECONDS
            if time.monotonic() > patience:
                raise EnvironmentFailure("all children were stopped, though the run is not over")
            self._tell(watch)
            parent.wait(_LOOK_SECONDS)
        deadline = time.monotonic() + _CHILD_GRACE
        for child in self._children:
            child.wait(deadline - time.monotonic())
        self._end_other_parts()
        self._tell(watch)

    def _end_other_parts(self) -> None:
        """Lets the parts that do not count write what they have."""
        others = self._parents[1:]
        for parent in others:
            parent.terminate()
        for parent in others:
            parent.wait(_PARTING_SECONDS)
            if parent.code is not None and parent.code > 0:
                raise failure(parent.code, parent.error())

    @property
    def _deserted(self) -> bool:
        """Whether all children have gone in order."""
        return bool(self._children) and all(child.code == 0 for child in self._children)

    def _tell(self, watch: Callable[[dict[str, Any]], None] | None) -> None:
        for line in self._history.read():
            if watch is not None:
                watch(msgspec.json.decode(line))

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.terminate()
        if self._nursery is not None:
            self._nursery.terminate()
        deadline = time.monotonic() + _CHILD_GRACE
        for child in self._children:
            child.end(deadline - time.monotonic())
            child.close()
        if self._nursery is not None:
            self._nursery.close()
        for parent in self._parents:
            parent.terminate()
        deadline = time.monotonic() + _PARENT_GRACE
        for parent in self._parents:
            parent.wait(deadline - time.monotonic())  # asked twice, it would end at once
            parent.end(0.0)
            parent.close()
        for socket in self._sockets:
            socket.close()


def _look_after(process: Process) -> None:
    """Starts it again if it was killed. One that has ended well is done.

    Raises:
        GenkidamaError: what it has ended with.
    """
    code = process.code
    if code is not None and code < 0:
        process.restart()
    elif code:
        raise failure(code, process.error())
