"""Reports a second at a Parent that runs a search.

Claim: a Parent answers the reports of 1,000 nodes. Each report gets its decision, its line of the
history and its record in the study, and none waits for the database.

Method: two Parents are processes of their own on core 0. One has a search with `phase_steps = 1`,
so that every push ends a phase and asks for a decision. The other has a plain run of the same
network. This process, on core 1, plays their nodes: websockets clients in one event loop, one push
in flight each. Windows alternate plain, search, plain, …; figures are medians. `Parent µs` is the
Parent's CPU time a push, of all threads, the study's included. It does not depend on the speed of
this process. `ratio` compares the rates of answers. Nodes of the plain run receive the vector back,
nodes of the search do not. Before each window a node has its trial: handing out a trial costs the
database some milliseconds, and is measured by itself (`trials/s`). Afterwards the Parent is told to
end. `behind` is the number of reports that the study has not got by then, and `caught up` the time
that it takes to write them. In the end the study must hold exactly the answered reports, or there
are no figures.

    python benchmarks/service.py                        100 and 1,000 nodes, about two minutes
    python benchmarks/service.py --nodes 100 --windows 1 --seconds 2
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from exchange import LOAD_CORE, SERVER_CORE, Window
from processes import cpu_seconds, free_port, keep, parser_of, start_parent, stop
from websockets.asyncio.client import ClientConnection, connect

from genkidama.protocol.messages import (
    PROTOCOL,
    Hello,
    Join,
    Push,
    Weights,
    Welcome,
    decode_reply,
    encode,
)
from genkidama.protocol.vector import DTYPE

SIZE = 3_000

PLAIN = """[parent]
alpha = 0.5
max_children = 2000
max_per_address = 2000
[child]
exchange = "free"
"""
#: A parent lets no more come in at once.
COMING = 100
#: Many phases and a small rate, so that no trial ends within the windows: all reports are still in
#: data collection, for which the rule does the same work.
SEARCH = (
    PLAIN
    + """[search]
