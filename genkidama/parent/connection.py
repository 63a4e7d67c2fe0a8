"""One websocket connection, with a short way for what nearly all messages are: pushes and pulls.

websockets hands a message to the coroutine that awaits `recv`: a queue, a future and a task switch,
and on the way back a context manager and a copy of the frame. All that costs more than the blend of
a small network. A push needs none of it, since nothing waits between its arrival and its reply, so
it is answered inside the callback in which it arrives, and its reply is written to the transport as
it is. Whatever is not so simple goes the ordinary way: other messages, fragments, a child that does
not read, bytes that are no message.

A peer that keeps no rule costs little here: what is kept for it is bounded, and who floods or jams
a connection loses it.
- Pings, and fragments that are hardly any, are counted as they are parsed.
- A reply that is not taken ends the connection: a ping could not, since it would wait behind it.
  Meanwhile hardly anything is read.
- What a frame has brought is let go as soon as it is answered, and with the connection all is let
  go, without waiting for the garbage collector.
- A large HTTP answer is sent in pieces, each when the one before has been taken. Bytes behind a
  request wait until it is answered, and are no frames if the answer is none of a websocket.

This file and `doorway.py` are those of the parent that know how websockets works inside:
`process_event`, `paused`, `state`, `transport`, `recv_messages` and `protocol` of its asyncio
connection; `recv_frame`, `send_response`, `fail`, `state`, `max_message_size`, `writes`,
`eof_sent`, the parser and the close frames of its protocol. A child's end of the line looks after
itself.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, TypeAlias

from websockets import protocol as base
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import Event, State
from websockets.server import ServerProtocol

from genkidama._version import __version__
from genkidama.config.sections import ParentSettings
from genkidama.errors import ProtocolError
from genkidama.plugins.dashboard.viewers import ViewerCredential
from genkidama.protocol.messages import PROTOCOL, Refusal, Request, decode_request, encode
from genkidama.protocol.tokens import ANY
from genkidama.runtime.machine import set_retransmission_timeout
from genkidama.server.limits import ConnectionSlot, TokenBucket

__all__ = [
    "CLOSED_FOR",
    "PIECE_BYTES",
    "REFUSED_BY",
    "SERVER",
    "Answer",
    "Connection",
    "Protocol",
    "address_of",
    "check_name",
    "decode",
    "close_with_refusal",
]


#: Gives the reply to a message, empty if that comes later, or None if the message must go the
#: ordinary way.
Answer: TypeAlias = Callable[[bytes], bytes | None]

#: The software that answers: the header `Server` of every HTTP answer.
SERVER = f"genkidama/{__version__} protocol/{PROTOCOL}"

# In Python 3.11 it takes long to look these up in their enumerations, and each frame does.
_BINARY, _CLOSE = Opcode.BINARY, Opcode.CLOSE
_OPEN = State.OPEN

#: RFC 6455 §5.2: a whole binary message, not masked, with its length in 7, 16 or 64 bits.
_FINAL_BINARY = 0x82
_SHORT = struct.Struct("!BB")
_MIDDLE = struct.Struct("!BBH")
_LONG = struct.Struct("!BBQ")

#: Up to here, joining head and content costs less than a second write.
_JOINED_BYTES = 1 << 16

#: Control frames a second, and at once. A ping every few seconds is plenty.
_CONTROLS = (10.0, 100.0)

#: A fragment of fewer bytes is hardly any. A message may have 4,096 fragments.
_FRAGMENT_BYTES = 1024
_FRAGMENTS = (100.0, 4096.0)

#: A message in fragments, and a reply, must get on by so many bytes a second.
_SLOWEST = 1024.0

#: An HTTP answer is sent in pieces of so many bytes.
PIECE_BYTES = 1 << 16

#: While a reply is not taken, so much of the next message is read.
_AHEAD_BYTES = 1 << 16

#: Who broke a rule may take so long to hang up.
_HANG_UP_SECONDS = 1.0

#: A child that says too much is not read for so long at most, so that it can answer pings.
_LONGEST_PAUSE = 5.0


class _Patient(base.Protocol):
    """websockets' protocol, which reads frames only once the request before them is answered."""

    def parse(self) -> Generator[None]:
        while self.state is State.CONNECTING and not self.reader.eof:
            yield
        if self.state is State.CONNECTING:  # nobody waits for the answer any more
            self.send_eof()
            yield from self.discard()
        else:
            yield from super().parse()


class Protocol(ServerProtocol, _Patient):
    """A server's side, whose `parse` reads the request and leaves the rest to `_Patient`."""


