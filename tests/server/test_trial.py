"""A trial's counts, and how updates are counted while children come and go."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.errors import ProtocolError
from genkidama.protocol.vector import DTYPE
from genkidama.server.rules.blend import Blend, Rule
from genkidama.server.rules.difference import Difference
from genkidama.server.rules.gradient import STALE, Gradient
from genkidama.server.trial import BASELESS, ProgressCounter, Trial
from tests.server.rules import contribution


def restored(tally: ProgressCounter) -> ProgressCounter:
    """What a checkpoint makes of it."""
    after = ProgressCounter()
    kept = msgspec.json.decode(msgspec.json.encode((tally.exchanges, tally.updates, 0.0)))
    after.restore(*kept)
    return after


@given(st.integers(1, 1024), st.integers(0, 200), st.integers(0, 200))
def test_of_the_same_children_updates_are_exchanges_by_children_to_the_bit(
    children: int, before: int, after: int
) -> None:
    tally = ProgressCounter()
    for _ in range(before):
        tally.count(children)
    tally = restored(tally)
    for _ in range(after):
        tally.count(children)
    assert tally.exchanges == before + after
    assert tally.updates == (before + after) / children


def test_2000_updates_of_3_children_are_6000_exchanges_exactly() -> None:
    tally = ProgressCounter()
    for exchange in range(1, 6001):
        tally.count(3)
        if exchange % 997 == 0:
            tally = restored(tally)
        assert (tally.updates >= 2000) == (exchange == 6000)


@given(st.lists(st.integers(1, 64), max_size=60), st.integers(0, 60))
def test_an_exchange_is_one_by_the_children_that_take_part(joined: list[int], restart: int) -> None:
    tally, exact = ProgressCounter(), Fraction(0)
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
    tally = ProgressCounter()
    tally.restore(exchanges=301, updates=301 / 7, seconds=9.0)
    assert (tally.exchanges, tally.updates, tally.seconds(100.0)) == (301, 43.0, 9.0)
    tally.count(2)
    assert (tally.exchanges, tally.updates) == (302, 43.5)


def test_seconds_go_on_after_a_restart_and_begin_once() -> None:
    tally = ProgressCounter()
    tally.restore(exchanges=0, updates=0.0, seconds=5.0)
    assert tally.seconds(100.0) == 5.0
    tally.start(100.0)
    tally.start(110.0)
    assert tally.seconds(120.0) == 25.0


@given(st.lists(st.floats(-1e30, 1e30), max_size=40), st.integers(1, 5))
def test_the_mean_return_is_that_of_the_window(returns: list[float], window: int) -> None:
    trial = Trial(window=window)
    assert trial.mean_return is None
    for value in returns:
        trial.add_returns([value])
    assert list(trial.returns) == returns[-window:]


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20))
def test_the_running_mean_at_decay_1_is_that_of_all_versions(values: list[float]) -> None:
    trial = Trial(window=1)
    for value in values:
        trial.apply(contribution(np.full(2, value, DTYPE)), "weights", Blend(1.0), 1.0)
    assert trial.average is not None
    assert trial.average.tolist() == pytest.approx([sum(values) / len(values)] * 2, abs=1e-3)
    assert trial.vector is not None
    assert trial.vector.tolist() == [values[-1]] * 2


def test_the_running_mean_forgets_below_1_and_is_none_at_0() -> None:
    trial = Trial(window=1)
    means = []
    for value in (8.0, 0.0, 4.0, 0.0):
        trial.apply(contribution(np.full(1, value, DTYPE)), "weights", Blend(1.0), 0.75)
        assert trial.average is not None
        means.append(float(trial.average[0]))
    assert means == pytest.approx([8.0, 4.0, 4.0, 3.0])
    without = Trial(window=1)
    without.apply(contribution(np.ones(1, DTYPE)), "weights", Blend(1.0), 0.0)
    assert without.average is None


@pytest.mark.parametrize(
    ("kind", "rule", "left_out", "version"),
    [
        ("weights", Blend(1.0), None, 2),
        ("difference", Difference(1.0), None, 2),
        ("weights", Difference(1.0), BASELESS, 1),
        ("gradient", Gradient(1.0, max_staleness=0), STALE, 1),
    ],
)
def test_what_is_left_out_makes_no_version(
    kind: str, rule: Rule, left_out: str | None, version: int
) -> None:
    trial = Trial(window=1)
    assert trial.apply(contribution(np.ones(1, DTYPE)), "weights", rule, 0.5) is None
    push = contribution(np.full(1, 3.0, DTYPE), staleness=1)
    assert trial.apply(push, kind, rule, 0.5) == left_out
    assert trial.version == version
    assert trial.vector is not None
    assert (trial.vector.tolist() == [1.0]) == (left_out is not None)


@pytest.mark.parametrize(
    ("before", "words"),
    [(True, "pushes 'difference', the parent's rule takes 'weights'"), (False, "has weights, and")],
)
def test_a_push_of_another_kind_is_refused(before: bool, words: str) -> None:
    trial = Trial(window=1)
    if before:
        trial.apply(contribution(np.ones(1, DTYPE)), "weights", Blend(1.0), 0.0)
    kept = (trial.version, None if trial.vector is None else trial.vector.tolist())
    with pytest.raises(ProtocolError, match=words) as caught:
        trial.apply(contribution(np.ones(1, DTYPE)), "difference", Blend(1.0), 0.0)
    assert caught.value.code == "order"
    assert kept == (trial.version, None if trial.vector is None else trial.vector.tolist())
