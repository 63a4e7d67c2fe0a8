"""Nurseries: what is warm where, and what they rely on in multiprocessing."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from typing import Any

import psutil
import pytest

from genkidama.child.orchestrator import CORES
from genkidama.runtime.forkserver import ForkServer
from tests.child.workers import LIGHT
from tests.helpers import PATIENCE, small, until
from tests.runtime import multiprocessing_parts

# What a new Python may change.

WAY_OUT = """

genkidama/runtime/forkserver.py runs several forkservers in one program. Python offers only one, so
that module uses parts of multiprocessing that have no documentation, and this Python has changed
the parts above. Read what Python's Lib/multiprocessing/forkserver.py, popen_forkserver.py,
spawn.py and resource_tracker.py do instead, mend genkidama/runtime/forkserver.py and
then the list in tests/runtime/multiprocessing_parts.py.
"""


def test_multiprocessing_has_all_parts_that_nurseries_rely_on() -> None:
    missing = multiprocessing_parts.missing()
    assert not missing, "\n".join(["this Python lacks:", *missing]) + WAY_OUT


@pytest.mark.parametrize("python", ["python3.11", "python3.12", "python3.13", "python3.14"])
def test_other_pythons_of_this_machine_have_them_too(python: str) -> None:
    program = shutil.which(python)
    if program is None or subprocess.run([program, "-V"], capture_output=True).returncode:
        pytest.skip(f"there is no {python} on this machine")
    script = [program, multiprocessing_parts.__file__]
    missing = subprocess.run(script, capture_output=True, text=True, check=True).stdout.strip()
    assert not missing, f"{python} lacks:\n{missing}{WAY_OUT}"


# What is warm where.


def born(nursery: ForkServer) -> tuple[int, bool, bool, dict[str, str]]:
    """What a process of this nursery finds; see `look`."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        process = nursery.start("tests.child.workers:look", (theirs,), small())
        assert ours.poll(PATIENCE)
        found: tuple[int, bool, bool, dict[str, str]] = ours.recv()
        process.join()
        process.close()
    return found


def test_a_program_may_have_two_nurseries_that_are_warm_for_different_things() -> None:
    parent, warm, torch, variables = born(CORES)
    assert (parent, warm, torch) == (CORES.pid, False, False)
    assert variables["OMP_NUM_THREADS"] == "1" and "GENKIDAMA_TEST_LIGHT" not in variables
    parent, warm, torch, light = born(LIGHT)
    assert (parent, warm, torch) == (LIGHT.pid, True, False)
    assert light["GENKIDAMA_TEST_LIGHT"] == "1"
    assert CORES.pid != LIGHT.pid and born(CORES)[0] == CORES.pid


def test_starts_leave_the_program_as_it_was_and_get_into_nobodys_way() -> None:
    def state() -> tuple[Any, ...]:
        return (
            dict(os.environ),
            sys.modules["__main__"],
            signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        )

    before, asked = state(), [CORES, LIGHT] * 8
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # the threads take turns in the middle of everything
    try:
        with ThreadPoolExecutor(len(asked)) as threads:
            assert [found[0] for found in threads.map(born, asked)] == [
                nursery.pid for nursery in asked
            ]
    finally:
        sys.setswitchinterval(interval)
    assert state() == before
    assert forkserver.connect_to_new_process == forkserver._forkserver.connect_to_new_process


def test_a_nursery_that_was_killed_is_born_again() -> None:
    first = born(LIGHT)[0]
    os.kill(first, signal.SIGKILL)
    until(
        lambda: psutil.Process(first).status() == psutil.STATUS_ZOMBIE
    )  # a start before the system has noted its end would fail
    parent, warm, *_ = born(LIGHT)
    assert parent == LIGHT.pid != first and warm
