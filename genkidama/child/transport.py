"""How a child reaches its parent: a connection, and one request with its one reply.

If a reply does not come in time or makes no sense, the connection has failed, never the child.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import websockets
from websockets.asyncio.client import ClientConnection, connect

from genkidama.child.credentials import make_context, pinned
from genkidama.errors import ConfigurationError, ProtocolError
from genkidama.protocol.messages import (
    HANDSHAKE_LIMIT,
    Reply,
    Request,
    decode_reply,
    encode,
    size_limit,
)
from genkidama.protocol.tokens import is_loopback
from genkidama.runtime.machine import set_retransmission_timeout

__all__ = [
    "BACKOFF_SECONDS",
    "FAILURES",
    "REPLY_SECONDS",
    "Transport",
    "ask",
    "make_room",
    "retry_after",
]

#: Pings find a parent that vanished without a word. Training never delays the answer, because this
#: process does not train; a minute forgives a busy Pi and a bad Wi-Fi.
_PING_SECONDS = 60.0

#: How long a reply may take before the connection is given up; the cores of an `"episode"` child
#: wait for it.
REPLY_SECONDS = 30.0

#: The first wait before reconnecting, and the longest. Each is twice the one before, and the child
#: waits a random part of it.
BACKOFF_SECONDS = (0.5, 30.0)

#: What a connection can fail with. The child trains on, and tries again.
FAILURES = (OSError, websockets.WebSocketException, TimeoutError, ProtocolError)


class Transport:
    """Opens connections to one parent.

    Args:
        parent: `ws://HOST:PORT` or `wss://HOST:PORT`.
        token: the parent knows this child by it; empty for none.
        ca_file: PEM certificates of the authority that signed the parent's certificate; None or
            empty means the system's.
        fingerprint: SHA-256 of the parent's certificate, instead of an authority.

    Raises:
        ConfigurationError: the address is invalid or, with `wss://`, the authority's certificates
            cannot be read; or a fingerprint is given with `ws://` or with an authority.
    """

    def __init__(
        self,
        parent: str,
        *,
        token: str = "",
        ca_file: str | None = None,
        fingerprint: str = "",
    ) -> None:
        try:
            address = urlsplit(parent)
            self.host = address.hostname or ""
            if address.username is not None:
                raise ValueError("that is a join string, which `genkidama join` takes")
        except ValueError as error:
            raise _no_address(parent, error) from None
        self.parent = parent
        self.secure = address.scheme == "wss"
        self.ca_file = ca_file or ""
        self.has_token = bool(token)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        if fingerprint and (self.ca_file or not self.secure):
            raise ConfigurationError(
                f"parent = {parent!r} with a fingerprint and ca_file = {self.ca_file!r}: "
                "a fingerprint stands alone, and with wss://"
            )
        self._context = None
        if self.secure:
            self._context = pinned(fingerprint) if fingerprint else make_context(self.ca_file)

    @property
    def shows_token(self) -> bool:
        """Whether everybody on the way to the parent can read the token."""
        return self.has_token and not self.secure and not is_loopback(self.host)

    async def open(self) -> ClientConnection:
        """A websocket on which nothing has been said yet. Its `response.headers` are those of the
        parent's HTTP answer.

        Raises:
            OSError, WebSocketException, TimeoutError: there is none; `explain` says why in words.
            ConfigurationError: the address is invalid.
        """
        try:
            opening = connect(
                self.parent,
                additional_headers=self._headers,
                compression=None,
                max_size=HANDSHAKE_LIMIT,
                ping_timeout=_PING_SECONDS,
                proxy=None,
                close_timeout=1,
                ssl=self._context,
            )
        except (websockets.InvalidURI, ValueError) as error:
            raise _no_address(self.parent, error) from None
        try:
            connection = await opening
        except UnicodeError as error:  # what Python's IDNA codec says of a host like "a..b"
            raise _no_address(self.parent, error) from None
        set_retransmission_timeout(connection.transport)
        return connection


async def ask(connection: ClientConnection, request: Request) -> Reply:
    """One request and its one reply.

    Raises:
        TimeoutError, OSError, WebSocketException: there is none.
        ProtocolError: it makes no sense.
    """
    async with asyncio.timeout(REPLY_SECONDS):
        await connection.send(encode(request))
        frame = await connection.recv(decode=False)
    return decode_reply(frame)


def make_room(connection: ClientConnection, size: int) -> None:
    """Lets messages with a vector of `size` numbers through."""
    # The installed websockets has no public way to raise the limit of an open connection.
    connection.protocol.max_message_size = size_limit(size)


def retry_after(error: BaseException) -> float:
    """Seconds after which a parent that has no room wants to be asked again; 0 if it did not say.

    They come from `Retry-After` of RFC 9110 §10.2.3, as a number.
    """
    if not isinstance(error, websockets.InvalidStatus):
        return 0.0
    said = error.response.headers.get("Retry-After", "")
    return float(said) if said.isascii() and said.isdigit() and len(said) < 10 else 0.0


def _no_address(parent: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"parent = {parent!r}: expected ws://HOST:PORT or wss://HOST:PORT: {error}"
    )
