"""The parent's door on real sockets: what fits comes in, and what does not is closed at once."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import resource
import socket
import subprocess
import sys
import time
import warnings
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from genkidama.child.transport import retry_after
from genkidama.errors import ConfigurationError
from genkidama.parent import Parent, acceptor
from genkidama.parent.connections import ConnectionManager
from genkidama.protocol.messages import Weights
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.server import limits as limits_module
from tests.certificates import Authority, Signed, needs_openssl
from tests.helpers import eventually, running
from tests.parent.fake_child import FakeChild
from tests.parent.parents import events, experiment


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return not await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        return True


async def told_to_come_again(parent: Parent) -> int:
    """After how many seconds a connection that does not fit is to come again, whether or not it
    has asked for something."""
    reader, writer = await asyncio.open_connection(*parent.address)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    found = re.match(rb"HTTP/1.1 503 .*\r\nRetry-After: (\d+)\r\n", answer)
    assert found, answer
    return int(found[1])


async def test_a_crowd_is_told_different_times(tmp_path: Path) -> None:
    settings = experiment(parent={"max_per_address": 1})
    async with running(settings, tmp_path) as parent, FakeChild(parent.address) as child:
        await child.enter()
        assert len({await told_to_come_again(parent) for _ in range(24)}) > 2
        assert isinstance(await child.push(1.0), Weights)


@pytest.mark.slow
async def test_a_thousand_children_of_one_address_all_come_in(tmp_path: Path) -> None:
    """A quarter says hello when as many others have been refused. Those come again exactly when
    they are asked to, without jitter of their own."""
    settings = experiment(parent={"max_per_address": 1_000, "max_children": 1_000})
    crowded = asyncio.Event()
    waits: list[list[float]] = []

    async def come(parent: Parent, stack: AsyncExitStack, number: int) -> FakeChild:
        waits.append(mine := [])
        while True:
            try:
                child = FakeChild(parent.address, f"pi-{number}")
                await stack.enter_async_context(child)
                await crowded.wait()
                await child.enter()
                return child
            except InvalidStatus as refused:
                mine.append(retry_after(refused))
            if sum(map(bool, waits)) == 250:
                crowded.set()
            await asyncio.sleep(mine[-1])

    async with running(settings, tmp_path) as parent, AsyncExitStack() as stack:
        async with asyncio.timeout(60):
            coming = [come(parent, stack, number) for number in range(1_000)]
            children = await asyncio.gather(*coming)
        assert len(parent.server.connected) == 1_000
        replies = await asyncio.gather(*(child.push(1.0) for child in children))
        assert all(isinstance(reply, Weights) for reply in replies)
        assert parent.server.trial.version == 1_000
    assert sum(map(bool, waits)) >= 250
    assert {second for mine in waits for second in mine} == set(range(1, 9))
    assert max(map(len, waits)) <= 8


async def test_one_address_gets_so_many_connections(tmp_path: Path) -> None:
    settings = experiment(parent={"max_per_address": 2})
    async with running(settings, tmp_path) as parent:
        async with FakeChild(parent.address, "a") as a, FakeChild(parent.address, "b") as b:
            await a.enter()
            await b.enter()
            for _ in range(3):
                assert await told_to_come_again(parent)
            assert parent.server.refusals == {"full": 3}
            assert isinstance(await a.push(1.0), Weights)
        await eventually(lambda: not len(parent.connections.limits))
        async with FakeChild(parent.address, "c") as c:
            await c.enter()
    parent.stop()
    first, rest = events(parent.out, "refused")
    assert first["reason"] == "2 connections of 127.0.0.1 are open; it may come again"
    assert ("count" in first, rest["count"]) == (False, 2)


async def test_connections_that_say_nothing_leave_room_for_those_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of one address count together; what is inside already is left alone."""
    monkeypatch.setattr(limits_module, "ENTERING_OF_ONE", 3)
    monkeypatch.setattr(ConnectionManager, "open_seconds", 0.3)
    settings = experiment(parent={"max_per_address": 12})
    async with running(settings, tmp_path) as parent, AsyncExitStack() as stack:
        child = await stack.enter_async_context(FakeChild(parent.address))
        await child.enter()
        silent = [await asyncio.open_connection(*parent.address) for _ in range(3)]
        await eventually(lambda: len(parent.connections.limits) == 4)
        assert await told_to_come_again(parent)
        assert isinstance(await child.push(1.0), Weights)
        for reader, writer in silent:  # they had their time
            assert await is_closed(reader)
            writer.close()
        async with FakeChild(parent.address, "late") as late:
            await late.enter()


