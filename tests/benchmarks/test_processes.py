"""How a benchmark's command ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.helpers import ROOT, until

MAIN = """
import sys
from benchmarks.processes import command

@command
def main():
    print("a line\\n" * {lines})
    return 0

sys.exit(main())
"""


@pytest.mark.parametrize("lines", [1, 100_000], ids=["at its end", "in the middle"])
def test_it_ends_in_silence_when_nobody_reads_it_any_more(lines: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        found = subprocess.run(
            [sys.executable, "-c", MAIN.format(lines=lines)],
            cwd=ROOT,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60.0,
        )
    finally:
        os.close(writer)
    assert found.stderr == b""
    assert found.returncode != 0


SERVER = """
import sys, time
from pathlib import Path
from benchmarks.processes import start

print(start([sys.executable, "-c", "import time; time.sleep(99)"], Path(sys.argv[1])).pid)
sys.stdout.flush()
time.sleep(99)
"""


def test_killed_it_leaves_no_server(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVER, str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        server = psutil.Process(int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
    until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
