"""What an hour of kills, cuts and resumes leaves behind in a parent.

Method: the parent is a process, and four machines are network namespaces behind links of 100
Mbit/s. On each are fifteen light children, which are the real connection and the real session with
weights that nobody trains, and one real child that learns CartPole. Each minute two machines are
cut off for 2 to 40 s. A light child ends without a goodbye after some five minutes, and comes again
under its name with another session, or loses its connection and resumes. Every few minutes all
processes of a machine are killed and started again. In the end everybody is killed.

A row is a sample of the parent: `megabytes` resident, `sockets`, `files` that it has open,
`threads`, `cpu` seconds, `folder` files of the run and their megabytes, and the counts of its
history so far. All children together get 0.2 of a core.

    python -m studies.soak run --minutes 60          as root
    python -m studies.soak report                    table, and docs/results/soak.svg
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks import store
from benchmarks.groups import Group
from benchmarks.processes import command, cpu_seconds, free_port, start, stop
from genkidama.child.backend import Work
from genkidama.child.parent_connection import ParentConnection
from genkidama.protocol.session import BlendReply
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.runs import checkpoint as checkpoints
from genkidama.runs.history import HistoryTail
from genkidama.runs.run import HISTORY, Run
from studies.scaling.links import Network
from studies.scaling.machines import ROOT, sweep
from studies.scaling.matrix import LINKS

_MACHINES, _LIGHT = 4, 15

#: Of a core, for all children together.
_SHARE = 0.2

#: Seconds between a light child's pushes and between its misfortunes, in the mean.
_PUSH_SECONDS, _MISFORTUNE_SECONDS = 5.0, 150.0

#: Seconds between samples, between two cuts, and between two kills of a machine.
_SAMPLE_SECONDS, _CUT_SECONDS, _KILL_SECONDS = 15.0, 60.0, 240.0

_EXPERIMENT = """
environment.id = "CartPole-v1"
parent.rule = "blend"
parent.checkpoint_seconds = 10
parent.open = true
child.exchange = "free"
child.exchange_seconds = 5
child.cores = 1
stop.steps = 1_000_000_000_000
"""

Row = dict[str, Any]


# The light children of one machine: a process.


class Light:
    """One light child, and what happens to it."""

    def __init__(self, parent: str, name: str, signature: Signature, seed: str) -> None:
        self._parent = parent
        self._name = name
        self._signature = signature
        self._random = random.Random(seed)
        self._vector: Vector = np.zeros(signature.size, DTYPE)

    async def live(self) -> None:
        """Goes on under the same name, one session after the other."""
        while True:
            connection = ParentConnection.to(
                *(self._parent, lambda: None),  # there is nothing to stop
                name=self._name,
                role="",
                token="",
                ca_file="",
                fingerprint="",
            )
            await connection.begin()
            await connection.enter(self._signature)
            keeping = asyncio.create_task(connection.keep(self._signature))
            await self._train(connection)
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _train(self, connection: ParentConnection) -> None:
        """Returns when the child has lost its life."""
        luck = self._random
        misfortune = time.monotonic() + luck.expovariate(1.0 / _MISFORTUNE_SECONDS)
        while True:
            await asyncio.sleep(luck.uniform(0.0, 2.0 * _PUSH_SECONDS))
            if time.monotonic() > misfortune:
                if connection._connection is not None:
                    connection._connection.transport.abort()
                if luck.random() < 0.5:
                    return
                misfortune = time.monotonic() + luck.expovariate(1.0 / _MISFORTUNE_SECONDS)
            connection.gather(Work(steps=1, returns=[1.0]))
            decision = await connection.push(self._vector, None)
            if isinstance(decision, BlendReply) and decision.vector is not None:
                self._vector = decision.vector.copy()


async def play(parent: str, machine: str, out: Path) -> None:
    """The light children of a machine, for ever; their network is that of the newest checkpoint."""
    signature = checkpoints.load(Run(out).checkpoints[-1]).signature
    names = (f"light-{machine}-{number}" for number in range(_LIGHT))
    await asyncio.gather(*(Light(parent, name, signature, f"{name}").live() for name in names))


# The parent, its machines, and what happens to them.


class Soak:
    """One run: processes, misfortunes and samples."""

    def __init__(self, folder: Path, network: Network, group: Group, seed: int) -> None:
        self._network = network
        self._group = group
        self._folder = folder
        self._random = random.Random(seed)
        self._out = folder / "run"
        self._port = free_port()
        self._history = HistoryTail(self._out / HISTORY)
        self._machines: dict[int, list[subprocess.Popen[bytes]]] = {}
        self._counts: Counter[str] = Counter()
        self._steps = 0
        experiment = folder / "soak.toml"
        experiment.write_text(_EXPERIMENT)
        listen = ["--listen", f"0.0.0.0:{self._port}", "--out", str(self._out)]
        served = [sys.executable, "-m", "genkidama.parent", str(experiment), *listen]
        self.parent = start(network.at_parent(served), folder / "parent.log")

    def run(self, seconds: float, results: Path) -> None:
        """Plays, and appends a row for every sample."""
        self._start_real(0)
        self._wait(lambda: Run(self._out).checkpoints)
        self._stop_machine(0)
        self._wait(lambda: self._counts["leave"])  # its socket is open until then
        began = time.monotonic()
        store.append(results, self._sample(began, "alone"))
        for machine in range(_MACHINES):
            self._start_machine(machine)
        luck, turn = self._random, 0
        mended = 0.0
        killed, back = _KILL_SECONDS, 0.0
        down: list[int] = []
        while (now := time.monotonic() - began) < seconds and self.parent.poll() is None:
            if now >= turn * _CUT_SECONDS:
                turn += 1
                self._network.cut(luck.sample(range(_MACHINES), _MACHINES // 2))
                self._counts["cuts"] += _MACHINES // 2
                mended = now + luck.uniform(2.0, 40.0)
            elif mended and now >= mended:
                self._network.cut([])
                mended = 0.0
            if now >= killed:
                down.append(luck.randrange(_MACHINES))
                self._stop_machine(down[-1])
                self._counts["kills"] += 1
                killed, back = now + luck.uniform(0.5, 1.5) * _KILL_SECONDS, now + 10.0
            elif down and now >= back:
                self._start_machine(down.pop())
            if now >= self._counts["samples"] * _SAMPLE_SECONDS:
                self._counts["samples"] += 1
                store.append(results, self._sample(began, "load"))
            time.sleep(0.2)
        self._network.cut([])
        for machine in range(_MACHINES):
            self._stop_machine(machine)
        time.sleep(15.0)
        store.append(results, self._sample(began, "left"))

    def end(self) -> Row:
        """Ends the parent and looks at what it leaves."""
        stop(self.parent)
        self._read()
        newest = checkpoints.load(Run(self._out).checkpoints[-1]).snapshot
        same = newest.version == self._counts["version"] and newest.steps == self._steps
        return {"phase": "end", "code": self.parent.returncode, "checkpoint_is_history": same}

    def _wait(self, done: Callable[[], object]) -> None:
        while not done():
            if self.parent.poll() is not None:
                raise SystemExit((self._folder / "parent.log").read_text()[-2000:])
            time.sleep(0.5)
            self._read()

    def _start_machine(self, machine: int) -> None:
        self._start_real(machine)
        own = [sys.executable, "-m", "studies.soak", "play", "--parent", self._url(machine)]
        self._start(machine, [*own, "--machine", str(machine), "--out", str(self._out)], "light")

    def _start_real(self, machine: int) -> None:
        child = [sys.executable, "-m", "genkidama.child", "--parent", self._url(machine)]
        self._start(machine, [*child, "--name", f"real-{machine}"], "real")

    def _start(self, machine: int, arguments: list[str], kind: str) -> None:
        log = self._folder / f"{kind}-{machine}.log"
        process = start(self._network.at(machine, arguments), log)
        self._group.take(process.pid)
        self._machines.setdefault(machine, []).append(process)

    def _stop_machine(self, machine: int) -> None:
        for process in self._machines.pop(machine, []):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _url(self, machine: int) -> str:
        return f"ws://{self._network.parents_address(machine)}:{self._port}"

    def _read(self) -> None:
        for line in self._history.read():
            event = msgspec.json.decode(line)
            self._counts[event["event"]] += 1
            if event["event"] == "exchange":
                self._counts["version"], self._steps = event["version"], event["steps"]

    def _sample(self, began: float, phase: str) -> Row:
        self._read()
        place = Path(f"/proc/{self.parent.pid}")
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        opened = []
        for descriptor in (place / "fd").iterdir():
            with suppress(OSError):
                opened.append(os.readlink(descriptor))
        written = [file.stat().st_size for file in self._out.rglob("*") if file.is_file()]
        names = ("exchange", "join", "leave", "refused", "cuts", "kills")
        return {
            "phase": phase,
            "seconds": round(time.monotonic() - began, 1),
            "megabytes": round(int(status["VmRSS"].split()[0]) / 1024, 2),
            "sockets": sum(each.startswith("socket:") for each in opened),
            "files": sum(each.startswith("/") for each in opened),
            "descriptors": len(opened),
            "threads": int(status["Threads"]),
            "cpu": cpu_seconds(self.parent.pid),
            "folder": [len(written), round(sum(written) / 1e6, 2)],
            **{name: self._counts[name] for name in names},
        }


def run(minutes: float, seed: int, results: Path) -> None:
    """One soak; its rows replace those of an earlier one."""
    sweep()
    results.unlink(missing_ok=True)
    store.append(results, {"kernel": os.uname().release, "seed": seed})
    link = LINKS["ethernet"]
    with tempfile.TemporaryDirectory(prefix="soak-") as name, Network(_MACHINES, link, seed) as net:
        group = Group(f"scaling-{os.getpid()}-99", weight="usual")
        try:
            group.hold(_SHARE)
            soak = Soak(Path(name), net, group, seed)
            try:
                soak.run(60.0 * minutes, results)
            finally:
                last = soak.end()
            store.append(results, last)
            print(last)
        finally:
            group.close()


def report(results: Path) -> None:
    """Prints a row every ten minutes, and draws all."""
    rows = [row for row in store.read(results) if "seconds" in row]
    load = [row for row in rows if row["phase"] == "load"]
    names = ("megabytes", "sockets", "files", "threads", "exchange", "join", "cuts", "kills")
    print("| minute | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|")
    every = max(1, len(load) // 6)
    for row in [rows[0], *load[every // 2 :: every], rows[-1]]:
        minute = row["phase"] if row["phase"] != "load" else f"{row['seconds'] / 60.0:.0f}"
        print(f"| {minute} | " + " | ".join(f"{row[name]:,}" for name in names) + " |")
    import matplotlib
    from matplotlib.figure import Figure

    from genkidama.runs.figure_style import BLUE, STYLE

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 4.6), layout="constrained")
        for axes, name in zip(
            figure.subplots(2, 2).flat, ("megabytes", "sockets", "files", "threads"), strict=True
        ):
            minutes = [row["seconds"] / 60.0 for row in load]
            axes.plot(minutes, [row[name] for row in load], color=BLUE)
            axes.set(title=name, xlabel="minutes", ylim=(0, None))
        figure.savefig(results.with_suffix(".svg"), metadata={"Date": None})


@command
def main() -> int:
    parser = store.parser("soak", __doc__)
    parser.add_argument("what", choices=("run", "report", "play"))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=ROOT / "docs/results/soak.jsonl")
    for name in ("--parent", "--machine", "--out"):  # of `play`, which `run` starts
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    match options.what:
        case "run":
            run(options.minutes, options.seed, options.results)
            report(options.results)
        case "report":
            report(options.results)
        case "play":
            asyncio.run(play(options.parent, options.machine, Path(options.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
