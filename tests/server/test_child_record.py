from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from msgspec import UNSET, UnsetType

from genkidama.config.experiment import Experiment
from genkidama.errors import ProtocolError
from genkidama.protocol.diagnostics import ENDLESS_STEPS
from genkidama.protocol.messages import Hello, Push, Weights
from genkidama.protocol.vector import DTYPE, Signature
from genkidama.server.child_record import (
    ChildRecord,
    absent_children,
    distance,
    restore_children,
    sample_distance,
    snapshot_children,
)
from genkidama.server.trial import Trial


def test_a_checkpoint_keeps_the_counts_and_the_last_push_of_each_session() -> None:
    records = {
        "a": ChildRecord(session="s", sequence=4, exchanges=3, episodes=2, steps=1, left_out=2),
        "b": ChildRecord(session="t"),
        "c": ChildRecord(exchanges=1, parted=True),
    }
    for over in (False, True):
        snapshot = Trial(window=1, experiment=Experiment().to_dict()).snapshot(
            exchanges=3, updates=3.0, seconds=1.0, **snapshot_children(records, over)
        )
        assert snapshot.sessions == {"a": ("s", 4)}
        found = restore_children(snapshot)
        assert found.pop("c") == ChildRecord(exchanges=1, parted=not over)
        assert found == {"a": records["a"], "b": ChildRecord()}


def test_what_a_record_counts() -> None:
    record = ChildRecord(session="s", connected=True, sequence=4, exchanges=3, episodes=2, steps=1)
    assert record.counts() == {"exchanges": 3, "episodes": 2, "steps": 1}
    record.left_out = 2
    assert record.counts() == {"exchanges": 3, "episodes": 2, "steps": 1, "left_out": 2}


def test_a_push_is_counted_under_its_number() -> None:
    record = ChildRecord(session="s", connected=True, sequence=4, exchanges=3)
    record.count(Push(version=0, sequence=7, steps=20, returns=[1.0, 2.0]), left_out=False)
    record.count(Push(version=0, sequence=8, steps=5), left_out=True)
    assert (record.sequence, record.exchanges) == (8, 5)
    assert record.counts() == {"exchanges": 5, "episodes": 2, "steps": 25, "left_out": 1}


