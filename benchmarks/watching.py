"""What it costs that people watch.

Claims:
- with 64 children that exchange as fast as they can and 20 open pages, a Parent carries at least
  0.95 of the exchanges that it carries with none;
- the first message of the feed comes within 0.5 s while it does;
- with 1,000 children that exchange once a second, the page takes at most 1 % of a core;
- a million exchanges with an open page leave the Parent's memory within 10 MB of where it was.

Method: the Parent is a process on core 0. This process, on core 1, plays the children as
`exchange.py` does. Another process on core 1 plays the pages: it reads the feeds, and asks for the
newest policy as often as that many pages do, and throws both away, so that a browser's own work is
not measured. Windows alternate without and with pages. The
page's CPU time is what the Parent itself counts (`page.seconds` of `GET /status`): taking events,
making messages, and writing them.

    python benchmarks/watching.py                  everything, about eight minutes
    python benchmarks/watching.py exchanges --windows 5 --seconds 3
    python benchmarks/watching.py many --children 1000
    python benchmarks/watching.py memory --exchanges 1000000
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from exchange import LOAD_CORE, SERVER_CORE, Connection, connected, random_vector, run_window
from processes import free_port, parser_of, resident, start, start_parent, stop

#: Numbers of the network.
_SIZE = 3000

_SETTINGS = """[parent]
alpha = 0.5
max_children = 1100
max_per_address = 2200
[child]
exchange = "free"
"""


@contextlib.contextmanager
def parent(directory: Path, name: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A Parent and its port."""
    experiment = directory / f"{name}.toml"
    experiment.write_text(_SETTINGS, encoding="utf-8")
    port = free_port()
    process = start_parent(experiment, directory / name, port, SERVER_CORE)
    try:
        yield process, port
    finally:
        stop(process)


@contextlib.contextmanager
def pages(port: int, count: int, directory: Path) -> Iterator[Path]:
    """So many open pages; gives the file in which they say when their first message came."""
    told = directory / f"pages-{time.monotonic_ns()}.json"
    command = [sys.executable, __file__, "pages", str(port), str(count), str(told)]
    process = start(command, directory / "pages.log", LOAD_CORE)
    deadline = time.monotonic() + 30.0
    while not told.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit((directory / "pages.log").read_text())
        time.sleep(0.02)
    try:
        yield told
    finally:
        stop(process)


