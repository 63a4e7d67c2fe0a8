"""The messages of Parent and Child, as values and bytes; nothing here reads a socket.

Laws of this file:
- A child sends a request and gets exactly one reply. The parent never speaks first.
- A message is a msgpack map with the key `type`, and for some types a weight vector behind it:

      u32 little-endian  length of the map in bytes (h)
      h bytes            the map
      0 to 7 bytes       zeros, so that the vector starts at a multiple of 8
      4·n bytes          the vector: n float32, little-endian; absent if the message carries none

  If the map names an `encoding`, the rest is a difference instead, as
  `genkidama.protocol.delta` writes it.

- Whatever the bytes are, decoding yields a message or a `ProtocolError`, and nothing is executed.
- A reader ignores fields that it does not know. A change that old readers cannot ignore raises
  `PROTOCOL`.

`docs/reference/protocol.md` describes the conversation.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np

from genkidama.config.sections import Kind
from genkidama.errors import ProtocolError
from genkidama.protocol.shard import PART
from genkidama.protocol.vector import DTYPE, Signature

#: The protocol's version. A peer with another one is refused.
PROTOCOL = 2

#: Beyond this a return is nonsense, and the sum of a window of them could overflow. A parent
#: refuses a push with such a return, so a child leaves it out.
LARGEST_RETURN = 1e30

#: Bytes a second that a link carries at least. A pong waits behind what is on its way.
SLOWEST_LINK = 10_000.0

#: The largest message before a network's size is known: some ten thousand parameters fit into it.
HANDSHAKE_LIMIT = 1 << 20

#: Room beside the vector for the map: 4,096 returns take 36 KiB, 32 measures at most 1.4 KiB.
_HEADER_LIMIT = 1 << 17

_LENGTH = struct.Struct("<I")

#: The zeros behind a map, by the length up to there modulo 8.
_PADDING = tuple(bytes(-length % 8) for length in range(8))

#: Counts stay exact in every language: a double holds whole numbers up to 2⁵³.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
#: NumPy knows no more than 32 dimensions; the limit keeps a hostile shape's product small.
Shape = Annotated[list[Count], msgspec.Meta(max_length=32)]
Name = Annotated[
    str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")
]

Proof = Annotated[str, msgspec.Meta(max_length=64)]

#: The form of a message's vector: whole if empty, otherwise a difference.
Encoding: TypeAlias = Literal["", "float16", "int8", "int4"]

#: A line of the history has these keys beside the measures.
_RESERVED = ("time", "event", "child", "trial")
_MEASURE = re.compile(rf"^(?!(?:{'|'.join(_RESERVED)})\Z)[a-z][a-z0-9_]{{0,31}}\Z")
_LARGEST_MEASURE, _MOST_MEASURES = 1e30, 32
Measures = Annotated[
    dict[
        Annotated[str, msgspec.Meta(pattern=_MEASURE.pattern)],
        Annotated[float, msgspec.Meta(ge=-_LARGEST_MEASURE, le=_LARGEST_MEASURE)],
    ],
    msgspec.Meta(max_length=_MOST_MEASURES),
]


class Message(msgspec.Struct, tag_field="type", tag=str.lower, kw_only=True, omit_defaults=True):
    """The base of all messages."""


class Hello(Message):
    """First word of a child. Reply: `Welcome`."""

    protocol: int
    #: How people call this child; unique among the connected ones.
    name: Name
    #: A random word that a child keeps while its process lives. By it the parent knows the child
    #: that returns.
    session: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    #: The version of the child's software, for the parent's log.
    software: Annotated[str, msgspec.Meta(max_length=64)] = ""
    #: In a search, the trial that it is training already.
    trial: Count | None = None
    #: The encodings that it knows beside whole vectors.
    encodings: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=32)]], msgspec.Meta(max_length=32)
    ] = []
    #: What it wants to do, or does already; empty leaves it to the parent.
    role: Literal["", "bundle", "act", "learn"] = ""
    #: Which part the child takes this parent for.
    part: Annotated[str, msgspec.Meta(pattern=PART)] = "1/1"


class Welcome(Message):
    """The experiment, so that the child needs no file of its own."""

    protocol: int
    #: The experiment's sections as `Experiment.to_dict` gives them.
    experiment: dict[str, Any]
    #: The name of the run.
    run: str = ""
    #: Why the run is over, if it is.
    stop: str = ""
    #: In a search, the number of the trial that this experiment is.
    trial: Count | None = None
    #: In a search without a trial at present: seconds until it asks again. There is no experiment.
    wait: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    #: Of the first of several parts, with `stop`: what shows the others that the run is over.
    proof: Proof = ""
    #: One of the hello's encodings, in which weights travel from the first push on.
    encoding: Encoding = ""
    part: Annotated[str, msgspec.Meta(pattern=PART)] = "1/1"


class Join(Message):
    """The child's network. Reply: `Weights`, without a vector if the parent has none yet."""

    signature: list[tuple[str, Shape]]
    #: How many cores it trains with, for people; 0 if it does not say.
    cores: Count = 0

    @classmethod
    def of(cls, signature: Signature) -> Join:
        return cls(signature=[(name, list(shape)) for name, shape in signature.entries])