async def test_what_has_just_been_accepted_is_closed_with_the_acceptor(tmp_path: Path) -> None:
    """Its task has not taken its first step yet."""
    async with running(experiment(), tmp_path) as parent:
        acceptor_of_it = parent._websockets.server
        ours, theirs = socket.socketpair()
        with theirs:
            acceptor_of_it._receive(ours, ("127.0.0.1", 1))
            assert len(parent.connections.limits) == 1
            acceptor_of_it.close()
            await acceptor_of_it.wait_closed()
            assert ours.fileno() < 0 and theirs.recv(1) == b""
            assert not len(parent.connections.limits)


async def test_without_a_descriptor_the_next_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    def accept(listening: socket.socket) -> tuple[socket.socket, Any]:
        tried.append(time.monotonic())
        return accepted(listening)

    accepted = socket.socket.accept
    monkeypatch.setattr(socket.socket, "accept", accept)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with running(experiment(), tmp_path) as parent:
        with socket.socket() as child:
            lowest = os.dup(child.fileno())
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
            try:
                child.connect(parent.address)
                await eventually(lambda: len(tried) == 3)
                assert not len(parent.connections.limits)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            await eventually(lambda: len(parent.connections.limits) == 1)
    assert tried[2] - tried[0] >= 2 * acceptor._RETRY_SECONDS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "it")


@pytest.fixture(scope="module")
def signed(authority: Authority) -> Signed:
    return authority.sign("IP:127.0.0.1", "DNS:localhost")


@needs_openssl
async def test_a_tls_handshake_counts_from_its_first_byte_on_and_no_longer_than_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signed: Signed
) -> None:
    monkeypatch.setattr(ConnectionManager, "open_seconds", 0.3)
    settings = experiment(parent=signed.settings())
    async with running(settings, tmp_path) as parent:
        counted = parent.connections.limits
        silent = await asyncio.open_connection(*parent.address)
        wrong = await asyncio.open_connection(*parent.address)
        await eventually(lambda: len(counted) == 2)
        wrong[1].write(b"GET / HTTP/1.1\r\n\r\n")
        await eventually(lambda: len(counted) == 1)
        assert await is_closed(silent[0])
        await eventually(lambda: not len(counted))
        for _, writer in (silent, wrong):
            writer.close()


@needs_openssl
async def test_a_parent_that_ends_waits_for_no_tls_handshake(
    tmp_path: Path, signed: Signed
) -> None:
    loop = asyncio.get_running_loop()
    async with running(experiment(parent=signed.settings()), tmp_path) as parent:
        _, writer = await asyncio.open_connection(*parent.address)
        await eventually(lambda: len(parent.connections.limits) == 1)
        begun = loop.time()
    assert loop.time() - begun < 1.0
    writer.close()


