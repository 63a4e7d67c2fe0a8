"""Targets that open the parent's port: plain HTTP, and a connection from its first byte on.

An input of `port` is a list of what arrives, piece by piece: bytes as they are, or
`[first byte, mask, map or bytes]`, a websocket frame.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from functools import cache
from typing import Any

from websockets.asyncio.server import Server, serve
from websockets.frames import apply_mask
from websockets.http11 import Request, Response

from genkidama.config.experiment import Experiment
from genkidama.parent.connection import Connection, RequestFirstProtocol
from genkidama.parent.connections import ConnectionManager
from genkidama.parent.extensions import Observer
from genkidama.plugins.dashboard.routes import answer, is_watching, make_response, parse_request
from genkidama.plugins.dashboard.viewers import Viewers
from genkidama.protocol.messages import PROTOCOL, Hello, Join, Leave, Pull, Push
from genkidama.server.parameter_server import ParameterServer
from tests.fuzzing.conversations import ENTRIES, FIELDS, VECTOR, step
from tests.fuzzing.mutation import Target, framed, mutated_text, mutated_tree, pack, unpack
from tests.plugins.dashboard.test_routes import OPEN, Shown
from tests.plugins.dashboard.test_viewers import COOKIE, KNOWN, TOKEN

_ASKED = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1:8765\r\n%s\r\n"
_UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def http(data: bytes) -> None:
    """A request is answered or none of the page's, and no answer gives more than its status."""
    protocol = RequestFirstProtocol()
    protocol.receive_data(data)
    protocol.receive_eof()
    for request in protocol.events_received():
        assert isinstance(request, Request)
        asked = parse_request(request)
        is_watching(asked)
        for viewers in (OPEN, Viewers(KNOWN)):
            found = answer(asked, Shown(), viewers, 0.0)
            if found is None:
                continue
            sent = make_response(found, asked).serialize()
            head, _, body = sent.partition(b"\r\n\r\n")
            assert head.startswith(f"HTTP/1.1 {int(found.status)} ".encode())
            names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
            assert len(names) == 2 + len(found.all_headers)
            assert body == (b"" if asked.method == "HEAD" else found.body)
            # A host that is none is repeated, whatever it is.
            assert TOKEN.encode() not in sent or TOKEN in asked.headers["host"]


def _some_requests() -> list[bytes]:
    cookie = f"Cookie: a=b; genkidama-8765={COOKIE}\r\nAccept-Encoding: gzip\r\n".encode()
    bearer = f"Authorization: Bearer {TOKEN}\r\nOrigin: http://127.0.0.1:8765\r\n".encode()
    paths = (b"/", b"/healthz", b"/readyz", b"/metrics", b"/static/page.js?v=1", b"/status")
    return [
        *(_ASKED % (path, more) for path in paths[:1] for more in (b"", cookie, bearer)),
        *(_ASKED % (path, cookie) for path in paths[1:]),
        _ASKED % (b"/?key=the-key-of-a-link", b""),
        _ASKED % (b"/watch", _UPGRADE + bearer),
    ]


# A connection.


class _Page(Observer):
    """The page, which answers plain HTTP on the same port."""

    def answer(self, connection: Connection, request: Request) -> Response | None:
        asked = parse_request(request)
        if "upgrade" in asked.headers:
            return None
        found = answer(asked, Shown(), OPEN, 0.0)
        return None if found is None else make_response(found, asked)


class _Host:
    """A parent without a disk."""

    def __init__(self) -> None:
        self.server = ParameterServer(_experiment(), "run")
        self.observers = [_Page()]
        self.messages = 0

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def after_message(self) -> None:
        self.messages += 1

    def after_disconnect(self) -> None:
        pass


