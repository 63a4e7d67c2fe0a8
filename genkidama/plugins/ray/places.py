"""The way to a Ray cluster, its nodes, and which of them each child belongs on."""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from genkidama.config.formatting import one_line
from genkidama.errors import ConfigurationError, EnvironmentFailure

__all__ = ["connected", "find_ray", "head_of", "layout", "nodes_of", "on_node"]

#: How long a cluster's port may take to open.
_REACH_SECONDS = 10.0

_HOST_PORT = re.compile(r"([^/:\[\]]+):(\d{1,5})\Z")


def nodes_of(ray: Any) -> list[dict[str, Any]]:
    """The nodes that are alive, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def head_of(nodes: list[dict[str, Any]]) -> str | None:
    """The id of the head node; None if it is not among these."""
    return next(
        (str(node["NodeID"]) for node in nodes if "node:__internal_head__" in node["Resources"]),
        None,
    )


def on_node(node: str, soft: bool) -> Any:
    """What Ray is told of an actor that belongs on this node: only or, if `soft`, preferably."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return strategies.NodeAffinitySchedulingStrategy(node, soft=soft)


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
        places: list[tuple[int, str | None]] = [
            (cores or cpus, node) for node, cpus in nodes.items() if cpus >= (cores or 1)
        ]
        if not places:
            most = max(nodes.values(), default=0)
            raise EnvironmentFailure(
                f"no node of the Ray cluster has {cores or 1} CPUs, the largest {most}; "
                "lower --cores, or have children wait for nodes to come: --children N --cores N"
            )
        return places
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
