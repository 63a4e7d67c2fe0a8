"""Differences at the parent: how each child is spoken to, and that none disturbs another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.plugins.hypertrick.search import Search
from genkidama.protocol.delta import ENCODINGS
from genkidama.protocol.messages import (
    Hello,
    Pull,
    Push,
    Refusal,
    Request,
    Weights,
    Welcome,
    decode_reply,
    decode_request,
    encode,
)
from genkidama.protocol.session import BlendReply, Decision, Session, Train
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.server.parameter_server import ParameterServer
from genkidama.server.rules.blend import Blend as BlendRule
from genkidama.server.trial import SingleTrialRun

PAIR = Signature.of([("weight", (20, 30)), ("statistics.observations", (5,))])


def make(encoding: str, **settings: Any) -> ParameterServer:
    return ParameterServer(Experiment().with_settings({"parent.encoding": encoding, **settings}))


def numbers(seed: int) -> Vector:
    return np.random.default_rng(seed).normal(size=PAIR.size).astype(DTYPE)


def say(server: ParameterServer, session: Session, request: Request) -> Decision:
    """What a child decides about the answer, both over the wire."""
    reply = server.handle(session.name, decode_request(encode(request)), 1.0)
    return session.receive(request, decode_reply(encode(reply)))


def entered(server: ParameterServer, name: str) -> Session:
    session = Session(name, f"word of {name}", parent="the parent")
    decision = say(server, session, session.hello())
    assert isinstance(decision, Train)
    say(server, session, session.join(PAIR))
    return session


def exchange(server: ParameterServer, session: Session, vector: Vector) -> tuple[Push, BlendReply]:
    push = session.push(vector)
    decision = say(server, session, push)
    assert isinstance(decision, BlendReply)
    return push, decision


def near(server: ParameterServer, wanted: Vector, part: float) -> bool:
    """Whether θ_P is `wanted`, exactly in its statistics and by less than `part` elsewhere."""
    found = server.trial.vector
    assert found is not None
    assert found[-5:].tobytes() == wanted[-5:].tobytes()
    return bool(np.abs(found - wanted).max() < part)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_each_child_is_read_by_what_it_was_told_itself(encoding: str) -> None:
    """Others have moved θ_P between a child's join and its first push."""
    server = make(encoding)
    first, second = entered(server, "a"), entered(server, "b")
    whole, _ = exchange(server, first, numbers(0))
    assert whole.encoding == ""
    third = entered(server, "c")
    wanted = numbers(0)
    for seed, session in enumerate((first, second, third, second, first), start=1):
        push, decision = exchange(server, session, numbers(seed))
        assert push.encoding == ("" if seed == 2 else encoding)
        wanted = (0.5 * wanted + 0.5 * numbers(seed)).astype(DTYPE)
        assert near(server, wanted, 0.5)
        assert decision.vector is not None and near(server, decision.vector, 1.0)
        theirs = server.children[session.name].delta
        ours = session._delta
        assert theirs is not None and theirs.parent is not None
        assert ours is not None and ours.parent is not None
        assert ours.parent.tobytes() == theirs.parent.tobytes()


@pytest.mark.parametrize(("wish", "offer"), [("float32", list(ENCODINGS)), ("int4", ["int8"])])
def test_without_a_common_encoding_all_travels_whole(wish: str, offer: list[str]) -> None:
    server = make(wish)
    hello = Hello(protocol=2, name="a", session="s", encodings=offer)
    welcome = server.handle("", hello, 0.0)
    assert isinstance(welcome, Welcome)
    assert (welcome.protocol, welcome.encoding) == (2, "")
    assert welcome.experiment["parent"]["encoding"] == wish
    assert server.children["a"].delta is None


