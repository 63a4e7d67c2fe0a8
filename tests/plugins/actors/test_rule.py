"""Rows of experience, and the rule that hands them on to a learner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.errors import ProtocolError
from genkidama.plugins.actors import rule as module
from genkidama.plugins.actors.rule import Columns, Experience, LearnedBatch, most_rows
from genkidama.protocol.vector import DTYPE, Vector
from genkidama.server.rules.blend import Update
from tests.learning.blocks import COLUMNS, GOES_ON, TERMINATED, TRUNCATED, Step, block, blocks

SIZE = 3


def learned(value: float, rows: int = 2) -> LearnedBatch:
    return LearnedBatch(
        np.full(SIZE, value, DTYPE), np.full((rows, SIZE), -value, DTYPE), np.array([value])
    )


def begun(**options: int) -> Experience:
    rule = Experience(0.5, **{"batch": 4, **options})
    rule.begin(COLUMNS, 64, learned(0.0))
    return rule


def steps(count: int, first: int = 0) -> np.ndarray:
    lane: list[Step] = [(first + number, GOES_ON) for number in range(count)]
    return block([lane])


def push(rule: Experience, rows: np.ndarray, child: str = "a") -> Vector:
    """θ_P after it."""
    parent = np.full(SIZE, np.nan, DTYPE)
    vector = rows.reshape(-1)
    vector.flags.writeable = False
    rule.apply(parent, Update(vector, 0, 0, len(rows), child))
    return parent


def numbers_of(batch: list[np.ndarray] | None) -> list[int]:
    """Which steps a batch has, without stops."""
    assert batch is not None
    rows = np.concatenate(batch)
    return [int(row[0]) for row in rows if row[COLUMNS.following]]


# Rows.


def test_the_columns_lie_side_by_side() -> None:
    columns = Columns(3, 2, discounted=True)
    single = [columns.reward, columns.terminated, columns.truncated, columns.log_mu]
    assert columns.actions == slice(3, 5)
    assert [*single, columns.following] == [5, 6, 7, 8, 9]
    assert columns.count == 11
    assert Columns(3, 2).count == 10


@given(blocks())
def test_what_a_core_writes_has_no_problem(found: list[list[list[Step]]]) -> None:
    rows = np.concatenate([block(lanes) for lanes in found])
    assert COLUMNS.problem(rows) == ""


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        (COLUMNS.terminated, 0.5, "a flag that is neither 0 nor 1"),
        (COLUMNS.truncated, -1.0, "a flag that is neither 0 nor 1"),
        (COLUMNS.following, -1.0, "an observation that follows at no row"),
        (COLUMNS.following, 1.5, "an observation that follows at no row"),
        (COLUMNS.following, 5.0, "a step whose following observation is missing"),
    ],
)
def test_senseless_rows_are_named(column: int, value: float, problem: str) -> None:
    rows = steps(4)
    rows[0, column] = value
    assert COLUMNS.problem(rows) == problem
    with pytest.raises(ProtocolError, match=f"child 'a' pushes {problem}"):
        push(begun(), rows)


CHOICES = Columns(2, 1, choices=(2,))
MANY = float(np.finfo(DTYPE).max)


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        (0, MANY, "a number beyond ±1e+15"),
        (COLUMNS.reward, -MANY, "a number beyond ±1e+15"),
        (2, 2.0, "an action that is none of 0 to 1"),
        (2, -1.0, "an action that is none of 0 to 1"),
        (2, 1e14, "an action that is none of 0 to 1"),
        (2, 0.7, "an action that is none of 0 to 1"),
        (COLUMNS.log_mu, 0.5, "a log-probability that no action has"),
        (COLUMNS.log_mu, -1e9, "a log-probability that no action has"),
    ],
)
def test_what_no_environment_gives_is_named(column: int, value: float, problem: str) -> None:
    rows = steps(4)
    assert CHOICES.problem(rows) == ""
    rows[1, column] = value
    assert CHOICES.problem(rows) == problem


@given(st.data())
def test_whatever_is_pushed_the_learner_can_index_and_add_up(data: st.DataObject) -> None:
    """A learner may rely on rows that have no problem: each number is finite, squares and sums of
    many of them are, and each action exists."""
    rows = steps(3)
    for _ in range(data.draw(st.integers(0, 3))):
        where = data.draw(st.integers(0, 2)), data.draw(st.integers(0, COLUMNS.count - 1))
        rows[where] = data.draw(st.floats(-MANY, MANY, width=32) | st.sampled_from([0, 1, 2, -1]))
    if CHOICES.problem(rows):
        return
    real = rows[rows[:, CHOICES.following] > 0.0]
    assert np.isfinite(np.square(rows).sum())
    assert np.isin(real[:, 2], (0.0, 1.0)).all()


def test_only_a_termination_needs_no_row_behind_it() -> None:
    assert COLUMNS.problem(block([[(0, TERMINATED)]])) == ""
    assert COLUMNS.problem(block([[(0, TRUNCATED)]])[:1]) != ""


def test_no_core_writes_more_stops_than_steps() -> None:
    stops = np.zeros((4, COLUMNS.count), np.float32)
    assert COLUMNS.problem(stops[:1]) == "", "a push without steps"
    assert COLUMNS.problem(np.concatenate((steps(4), stops[:3]))) == ""
    for rows in (stops[:2], np.concatenate((steps(4), stops))):
        assert COLUMNS.problem(rows) == "more observations that follow than steps"


def test_a_push_has_room_for_a_block_and_not_for_everything() -> None:
    assert most_rows(16, 100) == 2**18
    assert most_rows(2**20, 100) == 100
    rule = begun()
    width = COLUMNS.count
    assert rule.fits(width, SIZE) == rule.fits(width * most_rows(width, 64), SIZE) == ""
    for count in (0, width - 1, width + 1, width * (most_rows(width, 64) + 1)):
        assert rule.fits(count, SIZE).startswith(f"rows of {width} numbers each, ")
    assert rule.largest(SIZE) == width * most_rows(width, 64)
    assert rule.largest(10**9) == 10**9
    assert Experience(0.5).fits(width, SIZE) == "nothing before there is a learner"


# Batches.


def test_a_batch_is_the_oldest_whole_blocks_that_are_enough() -> None:
    rule = begun(backlog=3)
    push(rule, steps(3))
    assert rule.take() is None
    push(rule, steps(2, 10), "b")
    push(rule, steps(3, 20))
    assert numbers_of(rule.take()) == [0, 1, 2, 10, 11]
    assert rule.take() is None
    push(rule, steps(1, 30))
    assert numbers_of(rule.take()) == [20, 21, 22, 30]


def test_rows_are_copied_since_the_message_goes() -> None:
    rule = begun()
    rows = steps(4)
    push(rule, rows)
    rows.flags.writeable = True
    rows[:] = 9.0
    assert numbers_of(rule.take()) == [0, 1, 2, 3]


def test_what_the_learner_cannot_use_in_time_is_dropped_the_oldest_first() -> None:
    rule = begun(backlog=2)
    for first in range(0, 60, 10):
        push(rule, steps(3, first), "a" if first < 30 else "b")
    assert rule.too_many == 12
    assert numbers_of(rule.take()) == [40, 41, 42, 50, 51, 52]
    assert "the learner is slower" in rule.diagnose(0.5, 2)[0]
    rule.batches += 99
    assert rule.diagnose(0.5, 2)
    rule.batches += 1
    assert rule.diagnose(0.5, 2) == [], "it was long ago"
    rule.batches -= 100
    push(rule, steps(100))
    assert len(numbers_of(rule.take())) == 100, "a block that is larger is kept by itself"


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=40), st.integers(1, 4))
def test_every_step_is_learned_from_once_or_counted_as_dropped(
    plan: list[tuple[int, bool]], backlog: int
) -> None:
    rule = begun(backlog=backlog)
    pushed = taken = 0
    for count, takes in plan:
        push(rule, steps(count))
        pushed += count
        if takes and (batch := rule.take()) is not None:
            got = len(numbers_of(batch))
            assert got >= rule.batch
            assert sum(map(len, batch)) <= rule.room
            taken += got
            rule.learned(learned(1.0))
    waiting = sum(each.steps for each in rule._blocks)
    assert waiting <= max(backlog * rule.batch, 9)
    assert taken + rule.too_many + rule.too_old + waiting == pushed


# A learner that dies.


def batch_of(rule: Experience) -> set[str]:
    """Whose rows the next batch has; what they are does not matter here."""
    assert rule.take() is not None
    return set(rule._learning)


def test_a_learner_dies_of_one_childs_rows_and_the_others_are_learned_from() -> None:
    rule = begun(batch=4, backlog=8)

    def collect() -> None:
        for child in "abc":
            if not rule.is_deadly(child):
                push(rule, steps(2), child)

    deaths = 0
    for _ in range(40):
        collect()
        while rule._waiting >= rule.batch:
            if "c" in batch_of(rule):
                deaths += 1
                assert "c" in rule.killed()
            else:
                rule.learned(learned(1.0))
    assert deaths <= 5
    assert [rule.is_deadly(child) for child in "abc"] == [False, False, True]
    assert rule.batches > 20
    assert not rule.suspects
    with pytest.raises(ProtocolError, match="child 'c': its rows have killed the learner 3 times"):
        push(rule, steps(2), "c")


def test_what_waits_of_a_child_whose_rows_are_deadly_is_dropped() -> None:
    rule = begun(backlog=8)
    for child in "ccccab":
        push(rule, steps(4), child)
    for _ in range(3):
        assert batch_of(rule) == {"c"}
        rule.killed()
    for child in "ab":
        assert batch_of(rule) == {child}
    assert rule.take() is None


def test_deaths_that_are_long_ago_do_not_count() -> None:
    rule = begun(max_lag=1000)
    for batches in (0, 99, 100, 101):
        rule.batches = batches
        push(rule, steps(4))
        rule.take()
        assert rule.killed() == ["a"]
        assert rule.is_deadly("a") is (batches == 101)
    assert rule.killed() == [], "it had no batch"


# What children are given.


def test_a_push_is_answered_with_the_newest_weights() -> None:
    rule = begun()
    assert push(rule, steps(4)).tolist() == [0.0] * SIZE
    rule.take()
    rule.learned(learned(7.0))
    assert push(rule, steps(1)).tolist() == [7.0] * SIZE


def test_a_pull_brings_what_the_child_does_not_have() -> None:
    rule = begun()
    parent = np.zeros(SIZE, DTYPE)
    assert rule.pull(parent, "a")
    assert not rule.pull(parent, "a")
    rule.learned(learned(7.0))
    push(rule, steps(1), "a")
    assert not rule.pull(parent, "a"), "the answer to its push has brought it"
    assert rule.pull(parent, "b")
    assert parent.tolist() == [7.0] * SIZE
    rule.forget("b")
    assert rule.pull(parent, "b"), "it may have lost the answer with its connection"


def test_a_stop_alone_brings_no_steps() -> None:
    rule = begun()
    push(rule, np.zeros((1, COLUMNS.count), np.float32))
    assert not rule._blocks


# Age.


def test_age_counts_batches_since_the_answer_to_the_push_before() -> None:
    rule = begun(backlog=9)
    push(rule, steps(4))
    push(rule, steps(4), "b")
    for _ in range(3):
        rule.learned(learned(1.0))
    push(rule, steps(4), "b")
    ages = []
    while rule.take() is not None:
        ages.append(rule.lag)
    assert ages == [3.0, 3.0, 3.0]
    push(rule, steps(4), "b")
    rule.learned(learned(1.0))
    rule.take()
    assert rule.lag == 1.0, "it began with the answer of three batches"


def test_age_counts_on_while_a_child_is_away_and_from_the_first_weights() -> None:
    rule = begun(backlog=9)
    parent = np.zeros(SIZE, DTYPE)
    push(rule, steps(4), "back")
    rule.take()
    rule.forget("back")
    for child in ("new", "back") * 2:
        rule.learned(learned(1.0))
        rule.pull(parent, child)
    for child, age in (("back", 4.0), ("new", 3.0)):
        push(rule, steps(4), child)
        rule.take()
        assert rule.lag == age


def test_what_is_too_old_is_dropped_and_its_child_named() -> None:
    rule = begun(max_lag=2)
    for child in ("slow", "fast", "just in time"):
        push(rule, steps(1), child)
    for batches in (1, 2, 3):
        rule.learned(learned(1.0))
        push(rule, steps(1), "fast")
        if batches == rule.max_lag:
            push(rule, steps(1), "just in time")
    push(rule, steps(5), "slow")
    assert rule.too_old == 5
    assert "'slow' is so slow" in rule.diagnose(0.5, 2)[0]
    rule.batches += 100
    assert rule.diagnose(0.5, 2) == []
    rule.batches -= 100
    push(rule, steps(5), "slow")
    assert rule.too_old == 5, "its next block began with newer weights"
    rule.forget("slow")
    assert push(rule, steps(1), "slow").tolist() == [1.0] * SIZE


def test_of_those_who_are_gone_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_NAMES", 3)
    rule = begun()
    push(rule, steps(1), "here")
    for number in range(20):
        rule.learned(learned(1.0))
        push(rule, steps(1), f"browser {number}")
        rule.forget(f"browser {number}")
    assert rule._given.keys() == {"here", "browser 18", "browser 19"}


# Shares.


@pytest.mark.parametrize(("children", "share"), [(0, 4096), (1, 4096), (3, 1365), (10**6, 16)])
def test_at_first_all_bring_the_same(children: int, share: int) -> None:
    assert Experience(0.5, batch=4096).share("a", children) == share
    assert Experience(0.5, batch=16, in_flight=4096).share("a", children) == share


def test_each_is_told_what_it_does_in_the_time_of_a_batch() -> None:
    rule = begun(batch=1000, backlog=100)
    for _ in range(50):
        for child, count in (("fast", 90), ("slow", 10)):
            push(rule, steps(count), child)
        rule.learned(learned(1.0))
    assert rule.share("fast", 3) == pytest.approx(900, rel=0.01)
    assert rule.share("slow", 3) == pytest.approx(100, rel=0.01)
    assert rule.share("new", 3) == 333
    rule.forget("fast")
    assert rule.share("slow", 2) == 1000


# Going on.


def test_the_optimizers_state_survives_and_one_that_does_not_fit_is_left() -> None:
    rule = begun()
    assert rule.state().keys() == {"state", "clock"}
    rule.learned(learned(7.0))
    after = Experience(0.5)
    after.restore({name: array.copy() for name, array in rule.state().items()})
    new = after.begin(COLUMNS, 64, learned(1.0))
    assert new.weights.tolist() == [1.0] * SIZE
    assert (new.state == -7.0).all()
    assert new.clock.tolist() == [7.0]
    after.restore(rule.state())
    assert (after.begin(COLUMNS, 64, learned(1.0, rows=1)).state == -1.0).all()
    with pytest.raises(ValueError, match=r"it holds \['velocity'\], expected"):
        after.restore({"velocity": np.zeros(2)})
    assert Experience(0.5).state() == {}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"batch": 0}, "batch = 0: a whole number of at least 1 is needed"),
        ({"batch": 1.5}, "batch = 1.5: a whole number of at least 1 is needed"),
        ({"in_flight": -1}, "in_flight = -1: a whole number of at least 0 is needed"),
        ({"max_lag": True}, "max_lag = True: a whole number of at least 1 is needed"),
        ({"backlog": "many"}, "backlog = 'many': a whole number of at least 1 is needed"),
    ],
)
def test_options_are_checked(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Experience(0.5, **options)
