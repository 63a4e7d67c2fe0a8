"""One websocket connection of a parent, with a fast path for pushes and pulls.

websockets hands each message to the coroutine that awaits `recv`, through a queue, a future and a
task switch, and copies the reply into a frame. For a small network that costs more than the blend.
A push needs none of it: it is answered inside the callback in which it arrives, and the reply is
written to the transport. One that arrives alone and whole, as a small network's does, is not even
parsed by websockets. All else takes the ordinary path: other messages, fragments, a child that does
not read, malformed bytes.

websockets limits the length of a message, the queue, the handshake, pings and the close handshake.
Added here, since a peer may break any rule:
- Control frames and tiny fragments are counted as they are parsed; a flood ends the connection.
- A reply that the peer does not read ends the connection. Meanwhile hardly anything is read.
- A frame's payload is freed once it is answered, and everything with the connection, without
  waiting for the garbage collector.
- A large HTTP answer is sent in pieces, each after the peer has taken the one before. Bytes that
  follow a request wait for its answer.

This module and `acceptor` rely on websockets' internals: `process_event`, `paused`, `state`,
`transport`, `recv_messages` and `protocol` of its asyncio connection; `apply_mask`; `recv_frame`,
`send_response`, `fail`, `state`, `max_message_size`, `writes`, `eof_sent`, the parser and the close
frames of its protocol.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

from websockets import protocol as base
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode, Frame, Opcode, apply_mask  # type: ignore[attr-defined]
from websockets.http11 import Response
from websockets.protocol import Event, State
from websockets.server import ServerProtocol

from genkidama._version import __version__
from genkidama.config.sections import ParentSettings
from genkidama.errors import ProtocolError
from genkidama.protocol.messages import PROTOCOL, Refusal, Request, decode_request, encode
from genkidama.protocol.tokens import ANY
from genkidama.runtime.machine import set_tcp_timeouts
from genkidama.server.limits import ConnectionSlot, TokenBucket

if TYPE_CHECKING:
    from genkidama.parent.connections import ConnectionManager

#: Replies to a message: bytes; empty if the reply comes later, None for the ordinary path.
Answer: TypeAlias = Callable[[bytes], bytes | None]

#: The header `Server` of every HTTP answer.
SERVER = f"genkidama/{__version__} protocol/{PROTOCOL}"

#: The answer to plain HTTP that no observer answers.
_NO_UPGRADE = b"this is a Genkidama parent; children join by websocket\n"

# In Python 3.11 looking these up in their enumerations is slow, and each frame needs them.
_BINARY, _CLOSE = Opcode.BINARY, Opcode.CLOSE
_OPEN = State.OPEN

#: RFC 6455 §5.2: a whole binary message, not masked, with its length in 7, 16 or 64 bits.
_FINAL_BINARY = 0x82
_SHORT = struct.Struct("!BB")
_MIDDLE = struct.Struct("!BBH")
_LONG = struct.Struct("!BBQ")

#: The same with a mask, as a child sends it, with its length in 16 bits.
_MASKED = struct.Struct("!HH")
_MASKED_BINARY = 0x82FE
_MASKED_AT, _CONTENT_AT = 4, 8

#: Up to this length, joining head and content costs less than a second write.
_JOINED_BYTES = 1 << 16

#: Control frames per second, and at once. A ping every few seconds is plenty.
_CONTROLS = (10.0, 100.0)

#: Fragments of fewer bytes are tiny; a message may have 4,096 of them.
_FRAGMENT_BYTES = 1024
_FRAGMENTS = (100.0, 4096.0)

#: Bytes per second of a fragmented message, and of a reply that is being read, at least.
_SLOWEST = 1024.0

#: Size of the pieces of an HTTP answer.
PIECE_BYTES = 1 << 16

#: Bytes of the next message that are read while a reply has not been.
_AHEAD_BYTES = 1 << 16

#: Seconds for the peer to hang up after it broke a rule.
_HANG_UP_SECONDS = 1.0

#: The longest pause in reading from a child over its budget, so that it still answers pings.
_LONGEST_PAUSE = 5.0

#: By the close code with which websockets refuses something itself, our code for the same.
CLOSED_FOR: dict[int, str] = {
    CloseCode.MESSAGE_TOO_BIG: "length",
    CloseCode.INVALID_DATA: "malformed",
    CloseCode.PROTOCOL_ERROR: "malformed",
    # The only internal error that websockets knows is a ping without a pong.
    CloseCode.INTERNAL_ERROR: "silent",
}

#: By the status of an HTTP answer, our code for the same.
REFUSED_BY: dict[int, str] = {HTTPStatus.UNAUTHORIZED: "token", HTTPStatus.FORBIDDEN: "origin"}

#: RFC 6455 §5.5: a control frame's payload has at most 125 bytes, two of which are the close code.
_REASON_BYTES = 123


class _FramesProtocol(base.Protocol):
    """websockets' protocol, which reads frames only after the request before them is answered."""

    def parse(self) -> Generator[None]:
        while self.state is State.CONNECTING and not self.reader.eof:
            yield
        if self.state is State.CONNECTING:  # nobody waits for the answer any more
            self.send_eof()
            yield from self.discard()
        else:
            yield from super().parse()