@pytest.mark.parametrize(("cores", "pushes"), [(0, 2), (1, 2), (2, 4), (3, 6)])
def test_a_warning_comes_with_the_step_that_makes_so_many_on_each_core(
    cores: int, pushes: int
) -> None:
    record, words = ChildRecord(cores=cores), []
    for sequence in range(1, 9):
        push = Push(version=0, sequence=sequence, steps=ENDLESS_STEPS // 2)
        words.append(record.count(push, left_out=False))
    steps = f"{pushes * ENDLESS_STEPS // 2:,}"
    warning = f"no episode has ended in {steps} steps, so there is no return"
    assert words == [warning if number == pushes else "" for number in range(1, 9)]
    record.count(Push(version=0, sequence=9, steps=7, returns=[1.0, 2.0]), left_out=False)
    assert (record.endless, record.last_return) == (0, 2.0)


def test_how_far_it_lies_from_the_parent_is_judged_once_a_second() -> None:
    trial = Trial(window=1)
    trial.signature = Signature.of([("weight", (2,)), ("statistics.observations", (3,))])
    record = ChildRecord(trial=trial)
    take = partial(sample_distance, record)

    def push(sequence: int, *numbers: float, kind: str = "weights") -> Push:
        tail = [5.0 * sequence] * 3  # statistics are not trained, and do not count
        return Push(version=0, sequence=sequence, kind=kind, vector=np.array([*numbers, *tail]))

    assert not take(push(1, 3.0, 9.0), 10.0)  # the parent has no weights yet
    trial.vector = np.array([3.0, 4.0, 7.0, 8.0, 9.0], DTYPE)
    assert not sample_distance(ChildRecord(), push(1, 3.0, 9.0), 10.0)  # nor a child a trial
    assert take(push(2, 3.0, 9.0), 10.0)
    assert not take(push(3, 3.0, 14.0), 10.9)
    assert record.distance == 1.0
    take(push(4, 3.0, 14.0), 11.0)
    assert record.distance == 2.0
    take(push(5, 0.0, 15.0, kind="difference"), 12.0)
    assert record.distance == 3.0
    record.distance = UNSET
    take(push(6, 1.0, 1.0, kind="gradient"), 13.0)
    assert record.distance is UNSET
    take(push(7, 3.0, 9.0), 14.0)
    record.enter(Hello(protocol=2, name="pi", session="s"), trial, "")  # perhaps another trial's
    assert record.distance is UNSET


@pytest.mark.parametrize(
    ("parent", "theirs", "statistics", "found"),
    [
        ([0.3, 0.4], [0.3, 1.4], 0, 2.0),
        ([2.0], [6.0], 0, 2.0),
        ([3.0, 4.0, 9.0], [3.0, 4.0], 1, 0.0),
        ([0.0, 0.0], [3.0, 4.0], 0, UNSET),
        ([3.0, 4.0], [3.0], 0, UNSET),
        ([3.0, 4.0], [3.0, 4.0], 2, UNSET),  # nothing here is trained
        ([3.0, 4.0], [np.inf, 4.0], 0, UNSET),
        ([3.0, 4.0], None, 0, UNSET),
    ],
)
def test_a_distance_is_relative_to_the_parents_length(
    parent: list[float], theirs: list[float] | None, statistics: int, found: float | UnsetType
) -> None:
    vector = None if theirs is None else np.array(theirs, DTYPE)
    push = Push(version=0, sequence=1, vector=vector)
    judged = distance(push, np.array(parent, DTYPE), statistics)
    assert judged == (found if found is UNSET else pytest.approx(found))


@pytest.mark.parametrize(("trained", "step"), [(4096, 1), (4097, 2), (8192, 2), (8193, 3)])
def test_a_distance_is_judged_by_some_4096_numbers_at_most(trained: int, step: int) -> None:
    parent, between = np.ones(trained + 5, DTYPE), np.ones(trained + 5, DTYPE)
    between[np.arange(len(parent)) % step > 0] = 9.0
    between[trained:] = 9.0
    push = Push(version=0, sequence=1, vector=between)
    assert distance(push, parent, 5) == 0.0
    push.vector = parent * 3.0
    assert distance(push, parent, 5) == pytest.approx(2.0)
    one = parent.copy()
    one[step] = 9.0
    push.vector = one
    assert distance(push, parent, 5) == pytest.approx(8.0 / (-(-trained // step)) ** 0.5)


def test_children_are_absent_that_took_part_and_did_not_say_goodbye() -> None:
    records = {
        f"{exchanges} {connected} {parted}": ChildRecord(
            exchanges=exchanges, connected=connected, parted=parted
        )
        for exchanges in (0, 1)
        for connected in (False, True)
        for parted in (False, True)
    }
    assert absent_children(records) == ["1 False False"]


def test_every_nth_push_with_measures_is_kept_however_rare_they_are() -> None:
    record = ChildRecord()
    assert [record.measured(3) for _ in range(7)] == [False, False, True] * 2 + [False]
    assert record == ChildRecord()


def test_a_child_that_returns_goes_on_and_another_one_begins() -> None:
    record = ChildRecord(session="s", sequence=4, exchanges=3)
    trial = Trial(window=1)
    hello = Hello(protocol=2, name="pi", session="s", encodings=["int8"])
    record.enter(hello, trial, "int8")
    assert record == ChildRecord(session="s", connected=True, sequence=4, exchanges=3)
    assert record.trial is trial and record.delta is not None
    record.leave()
    assert record == ChildRecord(session="s", sequence=4, exchanges=3)
    assert record.trial is None and record.delta is None
    for session in "tr":  # a word behind the last one, and one before it
        record.sequence = 4
        record.enter(Hello(protocol=2, name="pi", session=session), trial, "int8")
        assert record == ChildRecord(session=session, connected=True, exchanges=3)
        assert record.delta is None


def test_without_a_line_an_answer_is_what_it_was() -> None:
    weights = Weights(version=3, vector=np.ones(3, DTYPE))
    record = ChildRecord()
    record.join(Signature.of([("weight", (3,))]), 4)
    assert record.answer(weights) is weights
    assert record.cores == 4


def test_a_whole_push_is_read_as_it_is() -> None:
    push = Push(version=0, sequence=1, vector=np.ones(3, DTYPE))
    assert ChildRecord().read("pi", push) is push


def test_a_difference_that_was_not_agreed_on_is_refused() -> None:
    push = Push(version=3, sequence=1, encoding="int4", vector=np.ones(3, np.uint8))
    with pytest.raises(ProtocolError, match="child 'pi' pushes a difference to version 3") as no:
        ChildRecord().read("pi", push)
    assert no.value.code == "base"


def test_numbers_that_begin_anew_in_a_session_are_refused_with_the_way_out() -> None:
    record = ChildRecord(session="s", connected=True, sequence=4, exchanges=3)
    again = Push(version=0, sequence=4, vector=np.ones(3, DTYPE))
    assert record.read("pi", again) is again  # a reply got lost
    with pytest.raises(ProtocolError, match=r"push 1 after push 4 .* needs another session"):
        record.read("pi", Push(version=0, sequence=1, vector=np.ones(3, DTYPE)))
