"""What a child does on a machine with little memory.

Claim: with the free memory of a Raspberry Pi 3B+ (1 GB, less 250 MB for the system) a child trains
LunarLander with four cores, without swap, and the kernel kills nothing. With the free memory of a
machine of 512 MB it takes fewer cores by itself, and the same holds.

Method: the Parent runs outside. For each limit one Child runs in a control group that allows no
more memory and no swap. It has `cores = "auto"` and is told that its CPU has four cores. It trains
for a minute. The group's figures are read ten times a second:

- *taken*: the peak of anonymous pages and shared memory. Only the end of the processes, or swap,
  gives this memory back.
- *charged*: the peak of all that the kernel has charged to the group, pages of files included. It
  may reach the limit: the kernel takes such pages back when anything else needs memory. Pages that
  another program has read before are not charged to this one. To have all of them counted, give the
  Child an interpreter with libraries of its own (`--python`). The script removes them from the
  kernel's cache first.

    sudo .venv/bin/python benchmarks/low_memory.py
    sudo .venv/bin/python benchmarks/low_memory.py --limits 774 --seconds 600
    python3 -m venv /tmp/mine && /tmp/mine/bin/pip install .
    sudo .venv/bin/python benchmarks/low_memory.py --python /tmp/mine/bin/python

This needs Linux, and the right to make control groups: root, on a machine or in a container that
allows it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from groups import Group
from processes import ROOT, command, free_port, history, parser_of, start_parent, stop

from genkidama.runtime.machine import end_with_parent

EXPERIMENT = ROOT / "examples" / "lunarlander" / "lunarlander.toml"

#: MiB. A Pi 3B+ less 250 for the system; a machine of 512 less 130.
LIMITS = [1024 - 250, 512 - 130]

#: The child's command, on a machine of which it believes that it has so many cores.
CHILD = """
import sys
from genkidama.child import __main__, child
cores = int(sys.argv.pop(1))
child.available_cores = lambda: cores
sys.exit(__main__.main())
"""


@dataclass
class Result:
    """Sizes in MB (10⁶ bytes)."""

    limit: float
    cores: int
    exchanges: int
    steps_per_second: float
    taken: float
    charged: float
    swapped: float
    killed: int
    words: str


def measure(python: str, limit: int, cores: int, seconds: float, directory: Path) -> Result:
    group = Group(f"genkidama-{os.getpid()}", limit << 20, "usual")
    port, out = free_port(), directory / f"limit-{limit}"
    parent = start_parent(EXPERIMENT, out, port)
    log = directory / f"child-{limit}.log"

    def begin() -> None:
        end_with_parent()
        group.enter()

    try:
        own = f"{cores} --parent ws://127.0.0.1:{port} --cores auto"
        with log.open("wb") as output:
            child = subprocess.Popen(
                [python, "-c", CHILD, *own.split()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=begin,
            )
        try:
            taken = watch(child, group, out, seconds, log)
            charged, (_, swapped), killed = group.peak(), group.taken(), group.killed()
        finally:
            stop(child)
    finally:
        group.close()
        stop(parent)
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    training = next(line for line in lines if line["event"] == "training")
    words = next((line["event"] for line in lines if "a core needs" in line["event"]), "")
    told = history(out, "exchange")
    rate = (told[-1]["steps"] - told[0]["steps"]) / (told[-1]["time"] - told[0]["time"])
    return Result(
        limit * 1.048576,
        training["cores"],
        len(told),
        rate,
        taken / 1e6,
        charged / 1e6,
        swapped / 1e6,
        killed,
        words,
    )


def watch(
    child: subprocess.Popen[bytes], group: Group, out: Path, seconds: float, log: Path
) -> int:
    """The most memory that the group takes until the child has trained for so long."""
    taken, deadline, begun = 0, time.monotonic() + 300.0, False
    while time.monotonic() < deadline:
        if child.poll() is not None:
            killed = f", {group.killed()} processes killed for want of memory"
            raise SystemExit(
                f"the child has ended with exit code {child.returncode}{killed}:\n"
                f"{log.read_text(errors='replace')[-2000:]}"
            )
        taken = max(taken, group.taken()[0])
        if not begun and history(out, "exchange"):
            begun, deadline = True, time.monotonic() + seconds
        time.sleep(0.1)
    if not begun:
        raise SystemExit(f"the child has not begun:\n{log.read_text(errors='replace')[-2000:]}")
    return taken


def forget(python: str) -> None:
    """Removes this interpreter's libraries from the kernel's cache, unless a program uses them."""
    script = "import sysconfig; print(sysconfig.get_path('platlib'))"
    folder = subprocess.run(
        [python, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()
    os.sync()
    for path in Path(folder).rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@command
def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--limits", type=int, nargs="+", default=LIMITS, metavar="MIB", help=f"default {LIMITS}"
    )
    parser.add_argument(
        "--cores",
        type=int,
        default=4,
        metavar="N",
        help="how many cores the CPU is said to have (default 4)",
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="of training (default 60)"
    )
    parser.add_argument(
        "--python", default="", metavar="FILE", help="the child's interpreter, if not this one"
    )
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="low-memory-") as directory:
        for limit in options.limits:
            if options.python:
                forget(options.python)
            results.append(
                measure(
                    options.python or sys.executable,
                    limit,
                    options.cores,
                    options.seconds,
                    Path(directory),
                )
            )
    print(
        f"{'limit':>8} {'cores':>6} {'exchanges':>10} {'steps/s':>8} "
        f"{'taken':>8} {'charged':>8} {'swapped':>8} {'killed':>7}"
    )
    for result in results:
        print(
            f"{result.limit:>5.0f} MB {result.cores:>6} {result.exchanges:>10} "
            f"{result.steps_per_second:>8.0f} {result.taken:>5.0f} MB {result.charged:>5.0f} MB "
            f"{result.swapped:>5.0f} MB {result.killed:>7}"
        )
        if result.words:
            print(f"         {result.words}")
    return int(any(result.killed or result.swapped for result in results))


if __name__ == "__main__":
    sys.exit(main())
