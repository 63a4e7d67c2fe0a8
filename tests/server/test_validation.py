"""What a parent does not allow, by the words with which it says so."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from genkidama.config.sections import ParentSettings
from genkidama.errors import ProtocolError
from genkidama.protocol import vector as vectors
from genkidama.protocol.messages import LARGEST_RETURN, PROTOCOL, Hello, Push
from genkidama.protocol.shard import WHOLE, Shard
from genkidama.protocol.vector import DTYPE, Signature
from genkidama.server.rules.blend import Blend
from genkidama.server.trial import Trial
from genkidama.server.validation import (
    check_hello,
    check_push,
    check_returns,
    check_signature,
    measure,
)

SIGNATURE = Signature.of([("weight", (1, 2)), ("bias", (1,))])
OTHER = "child 'a' has another network: "
LIMITED = ParentSettings(max_parameters=100)


def refusal(check: Any, *arguments: Any) -> tuple[str, str] | None:
    """The code and the reason; None if nothing is wrong."""
    try:
        check(*arguments)
    except ProtocolError as error:
        return error.code, error.reason
    return None


def hello(protocol: int = PROTOCOL) -> Hello:
    return Hello(protocol=protocol, name="a", session="s1")


@pytest.mark.parametrize(
    ("session", "connected", "code"),
    [
        ("", 0, ""),
        ("", 2, ""),
        ("", 3, "full"),
        ("", 4, "full"),
        ("s1", 3, ""),  # it is one of the three
        ("s0", 1, "name"),
        ("s2", 1, "name"),
        ("s2", 3, "name"),
    ],
)
def test_who_may_come_in(session: str, connected: int, code: str) -> None:
    found = refusal(check_hello, hello(), session, connected, 3)
    assert (found[0] if found else "") == code


@pytest.mark.parametrize("protocol", [PROTOCOL - 1, PROTOCOL + 1])
def test_another_protocol_is_refused_before_all_else(protocol: int) -> None:
    assert refusal(check_hello, hello(protocol), "s2", 3, 3) == (
        "version",
        f"child 'a' speaks protocol {protocol}, this parent protocol 2; "
        "install the same version on both",
    )


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([], "a network of 0 numbers; 1 to 100 are accepted (parent.max_parameters)"),
        (
            [("w", (101,))],
            "a network of 101 numbers; 1 to 100 are accepted (parent.max_parameters)",
        ),
        ([("w", (1,)), ("w", (2,))], "child 'a' gives two parameters the same name"),
        (
            [("w", (1,)), ("__rule__.velocity", (1,))],
            "child 'a' gives a parameter the name '__rule__.velocity'",
        ),
        ([("__metadata__", (1,))], "child 'a' gives a parameter the name '__metadata__'"),
        (
            [("weight", (2, 1)), ("bias", (1,))],
            OTHER
            + "parameter 0 is 'weight' with shape [2, 1], expected 'weight' with shape [1, 2]",
        ),
        (
            [("weight", (1, 2))],
            OTHER + "parameter 'bias' with shape [1] is missing (1 parameters, expected 2)",
        ),
    ],
)
def test_a_network_that_does_not_fit(entries: list[Any], reason: str) -> None:
    trial = Trial(window=1, signature=SIGNATURE)
    with pytest.raises(ProtocolError) as found:
        check_signature("a", Signature.of(entries), trial, LIMITED)
    assert (found.value.code, found.value.reason) == ("signature", reason)
    assert found.value.final != reason.startswith(OTHER)  # another one may be the run's later


def test_the_experiment_may_say_which_network_it_expects() -> None:
    settings = ParentSettings(signature=SIGNATURE.digest)
    other = Signature.of([("w", (3,))])
    assert refusal(check_signature, "a", SIGNATURE, Trial(window=1), settings) is None
    found = refusal(check_signature, "a", other, Trial(window=1), settings)
    words = "child 'a' has another network than parent.signature says: "
    assert found == ("signature", f"{words}{other.digest}, expected {SIGNATURE.digest}")
    assert refusal(check_signature, "a", other, Trial(window=1, number=3), settings) is None


def test_the_first_network_only_has_to_be_of_a_size() -> None:
    same = Trial(window=1, signature=SIGNATURE)
    for entries in ([("w", (100,))], [("Weight.0", ())], [("__init__", (1,))]):
        other = Signature.of(entries)
        assert refusal(check_signature, "a", other, Trial(window=1), LIMITED) is None
    assert refusal(check_signature, "a", SIGNATURE, same, LIMITED) is None
    deep = Signature.of((f"layer.{number}", (1,)) for number in range(300))
    assert refusal(check_signature, "a", deep, Trial(window=1), ParentSettings()) is None


def test_a_child_comes_for_the_part_that_this_is() -> None:
    third = Hello(protocol=PROTOCOL, name="a", session="s1", part="3/3")
    assert refusal(check_hello, third, "", 0, 3, Shard(3, 3)) is None
    parts = "; give it the addresses of all parts, in their order"
    runs = "; start a child of its own for each run, with --cores for its share of the machine"
    for message, part, words, way in (
        (third, Shard(2, 3), "child 'a' comes for part 3/3 of a parent, this is part 2/3", parts),
        (third, WHOLE, "child 'a' comes for part 3/3 of a parent, this is part 1/1", runs),
        (hello(), Shard(1, 2), "child 'a' comes for part 1/1 of a parent, this is", parts),
    ):
        found = refusal(check_hello, message, "", 0, 3, part)
        assert found is not None and found[0] == "part"
        assert found[1].startswith(words) and found[1].endswith(way)


def test_no_part_is_empty() -> None:
    statistics = Signature.of([("w", (2,)), ("statistics.returns", (3,))])
    for count, words in ((2, None), (3, "3 parts share the child's 5 numbers; use fewer")):
        found = refusal(
            check_signature, "a", statistics, Trial(window=1, part=Shard(1, count)), LIMITED
        )
        assert found == (words and ("signature", words))


def push(*numbers: float, version: int = 0, trial: int | None = None) -> Push:
    vector = np.array(numbers, DTYPE)
    return Push(version=version, sequence=1, trial=trial, vector=vector)


@pytest.mark.parametrize(
    ("message", "owned", "code", "reason"),
    [
        (push(1, 2), True, "length", "child 'a' pushes 2 numbers, expected 3"),
        (push(1, 2, 3, 4), True, "length", "child 'a' pushes 4 numbers, expected 3"),
        (
            Push(version=0, sequence=1),
            True,
            "length",
            "child 'a' pushes 0 numbers, expected 3",
        ),
        (
            push(1, 2, 3, version=3),
            True,
            "order",
            "child 'a' starts from version 3, the newest is 2",
        ),
        (
            push(1, 2, 3),
            False,
            "trial",
            "child 'a' pushes for trial None, which it does not own; it has to say hello again",
        ),
        (
            push(1, 2, trial=5),
            True,
            "trial",
            "child 'a' pushes for trial 5, which it does not own; it has to say hello again",
        ),
    ],
)
def test_a_push_that_does_not_fit(message: Push, owned: bool, code: str, reason: str) -> None:
    trial = Trial(window=1, version=2, signature=SIGNATURE)
    assert refusal(check_push, "a", message, trial, Blend(0.5), owned) == (code, reason)


def test_a_push_that_fits_gives_its_vector_even_with_nan() -> None:
    message = push(1, float("nan"), 3, version=2, trial=7)
    trial = Trial(window=1, number=7, version=2, signature=SIGNATURE)
    assert check_push("a", message, trial, Blend(0.5), True) is message.vector


def test_work_alone_has_no_vector_and_fits_any_network() -> None:
    trial = Trial(window=1, version=2, signature=SIGNATURE)
    for vector in (None, np.ones(5, DTYPE)):
        work = Push(version=2, sequence=1, kind="work", vector=vector)
        assert len(check_push("a", work, trial, Blend(0.5), True)) == 0


@given(st.lists(st.floats()))
@example([LARGEST_RETURN, -LARGEST_RETURN])
def test_returns_are_numbers_that_can_be_summed(returns: list[float]) -> None:
    found = refusal(check_returns, "a", returns)
    assert (found is None) == all(abs(value) <= LARGEST_RETURN for value in returns)
    if found is not None:
        reason = "child 'a' reports a return that is NaN, infinite or beyond ±1e+30"
        assert found == ("finite", reason)


@pytest.mark.parametrize(
    ("numbers", "statistics", "length", "problem"),
    [
        ((3, 4), 0, 5.0, ""),
        ((3, 4, 1e29), 1, 5.0, ""),
        ((), 0, 0.0, ""),
        ((5.4e14, 7.2e14), 0, 9e14, ""),
        (
            (6e14, 8.1e14),
            0,
            1.008e15,
            "numbers no network has: their norm is 1.01e+15, at most 1e+15",
        ),
        (
            (3e38, -3e38),
            0,
            4.243e38,
            "numbers no network has: their norm is 4.24e+38, at most 1e+15",
        ),
        ((3, 4, -1.1e30), 1, 5.0, "running statistics beyond ±1e+30"),
        ((3, 4, 1e30), 1, 5.0, ""),
        ((3, np.nan), 0, np.nan, "NaN or infinity"),
        ((3, 4, -np.inf), 1, 5.0, "NaN or infinity"),
        ((np.inf, 4, 1), 1, np.nan, "NaN or infinity"),
    ],
)
def test_a_push_is_measured_once_and_what_no_network_has_is_named(
    numbers: tuple[float, ...], statistics: int, length: float, problem: str
) -> None:
    found, wrong = measure(np.array(numbers, DTYPE), statistics)
    assert wrong == problem
    assert found == pytest.approx(length, rel=1e-3, nan_ok=True)


@given(arrays(DTYPE, st.integers(0, 5), elements=st.floats(width=32)))
def test_a_length_is_finite_exactly_where_all_numbers_are(vector: np.ndarray) -> None:
    found = vectors.length(vector)
    assert math.isfinite(found) == bool(np.isfinite(vector).all()) == vectors.is_finite(vector)
    if math.isfinite(found):
        expected = float(np.linalg.norm(vector.astype(np.float64)))
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-20)
