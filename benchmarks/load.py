"""A parent with thousands of children, for minutes.

Claim: 1,000 children that push 3,000 numbers twice a second for ten minutes, and 100 that push
250,000, are all answered, none is dropped, and the parent's memory stays within ±2 %.

Method: the parent, and beside it a bare websockets server that sends as many bytes back, are
processes on core 0, one turn after the other. Processes on core 1 play the children as
`exchange.py` does, each on its own websocket. All come within a second; `join_ms` are from the
moment of each to the reply to its join: median, 99 % and most (the bare server knows no join). Then
their pushes are spread over the time. A child whose last push has no reply yet lets its moment pass
(`passed`). `reply_ms`, from a push to the last byte of its reply: 50, 99 and 99.9 %, and most.
`megabytes`: the server's resident memory after a tenth of the turn, least, most, and last. `cpu`
and `busy`: cores that server and children took. `turn_ms`: the longest that a process of children
was busy with what had come, in which it read no reply. `said`: the parent's warnings.

    python benchmarks/load.py --children 1000                    ten minutes a side
    python benchmarks/load.py --children 100 --numbers 250000
    python benchmarks/load.py --children 2000 5000 --seconds 20 --turns 3
    python benchmarks/load.py --turns 1 --trace build/stalls.jsonl       the parent's stalls, too
    python benchmarks/stalls.py build/stalls.jsonl                       and what lies over them
    python benchmarks/load.py --report docs/results/load.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import stalls
from exchange import LOAD_CORE, SERVER_CORE, Connection, random_vector, start_bare
from processes import command, cpu_seconds, free_port, keep, parser_of, resident, start_parent, stop

_SETTINGS = """[parent]
alpha = 0.5
max_children = 10000
max_per_address = 10000
[child]
exchange = "free"
"""

#: Seconds for the last replies.
_LAST_SECONDS = 10.0

Row = dict[str, Any]


def stand_ready() -> None:
    """Returns when all processes are ready."""
    print("ready", flush=True)
    sys.stdin.readline()


def come(options: argparse.Namespace) -> tuple[list[Connection], list[float]]:
    """The children of this process within a second, and the milliseconds that each took."""
    count, vector, began = options.children[0], random_vector(options.numbers), time.perf_counter()

    def one(number: int) -> tuple[Connection, float]:
        moment = began + number / count
        time.sleep(max(0.0, moment - time.perf_counter()))
        name = f"load-{os.getpid()}-{number}" if options.play == "parent" else None
        return Connection(options.port, vector, name), 1e3 * (time.perf_counter() - moment)

    with ThreadPoolExecutor(256) as threads:
        found = list(threads.map(one, range(count)))
    return [child for child, _ in found], [taken for _, taken in found]


def play(options: argparse.Namespace) -> Row:
    """The children of this process: they come, and push for the time of a turn."""
    stand_ready()
    children, joins = come(options)
    stand_ready()
    poll = select.epoll()
    by_fd = {child.socket.fileno(): number for number, child in enumerate(children)}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    both = select.EPOLLIN | select.EPOLLOUT
    began, cpu, period = time.perf_counter(), time.process_time(), 1.0 / options.rate
    end = began + options.seconds
    due = [(began + period * number / len(children), number) for number in range(len(children))]
    waiting, gone, times, passed = set[int](), set[int](), list[float](), 0
    longest, woken = 0.0, began
    while (now := time.perf_counter()) < end + _LAST_SECONDS and (due or waiting):
        longest = max(longest, now - woken)
        while due and due[0][0] <= now:
            moment, number = heapq.heappop(due)
            if number in gone or moment >= end:
                continue
            heapq.heappush(due, (moment + period, number))
            if number in waiting:
                passed += 1
                continue
            waiting.add(number)
            with contextlib.suppress(OSError):  # `is_answered` finds that it is closed
                if not children[number].push(time.perf_counter_ns()):
                    poll.modify(children[number].socket.fileno(), both)
        found = poll.poll(max(0.0, due[0][0] - time.perf_counter()) if due else 0.1)
        woken = time.perf_counter()
        for fd, event in found:
            child = children[number := by_fd[fd]]
            try:
                if event & select.EPOLLOUT and child.flush():
                    poll.modify(fd, select.EPOLLIN)
                if event & ~select.EPOLLOUT and child.is_answered():
                    waiting.remove(number)
                    times.append(1e-6 * (time.perf_counter_ns() - child.began))
            except (OSError, SystemExit):  # the server has closed it
                poll.unregister(fd)
                gone.add(number)
                waiting.discard(number)
    np.savez(options.times, joins=joins, times=times, longest=1e3 * longest)
    busy = (time.process_time() - cpu) / (time.perf_counter() - began)
    figures = len(times), passed, len(waiting), len(gone), busy
    return dict(zip(("answered", "passed", "unanswered", "dropped", "busy"), figures, strict=True))


def turn(server: str, pid: int, port: int, children: int, options: argparse.Namespace) -> Row:
    """One turn of one server with all children."""
    given = {"play": server, "port": port, "children": children // options.processes}
    given |= {name: getattr(options, name) for name in ("numbers", "seconds", "rate")}
    own = [sys.executable, __file__, *(f"--{name}={value}" for name, value in given.items())]
    files = [options.folder / f"{number}.npz" for number in range(options.processes)]
    pipe = subprocess.PIPE
    players = [subprocess.Popen([*own, f"--times={f}"], stdin=pipe, stdout=pipe) for f in files]
    for _ in range(2):
        for player in players:
            assert player.stdout is not None
            if player.stdout.readline() != b"ready\n":
                raise SystemExit(f"the children of {server} did not come in")
        cpu, began, samples = cpu_seconds(pid), time.monotonic(), list[float]()
        for player in players:
            assert player.stdin is not None
            player.stdin.write(b"\n")
            player.stdin.flush()
    while any(player.poll() is None for player in players):
        samples.append(round(resident(pid), 1))
        time.sleep(min(1.0, options.seconds / 20.0))
    seconds = time.monotonic() - began
    found = [json.loads(player.communicate()[0]) for player in players]
    loaded = [np.load(file) for file in files]
    joins, times = (np.concatenate([one[name] for one in loaded]) for name in ("joins", "times"))
    steady = samples[len(samples) // 10 :]
    return {
        "server": server,
        "children": children,
        "numbers": options.numbers,
        "rate": options.rate,
        "seconds": round(seconds, 1),
        **{name: round(sum(row[name] for row in found), 3) for name in found[0]},
        "join_ms": np.percentile(joins, (50, 99, 100)).round(1).tolist(),
        "reply_ms": np.percentile(times, (50, 99, 99.9, 100)).round(2).tolist(),
        "turn_ms": round(max(float(one["longest"]) for one in loaded), 1),
        "cpu": round((cpu_seconds(pid) - cpu) / seconds, 3),
        "megabytes": [steady[0], min(steady), max(steady), steady[-1]],
    }


def said(log: Path) -> Counter[str]:
    """The warnings in a log."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    bad = [line for line in lines if line["level"] in ("warning", "error")]
    return Counter(f"{line['event']} {line.get('code', '')}".strip() for line in bad)


