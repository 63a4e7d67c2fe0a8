from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from genkidama.errors import ProtocolError
from genkidama.protocol.delta import ENCODINGS
from genkidama.protocol.messages import (
    PROTOCOL,
    Goodbye,
    Hello,
    Join,
    Leave,
    Message,
    Push,
    Refusal,
    Reply,
    Request,
    Weights,
    Welcome,
    decode_reply,
    decode_request,
    encode,
    permitted_measures,
    size_limit,
)
from genkidama.protocol.vector import DTYPE, Signature

# Every kind of message, as values that hypothesis chooses.

counts = st.integers(0, 2**53)
letters = "ABCXYZabcxyz0129"
names = st.builds(str.__add__, st.sampled_from(letters), st.text(letters + "._-", max_size=63))
vectors = st.none() | hnp.arrays(DTYPE, st.integers(1, 40), elements=st.floats(width=32))
plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=8), values, max_size=3)
    ),
    max_leaves=8,
)
shapes = st.lists(counts, max_size=32)
measures = st.dictionaries(
    st.from_regex(r"\A[a-z][a-z0-9_]{6,31}\Z"), st.floats(-1e30, 1e30), max_size=32
)

hellos = st.builds(
    Hello,
    protocol=st.integers(-(2**63), 2**63),
    name=names,
    session=st.text(min_size=1, max_size=64),
    software=st.text(max_size=64),
    encodings=st.lists(st.text(max_size=32), max_size=32),
)
joins = st.builds(Join, signature=st.lists(st.tuples(st.text(max_size=10), shapes), max_size=5))
pushes = st.builds(
    Push,
    version=counts,
    sequence=st.integers(1, 2**53),
    steps=counts,
    returns=st.lists(st.floats(allow_nan=False), max_size=5),
    measures=measures,
    vector=vectors,
)
differences = st.none() | hnp.arrays(np.uint8, st.integers(1, 40))
encodings = st.sampled_from(ENCODINGS)
encoded_pushes = st.builds(
    Push, version=counts, sequence=st.just(1), encoding=encodings, vector=differences
)
encoded_weights = st.builds(Weights, version=counts, encoding=encodings, vector=differences)
leaves = st.builds(Leave, reason=st.text(max_size=200))
welcomes = st.builds(
    Welcome,
    protocol=st.just(PROTOCOL),
    experiment=st.dictionaries(st.text(max_size=8), plain_values, max_size=4),
    run=st.text(),
    encoding=st.just("") | encodings,
)
weights = st.builds(
    Weights, version=counts, progress=st.floats(0.0, 1.0), stop=st.text(max_size=20), vector=vectors
)
refusals = st.builds(Refusal, code=st.sampled_from(ProtocolError.CODES), reason=st.text())
requests: st.SearchStrategy[Request] = st.one_of(hellos, joins, pushes, encoded_pushes, leaves)
replies: st.SearchStrategy[Reply] = st.one_of(
    welcomes, weights, encoded_weights, st.builds(Goodbye), refusals
)


def parts(message: Message) -> tuple[type, dict[str, Any], bytes | None]:
    """A message as something that `==` compares, the vector to the bit."""
    fields = msgspec.structs.asdict(message)
    vector = fields.pop("vector", None)
    return type(message), fields, None if vector is None else vector.tobytes()


# A second reader and writer of the format, from its law alone and with nothing of ours.


def oracle_encode(fields: dict[str, Any], vector: list[float] | None = None) -> bytes:
    header = msgpack.packb(fields)
    frame = struct.pack("<I", len(header)) + header
    if vector is not None:
        kind = "B" if fields.get("encoding") else "f"
        frame += bytes(-len(frame) % 8) + struct.pack(f"<{len(vector)}{kind}", *vector)
    return frame


def oracle_decode(frame: bytes) -> tuple[dict[str, Any], bytes | None]:
    (length,) = struct.unpack("<I", frame[:4])
    fields, rest = msgpack.unpackb(frame[4 : 4 + length], strict_map_key=False), frame[4 + length :]
    if not rest:
        return fields, None
    padding = -(4 + length) % 8
    assert not any(rest[:padding])
    return fields, rest[padding:]


def fields_on_the_wire(message: Message) -> dict[str, Any]:
    """What the map may hold: the type and every field but the vector, in msgpack's types."""
    fields: dict[str, Any] = {"type": type(message).__name__.lower()} | msgspec.structs.asdict(
        message
    )
    fields.pop("vector", None)
    if isinstance(message, Join):
        fields["signature"] = [list(entry) for entry in message.signature]
    return fields