class RequestFirstProtocol(ServerProtocol, _FramesProtocol):
    """A server's side, whose `parse` reads the request and leaves the rest to `_FramesProtocol`."""


class Connection(ServerConnection):
    """A connection whose pushes and pulls are answered at once while `answer` is set.

    Args:
        owner: keeps it from its first byte to its end.
        settings: its limits.
        slot: its place in those of all connections.
    """

    def __init__(
        self,
        owner: ConnectionManager,
        settings: ParentSettings,
        slot: ConnectionSlot,
        *args: Any,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        #: Set only while a coroutine awaits `recv` and all messages before have been answered.
        self.answer: Answer | None = None
        #: The name that the connection's token is for, `*` for any.
        self.admitted = ANY
        self.slot = slot
        #: Whether it has a transport, or had one.
        self.opened = False
        #: The rule that it broke, if we ended it for one that websockets does not know.
        self.fault: ProtocolError | None = None
        #: Serves the connection in place of the children's protocol; set by an observer.
        self.served_by: Callable[[], Awaitable[None]] | None = None
        #: Bytes sent.
        self.sent = 0
        self._send_response = self.protocol.send_response
        # It also answers what the protocol's parser refuses.
        self.protocol.send_response = self._sign_response  # type: ignore[method-assign]
        self._receive_frame = self.protocol.recv_frame
        self.protocol.recv_frame = self._check_frame  # type: ignore[method-assign]
        self._owner = owner
        self._since = now = self.loop.time()
        self._controls = TokenBucket(*_CONTROLS, now)
        self._fragments = TokenBucket(*_FRAGMENTS, now)
        pushes, size = settings.max_pushes_per_second, settings.max_bytes_per_second
        self._pushes = TokenBucket(pushes, pushes, now)
        self._bytes = TokenBucket(size, size, now)
        #: Messages and their bytes since the last `account`, and the bytes before.
        self._new_messages = 0
        self._new_bytes = 0
        self._old_bytes = 0
        #: With more than this, `account` is called at once.
        self._many, self._much = pushes / 4, size / 4
        #: The unsent rest of an HTTP answer.
        self._rest = memoryview(b"")
        #: Time of the first fragment of a message, None between messages, and its bytes so far.
        self._fragmented_since: float | None = None
        self._fragmented = 0
        #: A reply that has not been written yet.
        self._held = b""
        #: True if all bytes so far were whole frames.
        self._between = False
        #: Reasons for not reading at present.
        self._holds: set[str] = set()
        #: Seconds that a reply may stay unread without progress.
        self.patience = settings.silence_seconds
        self._unsent = 0
        self._unsent_timer: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> str:
        """The other end, as `HOST:PORT`."""
        address = self.remote_address
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown"

    @property
    def received(self) -> int:
        """Bytes of the messages that have come."""
        return self._old_bytes + self._new_bytes

    @property
    def free(self) -> bool:
        """True if the connection is open and the child reads what it is sent."""
        return not self.paused and self.protocol.state is _OPEN

    @property
    def ending(self) -> str:
        """Reason of the connection's end, for the history."""
        protocol = self.protocol
        if protocol.close_sent is not None and not protocol.close_rcvd_then_sent:
            return f"closed by the parent: {protocol.close_sent}"
        if protocol.close_rcvd is not None:
            return f"closed by the child: {protocol.close_rcvd}"
        return "connection lost"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        set_tcp_timeouts(transport)
        self.opened = True
        self.recv_messages.pause = partial(self._pause_reading, "queue")
        self.recv_messages.resume = partial(self._resume_reading, "queue")
        self._owner.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()
        self._owner.remove(self, self.loop.time() - self._since)
        # The rest would wait for the garbage collector, with the last push in it.
        self.answer = self.served_by = None
        self._held = b""
        self._rest = memoryview(b"")
        protocol: Any = self.protocol
        if protocol.parser_exc is not None:
            protocol.parser_exc.__traceback__ = None
        protocol.parser = None
        protocol.reader.buffer.clear()
        del protocol.send_response, protocol.recv_frame, self._send_response, self._receive_frame
        self.recv_messages.pause = self.recv_messages.resume = lambda: None
        self.logger = protocol.logger = getattr(self.logger, "logger", self.logger)

    def set_limit(self, size: int) -> None:
        """Ends the connection from now on if a message has more bytes."""
        self.protocol.max_message_size = size

    def abort_unopened(self) -> None:
        """Drops the connection if it is still in its HTTP upgrade."""
        if self.state is State.CONNECTING:
            self.transport.abort()

    # Reading.

    def data_received(self, data: bytes) -> None:
        answer = self.answer
        if self._between and answer is not None and self._answer_whole(answer, data):
            return
        self._between = False
        super().data_received(data)
        if self.paused and len(self.protocol.reader.buffer) > _AHEAD_BYTES:
            self._pause_reading("reply")

    def _answer_whole(self, answer: Answer, data: bytes) -> bool:
        """Answers a push that is all of the bytes that arrive. Otherwise false, and nothing done.

        It must be the first frame after whole ones, of an unfragmented message.
        """
        size = len(data) - _CONTENT_AT
        if size < 126 or _MASKED.unpack_from(data) != (_MASKED_BINARY, size):
            return False
        if size > (self.protocol.max_message_size or 0) or not self.free:
            return False
        reply = answer(apply_mask(memoryview(data)[_CONTENT_AT:], data[_MASKED_AT:_CONTENT_AT]))
        if reply is None:
            return False
        self._count_message(size)
        if reply:
            self._hold(reply)
        return True

    def _hold(self, reply: bytes) -> None:
        """Sends a reply at the end of the loop's turn, with those of other connections.

        A write to a process that sleeps wakes it, which costs as much as the blend. It sleeps less
        if the replies to all that has arrived come close together.
        """
        self.release()
        self._held = reply
        holding = self._owner.holding
        if not holding:
            self.loop.call_soon(self._owner.flush)
        holding.append(self)

    def release(self) -> None:
        """Sends the reply that is held, if there is one."""
        if reply := self._held:
            self._held = b""
            if not self.transport.is_closing():
                self.write(reply)

    def _count_message(self, size: int, ends: bool = True) -> None:
        self._new_messages += ends
        self._new_bytes += size
        if self._new_messages > self._many or self._new_bytes > self._much:
            self.account(self.loop.time())

    def process_event(self, event: Event) -> None:
        if not isinstance(event, Frame):
            super().process_event(event)
            return
        opcode = event.opcode
        # Control frames have higher opcodes, and websockets answers them.
        if opcode < _CLOSE:
            data: Any = event.data
            self._count_message(len(data), event.fin)
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

    def account(self, now: float) -> None:
        """Pauses reading from a child over its budget. To be called often.

        Args:
            now: seconds of the loop's clock.
        """
        pause = self._pushes.spend(self._new_messages, now)
        pause = max(pause, self._bytes.spend(self._new_bytes, now))
        self._old_bytes += self._new_bytes
        self._new_messages = self._new_bytes = 0
        if pause and "budget" not in self._holds:
            self._pause_reading("budget")
            self.loop.call_later(min(pause, _LONGEST_PAUSE), self._resume_reading, "budget")

    def _check_frame(self, frame: Frame) -> None:
        """Each frame as it is parsed, perhaps with many more behind it."""
        if frame.opcode is not _BINARY or not frame.fin:  # nearly all are whole messages
            now = self.loop.time()
            if frame.opcode >= _CLOSE:
                if self._controls.spend(1, now):
                    self._fail("flood", "pings without end")
                    return
            elif not self._check_fragment(frame, now):
                return
        self._receive_frame(frame)
        self._between = not self.protocol.reader.buffer

    def _check_fragment(self, frame: Frame, now: float) -> bool:
        """True if a fragmented message comes fast enough, and not in crumbs."""
        if frame.opcode is not Opcode.CONT:
            self._fragmented_since = now
            self._fragmented = 0
        began = self._fragmented_since
        if began is None:
            return True  # a continuation of nothing, which websockets refuses
        if frame.fin:
            self._fragmented_since = None
        self._fragmented += len(frame.data)
        if len(frame.data) < _FRAGMENT_BYTES and self._fragments.spend(1, now):
            self._fail("flood", "fragments without end")
        elif now - began > self.patience + self._fragmented / _SLOWEST:
            self._fail("silent", f"a message that has not come within {now - began:.0f} s")
        return self.fault is None

    def _fail(self, code: str, reason: str) -> None:
        """Ends the connection in the middle of what its peer has sent."""
        self.fault = ProtocolError(code, reason)
        self.protocol.fail(CloseCode.POLICY_VIOLATION, reason)
        self.loop.call_later(_HANG_UP_SECONDS, self.transport.abort)

    def _pause_reading(self, why: str) -> None:
        self._holds.add(why)
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def _resume_reading(self, why: str) -> None:
        self._holds.discard(why)
        if not self._holds and not self.transport.is_closing():
            self.transport.resume_reading()

    # Writing.

    def write(self, content: bytes) -> None:
        """Sends a message at once; only while the connection is `free`."""
        self.release()
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
        """Sends an encoded frame; only while the connection is `free`."""
        self.sent += len(frame)
        self.transport.write(frame)

    def send_data(self) -> None:
        # All that websockets itself sends passes here, and mostly that is nothing.
        if self.protocol.writes:
            self.release()
            self.sent += sum(map(len, self.protocol.writes))
            super().send_data()
            self._send_rest()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        self._unsent_timer = self.loop.call_later(self.patience, self._check_unsent)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()
            self._unsent_timer = None
        self._resume_reading("reply")
        self._send_rest()

    def _check_unsent(self) -> None:
        """Ends the connection if the peer has hardly read since the last check."""
        unsent = self.transport.get_write_buffer_size()
        if self._unsent - unsent < _SLOWEST * self.patience:
            self.fault = ProtocolError("silent", f"took no reply for {self.patience:g} s")
            self.transport.abort()
        else:
            self._unsent = unsent
            self._unsent_timer = self.loop.call_later(self.patience, self._check_unsent)

    def _sign_response(self, response: Response) -> None:
        response.headers["Server"] = SERVER
        if response.status_code == HTTPStatus.UPGRADE_REQUIRED:  # of websockets, in three lines
            response.body = _NO_UPGRADE
            del response.headers["Content-Length"]
            response.headers["Content-Length"] = str(len(_NO_UPGRADE))
        body = response.body or b""
        if len(body) > PIECE_BYTES:
            self._rest = memoryview(body)[PIECE_BYTES:]
            response.body = bytes(body[:PIECE_BYTES])
        self._send_response(response)
        if self._rest:
            self.protocol.writes.pop()  # the end, which comes behind the last piece

    def _send_rest(self) -> None:
        """Sends more of an HTTP answer, as far as the peer reads."""
        while self._rest and not self.paused and not self.transport.is_closing():
            piece, self._rest = self._rest[:PIECE_BYTES], self._rest[PIECE_BYTES:]
            self.sent += len(piece)
            self.transport.write(piece)
            if not self._rest:
                self.protocol.writes.append(b"")
                super().send_data()


def decode(frame: str | bytes) -> Request:
    """The request in a websocket message. Raises a `ProtocolError` if there is none."""
    if isinstance(frame, str):
        raise ProtocolError("malformed", "a text frame; messages are binary frames")
    return decode_request(frame)


async def close_with_refusal(connection: ServerConnection, refusal: Refusal) -> None:
    """Sends the refusal and closes, with as much of the reason as a close frame has room for."""
    reason = refusal.reason.encode()[:_REASON_BYTES].decode(errors="ignore")
    with suppress(ConnectionClosed):
        await connection.send(encode(refusal))
        await connection.close(CloseCode.POLICY_VIOLATION, reason)
