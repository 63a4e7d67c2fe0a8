from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from msgspec import UNSET

from genkidama.config.experiment import Experiment
from genkidama.errors import ProtocolError
from genkidama.protocol.messages import Hello, Push, Weights
from genkidama.protocol.vector import DTYPE, Signature
from genkidama.server.child_record import (
    ChildRecord,
    restore_children,
    sample_distance,
    snapshot_children,
)
from genkidama.server.trial import Trial


def test_a_checkpoint_keeps_the_counts_and_the_last_push_of_each_session() -> None:
    records = {
        "a": ChildRecord(session="s", sequence=4, exchanges=3, episodes=2, steps=1, left_out=2),
        "b": ChildRecord(session="t"),
    }
    snapshot = Trial(window=1, experiment=Experiment().to_dict()).snapshot(
        exchanges=3, updates=3.0, seconds=1.0, **snapshot_children(records)
    )
    assert snapshot.sessions == {"a": ("s", 4)}
    assert restore_children(snapshot) == {"a": records["a"], "b": ChildRecord()}


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


def test_how_far_it_lies_from_the_parent_is_judged_once_a_second() -> None:
    trial = Trial(window=1)
    trial.signature = Signature.of([("weight", (2,)), ("statistics.observations", (3,))])
    record = ChildRecord(trial=trial)
    take = partial(sample_distance, record)

    def push(sequence: int, *numbers: float, kind: str = "weights") -> Push:
        tail = [5.0 * sequence] * 3  # statistics are not trained, and do not count
        return Push(version=0, sequence=sequence, kind=kind, vector=np.array([*numbers, *tail]))

    take(push(1, 3.0, 9.0), 10.0)  # the parent has no weights yet
    trial.vector = np.array([3.0, 4.0, 7.0, 8.0, 9.0], DTYPE)
    take(push(2, 3.0, 9.0), 10.0)
    take(push(3, 3.0, 14.0), 10.9)
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
    record.enter(Hello(protocol=2, name="pi", session="t"), trial, "int8")
    assert record == ChildRecord(session="t", connected=True, exchanges=3)
    assert record.delta is None


def test_without_a_line_an_answer_is_what_it_was() -> None:
    weights = Weights(version=3, vector=np.ones(3, DTYPE))
    record = ChildRecord()
    record.join(Signature.of([("weight", (3,))]))
    assert record.answer(weights) is weights


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
