"""`launch`: a run with its Parent here and its Children on the nodes of a Ray cluster."""

from __future__ import annotations

import importlib
import logging
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from genkidama._version import __version__, pip_install
from genkidama.cli.cluster import Cluster
from genkidama.cli.progress import Sinks, feeding, following
from genkidama.config.decoding import check_least
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import one_line, plural
from genkidama.config.parent_address import bracketed, host_and_port
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.ray.child_actor import ChildActor
from genkidama.runs.evaluation import evaluate_trained
from genkidama.runs.resume import prepare_directory, resumable, with_default_stop
from genkidama.runs.run import LOGS, Run
from genkidama.runtime.files import remove_scratch, scratch_folder
from genkidama.runtime.process import Process, losses
from genkidama.runtime.script import begin

#: How long a cluster's port may take to open.
_REACH_SECONDS = 10.0

#: Seconds between two requests to a child's actor.
_POLL_SECONDS = 1.0

#: A child without a node after this many seconds is reported as waiting.
_ROOM_SECONDS = 20.0


def launch(
    experiment: Experiment,
    *,
    address: str | None = None,
    children: int | None = None,
    cores: int | None = None,
    gpus: float = 0.0,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    episodes: int | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    sinks: Sinks = (),
    say: Callable[[str], None] | None = None,
    progress: bool = False,
) -> Run:
    """Trains on a Ray cluster, or searches if the experiment has a `[search]`. Blocks.

    Args:
        experiment: all settings.
        address: the cluster's, as `ray.init` takes it; if absent, `RAY_ADDRESS` or the cluster that
            this machine belongs to. A program that is connected already stays so.
        children: how many (of a search: nodes). If absent, one on each node that has enough CPUs.
        cores: CPUs and core processes of each child; if absent, what the experiment says or else
            all of a node.
        gpus: GPUs of each child.
        out: the run directory on this machine; a new one under `runs/` if absent.
        resume: a run directory on this machine to go on with, instead of `out`.
        episodes: length of the final evaluation, on this machine, 0 for none; as `evaluate` has it
            if absent. A search has none.
        watch: is called with each new line of the history.
        sinks: what the measures are carried to as well, as `["wandb"]` (docs/notes/sinks.md).
        say: is called with a line about what is not in the history: a child that waits for room, a
            part that was lost.
        progress: shows how it goes, on standard error or in a notebook's cell.

    Returns:
        The run, all of it on this machine.

    Raises:
        ConfigurationError: a setting is wrong, Ray is not installed, or `out` holds a run already.
        EnvironmentFailure: there is no such cluster, its software does not fit, or no part can stay
            alive on it.
    """
    begin("launch")
    check_least(1, children=children, cores=cores)
    check_least(0, gpus=gpus, episodes=episodes)
    if resume is not None:
        Run.open(resume)
    ray = find_ray()
    feed = feeding(sinks, say)
    # A shelf's files for its safety lie on its own machines. Here each launch has a token.
    experiment, about_stop = with_default_stop(experiment)
    experiment = experiment.with_settings(
        {f"parent.{key}": "" for key in ("tokens_file", "certificate_file", "key_file")}
    )
    if cores is None and experiment.child.cores != "auto":
        cores = experiment.child.cores
    with feed:
        with connected(ray, address):
            nodes = [node for node in ray.nodes() if node["Alive"]]
            cpus = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in nodes}
            shares = layout(cpus, children, cores)
            address = _own_address(nodes)
            run = prepare_directory(experiment, out, resume)
            with (
                resumable(run, "launch --ray"),
                following(experiment, progress, watch, about_stop) as watched,
                RayCluster(ray, run, experiment, shares, gpus, address, say) as cluster,
            ):
                cluster.wait(feed.begin(run, watched), say)
        if episodes != 0 and experiment.search is None:
            evaluate_trained(run, episodes, experiment.seed, progress)
            feed.evaluated(run)
    return run


