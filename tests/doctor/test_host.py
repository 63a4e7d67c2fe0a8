"""What the doctor reads off a machine, read off this one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from genkidama.doctor.host import running_bytes
from tests.helpers import until


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process takes")
def test_a_child_that_runs_is_found_with_what_it_takes() -> None:
    before = running_bytes()
    child = subprocess.Popen(
        [sys.executable, "-m", "genkidama.child", "--parent", "ws://127.0.0.1:9"],
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: running_bytes() > before + 10_000_000, "a child of more than 10 MB")
    finally:
        child.terminate()
        child.wait()
