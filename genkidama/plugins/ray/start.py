"""`launch`: a run on a Ray cluster, with its connection, its nodes and their cores."""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from genkidama.cli.progress import Sinks, feeding, following
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import one_line
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.ray.driver import Driver, Part, nodes_of, on_node
from genkidama.plugins.ray.node import ChildActor
from genkidama.runs.evaluation import evaluate
from genkidama.runs.goal import with_default_stop
from genkidama.runs.resume import prepare_directory, resumable
from genkidama.runs.run import Run
from genkidama.runtime.script import begin

__all__ = ["launch", "layout"]

#: How long a cluster's port may take to open.
_REACH_SECONDS = 10.0

_HOST_PORT = re.compile(r"([^/:\[\]]+):(\d{1,5})\Z")


def launch(
    experiment: Experiment,
    *,
    address: str | None = None,
    children: int | None = None,
    cores: int | None = None,
    gpus: float = 0.0,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    episodes: int = 500,
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
        episodes: length of the final evaluation, on this machine; 0 for none. A search has none.
        watch: is called with each new line of the history.
        sinks: what the figures are carried to as well, as `["wandb"]` (docs/sinks.md).
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
    for name, value, least in (
        ("children", children, 1),
        ("cores", cores, 1),
        ("gpus", gpus, 0),
        ("episodes", episodes, 0),
    ):
        if value is not None and value < least:
            raise ConfigurationError(f"{name} = {value:g}: at least {least} is needed")
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
            nodes = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in nodes_of(ray)}
            shares = layout(nodes, children, cores)
            run = prepare_directory(experiment, out, resume)
            kind = "child" if experiment.search is None else "node"
            parts = _children(ray, kind, shares, gpus)
            with (
                following(experiment, progress, watch, about_stop) as watched,
                resumable(run, "launch --ray"),
                Driver(ray, run, parts, feed.begin(run, watched), say) as driver,
            ):
                driver.wait()
        if episodes and experiment.search is None:
            evaluate(run, episodes=episodes, seed=experiment.seed, progress=progress)
            feed.evaluated(run)
    return run


def _children(ray: Any, kind: str, shares: list[tuple[int, str | None]], gpus: float) -> list[Part]:
    """Parts for the children, each with its cores and its node."""
    children = []
    for number, (cores, node) in enumerate(shares, start=1):
        strategy = "SPREAD" if node is None else on_node(node, soft=True)
        options = {"num_cpus": cores, "num_gpus": gpus, "scheduling_strategy": strategy}
        children.append(Part(ray, f"{kind}-{number}", ChildActor, options))
    return children


def layout(
    nodes: dict[str, int], children: int | None, cores: int | None
) -> list[tuple[int, str | None]]:
    """The cores of each child, and the node that it belongs on, if there is one.

    Args:
        nodes: how many CPUs each node has.
        children: how many are asked for; None for one on each node.
        cores: how many each is to have. None for all of a node or, with `children`, for as many as
            let all begin at once.

    Raises:
        EnvironmentFailure: there is no node for a child to be on, and nobody says how large the
            nodes to come are.
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
    """The module.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigurationError(
            f"a launch on Ray needs Ray ({error}): pip install 'genkidama[ray]'"
        ) from None


@contextmanager
def connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connects to the cluster, unless the program is connected already.

    Raises:
        EnvironmentFailure: there is no cluster.
    """
    if ray.is_initialized():
        yield
        return
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        if (found := _HOST_PORT.match(address)) is not None:  # Ray itself would try for a minute
            socket.create_connection((found[1], int(found[2])), timeout=_REACH_SECONDS).close()
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