class RayCluster(Cluster):
    """A run's Parent on this machine, and its Children on the cluster.

    `shares` are of each child its cores and the node that it belongs on, if there is one; `host` is
    this machine's address, as the nodes reach it.
    """

    def __init__(
        self,
        ray: Any,
        run: Run,
        experiment: Experiment,
        shares: list[tuple[int, str | None]],
        gpus: float,
        host: str,
        say: Callable[[str], None] | None,
    ) -> None:
        kind = "child" if experiment.search is None else "node"
        names = [f"{kind}-{number}" for number in range(1, len(shares) + 1)]
        super().__init__(run, experiment, names, None, f"{host}:0")
        self._ray = ray
        self._shares = shares
        self._gpus = gpus
        self._say = say or (lambda line: None)
        self._folder = scratch_folder()

    def _start(self) -> None:
        token = secrets.token_urlsafe(32)
        tokens = self._folder / "tokens"
        tokens.touch(0o600)
        tokens.write_text(f"* {token}\n")
        (parent,) = self._parents
        parent.start(["--tokens-file", str(tokens), "--own-children"])
        url = f"ws://{parent.address}"
        for name, (cores, node) in zip(self._names, self._shares, strict=True):
            options = actor_options(cores, self._gpus, node)
            log = self._path / LOGS / f"{name}.log"
            self._children.append(
                RemoteChild(self._ray, name, log, (token, url), options, self._say)
            )

    def __exit__(self, kind: object = None, error: BaseException | None = None, *_: object) -> None:
        super().__exit__(kind, error)
        remove_scratch(self._folder)


def actor_options(cores: int, gpus: float, node: str | None) -> dict[str, Any]:
    """The options of a child's actor, which Ray never starts again by itself."""
    strategy: Any = "SPREAD"
    if node is not None:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        strategy = strategies.NodeAffinitySchedulingStrategy(node, soft=True)
    return {"num_cpus": cores, "num_gpus": gpus, "scheduling_strategy": strategy, "max_restarts": 0}


class RemoteChild(Process):
    """A Child on a node: one actor after another, each with a process.

    Each actor has a name of its own, as `child-3-2`: the parent may not have missed a lost one yet.
    The log of the node is copied to this one. `access` is the token and the parent's address.
    """

    def __init__(
        self,
        ray: Any,
        name: str,
        log: Path,
        access: tuple[str, str],
        options: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self.log = log
        self._ray = ray
        self._access = access
        self._options = options
        self._say = say
        self._policy = losses()
        self._actors = 0
        self._actor: Any = None
        #: The pending request.
        self._call: Any = None
        self._code: int | None = None
        self._reason = ""
        self.start()

    def start(self) -> None:
        """Asks Ray for an actor."""
        self._actors += 1
        name = self.name if self._actors == 1 else f"{self.name}-{self._actors}"
        actor = self._ray.remote(ChildActor).options(**self._options)
        self._actor = actor.remote(__version__, *self._access, name, self._options["num_cpus"])
        self._call = self._actor.poll.remote(0)
        self._code = None
        self._position = 0
        self._waits_from: float | None = time.monotonic()
        self._placed = False
        self._due = 0.0

    def start_again(self) -> None:
        """Asks Ray for another actor."""
        self.close()
        self.start()

    def restart(self) -> None:
        """Replaces an actor that was lost, after a rest: Ray may not miss its node yet."""
        self.close()
        self._due = time.monotonic() + self._policy.died(time.monotonic())
        self._code = None
        if self._policy.given_up:
            raise EnvironmentFailure(
                f"{self.name} was lost {self._policy.deaths} times within a minute: {self._reason}"
            )

    @property
    def code(self) -> int | None:
        """As of `Process`; below 0 if its actor was lost. Never waits."""
        now = time.monotonic()
        if self._code is not None:
            return self._code
        if self._call is not None:
            if self._ray.wait([self._call], timeout=0)[0]:
                self._receive()
            elif self._waits_from is not None and now - self._waits_from > _ROOM_SECONDS:
                self._waits_from = None
                needs = plural(self._options["num_cpus"], "free CPU")
                if gpus := self._options["num_gpus"]:  # may be a part of one
                    needs += f" and {gpus:g} free GPU{'' if gpus == 1 else 's'}"
                self._say(f"{self.name} waits for a node with {needs}")
        elif now >= self._due:
            if self._actor is None:
                self.start()
            else:
                self._call = self._actor.poll.remote(self._position)
        return self._code

    def wait(self, seconds: float | None = None) -> int | None:
        """As of `Process`."""
        deadline = time.monotonic() + (seconds or 0.0)
        while self.code is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self._code

    def error(self) -> str:
        return f"{self.name}: {self._reason}"

    def terminate(self) -> None:
        """Has its actor end the process and clean up."""
        if self._actor is not None and self._placed:
            self._call = self._actor.stop.remote(self._position)
            self._code = None

    def end(self, grace: float) -> None:
        """Waits for its end, at most `grace` seconds, and copies the rest of its log."""
        if self._call is not None and self._placed:
            self.wait(grace)

    def close(self) -> None:
        """Ends its actor, and with it the process."""
        if self._actor is not None:
            self._ray.kill(self._actor)
        self._actor = self._call = None

    def _receive(self) -> None:
        call, self._call = self._call, None
        self._due = time.monotonic() + _POLL_SECONDS
        try:
            self._code, self._reason, text = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            self._lost(error)
            return
        self._placed = True
        self._waits_from = None
        if self._append(text):
            self._position += len(text)

    def _lost(self, error: Exception) -> None:
        words = str(error)
        self._append(f"{words}\n".encode())  # Ray is verbose: all of it goes into the log
        self._code = -signal.SIGKILL
        self._reason = one_line(error)
        if "failed to import" in words or "No module named" in words:
            found = re.findall(r"^\s*(\w*Error: .*)$", words, re.MULTILINE)
            why = found[-1] if found else self._reason
            self._code = EnvironmentFailure.exit_code
            self._reason = (
                f"its node cannot run genkidama {__version__} ({why}); "
                "install that version on all nodes"
            )

    def _append(self, text: bytes) -> bool:
        """Copies to the log; false if this machine's disk is full."""
        with suppress(OSError), self.log.open("ab") as file:
            file.write(text)
            return True
        return False


def _own_address(nodes: list[dict[str, Any]]) -> str:
    """This machine's address, as the nodes reach it: that of its way to the head node."""
    head = next(node for node in nodes if "node:__internal_head__" in node["Resources"])
    host = head["NodeManagerAddress"]
    with socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM
    ) as way:
        way.connect((host, 9))  # nothing is sent
        return bracketed(str(way.getsockname()[0]))


