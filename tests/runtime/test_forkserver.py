"""Forkservers: what is warm where, and how a forked process begins and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import psutil
import pytest

from genkidama.child.orchestrator import CORES
from genkidama.config.decoding import name_of_script
from genkidama.runtime import forkserver
from genkidama.runtime.forkserver import ForkServer, Server, begin
from tests.child.workers import LIGHT, light
from tests.helpers import PATIENCE, ROOT, gone, python, small, until
from tests.runtime.hanging import FULL, HANGING


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One for several programs, with a log."""
    found = begin(tmp_path / "forkserver.log")
    yield found
    found.close()


@pytest.fixture
def child(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    """That of a child that was forked from it."""
    shared = Server(server._control.dup(), pid=server.pid)
    monkeypatch.setattr(forkserver, "_shared", shared)
    yield light()
    shared.close()


def born(starter: ForkServer) -> tuple[int, bool, bool, dict[str, str]]:
    """What a new process finds; see `look`."""
    ours, theirs = Pipe()
    with ours:
        with theirs:
            process = starter.start("tests.child.workers:look", (theirs,), small())
        assert ours.poll(PATIENCE)
        found: tuple[int, bool, bool, dict[str, str]] = ours.recv()
        assert process.wait(PATIENCE) == 0
    return found


# What is warm where.


def test_a_program_may_have_two_that_are_warm_for_different_things() -> None:
    CORES.close()  # another test's, in this process, may have imported torch
    parent, warm, torch, variables = born(CORES)
    assert (parent, warm, torch) == (CORES.pid, False, False)
    assert (variables["OMP_NUM_THREADS"], variables["CUDA_VISIBLE_DEVICES"]) == ("1", "")
    parent, warm, torch, variables = born(LIGHT)
    assert (parent, warm, torch) == (LIGHT.pid, True, False)
    assert variables["GENKIDAMA_TEST_LIGHT"] == "1"
    assert variables.get("CUDA_VISIBLE_DEVICES") == os.environ.get("CUDA_VISIBLE_DEVICES")
    assert CORES.pid != LIGHT.pid and born(CORES)[0] == CORES.pid


def test_starts_leave_the_program_as_it_was_and_get_into_nobodys_way() -> None:
    def state() -> tuple[Any, ...]:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        return dict(os.environ), sys.modules["__main__"], name_of_script(), mask

    before, asked, seen = state(), [CORES, LIGHT] * 8, set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.add((state()[2], frozenset(os.environ)))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # the threads take turns in the middle of everything
    looking = threading.Thread(target=look)
    looking.start()
    try:
        with ThreadPoolExecutor(len(asked)) as threads:
            assert [found[0] for found in threads.map(born, asked)] == [
                starter.pid for starter in asked
            ]
    finally:
        over.set()
        looking.join()
        sys.setswitchinterval(interval)
    assert state() == before
    assert seen == {(before[2], frozenset(before[0]))}


def test_one_that_was_killed_is_replaced() -> None:
    first = born(LIGHT)[0]
    os.kill(first, signal.SIGKILL)
    until(lambda: psutil.Process(first).status() == psutil.STATUS_ZOMBIE)
    parent, warm, *_ = born(LIGHT)
    assert parent == LIGHT.pid != first and warm and not psutil.pid_exists(first)


def test_a_module_that_cannot_be_warmed_up_is_no_end() -> None:
    starter = ForkServer("tests.no_such_module")
    assert born(starter)[0] == starter.pid
    starter.close()


def test_what_a_module_sets_as_it_is_imported_holds_and_its_signals_are_its_own() -> None:
    starter = ForkServer("tests.runtime.assertive", {"PYTHONPATH": str(ROOT)})
    assert starter.start("tests.runtime.assertive:check", (), small()).wait(PATIENCE) == 5
    process = starter.start("tests.runtime.assertive:rest", (), small())
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(PATIENCE) == -signal.SIGKILL
    starter.close()


def test_one_that_is_started_while_the_one_before_ends_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starter = ForkServer("tests.child.workers")
    before = starter.warm_up(small())
    end = before.close

    def end_slowly() -> None:
        monkeypatch.setattr(before, "close", end)
        end()
        starter.warm_up(small())  # as another thread does meanwhile

    monkeypatch.setattr(before, "close", end_slowly)
    starter.close()
    assert starter.pid is not None and psutil.pid_exists(starter.pid)
    starter.close()


def test_a_program_that_ends_leaves_no_socket_open() -> None:
    code = (
        "from genkidama.config.experiment import Experiment\n"
        "from genkidama.runtime.forkserver import ForkServer\n"
        "starter = ForkServer('time')\n"
        "starter.warm_up(Experiment())\n"
    )
    found = python("-W", "error", "-c", code)
    assert (found.returncode, found.stderr) == (0, "")


# Several programs.


def test_children_have_their_processes_forked_from_a_shared_one(
    child: ForkServer, server: Server
) -> None:
    assert {born(each)[:2] for each in (child, light(), child)} == {(server.pid, True)}
    assert child.running and child.pid is None


def test_where_it_was_killed_each_child_with_a_module_gets_one_of_its_own(
    child: ForkServer, server: Server
) -> None:
    guest = ForkServer()
    assert guest.running
    assert born(child)[0] == born(guest)[0] == server.pid
    server.close()
    assert born(child)[:2] == (child.pid, True)
    child.close()
    for _ in range(2):
        with pytest.raises(OSError, match="the forkserver is gone"):
            guest.start("time:sleep", (PATIENCE,), small())
    assert not guest.running


def test_a_worker_writes_where_its_requester_does_and_has_a_session(
    child: ForkServer, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for args in ((1, b"said\n"), (2, b"sighed\n")):
        assert child.start("posix:write", args, small()).wait() == 0
    assert capfd.readouterr() == ("said\n", "sighed\n")
    assert (tmp_path / "forkserver.log").read_text() == ""
    process = child.start("time:sleep", (PATIENCE,), small())
    until(lambda: os.getsid(process.pid) == process.pid)
    process.kill()
    assert process.wait() == -9


# How a process ends.


@pytest.mark.parametrize(
    ("entry", "args", "code"),
    [("sys:exit", (3,), 3), ("os:_exit", (4,), 4), ("os:abort", (), -6), ("math:sqrt", (-1,), 1)],
)
def test_the_exit_code_arrives(entry: str, args: tuple[Any, ...], code: int) -> None:
    process = LIGHT.start(entry, args, small())
    assert process.wait(PATIENCE) == process.poll() == code


def test_a_worker_that_hangs_is_killed_with_the_program_that_asked_for_it(
    child: ForkServer,
) -> None:
    """Whatever it does, and though its forkserver lives on, which is another program's."""
    ours, theirs = Pipe()
    with ours, theirs:
        process = child.start("tests.runtime.hanging:hang", (theirs,), small())
        assert ours.poll(PATIENCE)
    process._alive.close()  # as the kernel does when that program is gone
    assert process.wait(PATIENCE) == -signal.SIGKILL


def test_exit_codes_are_known_without_a_forkserver(child: ForkServer, server: Server) -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        waiting = [child.start("tests.child.workers:leave", (theirs,), small()) for _ in "ab"]
        pids = [process.pid for process in waiting]
        server.close()
        assert [process.poll() for process in waiting] == [None, None]
        ours.send_bytes(b"")
        until(lambda: any(process.poll() is not None for process in waiting))
        for pid in pids:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
    assert sorted(process.wait(PATIENCE) for process in waiting) == [-9, 5]


def test_who_waits_for_a_busy_forkserver_need_not() -> None:
    hanging = ForkServer("tests.runtime.hanging", {HANGING: "1"})
    process = hanging.start("time:sleep", (PATIENCE,), small())
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.kill()
    assert process.wait(0.0) == -9 and process.pid == 0
    hanging.close()


def test_who_asks_a_forkserver_without_room_learns_that_there_is_no_process() -> None:
    full = ForkServer("tests.runtime.hanging", {FULL: "1"})
    process = full.start("time:sleep", (PATIENCE,), small())
    assert process.wait(PATIENCE) == -signal.SIGKILL and process.pid == 0
    full.close()


PROGRAM = """
import time
from genkidama.config.experiment import Experiment
from genkidama.runtime.forkserver import ForkServer
warm, warming = (
    ForkServer("tests.runtime.hanging", {"GENKIDAMA_TEST_HANG": word})
    for word in ("", "1")
)
given = "tests.runtime.hanging:hang", (), Experiment()
process, _ = (each.start(*given) for each in (warm, warming))
print(warm.pid, process.pid, warming.pid, flush=True)
time.sleep(60)
"""


def test_all_end_with_their_program_also_while_they_warm_up() -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as program:
        assert program.stdout is not None
        numbers = [int(number) for number in program.stdout.readline().split()]
        program.kill()
    assert len(numbers) == 3
    until(lambda: gone(*numbers))


# Programs.


def test_a_program_is_as_a_new_interpreter(server: Server) -> None:
    read, write = os.pipe()
    command = ["tests.runtime.program", "--word", "x" * 3000, str(write)]
    environment = {**os.environ, "TEST_WORD": "hello"}
    with open(os.devnull) as null, os.fdopen(read) as output:
        process = server.run(command, environment, (null.fileno(), write, write), (write,))
        os.close(write)
        said = output.read().splitlines()
    assert process.wait(PATIENCE) == 7
    assert said[0] == f"{command[1:]} hello tests.runtime.program.__main__"
    assert "-m tests.runtime.program --word xxx" in said[1]
    assert said[2:] == ["signals True True", "session True", "inherited", "at exit"]


def test_a_command_with_one_thread_forks_its_own(tmp_path: Path) -> None:
    code = (
        "import os, sys, threading\n"
        "from genkidama.runtime import forkserver\n"
        "if sys.argv[1]: threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "file = open('/dev/zero')\n"
        "forkserver.prefork()\n"
        "print(forkserver._shared is not None)\n"
        "if forkserver._shared:\n"
        # A process that it forks is one of ours, which may begin no run.
        "    begin = forkserver._shared.fork('genkidama.runtime.script:begin', ('train',), {})\n"
        "    print(begin.wait())\n"
        # What an environment wants done at its end, as to remove a folder, is done.
        "    args = os.path.join, os.rmdir, os.mkdir(sys.argv[2]) or sys.argv[2]\n"
        "    ends = forkserver._shared.fork('weakref:finalize', args, {})\n"
        "    print(ends.wait(), os.path.exists(sys.argv[2]))\n"
        "    folder = f'/proc/{forkserver._shared.pid}/fd/'\n"
        "    print('/dev/zero' in map(os.readlink, [folder + n for n in os.listdir(folder)]))\n"
    )
    for threads, words in (("", ["True", "1", "0", "False", "False"]), ("1", ["False"])):
        done = python("-c", code, threads, tmp_path / "folder", OPENBLAS_NUM_THREADS="1")
        assert done.stdout.split() == words
        assert ("a process of another run" in done.stderr) == (not threads)