def defaults(message: Message) -> dict[str, Any]:
    """What a reader takes for the fields that a map leaves out."""
    fields = {field.name: field for field in msgspec.structs.fields(message)}
    fields.pop("vector", None)
    return {
        name: field.default
        if field.default_factory is msgspec.NODEFAULT
        else field.default_factory()
        for name, field in fields.items()
        if not field.required
    }


def test_a_push_byte_by_byte() -> None:
    push = Push(
        version=7, sequence=300, steps=2, returns=[1.5], vector=np.array([1.0, -2.0], DTYPE)
    )
    expected = bytes.fromhex(
        "39000000"  # the map has 57 bytes
        "85"  # five keys
        "a474797065 a470757368"  # "type": "push"
        "a776657273696f6e 07"  # "version": 7
        "a873657175656e6365 cd012c"  # "sequence": 300
        "a57374657073 02"  # "steps": 2
        "a772657475726e73 91 cb3ff8000000000000"  # "returns": [1.5]
        "000000"  # up to byte 64
        "0000803f 000000c0"  # 1.0, -2.0
    )
    assert bytes(encode(push)) == expected
    assert parts(decode_request(expected)) == parts(push)


def test_measures_stand_behind_what_a_push_without_any_says() -> None:
    plain = Push(version=7, sequence=300, steps=2, returns=[1.5])
    measured = msgspec.structs.replace(plain, measures={"pps": 2.5, "lag": 1.0})
    fields, _ = oracle_decode(bytes(encode(measured)))
    assert fields.pop("measures") == {"pps": 2.5, "lag": 1.0}
    assert (
        oracle_encode(fields)
        == bytes(encode(plain))
        == bytes(encode(msgspec.structs.replace(measured, measures={})))
    )


@given(requests)
def test_requests_round_trip(message: Request) -> None:
    before = parts(message)
    frame = bytes(encode(message))
    assert parts(decode_request(frame)) == before == parts(message)


@given(replies)
def test_replies_round_trip(message: Reply) -> None:
    before = parts(message)
    frame = bytes(encode(message))
    assert parts(decode_reply(frame)) == before == parts(message)


@given(st.one_of(requests, replies))
def test_another_reader_understands_what_we_write(message: Request | Reply) -> None:
    fields, vector = oracle_decode(bytes(encode(message)))
    assert (defaults(message) | fields, vector) == (fields_on_the_wire(message), parts(message)[2])


@given(st.one_of(requests, replies))
def test_we_understand_what_another_writer_writes(message: Request | Reply) -> None:
    vector = getattr(message, "vector", None)
    frame = oracle_encode(fields_on_the_wire(message), None if vector is None else vector.tolist())
    decode = decode_request if isinstance(message, Hello | Join | Push | Leave) else decode_reply
    if vector is None or not np.isnan(vector).any():  # struct may change which NaN it is
        assert parts(decode(frame)) == parts(message)


def test_fields_that_a_reader_does_not_know_are_ignored_and_absent_ones_have_their_default() -> (
    None
):
    frame = oracle_encode({"later": [1, {"x": None}], "version": 3, "type": "push", "sequence": 1})
    assert decode_request(frame) == Push(version=3, sequence=1, steps=0, returns=[], vector=None)


@given(st.integers(0, 9))
def test_the_vector_starts_at_a_multiple_of_8_and_is_a_view(extra: int) -> None:
    frame = bytes(encode(Weights(version=1, stop="x" * extra, vector=np.array([1, 2, 3], DTYPE))))
    vector = decode_reply(frame).vector  # type: ignore[union-attr]
    (length,) = struct.unpack("<I", frame[:4])
    start = len(frame) - 12
    assert start % 8 == 0 and 0 <= start - 4 - length < 8 and not any(frame[4 + length : start])
    assert vector is not None and vector.tolist() == [1, 2, 3] and not vector.flags.writeable
    assert np.shares_memory(vector, np.frombuffer(frame, np.uint8))


def test_what_is_encoded_is_a_copy() -> None:
    vector = np.array([1, 2], DTYPE)
    frame = encode(Push(version=0, sequence=1, vector=vector))
    vector[:] = 9
    assert decode_request(bytes(frame)).vector.tolist() == [1, 2]  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [1, 2949, 250_000])
