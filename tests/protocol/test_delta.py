"""Both ends of a line, without a network: what they agree on, and what a message leaves over."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from contextlib import suppress
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from genkidama.errors import ProtocolError
from genkidama.protocol.delta import (
    BLOCK,
    ENCODINGS,
    ChildDelta,
    Encoding,
    ParentDelta,
    agree,
    check_weights,
    compress,
    expand,
)
from genkidama.protocol.messages import (
    Hello,
    Kind,
    Push,
    Weights,
    decode_reply,
    decode_request,
    encode,
)
from genkidama.protocol.vector import DTYPE, Signature, Vector, blend

SIGNATURE = Signature.of([("weight", (29, 20)), ("statistics.observations", (5,))])
SIZE = SIGNATURE.size


def as_read(text: str) -> str:
    """An equal text that is an object of its own, as readers of files and messages make them."""
    return "".join([*text])


def hello(*encodings: str) -> Hello:
    return Hello(protocol=2, name="pi", session="s", encodings=list(encodings))


@pytest.mark.parametrize(
    ("wish", "offer", "agreed"),
    [
        *((name, ENCODINGS, name) for name in ENCODINGS),
        ("int4", ("float16", "int4"), "int4"),
        ("int4", ("float16", "int5"), None),
        ("int4", (), None),
        ("float32", ENCODINGS, None),
        ("float32", ("float32",), None),
        ("int5", ("int5",), None),
    ],
)
def test_what_both_know_is_agreed_on(wish: str, offer: tuple[str, ...], agreed: str | None) -> None:
    line = agree(hello(*offer), as_read(wish))
    assert (line.encoding if line else None) == agreed


def ends(
    encoding: Encoding, start: Vector | None, version: int = 0
) -> tuple[ParentDelta, ChildDelta]:
    """Both ends after a join."""
    parent, child = ParentDelta(encoding), ChildDelta(encoding)
    parent.join(SIGNATURE)
    parent.answer(Weights(version=version, vector=start))
    child.join(Weights(version=version, vector=start), SIGNATURE)
    return parent, child


def push(version: int, vector: Any) -> Push:
    return Push(version=version, sequence=version + 1, vector=vector)


def kind_of(kind: Kind, version: int, vector: Vector) -> Push:
    return Push(version=version, sequence=1, kind=kind, vector=vector)


def exchange(
    parent: ParentDelta, child: ChildDelta, version: int, ours: Vector, theirs: Vector, alpha: float
) -> Vector:
    """One exchange over the wire; `theirs` is blended in place. What the child shall blend."""
    said = decode_request(encode(child.write(push(version, ours))))
    assert isinstance(said, Push)
    heard = parent.read("pi", said) if said.encoding else said
    assert heard.vector is not None
    blend(theirs, heard.vector, alpha)
    return replied(parent, child, heard, Weights(version=version + 1, vector=theirs))


def replied(parent: ParentDelta, child: ChildDelta, heard: Push | None, weights: Weights) -> Any:
    """What the child shall blend when these weights answer what the parent has heard."""
    answer = decode_reply(encode(parent.answer(weights, heard)))
    assert isinstance(answer, Weights)
    assert bool(answer.encoding) == (weights.vector is not None)
    return child.settle(child.read(answer))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_both_ends_know_the_same_after_every_exchange(encoding: Encoding) -> None:
    generator = np.random.default_rng(5)
    theirs, ours = generator.normal(size=(2, SIZE)).astype(DTYPE)
    theirs[-5:] = 1e6
    newest = 2**53 - 8  # versions are large in a long run
    parent, child = ends(encoding, theirs, newest)
    distances = []
    for version in range(newest, newest + 6):
        received = exchange(parent, child, version, ours, theirs, 0.5)
        assert parent.parent is not None and child.parent is not None
        assert parent.parent.tobytes() == child.parent.tobytes()
        assert child.parent[-5:].tobytes() == theirs[-5:].tobytes()
        distances.append(float(np.abs(received - theirs)[:-5].max()))
        blend(ours, received, 0.5)
    # Nothing is learned here: the two come to agree, and what is left over with them.
    assert all(later < before for before, later in pairwise(distances[:4]))
    assert np.abs(ours - theirs)[:-5].max() < 0.01


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ENCODINGS), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 2**32 - 1))
def test_what_a_push_leaves_over_is_not_lost(encoding: Encoding, beta: float, seed: int) -> None:
    """A child whose steps are far below what its encoding can say beside the large ones."""
    generator = np.random.default_rng(seed)
    theirs = np.zeros(SIZE, DTYPE)
    ours, wanted = theirs.copy(), np.zeros(SIZE, np.float64)
    parent, child = ends(encoding, theirs)
    for version in range(40):
        step = np.full(SIZE, 1e-3, DTYPE)
        step[0] = generator.normal()
        ours += step
        wanted += step
        sent = ours.copy()
        received = exchange(parent, child, version, sent, theirs, 1.0)
        ours += (received - sent) * DTYPE.type(beta)
    # With α = 1 the parent is what it has read of its one child.
    left = {"float16": 1e-3, "int8": 0.02, "int4": 0.4}[encoding]
    assert np.abs(theirs - wanted).max() < left
    assert np.abs(ours - wanted).max() < 1e-4
    # Without what was left over, none of these steps would ever have arrived.
    assert np.abs(theirs[1:-5]).max() > 0.0


@pytest.mark.parametrize("kind", ["weights", "difference", "gradient", "experience"])
def test_without_an_encoding_all_travels_whole_and_no_second_vector_is_kept(kind: Kind) -> None:
    start, learned, newer = np.random.default_rng(4).normal(size=(3, SIZE)).astype(DTYPE)
    child = ChildDelta()
    child.join(Weights(version=0, vector=start), SIGNATURE)
    message = kind_of(kind, 0, learned)
    assert child.write(message) is message
    answer = Weights(version=1, vector=newer)
    assert child.read(answer) is answer and child.settle(answer) is newer
    assert child.parent is None


def test_the_first_push_to_a_parent_without_weights_is_whole() -> None:
    parent, child = ends("int4", None)
    first = np.ones(SIZE, DTYPE)
    message = push(0, first)
    assert child.write(message) is message
    answer = parent.answer(Weights(version=1, vector=first.copy()), message)
    assert answer.encoding == "int4"
    assert child.settle(child.read(answer)) is not None
    assert child.write(push(1, first)).encoding == "int4"


def test_weights_that_have_diverged_travel_whole_and_are_refused_as_ever() -> None:
    _, child = ends("int8", np.ones(SIZE, DTYPE))
    diverged = np.full(SIZE, np.nan, DTYPE)
    assert child.write(push(0, diverged)).vector is diverged


def test_a_reply_without_a_vector_is_followed_by_a_whole_push() -> None:
    parent, child = ends("int8", np.ones(SIZE, DTYPE))
    said = child.write(push(0, np.ones(SIZE, DTYPE)))
    silent = Weights(version=1)
    assert parent.answer(silent, parent.read("pi", said)) is silent
    assert child.read(silent) is silent
    assert child.settle(silent) is None
    assert child.write(push(1, np.ones(SIZE, DTYPE))).encoding == ""


@pytest.mark.parametrize("version", [0, 2, 99])
def test_a_difference_to_another_version_is_refused_and_changes_nothing(version: int) -> None:
    parent, child = ends("int8", np.ones(SIZE, DTYPE))
    parent.join(SIGNATURE)
    parent.answer(Weights(version=1, vector=np.ones(SIZE, DTYPE)))
    said = child.write(push(0, np.zeros(SIZE, DTYPE)))
    said.version = version
    with pytest.raises(ProtocolError, match=f"to version {version}, which this connection") as no:
        parent.read("pi", said)
    assert no.value.code == "base"
    said.version = 1
    assert parent.read("pi", said).vector is not None


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_difference_travels_by_itself_and_its_reply_from_the_last_weights(
    encoding: Encoding,
) -> None:
    start, learned, newer = np.random.default_rng(7).normal(size=(3, SIZE)).astype(DTYPE)
    parent, child = ends(encoding, start)
    # It may come from an older version than this connection's weights, after a cut.
    parent.join(SIGNATURE)
    parent.answer(Weights(version=9, vector=start))
    said = decode_request(encode(child.write(kind_of("difference", 4, learned))))
    assert isinstance(said, Push) and (said.encoding, said.kind) == (encoding, "difference")
    heard = parent.read("pi", said)
    assert heard.vector is not None
    part = {"float16": 1e-3, "int8": 0.02, "int4": 0.4}[encoding]
    assert np.abs(heard.vector - learned).max() < part
    assert heard.vector[-5:].tobytes() == learned[-5:].tobytes()
    received = replied(parent, child, heard, Weights(version=10, vector=newer))
    assert parent.parent is not None and child.parent is not None
    assert parent.parent.tobytes() == child.parent.tobytes()
    assert 0.0 < np.abs(child.parent - newer).max() < 2 * part
    # What was left over stays in θ_C, and θ_base is θ_P without it.
    assert received - child.parent == pytest.approx(learned - heard.vector, abs=1e-5)


def test_a_gradient_travels_whole_and_its_reply_does_not() -> None:
    start, gradient, newer = np.random.default_rng(8).normal(size=(3, SIZE)).astype(DTYPE)
    parent, child = ends("int8", start)
    message = kind_of("gradient", 0, gradient)
    assert child.write(message) is message
    received = replied(parent, child, message, Weights(version=1, vector=newer))
    assert child.parent is received and parent.parent is not None
    assert parent.parent.tobytes() == received.tobytes() != newer.tobytes()


def test_experience_travels_whole_and_what_is_pulled_does_not() -> None:
    start, newer, newest = np.random.default_rng(9).normal(size=(3, SIZE)).astype(DTYPE)
    parent, child = ends("int4", start)
    for rows in (7, SIZE):
        message = kind_of("experience", 0, np.ones(rows, DTYPE))
        assert child.write(message) is message
        replied(parent, child, message, Weights(version=1, vector=newer))
        # Nothing is new: both ends know what they knew.
        replied(parent, child, None, Weights(version=1))
        received = replied(parent, child, None, Weights(version=1, vector=newest))
        assert child.parent is received and parent.parent is not None
        assert parent.parent.tobytes() == received.tobytes() != newest.tobytes()
    for _ in range(6):
        received = replied(parent, child, None, Weights(version=1, vector=newest))
    assert np.abs(received - newest).max() < 1e-4


def test_a_child_that_only_acts_is_told_what_has_changed() -> None:
    start, newer = np.random.default_rng(10).normal(size=(2, SIZE)).astype(DTYPE)
    parent, child = ends("int8", start)
    message = Push(version=0, sequence=1, kind="work", steps=9)
    assert child.write(message) is message
    received = replied(parent, child, message, Weights(version=1, vector=newer))
    assert child.parent is received and parent.parent is not None
    assert parent.parent.tobytes() == received.tobytes() != newer.tobytes()


def test_weights_that_start_from_another_version_travel_whole() -> None:
    start = np.ones(SIZE, DTYPE)
    _, child = ends("int8", start)
    child.join(Weights(version=9, vector=start), SIGNATURE)
    for version in (4, 8, 10):
        assert child.write(push(version, start)).encoding == ""
    assert child.write(push(9, start)).encoding == "int8"


def test_an_empty_difference_is_none() -> None:
    parent, _ = ends("int8", np.ones(SIZE, DTYPE))
    with pytest.raises(ProtocolError, match="0 bytes are no int8 difference of a vector of 585"):
        parent.read("pi", Push(version=0, sequence=1, encoding="int8"))


def test_a_difference_in_reply_to_nothing_is_refused() -> None:
    with pytest.raises(ProtocolError, match="difference to nothing"):
        ChildDelta("int8").read(Weights(version=0, encoding="int8", vector=np.zeros(3, np.uint8)))


@pytest.mark.parametrize(
    ("agreed", "sent"),
    [pair for pair in permutations(("", *ENCODINGS), 2) if pair[1]],
)
def test_a_reply_in_an_encoding_that_was_not_agreed_on_is_refused(
    agreed: Encoding, sent: Encoding
) -> None:
    parent, child = ends(sent, np.ones(SIZE, DTYPE))
    child.encoding = agreed
    answer = parent.answer(Weights(version=1, vector=np.zeros(SIZE, DTYPE)))
    with pytest.raises(ProtocolError, match="a difference that was not agreed on") as caught:
        child.read(answer)
    assert caught.value.code == "base"


@pytest.mark.parametrize(
    ("numbers", "signature", "words"),
    [
        (SIZE, SIGNATURE, ""),
        (0, None, ""),
        (SIZE - 1, SIGNATURE, f"the parent sends {SIZE - 1} numbers, expected {SIZE}"),
        (SIZE + 1, SIGNATURE, f"the parent sends {SIZE + 1} numbers, expected {SIZE}"),
        (1, None, "the parent sends 1 numbers, expected 0"),
    ],
)
def test_weights_have_the_size_of_the_network(
    numbers: int, signature: Signature | None, words: str
) -> None:
    weights = Weights(version=0, vector=np.zeros(numbers, DTYPE))
    if not words:
        check_weights(weights, signature)
        return
    with pytest.raises(ProtocolError) as caught:
        check_weights(weights, signature)
    assert (caught.value.code, caught.value.reason) == ("length", words)


encodings = st.sampled_from(ENCODINGS).map(as_read)
numbers = st.floats(-1e4, 1e4, width=32)
#: So that a block is full, nearly, or begun, and so is what is worked on at a time.
sizes = st.sampled_from([0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 130 * BLOCK + 5])


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
@pytest.mark.parametrize("trainable", [0, 3, 256, 300])
def test_a_second_reader_of_the_format_agrees(encoding: Encoding, trainable: int) -> None:
    vector, base = np.random.default_rng(3).normal(size=(2, trainable + 4)).astype(DTYPE)
    found = compress(encoding, vector, base, trainable)
    assert found is not None
    content = found[0].tobytes()
    read = read_by_the_letter(encoding, content, base.tolist(), trainable)
    assert read.tobytes() == found[1].tobytes()


def test_a_difference_in_bytes() -> None:
    """As docs/reference/protocol.md has them."""
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
        scales, codes = found[0][:16].tobytes(), found[0][16:].tobytes()
        if encoding == "int4":
            codes = zlib.decompress(codes, wbits=-15).replace(b"\x88", b"\0")
        assert not any(scales) and not any(codes)


@pytest.mark.parametrize(("encoding", "largest"), [("int8", 127), ("int4", 7)])
def test_the_smallest_scale_is_the_smallest_normal_number(encoding: str, largest: int) -> None:
    tiny = np.finfo(DTYPE).tiny
    base = np.zeros(3, DTYPE)
    for factor, expected in ((largest, largest * tiny), (largest - 1, 0.0)):
        found = compress(encoding, np.array([factor * tiny, 0.0, 0.0], DTYPE), base, 3)
        assert found is not None and found[1].tolist() == [expected, 0.0, 0.0]


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


@pytest.mark.parametrize("length", [1, 127, 129, 50_000_000])
def test_a_stream_that_inflates_to_another_size_is_refused_and_takes_no_memory(length: int) -> None:
    stream = zlib.compress(bytes(length), wbits=-15)
    for trainable, size in ((0, 0), (3, 128)):
        difference = np.frombuffer(bytes(4 if trainable else 0) + stream, np.uint8)
        tracemalloc.start()
        try:
            with pytest.raises(ProtocolError, match=f"do not inflate to {size} bytes, as this net"):
                expand("int4", difference, np.zeros(trainable, DTYPE), trainable)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
