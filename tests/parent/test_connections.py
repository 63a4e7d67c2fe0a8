"""A Parent on a real socket, and fake children that keep the rules or break them."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from genkidama.config.experiment import Experiment
from genkidama.parent import Parent
from genkidama.parent.connections import ConnectionManager
from genkidama.protocol.messages import (
    HANDSHAKE_LIMIT,
    PROTOCOL,
    Hello,
    Join,
    Leave,
    Push,
    Refusal,
    Request,
    Weights,
    Welcome,
    encode,
)
from genkidama.protocol.vector import Signature
from tests.helpers import eventually, running
from tests.parent.fake_child import FakeChild, vector
from tests.parent.parents import events, experiment

# What children do who keep the rules.


async def test_the_first_push_is_taken_and_the_next_are_blended(parent: Parent) -> None:
    async with FakeChild(parent.address) as child:
        welcome = await child.hello()
        assert isinstance(welcome, Welcome)
        assert Experiment.from_dict(welcome.experiment) == parent.experiment
        assert welcome.run == "run"
        joined = await child.join()
        assert isinstance(joined, Weights)
        assert joined.vector is None
        np.testing.assert_array_equal(await child.pushed(2.0), vector(2.0))
        np.testing.assert_array_equal(await child.pushed(4.0, returns=[7.0]), vector(3.0))
        await child.leave()
        assert await child.closed() == (1000, "")
    assert (
        parent.server.trial.version,
        parent.server.trial.episodes,
        parent.server.trial.steps,
    ) == (2, 1, 20)
    assert parent.server.connected == []


async def test_two_children_share_the_weights(parent: Parent) -> None:
    async with FakeChild(parent.address, "a") as a, FakeChild(parent.address, "b") as b:
        await a.enter()
        await a.pushed(0.0)
        weights = await b.enter()
        np.testing.assert_array_equal(weights.vector, vector(0.0))
        both = await asyncio.gather(a.pushed(8.0), b.pushed(8.0))
        assert sorted(float(answer[0]) for answer in both) == [4.0, 6.0]
        assert parent.server.updates == 2.0  # one exchange alone, and two of two children


async def test_a_slow_child_keeps_nobody_waiting(parent: Parent) -> None:
    async with (
        FakeChild(parent.address, "slow") as slow,
        FakeChild(parent.address, "quick") as quick,
    ):
        await slow.enter()
        await quick.enter()
        frame = encode(Push(version=0, sequence=1, vector=vector()))
        transport = slow.connection.transport
        # Half a frame, masked with zeros.
        transport.write(bytes([0x82, 0x80 | len(frame)]) + bytes(4) + frame[: len(frame) // 2])
        for _ in range(20):
            await quick.pushed(1.0)
        transport.write(bytes(frame[len(frame) // 2 :]))
        assert isinstance(await slow.hear(), Weights)
    assert parent.server.trial.version == 21


async def test_a_returning_child_takes_its_name_over(parent: Parent) -> None:
    async with FakeChild(parent.address) as old, FakeChild(parent.address) as new:
        await old.enter()
        await old.pushed(1.0)
        await new.enter()
        assert await old.closed() == (1008, "the child speaks on another connection")
        new.sequence = old.sequence
        np.testing.assert_array_equal(await new.pushed(3.0), vector(2.0))
        assert parent.server.connected == ["pi"]
    assert parent.server.children["pi"].exchanges == 2


async def test_without_tokens_a_machine_that_lost_its_power_gets_its_name_back(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConnectionManager, "pong_seconds", 0.2)
    async with (
        FakeChild(parent.address) as old,
        FakeChild(parent.address, session="another process") as new,
    ):
        await old.enter()
        old.connection.transport.pause_reading()  # its plug is pulled: it answers no ping
        await new.enter()
        np.testing.assert_array_equal(await new.pushed(3.0), vector(3.0))
        old.connection.transport.resume_reading()
    assert not parent.server.refusals


# What children do who break them.


@asynccontextmanager
async def untouched(parent: Parent) -> AsyncIterator[FakeChild]:
    """Another child, whose run must go on as if nothing had happened.

    What is said meanwhile must be refused.
    """
    async with FakeChild(parent.address, "good") as good:
        await good.enter()
        await good.pushed(1.0)
        before = parent.server.refusals.total()
        yield good
        assert parent.server.refusals.total() > before
        np.testing.assert_array_equal(await good.pushed(3.0), vector(2.0))
        assert parent.server.trial.version == 2


#: One of each kind; the tests of `decode_request` have the rest.
GARBAGE = [
    (b"", "malformed"),
    ("a text frame", "malformed"),
    (struct.pack("<I", 15) + b"\x81\xa4type\xa8surprise", "unknown"),
]


@pytest.mark.parametrize(("frame", "code"), GARBAGE)
async def test_garbage_instead_of_a_hello(parent: Parent, frame: bytes | str, code: str) -> None:
    async with untouched(parent), FakeChild(parent.address) as child:
        reply = await child.tell(frame)
        assert isinstance(reply, Refusal)
        assert reply.code == code
        closed, reason = await child.closed()
        assert closed == 1008
        assert reason
        assert reply.reason.startswith(reason)
        assert parent.server.refusals == {code: 1}


@pytest.mark.parametrize(("frame", "code"), GARBAGE)
async def test_garbage_after_the_join(parent: Parent, frame: bytes | str, code: str) -> None:
    async with untouched(parent), FakeChild(parent.address) as child:
        await child.enter()
        reply = await child.tell(frame)
        assert isinstance(reply, Refusal)
        assert reply.code == code
        assert (await child.closed())[0] == 1008


async def test_the_first_message_is_a_hello(parent: Parent) -> None:
    async with untouched(parent):
        for request in (Join(signature=[]), Push(version=0, sequence=1, vector=vector()), Leave()):
            async with FakeChild(parent.address) as child:
                assert (await child.refused(request)).code == "order"
                assert (await child.closed())[0] == 1008


async def test_refused_joins_do_not_fill_the_history(parent: Parent) -> None:
    """A join may hold names of nearly a megabyte, and its refusal names one of them."""
    other = Signature.of([("ü" * 400_000, (3, 2))])
    async with untouched(parent):
        for _ in range(20):
            async with FakeChild(parent.address, signature=other) as child:
                await child.hello()
                assert isinstance(reply := await child.join(), Refusal)
                assert len(reply.reason) < 500
    parent.stop()
    await parent.shutdown()
    assert sum(event.get("count", 1) for event in events(parent.out, "refused")) == 20
    assert parent.out is not None
    assert (parent.out / "history.jsonl").stat().st_size < 10_000


BAD_REQUESTS: dict[str, tuple[Request, str]] = {
    "too short": (Push(version=0, sequence=1, vector=vector()[:-1]), "length"),
    "a second hello": (Hello(protocol=PROTOCOL, name="pi", session="1"), "order"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
async def test_a_refused_request_keeps_the_connection(parent: Parent, case: str) -> None:
    request, code = BAD_REQUESTS[case]
    async with untouched(parent), FakeChild(parent.address) as child:
        await child.enter()
        assert (await child.refused(request)).code == code
        assert isinstance(await child.join(), Weights)
        assert parent.server.refusals == {code: 1}
        assert parent.server.children["pi"].exchanges == 0


async def test_a_message_over_the_handshakes_limit(parent: Parent) -> None:
    async with untouched(parent), FakeChild(parent.address) as child:
        await child.connection.send(bytes(HANDSHAKE_LIMIT + 1))
        assert (await child.closed())[0] == 1009
        await eventually(lambda: parent.server.refusals == {"length": 1})


async def test_a_connection_that_says_no_hello(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConnectionManager, "hello_seconds", 0.1)
    async with (
        running(experiment(), tmp_path) as parent,
        untouched(parent),
        FakeChild(parent.address) as child,
    ):
        reply = await child.hear()
        assert isinstance(reply, Refusal)
        assert reply.code == "silent"
        assert (await child.closed())[0] == 1008


async def test_a_child_that_falls_silent(tmp_path: Path) -> None:
    settings = experiment(parent={"silence_seconds": 0.5})
    async with (
        running(settings, tmp_path) as parent,
        untouched(parent),
        FakeChild(parent.address) as child,
    ):
        await child.enter()
        child.connection.transport.pause_reading()  # answers no ping any more
        await eventually(lambda: "pi" not in parent.server.connected)
        child.connection.transport.resume_reading()
        assert (await child.closed())[0] == 1011
        await eventually(lambda: parent.server.refusals == {"silent": 1})


async def test_something_else_than_http(parent: Parent, capfd: pytest.CaptureFixture[str]) -> None:
    for opening in (b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET / HTTP/1.1\r\n\r\n", b"\r\n\r\n"):
        reader, writer = await asyncio.open_connection(*parent.address)
        writer.write(opening + os.urandom(1000))
        writer.write_eof()
        await reader.read()
        writer.close()
    async with FakeChild(parent.address) as child:
        await child.enter()
    assert "Traceback" not in capfd.readouterr().err
