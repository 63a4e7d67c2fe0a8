"""Whole conversations, compared by value; the test is the clock."""

from __future__ import annotations

import json
import math
from copy import copy
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.errors import ProtocolError
from genkidama.protocol.messages import (
    PROTOCOL,
    Goodbye,
    Hello,
    Join,
    Leave,
    Pull,
    Push,
    Refusal,
    Reply,
    Weights,
    Welcome,
)
from genkidama.protocol.shard import Shard, end_proof
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.server import parameter_server as module
from genkidama.server.child_record import absent_children
from genkidama.server.events import as_lines
from genkidama.server.parameter_server import ParameterServer, Snapshot
from genkidama.server.rules.blend import Blend, Rule, Update
from genkidama.server.trial import SingleTrialRun, Trial

SIGNATURE = Signature.of([("weight", (1, 2)), ("bias", (1,))])
ENTRIES: list[tuple[str, list[int]]] = [("weight", [1, 2]), ("bias", [1])]
NAN, INFINITY = float("nan"), float("inf")


def make(**settings: Any) -> ParameterServer:
    """A server; `parent_alpha=0.5` sets `parent.alpha`. The defaults make sums that are exact."""
    settings = {"parent_alpha": 0.5, **settings}
    return ParameterServer(
        Experiment().with_settings(
            {key.replace("_", ".", 1): value for key, value in settings.items()}
        ),
        run="run-1",
    )


def vector(*numbers: float) -> np.ndarray:
    return np.array(numbers, DTYPE)


def hello(name: str, session: str = "s1") -> Hello:
    return Hello(protocol=PROTOCOL, name=name, session=session)


def join() -> Join:
    return Join(signature=ENTRIES)


def push(
    sequence: int,
    *numbers: float,
    version: int = 0,
    steps: int = 0,
    returns: tuple[float, ...] = (),
) -> Push:
    return Push(
        version=version,
        sequence=sequence,
        steps=steps,
        returns=list(returns),
        vector=vector(*numbers),
    )


def enter(server: ParameterServer, *names: str, now: float = 0.0, session: str = "s1") -> None:
    """Children say hello and join; what that notes is thrown away."""
    for name in names:
        assert isinstance(server.handle(name, hello(name, session), now), Welcome)
        assert isinstance(server.handle(name, join(), now), Weights)
    lines(server)


def lines(server: ParameterServer) -> list[dict[str, Any]]:
    """What happened since the last call, as the history has it."""
    return [json.loads(as_lines([event])) for event in server.take_events()]


def heard(reply: Reply) -> tuple[Reply, list[float] | None]:
    """A reply as something that `==` compares."""
    if isinstance(reply, Weights) and reply.vector is not None:
        return msgspec.structs.replace(reply, vector=None), reply.vector.tolist()
    return reply, None


def state(server: ParameterServer, now: float) -> tuple[Any, ...]:
    """Everything that a refused message must leave as it was."""
    trial = server.trial
    weights = None if trial.vector is None else trial.vector.tobytes()
    return (
        weights,
        trial.signature,
        server.snapshot(now),
        {name: copy(record) for name, record in server.children.items()},
        server.stop,
        server.progress(now),
    )


def test_a_run_of_two_children_from_hello_to_goodbye() -> None:
    server = make(stop_updates=2)
    experiment = server.experiment.to_dict()
    conversation: list[tuple[float, str, Any, Reply, list[float] | None]] = [
        (10, "", hello("a"), Welcome(protocol=PROTOCOL, experiment=experiment, run="run-1"), None),
        (
            11,
            "a",
            join(),
            Weights(version=0),
            None,
        ),  # no vector: the parent has none and asks for the child's
        (
            12,
            "a",
            push(1, 8, 0, 4, steps=100, returns=(1.0, 2.0)),
            Weights(version=1, progress=0.5),
            [8, 0, 4],
        ),
        (13, "", hello("b"), Welcome(protocol=PROTOCOL, experiment=experiment, run="run-1"), None),
        (14, "b", join(), Weights(version=1, progress=0.5), [8, 0, 4]),
        (
            15,
            "b",
            push(1, 0, 8, 4, version=1, steps=50, returns=(6.0,)),
            Weights(version=2, progress=0.75),
            [4, 4, 4],
        ),
        (
            16,
            "a",
            push(2, 0, 0, 0, version=1, steps=10),
            Weights(version=3, progress=1.0, stop="2 exchanges a child done"),
            [2, 2, 2],
        ),
        (
            17,
            "a",
            push(3, 9, 9, 9, version=3),
            Weights(version=3, progress=1.0, stop="2 exchanges a child done"),
            [2, 2, 2],
        ),
        (18, "a", Leave(reason="the run\x1bis over"), Goodbye(), None),
        (19, "b", Leave(), Goodbye(), None),
    ]
    for now, child, message, reply, numbers in conversation:
        assert heard(server.handle(child, message, now)) == (reply, numbers)
    assert lines(server) == [
        {"time": 11, "event": "join", "child": "a", "version": 0, "parameters": 3},
        exchange(
            12, "a", version=1, update=1.0, staleness=0, episodes=2, steps=100, mean_return=1.5
        ),
        {"time": 14, "event": "join", "child": "b", "version": 1, "parameters": 3},
        exchange(
            15,
            "b",
            version=2,
            update=1.5,
            staleness=0,
            episodes=3,
            steps=150,
            mean_return=3.0,
            distance=pytest.approx(np.sqrt(128 / 80)),  # |(−8, 8, 0)| / |(8, 0, 4)|
        ),
        exchange(
            16,
            "a",
            version=3,
            update=2.0,
            staleness=1,
            episodes=3,
            steps=160,
            mean_return=3.0,
            distance=1.0,
        ),
        {"time": 16, "event": "stop", "reason": "2 exchanges a child done", "version": 3},
        {"time": 18, "event": "leave", "child": "a", "reason": "the run is over"},
        {"time": 19, "event": "leave", "child": "b", "reason": "left"},
    ]
    assert lines(server) == []
    assert server.snapshot(20) == Snapshot(
        version=3,
        exchanges=3,
        updates=2.0,
        episodes=3,
        steps=160,
        seconds=9,
        alpha=0.5,
        beta=0.5,
        mean_return=3.0,
        returns=[1.0, 2.0, 6.0],
        children={
            "a": {"exchanges": 2, "episodes": 2, "steps": 110},
            "b": {"exchanges": 1, "episodes": 1, "steps": 50},
        },
        sessions={"a": ("s1", 2), "b": ("s1", 1)},
        experiment=experiment,
    )
    assert not server.refusals


