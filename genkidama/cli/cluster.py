"""`train` and `search`: a whole cluster on this machine, with real processes and real websockets.

A run here is what it is on a shelf of Pis: one process of `genkidama.parent` and some of
`genkidama.child`. This process only starts them, watches them, and ends them. One that is killed is
started again. However this process ends, it ends them all.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genkidama.child.capacity import expected_cores
from genkidama.cli.forkserver import SharedForkServer
from genkidama.cli.log_watcher import LogWatcher
from genkidama.cli.parents import ParentProcess, end_all, finish
from genkidama.cli.progress import Sinks, feeding, following
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.protocol.shard import Shard
from genkidama.runs.evaluation import evaluate
from genkidama.runs.goal import with_default_stop
from genkidama.runs.resume import finished, prepare_directory, resumable
from genkidama.runs.run import CHILDREN, LOGS, SETTINGS, Run
from genkidama.runtime.address import parse_listen
from genkidama.runtime.import_strings import check_environment
from genkidama.runtime.machine import available_bytes, available_cores
from genkidama.runtime.process import Attended, Process
from genkidama.runtime.script import begin
from genkidama.runtime.signals import deferred
from genkidama.server.limits import check_exposed
from genkidama.server.rules.registry import check_parts

__all__ = ["check_search", "cores_of_each", "search", "train"]


# ------------------------------------------------------------------------------------------------
# What `train`, `search` and `launch` check before a run directory is made.


def check_search(experiment: Experiment) -> None:
    """Checks that there is something to search.

    Raises:
        ConfigurationError: the experiment has no `[search]`.
    """
    if experiment.search is None:
        raise ConfigurationError(
            f"{experiment.name}: has no [search]; "
            "say what to vary, as `genkidama examples lunarlander/search` shows"
        )


# ------------------------------------------------------------------------------------------------
# How the children of one machine share its CPU cores and its memory.


def cores_of_each(experiment: Experiment, cores: int | None, children: int) -> int | None:
    """How many cores each child is told to use; None leaves it to the experiment."""
    if cores is not None or experiment.child.cores != "auto":
        return cores
    share = max(1, children)
    available = available_bytes()
    # A learner beside the parent takes a core, too.
    free = available_cores() - experiment.sends_experience
    return expected_cores(None if available is None else available // share, max(1, free // share))


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

#: What a parent on the loopback is told. Tokens and certificates would keep its own children out.
_OPEN = ["--tokens-file", "", "--certificate-file", "", "--key-file", "", "--own-children"]


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
    sinks: Sinks = (),
    say: Callable[[str], None] | None = None,
    progress: bool = False,
) -> Run:
    """Trains until the experiment's stop condition, then evaluates. Blocks.

    Without a stop condition it ends when the task counts as solved (`with_default_stop`). A run
    that is finished and is resumed stays as it is.

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
        sinks: what the figures are carried to as well, as `["wandb"]` (docs/sinks.md).
        say: is called with a line about each process that dies or complains.
        progress: shows how it goes, on standard error or in a notebook's cell.

    Returns:
        The run; `run.evaluation` is its final evaluation.

    Raises:
        ConfigurationError: a setting is wrong, or `out` holds a run already.
        EnvironmentFailure: a process cannot start, or keeps dying.
    """
    begin("train")
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
    feed = feeding(sinks, say)
    check_environment(experiment)
    experiment, about_stop = with_default_stop(experiment)
    done = resume is not None and bool(finished(Run.open(resume), experiment))
    run = prepare_directory(experiment, out, resume)
    experiment = Experiment.load(run.path / SETTINGS)  # of a notebook's class it has the source
    names = [f"child-{number}" for number in range(1, children + 1)]
    cores = cores_of_each(experiment, cores, children)
    with feed:
        if not done:
            with (
                following(experiment, progress, watch, about_stop) as told,
                resumable(run, "train"),
                _Cluster(run, experiment, names, cores, parts=shards) as cluster,
            ):
                cluster.wait(feed.begin(run, told), say)
        if episodes:
            evaluate(run, episodes=episodes, seed=experiment.seed, progress=progress)
            feed.evaluated(run)
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
    sinks: Sinks = (),
    say: Callable[[str], None] | None = None,
    progress: bool = False,
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
        sinks: what the figures are carried to as well, as `["wandb"]` (docs/sinks.md).
        say: is called with a line about each process that dies or complains.
        progress: shows how it goes, on standard error or in a notebook's cell.

    Returns:
        The run; its `trials` are runs. `genkidama.plugins.hypertrick.report` tells what they came
        to.

    Raises:
        ConfigurationError: a setting is wrong, or `out` holds a run already.
        EnvironmentFailure: a process cannot start, or keeps dying.
    """
    begin("search")
    check_search(experiment)
    check_environment(experiment)
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
    if listen is not None and not listen.startswith("fd://"):
        check_exposed(experiment.parent, parse_listen(listen)["host"])
    feed = feeding(sinks, say)
    run = prepare_directory(experiment, out, resume)
    experiment = Experiment.load(run.path / SETTINGS)  # of a notebook's class it has the source
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    cores = cores_of_each(experiment, cores, nodes)
    with (
        feed,
        following(experiment, progress, watch) as told,
        resumable(run, "search"),
        _Cluster(run, experiment, names, cores, listen) as cluster,
    ):
        cluster.wait(feed.begin(run, told), say)
    return run


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
        self._steps = 0
        self._children: list[Process] = []
        self._nursery: SharedForkServer | None = None
        #: The parent's parts; nearly always it is in one piece.
        secret = secrets.token_hex(32) if parts > 1 else ""
        self._parents = [
            ParentProcess(run.path, Shard(number, parts), listen or _LOOPBACK, secret)
            for number in range(1, parts + 1)
        ]

    def __enter__(self) -> _Cluster:
        try:
            with deferred():  # no process may live that this object does not know
                self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        if self._names and self._experiment.child.backend == "hogwild":
            self._nursery = SharedForkServer(self._experiment, self._path / LOGS / "nursery.log")
        for parent in self._parents:
            parent.start(self._parents_options())
        for name in self._names:
            log = self._path / LOGS / f"{name}.log"
            self._children.append(Process(name, self._childs_command(name), log))

    def _parents_options(self) -> list[str]:
        options = self._nurserys_option() if self._experiment.sends_experience else []
        return options + (_OPEN if self._alone else [])

    def _childs_command(self, name: str) -> list[str]:
        url = ",".join(f"ws://{parent.address}" for parent in self._parents)
        command = ["genkidama.child", "--parent", url, "--name", name]
        command += ["--allow", "*", "--state", str(self._path / CHILDREN), *self._nurserys_option()]
        return command if self._cores is None else [*command, "--cores", str(self._cores)]

    def _nurserys_option(self) -> list[str]:
        return [] if self._nursery is None else ["--nursery", self._nursery.address]

    def wait(
        self,
        watch: Callable[[dict[str, Any]], None] | None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Returns when the run is over.

        Args:
            watch: is called with each new line of the history.
            say: is called with a line about each process that dies or complains.

        Raises:
            GenkidamaError: what the parent ended with, or the first child when no child is left.
        """
        first, *others = self._parents  # the first counts for all
        say = say or (lambda line: None)
        secure = not self._alone and bool(self._experiment.parent.certificate_file)
        page = f"its page: http{'s' * secure}://{first.address}/"
        children = [Attended(child, say) for child in self._children]
        complaints = LogWatcher([child.log for child in self._children])
        patience = math.inf
        while True:
            if self._tell(first, watch, children) and page:
                say(page)
                page = ""
            if first.over:
                break
            now = time.monotonic()
            first.look(say)
            for other in others:
                other.read()
                other.look(say)
            for child in children:
                child.look(now)
            for line in complaints.read(now):
                say(line)
            failures = [child.failure for child in children if child.failure is not None]
            if failures and len(failures) == len(children):
                raise failures[0]
            gone = [child for child in children if child.done or child.failure is not None]
            if patience == math.inf and children and len(gone) == len(children):
                patience = now + _PARTING_SECONDS
            if now > patience:
                raise EnvironmentFailure("all children were stopped, though the run is not over")
            first.wait(_LOOK_SECONDS)
        deadline = time.monotonic() + _CHILD_GRACE
        for process in self._children:
            process.wait(deadline - time.monotonic())
        finish(others, _PARTING_SECONDS)
        self._tell(first, watch, children)

    def _tell(
        self,
        parent: ParentProcess,
        watch: Callable[[dict[str, Any]], None] | None,
        children: list[Attended],
    ) -> bool:
        for line in (lines := parent.read()):
            if line["event"] == "exchange" and line["steps"] > self._steps:
                self._steps = line["steps"]
                for child in children:
                    if child.name == line["child"]:
                        child.trained()
            if watch is not None:
                watch(line)
        return bool(lines)

    def __exit__(self, kind: object = None, error: BaseException | None = None, *_: object) -> None:
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
        end_all(self._parents, _PARENT_GRACE, error)
