"""One websocket connection, with a short way for what nearly all messages are: pushes and pulls.

websockets hands a message to the coroutine that awaits `recv`: a queue, a future and a task switch,
and on the way back a context manager and a copy of the frame. All that costs more than the blend of
a small network. A push needs none of it, since nothing waits between its arrival and its reply, so
it is answered inside the callback in which it arrives, and its reply is written to the transport as
it is. Whatever is not so simple goes the ordinary way: other messages, fragments, a child that does
not read, bytes that are no message.

This is the one file of the parent that knows how websockets works inside: `process_event`,
`paused`, `state`, `transport` and `protocol` of its asyncio connection, and `send_response`,
`state`, `max_message_size` and the close frames of its protocol. A child's end of the line looks
after itself.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from websockets.asyncio.server import ServerConnection
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import Event, State

import genkidama
from genkidama.messages import PROTOCOL
from genkidama.system.link import retransmit_soon
from genkidama.tokens import ANY

__all__ = ["SERVER", "Answer", "Channel"]

#: Gives the reply to a message, empty if that comes later, or None if the message must go the
#: ordinary way.
Answer: TypeAlias = Callable[[bytes], bytes | None]

#: The software that answers: the header `Server` of every HTTP answer.
SERVER = f"genkidama/{genkidama.__version__} protocol/{PROTOCOL}"

#: RFC 6455 §5.2: a whole binary message, not masked, with its length in 7, 16 or 64 bits.
_FINAL_BINARY = 0x82
_SHORT = struct.Struct("!BB")
_MIDDLE = struct.Struct("!BBH")
_LONG = struct.Struct("!BBQ")

#: Up to here, joining head and content costs less than a second write.
_JOINED_BYTES = 1 << 16


class Channel(ServerConnection):
    """A connection whose pushes and pulls are answered at once while `answer` is set.

    Args:
        made: called when the connection is accepted, before the HTTP upgrade.
        lost: called when it is gone, with the seconds that it has lived.
    """

    def __init__(
        self,
        made: Callable[[Channel], None],
        lost: Callable[[Channel, float], None],
        *args: Any,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        #: Set only while a coroutine awaits `recv` and all messages before have been answered.
        self.answer: Answer | None = None
        #: The name that the connection's token is for, `*` for any.
        self.admitted = ANY
        self._send_response = self.protocol.send_response
        # It also answers what the protocol's parser refuses.
        self.protocol.send_response = self._sign_response  # type: ignore[method-assign]
        self._made = made
        self._lost = lost
        self._since = self.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        retransmit_soon(transport)
        self._made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost(self, self.loop.time() - self._since)

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
        return not self.paused and self.protocol.state is State.OPEN

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
        answer = self.answer
        # Control frames have higher opcodes, and no answer of ours.
        if answer is not None and isinstance(event, Frame) and event.opcode < Opcode.CLOSE:
            if event.opcode is Opcode.BINARY and event.fin and self.free:
                reply = answer(cast(bytes, event.data))
                if reply:
                    self.write(reply)
                if reply is not None:
                    return
            self.answer = None  # this message waits now, and those behind it must not overtake it
        super().process_event(event)

    def _sign_response(self, response: Response) -> None:
        response.headers["Server"] = SERVER
        self._send_response(response)

    def write(self, content: bytes) -> None:
        """Sends a message at once; only while it is `free`."""
        length = len(content)
        if length < 126:
            self.transport.write(_SHORT.pack(_FINAL_BINARY, length) + content)
        elif length < _JOINED_BYTES:
            self.transport.write(_MIDDLE.pack(_FINAL_BINARY, 126, length) + content)
        else:
            self.transport.write(_LONG.pack(_FINAL_BINARY, 127, length))
            self.transport.write(content)
