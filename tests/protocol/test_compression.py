"""Differences in fewer bytes: how near they come, and that both ends read the same."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from genkidama.errors import ProtocolError
from genkidama.protocol.compression import BLOCK, ENCODINGS, Encoding, compress, expand
from genkidama.protocol.vector import DTYPE, Vector

encodings = st.sampled_from(ENCODINGS)
numbers = st.floats(-1e4, 1e4, width=32)
#: So that a block is full, nearly, or begun.
sizes = st.sampled_from([1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 70 * BLOCK + 5])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Vector, Vector, int]:
    """A vector, its base, and how many of the numbers are trainable."""
    trainable = draw(sizes)
    size = trainable + draw(st.integers(0, 9))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    vector, base = generator.normal(0.0, draw(st.sampled_from([1e-38, 1e-30, 1.0, 1e3])), (2, size))
    vector[: size // 3] = draw(numbers)
    return vector.astype(DTYPE), base.astype(DTYPE), trainable


@given(encodings, pairs())
def test_both_ends_read_the_same_near_the_vector(
    encoding: Encoding, pair: tuple[Vector, Vector, int]
) -> None:
    vector, base, trainable = pair
    found = compress(encoding, vector, base, trainable)
    assert found is not None
    difference, received = found
    assert expand(encoding, difference, base, trainable).tobytes() == received.tobytes()
    assert received[trainable:].tobytes() == vector[trainable:].tobytes()
    distance = np.abs(vector - base)[:trainable].astype(np.float64)
    blocks = np.pad(distance, (0, -trainable % BLOCK)).reshape(-1, BLOCK).max(axis=1)
    allowed = {"float16": 2.0**-11, "int8": 0.5 / 127, "int4": 0.5 / 7}[encoding]
    bound = np.repeat(blocks, BLOCK)[:trainable] * (allowed + 1e-6)
    # Beside it, the rounding of the sums and the smallest number of the encoding.
    bound += 2.0**-22 * np.maximum(np.abs(vector), np.abs(base))[:trainable]
    bound += 2.0**-24 if encoding == "float16" else 1e-35
    assert (np.abs(received.astype(np.float64) - vector)[:trainable] <= bound).all()


def read_by_the_letter(encoding: str, content: bytes, base: list[float], trainable: int) -> Vector:
    """A second reader, from the law alone, one number at a time."""
    blocks = 0 if encoding == "float16" else -(-trainable // 256)
    scales = struct.unpack(f"<{blocks}f", content[: 4 * blocks])
    begin = 4 * (blocks + len(base) - trainable)
    exact = struct.unpack(f"<{len(base) - trainable}f", content[4 * blocks : begin])
    rest = content[begin:]
    changes: list[np.float32] = []
    if encoding == "float16":
        changes = [np.float32(value) for value in struct.unpack(f"<{trainable}e", rest)]
    elif encoding == "int8":
        signed = struct.unpack(f"<{256 * blocks}b", rest)
        changes = [
            np.float32(scales[index // 256]) * np.float32(value)
            for index, value in enumerate(signed)
        ]
    else:
        halves = zlib.decompress(rest, wbits=-15)
        for block, scale in enumerate(scales):
            part = halves[128 * block : 128 * (block + 1)]
            values = [byte % 16 - 8 for byte in part] + [byte // 16 - 8 for byte in part]
            changes += [np.float32(scale) * np.float32(value) for value in values]
    read = [np.float32(base[index]) + changes[index] for index in range(trainable)]
    return np.array([*read, *exact], DTYPE)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("trainable", [3, 256, 300])
def test_a_second_reader_of_the_format_agrees(encoding: Encoding, trainable: int) -> None:
    vector, base = np.random.default_rng(3).normal(size=(2, trainable + 4)).astype(DTYPE)
    found = compress(encoding, vector, base, trainable)
    assert found is not None
    content = found[0].tobytes()
    read = read_by_the_letter(encoding, content, base.tolist(), trainable)
    assert read.tobytes() == found[1].tobytes()


def test_a_difference_in_bytes() -> None:
    """As docs/protocol.md has them."""
    found = compress("int4", np.array([7.0, -3.0, 5.0], DTYPE), np.zeros(3, DTYPE), 2)
    assert found is not None
    assert found[0][:8].tobytes() == struct.pack("<2f", 1.0, 5.0)
    codes = zlib.decompress(found[0][8:].tobytes(), wbits=-15)
    assert codes == bytes([0x8F, 0x85]) + bytes([0x88]) * 126


def test_an_equal_vector_costs_next_to_nothing_and_changes_nothing() -> None:
    base = np.linspace(-1.0, 1.0, 1000, dtype=DTYPE)
    for encoding in ENCODINGS:
        found = compress(encoding, base.copy(), base, 1000)
        assert found is not None and found[1].tobytes() == base.tobytes()


@pytest.mark.parametrize(
    ("encoding", "most"), [("float16", 0.501), ("int8", 0.26), ("int4", 0.125)]
)
def test_how_many_bytes_a_difference_takes(encoding: Encoding, most: float) -> None:
    vector, base = np.random.default_rng(0).normal(size=(2, 100_000)).astype(DTYPE)
    found = compress(encoding, vector, base, 100_000)
    assert found is not None and len(found[0]) <= most * vector.nbytes


@given(encodings, st.sampled_from([np.nan, np.inf, -np.inf, 3e38]), st.integers(0, 299))
def test_what_no_encoding_holds_has_none(encoding: Encoding, value: float, place: int) -> None:
    vector, base = np.zeros((2, 300), DTYPE)
    vector[place] = value
    base[place] = -np.sign(value) * 3e38
    assert compress(encoding, vector, base, 300) is None


@given(
    encodings, st.binary(max_size=700), hnp.arrays(DTYPE, 5, elements=numbers), st.integers(0, 5)
)
def test_any_bytes_give_a_vector_or_a_protocol_error(
    encoding: Encoding, content: bytes, base: Vector, trainable: int
) -> None:
    before = base.copy()
    with suppress(ProtocolError):
        vector = expand(encoding, np.frombuffer(content, np.uint8), base, trainable)
        assert vector.shape == base.shape and vector.dtype == DTYPE
    assert base.tobytes() == before.tobytes()


@given(encodings, st.integers(-3, 3).filter(bool))
def test_a_byte_too_few_or_too_many_is_noticed(encoding: Encoding, more: int) -> None:
    vector, base = np.random.default_rng(1).normal(size=(2, 300)).astype(DTYPE)
    found = compress(encoding, vector, base, 298)
    assert found is not None
    content = found[0].tobytes()
    content = content + bytes(more) if more > 0 else content[:more]
    with pytest.raises(ProtocolError) as caught:
        expand(encoding, np.frombuffer(content, np.uint8), base, 298)
    assert caught.value.code == "length"


def test_a_stream_that_inflates_to_too_much_takes_no_memory() -> None:
    bomb = zlib.compress(bytes(50_000_000), wbits=-15)
    content = struct.pack("<f", 1.0) + bomb
    difference = np.frombuffer(content, np.uint8)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="do not inflate to 128 bytes, as this network"):
            expand("int4", difference, np.zeros(3, DTYPE), 3)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
