"""Processes that end with their starter, whatever they do at the moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from genkidama.runtime import lifeline
from tests.helpers import ROOT, until

PARENT = """
import os, subprocess, sys, time
begin, end = "import os, time; from genkidama.runtime import lifeline", "time.sleep(60)"
code = "\\n".join([begin, sys.argv[1], end])
print(subprocess.Popen([sys.executable, "-c", code, str(os.getpid())]).pid, flush=True)
time.sleep(60)
"""


def started(code: str, argument: str) -> tuple[subprocess.Popen[str], list[str]]:
    """The program, and the first line that it says."""
    program = subprocess.Popen(
        [sys.executable, "-c", code, argument],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert program.stdout is not None
    return program, program.stdout.readline().split()


def killed(program: subprocess.Popen[str]) -> None:
    program.kill()
    program.wait()
    assert program.stdout is not None
    program.stdout.close()


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("lifeline.end_with_parent()", True),
        ("pass", False),
        ("lifeline.end_with_parent(1)", True),  # its starter was gone before
    ],
)
def test_a_process_ends_with_its_parent_if_it_wants_to(code: str, ends: bool) -> None:
    program, (number,) = started(
        PARENT, f"{code}; open(f'/tmp/genkidama-test-{{os.getpid()}}', 'w')"
    )
    mark = Path(f"/tmp/genkidama-test-{number}")
    until(lambda: mark.exists() or gone(int(number)), "its birth", 20.0)
    killed(program)
    mark.unlink(missing_ok=True)
    if ends:
        until(lambda: gone(int(number)), "its end", 10.0)
    else:
        assert not gone(int(number))
        os.kill(int(number), signal.SIGKILL)


def test_a_pipe_that_has_ended_before_ends_the_process_at_once() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    process = os.fork()
    if process == 0:
        lifeline.end_with_pipe(reader)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1
    os.close(reader)