def look(port: int, count: int, told: Path) -> None:
    """Plays the pages until it is ended."""
    request = (
        f"GET /watch HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
    chosen = selectors.DefaultSelector()
    firsts = []
    for _ in range(count):
        began = time.perf_counter()
        page = socket.create_connection(("127.0.0.1", port))
        page.sendall(request)
        found = b""
        while b"\r\n\r\n" not in found or not found.partition(b"\r\n\r\n")[2]:
            found += page.recv(1 << 16)
        if not found.startswith(b"HTTP/1.1 101"):
            raise SystemExit(f"no feed: {found!r}")
        firsts.append(time.perf_counter() - began)
        chosen.register(page, selectors.EVENT_READ)
    part = told.with_suffix(".part")
    part.write_text(json.dumps(firsts))
    part.rename(told)
    waste = bytearray(1 << 20)
    # Each page every five seconds at most, all of them four times a second at most.
    rest = max(5.0, count / 4) / count
    again = time.monotonic() + rest
    while True:
        if time.monotonic() >= again:
            again += rest
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/policy") as answer:
                answer.read()
        for key, _ in chosen.select(max(0.0, again - time.monotonic())):
            page = key.fileobj
            assert isinstance(page, socket.socket)
            if not page.recv_into(waste, 0, socket.MSG_TRUNC):
                raise SystemExit("a feed was closed")


def status(port: int) -> dict[str, dict[str, float]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status") as answer:
        return dict(json.loads(answer.read()))


def exchanges(options: argparse.Namespace, directory: Path) -> bool:
    rates: dict[str, list[float]] = {"without": [], "with": []}
    times: dict[str, list[float]] = {"without": [], "with": []}
    firsts: list[float] = []
    ratios = []
    with (
        parent(directory, "exchanges") as (process, port),
        connected(port, options.children or 64, random_vector(_SIZE), manners=True) as connections,
    ):
        run_window(connections, process.pid, 1.0)
        for turn in range(options.windows):
            order = ["without", "with"] if turn % 2 else ["with", "without"]
            found = {}
            for name in order:
                with contextlib.ExitStack() as stack:
                    if name == "with":
                        told = stack.enter_context(pages(port, options.pages, directory))
                        firsts += json.loads(told.read_text())
                    run_window(connections, process.pid, 0.3)
                    window = run_window(connections, process.pid, options.seconds)
                found[name] = window.rate
                rates[name].append(window.rate)
                times[name].append(window.server_us)
            ratios.append(found["with"] / found["without"])
    ratio = statistics.median(ratios)
    print(
        f"{len(connections)} children, {options.pages} pages: exchanges a second "
        f"{statistics.median(rates['without']):,.0f} without, "
        f"{statistics.median(rates['with']):,.0f} with; ratio {ratio:.3f} "
        f"[{min(ratios):.3f}–{max(ratios):.3f}] (claim: at least 0.95)"
    )
    before, after = (statistics.median(times[name]) for name in ("without", "with"))
    print(f"the Parent's CPU time an exchange: {before:.1f} µs without, {after:.1f} µs with")
    first = statistics.median(firsts)
    print(f"first message after {first:.3f} s [at most {max(firsts):.3f} s] (claim: 0.5 s)")
    return ratio >= 0.95 and first <= 0.5


def many(options: argparse.Namespace, directory: Path) -> bool:
    children = options.children or 1000
    shares = {}
    with (
        parent(directory, "many") as (process, port),
        connected(port, children, random_vector(_SIZE), manners=True) as connections,
    ):
        for count in (0, 1, options.pages):
            with contextlib.ExitStack() as stack:
                if count:
                    stack.enter_context(pages(port, count, directory))
                _paced(connections, process, 3)
                before = status(port)["page"]["seconds"]
                began = time.monotonic()
                _paced(connections, process, options.many_seconds)
                # What is asked here itself counts from the next question on.
                spent = status(port)["page"]["seconds"] - before
                shares[count] = spent / (time.monotonic() - began)
    for count, share in shares.items():
        print(f"{children:,} children, {count} pages: the page takes {share:.2%} of a core")
    print("(claim: at most 1 %)")
    return max(shares.values()) <= 0.01


def _paced(connections: list[Connection], process: subprocess.Popen[bytes], seconds: float) -> None:
    """Each child exchanges once a second, spread over the second."""
    end = time.monotonic() + seconds
    lot = max(1, len(connections) // 20)
    lots = [connections[start : start + lot] for start in range(0, len(connections), lot)]
    while time.monotonic() < end:
        for some in lots:
            due = time.monotonic() + 1.0 / len(lots)
            run_window(some, process.pid, 0.0)
            time.sleep(max(0.0, due - time.monotonic()))


def memory(options: argparse.Namespace, directory: Path) -> bool:
    with (
        parent(directory, "memory") as (process, port),
        connected(port, options.children or 64, random_vector(_SIZE), manners=True) as connections,
        pages(port, 1, directory),
    ):
        first = options.exchanges // 10
        held = {}
        for goal in (first, first + options.exchanges):
            while (done := sum(each.pushes for each in connections)) < goal:
                run_window(connections, process.pid, 5.0)
            held[done] = resident(process.pid)
            rows = len(status(port)["learning"]["curve"]["rows"])  # type: ignore[index, arg-type]
    (before, low), (after, high) = held.items()
    print(
        f"{low:.1f} MB after {before:,} exchanges, {high:.1f} MB after {after:,}; "
        f"{rows} rows of the curve (claim: at most 10 MB more)"
    )
    return high - low <= 10.0


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("what", nargs="*", default=["exchanges", "many", "memory"])
    parser.add_argument("--children", type=int)
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--windows", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--many-seconds", type=float, default=30.0)
    parser.add_argument("--exchanges", type=int, default=1_000_000)
    options = parser.parse_args()
    if options.what[0] == "pages":
        look(int(options.what[1]), int(options.what[2]), Path(options.what[3]))
        return
    os.sched_setaffinity(0, {LOAD_CORE})
    measured = {"exchanges": exchanges, "many": many, "memory": memory}
    held = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.what:
            held.append(measured[name](options, Path(folder)))
            sys.stdout.flush()
    raise SystemExit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
