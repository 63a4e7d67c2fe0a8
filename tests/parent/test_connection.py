"""One connection: the fast path of a push, its limits and its end, on a real socket."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame

from genkidama.config.sections import ParentSettings
from genkidama.parent import Parent
from genkidama.parent import connection as connection_module
from genkidama.parent.connection import Connection, close_with_refusal
from genkidama.parent.connections import ConnectionManager
from genkidama.protocol.messages import Goodbye, Join, Leave, Push, Refusal, Weights, encode
from genkidama.protocol.vector import Signature
from genkidama.server.limits import ConnectionSlot
from tests.helpers import eventually, running
from tests.parent.fake_child import FakeChild, vector
from tests.parent.parents import events, experiment
from tests.parent.test_connections import untouched


async def test_a_push_is_answered_where_it_arrives(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the short way is taken at all: it hangs on what websockets does inside."""
    short = []

    def observed(*arguments: Any) -> bytes | None:
        short.append(answer(*arguments))
        return short[-1]

    answer = ConnectionManager._answer_at_once
    monkeypatch.setattr(ConnectionManager, "_answer_at_once", observed)
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


def masked(opcode: int, content: bytes, mask: bytes, fin: bool = True) -> bytes:
    """A frame as a client sends it."""
    size, head = len(content), (fin << 7) | opcode
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2)
    body = bytes(each ^ mask[index % 4] for index, each in enumerate(content))
    return bytes((head,)) + length + mask + body


NETWORK = Signature.of([("weight", (50,))])


@asynccontextmanager
async def trained(parent: Parent) -> AsyncIterator[tuple[FakeChild, Connection]]:
    """A child whose first push is answered, and the parent's end of its connection."""
    async with FakeChild(parent.address, signature=NETWORK) as child:
        await child.enter()
        await child.pushed(1.0)
        connection = parent.connections.children["pi"]
        await eventually(lambda: connection.answer is not None)
        yield child, connection


@pytest.mark.parametrize("seed", range(12))
async def test_frames_are_answered_alike_however_they_are_cut(parent: Parent, seed: int) -> None:
    """Whole pushes, one in fragments and pings between them, in pieces of any length."""
    rng = random.Random(seed)
    async with trained(parent) as (child, connection):
        frames = []
        for number in range(2, 12):
            mask = rng.randbytes(4)
            content = encode(Push(version=0, sequence=number, vector=vector(1.0, NETWORK)))
            if rng.random() < 0.2:
                frames += [masked(2, content[:99], mask, False), masked(0, content[99:], mask)]
            else:
                frames.append(masked(2, content, mask))
            frames += [masked(9, b"ping", mask)] * rng.randrange(2)
        stream = b"".join(frames)
        cuts = {sum(map(len, frames[:index])) for index in range(len(frames)) if rng.random() < 0.7}
        cuts |= set(rng.sample(range(len(stream)), rng.randrange(12)))
        for begin, end in pairwise(sorted(cuts | {0, len(stream)})):
            connection.data_received(stream[begin:end])
            if rng.random() < 0.5:
                await asyncio.sleep(0)
        replies = [await child.hear() for _ in range(10)]
        for version, reply in enumerate(replies, 2):
            assert isinstance(reply, Weights)
            assert reply.version == version
            np.testing.assert_array_equal(reply.vector, vector(1.0, NETWORK))
        assert not parent.server.refusals


async def test_a_frame_inside_a_push_is_no_frame(parent: Parent) -> None:
    """Even where its bytes arrive alone, behind the beginning of the push."""
    async with trained(parent) as (child, connection):
        push = Push(version=0, sequence=2, vector=vector(1.0, NETWORK))
        inner = masked(2, encode(push), bytes(4))
        push.vector = np.frombuffer(inner, np.float32)
        outer = masked(2, encode(push), bytes(4))
        connection.data_received(masked(9, b"ping", bytes(4)) + outer[: -len(inner)])
        connection.data_received(inner)
        assert isinstance(await child.hear(), Refusal)
        assert parent.server.exchanges == 1


