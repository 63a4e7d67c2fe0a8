from __future__ import annotations

import hashlib
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from genkidama.protocol.vector import (
    BLOCK,
    DTYPE,
    LARGEST,
    Signature,
    are_actions,
    are_numbers,
    checksum,
    is_finite,
    length,
    unflatten,
)

PAIR = Signature.of([("policy.weight", (2, 3)), ("policy.bias", [2]), ("scale", ())])

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
signatures = st.lists(
    st.tuples(st.text(max_size=6), shapes), max_size=6, unique_by=lambda entry: entry[0]
).map(Signature.of)


def test_size_and_slices_follow_the_order_of_the_entries() -> None:
    assert PAIR.size == 6 + 2 + 1
    assert PAIR.slices == {
        "policy.weight": slice(0, 6),
        "policy.bias": slice(6, 8),
        "scale": slice(8, 9),
    }
    assert Signature.of([]).size == 0


def test_numpy_dimensions_become_plain_numbers() -> None:
    assert Signature.of([("a", np.zeros((2, 3)).shape), ("b", np.array([4]))]).entries == (
        ("a", (2, 3)),
        ("b", (4,)),
    )


def test_the_digest_is_that_of_the_text_in_the_law() -> None:
    text = b"policy.weight:2,3\npolicy.bias:2\nscale:\n"
    assert PAIR.digest == hashlib.sha256(text).hexdigest()
    assert Signature.of([]).digest == hashlib.sha256(b"").hexdigest()


@given(signatures, signatures)
def test_equal_signatures_have_equal_digests_and_no_difference(
    one: Signature, other: Signature
) -> None:
    assert (one.difference(other) is None) == (one == other)
    assert Signature.of(one.entries).digest == one.digest
    if one == other:
        assert one.digest == other.digest


@pytest.mark.parametrize(
    ("theirs", "sentence"),
    [
        (PAIR.entries, None),
        (
            [("policy.weight", (2, 4)), ("policy.bias", (2,)), ("scale", ())],
            "parameter 0 is 'policy.weight' with shape [2, 4], "
            "expected 'policy.weight' with shape [2, 3]",
        ),
        (
            [("policy.weight", (2, 3)), ("value.bias", (2,)), ("scale", ())],
            "parameter 1 is 'value.bias' with shape [2], expected 'policy.bias' with shape [2]",
        ),
        (PAIR.entries[:2], "parameter 'scale' with shape [] is missing (2 parameters, expected 3)"),
        (
            [*PAIR.entries, ("extra", (7,))],
            "parameter 'extra' with shape [7] is not expected (4 parameters, expected 3)",
        ),
        ([], "parameter 'policy.weight' with shape [2, 3] is missing (0 parameters, expected 3)"),
    ],
)
def test_the_difference_names_the_first_parameter_that_differs(
    theirs: list[tuple[str, tuple[int, ...]]], sentence: str | None
) -> None:
    assert PAIR.difference(Signature.of(theirs)) == sentence


def test_unflatten_lays_parts_out_in_the_signatures_order_row_by_row() -> None:
    parts = unflatten(np.arange(1, 10, dtype=DTYPE), PAIR)
    assert {name: part.tolist() for name, part in parts.items()} == {
        "policy.weight": [[1, 2, 3], [4, 5, 6]],
        "policy.bias": [7, 8],
        "scale": 9,
    }


@given(st.data())
def test_the_parts_in_their_order_are_the_vector(data: st.DataObject) -> None:
    signature = data.draw(signatures)
    vector = data.draw(
        hnp.arrays(DTYPE, signature.size, elements=st.floats(width=32, allow_nan=False))
    )
    parts = unflatten(vector, signature)
    assert [(name, part.shape) for name, part in parts.items()] == list(signature.entries)
    assert b"".join(part.tobytes() for part in parts.values()) == vector.tobytes()


def test_unflattened_parts_are_views() -> None:
    vector = np.zeros(PAIR.size, DTYPE)
    unflatten(vector, PAIR)["policy.bias"][1] = 5
    unflatten(vector, PAIR)["scale"][...] = 6
    assert vector.tolist() == [0, 0, 0, 0, 0, 0, 0, 5, 6]


@pytest.mark.parametrize("shape", [(8,), (10,), (9, 1), ()])
def test_unflatten_refuses_a_vector_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        unflatten(np.zeros(shape, DTYPE), PAIR)
    assert str(caught.value) == f"a vector of shape {list(shape)}, expected [9]"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 7, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.filterwarnings("error")