trials = {trials}
phases = 100000
phase_steps = 1
eviction_rate = 1e-6
[search.space]
optimizer.learning_rate = {{ low = 1e-5, high = 1e-2, log = true }}
"""
)


@dataclass
class Node:
    """One simulated node on its connection."""

    connection: ClientConnection
    name: str
    trial: int | None = None
    pushes: int = 0
    latencies: list[float] = field(default_factory=list)

    async def begin(self) -> None:
        while True:
            welcome = await self._ask(Hello(protocol=PROTOCOL, name=self.name, session=self.name))
            assert isinstance(welcome, Welcome), welcome
            if not welcome.wait:
                break
            await asyncio.sleep(welcome.wait)
        self.trial = welcome.trial
        await self._ask(Join(signature=[("weights", [SIZE])]))

    async def push_until(self, end: float, vector: np.ndarray) -> None:
        while (began := time.perf_counter()) < end:
            self.pushes += 1
            push = Push(version=0, sequence=self.pushes, steps=1, trial=self.trial, vector=vector)
            push.returns = [float(self.pushes % 7)]
            reply = await self._ask(push)
            assert isinstance(reply, Weights), reply
            assert not reply.stop, reply.stop
            self.latencies.append(time.perf_counter() - began)

    async def _ask(self, request: Hello | Join | Push) -> object:
        await self.connection.send(encode(request))
        return decode_reply(await self.connection.recv(decode=False))


async def window(nodes: list[Node], pid: int, seconds: float, vector: np.ndarray) -> Window:
    for node in nodes:
        node.latencies.clear()
    server = cpu_seconds(pid)
    load = time.process_time()
    begin = time.perf_counter()
    await asyncio.gather(*(node.push_until(begin + seconds, vector) for node in nodes))
    wall = time.perf_counter() - begin
    server, load = cpu_seconds(pid) - server, time.process_time() - load
    latencies = np.array([latency for node in nodes for latency in node.latencies])
    p50, p99 = np.percentile(latencies, (50, 99)) * 1e3
    return Window(
        len(latencies) / wall, float(p50), float(p99), server / len(latencies) * 1e6, load / wall
    )


async def arrive(port: int, name: str) -> Node:
    """A node that has said hello, and has joined if there was a trial for it."""
    address = f"ws://127.0.0.1:{port}"
    node = Node(await connect(address, compression=None, max_size=None, proxy=None), name)
    await node.begin()
    return node


async def measure(count: int, options: argparse.Namespace, directory: Path) -> None:
    vector = np.random.default_rng(0).normal(0.0, 0.1, SIZE).astype(DTYPE)
    windows: dict[str, list[Window]] = {"plain": [], "search": []}
    parents, nodes = {}, {}
    try:
        for kind, text in (("plain", PLAIN), ("search", SEARCH.format(trials=2 * count))):
            file, port = directory / f"{kind}-{count}.toml", free_port()
            file.write_text(text, encoding="utf-8")
            parents[kind] = start_parent(file, directory / f"{kind}-{count}", port, SERVER_CORE)
            began = time.perf_counter()
            nodes[kind] = []
            for start in range(0, count, COMING):
                names = [f"node-{index}" for index in range(start, min(count, start + COMING))]
                nodes[kind] += await asyncio.gather(*(arrive(port, name) for name in names))
            if kind == "search":
                handing_out = count / (time.perf_counter() - began)
        for turn in range(options.windows + 1):
            for kind, found in windows.items():
                result = await window(nodes[kind], parents[kind].pid, options.seconds, vector)
                if turn:  # the first turn warms caches up
                    found.append(result)
                    keep(options.results, {"nodes": count, "run": kind, **vars(result)})
        answered = sum(node.pushes for node in nodes["search"])
        study = directory / f"search-{count}" / "study.db"
        behind, began = answered - reports(study), time.perf_counter()
        parents["search"].send_signal(signal.SIGTERM)
        parents["search"].wait(600)
        caught_up = time.perf_counter() - began
        if (written := reports(study)) != answered:
            raise SystemExit(f"{answered} reports were answered, but the study has {written}")
    finally:
        for group in nodes.values():
            for node in group:
                node.connection.transport.abort()
        for parent in parents.values():
            stop(parent)
    plain = statistics.median(each.rate for each in windows["plain"])
    for kind, found in windows.items():
        middle = {
            name: statistics.median(getattr(each, name) for each in found)
            for name in Window.__dataclass_fields__
        }
        print(
            f"| {count:,} | {kind} | {middle['rate']:,.0f} | {middle['rate'] / plain:.2f} "
            f"| {middle['p50_ms']:.1f} "
            f"| {middle['p99_ms']:.1f} | {middle['server_us']:.0f} | {middle['busy']:.0%} |",
            flush=True,
        )
    print(
        f"|   | study | {handing_out:,.0f} trials/s handed out | | {behind:,} reports behind "
        f"| caught up in {caught_up:.1f} s | | |",
        flush=True,
    )


def reports(study: Path) -> int:
    """How many intermediate values the study holds."""
    with sqlite3.connect(f"file:{study}?mode=ro", uri=True, timeout=60.0) as database:
        return int(database.execute("select count(*) from trial_intermediate_values").fetchone()[0])


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--results", type=Path, help="file to which rows are appended")
    options = parser.parse_args()
    limit = max(options.nodes) * 3 + 100
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (limit, max(limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    )
    os.sched_setaffinity(0, {LOAD_CORE})
    print(
        "| nodes | run | answers/s | ratio | p50 ms | p99 ms | Parent µs | generator busy |\n"
        "|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="service-") as name:
        for count in options.nodes:
            asyncio.run(measure(count, options, Path(name)))


if __name__ == "__main__":
    sys.exit(main())
