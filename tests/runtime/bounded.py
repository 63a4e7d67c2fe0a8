"""Programs that may start processes, but not without end."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.helpers import ROOT

#: A run of one child needs ten processes at most; one too many in each of them is far more.
BOUND = 16


def run_bounded(command: list[str], folder: Path) -> tuple[int, str]:
    """A program's exit code and output. It is killed with all that it has started beyond a bound.

    Raises:
        AssertionError: it had more than `BOUND` processes at once.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "output").open("w+") as output:
        process = psutil.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        started: set[psutil.Process] = set()
        try:
            deadline = time.monotonic() + 120
            while process.poll() is None and time.monotonic() < deadline:
                started.update(process.children(recursive=True))
                count = sum(other.is_running() for other in started)
                assert count <= BOUND, f"{count} processes"
                time.sleep(0.05)
        finally:
            for other in (process, *started):
                with suppress(psutil.NoSuchProcess):
                    other.kill()
            process.wait()
        output.seek(0)
        return process.returncode, output.read()