def test_a_search_is_exact() -> None:
    plan = {"space": {"optimizer.learning_rate": {"low": 1e-5, "high": 1e-2}}, "phase_steps": 10}
    settings = {"parent": {"encoding": "int4"}, "search": plan}
    experiment = Experiment.from_dict(settings)
    trials = Search(experiment)
    trials.offer(0, {"optimizer.learning_rate": 1e-4}, 0.0)
    server = ParameterServer(experiment, trials=trials)
    hello = Session("a", "word", parent="the parent").hello()
    welcome = server.handle("", hello, 0.0)
    assert isinstance(welcome, Welcome) and welcome.trial is not None
    assert welcome.encoding == "" and server.children["a"].delta is None


def test_a_refused_difference_changes_nothing_and_the_next_one_is_read() -> None:
    server = make("int8")
    session = entered(server, "a")
    exchange(server, session, numbers(0))
    _, decision = exchange(server, session, numbers(1))
    assert server.trial.vector is not None
    before = server.trial.vector.tobytes()
    push = session.push(numbers(2))
    assert push.vector is not None
    for change in ({"version": 1}, {"vector": push.vector[:-1]}, {"returns": [float("nan")]}):
        fields = {name: getattr(push, name) for name in push.__struct_fields__}
        reply = server.handle("a", Push(**{**fields, **change}), 2.0)
        assert isinstance(reply, Refusal)
        assert server.trial.vector.tobytes() == before and server.exchanges == 2
    assert sorted(server.refusals) == ["base", "finite", "length"]
    assert isinstance(session.receive(push, server.handle("a", push, 3.0)), BlendReply)
    assert decision.vector is not None and server.exchanges == 3


def test_a_push_whose_reply_was_lost_is_sent_again_whole_and_counted_once() -> None:
    server = make("int4")
    session = entered(server, "a")
    exchange(server, session, numbers(0))
    lost = session.push(numbers(1))
    server.handle("a", lost, 1.0)
    say(server, session, session.hello())
    say(server, session, session.join(PAIR))
    again, _ = exchange(server, session, numbers(2))
    assert (again.sequence, again.encoding) == (lost.sequence, "")
    assert server.exchanges == 2
    assert exchange(server, session, numbers(3))[0].encoding == "", "it has learned from an older θ"
    assert exchange(server, session, numbers(4))[0].encoding == "int4"


#: What becomes of a push: it is answered, it is lost, its reply is lost.
FATES = st.lists(st.sampled_from(["answered", "push lost", "reply lost"]), min_size=1, max_size=12)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(ENCODINGS), FATES, st.integers(0, 2**32 - 1))
def test_of_differences_nothing_is_lost_or_counted_twice_whatever_the_line_loses(
    encoding: str, fates: list[str], seed: int
) -> None:
    """θ_P and what the child has not said yet are all that was learned, to a rounding error."""
    server = make(encoding, **{"parent.rule": "difference", "parent.alpha": 1.0})
    session = entered(server, "a")
    exchange(server, session, numbers(0))
    generator = np.random.default_rng(seed)
    ours = numbers(0).astype(np.float64)
    learned = ours.copy()
    for fate in fates:
        step = generator.normal(size=PAIR.size) * 10.0 ** generator.integers(-4, 1)
        step[-5:] = 0.0
        ours += step
        learned += step
        if fate != "answered":
            lost = session.push(ours.astype(DTYPE))
            if fate == "reply lost":
                server.handle("a", decode_request(encode(lost)), 1.0)
            say(server, session, session.hello())
            say(server, session, session.join(PAIR))
        push, decision = exchange(server, session, ours.astype(DTYPE))
        assert (push.kind, push.encoding) == ("difference", encoding)
        assert decision.sent is not None and decision.vector is not None
        ours += decision.vector.astype(np.float64) - decision.sent
        base = session._base.vector
        theirs = server.children["a"].delta
        assert base is not None and theirs is not None and theirs.parent is not None
        assert base.tobytes() == theirs.parent.tobytes()
        assert server.trial.vector is not None
        unsaid = ours - base
        assert server.exchanges == push.sequence >= session.version
        # After a difference that was sent again it has learned more from its old base.
        assert session.version == push.sequence or fate != "answered"
        assert np.abs(server.trial.vector + unsaid - learned)[:-5].max() < 1e-4