def test_the_size_limit_holds_a_push_with_thousands_of_returns(size: int) -> None:
    measures = {f"{number:x>32}": -1.25e29 for number in range(32)}
    push = Push(
        version=2**53,
        sequence=2**53,
        steps=2**53,
        returns=[-1.25e300] * 4096,
        measures=measures,
        vector=np.zeros(size, DTYPE),
    )
    assert size * 4 < len(encode(push)) <= size_limit(size) == 2**17 + 4 * size


# Bytes that are no message.


def refused(decode: Any, frame: bytes) -> tuple[str, str]:
    with pytest.raises(ProtocolError) as caught:
        decode(frame)
    assert str(caught.value) == caught.value.reason
    return caught.value.code, caught.value.reason


PUSH = {"type": "push", "version": 0, "sequence": 1}


@pytest.mark.parametrize(
    ("frame", "code", "reason"),
    [
        (b"", "malformed", "a message of 0 bytes; at least 4 are needed"),
        (b"\0\0\0", "malformed", "a message of 3 bytes; at least 4 are needed"),
        (b"\0\0\0\0", "malformed", "the map cannot be read: Input data was truncated"),
        (b"\x09\0\0\0" + bytes(6), "malformed", "a map of 9 bytes is announced, but only 6 follow"),
        (
            b"\xff\xff\xff\xff\x80",
            "malformed",
            "a map of 4294967295 bytes is announced, but only 1 follow",
        ),
        (
            oracle_encode({}),
            "malformed",
            "the map cannot be read: Object missing required field `type`",
        ),
        (oracle_encode([1]), "malformed", "the map cannot be read: Expected `object`, got `array`"),  # type: ignore[arg-type]
        (
            oracle_encode({"type": 3}),
            "malformed",
            "the map cannot be read: Expected `str`, got `int` - at `$.type`",
        ),
        (
            oracle_encode({"type": "shout"}),
            "unknown",
            f"a message of type 'shout', which protocol {PROTOCOL} does not have",
        ),
        (
            oracle_encode({"type": "x" * 99}),
            "unknown",
            f"a message of type '{'x' * 40}', which protocol {PROTOCOL} does not have",
        ),
        (
            oracle_encode({"type": "push\n"}),
            "unknown",
            f"a message of type 'push\\n', which protocol {PROTOCOL} does not have",
        ),
        (
            oracle_encode({"type": "welcome"}),
            "malformed",
            "a 'welcome' that cannot be read: Invalid value 'welcome' - at `$.type`",
        ),
        (
            oracle_encode({"type": "push"}),
            "malformed",
            "a 'push' that cannot be read: Object missing required field `version`",
        ),
        (
            oracle_encode(PUSH | {"version": -1}),
            "malformed",
            "a 'push' that cannot be read: Expected `int` >= 0 - at `$.version`",
        ),
        (
            oracle_encode(PUSH | {"sequence": 0}),
            "malformed",
            "a 'push' that cannot be read: Expected `int` >= 1 - at `$.sequence`",
        ),
        (
            oracle_encode(PUSH | {"steps": 2**53 + 1}),
            "malformed",
            "a 'push' that cannot be read: Expected `int` <= 9007199254740992 - at `$.steps`",
        ),
        (
            oracle_encode(PUSH | {"returns": ["1"]}),
            "malformed",
            "a 'push' that cannot be read: Expected `float`, got `str` - at `$.returns[0]`",
        ),
        (oracle_encode(PUSH | {"measures": [1.0]}), "malformed", None),
        (oracle_encode(PUSH | {"measures": {"pps": "1"}}), "malformed", None),
        (
            oracle_encode(PUSH | {"measures": {"pps": 1e31}}),
            "malformed",
            "a 'push' that cannot be read: Expected `float` <= 1e+30 - at `$.measures[...]`",
        ),
        (
            oracle_encode(PUSH | {"measures": {f"m{number}": 0.0 for number in range(33)}}),
            "malformed",
            "a 'push' that cannot be read: Expected `object` of length <= 32 - at `$.measures`",
        ),
        (
            struct.pack("<I", 46)
            + oracle_encode(PUSH | {"measures": {}})[4:-1]
            + b"\xdf\xff\xff\xff\xff",
            "malformed",
            None,
        ),
        (
            oracle_encode(PUSH | {"vector": [1.0]}),
            "malformed",
            "a 'push' that cannot be read: a vector is never part of the map",
        ),
        (
            oracle_encode(PUSH | {"vector": b"\0\0\0\0"}),
            "malformed",
            "a 'push' that cannot be read: a vector is never part of the map",
        ),
        (
            oracle_encode(PUSH) + bytes(208),
            "length",
            "208 bytes behind the map are no vector of float32",
        ),
        (oracle_encode(PUSH, [1.0])[:-1], "length", None),
        (
            oracle_encode({"type": "leave"}, [1.0] * 30),
            "malformed",
            "120 bytes behind a 'leave', which carries no vector",
        ),
        (oracle_encode({"type": "join", "signature": [["w", [-1]]]}), "malformed", None),
        (oracle_encode({"type": "join", "signature": [["w", [1] * 33]]}), "malformed", None),
        (oracle_encode({"type": "join", "signature": [["w", [2**64 - 1]]]}), "malformed", None),
        (
            oracle_encode({"type": "hello", "protocol": 1, "session": "s", "name": ""}),
            "malformed",
            None,
        ),
        (
            oracle_encode({"type": "hello", "protocol": 1, "session": "s", "name": "a/b"}),
            "malformed",
            None,
        ),
        (
            oracle_encode({"type": "hello", "protocol": 1, "session": "s", "name": "pi\n"}),
            "malformed",
            None,
        ),
        (
            oracle_encode({"type": "hello", "protocol": 1, "session": "s", "name": "x" * 65}),
            "malformed",
            None,
        ),
        (
            oracle_encode({"type": "hello", "protocol": 1, "session": "", "name": "pi"}),
            "malformed",
            None,
        ),
        (
            oracle_encode({"type": "hello", "protocol": 1, "session": "s" * 65, "name": "pi"}),
            "malformed",
            None,
        ),
        (struct.pack("<I", 5000) + b"\x91" * 5000, "malformed", None),
        (struct.pack("<I", 5) + b"\xdd\xff\xff\xff\xff", "malformed", None),
        (
            b"\x80\x04\x95\x1b\0\0\0\0\0\0\0\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
            "malformed",
            None,
        ),  # a pickle
    ],
)
def test_what_is_no_request_is_told(frame: bytes, code: str, reason: str | None) -> None:
    found = refused(decode_request, frame)
    assert found == (code, reason or found[1])
    assert len(found[1].splitlines()) == 1


