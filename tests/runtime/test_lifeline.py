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

#: A program that starts something and says the numbers of its processes, then its folder.
NURSERY = """
import multiprocessing.util, sys, time
from genkidama.runtime.forkserver import ForkServer
from tests.helpers import small
nursery = ForkServer("tests.runtime.hanging", lambda _: {"GENKIDAMA_TEST_HANG": sys.argv[1]})
if sys.argv[1]:
    print(multiprocessing.util.get_temp_dir(), flush=True)
process = nursery.start("tests.runtime.hanging:hang", (), small())
print(process.pid, nursery.pid, multiprocessing.util.get_temp_dir(), flush=True)
time.sleep(60)
"""

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


def test_what_a_nursery_forked_and_the_nursery_end_with_their_program_and_leave_no_folder() -> None:
    program, (process, nursery, folder) = started(NURSERY, "")
    assert not gone(int(process)) and not gone(int(nursery)) and Path(folder).exists()
    killed(program)
    until(lambda: gone(int(process)) and gone(int(nursery)), "processes that end", 10.0)
    until(lambda: not Path(folder).exists(), "the folder's end", 10.0)


def test_where_all_of_them_are_killed_the_next_program_removes_the_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The path of a socket is short: that of a test may not be.
    tmp_path = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program, (_, nursery, folder) = started(NURSERY, "")
    assert Path(folder).parent == tmp_path
    os.kill(int(nursery), signal.SIGKILL)
    killed(program)
    assert Path(folder).exists()
    program, (_, _, another) = started(NURSERY, "")
    assert not Path(folder).exists() and Path(another).exists()
    killed(program)


@pytest.mark.slow
def test_a_nursery_that_hangs_while_it_is_born_ends_with_its_program() -> None:
    program, _ = started(NURSERY, "hang")

    def nurseries() -> list[psutil.Process]:
        children = psutil.Process(program.pid).children()
        return [each for each in children if "forkserver" in " ".join(each.cmdline())]

    (nursery,) = until(nurseries, "a nursery", 20.0)
    until(lambda: Path(f"/tmp/genkidama-test-hanging-{nursery.pid}").exists(), "its birth", 20.0)
    killed(program)
    Path(f"/tmp/genkidama-test-hanging-{nursery.pid}").unlink()
    until(lambda: gone(nursery.pid), "its end", 10.0)


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("lifeline.end_with_parent()", True),
        ("lifeline.end_with_parent(); lifeline.outlive_parent()", False),
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
