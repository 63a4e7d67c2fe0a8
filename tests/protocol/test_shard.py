from __future__ import annotations

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.protocol.shard import WHOLE, Shard, addresses, end_proof
from genkidama.protocol.vector import Signature

SHAPES = st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=6)


@given(SHAPES, st.integers(0, 9), st.integers(1, 7))
def test_parts_share_all_numbers_in_their_order(
    shapes: list[list[int]], statistics: int, count: int
) -> None:
    named = [(f"layer{index}", shape) for index, shape in enumerate(shapes)]
    ending = [("statistics.observations", [statistics])] if statistics else []
    whole = Signature.of([*named, *ending])
    parts = [Shard(number, count) for number in range(1, count + 1)]
    numbers = [index for part in parts for index in range(whole.size)[part.numbers(whole)]]
    assert numbers == list(range(whole.size))
    mine = [part.of(whole) for part in parts]
    trained = [signature.size - signature.statistics for signature in mine]
    assert max(trained) - min(trained) <= 1
    assert [signature.statistics for signature in mine] == [0] * (count - 1) + [statistics]
    pieces = [entry for signature in mine for entry in signature.entries]
    for name, shape in whole.entries:
        held = [(name, size) for called, size in pieces if called == name]
        pieces_alone = len(held) > 1 and all(len(size) == 1 for _, size in held)
        assert held == [(name, shape)] or pieces_alone
    assert sum(signature.size for signature in mine) == whole.size


def test_the_only_part_is_the_whole() -> None:
    whole = Signature.of([("layer", [2, 3])])
    assert Shard.parse("1/1") == WHOLE
    assert WHOLE.of(whole) is whole


@given(st.integers(1, 999).flatmap(lambda count: st.tuples(st.integers(1, count), st.just(count))))
def test_a_part_is_read_as_it_is_written_and_the_first_decides(part: tuple[int, int]) -> None:
    shard = Shard.parse("{}/{}".format(*part))
    assert shard == Shard(*part)
    assert Shard.parse(str(shard)) == shard
    assert shard.is_first == (part[0] == 1)


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "1/1000", "a/b", "1/2/3", "-1/2", "1/2\n"])
def test_what_is_no_part_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Shard.parse(text)
    assert str(caught.value).startswith(f"--shard {text}: expected I/K")


def test_addresses_stand_between_commas() -> None:
    assert addresses("ws://a:1") == ["ws://a:1"]
    assert addresses("ws://a:1, ws://b:2,wss://c:3") == ["ws://a:1", "ws://b:2", "wss://c:3"]
    assert str(Shard(2, 3)) == "2/3"


def test_the_end_is_proven_with_the_secret_the_conditions_and_the_reason() -> None:
    stop, reason = {"updates": 3, "seconds": 0.0}, "3 exchanges a child done"
    proof = end_proof("of all parts", stop, reason)
    text = b'[{"seconds": 0.0, "updates": 3}, "3 exchanges a child done"]'
    assert proof == hmac.new(b"of all parts", text, "sha256").hexdigest()
    assert end_proof("of all parts", dict(reversed(stop.items())), reason) == proof
    assert end_proof("", stop, reason) == ""