# The measures of a backend.


@pytest.mark.parametrize(
    "name",
    [
        "time",
        "event",
        "child",
        "trial",
        "",
        "1st",
        "_pps",
        "PPS",
        "p p",
        "pps\n",
        "größe",
        "p" * 33,
    ],
)
def test_a_name_that_is_taken_or_badly_formed_is_no_measures(name: str) -> None:
    assert permitted_measures({"pps": 1.0, name: 2.0}) == {"pps": 1.0}
    assert (
        refused(decode_request, oracle_encode(PUSH | {"measures": {name: 2.0}}))[0] == "malformed"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1.1e30, -(10**400)])
def test_a_figure_that_is_not_finite_or_too_large_is_no_measure(value: float) -> None:
    assert permitted_measures({"lag": value, "pps": 1.0}) == {"pps": 1.0}


def test_measures_are_plain_floats_and_the_first_32() -> None:
    figures = {
        f"m{number}": kind(number)
        for number, kind in enumerate([int, float, np.float32, np.float64] * 9)
    }
    assert permitted_measures(figures) == {f"m{number}": float(number) for number in range(32)}
    push = Push(version=0, sequence=1, measures=permitted_measures(figures))
    assert parts(decode_request(bytes(encode(push)))) == parts(push)


@given(
    st.dictionaries(
        st.sampled_from(["timer", "events", "time", "trial", "z9_"])
        | st.text("ab_1A\n", max_size=3),
        st.floats() | st.sampled_from([1e30, -1e30]) | st.integers(-(2**63), 2**64 - 1),
        max_size=4,
    )
)
def test_what_is_permitted_is_what_a_parent_reads(figures: dict[str, float]) -> None:
    read = {}
    for name, value in figures.items():
        with suppress(ProtocolError):
            push = decode_request(oracle_encode(PUSH | {"measures": {name: value}}))
            assert isinstance(push, Push)
            read |= push.measures
    assert permitted_measures(figures) == read


def test_a_child_refuses_what_only_a_child_says() -> None:
    assert refused(decode_reply, oracle_encode(PUSH)) == (
        "malformed",
        "a 'push' that cannot be read: Invalid value 'push' - at `$.type`",
    )
    assert (
        refused(decode_reply, oracle_encode({"type": "weights", "version": 1, "progress": 1.5}))[0]
        == "malformed"
    )