def test_one_bad_number_anywhere_is_seen(bad: float, size: int) -> None:
    vector = np.ones(size, DTYPE)
    assert is_finite(vector) is True
    for position in {0, size // 2, min(BLOCK, size) - 1, size - 1}:
        vector[position] = bad
        assert is_finite(vector) is False
        vector[position] = 1


@pytest.mark.parametrize("size", [2, 1000, BLOCK + 1, 2 * BLOCK + 3])
@pytest.mark.filterwarnings("error")
def test_huge_finite_numbers_are_finite_though_their_squares_overflow(size: int) -> None:
    largest = np.finfo(np.float32).max
    vector = np.full(size, largest, DTYPE)
    vector[1::2] = -largest
    assert is_finite(vector)
    vector[-1] = np.inf
    assert not is_finite(vector)
    vector[0] = -np.inf
    assert not is_finite(vector)


@pytest.mark.parametrize(
    ("names", "statistics"),
    [
        (("weight", "bias"), 0),
        (("weight", "statistics.observations"), 2),
        (("statistics.observations", "statistics.returns"), 5),
        (("weight.statistics.", "statistics"), 0),
    ],
)
def test_running_statistics_are_known_by_their_names(
    names: tuple[str, str], statistics: int
) -> None:
    assert Signature.of(zip(names, [(3,), (2,)], strict=True)).statistics == statistics


@pytest.mark.parametrize("size", [1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 5])
@pytest.mark.parametrize("number", [2.0, -2.0, 2.0**100])
def test_a_long_vector_has_the_length_of_its_numbers(size: int, number: float) -> None:
    found = length(np.full(size, number, DTYPE))
    assert found == pytest.approx(abs(number) * math.sqrt(size), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("place", [(0, 0), (1, 1), (2, 0)])
def test_rows_of_numbers_are_told_from_others(dtype: type, place: tuple[int, int]) -> None:
    for value in (LARGEST, -LARGEST, 0.5):
        rows = np.zeros((3, 2), dtype)
        rows[place] = value
        assert are_numbers(rows).tolist() == [True] * 3
    for value in (np.nan, np.inf, -np.inf, 1.01 * LARGEST, -1.01 * LARGEST):
        rows = np.zeros((3, 2), dtype)
        rows[place] = value
        assert are_numbers(rows).tolist() == [row != place[0] for row in range(3)]


def test_the_numbers_of_images_are_numbers() -> None:
    assert are_numbers(np.full((2, 3, 3), 255, np.uint8)).tolist() == [True, True]


@pytest.mark.parametrize(
    ("action", "good"),
    [
        *(((0.0, 0.0, 9.5), True), ((2.0, 1.0, np.nan), True), ((1.0, 0.0, -3.0), True)),
        *(((3.0, 0.0, 0.0), False), ((0.0, 2.0, 0.0), False), ((-1.0, 0.0, 0.0), False)),
        *(((0.5, 0.0, 0.0), False), ((-0.5, 0.0, 0.0), False), ((0.0, 1.5, 0.0), False)),
        *(((np.nan, 0.0, 0.0), False), ((0.0, np.inf, 0.0), False), ((-np.inf, 0.0, 0.0), False)),
    ],
)
def test_discrete_actions_are_counted_from_0(action: tuple[float, ...], good: bool) -> None:
    """Here of 3 and of 2 choices, and a third column that is not discrete."""
    actions = np.array([(0.0, 0.0, 0.0), action, (2.0, 1.0, 0.0)], DTYPE)
    assert are_actions(actions, (3, 2)).tolist() == [True, good, True]
    assert are_actions(actions, ()).tolist() == [True, True, True]


def test_a_checksum_is_of_all_names_values_types_and_shapes() -> None:
    metadata = {"b": "2", "a": "1"}
    tensors = {"w": np.array([[1.0, 2.0]], DTYPE), "n": np.array(3, np.int64)}
    text = b"a=1\nb=2\nn:<i8[]\n" + struct.pack("<q", 3) + b"w:<f4[1, 2]\n"
    expected = hashlib.blake2b(text + struct.pack("<2f", 1.0, 2.0), digest_size=16).hexdigest()
    assert checksum(tensors, metadata) == expected
    assert checksum(tensors, metadata | {"checksum": "x"}) == expected
    turned = {"w": np.array([[1.0, 2.0]], DTYPE).T, "n": tensors["n"]}
    assert checksum(turned, metadata) != expected
