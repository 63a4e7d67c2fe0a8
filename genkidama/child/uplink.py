"""How a child reaches its parent: one connection, opened and greeted, and one request with its one reply.

Laws of this file:
- A parent that is not there is waited for, with jittered backoff: children that lost the same parent do not return all at once.
- A reply that does not come in time, or makes no sense, is the connection's failure, never the child's.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket

import websockets
from websockets.asyncio.client import ClientConnection, connect

import genkidama
from genkidama.console import make_logger
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError, ProtocolError
from genkidama.messages import (
    HANDSHAKE_LIMIT,
    PROTOCOL,
    Hello,
    Join,
    Refusal,
    Reply,
    Request,
    Weights,
    Welcome,
    decode_reply,
    encode,
    size_limit,
)
from genkidama.weights import Signature, is_finite

__all__ = ["BACKOFF_SECONDS", "FAILURES", "REPLY_SECONDS", "Refused", "Uplink", "ask", "check", "join"]

#: Pings find a parent that vanished without a word. Training never delays the answer, because this
#: process does not train; a minute forgives a busy Pi and a bad Wi-Fi.
_PING_SECONDS = 60.0

#: How long a reply may take before the connection is given up; the cores of an `"episode"` child wait for it.
REPLY_SECONDS = 30.0

#: The first wait before reconnecting, and the longest; each wait is a random part of its doubling.
BACKOFF_SECONDS = (0.5, 30.0)

#: What a connection can fail with. The child trains on, and tries again.
FAILURES = (OSError, websockets.WebSocketException, TimeoutError, ProtocolError)

log = make_logger()


class Refused(GenkidamaError):
    """The parent does not want this child, and says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"the parent refuses this child: {refusal.reason}")
        self.code = refusal.code


class Uplink:
    """Opens connections to one parent, under one name.

    Args:
        parent: `ws://HOST:PORT`.
        name: unique among the parent's children; the machine's name if empty, numbered if that is taken.
    """

    def __init__(self, parent: str, name: str = "") -> None:
        self.parent = parent
        self.name = name or _machine_name()
        self._numbered = 0 if name else 1
        self._session = secrets.token_hex(8)

    def rename(self) -> bool:
        """Takes the next number behind the machine's name; False if people have chosen the name, which then stays."""
        if not self._numbered:
            return False
        self._numbered += 1
        self.name = f"{_machine_name()}-{self._numbered}"
        return True

    async def connect(self, trial: int | None = None) -> tuple[ClientConnection, Welcome]:
        """A connection that has said hello, however long it takes.

        Args:
            trial: in a search, the trial that is being trained.

        Raises:
            Refused: the parent does not want this child.
            GenkidamaError: the address is none, or the parent speaks another protocol.
        """
        wait, longest = BACKOFF_SECONDS
        complained = False
        while True:
            try:
                connection = await self._open()
                try:
                    welcome = await self.greet(connection, trial)
                except BaseException:
                    await connection.close()
                    raise
                log.info("connected", child=self.name, parent=self.parent, run=welcome.run)
                return connection, welcome
            except FAILURES as error:
                if not complained:
                    reason = str(error) or type(error).__name__
                    log.warning("parent not reachable, trying on", child=self.name, parent=self.parent, reason=reason)
                    complained = True
                await asyncio.sleep(random.uniform(0.1, 1.0) * wait)
                wait = min(longest, wait * 2)

    async def greet(self, connection: ClientConnection, trial: int | None = None) -> Welcome:
        """Says hello; errors as `connect`."""
        hello = Hello(protocol=PROTOCOL, name=self.name, session=self._session, software=genkidama.__version__, trial=trial)
        reply = await ask(connection, hello)
        if isinstance(reply, Refusal):
            raise Refused(reply)
        if not isinstance(reply, Welcome):
            raise ProtocolError("order", f"the parent answers hello with {type(reply).__name__}")
        if reply.protocol != PROTOCOL:
            raise EnvironmentFailure(f"{self.parent} speaks protocol {reply.protocol}, this child {PROTOCOL}; install the same version")
        return reply

    async def _open(self) -> ClientConnection:
        try:
            return await connect(
                self.parent,
                compression=None,
                max_size=HANDSHAKE_LIMIT,
                ping_timeout=_PING_SECONDS,
                proxy=None,
                close_timeout=1,
            )
        except (websockets.InvalidURI, ValueError) as error:
            raise ConfigurationError(f"parent = {self.parent!r}: expected ws://HOST:PORT: {error}") from None


async def ask(connection: ClientConnection, request: Request) -> Reply:
    """One request and its one reply.

    Raises:
        TimeoutError, ProtocolError, OSError, WebSocketException: there is none, or it makes no sense.
    """
    async with asyncio.timeout(REPLY_SECONDS):
        await connection.send(encode(request))
        frame = await connection.recv(decode=False)
    return decode_reply(frame)


async def join(connection: ClientConnection, signature: Signature) -> Weights:
    """Says what the vectors on this connection mean; the parent's weights.

    Raises:
        Refused: the parent has another network.
    """
    # The installed websockets has no public way to raise the limit of an open connection.
    connection.protocol.max_message_size = size_limit(signature.size)
    reply = await ask(connection, Join(signature=[(name, list(shape)) for name, shape in signature.entries]))
    if isinstance(reply, Refusal):
        raise Refused(reply)
    if not isinstance(reply, Weights):
        raise ProtocolError("order", f"the parent answers a join with {type(reply).__name__}")
    check(reply, signature)
    return reply


def check(weights: Weights, signature: Signature) -> None:
    """That the parent's vector, if it sends one, is one of this network's.

    Raises:
        ProtocolError: it is not.
    """
    vector = weights.vector
    if vector is not None and len(vector) != signature.size:
        raise ProtocolError("length", f"the parent sends {len(vector)} numbers, expected {signature.size}")
    if vector is not None and not is_finite(vector):
        raise ProtocolError("finite", "the parent sends NaN or infinity")


def _machine_name() -> str:
    host = socket.gethostname().partition(".")[0]
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "-" for letter in host)
    return name.strip("-_")[:48] or "child"