class Push(Message):
    """θ_C, and what the child did since its last push. Carries a vector. Reply: `Weights`."""

    #: The version of θ_P that this θ_C started from.
    version: Count
    #: Numbers the child's pushes 1, 2, …; a repeated number is answered but not counted again.
    sequence: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    #: What the vector is. A child that has nothing to start from pushes its weights, whatever the
    #: parent's rule takes.
    kind: Kind = "weights"
    #: Environment steps since the last push.
    steps: Count = 0
    #: Undiscounted return of each episode that ended since the last push, within ±1e30.
    returns: list[float] = []
    #: In a search, the trial's number.
    trial: Count | None = None
    #: The backend's own figures, for the history; `permitted_measures` says which are allowed.
    measures: Measures = {}
    encoding: Encoding = ""
    #: float32, shape (n,); with an encoding, the difference in bytes.
    vector: np.ndarray | None = None


class Pull(Message):
    """Asks for θ_P between two pushes. Reply: `Weights`, without a vector that the child knows."""

    #: Whether the reply may wait until there is something new, or the child's next message.
    wait: bool = False


class Weights(Message):
    """θ_P after the blend. It has no vector if the parent has none, or the child knows it."""

    version: Count
    #: How much of the run is done, in [0, 1]; schedules follow it.
    progress: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    #: Why the run is over or, in a search, the trial; empty while it goes on. If set, the child
    #: stops.
    stop: str = ""
    #: As in `Welcome`.
    proof: Proof = ""
    #: In a search, with `stop`: only this trial is over; say hello again for another.
    next: bool = False
    #: How many steps the next push should bring; 0 leaves it to the child.
    steps: Count = 0
    #: n: how many children push lately; 0 if nothing follows it.
    children: Annotated[float, msgspec.Meta(ge=0, lt=2**31)] = 0.0
    encoding: Encoding = ""
    #: As in `Push`.
    vector: np.ndarray | None = None


class Leave(Message):
    """The child goes for good. Reply: `Goodbye`."""

    reason: Annotated[str, msgspec.Meta(max_length=200)] = ""
    #: In a search, the child could not train its trial.
    failed: bool = False
    #: The first part has said that the run is over, for this reason.
    over: bool = False
    #: The first part's proof of it.
    proof: Proof = ""


class Goodbye(Message):
    """The parent has noted that the child left."""


class Refusal(Message):
    """A message was not allowed, and why. A refused handshake ends the connection."""

    code: str
    reason: str
    #: Whether it would be refused again, however long the child waits.
    final: bool = False


Request: TypeAlias = Hello | Join | Pull | Push | Leave
Reply: TypeAlias = Welcome | Weights | Goodbye | Refusal


def _reject(kind: type, value: object) -> object:
    raise msgspec.ValidationError("a vector is never part of the map")


