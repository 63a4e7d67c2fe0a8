"""How a benchmark's command ends."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers import ROOT

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