def test_gradients_travel_whole_and_weights_come_back_in_fewer_bytes() -> None:
    server = make(
        "int4",
        **{"parent.rule": "gradient", "child.exchange": "update"},
        **{"optimizer.name": "sgd", "optimizer.learning_rate": 0.5},
    )
    session = entered(server, "a")
    exchange(server, session, numbers(0))
    slope = np.ones(PAIR.size - 5, DTYPE)
    for version in range(1, 4):
        push = session.push(numbers(0), slope)
        assert (push.kind, push.encoding, push.version) == ("gradient", "", version)
        reply = server.handle("a", decode_request(encode(push)), 1.0)
        assert isinstance(reply, Weights) and reply.encoding == "int4"
        decision = session.receive(push, reply)
        assert isinstance(decision, BlendReply) and decision.vector is not None
        wanted = (numbers(0)[:-5] - 0.5 * version).tolist()
        assert server.trial.vector is not None
        assert server.trial.vector[:-5].tolist() == pytest.approx(wanted, abs=1e-5)
        # All numbers have gone as far, so int4 says it exactly.
        assert decision.vector[:-5].tolist() == pytest.approx(wanted, abs=1e-5)


class Silent(BlendRule):
    """A pull brings news only while `news` is set."""

    news = True

    def pull(self, parent: Vector, child: str) -> bool:
        return self.news


def test_what_a_child_pulls_is_a_difference_and_its_next_push_goes_on_from_it() -> None:
    experiment = Experiment().with_settings({"parent.encoding": "int8"})
    rule = Silent(0.5)
    server = ParameterServer(experiment, trials=SingleTrialRun(experiment, rule))
    one, two = entered(server, "a"), entered(server, "b")
    exchange(server, one, numbers(0))
    exchange(server, one, numbers(1))
    exchange(server, two, numbers(2))
    reply = server.handle("a", Pull(), 1.0)
    assert isinstance(reply, Weights) and reply.encoding == "int8"
    decision = one.receive(Pull(), reply)
    assert isinstance(decision, BlendReply) and decision.sent is None
    assert decision.vector is not None and near(server, decision.vector, 0.04)
    line = server.children["a"].delta
    assert line is not None and line.parent is not None
    # It keeps what the encoding of its last push has lost, for the next one.
    lost = decision.vector - line.parent
    assert 0.0 < np.abs(lost).max() < 0.04
    push, _ = exchange(server, one, numbers(3))
    assert (push.version, push.encoding) == (3, "int8")
    exchange(server, two, numbers(3))
    # Nothing new for it: what it pushes next is whole, because both know an older version.
    rule.news = False
    decision = say(server, one, Pull())
    assert isinstance(decision, BlendReply) and decision.vector is None
    push, _ = exchange(server, one, numbers(4))
    assert (push.version, push.encoding) == (5, "")
    push, _ = exchange(server, one, numbers(5))
    assert (push.version, push.encoding) == (6, "int8")


def test_a_parent_that_has_lost_everything_takes_the_childs_weights_whole() -> None:
    server = make("int4")
    session = entered(server, "a")
    exchange(server, session, numbers(0))
    exchange(server, session, numbers(1))
    other = make("int4")
    say(other, session, session.hello())
    say(other, session, session.join(PAIR))
    push, _ = exchange(other, session, numbers(2))
    assert push.encoding == ""
    assert other.trial.vector is not None
    assert other.trial.vector.tobytes() == numbers(2).tobytes()


def test_a_child_that_is_gone_takes_no_memory() -> None:
    server = make("int4")
    exchange(server, entered(server, "a"), numbers(0))
    assert server.children["a"].delta is not None
    server.disconnected("a", "gone", 1.0)
    assert server.children["a"].delta is None