def exchange(time: float, child: str, **details: Any) -> dict[str, Any]:
    return {"time": time, "event": "exchange", "child": child, **details}


# The weights.


def test_a_parent_without_weights_takes_the_first_childs_as_a_copy() -> None:
    server = make(parent_alpha=0.1)
    enter(server, "a")
    mine = vector(1, 2, 3)
    mine.flags.writeable = False  # as a decoded message's is
    assert heard(server.handle("a", Push(version=0, sequence=1, vector=mine), 1)) == (
        Weights(version=1),
        [1, 2, 3],
    )
    mine.flags.writeable = True
    mine[:] = 9
    assert server.trial.vector is not None
    assert server.trial.vector.tolist() == [1, 2, 3]
    server.handle("a", push(2, 1, 2, 3, version=1), 2)  # and can be blended into


def test_staleness_counts_the_pushes_since_the_childs_version() -> None:
    server = make()
    enter(server, "a", "b", "c")
    for now, (child, version) in enumerate([("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 4)]):
        server.handle(child, push(now + 1, 0, 0, 0, version=version), now)
    assert [(event["version"], event["staleness"]) for event in lines(server)] == [
        (1, 0),
        (2, 1),
        (3, 2),
        (4, 2),
        (5, 0),
    ]


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_updates_are_exchanges_per_child_that_takes_part(pushers: list[str]) -> None:
    server = make()
    enter(server, "a", "b", "c")
    for sequence, child in enumerate(pushers, 1):
        server.handle(child, push(sequence, 0, 0, 0), sequence)
    assert server.exchanges == len(pushers) == server.trial.version
    assert server.updates == len(pushers) / 3
    assert {name: record.exchanges for name, record in server.children.items()} == {
        name: pushers.count(name) for name in "abc"
    }


def test_children_under_new_names_do_not_set_the_updates_back() -> None:
    server = make(stop_updates=40)
    told = []
    for number in range(60):  # pods that are replaced, each under a name of its own
        name = f"pod-{number}"
        enter(server, name)
        reply = server.handle(name, push(1, 0, 0, 0), number)
        assert isinstance(reply, Weights)
        told.append((server.updates, reply.progress))
        if reply.stop:
            break
        server.disconnected(name, "gone", number)
    assert told == sorted(told)
    assert server.stop == "40 exchanges a child done"
    assert server.exchanges == 40


def test_a_child_that_only_says_hello_takes_no_part() -> None:
    server = make()
    enter(server, "a")
    server.handle("", hello("b"), 0)
    server.handle("a", push(1, 0, 0, 0), 1)
    assert server.updates == 1.0
    enter(server, "b")
    server.handle("b", push(1, 0, 0, 0), 2)
    assert server.updates == 1.5
    server.handle("b", Leave(), 3)
    server.handle("a", push(2, 0, 0, 0), 4)
    assert server.updates == 2.5


class Gradient(Rule):
    """A push is a gradient, which cannot become θ_P."""

    def start(self, push: Update) -> None:
        return None

    def apply(self, parent: Vector, push: Update) -> None:
        self.seen = msgspec.structs.astuple(push)[1:]
        parent -= push.vector


def test_a_rule_is_told_what_a_push_brings() -> None:
    experiment, rule = Experiment(), Gradient()
    server = ParameterServer(experiment, trials=SingleTrialRun(experiment, rule))
    enter(server, "a")
    before = state(server, 1)
    refused = server.handle("a", push(1, 1, 1, 1), 1)
    assert refused == Refusal(
        code="order",
        reason="child 'a' pushes before the parent has weights, and this push cannot become them",
    )
    assert state(server, 1) == before
    fifth = msgspec.structs.replace(server.snapshot(1), version=5)
    server.restore(fifth, SIGNATURE, vector(1, 2, 3))
    enter(server, "a", "b")
    server.handle("b", push(1, 0, 0, 0), 2)
    reply = server.handle("a", push(1, 1, 1, 1, version=3, steps=7), 3)
    assert heard(reply) == (Weights(version=7), [0, 1, 2])
    assert rule.seen == (3, 3, 7, "a", 2, 3, 0.0, None, 0, math.sqrt(3), None)


def test_a_pull_gives_the_weights_and_counts_nothing() -> None:
    server = make()
    enter(server, "a", "b")
    reply = server.handle("b", Pull(), 1.0)
    assert heard(reply) == (Weights(version=0), None)
    server.handle("a", push(1, 4.0, 4.0, 4.0), 2.0)
    before = state(server, 3.0)
    assert heard(server.handle("b", Pull(), 3.0)) == (Weights(version=1), [4.0] * SIGNATURE.size)
    assert state(server, 3.0) == before


def test_a_rule_says_what_is_news_to_a_child_and_how_much_to_bring() -> None:
    class Fresh(Blend):
        def __init__(self) -> None:
            super().__init__(0.5)
            self.gone: list[str] = []

        def share(self, child: str, children: int) -> int:
            return len(child) + 10 * children

        def pull(self, parent: np.ndarray, child: str) -> bool:
            parent += 1.0
            return child != "bb"

        def forget(self, child: str) -> None:
            self.gone.append(child)

    rule = Fresh()
    settings = Experiment()
    server = ParameterServer(settings, trials=SingleTrialRun(settings, rule))
    enter(server, "a", "bb")
    server.handle("a", push(1, 4.0, 4.0, 4.0), 2.0)
    first = server.handle("a", Pull(), 3.0)
    assert isinstance(first, Weights)
    assert first.steps == 21
    assert first.vector is not None
    assert first.vector.tolist() == [5.0] * SIGNATURE.size
    second = server.handle("bb", Pull(), 3.0)
    assert isinstance(second, Weights)
    assert (second.steps, second.vector) == (22, None)
    rule.gone.clear()
    server.disconnected("a", "gone", 4.0)
    assert rule.gone == ["a"]


@pytest.mark.parametrize(
    ("kind", "number", "reason"),
    [
        *[
            (kind, number, reason)
            for kind in ("weights", "difference", "gradient")
            for number, reason in (
                (1e14, ""),
                (1e20, "numbers no network has: their norm is 1e+20, at most 1e+15"),
                (NAN, "NaN or infinity"),
            )
        ],
        ("experience", 1e20, ""),
        ("experience", NAN, "NaN or infinity"),
    ],
)
def test_what_a_rule_takes_is_finite_and_has_a_length_unless_it_is_experience(
    kind: Any, number: float, reason: str
) -> None:
    class Taking(Blend):
        takes = kind

    experiment = Experiment()
    server = ParameterServer(experiment, trials=SingleTrialRun(experiment, Taking(0.5)))
    server.restore(server.snapshot(0), SIGNATURE, vector(0, 0, 0))
    enter(server, "a")
    message = push(1, number, 0, 0)
    message.kind = kind
    reply = server.handle("a", message, 1)
    if reason:
        assert reply == Refusal(code="finite", reason=f"child 'a' pushes {reason}")
    else:
        assert heard(reply) == (Weights(version=1), [DTYPE.type(number / 2), 0, 0])


def test_a_search_needs_trials_of_its_own() -> None:
    space = {"algorithm.gamma": [0.9, 0.99]}
    plan = {"trials": 2, "phases": 2, "phase_steps": 1, "space": space}
    with pytest.raises(ValueError, match="give trials=Search"):
        ParameterServer(Experiment.from_dict({"search": plan}))


def test_a_repeated_push_is_answered_but_not_counted_again() -> None:
    server = make()
    enter(server, "a", "b")
    server.handle("a", push(1, 4, 4, 4, returns=(1.0,), steps=5), 1)
    server.handle("b", push(1, 0, 0, 0), 2)
    before = state(server, 3)
    lines(server)
    for _ in range(2):
        assert heard(server.handle("a", push(1, 4, 4, 4, returns=(1.0,), steps=5), 3)) == (
            Weights(version=2),
            [2, 2, 2],
        )
    assert (state(server, 3), lines(server)) == (before, [])
    server.handle("a", push(9, 2, 2, 2), 4)  # a gap is no fault
    assert server.trial.version == 3
    for sequence in (9, 5, 2):
        server.handle("a", push(sequence, 8, 8, 8), 5)
    assert server.trial.version == 3


# Who is there.


def test_a_name_in_use_is_refused_and_free_again_after_the_connection_is_gone() -> None:
    server = make()
    enter(server, "pi")
    assert server.handle("", hello("pi", "s2"), 1) == Refusal(
        code="name", reason="the name 'pi' is in use by another child; give this one another name"
    )
    server.disconnected("pi", "timed out", 2)
    server.disconnected("pi", "timed out", 3)
    server.disconnected("nobody", "timed out", 3)
    assert server.connected == []
    assert isinstance(server.handle("", hello("pi", "s2"), 4), Welcome)
    assert server.connected == ["pi"]
    assert lines(server) == [
        {
            "time": 1,
            "event": "refused",
            "child": "",
            "code": "name",
            "reason": "the name 'pi' is in use by another child; give this one another name",
        },
        {"time": 2, "event": "leave", "child": "pi", "reason": "timed out"},
    ]


def test_the_same_session_may_return_before_its_old_connection_is_known_to_be_dead() -> None:
    server = make()
    enter(server, "pi")
    server.handle("pi", push(1, 1, 1, 1), 1)
    enter(server, "pi", now=2)
    assert heard(server.handle("pi", push(1, 1, 1, 1), 3)) == (
        Weights(version=1),
        [1, 1, 1],
    )  # its reply had been lost
    assert server.handle("pi", push(2, 1, 1, 1), 4).version == 2  # type: ignore[union-attr]
    assert server.children["pi"].exchanges == 2


def test_a_child_whose_episodes_never_end_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genkidama.server.child_record.ENDLESS_STEPS", 50)
    server = make()
    server.handle("a", hello("a"), 0.0)
    server.handle("a", msgspec.structs.replace(join(), cores=2), 0.0)
    warned = []
    for number in range(1, 13):
        returns = (1.0,) if number == 6 else ()
        server.handle("a", push(number, 0.0, 0.0, 0.0, steps=30, returns=returns), float(number))
        warned += [line for line in lines(server) if line["event"] == "warning"]
    reason = "a: no episode has ended in 120 steps, so there is no return"
    reason += "; environment.wrappers can set a limit"
    assert warned == [{"event": "warning", "time": at, "reason": reason} for at in (4.0, 10.0)]


def test_no_more_children_than_are_allowed_but_each_may_return() -> None:
    server = make(parent_max_children=2)
    enter(server, "a", "b")
    full = Refusal(code="full", reason="parent.max_children = 2: so many are connected already")
    assert server.handle("", hello("c"), 1) == full
    assert isinstance(server.handle("", hello("a"), 2), Welcome)
    server.disconnected("a", "gone", 3)
    assert isinstance(server.handle("", hello("c"), 4), Welcome)
    assert server.handle("", hello("a"), 5) == full
    assert set(server.children) == {"b", "c"}  # who has never pushed is forgotten


def test_work_alone_counts_in_a_run_with_running_statistics() -> None:
    server = make()
    entries = [*ENTRIES, ("statistics.observations", [5])]
    server.handle("a", hello("a"), 0.0)
    server.handle("a", Join(signature=entries), 0.0)
    work = Push(version=0, sequence=1, steps=7, kind="work")
    assert isinstance(server.handle("a", work, 1.0), Weights)
    assert server.trial.steps == 7


def test_a_network_may_be_another_while_nobody_has_one_and_nothing_was_pushed() -> None:
    server = make()
    other = Join(signature=[("weight", [4])])
    enter(server, "a", "b")
    server.handle("", hello("c"), 0)
    for name in "ab":
        assert isinstance(server.handle("c", other, 1), Refusal)
        server.disconnected(name, "gone", 2)
    assert isinstance(server.handle("c", other, 3), Weights)
    assert isinstance(server.handle("c", push(1, 1, 2, 3, 4), 4), Weights)
    server.disconnected("c", "gone", 5)
    server.handle("", hello("a"), 6)
    assert isinstance(server.handle("a", join(), 7), Refusal)


@pytest.mark.parametrize(
    ("over", "knows", "absent"),
    [
        (False, {}, ["a"]),
        (False, {"knows": True}, ["a"]),
        (True, {}, ["a"]),
        (True, {"knows": True}, []),
    ],
)
def test_a_child_that_took_part_is_waited_for_until_it_knows_that_all_is_over(
    over: bool, knows: dict[str, bool], absent: list[str]
) -> None:
    server = make()
    enter(server, "a", "b")
    server.handle("a", push(1, 1, 2, 3), 1)
    if over:
        server.command("stop", "anna", 2)
    server.disconnected("b", "it has brought nothing", 2)
    server.disconnected("a", "gone", 2, **knows)
    assert absent_children(server.children) == absent


# Trials that children do not share.


class OwnTrials(SingleTrialRun):
    """Two trials, for the first two children; a third one waits."""

    shared, wait = False, 7.0

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self.of: dict[str, Trial] = {}
        self.diverging: list[int | None] = []

    def assign(self, child: str, now: float, training: int | None) -> Trial:
        if child not in self.of and len(self.of) < 2:
            settings = self.trial.experiment
            self.of[child] = Trial(window=1, number=len(self.of), experiment=settings)
        return self.of.get(child)  # type: ignore[return-value]

    def owns(self, child: str, trial: Trial) -> bool:
        return self.of.get(child) is trial

    def diverged(self, trial: Trial, now: float) -> None:
        self.diverging.append(trial.number)
        trial.stop = "it has diverged"


def searching() -> tuple[ParameterServer, OwnTrials]:
    """A server of such trials, whose first two children have joined."""
    experiment = Experiment()
    trials = OwnTrials(experiment)
    server = ParameterServer(experiment, trials=trials)
    enter(server, "a", "b")
    return server, trials


def own(message: Push, trial: int) -> Push:
    return msgspec.structs.replace(message, trial=trial)


def test_a_child_with_a_trial_of_its_own_has_its_weights_and_is_not_sent_them() -> None:
    server, trials = searching()
    for version in (1, 2):
        reply = server.handle("b", own(push(version, 1, 2, 3), 1), version)
        assert heard(reply) == (Weights(version=version), None)
    assert heard(server.handle("b", Pull(), 3)) == (Weights(version=2), [1, 2, 3])
    assert heard(server.handle("b", join(), 4)) == (Weights(version=2), [1, 2, 3])
    assert heard(server.handle("a", Pull(), 5)) == (Weights(version=0), None)
    assert isinstance(server.handle("a", own(push(1, 1, 2, 3), 1), 6), Refusal)
    assert trials.trial.version == 0
    assert [line.get("trial") for line in lines(server)] == [1, 1, 1, None]


def test_a_child_without_a_trial_is_told_how_long_to_wait() -> None:
    server, trials = searching()
    settings = trials.trial.experiment
    told = {"protocol": PROTOCOL, "part": "1/1"}
    assert server.handle("", hello("c"), 1) == Welcome(**told, experiment={}, wait=7.0)
    assert server.handle("", hello("b"), 1) == Welcome(**told, experiment=settings, trial=1)
    for message in (join(), Pull(), push(1, 1, 2, 3), Leave()):
        assert server.handle("c", message, 2) == Refusal(code="order", reason=EARLY)
    server.disconnected("c", "gone", 3)
    assert server.connected == ["a", "b"]
    server.command("stop", "anna", 4)
    over = {"experiment": settings, "stop": "stopped by anna"}
    assert server.handle("", hello("c"), 5) == Welcome(**told, **over)


def test_a_trial_that_diverges_is_over_and_told_so_once() -> None:
    server, trials = searching()
    server.handle("a", own(push(1, 1, 2, 3, steps=1), 0), 1)
    over = Weights(version=1, stop="it has diverged", next=True)
    for sequence, number in ((2, NAN), (3, NAN), (4, 1.0)):
        message = own(push(sequence, number, 2, 3, steps=1), 0)
        assert heard(server.handle("a", message, sequence)) == (over, None)
    assert trials.diverging == [0]
    assert (server.exchanges, trials.of["a"].steps) == (1, 1)
    # The end of the run is for all, and has the last word.
    server.command("stop", "anna", 5)
    for name, version, number in (("a", 1, 0), ("b", 0, 1)):
        message = own(push(5, NAN, 2, 3), number)
        reply = Weights(version=version, stop="stopped by anna")
        assert heard(server.handle(name, message, 6)) == (reply, None)
    assert trials.diverging == [0]


def test_a_child_is_idle_unless_it_has_a_trial_that_goes_on() -> None:
    server, trials = searching()
    server.handle("", hello("c"), 1)
    assert {name: server.idle(name) for name in ("a", "b", "c", "nobody")} == {
        "a": False,
        "b": False,
        "c": True,
        "nobody": True,
    }
    trials.of["a"].stop = "it has ended"
    assert (server.idle("a"), server.idle("b")) == (True, False)
    trials.of["c"] = trials.of.pop("b")  # it was given to another child
    assert server.idle("b")
    server.disconnected("c", "gone", 2)
    assert server.idle("c")


# Parts of a parent.


def part_of(number: int, count: int = 2, secret: str = "word") -> ParameterServer:
    """A part, with one child that has joined."""
    experiment = Experiment().with_settings({"stop.updates": 1})
    part = Shard(number, count)
    server = ParameterServer(experiment, trials=SingleTrialRun(experiment, part=part))
    server.secret = secret
    for name in "ab":
        greeting = msgspec.structs.replace(hello(name), part=str(part))
        assert isinstance(server.handle("", greeting, 0.0), Welcome)
    assert isinstance(server.handle("a", join(), 0.0), Weights)
    lines(server)
    return server


END = "1 exchange a child done"


def proof_of(reason: str = END, updates: int = 1) -> str:
    return end_proof("word", {**Experiment().to_dict()["stop"], "updates": updates}, reason)


def test_the_first_part_says_that_the_run_is_over_and_proves_it() -> None:
    first, second = part_of(1), part_of(2)
    joined = first.handle("b", join(), 0.0)
    assert heard(joined) == (Weights(version=0), None)
    first.handle("b", Leave(), 0.0)
    proof = proof_of()
    over = Weights(version=1, progress=1.0, stop=END, proof=proof)
    assert heard(first.handle("a", push(1, 4), 1.0)) == (over, [4])
    welcome = first.handle("", msgspec.structs.replace(hello("c"), part="1/2"), 2.0)
    assert isinstance(welcome, Welcome)
    assert (welcome.stop, welcome.proof, welcome.part) == (END, proof, "1/2")
    lines(second)
    # The second goes on until a child brings it, and proves nothing itself.
    going_on = Weights(version=1, progress=1.0)
    assert heard(second.handle("a", push(1, 4, 4), 1.0)) == (going_on, [4, 4])
    leave = Leave(reason=END, over=True, proof=proof)
    for name in "ab":
        assert second.handle(name, leave, 3.0) == Goodbye()
    assert [line["event"] for line in lines(second)] == ["exchange", "stop", "leave", "leave"]
    assert (second.stop, second.refusals.total()) == (END, 0)
    late = second.handle("", msgspec.structs.replace(hello("a"), part="2/2"), 4.0)
    assert isinstance(late, Welcome)
    assert (late.stop, late.proof) == (END, "")


@pytest.mark.parametrize(
    ("number", "secret", "over", "proof", "refused"),
    [
        (2, "word", True, proof_of("another reason"), True),
        (2, "word", True, proof_of(updates=2), True),
        (2, "word", True, "", True),
        (2, "word", True, "ψ" * 64, True),
        (2, "", True, "", True),
        (2, "another word", True, proof_of(), True),
        (2, "word", False, proof_of(), False),
        (1, "word", True, proof_of(), False),
    ],
)
def test_without_the_proof_of_the_first_part_a_part_goes_on(
    number: int, secret: str, over: bool, proof: str, refused: bool
) -> None:
    server = part_of(number, secret=secret)
    assert server.handle("a", Leave(reason=END, over=over, proof=proof), 1.0) == Goodbye()
    assert server.stop == ""
    assert server.refusals == ({"part": 1} if refused else {})
    assert server.connected == ["b"]
    said = [line.get("reason", "") for line in lines(server)]
    assert said[-1] == END
    if refused:
        assert said[0].startswith(
            "child 'a' says that the run is over, and has no proof of the first part: part 2/2 "
        )


def test_a_whole_parent_has_nobody_to_prove_its_end_to() -> None:
    server = part_of(1, 1)
    reply = server.handle("a", push(1, 1, 2, 3), 1.0)
    assert heard(reply) == (Weights(version=1, progress=1.0, stop=END), [1, 2, 3])


def test_every_part_compares_the_whole_network() -> None:
    server = part_of(2)
    narrow = Signature.of([("weight", (2, 1)), ("bias", (1,))])  # this part of it is the same
    assert Shard(2, 2).of(narrow) == server.trial.held
    reply = server.handle("b", Join.of(narrow), 0.0)
    assert isinstance(reply, Refusal) and "shape [2, 1], expected 'weight'" in reply.reason


# What is not allowed.


def running() -> ParameterServer:
    """Two children have pushed, a third has said hello only."""
    server = make(parent_max_children=3, parent_max_parameters=100)
    enter(server, "a", "b")
    server.handle("a", push(1, 4, 4, 4, returns=(1.0,), steps=5), 1)
    server.handle("b", push(1, 0, 0, 0, returns=(2.0,), steps=5), 2)
    server.handle("", hello("new"), 3)
    lines(server)
    return server


EARLY = "the first message of a connection is a hello"


@pytest.mark.parametrize(
    ("child", "message", "code", "reason"),
    [
        ("c", push(1, 0, 0, 0), "order", EARLY),
        ("c", Leave(), "order", EARLY),
        ("new", push(1, 0, 0, 0), "order", "child 'new' pushes before it has joined"),
        ("new", Pull(), "order", "child 'new' pulls before it has joined"),
        ("a", push(2, 1, NAN, 3), "finite", "child 'a' pushes NaN or infinity"),
        (
            "a",
            push(2, 1, 2, 3, returns=(1.0, NAN)),
            "finite",
            "child 'a' reports a return that is NaN, infinite or beyond ±1e+30",
        ),
    ],
)
def test_what_is_not_allowed_is_refused_counted_and_changes_nothing(
    child: str, message: Any, code: str, reason: str
) -> None:
    server = running()
    before = state(server, 4)
    assert server.handle(child, message, 4) == Refusal(code=code, reason=reason)
    assert state(server, 4) == before
    assert lines(server) == [
        {"time": 4, "event": "refused", "child": child, "code": code, "reason": reason}
    ]
    assert server.refusals == {code: 1}


def test_a_child_that_was_refused_may_do_better() -> None:
    server = running()
    server.handle("a", push(2, 1, NAN, 3), 4)
    assert heard(server.handle("a", push(2, 4, 4, 4), 5)) == (Weights(version=3), [3, 3, 3])


def test_a_network_whose_size_has_thousands_of_digits_is_refused_like_any_other() -> None:
    server = make()
    server.handle("", hello("a"), 0)
    reply = server.handle("a", Join(signature=[("w", [2**53] * 32)]), 1)
    assert isinstance(reply, Refusal) and reply.code == "signature"


def test_refusals_of_one_code_within_a_second_are_one_event_with_their_count() -> None:
    server = running()
    server.take_events()
    for time, child in enumerate("abc"):
        server.refuse(child, ProtocolError("malformed", f"noise of {child}"), 5 + time / 10)
    server.settle(5.9)
    assert [line["child"] for line in lines(server)] == ["a"]
    server.settle(6.0)
    assert lines(server) == [
        {
            "time": 6.0,
            "event": "refused",
            "child": "c",
            "code": "malformed",
            "reason": "noise of c",
            "count": 2,
        }
    ]
    server.refuse("d", ProtocolError("malformed", "noise of d"), 6.5)
    server.settle(7.5)
    (alone,) = lines(server)
    assert (alone["child"], "count" in alone) == ("d", False)


def test_what_the_shell_refuses_is_counted_with_the_rest() -> None:
    server = make()
    assert server.refuse("1.2.3.4", ProtocolError("malformed", "noise"), 5) == Refusal(
        code="malformed", reason="noise"
    )
    server.refuse("1.2.3.4", ProtocolError("malformed", "noise"), 6)
    assert server.refusals == {"malformed": 2}
    assert lines(server)[0] == {
        "time": 5,
        "event": "refused",
        "child": "1.2.3.4",
        "code": "malformed",
        "reason": "noise",
    }


#: What children may say, well or badly. The numbers after the name are chosen for the moment.
DEEDS = [
    "hello",
    "other session",
    "old protocol",
    "join",
    "other network",
    "push",
    "again",
    "future",
    "short",
    "nan",
    "bad return",
    "leave",
    "cut",
]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(DEEDS), st.integers(0, 3)), max_size=40
    )
)
def test_whatever_is_said_a_refusal_changes_nothing_and_a_push_counts_once(
    deeds: list[tuple[str, str, int]],
) -> None:
    server = make(parent_max_children=2)
    accepted: list[tuple[str, int]] = []  # (child, sequence) in its session
    updates = Fraction(0)
    sessions = dict.fromkeys("abc", 0)
    for now, (child, deed, behind) in enumerate(
        [*[(name, deed, 0) for name in "ab" for deed in ("hello", "join")], *deeds]
    ):
        version = server.trial.version
        sequence = server.children[child].sequence + 1 if child in server.children else 1
        start = max(0, version - behind)
        messages: dict[str, Any] = {
            "hello": hello(child, f"s{sessions[child]}"),
            "other session": hello(child, f"s{sessions[child] + 1}"),
            "old protocol": Hello(protocol=0, name=child, session="s"),
            "join": join(),
            "other network": Join(signature=ENTRIES[::-1]),
            "push": push(sequence, now, 1, -1, version=start, returns=(now,), steps=1),
            "again": push(max(1, sequence - 1), now, 2, 2, version=start, steps=1),
            "future": push(sequence, 1, 1, 1, version=version + 1),
            "short": push(sequence, 1, 1),
            "nan": push(sequence, 1, NAN, 1, version=start),
            "bad return": push(sequence, 1, 1, 1, version=start, returns=(INFINITY,)),
            "leave": Leave(),
        }
        if deed == "cut":
            server.disconnected(child, "cut", now)
            continue
        before = state(server, now)
        refusals = server.refusals.total()
        reply = server.handle(child, messages[deed], now)
        if isinstance(reply, Refusal):
            assert state(server, now) == before
            assert server.refusals.total() == refusals + 1
            continue
        assert deed not in ("old protocol", "future", "short", "nan", "bad return")
        if deed == "other session":
            sessions[child] += 1
        if isinstance(reply, Weights):
            assert reply.version == server.trial.version
            counted = reply.version - version
            assert counted == (deed == "push" or (deed == "again" and sequence == 1))
            if counted:
                accepted.append((child, now))
                updates += Fraction(1, len(server.joined))
                event = lines(server)[-1]
                assert (event["event"], event["staleness"], event["version"]) == (
                    "exchange",
                    version - messages[deed].version,
                    version + 1,
                )
                assert reply.vector is not None and np.isfinite(reply.vector).all()
        assert server.exchanges == server.trial.version == len(accepted)
        assert server.updates == float(updates)
        assert server.trial.steps == sum(record.steps for record in server.children.values())


