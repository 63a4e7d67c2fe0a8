"""Who may come in: properties of the counts and rates, and who needs tokens and TLS."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.sections import ParentSettings
from genkidama.errors import ConfigurationError, ProtocolError
from genkidama.server.limits import (
    ConnectionLimits,
    ConnectionSlot,
    TokenBucket,
    check_exposed,
    place_of,
)

PLACES = [f"10.0.0.{number}" for number in range(1, 5)]


@given(st.lists(st.tuples(st.sampled_from(["enter", "settle", "leave"]), st.integers(0, 9))))
def test_a_connection_comes_in_exactly_if_there_is_room(deeds: list[tuple[str, int]]) -> None:
    doors = ConnectionLimits(children=6, limit_of_one=3)
    doors.limit = 6
    inside: list[ConnectionSlot] = []
    for deed, number in deeds:
        place = PLACES[number % 4]
        if deed == "enter":
            full = len(inside) >= 6 or sum(visit.place == place for visit in inside) >= 3
            if full:
                with pytest.raises(ProtocolError) as refused:
                    doors.enter(place)
                assert refused.value.code == "full"
            else:
                inside.append(doors.enter(place))
        elif inside and deed == "settle":
            doors.settle(inside[number % len(inside)])
        elif inside:
            visit = inside.pop(number % len(inside))
            doors.leave(visit)
            doors.leave(visit)  # the second time means nothing
        assert len(doors) == len(inside)


@pytest.mark.parametrize(("limit", "entering"), [(512, 128), (4_000, 1_000)])
def test_who_has_said_hello_makes_room_for_the_next(limit: int, entering: int) -> None:
    """A crowd behind one address comes in faster where it may be larger."""
    doors = ConnectionLimits(children=10_000, limit_of_one=limit)
    assert doors.limit == 10_000 + max(512, 4 * entering)
    visits = [doors.enter("10.0.0.1") for _ in range(entering)]
    with pytest.raises(ProtocolError, match=rf"{entering} of 10\.0\.0\.1 have not said hello"):
        doors.enter("10.0.0.1")
    doors.enter("10.0.0.2")
    doors.settle(visits[0])
    doors.enter("10.0.0.1")


@pytest.mark.parametrize(
    ("use", "limit", "limit_of_one", "what"),
    [
        # As docs/security.md has them.
        ("enter", 512, 128, "not said hello"),
        ("watch", 64, 32, "viewers"),
        ("answer", 64, 16, "large answers"),
    ],
)
def test_newcomers_viewers_and_large_answers_have_limits_for_one_place_and_for_all(
    use: str, limit: int, limit_of_one: int, what: str
) -> None:
    limits = ConnectionLimits(children=10_000, limit_of_one=512)

    def come(place: str) -> ConnectionSlot:
        slot = limits.enter(place)
        if use != "enter":
            limits.settle(slot)
            getattr(limits, use)(slot)
        return slot

    slots = [come("10.0.0.1") for _ in range(limit_of_one)]
    with pytest.raises(ProtocolError, match=rf"^{limit_of_one} .*10\.0\.0\.1"):
        come("10.0.0.1")
    slots += [come(f"2001:db8:0:{number:x}::1") for number in range(limit - limit_of_one)]
    with pytest.raises(ProtocolError, match=f"^{limit} .*{what}"):
        come("10.0.0.2")
    limits.leave(slots[0])
    limits.leave(slots[0])  # the second time means nothing
    limits.leave(limits.enter("10.0.0.3"))  # it was neither a viewer nor given an answer
    come("10.0.0.1")
    with pytest.raises(ProtocolError, match=f"^{limit} .*{what}"):
        come("10.0.0.2")


def test_viewers_are_open_connections_too() -> None:
    limits = ConnectionLimits(children=6, limit_of_one=3)
    limits.watch(limits.enter("10.0.0.1"))
    limits.enter("10.0.0.2")
    assert len(limits) == 2


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("192.168.1.7", "192.168.1.7"),
        ("::ffff:192.168.1.7", "192.168.1.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_one_owner_is_one_place(host: str, place: str) -> None:
    assert place_of(host) == place


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 500)), min_size=1),
    st.floats(1, 1000),
    st.floats(0, 100),
)
def test_whoever_waits_as_told_never_spends_more_than_the_rate(
    steps: list[tuple[float, float]], rate: float, burst: float
) -> None:
    budget, now, spent = TokenBucket(rate, burst, 0.0), 0.0, 0.0
    for pause, amount in steps:
        now += pause
        now += budget.spend(amount, now)
        spent += amount
        assert spent <= rate * now + burst + 1e-6 * spent


def test_what_was_not_spent_is_not_saved() -> None:
    budget = TokenBucket(10, 100, 0.0)
    assert budget.spend(0, 1000.0) == 0.0
    assert budget.spend(100, 1000.0) == 0.0
    assert budget.spend(1, 1000.0) == pytest.approx(0.1)
    assert budget.spend(0, 1000.1) == pytest.approx(0.0)


BOTH = {"tokens_file": "t", "certificate_file": "c", "key_file": "k"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_this_machine_needs_neither_tokens_nor_tls(host: str) -> None:
    check_exposed(ParentSettings(), host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "parent.local"])
def test_other_machines_need_both_or_a_word(host: str) -> None:
    check_exposed(ParentSettings(**BOTH), host)
    check_exposed(ParentSettings(open=True), host)
    for lacking, words in (
        ({}, "without tokens (parent.tokens_file) and TLS (parent.certificate_file"),
        ({"tokens_file": "t"}, "without TLS ("),
        ({"certificate_file": "c", "key_file": "k"}, "without tokens (parent.tokens_file);"),
    ):
        with pytest.raises(ConfigurationError) as error:
            check_exposed(ParentSettings(**lacking), host)
        assert words in str(error.value)
        assert f"at {host}" in str(error.value)
        assert "parent.open = true" in str(error.value)
