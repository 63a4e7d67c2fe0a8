"""Which child speaks on which connection, and how a connection ends that breaks the rules.

Laws of this file:
- A child that needs a token and shows none that the parent knows gets an HTTP answer and no
  websocket. A token of one name admits that name only.
- A connection's first message is a `Hello`; the name in it is the connection's for good. In a
  search a node says hello again on the same connection whenever it has no trial.
- Every message gets exactly one reply. A refusal before the join ends the connection with code
  1008; after it, only bytes that are no message do.
- A name belongs to one connection at a time. The same child on a new connection takes its name
  over, and the end of the old connection means nothing any more. It is the same child if name and
  session are the same. It is taken to be the same if the old connection answers no ping and it has
  a token of that name, or nobody needs one.
- Nothing waits between the decoding of a message and the reply's encoding.
- A pull that may wait is answered when there is something new, and else before the child's next
  message is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from websockets.asyncio.server import Server, ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response as HttpResponse

from genkidama.errors import ProtocolError
from genkidama.parent.authentication import Authenticator, answer
from genkidama.parent.connection import (
    CLOSED_FOR,
    REFUSED_BY,
    Connection,
    Protocol,
    address_of,
    check_name,
    close_with_refusal,
    decode,
)
from genkidama.plugins.dashboard.endpoint import Dashboard
from genkidama.protocol.messages import (
    HANDSHAKE_LIMIT,
    Hello,
    Join,
    Leave,
    Pull,
    Push,
    Refusal,
    Reply,
    Weights,
    decode_request,
    encode,
    size_limit,
)
from genkidama.server.limits import ConnectionLimits
from genkidama.server.parameter_server import ParameterServer

__all__ = ["ConnectionManager"]

#: Refusals after which a child that has joined is not believed to speak our protocol at all.
_FATAL = frozenset({"malformed", "unknown"})


class ConnectionManager:
    """All connections of one parent. Its `handle` is what websockets calls for each.

    Args:
        server: decides what each message is answered.
        now: the parent's clock, in seconds.
        pushed: called with the clock's seconds after each message that may have changed something,
            before the next is handled.
        ended: called when a child's connection has ended.
    """

    #: A child says hello as soon as it is connected; a slow network takes a second or two.
    hello_seconds = 10.0
    #: A child may take so long to answer a ping when another one with its token wants its name.
    pong_seconds = 3.0
    #: The HTTP upgrade may take so long, for the reason of the hello.
    open_seconds = 10.0

    def __init__(
        self,
        server: ParameterServer,
        now: Callable[[], float],
        pushed: Callable[[float], None],
        ended: Callable[[], None],
    ) -> None:
        #: The children that have said hello and neither left nor lost their connection.
        self.children: dict[str, ServerConnection] = {}
        #: Knows the tokens; None lets everybody in.
        self.admission: Authenticator | None = None
        settings = server.experiment.parent
        #: Says how many connections there may be.
        self.doors = ConnectionLimits(settings.max_children, settings.max_per_address)
        self._settings = settings
        self._server = server
        self._now = now
        self._pushed = pushed
        self._ended = ended
        #: What is shown of the run.
        self.site = Dashboard(server, self.children, self.doors, now, self.refused)
        self._open: set[Connection] = set()
        #: By name: the connections of the children whose pull waits for something new.
        self._waiting: dict[str, Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def create(self, server: Server, **options: Any) -> Connection:
        """A connection of websockets' server, with its options and no transport yet."""
        # Without extensions: weights do not deflate.
        protocol = Protocol(max_size=HANDSHAKE_LIMIT)
        made, lost = self._open.add, self._lost
        return Connection(self._settings, made, lost, protocol, server, **options)

    def refused(self, address: str, error: ProtocolError) -> None:
        """A connection from this address does not fit."""
        self._server.refuse(address, error, self._now())

    def account(self) -> None:
        """Slows down who says too much. To be called often."""
        now = asyncio.get_running_loop().time()
        for connection in tuple(self._open):
            connection.account(now)

    def admit(self, connection: ServerConnection, request: HttpRequest) -> HttpResponse | None:
        """For websockets' `process_request`."""
        assert isinstance(connection, Connection)
        shown, response = self.site.answer(connection, request)
        if shown:
            return response
        connection.admitted, response = answer(connection, request, self.admission)
        if response is not None and (code := REFUSED_BY.get(response.status_code)) is not None:
            reason = (response.body or b"").decode().strip()
            self.refused(address_of(connection), ProtocolError(code, reason))
        return response

    async def handle(self, connection: ServerConnection) -> None:
        """Serves one connection until it ends."""
        assert isinstance(connection, Connection)
        if connection.watching:
            await self.site.watch(connection)
            return
        peer = address_of(connection)
        name = ""
        try:
            hello = await self._first(connection)
            check_name(hello.name, connection.admitted)
            await self._evict_stale(hello, connection.admitted)
            reply = self._server.handle(peer, hello, self._now())
            if isinstance(reply, Refusal):
                await close_with_refusal(connection, reply)
                return
            name = hello.name
            if connection.visit is not None:
                self.doors.settle(connection.visit)
            self._take_over(name, connection)
            self._pushed(self._now())
            await connection.send(encode(reply))
            await self._converse(connection, name)
        except ProtocolError as error:
            await close_with_refusal(connection, self._server.refuse(peer, error, self._now()))
        except ConnectionClosed as closed:
            self._note_closed(name or peer, closed)
        finally:
            if name and self.children.get(name) is connection:
                del self.children[name]
                self._waiting.pop(name, None)
                self._server.disconnected(name, connection.ending, self._now())
                self._ended()

    def answer_long_polls(self) -> None:
        """Answers the pulls that wait, wherever there is something new."""
        for name, connection in tuple(self._waiting.items()):
            if connection.free and (reply := self._pulled(name, Pull(wait=True))):
                del self._waiting[name]
                connection.write(reply)

    def abort_unopened(self) -> None:
        """Drops the connections that are still in their HTTP upgrade."""
        for connection in tuple(self._open):
            connection.abort_unopened()

    async def _first(self, connection: ServerConnection) -> Hello:
        try:
            async with asyncio.timeout(self.hello_seconds):
                frame = await connection.recv()
        except TimeoutError:
            raise ProtocolError("silent", f"no hello within {self.hello_seconds:g} s") from None
        message = decode(frame)
        if not isinstance(message, Hello):
            raise ProtocolError(
                "order",
                "the first message of a connection is a hello, "
                f"not a {type(message).__name__.lower()}",
            )
        return message

    async def _converse(self, connection: Connection, name: str) -> None:
        """Answers all that follows the hello, but for most pushes, which the channel answers."""
        joined = False
        answer = partial(self._answer_at_once, connection, name)
        while True:
            connection.answer = answer if joined else None
            frame = await connection.recv()
            connection.answer = None
            if self.children.get(name) is not connection:
                return  # the child speaks on another connection now
            if waited := self._let_go(name):
                await connection.send(waited)
            now = self._now()
            kind: type[Any] | None = None
            reply: Reply
            try:
                message = decode(frame)
                kind = type(message)
                if isinstance(message, Hello):
                    self._check_again(message, name)
            except ProtocolError as error:
                reply = self._server.refuse(name, error, now)
            else:
                reply = self._server.handle(name, message, now)
            if isinstance(reply, Refusal):
                if not joined or reply.code in _FATAL:
                    await close_with_refusal(connection, reply)
                    return
            elif kind is Hello:
                joined = False
                connection.set_limit(HANDSHAKE_LIMIT)
                self._pushed(now)
            elif kind is Push or kind is Leave:
                self._pushed(now)
            elif kind is Join:
                joined = True
                trial = self._server.children[name].trial
                assert trial is not None  # a join that is not refused has set both
                largest = self._server.trials.rule.largest(trial.held.size)
                connection.set_limit(size_limit(largest))
            await connection.send(encode(reply))
            if kind is Leave:
                return

    def _check_again(self, hello: Hello, name: str) -> None:
        if hello.name != name or not self._server.idle(name):
            raise ProtocolError("order", "a second hello on one connection")

    def _answer_at_once(self, connection: Connection, name: str, frame: bytes) -> bytes | None:
        """The reply to a push or a pull of a child that has joined; empty if that comes later.

        None for any other message, with nothing changed.
        """
        try:
            message = decode_request(frame)
        except ProtocolError:
            return None
        kind = type(message)
        if not (kind is Push or kind is Pull) or self.children.get(name) is not connection:
            return None
        if name in self._waiting:
            connection.write(self._let_go(name))
        if isinstance(message, Pull):
            reply = self._pulled(name, message)
            if not reply:
                self._waiting[name] = connection
            return reply
        now = self._now()
        answer = self._server.handle(name, message, now)
        self._pushed(now)
        return encode(answer)

    def _pulled(self, name: str, pull: Pull) -> bytes:
        """The reply to a pull; empty if that may wait, since there is nothing new."""
        reply = self._server.handle(name, pull, self._now())
        idle = isinstance(reply, Weights) and reply.vector is None and not reply.stop
        return b"" if idle and pull.wait else encode(reply)

    def _let_go(self, name: str) -> bytes:
        """The reply to the child's pull that has waited till now; empty if there is none."""
        return self._pulled(name, Pull()) if self._waiting.pop(name, None) else b""

    async def _evict_stale(self, hello: Hello, admitted: str) -> None:
        """Frees the name of a machine that lost its power and returns before it was missed.

        A token of its own proves that it is that machine; without tokens nothing is proven anyway.
        A ping without an answer proves that the old connection is dead. If that one lives, two
        machines share a token or a name, and the second is refused.
        """
        old, known = self.children.get(hello.name), self._server.children.get(hello.name)
        proven = self.admission is None or admitted == hello.name
        if not proven or old is None or known is None or known.session == hello.session:
            return
        try:
            async with asyncio.timeout(self.pong_seconds):
                await (await old.ping())
        except (TimeoutError, ConnectionClosed):
            if self.children.get(hello.name) is old:
                self._server.disconnected(hello.name, "it has started again", self._now())

    def _take_over(self, name: str, connection: ServerConnection) -> None:
        old = self.children.get(name)
        self.children[name] = connection
        self._waiting.pop(name, None)
        if old is not None:
            closing = asyncio.create_task(
                old.close(CloseCode.POLICY_VIOLATION, "the child speaks on another connection")
            )
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _note_closed(self, child: str, closed: ConnectionClosed) -> None:
        """Counts what websockets refused on its own."""
        sent = closed.sent
        if (
            sent is not None
            and not closed.rcvd_then_sent
            and (code := CLOSED_FOR.get(sent.code)) is not None
        ):
            self._server.refuse(
                child, ProtocolError(code, f"{sent.reason or 'closed'} ({sent.code})"), self._now()
            )

    def _lost(self, connection: Connection, seconds: float) -> None:
        self._open.discard(connection)
        if connection.visit is not None:
            self.doors.leave(connection.visit)
        if connection.fault is not None:
            names = (name for name, each in self.children.items() if each is connection)
            self.refused(next(names, address_of(connection)), connection.fault)
        elif connection.request is None and seconds >= self.open_seconds:
            error = ProtocolError("silent", f"no HTTP upgrade within {self.open_seconds:g} s")
            self._server.refuse(address_of(connection), error, self._now())