# The end.


def pushes(
    server: ParameterServer, count: int, returns: tuple[float, ...] = (), now: float = 0
) -> str:
    """Child a pushes so often; the last reply's reason to stop."""
    stop = ""
    for _ in range(count):
        reply = server.handle("a", push(server.trial.version + 1, 0, 0, 0, returns=returns), now)
        assert isinstance(reply, Weights)
        stop = reply.stop
    return stop


def test_stop_after_so_many_seconds_even_if_nobody_pushes() -> None:
    server = make(stop_seconds=2.5)
    server.tick(100)  # time counts from the first join on
    enter(server, "a", now=200)
    server.tick(202.4)
    assert (server.stop, server.seconds(202.4)) == ("", pytest.approx(2.4))
    server.tick(202.5)
    server.tick(203)
    assert server.stop == "2.5 seconds are over"
    assert lines(server) == [
        {"time": 202.5, "event": "stop", "reason": "2.5 seconds are over", "version": 0}
    ]


def test_the_first_reason_stays_and_everybody_is_told() -> None:
    server = make(stop_updates=1, stop_seconds=10)
    enter(server, "a", "b")
    assert (pushes(server, 1), pushes(server, 1)) == ("", "1 exchange a child done")
    server.tick(100)
    assert server.handle("b", push(1, 0, 0, 0), 100).stop == "1 exchange a child done"  # type: ignore[union-attr]
    assert server.handle("", hello("c"), 101).stop == "1 exchange a child done"  # type: ignore[union-attr]
    assert [event["event"] for event in lines(server)] == [
        "exchange",
        "exchange",
        "stop",
    ]  # what comes later is answered, not counted