@needs_openssl
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("turns", range(6))
def test_what_comes_in_the_moment_of_the_end_is_closed_with_the_acceptor(
    tmp_path: Path, signed: Signed, loop: str, tls: bool, turns: int
) -> None:
    """However far the loop has come with it: no socket is left over, and nobody waits for one."""

    async def come_and_end() -> None:
        async with running(settings, tmp_path) as parent:
            counted = parent.connections.limits
            here = stack.enter_context(socket.create_connection(parent.address))
            await eventually(lambda: len(counted) == 1)
            new = stack.enter_context(socket.create_connection(parent.address))
            for _ in range(turns):
                await asyncio.sleep(0)
            parent._websockets.server.close()
            begun = time.monotonic()
        assert time.monotonic() - begun < 1.0
        assert not len(counted)
        gc.collect()
        for each in (here, new):
            each.settimeout(5.0)
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""

    settings = experiment(parent=signed.settings() if tls else {})
    make = asyncio.new_event_loop
    if loop == "uvloop":
        make = pytest.importorskip("uvloop").new_event_loop
    with (
        warnings.catch_warnings(record=True, action="always") as warned,
        ExitStack() as stack,
        asyncio.Runner(loop_factory=make) as runner,
    ):
        runner.run(come_and_end())
    assert not [str(each.message) for each in warned]


# Where other machines may come from.


@pytest.mark.parametrize("inherited", [False, True], ids=["listen", "inherited"])
async def test_other_machines_come_with_tokens_and_tls_or_not_at_all(
    tmp_path: Path, inherited: bool
) -> None:
    def parent(**settings: object) -> Parent:
        listen = "0.0.0.0:0"
        if inherited:
            listen = f"fd://{socket.create_server(('0.0.0.0', 0)).detach()}"
        return Parent(experiment(parent=settings), out=tmp_path / "run", listen=listen)

    with pytest.raises(ConfigurationError) as error:
        await parent().startup()
    assert "at 0.0.0.0 without tokens (parent.tokens_file) and TLS" in str(error.value)
    assert "parent.open = true" in str(error.value)
    assert not (tmp_path / "run").exists()
    launched = parent()
    launched.own_children = True  # the launcher answers for the network
    for allowed in (parent(open=True), launched):
        await allowed.startup()
        await allowed.shutdown()


# Descriptors.


#: Parents in a process with few descriptors, and more if it may; one for each hard limit. Their
#: connections are in another process, which has enough.
PARENTS = """
import asyncio, resource, sys
from pathlib import Path
from genkidama.runtime.log import configure_logging
from tests.helpers import running
from tests.parent.parents import experiment
configure_logging()
async def main():
    settings = experiment(parent={"checkpoint_updates": 1, "checkpoint_seconds": 0})
    for hard in sys.argv[2:]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, int(hard)))
        async with running(settings, Path(sys.argv[1], hard)) as parent:
            print(parent.address[1], flush=True)
            await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main())
"""


async def flood(port: int, out: Path) -> int:
    """How many of 100 connections stay, at a parent that writes a checkpoint meanwhile."""
    address = ("127.0.0.1", port)
    async with FakeChild(address) as child:
        await child.enter()
        others = [await asyncio.open_connection(*address) for _ in range(100)]
        await child.pushed(1.0)
        await eventually(lambda: CheckpointFolder(out / "checkpoints").latest() is not None)
        done = await asyncio.gather(*(has_ended(reader) for reader, _ in others))
        for _, writer in others:
            writer.close()
    return done.count(False)


async def has_ended(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(0.5):
            await reader.read()
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


async def test_the_soft_limit_of_descriptors_is_raised_and_some_are_left_for_checkpoints(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", PARENTS, str(tmp_path), "1024", "150"]
    stayed = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for hard in ("1024", "150"):
            port = int(await asyncio.to_thread(process.stdout.readline))
            stayed.append(await flood(port, tmp_path / hard))
            process.stdin.write(b"\n")
    assert process.returncode == 0
    assert stayed[0] == 100 and 1 <= stayed[1] < 30


async def test_a_crowd_finds_a_place_in_the_queue_of_a_busy_parent(tmp_path: Path) -> None:
    async with running(experiment(), tmp_path) as parent:
        crowd = []  # the parent's loop does not run meanwhile
        try:
            crowd += [socket.create_connection(parent.address, timeout=2.0) for _ in range(400)]
        finally:
            for each in crowd:
                each.close()
