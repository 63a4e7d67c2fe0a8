"""One process: started, started again, ended."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runtime import process as module
from genkidama.runtime import process as process_module
from genkidama.runtime.machine import loop_factory
from genkidama.runtime.process import Process, WorkerProcess, end_all, failure, without_timeout
from tests.helpers import PATIENCE, eventually, until

Run = Callable[..., Process]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Starts a module of the test's own."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found: list[Process] = []

    def start(code: str, **options: dict[str, str]) -> Process:
        (tmp_path / "part.py").write_text(f"import os, signal, sys, time\n{code}\n")
        found.append(Process("part", ["part"], tmp_path / "part.log", **options))  # type: ignore[arg-type]
        return found[-1]

    yield start
    for process in found:
        process.end(0.0)
        process.close()


def said(process: Process) -> str:
    return process.log.read_text()


def test_what_it_is_told_and_what_it_says(run: Run) -> None:
    process = run(
        "print(sys.argv[1:], os.environ['WORD'], flush=True)", environment={"WORD": "hello"}
    )
    process.wait(30.0)
    assert process.code == 0
    assert said(process) == "['--until-eof'] hello\n"


def test_its_error_is_the_last_that_it_has_said_itself(run: Run, tmp_path: Path) -> None:
    (tmp_path / "part.log").write_text("error: of yesterday\n")
    process = run("sys.exit(3)")
    process.wait(30.0)
    assert process.error() == f"part ended with exit code 3; see {process.log}"
    process = run("print('error: first'); print('error: last', flush=True); print(1); sys.exit(2)")
    process.wait(30.0)
    assert (process.code, process.error()) == (2, "last")


@pytest.mark.parametrize(
    ("code", "kind"), [(1, EnvironmentFailure), (2, ConfigurationError), (-9, EnvironmentFailure)]
)
def test_an_exit_code_says_whose_fault_it_is(code: int, kind: type[Exception]) -> None:
    found = failure(code, "the cable is loose")
    assert type(found) is kind and str(found) == "the cable is loose"


def test_one_that_heeds_sigterm_ends_in_order_and_another_is_killed(run: Run) -> None:
    process = run("print('up', flush=True); time.sleep(60)")
    until(lambda: said(process))
    process.end(10.0)
    assert process.code == -15
    process = run(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\ntime.sleep(60)"
    )
    until(lambda: "deaf" in said(process))
    began = time.monotonic()
    process.end(0.2)
    assert process.code == -9 and time.monotonic() - began < 5.0
    process.end(0.0)  # it may be said twice


def test_its_input_closes_with_its_starter(run: Run) -> None:
    process = run("sys.stdin.read()")
    process.close()
    process.wait(30.0)
    assert process.code == 0


def test_it_is_started_again_but_not_for_ever(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "MOST_LOSSES", 2)
    process = run("print('up', flush=True); time.sleep(60)")
    for count in (1, 2, 3):
        until(lambda goal=count: said(process).count("up") == goal)
        process.kill()
        process.wait()
        if count < 3:
            process.restart()
    with pytest.raises(EnvironmentFailure, match=r"part was killed 3 times within a minute; see "):
        process.restart()


def test_it_is_started_again_where_its_log_was_deleted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = tmp_path / "up"
    process = run(f"open({str(up)!r}, 'x'); time.sleep(60)")
    for _ in range(2):
        until(up.exists)
        up.unlink()
        process.log.unlink(missing_ok=True)
        process.kill()
        process.wait()
        process.restart()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    process.kill()
    process.wait()
    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(EnvironmentFailure, match="part: cannot be started again: Resource temp"):
        process.restart()


class Owner:
    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.losses: list[str] = []

    def heard(self, worker: WorkerProcess, message: Any) -> None:
        self.messages.append(message)

    def lost(self, worker: WorkerProcess) -> None:
        self.losses.append(worker.reason)


def running(code: str) -> Callable[[Connection], subprocess.Popen[bytes]]:
    """Starts a program with its end of the pipe in `pipe`."""
    head = (
        "import sys, time, signal\n"
        "from multiprocessing.connection import Connection\n"
        "pipe = Connection(int(sys.argv[1]))\n"
    )
    return lambda pipe: subprocess.Popen(
        [sys.executable, "-c", head + code, str(pipe.fileno())], pass_fds=[pipe.fileno()]
    )


async def test_it_is_described_heard_and_lost() -> None:
    owner = Owner()
    worker = WorkerProcess(owner)
    code = "pipe.send(('ok', pipe.recv()[0]['name'], 7)); pipe.recv(); pipe.send('hi'); sys.exit(3)"
    async with asyncio.timeout(PATIENCE):
        assert await worker.describe(Experiment(name="x"), running(code)) == ("x", 7)
        worker.listen()
        worker.send("work")
        await eventually(lambda: owner.losses)
    assert (owner.messages, owner.losses) == (["hi"], ["exit code 3"])
    worker.send("nobody is there")
    await worker.end()


def test_long_messages_are_heard_in_the_fast_event_loop() -> None:
    """Which makes what it watches non-blocking; a long message comes in two parts."""

    async def hear() -> None:
        owner = Owner()
        worker = WorkerProcess(owner)
        parts = "os.write(pipe.fileno(), (20_000).to_bytes(4)); time.sleep(0.05); "
        parts += "os.write(pipe.fileno(), pickle.dumps('x' * 19_982)); pipe.recv()"
        worker.start(running(f"import os, pickle; {parts}"))
        worker.listen()
        async with asyncio.timeout(PATIENCE):
            await eventually(lambda: owner.losses or owner.messages)
        assert owner.messages == ["x" * 19_982]
        await worker.end()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(hear())


@pytest.fixture
def _hurried() -> Iterator[None]:
    """Sockets have a default timeout, as a user's module may have it."""
    socket.setdefaulttimeout(5.0)
    yield
    socket.setdefaulttimeout(None)


