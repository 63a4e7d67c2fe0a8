"""Weights as differences in fewer bytes, between a parent and one child. Pure NumPy.

A difference is taken to a vector that both ends have, and the error of an encoding stays with the
sender, who sends it with the next difference: error feedback.

Laws of the conversation:
- A hello offers encodings, and the welcome chooses one. Without one, all weights travel whole.
- A push of weights is a difference to the vector of the last `Weights`, and its reply is one to
  that push. So whatever an encoding loses, both ends have the same vector.
- A push of the kind `difference` is one to zero. A gradient travels whole, because its error would
  have no place to stay, and so does experience. The replies to these, and to a pull, are
  differences to the last `Weights`. A reply without a vector changes nothing at either end.
- The reply to a join is whole. A connection begins with it, and so does a parent that was
  restarted.
- The parent keeps θ_P as it is, and the child keeps in θ_C what its push lost.

Laws of the encodings:
- Equal arguments give equal bytes, and both ends compute the same vector to the bit.
- The numbers behind `trainable` are running statistics: large counts and sums. They travel exactly.
- A difference that an encoding cannot hold, with a NaN for example, has none: the vector then
  travels whole.

A difference of n trainable numbers in b blocks of 256, the last one filled up with zeros:

    4·b bytes   int8, int4: the scale of each block, float32; float16 has none
    4·s bytes   the s running statistics themselves, float32
    the rest    float16: n numbers. int8: 256·b signed bytes, in units of the scale.
                int4: 128·b bytes as one raw DEFLATE stream (RFC 1951). Byte i of a block holds
                number i in its lower half, number i + 128 in its upper half, each plus 8.

All is little-endian. A scale is a block's largest number, without its sign, over 127 or 7.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from genkidama.errors import ProtocolError
from genkidama.protocol.messages import Encoding, Hello, Push, Weights
from genkidama.protocol.vector import DTYPE, Signature, Vector, is_finite

#: Ways to write a difference, the most exact first. A vector that travels whole needs none of them.
ENCODINGS: tuple[Encoding, ...] = ("float16", "int8", "int4")

#: Numbers that share a scale.
BLOCK = 256

#: The largest whole number of an encoding, and the bytes of a block.
_LARGEST = {"int8": 127, "int4": 7}
_BYTES = {"int8": BLOCK, "int4": BLOCK // 2}

#: Blocks worked on at a time; intermediate results stay in a second-level cache.
_BLOCKS = 64

_HALF = np.dtype("<f2")
_TINY = np.finfo(DTYPE).tiny

Bytes = npt.NDArray[np.uint8]


def agree(hello: Hello, encoding: str) -> ParentDelta | None:
    """The parent's end of a connection with this child; None if all weights travel whole."""
    agreed = (name for name in ENCODINGS if name == encoding and name in hello.encodings)
    return next(map(ParentDelta, agreed), None)


