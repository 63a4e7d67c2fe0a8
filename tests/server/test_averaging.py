"""The number of children that push, and α of each push, by value."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert, to_builtins

from genkidama.config.experiment import Experiment
from genkidama.config.schedules import following
from genkidama.protocol.messages import Hello, Join, Push, Weights
from genkidama.protocol.vector import DTYPE
from genkidama.server import averaging as module
from genkidama.server.averaging import Averaging, PushingChildren
from genkidama.server.events import AveragingChosen, Event
from genkidama.server.parameter_server import ParameterServer
from genkidama.server.trial import Snapshot

CHUNK = {"child": {"exchange": "chunk"}}


def rounds(children: PushingChildren, number: int, *, times: int, slow: int = 1) -> float:
    """n after so many pushes of each child; the first one pushes in each `slow`-th round alone."""
    for turn in range(times):
        for child in range(number):
            if child or not turn % slow:
                children.note(str(child), number)
    return children.count


@given(st.integers(1, 64))
def test_children_that_push_in_turns_count_one_each(number: int) -> None:
    assert rounds(PushingChildren(), number, times=40) == pytest.approx(number, rel=0.03)


def test_a_slow_child_counts_as_a_part() -> None:
    assert 7.0 < rounds(PushingChildren(), 8, times=200, slow=10) < 7.5


def test_children_come_and_go_step_by_step_and_for_ever() -> None:
    children = PushingChildren()
    assert children.count == 0.0
    rounds(children, 8, times=40)
    gone = [rounds(children, 4, times=1) for _ in range(60)]
    assert max(np.abs(np.diff(gone))) < 0.5 < 6.0 < gone[0]
    assert gone[-1] == pytest.approx(4.0, rel=0.02)
    back = [rounds(children, 8, times=1) for _ in range(60)]
    assert max(np.abs(np.diff(back))) < 0.8 and back[-1] == pytest.approx(8.0, rel=0.02)
    assert rounds(children, 8, times=2000) == pytest.approx(8.0, rel=0.02)  # through a rescaling


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9)), min_size=8, max_size=60),
    st.sampled_from([1e100, 1.05]),
)
def test_each_push_fades_by_one_part_in_eight_pushes_of_each_child(
    pushes: list[tuple[str, int]], largest: float
) -> None:
    """Of four children at least, and the same through a rescaling."""
    children, weights = PushingChildren(), dict.fromkeys("abcd", 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LARGEST", largest)
        for child, joined in pushes:
            children.note(child, joined)
            for name in weights:
                weights[name] /= 1.0 + 1.0 / (8 * max(4, joined))
            weights[child] += 1.0
            squares = sum(weight**2 for weight in weights.values())
            n = sum(weights.values()) ** 2 / squares
            assert children.count == pytest.approx(n, rel=1e-9)


def test_names_that_push_no_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST", 1e7)
    children = PushingChildren()
    for number in range(2000):
        children.note(f"pod-{number}", 4)
    assert len(children._weights) < 1000


def averaging(events: list[Event], rule: str = "difference", **parent: Any) -> Averaging:
    settings = {**CHUNK, "parent": {"rule": rule, **parent}}
    return Averaging(Experiment.from_dict(settings), events)


def pushes(what: Averaging, number: int, staleness: int = 0) -> float | None:
    alpha = None
    for turn in range(400):
        alpha = what.push(str(turn % number), number, staleness, float(turn))
    return alpha


@pytest.mark.parametrize(("number", "eta"), [(1, 0.5), (2, 0.5), (4, 0.5), (8, 0.25), (16, 0.125)])
def test_a_difference_counts_two_by_the_number_of_children_and_half_at_most(
    number: int, eta: float
) -> None:
    assert pushes(averaging([]), number, staleness=number - 1) == pytest.approx(eta, rel=0.05)


def test_a_blend_makes_up_for_what_it_takes_back() -> None:
    alpha = pushes(averaging([], "blend"), 8, staleness=2)
    assert alpha is not None
    assert alpha / (1.0 + 2.0 * alpha) == pytest.approx(0.25, abs=0.01)


def test_what_a_child_brings_from_a_long_absence_counts_little() -> None:
    what = averaging([])
    alpha = pushes(what, 8)
    assert alpha is not None
    assert what.push("0", 8, 30, 400.0) == pytest.approx(alpha, rel=0.01)
    late = what.push("0", 8, 3200, 400.0)
    assert late == pytest.approx(alpha / 100, rel=0.05)


@pytest.mark.parametrize(
    ("rule", "staleness", "times", "alpha"),
    [
        ("difference", 0, 1, 0.5),
        ("difference", 4, 1, 0.5),
        ("difference", 8, 1, 0.25),
        ("blend", 1, 1, 0.5 / (1.0 - 0.5 * 0.02)),
        ("blend", 100, 1, 0.5 / (1.0 - 0.5 * 0.08) * 0.04),
        ("blend", 1, 2, 0.5 / (1.0 - 0.5 * 0.0396)),
        ("blend", 3, 1000, 1.0),
    ],
)
def test_alpha_of_a_lone_child_by_its_staleness(
    rule: str, staleness: int, times: int, alpha: float
) -> None:
    what = averaging([], rule)
    found = [what.push("pi", 1, staleness, float(turn)) for turn in range(times)]
    assert found[-1] == pytest.approx(alpha, rel=1e-9)


def test_what_the_experiment_sets_stays() -> None:
    events: list[Event] = []
    what = averaging(events, alpha=0.5)
    assert pushes(what, 8) is None
    last = events[-1]
    assert isinstance(last, AveragingChosen)
    assert last.lanes == 4 and last.minibatch_size in (32, 33)


def test_each_change_is_said_once_and_rarely() -> None:
    events: list[Event] = []
    pushes(averaging(events), 8)
    chosen = [event for event in events if isinstance(event, AveragingChosen)]
    assert chosen[-1].children == pytest.approx(8.0, abs=0.75)
    times = [event.time for event in chosen]
    assert all(later - sooner >= 2.0 for sooner, later in pairwise(times))
    assert times[:4] == [0.0, 2.0, 4.0, 6.0]
    assert len(chosen) < 8


def test_what_is_said_is_what_counts_from_then_on_rounded() -> None:
    experiment, events = Experiment.from_dict({**CHUNK, "parent": {"rule": "difference"}}), []
    what = Averaging(experiment, events)
    rate = experiment.optimizer.learning_rate
    for turn in range(400):
        said = len(events)
        alpha = what.push(str(turn % 23), 23, 3, float(turn))
        if said < len(events):
            child = following(experiment, what.children)
            assert alpha is not None
            assert events[-1] == AveragingChosen(
                time=float(turn),
                children=round(what.children, 1),
                staleness=round(3.0 * (1.0 - 0.98 ** (turn + 1)), 1),
                alpha=round(alpha, 3),
                lanes=round(child.lanes),
                minibatch_size=child.minibatch_size,
                learning_rate=round(rate * child.rate, 6),
            )
    assert len(events) > 5


def test_every_reply_has_the_number_and_a_repeated_push_is_not_counted() -> None:
    """Also after a restart."""
    experiment = Experiment.from_dict({**CHUNK, "parent": {"rule": "blend"}})
    server = ParameterServer(experiment)
    for name in "ab":
        server.handle(name, Hello(protocol=2, name=name, session=name), 0.0)
        server.handle(name, Join(signature=[("x", [2])]), 0.0)

    def push(name: str, sequence: int) -> float:
        vector = np.zeros(2, DTYPE)
        reply = server.handle(name, Push(version=0, sequence=sequence, vector=vector), 1.0)
        assert isinstance(reply, Weights)
        return reply.children

    assert push("a", 1) == 1.0
    assert push("b", 1) == pytest.approx(2.0, abs=0.01)
    assert push("b", 1) == push("b", 1)
    assert (before := push("b", 2)) < 1.9
    snapshot, signature, vector = server.snapshot(2.0), server.trial.signature, server.trial.vector
    assert signature is not None and vector is not None
    server = ParameterServer(experiment)
    server.restore(convert(to_builtins(snapshot), Snapshot), signature, vector)
    server.handle("b", Hello(protocol=2, name="b", session="b"), 3.0)
    joined = server.handle("b", Join(signature=[("x", [2])]), 3.0)
    assert isinstance(joined, Weights) and joined.children == pytest.approx(before, rel=1e-9)
    assert 1.5 < push("b", 3) < before
