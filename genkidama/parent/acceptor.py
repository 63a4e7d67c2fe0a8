"""The parent's door: takes connections from its sockets, and lets in what fits.

Laws of this file:
- Each connection is counted from its first byte on, before TLS. `genkidama.server.limits` says
  whether it fits. One that does not is closed at once; without TLS it is told when to come again,
  and of a crowd each is told another time.
- Some descriptors stay free for checkpoints and the history, however many connections come.
- What is accepted is counted or closed in the same step. Between `loop.sock_accept` and the task
  that waits for it lies a turn of the loop, and a door that closes in it would lose the socket.

websockets knows all that happens on a connection. It leaves to asyncio who may open one, and
asyncio asks nobody. So this takes the place of asyncio's server in websockets' own, and has the
methods that are called there.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

from structlog.typing import FilteringBoundLogger
from websockets.asyncio.server import Server

from genkidama.config.sections import ParentSettings
from genkidama.errors import EnvironmentFailure, ProtocolError
from genkidama.parent.connection import PIECE_BYTES, SERVER, Connection
from genkidama.runtime.address import explain, parse_listen
from genkidama.runtime.machine import descriptors_left
from genkidama.server.limits import ConnectionLimits, ConnectionSlot, check_exposed

__all__ = ["Acceptor", "bind", "make_room"]

#: Connections that the kernel keeps until they are taken.
_BACKLOG = 256

#: After an error in taking one, as in a moment without descriptors, the next is waited for so long.
_RETRY_SECONDS = 0.1

#: Who is turned away may come again after so many seconds: a crowd comes in over this time.
_AGAIN_SECONDS = (1, 8)

#: Who is turned away before it has asked hears of it for so long, and so many at once.
_PARTING_SECONDS = 1.0
_MOST_PARTING = 32

_TURNED_AWAY = (
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: {seconds}\r\n"
    f"Server: {SERVER}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


class Acceptor:
    """What websockets takes for asyncio's server.

    Args:
        sockets: bound, and not listening yet.
        doors: says who may come in.
        refused: called with the address of one that may not, and why.
        context: for TLS, or None.
        open_seconds: TLS may take so long to begin.
        close_seconds: TLS may take so long to end.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        doors: ConnectionLimits,
        refused: Callable[[str, ProtocolError], None],
        context: ssl.SSLContext | None,
        open_seconds: float,
        close_seconds: float,
    ) -> None:
        self.sockets = tuple(sockets)
        self._doors = doors
        self._refused = refused
        self._options: dict[str, Any] = {}
        if context is not None:
            self._options = {
                "ssl": context,
                "ssl_handshake_timeout": open_seconds,
                "ssl_shutdown_timeout": close_seconds,
            }
        self._make: Callable[[], Connection]
        self._serving = False
        self._opening: dict[asyncio.Task[None], tuple[socket.socket, ConnectionSlot]] = {}
        #: Of these, those that are being opened already.
        self._begun: set[ConnectionSlot] = set()
        #: Sockets of those that were turned away, until they have heard it.
        self._parting: set[socket.socket] = set()

    def stand_in(self, server: Server, make: Callable[[], Connection]) -> None:
        """Takes the place of asyncio's server in this one, which does not serve yet.

        Args:
            make: makes a connection for it, which has no transport yet.
        """
        server.server.close()
        server.server = cast(asyncio.Server, self)
        self._make = make

    # What websockets calls.

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        """Raises an `OSError` if nobody can listen there."""
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
        for task, (_, visit) in self._opening.items():
            # Without TLS a connection is there in a moment. If it is cancelled in that moment,
            # uvloop closes it, and never tells it of its end.
            if self._options or visit not in self._begun:
                task.cancel()

    async def wait_closed(self) -> None:
        if self._opening:
            await asyncio.wait(self._opening)

    # Inside.

    def _watch(self, listening: socket.socket) -> None:
        if self._serving:
            asyncio.get_running_loop().add_reader(listening, self._take, listening)

    def _take(self, listening: socket.socket) -> None:
        try:
            taken, address = listening.accept()
        except (BlockingIOError, InterruptedError):  # it was gone before it was taken
            return
        except OSError:
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening)
            loop.call_later(_RETRY_SECONDS, self._watch, listening)
            return
        taken.setblocking(False)
        self._receive(taken, address)

    def _receive(self, taken: socket.socket, address: Any) -> None:
        host, port = address[:2] if isinstance(address, tuple) else ("", 0)
        try:
            visit = self._doors.enter(host)
        except ProtocolError as error:
            self._turn_away(taken)
            self._refused(f"{host}:{port}" if host else "unknown", error)
            return
        task = asyncio.create_task(self._open(taken, visit))
        self._opening[task] = taken, visit
        task.add_done_callback(self._opened)

    def _turn_away(self, taken: socket.socket) -> None:
        if self._options:  # a client that begins TLS reads nothing else
            taken.close()
            return
        answer = _TURNED_AWAY.format(seconds=random.randint(*_AGAIN_SECONDS))  # noqa: S311
        asked = b""
        with suppress(OSError):
            taken.send(answer.encode())
            taken.shutdown(socket.SHUT_WR)
            asked = taken.recv(PIECE_BYTES)
        # What comes for a socket that is closed resets it, and the answer may be lost.
        if asked or len(self._parting) >= _MOST_PARTING:
            taken.close()
            return
        self._parting.add(taken)
        asyncio.get_running_loop().call_later(_PARTING_SECONDS, self._part, taken)

    def _part(self, taken: socket.socket) -> None:
        self._parting.discard(taken)
        taken.close()

    def _opened(self, task: asyncio.Task[None]) -> None:
        taken, visit = self._opening.pop(task)
        if visit not in self._begun:  # cancelled before its first step
            taken.close()
            self._doors.leave(visit)
        self._begun.discard(visit)

    async def _open(self, taken: socket.socket, visit: ConnectionSlot) -> None:
        """Makes a connection of it. From then on the connection says when it is gone."""
        self._begun.add(visit)
        with suppress(OSError):  # a socket of another family has no such option
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel = self._make()
        channel.visit = visit
        try:
            loop = asyncio.get_running_loop()
            # The protocol is told of the transport, or lives no further.
            await loop.connect_accepted_socket(lambda: channel, taken, **self._options)
        except (OSError, ssl.SSLError, TimeoutError):
            taken.close()
        finally:
            if not channel.made:
                self._doors.leave(visit)
            elif not self._serving:
                channel.abort_unopened()