def test_what_was_judged_waits_for_the_next_line_of_a_thinned_history() -> None:
    server = make(parent_history_every=3)
    enter(server, "a")
    for now, number in enumerate([3.0, 6.0, 9.0, 9.0]):
        server.handle("a", push(now + 1, number, 0, 0), 0.1 * now)
    assert [(event["version"], event["distance"]) for event in lines(server)] == [(3, 1.0)]


def test_no_more_than_so_many_children_are_judged_a_second() -> None:
    server = make(parent_max_children=256)
    names = [f"pi-{number}" for number in range(256)]
    enter(server, *names)
    server.handle("pi-0", push(1, 1, 0, 0), 0.0)
    for number, name in enumerate(names):
        server.handle(name, push(2, 1, 0, 0), 1.0 + number / 256)
    assert sum("distance" in event for event in lines(server)) == 64


def test_the_history_may_be_thinned() -> None:
    server = make(parent_history_every=3)
    enter(server, "a")
    pushes(server, 7)
    assert [event["version"] for event in lines(server)] == [3, 6]


# The measures of a backend.


def measured(sequence: int, **measures: float) -> Push:
    return Push(version=0, sequence=sequence, vector=vector(0, 0, 0), measures=measures)


def test_measures_are_a_line_of_the_history_behind_their_exchange() -> None:
    server = make(child_backend="my.package:Backend")
    enter(server, "a")
    server.handle("a", measured(1, pps=2950.0, tps=590.0), 1)
    server.handle("a", push(2, 0, 0, 0), 2)
    exchanged, measures, second = lines(server)
    assert (exchanged["event"], exchanged["version"], second["event"], second["version"]) == (
        "exchange",
        1,
        "exchange",
        2,
    )
    assert measures == {
        "time": 1,
        "event": "measures",
        "backend": "my.package:Backend",
        "child": "a",
        "pps": 2950.0,
        "tps": 590.0,
    }
    assert not {"pps", "tps", "measures"} & exchanged.keys()


