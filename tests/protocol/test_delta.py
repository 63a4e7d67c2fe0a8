"""Both ends of a line, without a network: what they agree on, and what a message leaves over."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.errors import ProtocolError
from genkidama.protocol.compression import ENCODINGS, Encoding
from genkidama.protocol.delta import ChildDelta, ParentDelta, agree
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

SIGNATURE = Signature.of([("weight", (30, 20)), ("statistics.observations", (5,))])
SIZE = SIGNATURE.size


def hello(*encodings: str) -> Hello:
    return Hello(protocol=2, name="pi", session="s", encodings=list(encodings))


@pytest.mark.parametrize(
    ("wish", "offer", "agreed"),
    [
        ("int4", ("float16", "int4"), "int4"),
        ("int4", ("float16", "int5"), None),
        ("int4", (), None),
        ("float32", ENCODINGS, None),
        ("float32", ("float32",), None),
        ("int5", ("int5",), None),
    ],
)
def test_what_both_know_is_agreed_on(wish: str, offer: tuple[str, ...], agreed: str | None) -> None:
    line = agree(hello(*offer), wish)
    assert (line.encoding if line else None) == agreed


def ends(encoding: Encoding, start: Vector | None) -> tuple[ParentDelta, ChildDelta]:
    """Both ends after a join."""
    parent, child = ParentDelta(encoding), ChildDelta(encoding)
    parent.begin(SIGNATURE)
    parent.answer(Weights(version=0, vector=start))
    child.begin(Weights(version=0, vector=start), SIGNATURE)
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
    parent, child = ends(encoding, theirs)
    distances = []
    for version in range(6):
        received = exchange(parent, child, version, ours, theirs, 0.5)
        assert parent.known is not None and child.known is not None
        assert parent.known.tobytes() == child.known.tobytes()
        assert child.known[-5:].tobytes() == theirs[-5:].tobytes()
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
    parent.begin(SIGNATURE)
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
    parent.begin(SIGNATURE)
    parent.answer(Weights(version=9, vector=start))
    said = decode_request(encode(child.write(kind_of("difference", 4, learned))))
    assert isinstance(said, Push) and (said.encoding, said.kind) == (encoding, "difference")
    heard = parent.read("pi", said)
    assert heard.vector is not None
    part = {"float16": 1e-3, "int8": 0.02, "int4": 0.4}[encoding]
    assert np.abs(heard.vector - learned).max() < part
    assert heard.vector[-5:].tobytes() == learned[-5:].tobytes()
    received = replied(parent, child, heard, Weights(version=10, vector=newer))
    assert parent.known is not None and child.known is not None
    assert parent.known.tobytes() == child.known.tobytes()
    assert 0.0 < np.abs(child.known - newer).max() < 2 * part
    # What was left over stays in θ_C, and θ_base is θ_P without it.
    assert received - child.known == pytest.approx(learned - heard.vector, abs=1e-5)


def test_a_gradient_travels_whole_and_its_reply_does_not() -> None:
    start, gradient, newer = np.random.default_rng(8).normal(size=(3, SIZE)).astype(DTYPE)
    parent, child = ends("int8", start)
    message = kind_of("gradient", 0, gradient)
    assert child.write(message) is message
    received = replied(parent, child, message, Weights(version=1, vector=newer))
    assert child.known is received and parent.known is not None
    assert parent.known.tobytes() == received.tobytes() != newer.tobytes()


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
        assert child.known is received and parent.known is not None
        assert parent.known.tobytes() == received.tobytes() != newest.tobytes()
    for _ in range(6):
        received = replied(parent, child, None, Weights(version=1, vector=newest))
    assert np.abs(received - newest).max() < 1e-4


def test_weights_that_start_from_an_older_version_travel_whole() -> None:
    start = np.ones(SIZE, DTYPE)
    _, child = ends("int8", start)
    child.begin(Weights(version=9, vector=start), SIGNATURE)
    assert child.write(push(4, start)).encoding == ""
    assert child.write(push(9, start)).encoding == "int8"


def test_an_empty_difference_is_none() -> None:
    parent, _ = ends("int8", np.ones(SIZE, DTYPE))
    with pytest.raises(ProtocolError, match="0 bytes are no int8 difference of a vector of 605"):
        parent.read("pi", Push(version=0, sequence=1, encoding="int8"))


def test_a_difference_in_reply_to_nothing_is_refused() -> None:
    with pytest.raises(ProtocolError, match="difference to nothing"):
        ChildDelta("int8").read(Weights(version=0, encoding="int8", vector=np.zeros(3, np.uint8)))
