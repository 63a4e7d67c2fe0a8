"""Acceptance of connections: takes them from the parent's sockets, within the limits.

Laws of this file:
- Each connection is counted from its first byte on, before TLS. `genkidama.server.limits` says
  whether it fits. One that does not is closed at once; without TLS it gets an HTTP answer with a
  time to retry, which differs within a crowd.
- Some descriptors stay free for checkpoints and the history, however many connections come.
- A socket is counted or closed in the same step that accepts it. With `loop.sock_accept` a turn of
  the loop would come between the two, and a server that closes in it would lose the socket.

websockets handles everything on a connection, and lets asyncio's server admit connections;
asyncio admits all. So an `Acceptor` replaces asyncio's server inside websockets' own,
with the methods that are called there.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, cast

from websockets.asyncio.server import Server, serve

from genkidama.config.sections import ParentSettings
from genkidama.errors import EnvironmentFailure, ProtocolError
from genkidama.parent.connection import PIECE_BYTES, SERVER, Connection
from genkidama.parent.connections import ConnectionManager
from genkidama.runtime.address import explain, parse_listen
from genkidama.runtime.log import FilteringBoundLogger
from genkidama.runtime.machine import descriptors_left
from genkidama.server.limits import ConnectionLimits, check_exposed

#: Connections that the kernel keeps until they are accepted, and how many are at once. One whose
#: first packets find no place there comes again a second later, or three.
_BACKLOG = 4096
_AT_ONCE = 64

#: Seconds without accepting after an error, as in a moment without descriptors.
_RETRY_SECONDS = 0.1

#: Bounds of `Retry-After`, in seconds: a crowd comes in over this time.
_AGAIN_SECONDS = (1, 8)

#: A refused connection stays open for this many seconds, so that its client reads the answer, and
#: at most so many do at once.
_PARTING_SECONDS = 1.0
_MOST_PARTING = 32

_REFUSAL = (
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: {seconds}\r\n"
    f"Server: {SERVER}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


async def make_server(
    connections: ConnectionManager,
    listen: str,
    context: ssl.SSLContext | None,
    settings: ParentSettings | None,
) -> Server:
    """websockets' server with an `Acceptor` in it, bound to all addresses and not serving yet.

    The settings say whether other machines may come; None skips that check.
    """
    try:
        server = await serve(
            connections.handle,
            **parse_listen(listen),
            process_request=connections.admit,
            server_header=None,  # a `Connection` signs every answer itself
            open_timeout=connections.open_seconds,
            start_serving=False,
        )
    except OSError as error:
        raise explain(listen, error) from None
    except UnicodeError as error:  # of Python's IDNA codec, for a host like "a..b"
        raise EnvironmentFailure(
            f"cannot listen on {listen}: no valid host name: {error}"
        ) from None
    sockets = [socket.socket(fileno=os.dup(each.fileno())) for each in server.sockets]
    server.server.close()
    try:
        for each in sockets:
            each.setblocking(False)
            if settings is not None:
                check_exposed(settings, str(each.getsockname()[0]))
    except BaseException:
        _close(sockets)
        raise
    server.server = cast(asyncio.Server, Acceptor(server, connections, sockets, context))
    return server


class Acceptor:
    """A replacement for asyncio's server in websockets' own; its sockets do not listen yet."""

    def __init__(
        self,
        server: Server,
        connections: ConnectionManager,
        sockets: list[socket.socket],
        context: ssl.SSLContext | None,
    ) -> None:
        self.sockets = tuple(sockets)
        self._server = server
        self._connections = connections
        self._options: dict[str, Any] = {}
        if context is not None:
            self._options = {
                "ssl": context,
                "ssl_handshake_timeout": connections.open_seconds,
                "ssl_shutdown_timeout": connections.close_seconds,
            }
        self._serving = False
        self._opening: set[asyncio.Task[None]] = set()
        #: Refused connections whose client may still read the answer.
        self._parting: set[socket.socket] = set()

    # Called by websockets.

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        """Listens. Raises an `OSError` if that is not possible."""
        for each in self.sockets:
            each.listen(_BACKLOG)
        self._serving = True
        for each in self.sockets:
            self._watch(each)

    def close(self) -> None:
        if self._serving:
            for each in self.sockets:
                asyncio.get_running_loop().remove_reader(each)
        self._serving = False
        _close(self.sockets)
        _close(self._parting)
        self._parting.clear()
        # Without TLS a connection opens in a moment and ends by itself. If it is cancelled in that
        # moment, uvloop closes it and never calls `connection_lost`.
        for task in self._opening if self._options else ():
            task.cancel()

    async def wait_closed(self) -> None:
        if self._opening:
            await asyncio.wait(self._opening)

    # Private.

    def _watch(self, listening: socket.socket) -> None:
        if self._serving:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):  # that were all, or the client has gone
                return
            except OSError:
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(_RETRY_SECONDS, self._watch, listening)
                return
            accepted.setblocking(False)
            self._receive(accepted, address)

    def _receive(self, accepted: socket.socket, address: Any) -> None:
        host, port = address[:2]
        try:
            slot = self._connections.limits.enter(host)
        except ProtocolError as error:
            self._turn_away(accepted)
            self._connections.refuse(f"{host}:{port}", error)
            return
        connection = self._connections.make(self._server, slot)
        task = asyncio.create_task(self._open(accepted, connection))
        self._opening.add(task)
        task.add_done_callback(partial(self._finish_opening, accepted, connection))

    async def _open(self, accepted: socket.socket, connection: Connection) -> None:
        with suppress(OSError, ssl.SSLError, TimeoutError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: connection, accepted, **self._options)

    def _finish_opening(
        self, accepted: socket.socket, connection: Connection, task: asyncio.Task[None]
    ) -> None:
        """Frees the slot of a connection that has not opened; one that has does so itself."""
        self._opening.discard(task)
        if not connection.opened:
            accepted.close()
            self._connections.limits.leave(connection.slot)
        elif not self._serving:
            connection.abort_unopened()

    def _turn_away(self, accepted: socket.socket) -> None:
        if self._options:  # a client that begins TLS reads nothing else
            accepted.close()
            return
        answer = _REFUSAL.format(seconds=random.randint(*_AGAIN_SECONDS))  # noqa: S311
        request = b""
        with suppress(OSError):
            accepted.send(answer.encode())
            accepted.shutdown(socket.SHUT_WR)
            request = accepted.recv(PIECE_BYTES)
        # What arrives at a socket that is closed resets it, and the answer may be lost.
        if request or len(self._parting) >= _MOST_PARTING:
            accepted.close()
            return
        self._parting.add(accepted)
        asyncio.get_running_loop().call_later(_PARTING_SECONDS, self._part, accepted)

    def _part(self, accepted: socket.socket) -> None:
        self._parting.discard(accepted)
        accepted.close()


def _close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()


def make_room(limits: ConnectionLimits, log: FilteringBoundLogger) -> None:
    """Lowers the limit of connections to the number of free descriptors, at least one."""
    room = descriptors_left(limits.limit)
    way_out = "raise the limit: ulimit -n, or LimitNOFILE of a unit"
    if room < 1:
        raise EnvironmentFailure(
            f"this process may not open enough files for a single connection; {way_out}"
        )
    if room < limits.limit:
        log.warning("few connections", limit=room, wanted=limits.limit, way_out=way_out)
        limits.limit = room