def test_a_measure_may_be_called_like_a_field_of_the_line() -> None:
    server = make(child_backend="ga3c")
    enter(server, "a")
    server.handle("a", measured(1, backend=3.0, pps=1.0), 1)
    line = lines(server)[-1]
    assert (line["backend"], line["pps"]) == ("ga3c", 1.0)


def test_measures_of_a_push_that_is_repeated_refused_or_too_late_are_no_line() -> None:
    server = make(stop_updates=2)
    enter(server, "a")
    replies = [
        server.handle("a", measured(1, pps=1.0), 1),
        server.handle("a", measured(1, pps=1.0), 2),
        server.handle(
            "a", msgspec.structs.replace(measured(2, pps=2.0), vector=vector(NAN, 0, 0)), 3
        ),
        server.handle("a", measured(2, pps=3.0), 4),
        server.handle("a", measured(3, pps=4.0), 5),
    ]
    assert [type(reply) for reply in replies] == [Weights, Weights, Refusal, Weights, Weights]
    assert [event["pps"] for event in lines(server) if event["event"] == "measures"] == [
        1.0,
        3.0,
    ]


def test_measures_are_thinned_child_by_child() -> None:
    server = make(parent_history_every=2)
    enter(server, "a", "b")
    for sequence in range(1, 6):
        for child in "ab":
            server.handle(child, measured(sequence, pps=sequence), sequence)
    events = lines(server)
    assert {event["child"] for event in events if event["event"] == "exchange"} == {
        "b"
    }  # every second of all
    assert [(event["child"], event["pps"]) for event in events if event["event"] == "measures"] == [
        ("a", 2),
        ("b", 2),
        ("a", 4),
        ("b", 4),
    ]


