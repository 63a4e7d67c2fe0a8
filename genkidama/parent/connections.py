"""All connections of a parent, the child of each, and the end of bad ones.

Laws of this file:
- A child without a token that the parent knows, where one is needed, gets an HTTP answer and no
  websocket. A token for one name admits only that name.
- A connection's first message is a `Hello`; its name stays the connection's. In a
  search a node says hello again on the same connection whenever it has no trial.
- Every message gets exactly one reply. A refusal before the join ends the connection with code
  1008; after it, only malformed messages do.
- A name belongs to one connection at a time. The same child on a new connection takes its name
  over, and the end of the old connection has no further effect. It is the same child if name and
  session are the same, or if the old connection answers no ping and the child has a token of that
  name or none is needed.
- Nothing waits between the decoding of a message and the encoding of its reply.
- A pull that may wait is answered when there is something new, and at the latest before the child's
  next message.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

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
    RequestFirstProtocol,
    close_with_refusal,
    decode,
)
from genkidama.protocol.messages import (
    HANDSHAKE_LIMIT,
    SLOWEST_LINK,
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
from genkidama.protocol.tokens import ANY
from genkidama.protocol.vector import DTYPE
from genkidama.server.limits import ConnectionLimits, ConnectionSlot

if TYPE_CHECKING:
    from genkidama.parent.parent import Parent

#: Refusals after which a child that has joined is taken to speak another protocol.
_FATAL = frozenset({"malformed", "unknown"})

#: Seconds between two pings of a child; there are at least two in `parent.silence_seconds`.
_PING_SECONDS = 20.0

#: Messages that wait for their turn. A child that keeps the rules has one at most; more are left in
#: the kernel, since each may be hundreds of megabytes long.
_QUEUE = 1


class ConnectionManager:
    """All connections of one parent. websockets calls `handle` for each."""

    #: Seconds from the connection to the hello; a slow network takes one or two.
    hello_seconds = 10.0
    #: Seconds to answer a ping, when another child with the same token asks for the name.
    pong_seconds = 3.0
    #: Seconds for the TLS handshake, and for the HTTP upgrade.
    open_seconds = 10.0
    #: Seconds for a closing handshake.
    close_seconds = 2.0

    def __init__(self, parent: Parent) -> None:
        #: The children that have said hello and neither left nor lost their connection.
        self.children: dict[str, ServerConnection] = {}
        #: Knows the tokens; None lets everybody in.
        self.authenticator: Authenticator | None = None
        self._parent = parent
        self._server = parent.server
        self._settings = settings = parent.server.experiment.parent
        self._ping_seconds = min(_PING_SECONDS, settings.silence_seconds / 2)
        self.limits = ConnectionLimits(settings.max_children, settings.max_per_address)
        self._open: set[Connection] = set()
        #: The connections that hold a reply until `flush`, which is due if there are any.
        self.holding: list[Connection] = []
        #: By name: the connections of the children whose pull waits for something new.
        self._waiting: dict[str, Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()
        #: The connections that are being closed, since the run is over.
        self._dismissed: set[ServerConnection] = set()

    def make(self, server: Server, slot: ConnectionSlot) -> Connection:
        """A connection of this server of websockets', without a transport yet."""
        return Connection(
            self,
            self._settings,
            slot,
            RequestFirstProtocol(max_size=HANDSHAKE_LIMIT),  # no extensions: weights do not deflate
            server,
            ping_interval=self._ping_seconds,
            ping_timeout=self._settings.silence_seconds - self._ping_seconds,
            close_timeout=self.close_seconds,
            max_queue=_QUEUE,
        )

    def add(self, connection: Connection) -> None:
        """Notes an accepted connection, whose HTTP request has not come yet."""
        self._open.add(connection)

    def remove(self, connection: Connection, seconds: float) -> None:
        """Forgets a connection that is gone, after this time."""
        self._open.discard(connection)
        self.limits.leave(connection.slot)
        if connection.fault is not None:
            names = (name for name, each in self.children.items() if each is connection)
            self.refuse(next(names, connection.peer), connection.fault)
        elif connection.request is None and seconds >= self.open_seconds:
            reason = f"no HTTP upgrade within {self.open_seconds:g} s"
            self.refuse(connection.peer, ProtocolError("silent", reason))

    def flush(self) -> None:
        """Sends the replies that are held."""
        holding, self.holding = self.holding, []
        for connection in holding:
            connection.release()

    def refuse(self, peer: str, error: ProtocolError) -> Refusal:
        """Counts and notes a connection or a message that is not allowed."""
        return self._server.refuse(peer, error, self._parent.now())

    def account(self) -> None:
        """Slows down children over their budgets. To be called often."""
        now = asyncio.get_running_loop().time()
        for connection in tuple(self._open):
            connection.account(now)

    def admit(self, connection: ServerConnection, request: HttpRequest) -> HttpResponse | None:
        """For websockets' `process_request`."""
        assert isinstance(connection, Connection)
        for observer in self._parent.observers:
            response = observer.answer(connection, request)
            if response is not None or connection.served_by is not None:
                return response
        connection.admitted, response = answer(
            connection, request, self.authenticator, self._settings.browsers
        )
        if response is not None and (code := REFUSED_BY.get(response.status_code)) is not None:
            reason = (response.body or b"").decode().strip()
            self.refuse(connection.peer, ProtocolError(code, reason))
        return response

    async def handle(self, connection: ServerConnection) -> None:
        """Serves one connection until it ends."""
        assert isinstance(connection, Connection)
        if connection.served_by is not None:
            await connection.served_by()
            return
        peer = connection.peer
        name = ""
        try:
            hello = await self._first(connection)
            if connection.admitted not in (ANY, hello.name):
                raise _foreign_token(connection.admitted, hello.name)
            await self._evict_stale(hello, connection.admitted)
            reply = self._server.handle(peer, hello, self._parent.now())
            if isinstance(reply, Refusal):
                await close_with_refusal(connection, reply)
                return
            name = hello.name
            self.limits.settle(connection.slot)
            self._take_over(name, connection)
            self._parent.after_message()
            await connection.send(encode(reply))
            await self._converse(connection, name)
        except ProtocolError as error:
            await close_with_refusal(connection, self.refuse(peer, error))
        except ConnectionClosed as closed:
            self._note_closed(name or peer, closed)
        finally:
            if name and self.children.get(name) is connection:
                del self.children[name]
                self._waiting.pop(name, None)
                close = connection.protocol.close_rcvd
                knows = close is not None and close.code == CloseCode.NORMAL_CLOSURE
                self._server.disconnected(name, connection.ending, self._parent.now(), knows)
                self._parent.after_disconnect()

    def answer_long_polls(self) -> None:
        """Answers the pulls that wait, wherever there is something new."""
        for name, connection in tuple(self._waiting.items()):
            if connection.free and (reply := self._pulled(name, Pull(wait=True))):
                del self._waiting[name]
                connection.write(reply)

    def dismiss(self) -> None:
        """Tells the children that are left that the run is over. One that does not answer is cut
        off, and may come back to hear it."""
        for connection in set(self.children.values()) - self._dismissed:
            self._dismissed.add(connection)
            self._close(connection, CloseCode.NORMAL_CLOSURE, "the run is over")

    def exclude(self, name: str) -> None:
        """Closes the connection of a child that the server has excluded; if it comes back, it is
        told why."""
        self._waiting.pop(name, None)
        if (connection := self.children.pop(name, None)) is not None:
            self._close(connection, CloseCode.POLICY_VIOLATION, "the run's owner has excluded it")

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
        """Answers all that follows the hello, but for most pushes, which the connection answers."""
        joined, silence = False, self._settings.silence_seconds
        answer = partial(self._answer_at_once, connection, name)
        while True:
            connection.answer = answer if joined else None
            frame = await connection.recv()
            connection.answer = None
            if self.children.get(name) is not connection:
                return  # the child speaks on another connection now
            if waited := self._answer_waiting(name):
                await connection.send(waited)
            now = self._parent.now()
            kind: type[Any] | None = None
            reply: Reply
            try:
                message = decode(frame)
                kind = type(message)
                if isinstance(message, Hello) and (
                    message.name != name or not self._server.idle(name)
                ):
                    raise ProtocolError("order", "a second hello on one connection")
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
                self._parent.after_message()
            elif kind is Push or kind is Leave:
                self._parent.after_message()
            elif kind is Join:
                joined = True
                trial = self._server.children[name].trial
                assert trial is not None  # a join that is not refused has set both
                largest = self._server.trials.rule.largest(trial.held.size)
                connection.set_limit(size_limit(largest))
                # A ping waits behind a reply, and its answer behind a push.
                slow = 2 * largest * DTYPE.itemsize / SLOWEST_LINK
                connection.ping_timeout = silence - self._ping_seconds + slow
            await connection.send(encode(reply))
            if kind is Leave:
                return

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
            connection.write(self._answer_waiting(name))
        if isinstance(message, Pull):
            reply = self._pulled(name, message)
            if not reply:
                self._waiting[name] = connection
            return reply
        answer = self._server.handle(name, message, self._parent.now())
        self._parent.after_message()
        return encode(answer)

    def _pulled(self, name: str, pull: Pull) -> bytes:
        """The reply to a pull; empty if that may wait, since there is nothing new."""
        reply = self._server.handle(name, pull, self._parent.now())
        idle = isinstance(reply, Weights) and reply.vector is None and not reply.stop
        return b"" if idle and pull.wait else encode(reply)

    def _answer_waiting(self, name: str) -> bytes:
        """The reply to the child's pull that has waited till now; empty if there is none."""
        return self._pulled(name, Pull()) if self._waiting.pop(name, None) else b""

    async def _evict_stale(self, hello: Hello, admitted: str) -> None:
        """Frees the name of a machine that lost its power and returns before it was missed.

        A token of its own proves that it is that machine; without tokens nothing is proven anyway.
        A ping without an answer proves that the old connection is dead. If that one lives, two
        machines share a token or a name, and the second is refused.
        """
        old, record = self.children.get(hello.name), self._server.children.get(hello.name)
        proven = self.authenticator is None or admitted == hello.name
        if not proven or old is None or record is None or record.session == hello.session:
            return
        try:
            async with asyncio.timeout(self.pong_seconds):
                await (await old.ping())
        except (TimeoutError, ConnectionClosed):
            if self.children.get(hello.name) is old:
                self._server.disconnected(hello.name, "it has started again", self._parent.now())

    def _take_over(self, name: str, connection: ServerConnection) -> None:
        old = self.children.get(name)
        self.children[name] = connection
        self._waiting.pop(name, None)
        if old is not None:
            why = "the child speaks on another connection"
            self._close(old, CloseCode.POLICY_VIOLATION, why)

    def _close(self, connection: ServerConnection, code: CloseCode, reason: str) -> None:
        closing = asyncio.create_task(connection.close(code, reason))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _note_closed(self, child: str, closed: ConnectionClosed) -> None:
        """Counts what websockets refused on its own."""
        sent = closed.sent
        if sent is None or closed.rcvd_then_sent or sent.code not in CLOSED_FOR:
            return
        reason = f"{sent.reason or 'closed'} ({sent.code})"
        self.refuse(child, ProtocolError(CLOSED_FOR[sent.code], reason))


def _foreign_token(admitted: str, name: str) -> ProtocolError:
    return ProtocolError(
        "token",
        f"this token is for {admitted!r}, and this child says it is {name!r}; "
        f"name it {admitted!r}, or give it a token of its own",
    )
