"""A flood of refusals takes a line a second, and none of it is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from genkidama.events import Refused
from genkidama.floods import LONGEST_REASON, Floods, shortened, times


def refused(code: str = "finite", child: str = "pi", time: float = 0.0) -> Refused:
    return Refused(time=time, child=child, code=code, reason=f"{child} did it")


def test_the_first_of_a_code_is_told_at_once_and_the_rest_summed_up() -> None:
    floods = Floods()
    assert [times(event) for event in floods.add(refused())] == [1]
    assert floods.add(refused()) == []
    assert [event.code for event in floods.add(refused("length"))] == ["length"]
    assert floods.add(refused(child="nuc", time=0.5)) == []
    assert floods.settle(0.9) == []
    (total,) = floods.settle(1.0)
    assert (total.code, total.child, total.count, total.time) == ("finite", "nuc", 2, 1.0)
    assert floods.add(refused(time=1.5)) == []  # a second after a sum is quiet, too
    assert [times(event) for event in floods.settle(1.6, last=True)] == [1]
    assert floods.settle(9.0, last=True) == []


def test_after_a_quiet_second_a_refusal_is_told_at_once_again() -> None:
    floods = Floods()
    for moment in (0.0, 1.0, 2.0):
        assert floods.settle(moment) == []
        assert len(floods.add(refused(time=moment))) == 1


@given(st.lists(st.tuples(st.floats(0, 0.7), st.sampled_from("abc"))))
def test_all_are_counted_in_few_lines_and_in_order(story: list[tuple[float, str]]) -> None:
    floods, now, told = Floods(), 0.0, []
    for pause, code in story:
        now += pause
        told += floods.settle(now)
        told += floods.add(refused(code, time=now))
    told += floods.settle(now, last=True)
    assert sum(times(event) for event in told) == len(story)
    assert [event.time for event in told] == sorted(event.time for event in told)
    for code in "abc":
        assert sum(event.code == code for event in told) <= now + 2


def test_a_long_reason_keeps_its_beginning_and_its_end() -> None:
    assert shortened("short") == "short"
    long = shortened("begin" + "x" * 100_000 + "end")
    assert long.startswith("begin") and long.endswith("end")
    assert len(long) <= LONGEST_REASON + 3