class ParentDelta:
    """The parent's end of one connection. It holds one vector, the child's θ_P."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self._trainable = 0
        #: θ_P as the child has it, and its version.
        self.parent: Vector | None = None
        self._version = 0

    def join(self, signature: Signature) -> None:
        """Starts with a network of this signature. The next answer is whole."""
        self._trainable = signature.size - signature.statistics
        self.parent = None

    def answer(self, weights: Weights, push: Push | None = None) -> Weights:
        """These weights as a difference, if they can be one, in answer to a push, if to any."""
        vector = weights.vector
        if vector is None:
            return weights
        base = self.parent if push is None or push.kind != "weights" else push.vector
        difference = base is not None and compress(self.encoding, vector, base, self._trainable)
        self._version = weights.version
        if not difference:
            self.parent = vector.copy()  # the blend changes θ_P in place
            return weights
        encoded, self.parent = difference
        return msgspec.structs.replace(weights, encoding=self.encoding, vector=encoded)

    def read(self, child: str, push: Push) -> Push:
        """The same push with its whole vector.

        A ProtocolError says that its difference is to weights that this parent does not have, or
        none.
        """
        base = self.parent
        if base is None or (push.kind == "weights" and push.version != self._version):
            raise unknown_base(child, push)
        if push.kind != "weights":
            base = np.zeros_like(base)
        vector = _expand(push, base, self._trainable)
        return msgspec.structs.replace(push, encoding="", vector=vector)


@dataclass
class ChildDelta:
    """The child's end of one connection. Two are compared without their vectors."""

    #: The welcome's choice of `ENCODINGS`; empty if all weights travel whole.
    encoding: Encoding = ""
    _trainable: int = 0
    #: θ_P as it has last arrived, and its version.
    parent: Vector | None = field(default=None, compare=False, repr=False)
    _version: int = 0
    #: The weights that wait for their reply, as the parent reads them; None if there are none.
    _read: Vector | None = field(default=None, compare=False, repr=False)
    #: What the encoding of the last push has lost; None if nothing.
    _residual: Vector | None = field(default=None, compare=False, repr=False)

    def join(self, weights: Weights, signature: Signature) -> None:
        """Starts with the reply to the join of a network with this signature."""
        self._trainable = signature.size - signature.statistics
        self.parent = None
        self._residual = None
        self._store(weights)

    def write(self, push: Push) -> Push:
        """The same push, its vector as a difference if it can be."""
        vector = push.vector
        if not self.encoding or vector is None:
            return push
        self._read = vector if push.kind == "weights" else None
        self._residual = None
        base = self._base_of(push, vector)
        difference = base is not None and compress(self.encoding, vector, base, self._trainable)
        if not difference:
            return push
        encoded, read = difference
        self._residual = vector - read
        if self._read is not None:
            self._read = read
        return msgspec.structs.replace(push, encoding=self.encoding, vector=encoded)

    def read(self, weights: Weights) -> Weights:
        """The reply to the last push, or to a pull, with its whole vector."""
        if not weights.encoding:
            return weights
        if weights.encoding != self.encoding:
            raise _not_agreed()
        base = self.parent if self._read is None else self._read
        if base is None:
            raise ProtocolError("base", "the parent sends a difference to nothing")
        vector = _expand(weights, base, self._trainable)
        return msgspec.structs.replace(weights, encoding="", vector=vector)

    def settle(self, weights: Weights) -> Vector | None:
        """Ends the last request with its reply, which has been read and is finite.

        Returns what to blend into θ_C: θ_P plus what the push has lost. So the blend leaves in θ_C
        what the parent has not received.
        """
        residual = self._residual
        self._store(weights)
        if weights.vector is None or residual is None:
            return weights.vector
        return weights.vector + residual

    def _base_of(self, push: Push, vector: Vector) -> Vector | None:
        """The base of this push's difference; None if it has to travel whole."""
        if push.kind == "weights":
            return self.parent if push.version == self._version else None
        return np.zeros(len(vector), DTYPE) if push.kind == "difference" else None

    def _store(self, weights: Weights) -> None:
        self._read = None
        if self.encoding and weights.vector is not None:
            self.parent = weights.vector
            self._version = weights.version


def unknown_base(child: str, push: Push) -> ProtocolError:
    """A push with a difference to weights that the parent does not have."""
    return ProtocolError(
        "base",
        f"child {child!r} pushes a difference to version {push.version}, which this connection "
        "does not know; it has to join again",
    )


def check_weights(weights: Weights, signature: Signature | None) -> None:
    """Checks that the parent's weights, which have been read, can belong to this network."""
    vector = weights.vector
    size = signature.size if signature is not None else 0
    if weights.encoding:
        raise _not_agreed()
    if vector is not None and len(vector) != size:
        raise ProtocolError("length", f"the parent sends {len(vector)} numbers, expected {size}")
    if vector is not None and not is_finite(vector):
        raise ProtocolError("finite", "the parent sends NaN or infinity")


def _not_agreed() -> ProtocolError:
    return ProtocolError("base", "the parent sends a difference that was not agreed on")


def _expand(message: Push | Weights, base: Vector, trainable: int) -> Vector:
    difference = message.vector
    if difference is None:
        difference = np.empty(0, np.uint8)
    return expand(message.encoding, difference, base, trainable)


def compress(
    encoding: str, vector: Vector, base: Vector, trainable: int
) -> tuple[Bytes, Vector] | None:
    """The difference of `vector` to `base` in bytes, and the vector that the other end reads in it.

    Vectors are float32 (n,), bytes uint8. The leading `trainable` numbers are encoded; those behind
    travel exactly. None if the other end's vector would not be finite.
    """
    received = base.copy()
    received[trainable:] = vector[trainable:]
    parts: list[npt.NDArray[Any]]
    with np.errstate(over="ignore", invalid="ignore"):
        if encoding == "float16":
            codes = (vector[:trainable] - base[:trainable]).astype(_HALF)
            received[:trainable] += codes
            parts = [received[trainable:], codes]
        else:
            scales, whole = _round(vector, received, trainable, _LARGEST[encoding])
            parts = [scales, received[trainable:], whole if encoding == "int8" else _pack(whole)]
    if not is_finite(received):
        return None
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts]), received


