"""Exchanges a second with a parent in one, two and four parts.

Claim: where the links are the limit, k parts carry k times the exchanges of one, within a tenth.

Method: each part is a process of `genkidama.parent`, the child one of `genkidama.child` with a
backend that is always ready and learns nothing, so the weights and the network are all that costs
anything. On the loopback nothing limits them but the machine's cores. With `--megabits` each part
is in a network namespace of its own, behind a link of that rate, and the child at the place where
all links meet. One link carries 1/k of the vector each way at an exchange, one way after the other;
`of the links` is the rate as a share of what that allows. Numbers of parts take turns. A figure is
the rate from one line of the first part's history to the last in its window; medians of windows.

    python -m studies.parts                            both, some three minutes, as root
    python -m studies.parts --megabits 0 --windows 1   the loopback alone
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import store
from benchmarks.processes import cpu_seconds, free_port, history, keep, start, stop
from genkidama.child.backend import Backend, Work
from genkidama.config.experiment import Experiment
from genkidama.protocol.vector import DTYPE, Signature, Vector
from studies.scaling.links import Network
from studies.scaling.matrix import Link

#: The module of `Ready`, as a child may import it.
READY = "studies.parts.__main__"

#: Few packets, so that the process that carries them is not the limit.
_MTU = 9000


class Ready(Backend):
    """A backend that is always ready for an exchange, and learns nothing.

    The methods that it lacks are the protocol's own, which do nothing.
    """

    def __init__(self, experiment: Experiment, cores: int, name: str) -> None:
        self.weights: Vector = np.zeros(experiment.network.options["size"], DTYPE)

    async def startup(self) -> Signature:
        return Signature.of([("weights", (len(self.weights),))])

    async def due(self) -> None:
        await asyncio.sleep(0.001)  # without a parent it would not rest

    def snapshot(self) -> Vector:
        return self.weights

    def take_work(self) -> Work:
        return Work(steps=1)

    def state(self) -> dict[str, Vector]:
        return {}


def window(parts: int, megabits: float, options: argparse.Namespace) -> tuple[float, float]:
    """Exchanges a second, and the CPU time of child, parts and links as a share of the window."""
    experiment = Experiment.from_dict(
        {
            "name": "parts",
            "network": {"options": {"size": options.numbers}},
            "parent": {"checkpoint_seconds": 3600.0, "open": True},  # links are not the loopback
            "child": {"backend": f"{READY}:Ready", "cores": 1},
        }
    )
    link = Link(megabits, options.milliseconds, 0.0) if megabits else None
    with (
        tempfile.TemporaryDirectory(prefix="parts-") as name,
        Network(parts, link, 0, mtu=_MTU) as network,
    ):
        folder = Path(name)
        (folder / "parts.toml").write_text(experiment.to_toml())
        started: list[subprocess.Popen[bytes]] = []
        try:
            addresses = []
            for number in range(parts):
                address = f"{network.address(number)}:{free_port()}"
                addresses.append(f"ws://{address}")
                command = [sys.executable, "-m", "genkidama.parent", str(folder / "parts.toml")]
                command += ["--listen", address, "--out", str(folder / "run")]
                command += ["--shard", f"{number + 1}/{parts}"]
                started.append(start(network.at(number, command), folder / f"{number}.log"))
            command = [sys.executable, "-m", "genkidama.child", "--parent", ",".join(addresses)]
            command += ["--allow", READY]
            started.append(start(network.at_parent([*command, "--name", "pi"]), folder / "c.log"))
            moments = watch(folder / "run", started, options.seconds, network)
        finally:
            for process in started:
                stop(process)
    return moments


def watch(
    run: Path, started: list[subprocess.Popen[bytes]], seconds: float, network: Network
) -> tuple[float, float]:
    """As `window`, from the third exchange on."""
    used = lambda: sum(cpu_seconds(process.pid) for process in started) + network.used()  # noqa: E731
    deadline = time.monotonic() + 60.0
    while len(history(run, "exchange")) < 3:
        if time.monotonic() > deadline or any(process.poll() is not None for process in started):
            raise SystemExit("no exchange within a minute; does the child reach all parts?")
        time.sleep(0.05)
    before = used()
    time.sleep(seconds)
    busy = (used() - before) / seconds
    moments = [line["time"] for line in history(run, "exchange")[2:]]
    return (len(moments) - 1) / (moments[-1] - moments[0]), busy


def main() -> None:
    parser = store.parser("parts", __doc__)
    parser.add_argument("--parts", type=int, nargs="+", default=[1, 2, 4], metavar="K")
    parser.add_argument("--numbers", type=int, default=4_000_000)
    parser.add_argument(
        "--megabits",
        type=float,
        nargs="+",
        default=[0.0, 100.0],
        help="of each part's link; 0 is the loopback",
    )
    parser.add_argument("--milliseconds", type=float, default=1.0, help="round trip (default 1)")
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a window (default 10)")
    parser.add_argument("--results", type=Path, help="file to which rows are appended")
    options = parser.parse_args()
    print(f"{'link':>12} {'parts':>5} {'rate':>8} {'[least–most]':>15} {'times':>6} ", end="")
    print(f"{'of the links':>12} {'cores':>6}", flush=True)
    for megabits in options.megabits:
        found: dict[int, list[tuple[float, float]]] = {count: [] for count in options.parts}
        for _ in range(options.windows):
            for count in options.parts:
                found[count].append(window(count, megabits, options))
                rate, busy = found[count][-1]
                row = {"parts": count, "megabits": megabits, "rate": rate, "cores": busy}
                keep(options.results, row)
        alone = statistics.median(rate for rate, _ in found[options.parts[0]])
        for count, figures in found.items():
            rates = [rate for rate, _ in figures]
            rate = statistics.median(rates)
            ideal = count * megabits * 1e6 / (2 * 8 * DTYPE.itemsize * options.numbers)
            share = f"{rate / ideal:.0%}" if megabits else ""
            name = f"{megabits:g} Mbit/s" if megabits else "loopback"
            busy = statistics.median(cores for _, cores in figures)
            print(
                f"{name:>12} {count:>5} {rate:>8.3f} {f'[{min(rates):.3f}–{max(rates):.3f}]':>15} "
                f"{rate / alone:>6.2f} {share:>12} {busy:>6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
