"""How messages are read and connections turned away, by values."""

from __future__ import annotations

from typing import Any, cast

import pytest
from websockets.asyncio.server import ServerConnection

from genkidama.errors import ProtocolError
from genkidama.parent.connection import address_of, check_name, close_with_refusal, decode
from genkidama.protocol.messages import Hello, Refusal, encode


class Line:
    """In the place of a connection: keeps what is sent, and how it is closed."""

    remote_address: Any = ("10.0.0.7", 8765)

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed: tuple[int, str] | None = None

    async def send(self, content: bytes) -> None:
        self.sent.append(content)

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)


async def test_a_close_frame_has_as_much_of_the_reason_as_it_holds() -> None:
    line = Line()
    refusal = Refusal(code="full", reason="ü" * 100)  # two bytes each, and 123 fit
    await close_with_refusal(cast(ServerConnection, line), refusal)
    assert line.sent == [encode(refusal)]
    assert line.closed == (1008, "ü" * 61)


def test_an_address_is_host_and_port_or_unknown() -> None:
    line = Line()
    assert address_of(cast(ServerConnection, line)) == "10.0.0.7:8765"
    line.remote_address = None
    assert address_of(cast(ServerConnection, line)) == "unknown"


def test_a_token_of_one_name_admits_that_name_only() -> None:
    check_name("pi", "*")
    check_name("pi", "pi")
    with pytest.raises(ProtocolError, match="for 'pi', and this child says it is 'x'"):
        check_name("x", "pi")


def test_a_message_is_a_binary_frame() -> None:
    hello = Hello(protocol=2, software="1", name="pi", session="s")
    assert decode(encode(hello)) == hello
    with pytest.raises(ProtocolError, match="a text frame; messages are binary frames"):
        decode("hello")