class Connection(ServerConnection):
    """A connection whose pushes and pulls are answered at once while `answer` is set.

    Args:
        settings: its limits.
        made: called when the connection is accepted, before the HTTP upgrade.
        lost: called when it is gone, with the seconds that it has lived.
    """

    def __init__(
        self,
        settings: ParentSettings,
        made: Callable[[Connection], None],
        lost: Callable[[Connection, float], None],
        *args: Any,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        #: Set only while a coroutine awaits `recv` and all messages before have been answered.
        self.answer: Answer | None = None
        #: The name that the connection's token is for, `*` for any.
        self.admitted = ANY
        #: How it is counted at the door, where this is set.
        self.visit: ConnectionSlot | None = None
        #: Whether it has a transport, or had one.
        self.made = False
        #: Why we have ended it, if it broke a rule that websockets does not know.
        self.fault: ProtocolError | None = None
        #: Whether a viewer of the page is at the other end, and no child.
        self.watching = False
        #: What that viewer has shown to be let in.
        self.shown = ViewerCredential("")
        #: Bytes of what was sent.
        self.sent = 0
        self._send_response = self.protocol.send_response
        # It also answers what the protocol's parser refuses.
        self.protocol.send_response = self._sign_response  # type: ignore[method-assign]
        self._receive_frame = self.protocol.recv_frame
        self.protocol.recv_frame = self._check_frame  # type: ignore[method-assign]
        self._made = made
        self._lost = lost
        self._since = now = self.loop.time()
        self._controls = TokenBucket(*_CONTROLS, now)
        self._fragments = TokenBucket(*_FRAGMENTS, now)
        pushes, size = settings.max_pushes_per_second, settings.max_bytes_per_second
        self._pushes = TokenBucket(pushes, pushes, now)
        self._bytes = TokenBucket(size, size, now)
        #: Messages and their bytes since `account` was called, and the bytes before.
        self._said = 0
        self._size = 0
        self._counted = 0
        #: With more than this it is called at once.
        self._many, self._much = pushes / 4, size / 4
        #: What is left to be sent of an HTTP answer.
        self._rest = memoryview(b"")
        #: When the first fragment of a message came, None between messages, and its bytes so far.
        self._begun: float | None = None
        self._fragmented = 0
        #: Why nothing is read at present.
        self._holds: set[str] = set()
        #: A reply that is not taken may wait so many seconds, if it does not get on.
        self.patience = settings.silence_seconds
        self._unsent = 0
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        set_retransmission_timeout(transport)
        self.made = True
        self.recv_messages.pause = partial(self._hold, "queue")
        self.recv_messages.resume = partial(self._let, "queue")
        self._made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._watch is not None:
            self._watch.cancel()
        self._lost(self, self.loop.time() - self._since)
        # What is left would wait for the garbage collector, with the last push in it.
        self.answer = None
        self._rest = memoryview(b"")
        protocol: Any = self.protocol
        if protocol.parser_exc is not None:
            protocol.parser_exc.__traceback__ = None
        protocol.parser = None
        protocol.reader.buffer.clear()
        del protocol.send_response, protocol.recv_frame, self._send_response, self._receive_frame
        self.recv_messages.pause = self.recv_messages.resume = _nothing
        self.logger = protocol.logger = getattr(self.logger, "logger", self.logger)

    @property
    def received(self) -> int:
        """Bytes of the messages that have come."""
        return self._counted + self._size

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.paused and len(self.protocol.reader.buffer) > _AHEAD_BYTES:
            self._hold("reply")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        self._watch = self.loop.call_later(self.patience, self._look)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._let("reply")
        self._send_rest()

    def account(self, now: float) -> None:
        """Reads a child that has said too much no further for a while. To be called often.

        Args:
            now: seconds of the loop's clock.
        """
        pause = max(self._pushes.spend(self._said, now), self._bytes.spend(self._size, now))
        self._counted += self._size
        self._said = self._size = 0
        if pause and "budget" not in self._holds:
            self._hold("budget")
            self.loop.call_later(min(pause, _LONGEST_PAUSE), self._let, "budget")

    def set_limit(self, size: int) -> None:
        """From now on, a message may have so many bytes; a longer one ends the connection."""
        self.protocol.max_message_size = size

    def abort_unopened(self) -> None:
        """Drops the connection if it is still in its HTTP upgrade."""
        if self.state is State.CONNECTING:
            self.transport.abort()

    @property
    def free(self) -> bool:
        """Whether the connection is open, and the child reads what it is sent."""
        return not self.paused and self.protocol.state is _OPEN

    @property
    def ending(self) -> str:
        """Why the connection has ended, for the history."""
        protocol = self.protocol
        if protocol.close_sent is not None and not protocol.close_rcvd_then_sent:
            return f"closed by the parent: {protocol.close_sent}"
        if protocol.close_rcvd is not None:
            return f"closed by the child: {protocol.close_rcvd}"
        return "connection lost"

    def process_event(self, event: Event) -> None:
        if not isinstance(event, Frame):
            super().process_event(event)
            return
        opcode = event.opcode
        # Control frames have higher opcodes, and no answer of ours.
        if opcode < _CLOSE:
            data: Any = event.data
            self._said += event.fin
            self._size += len(data)
            if self._said > self._many or self._size > self._much:
                self.account(self.loop.time())
            answer = self.answer
            if answer is not None:
                if opcode is _BINARY and event.fin and self.free:
                    reply = answer(data)
                    if reply is not None:
                        event.data = b""  # the parser keeps the frame until the next one
                        if reply:
                            self.write(reply)
                        return
                self.answer = None  # this message waits, and those behind must not overtake it
        super().process_event(Frame(event.opcode, event.data, event.fin))
        event.data = b""

    def _check_frame(self, frame: Frame) -> None:
        """Each frame comes by here as it is parsed, with many more behind it perhaps."""
        if frame.opcode is not _BINARY or not frame.fin:  # nearly all are whole messages
            now = self.loop.time()
            if frame.opcode >= _CLOSE:
                if self._controls.spend(1, now):
                    self._give_up("flood", "pings without end")
                    return
            elif not self._gets_on(frame, now):
                return
        self._receive_frame(frame)

    def _gets_on(self, frame: Frame, now: float) -> bool:
        """Whether a message in fragments comes fast enough, and not in crumbs."""
        if frame.opcode is not Opcode.CONT:
            self._begun = now
            self._fragmented = 0
        begun = self._begun
        if begun is None:
            return True  # a continuation of nothing, which websockets refuses
        if frame.fin:
            self._begun = None
        self._fragmented += len(frame.data)
        if len(frame.data) < _FRAGMENT_BYTES and self._fragments.spend(1, now):
            self._give_up("flood", "fragments without end")
        elif now - begun > self.patience + self._fragmented / _SLOWEST:
            self._give_up("silent", f"a message that has not come within {now - begun:.0f} s")
        return self.fault is None

    def _look(self) -> None:
        """A reply waits to be taken. Ends the connection if it does not get on."""
        unsent = self.transport.get_write_buffer_size()
        if self._unsent - unsent < _SLOWEST * self.patience:
            self.fault = ProtocolError("silent", f"took no reply for {self.patience:g} s")
            self.transport.abort()
        else:
            self._unsent = unsent
            self._watch = self.loop.call_later(self.patience, self._look)

    def _give_up(self, code: str, reason: str) -> None:
        """Ends the connection, in the middle of what its peer has sent."""
        self.fault = ProtocolError(code, reason)
        self.protocol.fail(CloseCode.POLICY_VIOLATION, reason)
        self.loop.call_later(_HANG_UP_SECONDS, self.transport.abort)

    def _hold(self, why: str) -> None:
        self._holds.add(why)
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def _let(self, why: str) -> None:
        self._holds.discard(why)
        if not self._holds and not self.transport.is_closing():
            self.transport.resume_reading()

    def _sign_response(self, response: Response) -> None:
        response.headers["Server"] = SERVER
        body = response.body or b""
        if len(body) > PIECE_BYTES:
            self._rest = memoryview(body)[PIECE_BYTES:]
            response.body = bytes(body[:PIECE_BYTES])
        self._send_response(response)
        if self._rest:
            self.protocol.writes.pop()  # the end, which comes behind the last piece

    def _send_rest(self) -> None:
        """Sends an HTTP answer on, as far as it is taken."""
        while self._rest and not self.paused and not self.transport.is_closing():
            piece, self._rest = self._rest[:PIECE_BYTES], self._rest[PIECE_BYTES:]
            self.sent += len(piece)
            self.transport.write(piece)
            if not self._rest:
                self.protocol.writes.append(b"")
                super().send_data()

    def write(self, content: bytes) -> None:
        """Sends a message at once; only while it is `free`."""
        length = len(content)
        self.sent += length
        if length < 126:
            self.transport.write(_SHORT.pack(_FINAL_BINARY, length) + content)
        elif length < _JOINED_BYTES:
            self.transport.write(_MIDDLE.pack(_FINAL_BINARY, 126, length) + content)
        else:
            self.transport.write(_LONG.pack(_FINAL_BINARY, 127, length))
            self.transport.write(content)

    def write_frame(self, frame: bytes) -> None:
        """Sends what is a frame already; only while it is `free`."""
        self.sent += len(frame)
        self.transport.write(frame)

    def send_data(self) -> None:
        # All that websockets itself sends comes by here. Mostly that is nothing.
        if self.protocol.writes:
            self.sent += sum(map(len, self.protocol.writes))
            super().send_data()
            self._send_rest()


def _nothing() -> None:
    pass


# ------------------------------------------------------------------------------------------------
# How a message is read, and how a connection is turned away that breaks the rules.

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


async def close_with_refusal(connection: ServerConnection, refusal: Refusal) -> None:
    """Sends the refusal and closes, with as much of the reason as a close frame holds."""
    reason = refusal.reason.encode()[:_REASON_BYTES].decode(errors="ignore")
    with suppress(ConnectionClosed):
        await connection.send(encode(refusal))
        await connection.close(CloseCode.POLICY_VIOLATION, reason)


def address_of(connection: ServerConnection) -> str:
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown"