@pytest.mark.usefixtures("_hurried")
def test_a_pipe_waits_whatever_the_default_timeout_of_sockets_is() -> None:
    ours, theirs = Pipe()
    worker = WorkerProcess(Owner())
    worker.pipe.close()
    worker.pipe, worker._process = ours, SimpleNamespace(pid=os.getpid())  # type: ignore[assignment]
    worker.hand_over("layout", 2)
    assert theirs.recv() == "layout"
    with without_timeout():
        os.close(reduction.recv_handle(theirs))
    assert os.get_blocking(ours.fileno()) and os.get_blocking(theirs.fileno())
    assert socket.getdefaulttimeout() == 5.0
    ours.close()
    theirs.close()


async def test_what_it_cannot_build_is_its_own_sentence() -> None:
    worker = WorkerProcess(Owner())
    with pytest.raises(ConfigurationError, match=r"^no network$"):
        await worker.describe(
            Experiment(), running("pipe.recv(); pipe.send(('error', 'no network'))")
        )
    await worker.end()
    assert worker.wait(0) == 0


async def test_one_that_hangs_is_killed_and_the_reason_says_so() -> None:
    owner = Owner()
    worker = WorkerProcess(owner)
    worker.start(running("time.sleep(60)"))
    worker.listen()
    worker.hung(12.3)
    await eventually(lambda: owner.losses)
    assert owner.losses == [
        "it hung: it did nothing for 12 s; if it needs so long, raise child.hang_seconds"
    ]


async def test_one_that_is_given_up_while_it_starts_does_not_live() -> None:
    worker = WorkerProcess(Owner())

    def launch(pipe: Connection) -> subprocess.Popen[bytes]:
        time.sleep(0.2)
        return running("time.sleep(60)")(pipe)

    describing = asyncio.ensure_future(worker.describe(Experiment(), launch))
    await asyncio.sleep(0.05)
    describing.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wait_for(describing, PATIENCE)
    assert await asyncio.to_thread(worker.wait, PATIENCE) == -9
    await worker.end()


def test_what_cannot_be_started_leaves_no_pipe_open() -> None:
    worker = WorkerProcess(Owner())
    ends: list[Connection] = []

    def launch(pipe: Connection) -> subprocess.Popen[bytes]:
        ends.append(pipe)
        raise EOFError

    with pytest.raises(EOFError):
        worker.start(launch)
    assert worker.pipe.closed
    assert ends[0].closed


@pytest.mark.parametrize("deaf", [False, True])
async def test_it_ends_by_itself_or_is_killed_after_its_grace(
    deaf: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.2 if deaf else PATIENCE)
    worker = WorkerProcess(owner := Owner())
    worker.start(running("time.sleep(60)" if deaf else "pipe.poll(None)"))
    worker.listen()
    await worker.end()
    assert worker.wait(0) == (-9 if deaf else 0)
    assert not owner.losses


async def test_all_end_by_one_deadline() -> None:
    workers = [WorkerProcess(Owner(), index) for index in range(3)]
    for worker in workers:
        worker.start(running("time.sleep(60)" if worker.index else "pipe.send(1); pipe.poll(None)"))
    workers[0].pipe.recv()  # it has begun
    pids = [worker.pid for worker in workers]
    for worker in workers:
        worker.hang_up()
    began = time.monotonic()
    await asyncio.to_thread(end_all, workers, began + 2.0)
    assert [worker.wait(0) for worker in workers] == [0, -9, -9]
    assert time.monotonic() - began < 10.0
    assert not any(psutil.pid_exists(pid) for pid in pids)
