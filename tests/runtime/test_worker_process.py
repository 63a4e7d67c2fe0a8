"""A worker process: started, heard, killed, ended. Forked ones are in the tests of their owners."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.runtime import worker_process as module
from genkidama.runtime.worker_process import WorkerProcess, end_all
from tests.helpers import PATIENCE, eventually


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
    code = "pipe.send(('ok', pipe.recv()['name'], 7)); pipe.recv(); pipe.send('hi'); sys.exit(3)"
    async with asyncio.timeout(PATIENCE):
        assert await worker.describe(Experiment(name="x"), running(code)) == ("x", 7)
        worker.listen()
        worker.send("work")
        await eventually(lambda: owner.losses)
    assert (owner.messages, owner.losses) == (["hi"], ["exit code 3"])
    worker.send("nobody is there")
    await worker.end()


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
        worker.start(running("time.sleep(60)" if worker.index else "pipe.poll(None)"))
    pids = [worker.pid for worker in workers]
    for worker in workers:
        worker.hang_up()
    began = time.monotonic()
    await asyncio.to_thread(end_all, workers, began + 5.0)
    assert [worker.wait(0) for worker in workers] == [0, -9, -9]
    assert time.monotonic() - began < 10.0
    assert not any(psutil.pid_exists(pid) for pid in pids)