async def test_a_reply_is_sent_before_the_end_of_its_connection(parent: Parent) -> None:
    """Replies are held until the end of the event loop's turn."""
    async with trained(parent) as (child, connection):
        content = encode(Push(version=0, sequence=2, vector=vector(1.0, NETWORK)))
        sent = connection.sent
        connection.data_received(masked(2, content, b"mask"))
        assert connection.sent == sent
        connection.protocol.send_close(1000, "enough")
        connection.send_data()
        reply = await child.hear()
        assert isinstance(reply, Weights)
        assert reply.version == 2
        assert await child.closed() == (1000, "enough")


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
        connection = parent.connections.children["pi"]
        await eventually(lambda: bool(connection._holds))
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
    await eventually(lambda: not parent.server.connected)
    async with FakeChild(parent.address, session="2") as child:
        await child.enter()
    parent.stop()
    await parent.shutdown()
    assert events(parent.out, "leave")[0]["reason"] == "connection lost"


async def test_a_message_over_the_networks_limit(parent: Parent) -> None:
    async with untouched(parent), FakeChild(parent.address) as child:
        await child.enter()
        # More than such a small network needs, less than the handshake allows.
        await child.connection.send(bytes(300_000))
        assert (await child.closed())[0] == 1009
        await eventually(lambda: parent.server.refusals == {"length": 1})
    parent.stop()
    await parent.shutdown()
    assert [(event["child"], event["code"]) for event in events(parent.out, "refused")] == [
        ("pi", "length")
    ]


async def test_a_connection_that_does_not_even_ask_for_the_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConnectionManager, "open_seconds", 0.1)
    async with running(experiment(), tmp_path) as parent, untouched(parent):
        reader, writer = await asyncio.open_connection(*parent.address)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        await eventually(lambda: parent.server.refusals == {"silent": 1})


class Owner:
    """Keeps no connection."""

    def __init__(self) -> None:
        self.holding: list[Connection] = []

    def add(self, connection: Connection) -> None:
        pass

    def remove(self, connection: Connection, seconds: float) -> None:
        pass

    def flush(self) -> None:
        pass


async def test_a_close_frame_has_as_much_of_a_long_reason_as_fits() -> None:
    refusal = Refusal(code="full", reason="ü" * 100)  # two bytes each, and 123 fit

    async def handle(connection: ServerConnection) -> None:
        await close_with_refusal(connection, refusal)

    async with serve(handle, "127.0.0.1", 0, compression=None) as server:
        host, port = server.sockets[0].getsockname()
        async with connect(f"ws://{host}:{port}", compression=None) as child:
            assert await child.recv() == encode(refusal)
            await child.wait_closed()
            assert (child.close_code, child.close_reason) == (1008, "ü" * 61)


async def test_an_answer_of_any_length_is_a_whole_frame() -> None:
    """Its length stands in 7, 16 or 64 bits."""

    async def handle(connection: ServerConnection) -> None:
        assert isinstance(connection, Connection)
        connection.answer = lambda asked: bytes(int(asked))
        await connection.send(b"ready")
        with suppress(ConnectionClosed):
            await connection.recv()

    kind = partial(Connection, Owner(), ParentSettings(), ConnectionSlot("127.0.0.1"))
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
        await eventually(lambda: not parent.server.connected)
    async with FakeChild(parent.address, "rude") as child:
        await child.enter()
        await child.tell("a text frame")
        await child.closed()
        await eventually(lambda: not parent.server.connected)
    parent.stop()
    await parent.shutdown()
    polite, rude = events(parent.out, "leave")
    assert polite["reason"] == "closed by the child: 1000 (OK) enough"
    assert rude["reason"].startswith("closed by the parent: 1008 (policy violation) ")


# Who floods or jams a connection.

#: A megabyte of numbers, so that no kernel takes a reply whole.
LARGE = Signature.of([("weight", (1 << 20,))])

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: parent\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)

#: Masked with zeros, and the longest that there is.
PING = b"\x89\xfd\0\0\0\0" + bytes(125)