# Going on.


def test_a_restored_server_goes_on_as_the_old_one_would() -> None:
    settings = {"stop_updates": 4, "stop_window": 3}
    old = make(**settings)
    enter(old, "a", "b", now=10)
    old.handle("a", push(1, 4, 0, 4, steps=3, returns=(1.0, 2.0)), 11)
    old.handle("b", push(1, 0, 4, 4, steps=4, returns=(3.0, 4.0)), 12)
    assert old.trial.vector is not None
    # As a checkpoint keeps it.
    kept = msgspec.json.decode(msgspec.json.encode(old.snapshot(14)), type=Snapshot)

    new = make(**settings)
    new.restore(kept, SIGNATURE, old.trial.vector.copy())
    assert new.snapshot(1000) == old.snapshot(14)
    assert (new.connected, new.stop) == ([], "")
    assert new.handle("a", push(2, 0, 0, 0, version=2), 1000) == Refusal(code="order", reason=EARLY)

    replies = []
    for server, now in ((old, 14.0), (new, 1000.0)):
        enter(server, "a", "b", now=now)
        replies.append(
            heard(server.handle("a", push(2, 0, 0, 0, version=2, steps=1, returns=(8.0,)), now + 1))
        )
        replies.append(heard(server.handle("a", push(3, 4, 4, 4, version=2, steps=1), now + 2)))
    assert (
        replies[:2]
        == replies[2:]
        == [
            (Weights(version=3, progress=0.375), [1, 1, 2]),
            (Weights(version=4, progress=0.5), [2.5, 2.5, 3]),
        ]
    )
    assert new.snapshot(1003) == old.snapshot(17)
    assert new.snapshot(1003).returns == [3.0, 4.0, 8.0]
    assert new.snapshot(1003).seconds == 7


