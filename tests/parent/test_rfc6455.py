"""The rules of RFC 6455 that a peer may break, each on a socket of a real parent."""

from __future__ import annotations

import asyncio

import pytest

from genkidama.parent import Parent
from genkidama.protocol.messages import PROTOCOL, Hello, Welcome, encode
from tests.fuzzing.doors import client_frame as frame
from tests.parent.fake_child import FakeChild

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: parent\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
#: The answer to that key (RFC 6455 §1.3).
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN = 0x80
HELLO = encode(Hello(protocol=PROTOCOL, name="pi", session="s"))

Frames = list[tuple[int, bytes]]


async def answers(parent: Parent, sent: bytes) -> Frames:
    """The frames of a parent, opcode with FIN and payload, until it hangs up or closes."""
    reader, writer = await asyncio.open_connection(*parent.address)
    async with asyncio.timeout(10):
        writer.write(UPGRADE)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ") and ACCEPT in head
        writer.write(sent)
        frames: Frames = []
        while not frames or frames[-1][0] != FIN | CLOSE:
            first, length = await reader.readexactly(2)  # what a server sends is not masked
            size = length if length < 126 else int.from_bytes(await reader.readexactly(2))
            assert length < 127
            frames.append((first, await reader.readexactly(size)))
        writer.close()
    return frames


def closing(code: int, reason: bytes = b"") -> bytes:
    return code.to_bytes(2) + reason


UNMASKED = bytes((FIN | BINARY, len(HELLO))) + HELLO

#: What is sent, and the code with which the parent closes.
BROKEN: dict[str, tuple[bytes, int]] = {
    **{
        f"reserved bit {bit:#x}": (frame(FIN | bit | BINARY, HELLO), 1002)
        for bit in (0x40, 0x20, 0x10)
    },
    **{f"opcode {code}": (frame(FIN | code, b""), 1002) for code in (3, 7, 11, 15)},
    "no mask": (UNMASKED, 1002),
    "a ping of 126 bytes": (frame(FIN | PING, bytes(126)), 1002),
    "a ping in fragments": (frame(PING, b"1") + frame(FIN | CONTINUATION, b"2"), 1002),
    "a continuation of nothing": (frame(FIN | CONTINUATION, HELLO), 1002),
    "a message within another": (frame(BINARY, HELLO[:9]) + frame(FIN | BINARY, HELLO), 1002),
    "a length of 2⁶³": (bytes((FIN | BINARY, 0xFF)) + (1 << 63).to_bytes(8) + bytes(4), 1009),
    "a message that is too long": (bytes((FIN | BINARY, 0xFF)) + (1 << 40).to_bytes(8), 1009),
    "fragments that are too long together": (
        frame(BINARY, HELLO) + bytes((CONTINUATION, 0xFF)) + (1 << 20).to_bytes(8) + bytes(4),
        1009,
    ),
    "text that is no UTF-8": (frame(FIN | TEXT, b"\xc3\x28"), 1007),
    "a close code of one byte": (frame(FIN | CLOSE, b"\x03"), 1002),
    **{
        f"close code {code}": (frame(FIN | CLOSE, closing(code)), 1002)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535)
    },
    "a reason that is no UTF-8": (frame(FIN | CLOSE, closing(1000, b"\xed\xa0\x80")), 1007),
}


async def test_a_peer_that_breaks_a_rule_is_closed_with_its_code_and_the_parent_goes_on(
    parent: Parent,
) -> None:
    found = {name: await answers(parent, sent) for name, (sent, _) in BROKEN.items()}
    codes = {name: int.from_bytes(frames[-1][1][:2]) for name, frames in found.items()}
    assert codes == {name: code for name, (_, code) in BROKEN.items()}
    async with FakeChild(parent.address) as child:
        assert isinstance(await child.hello(), Welcome)


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1007, 1011, 3000, 4999])
async def test_a_close_is_answered_by_its_code(parent: Parent, code: int) -> None:
    frames = await answers(parent, frame(FIN | CLOSE, closing(code, "tschüs".encode())))
    assert [(first, payload[:2]) for first, payload in frames] == [(FIN | CLOSE, closing(code))]


async def test_control_frames_may_stand_between_fragments(parent: Parent) -> None:
    sent = [
        frame(PING | FIN, b""),
        frame(PONG | FIN, b"that nobody asked for"),
        frame(BINARY, HELLO[:5]),
        frame(FIN | PING, bytes(125)),
        frame(CONTINUATION, b""),
        frame(CONTINUATION, HELLO[5:20], b"\xff\0\xff\0"),
        frame(FIN | CONTINUATION, HELLO[20:], bytes(4)),
        frame(FIN | CLOSE, closing(1000)),
    ]
    frames = await answers(parent, b"".join(sent))
    kinds = [(first, payload[:1]) for first, payload in frames]
    assert kinds[:2] == [(FIN | PONG, b""), (FIN | PONG, b"\0")]
    assert len(frames[1][1]) == 125
    assert frames[2:] and frames[-1] == (FIN | CLOSE, closing(1000))