def write_push(child: FakeChild, number: int, part: float = 1.0, begin: float = 0.0) -> None:
    """Writes a push of the large network, or a part of it, and waits for nothing."""
    content = bytes(encode(Push(version=0, sequence=number, vector=vector(1.0, LARGE))))
    frame = b"\x82\xff" + len(content).to_bytes(8, "big") + bytes(4) + content
    child.connection.transport.write(frame[int(len(frame) * begin) : int(len(frame) * part)])


def large_frames() -> int:
    """How many frames with a vector somebody keeps."""
    frames = (each for each in gc.get_objects() if type(each) is Frame)
    return sum(len(each.data) > LARGE.size for each in frames)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Meanwhile only what nobody refers to is let go."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_pings_without_end_end_the_connection_before_any_hello(parent: Parent) -> None:
    """Their sender never reads, so each answer would be kept for it."""
    async with untouched(parent):
        _, writer = await asyncio.open_connection(*parent.address)
        writer.transport.pause_reading()
        writer.write(UPGRADE)
        await eventually(lambda: any(channel.request for channel in parent.connections._open))
        (pinged,) = (each for each in parent.connections._open if each.slot.entering)
        writer.write(PING * 20_000)
        await eventually(lambda: parent.server.refusals == {"flood": 1})
        assert pinged.transport.is_closing()
        assert pinged.transport.get_write_buffer_size() < 200 * len(PING)
        writer.close()


async def test_a_ping_now_and_then_is_answered(parent: Parent) -> None:
    async with FakeChild(parent.address) as child:
        await child.enter()
        for _ in range(50):
            await (await child.connection.ping())
        await child.pushed(1.0)


async def test_fragments_without_end_end_the_connection(parent: Parent) -> None:
    async with untouched(parent), FakeChild(parent.address) as child:
        await child.enter()
        child.connection.transport.write(b"\x02\x80\0\0\0\0" + b"\0\x80\0\0\0\0" * 5000)
        assert await child.closed() == (1008, "fragments without end")
        await eventually(lambda: parent.server.refusals == {"flood": 1})


async def test_fragments_that_do_not_get_on_end_the_connection(tmp_path: Path) -> None:
    settings = experiment(parent={"silence_seconds": 0.3})
    async with (
        running(settings, tmp_path) as parent,
        untouched(parent),
        FakeChild(parent.address) as child,
    ):
        await child.enter()
        write = child.connection.transport.write
        write(b"\x02\x80\0\0\0\0")
        while child.connection.state.name == "OPEN":
            write(b"\0\x81\0\0\0\0!")
            await asyncio.sleep(0.05)
        await eventually(lambda: parent.server.refusals == {"silent": 1})


async def test_a_continuation_of_nothing_is_a_protocol_error(parent: Parent) -> None:
    async with untouched(parent), FakeChild(parent.address) as child:
        await child.enter()
        child.connection.transport.write(b"\x80\x81\0\0\0\0!")
        await child.connection.wait_closed()
        assert child.connection.close_code == 1002
        await eventually(lambda: parent.server.refusals == {"malformed": 1})


async def test_a_child_that_never_takes_its_reply_loses_the_connection(tmp_path: Path) -> None:
    """A ping waits behind the reply, so its silence is no help."""
    settings = experiment(parent={"silence_seconds": 0.4})
    async with running(settings, tmp_path) as parent:
        async with FakeChild(parent.address, signature=LARGE) as child:
            await child.enter()
            child.connection.transport.pause_reading()
            for number in (1, 2, 3):
                write_push(child, number)
            await eventually(lambda: "pi" not in parent.server.connected)
        await eventually(lambda: parent.server.refusals == {"silent": 1})
        assert not parent.connections._open
    parent.stop()
    assert events(parent.out, "refused")[0]["reason"] == "took no reply for 0.4 s"