def test_a_restored_server_refuses_another_network() -> None:
    server = make()
    server.restore(make().snapshot(0), SIGNATURE, vector(1, 2, 3))
    server.handle("", hello("a"), 0)
    reply = server.handle("a", Join(signature=[("weight", [3])]), 0)
    assert isinstance(reply, Refusal) and reply.code == "signature"
    assert heard(server.handle("a", join(), 0)) == (Weights(version=0), [1, 2, 3])


def test_a_run_that_was_over_is_over_after_a_restart() -> None:
    old = make(stop_updates=1)
    enter(old, "a")
    pushes(old, 1)
    new = make(stop_updates=1)
    new.restore(old.snapshot(5), SIGNATURE, vector(0, 0, 0))
    new.tick(0)
    assert new.stop == "1 exchange a child done"


def test_a_parent_that_lost_everything_takes_the_first_survivors_weights() -> None:
    server = make()
    server.handle("", hello("b"), 0)
    assert heard(server.handle("b", join(), 0)) == (Weights(version=0), None)
    assert heard(server.handle("b", push(41, 5, 6, 7, version=0), 1)) == (
        Weights(version=1),
        [5, 6, 7],
    )


def test_what_a_rule_leaves_out_is_counted_by_child_and_told() -> None:
    settings = {"parent.rule": "gradient", "child.exchange": "update"}
    settings["parent.rule_options"] = {"max_staleness": 0}  # type: ignore[assignment]
    server = ParameterServer(Experiment().with_settings(settings))
    enter(server, "a", "b")
    server.handle("a", push(1, 1, 1, 1, returns=(5.0,), steps=3), 1)
    before = state(server, 1)
    gradient = push(1, 1, 1, 1, version=0, returns=(7.0,), steps=4)
    gradient.kind = "gradient"
    lines(server)
    reply = server.handle("b", gradient, 2)
    assert heard(reply) == (Weights(version=1, progress=0.0), [1, 1, 1])
    (line,) = lines(server)
    assert (line["child"], line["left_out"], line["version"], line["staleness"]) == (
        "b",
        "stale",
        1,
        1,
    )
    assert state(server, 2)[0] == before[0]
    assert (server.exchanges, server.trial.version, server.trial.steps) == (2, 1, 7)
    counts = server.snapshot(2).children
    assert counts["a"] == {"exchanges": 1, "episodes": 1, "steps": 3}
    assert counts["b"] == {"exchanges": 1, "episodes": 1, "steps": 4, "left_out": 1}
    again = ParameterServer(Experiment().with_settings(settings))
    again.restore(server.snapshot(2), SIGNATURE, vector(1, 1, 1))
    assert again.children["b"].left_out == 1
    # The same push again is answered, and not counted again.
    server.handle("b", gradient, 3)
    assert server.snapshot(3).children == counts


def test_children_that_are_gone_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """First those that said goodbye, in their order; nobody who is connected."""
    monkeypatch.setattr(module, "_MOST_NAMES", 3)
    server = make()
    enter(server, "here", "gone", "cut")
    for name in ("here", "gone", "cut"):
        assert isinstance(server.handle(name, push(1, 1.0, 2.0, 3.0), 0.0), Weights)
    server.disconnected("cut", "lost", 0.0)
    server.handle("gone", Leave(), 0.0)
    server.handle("here", hello("here"), 0.0)
    assert server.children.keys() == {"here", "gone", "cut"}  # it has its room
    for newest, left in (("a", {"here", "cut", "a"}), ("b", {"here", "a", "b"})):
        server.handle(newest, hello(newest), 0.0)
        assert server.children.keys() == left
    server.handle("c", hello("c"), 0.0)
    assert len(server.children) == 4  # all are connected, and `max_children` bounds those
    server.disconnected("here", "lost", 0.0)
    server.handle("d", hello("d"), 0.0)
    assert server.children.keys() == {*"abcd"}
