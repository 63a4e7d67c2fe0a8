"""How soon a run's first environment step comes, and what CPU time it takes until then.

Claim: from `genkidama train lunarlander` to the first step of an environment there are at most
0.9 s and 1.2 CPU-seconds of all processes.

Method: checkouts take turns. LunarLander is wrapped so that its first step leaves a file. When it
is there, the CPU time of the command and all its descendants is added up from `/proc`, that of
ended ones included.

    python -m benchmarks.start [CHECKOUT ...] [--runs 10]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

EXAMPLE = "examples/lunarlander/lunarlander.toml"

PROBE = """
import gymnasium, os
class FirstStep(gymnasium.Wrapper):
    def step(self, action):
        if not os.path.exists({file!r}):
            open({file!r}, "w").close()
        return self.env.step(action)
"""


def cpu_seconds(root: int) -> float:
    """CPU seconds of a process, its descendants, and their children that have ended."""
    parents, ticks = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    family, newest = set[int](), {root}
    while newest:
        family |= newest
        newest = {pid for pid, parent in parents.items() if parent in newest}
    return sum(ticks.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")


def measure(checkout: Path) -> tuple[float, float]:
    """Seconds and CPU-seconds to the first step in a checkout with its own `.venv`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stepped = folder / "stepped"
        (folder / "probe.py").write_text(PROBE.format(file=str(stepped)))
        text = (checkout / EXAMPLE).read_text()
        wrapped = text.replace(
            "[environment]", '[environment]\nwrappers = [{ name = "probe:FirstStep" }]', 1
        )
        (folder / "run.toml").write_text(wrapped)
        command = [checkout / ".venv/bin/python", "-m", "genkidama", "train", "run.toml"]
        variables = {**os.environ, "PYTHONPATH": f"{folder}:{checkout}"}
        began = time.monotonic()
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*map(str, command), "--out", "run"],
                cwd=folder,
                env=variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                while not stepped.exists():
                    if process.poll() is not None or time.monotonic() > began + 60.0:
                        sys.exit(f"{checkout}: no step:\n{(folder / 'log').read_text()[-2000:]}")
                    time.sleep(0.002)
                seconds = time.monotonic() - began
                return seconds, cpu_seconds(process.pid)
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(30.0)


def main() -> None:
    here = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[here])
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    found: dict[Path, list[tuple[float, float]]] = {path: [] for path in options.checkouts}
    for _ in range(options.runs):
        for path, rows in found.items():
            rows.append(measure(path.resolve()))
    for path, rows in found.items():
        for name, values in zip(("s", "CPU-s"), zip(*rows, strict=True), strict=True):
            print(f"{path}: {median(values):.2f} {name} ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