def expand(encoding: str, difference: Bytes, base: Vector, trainable: int) -> Vector:
    """The vector whose difference to `base` was compressed; it may hold NaN or infinity."""
    blocks, size = 0, trainable * _HALF.itemsize
    if encoding != "float16":
        blocks = -(-trainable // BLOCK)
        size = blocks * _BYTES[encoding]
    begin = DTYPE.itemsize * (blocks + len(base) - trainable)
    if len(difference) < begin:
        raise _wrong_length(encoding, len(difference), len(base))
    # A copy, because the bytes need not be aligned.
    head = np.frombuffer(difference[:begin].tobytes(), DTYPE)
    tail = difference[begin:]
    if encoding == "int4":
        tail = _inflate(tail, size)
    if len(tail) != size:
        raise _wrong_length(encoding, len(difference), len(base))
    vector = base.copy()
    vector[trainable:] = head[blocks:]
    with np.errstate(over="ignore", invalid="ignore"):
        if encoding == "float16":
            vector[:trainable] += np.frombuffer(tail.tobytes(), _HALF)
        else:
            _add(vector[:trainable], head[:blocks], tail.reshape(blocks, _BYTES[encoding]))
    return vector


def _round(
    vector: Vector, received: Vector, trainable: int, largest: int
) -> tuple[Vector, npt.NDArray[np.int8]]:
    """Scales and whole numbers of the difference to `received`, to which both are added."""
    blocks = -(-trainable // BLOCK)
    scales = np.empty(blocks, DTYPE)
    whole = np.empty((blocks, BLOCK), np.int8)
    for first in range(0, blocks, _BLOCKS):
        rows = slice(first, min(first + _BLOCKS, blocks))
        here = slice(first * BLOCK, min(rows.stop * BLOCK, trainable))
        numbers = np.zeros((rows.stop - first, BLOCK), DTYPE)
        flat = numbers.reshape(-1)[: here.stop - here.start]
        np.subtract(vector[here], received[here], out=flat)
        scale = np.maximum(numbers.max(axis=1), -numbers.min(axis=1)) / DTYPE.type(largest)
        # One over a smaller number would be infinite.
        scale[scale < _TINY] = 0.0
        numbers *= np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0.0)[:, None]
        np.rint(numbers, out=numbers)
        scales[rows] = scale
        whole[rows] = numbers
        numbers *= scale[:, None]
        received[here] += flat
    return scales, whole


def _add(vector: Vector, scales: Vector, codes: Bytes) -> None:
    """Adds the blocks to `vector`: scale times whole number, both rounded to float32."""
    for first in range(0, len(scales), _BLOCKS):
        rows = slice(first, min(first + _BLOCKS, len(scales)))
        here = slice(first * BLOCK, min(rows.stop * BLOCK, len(vector)))
        part = codes[rows]
        numbers: npt.NDArray[np.float32] = np.empty((len(part), BLOCK), DTYPE)
        if part.shape[1] == BLOCK:
            numbers[:] = part.view(np.int8)
        else:
            numbers[:, : BLOCK // 2] = part & 15
            numbers[:, BLOCK // 2 :] = part >> 4
            numbers -= DTYPE.type(8.0)
        numbers *= scales[rows, None]
        vector[here] += numbers.reshape(-1)[: here.stop - here.start]


def _pack(whole: npt.NDArray[np.int8]) -> Bytes:
    """Two whole numbers a byte, deflated by Huffman's code alone: there is nothing to repeat."""
    shifted = (whole + np.int8(8)).view(np.uint8)
    halves = shifted[:, : BLOCK // 2] | (shifted[:, BLOCK // 2 :] << np.uint8(4))
    deflate = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    packed = deflate.compress(halves.tobytes()) + deflate.flush()
    return np.frombuffer(packed, np.uint8)


def _inflate(packed: Bytes, size: int) -> Bytes:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        # One byte more than fits: a stream that holds more shows it, and takes no memory.
        data = inflate.decompress(packed.tobytes(), size + 1)
    except zlib.error as error:
        raise ProtocolError("length", f"the int4 numbers do not inflate: {error}") from None
    if len(data) != size or not inflate.eof or inflate.unused_data:
        raise ProtocolError(
            "length", f"the int4 numbers do not inflate to {size} bytes, as this network needs"
        )
    return np.frombuffer(data, np.uint8)


def _wrong_length(encoding: str, length: int, size: int) -> ProtocolError:
    return ProtocolError(
        "length", f"{length} bytes are no {encoding} difference of a vector of {size} numbers"
    )