def test_a_reason_is_one_line_whatever_it_quotes() -> None:
    header = b"\x82\xa4type\xa4\njoin\xa9signature\x90"
    code, reason = refused(decode_request, struct.pack("<I", len(header)) + header)
    assert code == "malformed"
    assert (
        reason.startswith("the map cannot be read: Invalid value") and len(reason.splitlines()) == 1
    )


def test_what_lies_too_deep_is_refused() -> None:
    deep = b"\x81\xa1a" * 5000 + b"\xc0"
    welcome = msgpack.packb({"type": "welcome", "protocol": 1, "experiment": 0})[:-1] + deep
    assert refused(decode_reply, struct.pack("<I", len(welcome)) + welcome)[0] == "malformed"
    push = b"\x84" + msgpack.packb(PUSH)[1:] + b"\xa1x" + deep
    assert refused(decode_request, struct.pack("<I", len(push)) + push)[0] == "malformed"


@pytest.mark.parametrize("extra", range(8))
@pytest.mark.parametrize("rest", range(1, 8))
@pytest.mark.parametrize(("encoding", "dtype"), [("", DTYPE), ("int8", np.dtype(np.uint8))])
def test_what_is_shorter_than_its_padding_is_no_vector(
    extra: int, rest: int, encoding: str, dtype: np.dtype[Any]
) -> None:
    frame = oracle_encode(PUSH | {"encoding": encoding, "ignored": "x" * extra})
    padding = -len(frame) % 8
    if rest < padding or (rest - padding) % dtype.itemsize:
        assert refused(decode_request, frame + bytes(rest)) == (
            "length",
            f"{rest} bytes behind the map are no vector of float32",
        )
    else:
        vector = decode_request(frame + bytes(rest)).vector  # type: ignore[union-attr]
        assert vector is not None and vector.dtype == dtype
        assert vector.tolist() == [0] * ((rest - padding) // dtype.itemsize)


def decodes_or_is_refused(frame: bytes) -> None:
    for decode in (decode_request, decode_reply):
        try:
            message = decode(frame)
        except ProtocolError as error:
            assert error.code in ProtocolError.CODES and len(error.reason.splitlines()) == 1
        else:
            assert isinstance(message, Message)


@given(st.binary(max_size=80))
@example(b"\x05\0\0\0\xdf\xff\xff\xff\xff")
def test_any_bytes_are_a_message_or_a_protocol_error(frame: bytes) -> None:
    decodes_or_is_refused(frame)


@given(st.binary(max_size=80), st.binary(max_size=20))
def test_any_map_with_anything_behind_it_is_a_message_or_a_protocol_error(
    header: bytes, rest: bytes
) -> None:
    decodes_or_is_refused(struct.pack("<I", len(header)) + header + rest)


@given(
    st.one_of(requests, replies),
    st.sampled_from(sorted(kind.__name__.lower() for kind in Message.__subclasses__())),
    st.data(),
)
def test_a_map_of_the_right_type_with_any_values_is_a_message_or_a_protocol_error(
    message: Request | Reply, tag: str, data: st.DataObject
) -> None:
    fields = fields_on_the_wire(message) | {"type": tag}
    changed = data.draw(st.sampled_from([*sorted(fields), "vector"]))
    decodes_or_is_refused(
        oracle_encode(fields | {changed: data.draw(plain_values | st.binary(max_size=9))})
    )


@given(st.one_of(requests, replies), st.data())
def test_a_message_that_was_damaged_is_a_message_or_a_protocol_error(
    message: Request | Reply, data: st.DataObject
) -> None:
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(frame)))
        match data.draw(st.sampled_from(["change", "insert", "delete", "cut"])):
            case "change":
                frame[position : position + 1] = data.draw(st.binary(min_size=1, max_size=1))
            case "insert":
                frame[position:position] = data.draw(st.binary(max_size=9))
            case "delete":
                del frame[position : position + data.draw(st.integers(1, 9))]
            case "cut":
                del frame[position:]
    decodes_or_is_refused(bytes(frame))


def test_a_join_knows_its_signature() -> None:
    join = decode_request(
        oracle_encode({"type": "join", "signature": [["w", [2, 3]], ["scale", []]]})
    )
    assert isinstance(join, Join)
    assert Signature.of(join.signature) == Signature.of([("w", (2, 3)), ("scale", ())])
