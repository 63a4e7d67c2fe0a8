"""Weights as a difference to a vector that the other end has: fewer bytes, and a rest.

Laws of this file:
- Pure NumPy. Equal arguments give equal bytes, and both ends compute the same vector to the bit.
- What a message leaves over stays with its sender. The next difference is taken from the sender's
  exact weights again, so errors never pile up.
- The numbers behind `trainable` are running statistics: large counts and sums. They travel exactly.
- A difference that an encoding cannot hold, with a NaN for example, has no encoding: the vector
  then travels whole.

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
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from genkidama.errors import ProtocolError
from genkidama.protocol.vector import DTYPE, Vector, is_finite

__all__ = ["BLOCK", "ENCODINGS", "Encoding", "compress", "expand"]

#: How a message holds its vector: whole if empty, otherwise as a difference.
Encoding = Literal["", "float16", "int8", "int4"]

#: Ways to write a difference, the most exact first. A vector that travels whole needs none of them.
ENCODINGS: tuple[Encoding, ...] = ("float16", "int8", "int4")

#: So many numbers share a scale.
BLOCK = 256

#: The largest whole number of an encoding, and the bytes of a block.
_LARGEST = {"int8": 127, "int4": 7}
_BYTES = {"int8": BLOCK, "int4": BLOCK // 2}

#: Blocks worked on at a time; intermediate results stay in a second-level cache.
_BLOCKS = 64

_HALF = np.dtype("<f2")
_TINY = np.finfo(DTYPE).tiny

Bytes = npt.NDArray[np.uint8]


def compress(
    encoding: str, vector: Vector, base: Vector, trainable: int
) -> tuple[Bytes, Vector] | None:
    """The difference of `vector` to `base` in bytes, and the vector that the other end reads in it.

    Args:
        encoding: one of `ENCODINGS`.
        vector: float32, shape (n,).
        base: the vector that the other end has: float32, shape (n,).
        trainable: so many numbers of the vector are encoded; those behind them travel exactly.

    Returns:
        The bytes as uint8, and the other end's vector as float32, shape (n,). None if that vector
        would not be finite.
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
    """The vector whose difference to `base` was compressed; it may hold NaN or infinity.

    Args:
        encoding: one of `ENCODINGS`.
        difference: the bytes as uint8.
        base, trainable: as `compress` was given them.

    Raises:
        ProtocolError: these are no bytes of such a vector.
    """
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
    """Adds to `vector` what the blocks hold: scale times whole number, both rounded to float32."""
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
        found = inflate.decompress(packed.tobytes(), size + 1)
    except zlib.error as error:
        raise ProtocolError("length", f"the int4 numbers do not inflate: {error}") from None
    if len(found) != size or not inflate.eof or inflate.unused_data:
        raise ProtocolError(
            "length", f"the int4 numbers do not inflate to {size} bytes, as this network needs"
        )
    return np.frombuffer(found, np.uint8)


def _wrong_length(encoding: str, length: int, size: int) -> ProtocolError:
    return ProtocolError(
        "length", f"{length} bytes are no {encoding} difference of a vector of {size} numbers"
    )
