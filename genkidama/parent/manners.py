"""How a message is read, and how a connection is turned away that breaks the rules."""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from genkidama.errors import ProtocolError
from genkidama.messages import Refusal, Request, decode_request, encode
from genkidama.tokens import ANY

__all__ = ["CLOSED_FOR", "REFUSED_BY", "address_of", "check_name", "decode", "turn_away"]

#: By the close code with which websockets itself refuses something, our code for the same.
CLOSED_FOR: dict[int, str] = {
    CloseCode.MESSAGE_TOO_BIG: "length",
    CloseCode.INVALID_DATA: "malformed",
    CloseCode.PROTOCOL_ERROR: "malformed",
    # The only internal error that websockets knows of is a ping without a pong.
    CloseCode.INTERNAL_ERROR: "silent",
}

#: By the status of an HTTP answer, our code for the same.
REFUSED_BY: dict[int, str] = {HTTPStatus.UNAUTHORIZED: "token", HTTPStatus.FORBIDDEN: "origin"}

#: RFC 6455 §5.5: a control frame's payload has at most 125 bytes, two of which are the close code.
_REASON_BYTES = 123


def check_name(name: str, admitted: str) -> None:
    if admitted not in (ANY, name):
        raise ProtocolError(
            "token",
            f"this token is for {admitted!r}, and this child says it is {name!r}; "
            f"name it {admitted!r}, or give it a token of its own",
        )


def decode(frame: str | bytes) -> Request:
    if isinstance(frame, str):
        raise ProtocolError("malformed", "a text frame; messages are binary frames")
    return decode_request(frame)


async def turn_away(connection: ServerConnection, refusal: Refusal) -> None:
    """Sends the refusal and closes, with as much of the reason as a close frame holds."""
    reason = refusal.reason.encode()[:_REASON_BYTES].decode(errors="ignore")
    with suppress(ConnectionClosed):
        await connection.send(encode(refusal))
        await connection.close(CloseCode.POLICY_VIOLATION, reason)


def address_of(connection: ServerConnection) -> str:
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown"