async def test_a_slow_reader_keeps_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than the silence that is allowed, but it gets on."""
    monkeypatch.setattr(connection_module, "_SLOWEST", 1.0)
    settings = experiment(parent={"silence_seconds": 0.25})
    async with (
        running(settings, tmp_path) as parent,
        FakeChild(parent.address, signature=LARGE) as child,
    ):
        await child.enter()
        connection = parent.connections.children["pi"]
        transport = child.connection.transport
        transport.pause_reading()
        for number in (1, 2, 3):
            write_push(child, number)
        await eventually(lambda: connection.paused)
        hearing = asyncio.create_task(child.hear())
        for _ in range(6):
            transport.resume_reading()
            await asyncio.sleep(0.002)
            transport.pause_reading()
            await asyncio.sleep(0.1)
        transport.resume_reading()
        assert isinstance(await hearing, Weights)
        assert parent.server.connected == ["pi"]


async def test_a_push_may_take_as_long_as_the_slowest_link_needs(tmp_path: Path) -> None:
    """No pong comes before its end. A child that has not joined has no such push."""
    settings = experiment(parent={"silence_seconds": 0.2})
    async with (
        running(settings, tmp_path) as parent,
        FakeChild(parent.address, signature=LARGE) as child,
    ):
        await child.hello()
        connection = parent.connections.children["pi"]
        assert connection.ping_timeout == 0.1
        await child.join()
        assert connection.ping_timeout == 0.1 + 2 * 4 * LARGE.size / 10_000
        child.connection.transport.pause_reading()
        write_push(child, 1, part=0.5)
        await asyncio.sleep(0.5)
        write_push(child, 1, begin=0.5)
        child.connection.transport.resume_reading()
        assert isinstance(await child.hear(), Weights)


async def test_little_is_read_of_a_child_that_does_not_take_its_reply(parent: Parent) -> None:
    async with FakeChild(parent.address, signature=LARGE) as child:
        await child.enter()
        connection = parent.connections.children["pi"]
        transport = child.connection.transport
        transport.pause_reading()
        for number in range(1, 9):
            write_push(child, number)
        await eventually(lambda: connection.paused and "reply" in connection._holds)
        kept = len(connection.protocol.reader.buffer) + connection.transport.get_write_buffer_size()
        assert kept < 6 * LARGE.size  # of 4 bytes each
        transport.resume_reading()
        replies = [await child.hear() for _ in range(8)]
        assert [reply.version for reply in replies if isinstance(reply, Weights)] == [*range(1, 9)]


async def test_a_cut_connection_leaves_nothing_behind(parent: Parent, uncollected: None) -> None:
    """Neither what it pushed last nor itself waits for the garbage collector."""
    async with FakeChild(parent.address, signature=LARGE) as child:
        await child.enter()
        await child.pushed(vector(1.0, LARGE))
        write_push(child, 2, part=0.5)
        connection = parent.connections.children["pi"]
        left = [weakref.ref(each) for each in (connection, connection.protocol)]
        del connection
        child.connection.transport.abort()
        await eventually(lambda: not parent.server.connected)
        await eventually(lambda: [each() for each in left] == [None, None])


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in fragments"])
async def test_an_idle_connection_does_not_keep_its_last_push(
    parent: Parent, uncollected: None, whole: bool
) -> None:
    async with FakeChild(parent.address, signature=LARGE) as child:
        await child.enter()
        before = large_frames()
        frame = bytes(encode(Push(version=0, sequence=1, vector=vector(1.0, LARGE))))
        await child.connection.send(frame if whole else [frame[:100], frame[100:]])
        assert isinstance(await child.hear(), Weights)
        # The child's own end keeps the reply.
        assert large_frames() - before == 1


async def test_a_child_that_says_too_much_is_slowed_down_and_nobody_else(tmp_path: Path) -> None:
    settings = experiment(parent={"max_pushes_per_second": 200})
    async with running(settings, tmp_path) as parent:
        loop = asyncio.get_running_loop()
        async with FakeChild(parent.address, "mad") as mad, FakeChild(parent.address) as calm:
            await mad.enter()
            await calm.enter()

            async def hurry() -> float:
                begun = loop.time()
                for _ in range(350):
                    await mad.pushed(1.0)
                return loop.time() - begun

            hurrying = asyncio.create_task(hurry())
            waits = []
            while not hurrying.done():
                begun = loop.time()
                await calm.pushed(1.0)
                waits.append(loop.time() - begun)
                await asyncio.sleep(0.02)
            assert hurrying.result() > (350 - 200) / 200 - 0.3
            assert sorted(waits)[len(waits) // 2] < 0.1
        assert not parent.server.refusals
