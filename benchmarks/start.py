"""How soon a run's first environment step comes, and what CPU time it takes until then.

Claim: from `genkidama train lunarlander` to the first step of an environment there are at most
0.9 s and 1.2 CPU-seconds of all processes.

Method: checkouts take turns. LunarLander is wrapped so that its first step writes to a pipe. When
that comes, the CPU time of the command and all its descendants is added up from `/proc`, that of
ended ones included.

    python -m benchmarks.start [CHECKOUT ...] [--runs 10]
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.processes import ROOT, family_seconds, keep, parser_of

EXAMPLE = "examples/lunarlander/lunarlander.toml"

PROBE = """
import contextlib, gymnasium, os
class FirstStep(gymnasium.Wrapper):
    def step(self, action):
        self.step = self.env.step
        with contextlib.suppress(OSError):  # another was first
            os.write(os.open({pipe!r}, os.O_WRONLY | os.O_NONBLOCK), b"1")
        return self.env.step(action)
"""


def measure(checkout: Path) -> tuple[float, float]:
    """Seconds and CPU-seconds to the first step in a checkout with its own `.venv`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pipe = folder / "first-step"
        os.mkfifo(pipe)
        (folder / "probe.py").write_text(PROBE.format(pipe=str(pipe)))
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
            stepped = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            ended = os.pidfd_open(process.pid)
            try:
                if stepped not in select.select([stepped, ended], [], [], 60.0)[0]:
                    sys.exit(f"{checkout}: no step:\n{(folder / 'log').read_text()[-2000:]}")
                return time.monotonic() - began, family_seconds(process.pid)
            finally:
                os.close(stepped)
                os.close(ended)
                process.send_signal(signal.SIGINT)
                process.wait(30.0)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--results", type=Path, help="file to which rows are appended")
    options = parser.parse_args()
    found: dict[Path, list[tuple[float, float]]] = {path: [] for path in options.checkouts}
    for _ in range(options.runs):
        for path, rows in found.items():
            rows.append(measure(path.resolve()))
            seconds, cpu = rows[-1]
            keep(options.results, {"seconds": seconds, "cpu": cpu}, path.resolve())
    for path, rows in found.items():
        for name, values in zip(("s", "CPU-s"), zip(*rows, strict=True), strict=True):
            print(f"{path}: {median(values):.2f} {name} ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
