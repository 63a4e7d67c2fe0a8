"""One connection: the short way of a push, its limits and its end, on a real socket."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from genkidama.messages import Goodbye, Join, Leave, Push, Refusal, Weights, encode
from genkidama.parent import Parent
from genkidama.parent.channel import SERVER, Channel
from genkidama.parent.connections import Connections
from genkidama.weights import Signature
from tests.parent.fake_child import FakeChild, vector
from tests.parent.parents import events, experiment, running, until
from tests.parent.test_connections import untouched


async def test_a_push_is_answered_where_it_arrives(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the short way is taken at all: it hangs on what websockets does inside."""
    short = []

    def observed(*arguments: Any) -> bytes | None:
        short.append(answer(*arguments))
        return short[-1]

    answer = Connections._answer_at_once
    monkeypatch.setattr(Connections, "_answer_at_once", observed)
    async with FakeChild(parent.address) as child:
        await child.enter()
        await child.pushed(1.0)
        await child.join()
        await child.pushed(2.0)
        await child.leave()
    assert [reply is not None for reply in short] == [True, False, True, False]


async def test_replies_keep_the_order_of_the_requests(parent: Parent) -> None:
    async with FakeChild(parent.address) as child:
        await child.enter()
        push, join = (
            encode(Push(version=0, sequence=1, vector=vector())),
            encode(Join(signature=[("layer.weight", [1])])),
        )
        for frame in (push, join, push, push, join, join, push, encode(Leave())):
            await child.connection.send(frame)
        replies = [type(await child.hear()) for _ in range(8)]
        assert replies == [Weights, Refusal, Weights, Weights, Refusal, Refusal, Weights, Goodbye]


async def test_a_push_in_fragments(parent: Parent) -> None:
    async with FakeChild(parent.address) as child:
        await child.enter()
        frame = encode(Push(version=0, sequence=1, vector=vector(1.0)))
        await child.connection.send([bytes(frame[:20]), bytes(frame[20:])])
        assert isinstance(await child.hear(), Weights)
        child.sequence = 1
        np.testing.assert_array_equal(await child.pushed(3.0), vector(2.0))


async def test_a_child_that_does_not_read_is_not_read_either(parent: Parent) -> None:
    large = Signature.of([("weight", (1_000_000,))])
    async with FakeChild(parent.address, signature=large) as child:
        await child.enter()
        child.connection.transport.pause_reading()

        async def send() -> None:
            for number in range(1, 13):
                await child.connection.send(
                    encode(Push(version=0, sequence=number, vector=vector(1.0, large)))
                )

        sending = asyncio.create_task(send())
        connection = parent._connections.children["pi"]
        await until(lambda: connection.recv_messages.paused)
        assert parent.server.exchanges < 12
        child.connection.transport.resume_reading()
        versions = []
        for _ in range(12):
            reply = await child.hear()
            assert isinstance(reply, Weights)
            versions.append(reply.version)
        await sending
        assert versions == list(range(1, 13))


async def test_a_lost_connection_is_noted_and_its_name_is_free(parent: Parent) -> None:
    async with FakeChild(parent.address, session="1") as child:
        await child.enter()
        child.connection.transport.abort()
    await until(lambda: not parent.server.connected)
    async with FakeChild(parent.address, session="2") as child:
        await child.enter()
    parent.stop()
    await parent.shutdown()
    assert events(parent.out, "leave")[0]["reason"] == "connection lost"


async def test_a_message_over_the_networks_limit(parent: Parent) -> None:
    async with untouched(parent), FakeChild(parent.address) as child:
        await child.enter()
        await child.connection.send(
            bytes(300_000)
        )  # more than such a small network needs, less than the handshake allows
        assert (await child.closed())[0] == 1009
        await until(lambda: parent.server.refusals == {"length": 1})
    parent.stop()
    await parent.shutdown()
    assert [(event["child"], event["code"]) for event in events(parent.out, "refused")] == [
        ("pi", "length")
    ]


async def test_a_connection_that_does_not_even_ask_for_the_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connections, "open_seconds", 0.1)
    async with running(experiment(), tmp_path) as parent, untouched(parent):
        reader, writer = await asyncio.open_connection(*parent.address)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        await until(lambda: parent.server.refusals == {"silent": 1})


async def test_the_answer_to_an_upgrade_says_who_answers(parent: Parent) -> None:
    async with FakeChild(parent.address) as child:
        assert child.connection.response is not None
        assert child.connection.response.headers["Server"] == SERVER


async def test_an_answer_of_any_length_is_a_whole_frame() -> None:
    """Its length stands in 7, 16 or 64 bits."""

    async def handle(connection: ServerConnection) -> None:
        assert isinstance(connection, Channel)
        connection.answer = lambda asked: bytes(int(asked))
        await connection.send(b"ready")
        with suppress(ConnectionClosed):
            await connection.recv()

    kind = partial(Channel, lambda _: None, lambda _, seconds: None)
    async with (
        asyncio.timeout(10),
        serve(handle, "127.0.0.1", 0, create_connection=kind, compression=None) as server,
    ):
        host, port = server.sockets[0].getsockname()
        async with connect(f"ws://{host}:{port}", compression=None) as child:
            assert await child.recv() == b"ready"
            for length in (1, 125, 126, 127, 128, 65_535, 65_536, 65_537):
                await child.send(b"0")  # its answer comes later
                await child.send(str(length).encode())
                assert await child.recv() == bytes(length)


async def test_the_history_says_who_closed_a_connection(parent: Parent) -> None:
    async with FakeChild(parent.address, "polite") as child:
        await child.enter()
        await child.connection.close(1000, "enough")
        await until(lambda: not parent.server.connected)
    async with FakeChild(parent.address, "rude") as child:
        await child.enter()
        await child.tell("a text frame")
        await child.closed()
        await until(lambda: not parent.server.connected)
    parent.stop()
    await parent.shutdown()
    polite, rude = events(parent.out, "leave")
    assert polite["reason"] == "closed by the child: 1000 (OK) enough"
    assert rude["reason"].startswith("closed by the parent: 1008 (policy violation) ")