def layout(
    nodes: dict[str, int], children: int | None, cores: int | None
) -> list[tuple[int, str | None]]:
    """The cores of each child, and the node that it belongs on, if there is one.

    `nodes` says how many CPUs each has. Without `children` each node gets one; without `cores` a
    child gets all of a node or, with `children`, as many as let all begin at once.
    """
    if children is None:
        shares: list[tuple[int, str | None]] = [
            (cores or cpus, node) for node, cpus in nodes.items() if cpus >= (cores or 1)
        ]
        if not shares:
            most = max(nodes.values(), default=0)
            raise EnvironmentFailure(
                f"no node of the Ray cluster has {cores or 1} CPUs, the largest {most}; "
                "lower --cores, or have children wait for nodes to come: --children N --cores N"
            )
        return shares
    if cores is None:
        sizes = [cpus for cpus in nodes.values() if cpus > 0]
        if not sizes:
            raise EnvironmentFailure(
                "no node of the Ray cluster has a CPU yet; "
                "say how many cores each child is to have: --cores N"
            )
        # If they do not all fit, they wait for nodes like the smallest of these.
        fitting = (
            size
            for size in range(max(sizes), 0, -1)
            if sum(cpus // size for cpus in sizes) >= children
        )
        cores = next(fitting, min(sizes))
    return [(cores, None)] * children


def find_ray() -> Any:
    """The module `ray`."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigurationError(
            f"a launch on Ray needs Ray ({error}): {pip_install('ray')}"
        ) from None


@contextmanager
def connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connects to the cluster, unless the program is connected already."""
    if ray.is_initialized():
        yield
        return
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        if (found := host_and_port(address)) is not None:  # Ray itself would try for a minute
            socket.create_connection(found, timeout=_REACH_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        where = "this machine" if address == "auto" else address
        raise EnvironmentFailure(
            f"--address {where}: cannot connect to a Ray cluster there: {one_line(error)}; "
            "start one with `ray start --head`, or say where one is: --address HOST:6379"
        ) from None
    try:
        if main:
            signal.signal(signal.SIGTERM, before)  # Ray puts its own there
        yield
    finally:
        ray.shutdown()
        if main:
            signal.signal(signal.SIGTERM, before)
