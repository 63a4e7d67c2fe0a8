"""A trial's counts, and how updates are counted while children come and go."""

from __future__ import annotations

from fractions import Fraction

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from genkidama.trial import Tally, Trial


def restored(tally: Tally) -> Tally:
    """What a checkpoint makes of it."""
    after = Tally()
    kept = msgspec.json.decode(msgspec.json.encode((tally.exchanges, tally.updates, 0.0)))
    after.restore(*kept)
    return after


@given(st.integers(1, 1024), st.integers(0, 200), st.integers(0, 200))
def test_of_the_same_children_updates_are_exchanges_by_children_to_the_bit(
    children: int, before: int, after: int
) -> None:
    tally = Tally()
    for _ in range(before):
        tally.count(children)
    tally = restored(tally)
    for _ in range(after):
        tally.count(children)
    assert tally.exchanges == before + after
    assert tally.updates == (before + after) / children


def test_2000_updates_of_3_children_are_6000_exchanges_exactly() -> None:
    tally = Tally()
    for exchange in range(1, 6001):
        tally.count(3)
        if exchange % 997 == 0:
            tally = restored(tally)
        assert (tally.updates >= 2000) == (exchange == 6000)


@given(st.lists(st.integers(1, 64), max_size=60), st.integers(0, 60))
def test_an_exchange_is_one_by_the_children_that_take_part(joined: list[int], restart: int) -> None:
    tally, exact = Tally(), Fraction(0)
    for position, children in enumerate(joined):
        if position == restart:
            tally = restored(tally)
            exact = Fraction(tally.updates) if float(exact) == tally.updates else exact
        before = tally.updates
        tally.count(children)
        assert tally.updates > before
        exact += Fraction(1, children)
        assert abs(Fraction(tally.updates) - exact) < Fraction(1, 10**9)
    assert tally.exchanges == len(joined)


def test_an_old_checkpoint_goes_on_with_the_updates_that_it_says() -> None:
    # Before, updates were all exchanges divided by the children that ever pushed.
    tally = Tally()
    tally.restore(exchanges=301, updates=301 / 7, seconds=9.0)
    assert (tally.exchanges, tally.updates, tally.seconds(100.0)) == (301, 43.0, 9.0)
    tally.count(2)
    assert (tally.exchanges, tally.updates) == (302, 43.5)


def test_seconds_go_on_after_a_restart_and_begin_once() -> None:
    tally = Tally()
    tally.restore(exchanges=0, updates=0.0, seconds=5.0)
    assert tally.seconds(100.0) == 5.0
    tally.begin(100.0)
    tally.begin(110.0)
    assert tally.seconds(120.0) == 25.0


@given(st.lists(st.floats(-1e30, 1e30), max_size=40), st.integers(1, 5))
def test_the_mean_return_is_that_of_the_window(returns: list[float], window: int) -> None:
    trial = Trial(window=window)
    assert trial.mean_return is None
    for value in returns:
        trial.add_returns([value])
    assert list(trial.returns) == returns[-window:]
