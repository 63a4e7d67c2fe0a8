"""A child that learns nothing: it says on a real socket what a test or a study tells it to say."""

from __future__ import annotations

from typing import Self

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from genkidama.protocol.messages import (
    PROTOCOL,
    Goodbye,
    Hello,
    Join,
    Kind,
    Leave,
    Push,
    Refusal,
    Reply,
    Request,
    Weights,
    Welcome,
    decode_reply,
    encode,
)
from genkidama.protocol.vector import DTYPE, Signature, Vector

#: A small network: 2 by 3 weights and 3 biases.
SIGNATURE = Signature.of([("layer.weight", (3, 2)), ("layer.bias", (3,))])


def vector(value: float = 0.0, signature: Signature = SIGNATURE) -> Vector:
    return np.full(signature.size, value, DTYPE)


class FakeChild:
    """One connection. `async with` opens and closes it.

    Every method but `tell` sends one request and gives its reply, a `Refusal` too.
    """

    def __init__(
        self,
        address: tuple[str, int],
        name: str = "pi",
        session: str = "1",
        signature: Signature = SIGNATURE,
    ) -> None:
        self.url = f"ws://{address[0]}:{address[1]}"
        self.name = name
        self.session = session
        self.signature = signature
        #: What its pushes bring.
        self.kind: Kind = "weights"
        self.version = 0
        self.sequence = 0
        self.connection: ClientConnection

    async def __aenter__(self) -> Self:
        self.connection = await connect(self.url, compression=None, max_size=None)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()

    async def tell(self, frame: bytes | bytearray | str) -> Reply:
        """Sends what need not be a message."""
        await self.connection.send(frame)
        return await self.hear()

    async def hear(self) -> Reply:
        frame = await self.connection.recv()
        assert isinstance(frame, bytes)
        return decode_reply(frame)

    async def ask(self, request: Request) -> Reply:
        return await self.tell(encode(request))

    async def hello(self, protocol: int = PROTOCOL) -> Reply:
        return await self.ask(Hello(protocol=protocol, name=self.name, session=self.session))

    async def join(self) -> Reply:
        return await self.ask(
            Join(signature=[(name, list(shape)) for name, shape in self.signature.entries])
        )

    async def enter(self) -> Weights:
        """Hello and join, both of which must be welcome."""
        welcome = await self.hello()
        assert isinstance(welcome, Welcome), welcome
        reply = await self.join()
        assert isinstance(reply, Weights), reply
        self.version = reply.version
        return reply

    async def push(
        self, weights: Vector | float, returns: list[float] | None = None, steps: int = 10
    ) -> Reply:
        """Pushes a vector, or one filled with a number.

        The next push starts from the reply's version.
        """
        self.sequence += 1
        content = vector(weights, self.signature) if isinstance(weights, float) else weights
        reply = await self.ask(
            Push(
                version=self.version,
                sequence=self.sequence,
                steps=steps,
                returns=returns or [],
                kind=self.kind,
                vector=content,
            )
        )
        if isinstance(reply, Weights):
            self.version = reply.version
        return reply

    async def pushed(self, weights: Vector | float, returns: list[float] | None = None) -> Vector:
        """Pushes what must be accepted, and gives the parent's answer."""
        reply = await self.push(weights, returns)
        assert isinstance(reply, Weights), reply
        assert reply.vector is not None
        return reply.vector

    async def refused(self, request: Request) -> Refusal:
        reply = await self.ask(request)
        assert isinstance(reply, Refusal), reply
        return reply

    async def leave(self, reason: str = "done") -> None:
        assert isinstance(await self.ask(Leave(reason=reason)), Goodbye)

    async def closed(self) -> tuple[int | None, str | None]:
        """Waits until the parent has closed the connection; the close's code and reason."""
        await self.connection.wait_closed()
        return self.connection.close_code, self.connection.close_reason