_requests = msgspec.msgpack.Decoder(Request, dec_hook=_reject)
_replies = msgspec.msgpack.Decoder(Reply, dec_hook=_reject)
_encoder = msgspec.msgpack.Encoder()
_Tag = msgspec.defstruct("_Tag", [("type", str)])
_tag: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_Tag)
_TAGS = {kind.__struct_config__.tag for kind in Request.__args__ + Reply.__args__}


def size_limit(size: int) -> int:
    """The largest message, in bytes, of a network with `size` numbers."""
    return _HEADER_LIMIT + size * DTYPE.itemsize


def permitted_measures(figures: Mapping[str, float]) -> dict[str, float]:
    """The backend's figures that a push may carry, the first 32 of them.

    A figure is within ±1e30. Its name has at most 32 characters of a–z, 0–9 and `_`, a letter
    first, and is not `time`, `event`, `child` or `trial`.
    """
    permitted = (
        (name, float(value))
        for name, value in figures.items()
        if _MEASURE.match(name) and abs(value) <= _LARGEST_MEASURE
    )
    return dict(islice(permitted, _MOST_MEASURES))


def encode(message: Request | Reply) -> bytes:
    """The message's bytes. The vector is copied once, so its later changes do not reach them."""
    vector = getattr(message, "vector", None)
    if vector is None:
        header = _encoder.encode(message)
        return _LENGTH.pack(len(header)) + header
    message.vector = None  # type: ignore[union-attr]
    try:
        header = _encoder.encode(message)
    finally:
        message.vector = vector  # type: ignore[union-attr]
    size = len(header)
    return b"".join((_LENGTH.pack(size), header, _PADDING[(size + _LENGTH.size) % 8], vector.data))


def decode_request(frame: bytes) -> Request:
    """Decodes a child's message. The vector is a read-only view into `frame`."""
    return _decode(frame, _requests)  # type: ignore[return-value]


def decode_reply(frame: bytes) -> Reply:
    """Decodes a parent's reply. The vector is a read-only view into `frame`."""
    return _decode(frame, _replies)  # type: ignore[return-value]


def _decode(frame: bytes, decoder: msgspec.msgpack.Decoder[Any]) -> Request | Reply:
    if len(frame) < _LENGTH.size:
        raise ProtocolError(
            "malformed", f"a message of {len(frame)} bytes; at least {_LENGTH.size} are needed"
        )
    (length,) = _LENGTH.unpack_from(frame)
    end = _LENGTH.size + length
    if end > len(frame):
        raise ProtocolError(
            "malformed",
            f"a map of {length} bytes is announced, but only {len(frame) - _LENGTH.size} follow",
        )
    header = memoryview(frame)[_LENGTH.size : end]
    try:
        message = decoder.decode(header)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise _explain(header, error) from None
    if end == len(frame):
        return message  # type: ignore[no-any-return]
    if not hasattr(message, "vector"):
        raise ProtocolError(
            "malformed",
            f"{len(frame) - end} bytes behind a {message.__struct_config__.tag!r}, "
            "which carries no vector",
        )
    start = (end + 7) & ~7
    if message.encoding and start <= len(frame):
        message.vector = np.frombuffer(frame, np.uint8, offset=start)
        return message  # type: ignore[no-any-return]
    if start > len(frame) or (len(frame) - start) % DTYPE.itemsize:
        raise ProtocolError(
            "length", f"{len(frame) - end} bytes behind the map are no vector of float32"
        )
    message.vector = np.frombuffer(frame, DTYPE, offset=start)
    return message  # type: ignore[no-any-return]


def _explain(header: memoryview, error: Exception) -> ProtocolError:
    """Says whether the bytes are no map at all, or a message of a type that does not exist here."""
    words = " ".join(str(error).split())  # they quote what was sent, line breaks included
    try:
        tag = _tag.decode(header).type
    except (msgspec.DecodeError, RecursionError, ValueError):
        return ProtocolError("malformed", f"the map cannot be read: {words}")
    if tag not in _TAGS:
        return ProtocolError(
            "unknown", f"a message of type {tag[:40]!r}, which protocol {PROTOCOL} does not have"
        )
    return ProtocolError("malformed", f"a {tag!r} that cannot be read: {words}")