async def bind(listen: str, settings: ParentSettings | None) -> list[socket.socket]:
    """Sockets for all addresses that `listen` means, not listening yet.

    Args:
        listen: as `parse_listen` takes it.
        settings: say whether other machines may come; None if that is answered for.

    Raises:
        ConfigurationError: it is no address, or lets other machines in that should not.
        EnvironmentFailure: nobody can listen there.
    """
    binding = parse_listen(listen)
    try:
        given = "sock" in binding
        sockets = [binding["sock"]] if given else await _bind(binding["host"], binding["port"])
    except OSError as error:
        raise explain(listen, error) from None
    except UnicodeError as error:  # what Python's IDNA codec says of a host like "a..b"
        raise EnvironmentFailure(
            f"cannot listen on {listen}: no valid host name: {error}"
        ) from None
    try:
        for each in sockets:
            # Sockets of other families do not leave the machine.
            if settings is not None and each.family in (socket.AF_INET, socket.AF_INET6):
                check_exposed(settings, str(each.getsockname()[0]))
    except BaseException:
        _close(sockets)
        raise
    return sockets


async def _bind(host: str, port: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            each = socket.socket(family, kind, protocol)
            sockets.append(each)
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind(address)
    except BaseException:
        _close(sockets)
        raise
    return sockets


def _close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()


def make_room(doors: ConnectionLimits, log: FilteringBoundLogger) -> None:
    """Lets no more connections in than there are descriptors for.

    Raises:
        EnvironmentFailure: there are none for a single one.
    """
    room = descriptors_left(doors.limit)
    way_out = "raise the limit: ulimit -n, or LimitNOFILE of a unit"
    if room < 1:
        raise EnvironmentFailure(
            f"this process may not open enough files for a single connection; {way_out}"
        )
    if room < doors.limit:
        log.warning("few connections", limit=room, wanted=doors.limit, way_out=way_out)
        doors.limit = room