class _Faults(logging.Handler):
    """Notes what websockets or asyncio could not explain."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage()
        # A request that is none: websockets answers it by 400 and logs it as an error.
        if words != "opening handshake failed":
            self.found.append(f"{words}: {record.exc_info and record.exc_info[1]!r}")


@cache
def _experiment() -> Experiment:
    return Experiment().with_settings({"parent.max_parameters": 64})


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def port(data: bytes) -> None:
    """Whatever arrives at the port, the connection ends when its peer goes, and leaves nothing."""
    pieces = unpack(data)
    if isinstance(pieces, list):
        _loop().run_until_complete(_arrive([*filter(None, map(_bytes, pieces[:32]))]))


def _bytes(piece: Any) -> bytes:
    match piece:
        case bytes():
            return piece
        case [int(first), bytes(mask), bytes() | dict() as content]:
            payload = content if isinstance(content, bytes) else framed(content)
            return client_frame(first & 255, payload, mask[:4].ljust(4, b"\0"))
        case [int(first), bytes(mask), [dict() as content, bytes(behind)]]:
            return client_frame(first & 255, framed(content, behind), mask[:4].ljust(4, b"\0"))
    return b""


def client_frame(first: int, payload: bytes, mask: bytes = b"\1\2\3\4") -> bytes:
    """A websocket frame of a client (RFC 6455 §5.2); `first` holds FIN, RSV and the opcode."""
    size = len(payload)
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2)
    return bytes((first,)) + length + mask + apply_mask(payload, mask)


async def _arrive(pieces: list[bytes]) -> None:
    faults = _Faults()
    logger = logging.Logger("port")
    logger.addHandler(faults)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.found.append(str(context)))
    host = _Host()
    manager = ConnectionManager(host)  # type: ignore[arg-type]
    server = await _server(manager, logger)
    connection = manager.make(server, manager.limits.enter("10.0.0.1"))
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours:
        await loop.connect_accepted_socket(lambda: connection, theirs)
        for piece in pieces:
            with suppress(ConnectionError):
                await loop.sock_sendall(ours, piece)
            await asyncio.sleep(0)
            with suppress(BlockingIOError, ConnectionError):
                ours.recv(1 << 16)
        with suppress(OSError):
            ours.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while await loop.sock_recv(ours, 1 << 16):
                pass
    async with asyncio.timeout(5):
        await connection.wait_closed()
        await asyncio.gather(*server.handler_tasks)
    assert not faults.found, faults.found[0]
    assert not manager.children and not manager._open and not host.server.connected
    manager.limits.enter("10.0.0.1")


async def _server(manager: ConnectionManager, logger: Any) -> Server:
    """websockets' server of this parent, which listens nowhere."""
    made = await serve(
        manager.handle,
        sock=socket.socket(),
        process_request=manager.admit,
        server_header=None,
        open_timeout=2,
        logger=logger,
        start_serving=False,
    )
    made.server.close()
    return made


def _some_connections() -> list[bytes]:
    upgrade = _ASKED % (b"/", _UPGRADE)
    messages = [
        Hello(protocol=PROTOCOL, name="a", session="s"),
        Join(signature=ENTRIES),
        Push(version=0, sequence=1, vector=VECTOR),
        Pull(),
        Leave(),
    ]
    frames = [[0x82, b"\1\2\3\4", step(0, message)[2:]] for message in messages]
    hello = framed(frames[0][2][0])
    return [
        pack([upgrade, *frames]),
        pack([_ASKED % (b"/status", b"")]),
        pack([upgrade, [0x02, b"", hello[:9]], [0x89, b"", b"ping"], [0x80, b"", hello[9:]]]),
        pack([upgrade, *frames[:2], [0x88, b"", b"\x03\xe8bye"]]),
        pack([upgrade, [0x81, b"", b"{}"], b"\xff" * 20]),
    ]


_WORDS = (
    *("GET ", "HEAD ", "POST ", "Host: ", "Origin: ", "Cookie: ", "Authorization: Bearer "),
    *("Upgrade: websocket", "/watch", "/status", "/?key=", "http://", "127.0.0.1:8765", "[::1]"),
    *("genkidama-8765=", "\r\n", "%", "é", "\0", "chunked", "Content-Length: 9", " HTTP/1.0"),
)

TARGETS = {
    "http": Target(http, mutated_text, _some_requests, _WORDS),
    "port": Target(port, mutated_tree, _some_connections, FIELDS),
}