def measure(children: int, options: argparse.Namespace) -> bool:
    """The turns of so many children; whether the parent has answered all of them."""
    experiment, holds = options.folder / "load.toml", True
    experiment.write_text(_SETTINGS)
    out, ports = options.folder / f"run-{children}", (free_port(), free_port())
    bare = start_bare(ports[1], options.numbers, options.folder / "bare.log")
    program = [stalls.__file__, str(options.trace)] if options.trace else ["-m", "genkidama.parent"]
    parent = start_parent(experiment, out, ports[0], SERVER_CORE, program)
    try:
        for _ in range(options.turns):
            for server, process, port in zip(
                ("parent", "bare"), (parent, bare), ports, strict=True
            ):
                row = turn(server, process.pid, port, children, options)
                row |= {"said": said(out.with_suffix(".log"))} if server == "parent" else {}
                print(json.dumps(row), flush=True)
                keep(options.results, row)
                holds &= server == "bare" or not (row["dropped"] or row["unanswered"])
    finally:
        stop(parent)
        stop(bare)
    return holds


def report(rows: Path) -> None:
    """Prints rows as a table for people."""
    names = ["children", "numbers", "rate", "seconds", "server", "answered", "passed", "dropped"]
    lists = ["join_ms", "reply_ms", "megabytes"]
    print("| " + " | ".join([*names, *lists, "cpu", "said |"]))
    print("|---" * (len(names) + len(lists) + 2) + "|")
    for row in map(json.loads, rows.read_text().splitlines()):
        cells = [f"{row[name]}" for name in names]
        cells += [", ".join(f"{figure:g}" for figure in row[name]) for name in lists]
        warned = ", ".join(f"{count} {what}" for what, count in row.get("said", {}).items())
        print("| " + " | ".join([*cells, f"{row['cpu']:.2f}", f"{warned} |"]))


@command
def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--children", type=int, nargs="+", default=[1000])
    parser.add_argument("--numbers", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=2.0, help="pushes of a child in a second")
    parser.add_argument("--seconds", type=float, default=600.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=1, help="of each server, in alternation")
    parser.add_argument("--processes", type=int, default=2, help="that play the children")
    parser.add_argument("--results", type=Path, help="file to which rows are appended")
    parser.add_argument("--trace", type=Path, help="file for the parent's stalls (see stalls.py)")
    parser.add_argument("--report", type=Path, help="only print such a file as a table")
    for name, kind in {"--play": str, "--port": int, "--times": str}.items():  # of such a process
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report:
        report(options.report)
        return 0
    if options.play:
        os.sched_setaffinity(0, {LOAD_CORE})
        print(json.dumps(play(options)), flush=True)
        return 0
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        options.folder = Path(folder)
        held = [measure(children, options) for children in options.children]
        return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
