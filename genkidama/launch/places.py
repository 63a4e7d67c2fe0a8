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

from genkidama.errors import ConfigurationError, EnvironmentFailure

#: How long a cluster's port may take to open.
_REACH_SECONDS = 10.0

_HOST_PORT = re.compile(r"([^/:\[\]]+):(\d{1,5})\Z")


def nodes_of(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def head_of(nodes: list[dict[str, Any]]) -> str | None:
    return next(
        (str(node["NodeID"]) for node in nodes if "node:__internal_head__" in node["Resources"]),
        None,
    )


def layout(
    nodes: dict[str, int], children: int | None, cores: int | None
) -> list[tuple[int, str | None]]:
    """The cores of each child, and the node that it belongs on, if there is one.

    Args:
        nodes: how many CPUs each node has.
        children: how many are asked for; None for one on each node.
        cores: how many each is to have; None for all of a node, or as many as let all children begin at once.

    Raises:
        EnvironmentFailure: there is no node for a child to be on, and nobody says how large the coming ones are.
    """
    if children is None:
        places: list[tuple[int, str | None]] = [
            (cores or cpus, node) for node, cpus in nodes.items() if cpus >= (cores or 1)
        ]
        if not places:
            raise EnvironmentFailure(
                f"no node of the Ray cluster has {cores or 1} CPUs, the largest {max(nodes.values(), default=0)}; "
                "lower --cores, or have children wait for nodes to come: --children N --cores N"
            )
        return places
    if cores is None:
        sizes = [cpus for cpus in nodes.values() if cpus > 0]
        if not sizes:
            raise EnvironmentFailure(
                "no node of the Ray cluster has a CPU yet; say how many cores each child is to have: --cores N"
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
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigurationError(
            f"a launch on Ray needs Ray ({error}): pip install 'genkidama[ray]'"
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
        if (found := _HOST_PORT.match(address)) is not None:  # Ray itself would try for a minute
            socket.create_connection((found[1], int(found[2])), timeout=_REACH_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        where = "this machine" if address == "auto" else address
        raise EnvironmentFailure(
            f"--address {where}: cannot connect to a Ray cluster there: {one_line(error)}; start one with `ray start --head`, "
            "or say where one is: --address HOST:6379"
        ) from None
    try:
        if main:
            signal.signal(signal.SIGTERM, before)  # Ray puts its own there
        yield
    finally:
        ray.shutdown()
        if main:
            signal.signal(signal.SIGTERM, before)


def one_line(error: BaseException, length: int = 300) -> str:
    text = " ".join(f"{error}".split()) or type(error).__name__
    return text if len(text) <= length else f"{text[:length]} …"
