"""Detection of processes that hang."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from genkidama.runtime.watchdog import HangDetector

PATIENCE = 30.0


def pass_by(ages: HangDetector, span: float) -> None:
    """So many seconds, in ticks of one."""
    for _ in range(round(span)):
        ages.tick(1.0)


def test_one_that_falls_silent_hangs_after_the_patience_and_nobody_else_does() -> None:
    ages = HangDetector(PATIENCE)
    for index in (0, 1, 2):
        ages.started(index)
        ages.sign(index)
    ages.rest(2)
    for _ in range(round(PATIENCE)):
        ages.tick(1.0)
        ages.sign(1)
        assert ages.hung == []
    ages.tick(1.0)
    assert [index for index, _ in ages.hung] == [0]
    assert ages.quiet == [0]
    ages.forget(0)
    pass_by(ages, 10.0 * PATIENCE)
    assert [index for index, _ in ages.hung] == [1]


def test_one_that_is_born_may_take_its_time_and_one_that_is_woken_may_not() -> None:
    ages = HangDetector(PATIENCE)
    ages.started(0)
    pass_by(ages, 10.0 * PATIENCE)
    assert ages.hung == []
    ages.tick(1.0)
    assert ages.hung == [(0, 10.0 * PATIENCE + 1.0)]
    ages.rest(0)
    assert ages.hung == []
    ages.wake(0)
    pass_by(ages, PATIENCE + 1.0)
    assert [index for index, _ in ages.hung] == [0]


def test_without_patience_nobody_ever_hangs() -> None:
    ages = HangDetector(0.0)
    ages.started(0)
    ages.sign(0)
    pass_by(ages, 10_000.0)
    assert ages.hung == []


@given(st.floats(PATIENCE / 2, 200.0), st.floats(0.0, 3.5))
def test_the_limit_is_learned_from_the_crew(longest: float, times: float) -> None:
    """Whoever has once taken longer, may take some times as long, and so may its siblings."""
    ages = HangDetector(1000.0)
    ages.started(0)
    ages.sign(0)
    ages._patience = PATIENCE  # as if it had just not been too long
    for _ in range(int(longest)):
        ages.tick(1.0)
    ages.sign(0)
    assert PATIENCE <= ages.limit <= max(PATIENCE, 4.0 * longest)
    ages.started(1)
    ages.sign(1)
    for _ in range(int(times * int(longest) * 0.75)):
        ages.tick(1.0)
    assert [index for index, _ in ages.hung] == []


def test_what_was_learned_is_forgotten() -> None:
    ages = HangDetector(PATIENCE)
    ages.started(0)
    ages.sign(0)
    pass_by(ages, PATIENCE - 1.0)
    ages.sign(0)
    learned = ages.limit
    assert learned > 3.0 * PATIENCE
    ages.rest(0)
    pass_by(ages, 600.0)
    assert abs(ages.limit - learned / 2.0) < 0.01
    pass_by(ages, 6000.0)
    assert ages.limit == PATIENCE


@given(st.lists(st.floats(0.0, 1e9), max_size=14))
def test_a_machine_that_slept_finds_nobody_old(gaps: list[float]) -> None:
    ages = HangDetector(PATIENCE)
    ages.started(0)
    ages.sign(0)
    for gap in gaps:
        ages.tick(gap)
        assert ages.hung == []


@given(
    st.lists(st.sampled_from(["sign", "rest", "wake", "tick", "started", "forget"]), max_size=200)
)
def test_who_gives_a_sign_or_waits_does_not_hang(story: list[str]) -> None:
    ages = HangDetector(1.0)
    for what in story:
        if what == "tick":
            ages.tick(0.9)
        else:
            getattr(ages, what)(0)
            assert ages.hung == [] or what == "wake"
        assert ages.limit >= 1.0
