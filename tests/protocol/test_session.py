"""What a child makes of its parent's replies, by value; the test is the line between the two."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import genkidama
from genkidama.config import plugin
from genkidama.config.experiment import Experiment
from genkidama.errors import (
    ConfigurationError,
    EnvironmentFailure,
    GenkidamaError,
    ProtocolError,
)
from genkidama.protocol.delta import Encoding, ParentDelta
from genkidama.protocol.messages import (
    PROTOCOL,
    Goodbye,
    Hello,
    Join,
    Kind,
    Leave,
    Pull,
    Push,
    Refusal,
    Reply,
    Request,
    Weights,
    Welcome,
    decode_reply,
    decode_request,
    encode,
)
from genkidama.protocol.session import (
    Begin,
    BlendReply,
    Decision,
    DeltaBase,
    Keep,
    LeftOut,
    Over,
    Renamed,
    RequestRefused,
    Reset,
    Session,
    Train,
    Wait,
    Work,
    check_same,
)
from genkidama.protocol.shard import Shard
from genkidama.protocol.vector import DTYPE, Signature

SIGNATURE = Signature.of([("weight", (1, 2)), ("bias", (1,))])
JOIN = Join(signature=[("weight", [1, 2]), ("bias", [1])])
EXPERIMENT = Experiment().with_settings({"child.beta": 0.25})
PARENT = "ws://parent:1"
NAN, INFINITY = float("nan"), float("inf")


def vector(*numbers: float) -> np.ndarray:
    return np.array(numbers, DTYPE)


OURS, THEIRS = vector(1, 2, 3), vector(4, 5, 6)


def welcome(experiment: Experiment = EXPERIMENT, **fields: Any) -> Welcome:
    fields = {"run": "run-1", **fields}
    return Welcome(protocol=PROTOCOL, experiment=experiment.to_dict(), **fields)


def heard(refusal: Refusal) -> Reply:
    """The refusal as it arrives."""
    return decode_reply(encode(refusal))


def new(**options: Any) -> Session:
    return Session("pi", "word", parent=PARENT, **options)


def told(trial: int | None = None) -> Session:
    """A session that knows what to train."""
    session = new()
    session.receive(session.hello(), welcome(trial=trial))
    return session


def joined(version: int = 0, trial: int | None = None) -> Session:
    """A session that may push."""
    session = told(trial)
    session.receive(session.join(SIGNATURE), Weights(version=version, vector=THEIRS))
    return session


def state(session: Session) -> dict[str, Any]:
    return deepcopy(vars(session))


def carried(push: Push) -> tuple[int, int, list[float], dict[str, float]]:
    """What a push says beside its weights and their version."""
    return push.sequence, push.steps, push.returns, push.measures


def hello(trial: int | None = None, name: str = "pi") -> Hello:
    return Hello(
        protocol=PROTOCOL,
        name=name,
        session="word",
        software=genkidama.__version__,
        trial=trial,
        encodings=["float16", "int8", "int4"],
    )


def test_a_run_from_hello_to_leave() -> None:
    session = new()
    assert session.hello() == hello()
    assert session.receive(hello(), welcome()) == Train(EXPERIMENT)
    assert session.join(SIGNATURE) == JOIN
    begin = session.receive(JOIN, Weights(version=4, progress=0.1, vector=THEIRS))
    assert begin == Begin(version=4, progress=0.1)
    assert begin.vector is THEIRS  # type: ignore[union-attr]
    assert session.add_work(30, [1.0, 2.0], {"pps": 250.0}) == LeftOut()
    push = session.push(OURS)
    assert carried(push) == (1, 30, [1.0, 2.0], {"pps": 250.0})
    assert (push.version, push.trial) == (4, None)
    assert push.vector is OURS
    blend = session.receive(push, Weights(version=6, progress=0.9, vector=THEIRS))
    assert blend == BlendReply(progress=0.9)
    assert blend.sent is OURS and blend.vector is THEIRS  # type: ignore[union-attr]
    assert session.over is None
    push = session.push(OURS)
    assert carried(push) == (2, 0, [], {})
    assert push.version == 6
    # The last reply is blended, too.
    assert session.receive(
        push, Weights(version=7, progress=1.0, stop="7 exchanges a child done")
    ) == BlendReply(1.0)
    assert session.over == Over("7 exchanges a child done")
    assert session.leave() == Leave(reason="7 exchanges a child done")


# What a welcome means.


@pytest.mark.parametrize(
    ("reply", "decision"),
    [
        (welcome(), Train(EXPERIMENT)),
        (welcome(trial=7), Train(EXPERIMENT)),
        (Welcome(protocol=PROTOCOL, experiment={}, wait=0.2), Wait(0.2)),
        (welcome(stop="10 seconds are over"), Over("10 seconds are over")),
    ],
)
def test_the_first_welcome(reply: Welcome, decision: Decision) -> None:
    session = new()
    assert session.receive(session.hello(), reply) == decision
    assert session.trial == reply.trial
    assert session.hello() == hello(trial=reply.trial)
    assert session.over == (decision if isinstance(decision, Over) else None)


def test_a_child_waits_as_often_as_it_is_told_to() -> None:
    session = new()
    wait = Welcome(protocol=PROTOCOL, experiment={}, wait=2.0)
    for _ in range(3):
        assert session.receive(session.hello(), wait) == Wait(2.0)
    assert session.receive(session.hello(), welcome(trial=0)) == Train(EXPERIMENT)


@pytest.mark.parametrize("protocol", [1, 3])
@pytest.mark.parametrize("session", [new(), joined()], ids=["first", "again"])
def test_a_parent_that_speaks_another_protocol(session: Session, protocol: int) -> None:
    with pytest.raises(
        EnvironmentFailure,
        match=f"^{PARENT} speaks protocol {protocol}, this child 2; install the same version$",
    ):
        session.receive(session.hello(), Welcome(protocol=protocol, experiment={}))


def test_a_parent_that_is_another_part_than_the_child_takes_it_for() -> None:
    session = new(part=Shard(2, 3))
    assert session.hello().part == "2/3"
    for part in ("1/1", "1/3", "3/3", "2/4"):
        words = f"^{PARENT} is part {part} of a parent, this child takes it for part 2/3; list the"
        with pytest.raises(EnvironmentFailure, match=words):
            session.receive(session.hello(), welcome(part=part))
    assert session.receive(session.hello(), welcome(part="2/3")) == Train(EXPERIMENT)


def test_an_experiment_that_this_version_cannot_read() -> None:
    newer = Welcome(protocol=PROTOCOL, experiment={"algorithm": {"newer": 1}})
    session = new()
    with pytest.raises(
        ConfigurationError, match=rf"^the experiment of {PARENT}: algorithm\.newer = 1: no such"
    ):
        session.receive(session.hello(), newer)


@pytest.mark.parametrize(
    ("trial", "reply", "decision"),
    [
        (None, welcome(), JOIN),
        (700, welcome(trial=int("700"), run="run-" + str(1)), JOIN),
        # A plain run that is over says so again in the reply to the join.
        (None, welcome(stop="3 exchanges a child done"), JOIN),
        (7, welcome(stop="all trials are done"), Over("all trials are done")),
        (7, welcome(trial=8), Over("another child trains it now", next=True)),
        (7, welcome(), Over("another child trains it now", next=True)),
        (
            7,
            Welcome(protocol=PROTOCOL, experiment={}, run="run-1", wait=0.2),
            Over("another child trains it now", next=True),
        ),
        (None, welcome(trial=8), Over("another child trains it now", next=True)),
        # Its trial has that number in another search, of which it must begin one anew.
        (7, welcome(trial=7, run="run-2"), Over(f"{PARENT} has another run now", next=True)),
        (7, welcome(trial=7, run="run-0"), Over(f"{PARENT} has another run now", next=True)),
        (7, welcome(trial=8, run="run-2"), Over(f"{PARENT} has another run now", next=True)),
        (7, welcome(run="run-2"), Over(f"{PARENT} has another run now", next=True)),
        # A parent that has lost its directory takes the weights of a plain run.
        (None, welcome(run="run-2"), JOIN),
    ],
)
def test_a_welcome_to_a_child_that_comes_back(
    trial: int | None, reply: Welcome, decision: Decision
) -> None:
    session = joined(trial=trial)
    assert session.hello() == hello(trial=trial)
    assert session.receive(session.hello(), reply) == decision
    assert session.trial == trial
    assert session.over == (decision if isinstance(decision, Over) else None)
    ended = decision == Over("all trials are done")  # the others may come again
    assert session.close_code == (1000 if ended else 1001)


@pytest.mark.parametrize(
    "setting",
    [
        {"environment.id": "CartPole-v1"},
        {"network.hidden": [9]},
        {"algorithm.gamma": 0.5},
        {"optimizer.learning_rate": 0.1},
        {"child.beta": 0.5},
        {"replay.steps": 700},
        {"ga3c.trainers": 3},
    ],
)
def test_a_parent_that_runs_another_experiment_now(setting: dict[str, Any]) -> None:
    session = joined()
    section = next(iter(setting)).partition(".")[0]
    with pytest.raises(
        GenkidamaError,
        match=rf"^{PARENT} now runs another experiment \(\[{section}\] differs\); start this child",
    ):
        session.receive(session.hello(), welcome(EXPERIMENT.with_settings(setting)))


def test_an_experiment_with_a_module_that_is_not_allowed_is_not_even_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading it would import the installed plug-ins."""
    asked = list[str]()
    monkeypatch.setattr(plugin, "_installed", lambda: asked.append("plug-ins") or {})
    hostile = {"network": {"name": "subprocess:Popen"}, "plugins": {"any": {}}}
    session = Session("pi", "word", parent=PARENT, allow=["mine"])
    reply = Welcome(protocol=PROTOCOL, experiment=hostile)
    with pytest.raises(ConfigurationError, match="may not import 'subprocess'"):
        session.receive(session.hello(), reply)
    assert not asked
    assert session.experiment is None


def test_a_child_reads_the_entries_with_its_own_name_only() -> None:
    """Another child's machine may have what this one lacks, and may import what it may not."""
    entries = [
        {"name": "gpu-*", "settings": {"child.backend": "mine:Backend", "absent.plug_in": 1}},
        {"name": "pi", "settings": {"environment.options.listen": "localhost:1"}},
    ]
    reply = Welcome(protocol=PROTOCOL, experiment={"children": entries})
    session = Session("pi", "word", parent=PARENT, allow=[])
    session.receive(session.hello(), reply)
    assert session.experiment == Experiment.from_dict(
        {"environment": {"options": {"listen": "localhost:1"}}}
    )
    session = Session("gpu-1", "word", parent=PARENT, allow=[])
    with pytest.raises(ConfigurationError, match="may not import 'mine'"):
        session.receive(session.hello(), reply)
    for wrong in (3, ["x"], [{"name": "*", "settings": 3}], [{"name": ["pi"]}, None]):
        session = Session("pi", "word", parent=PARENT, allow=[])
        with pytest.raises(ConfigurationError, match=f"the experiment of {PARENT}: children"):
            session.receive(
                session.hello(), Welcome(protocol=PROTOCOL, experiment={"children": wrong})
            )


def test_a_parent_whose_plug_ins_have_other_settings_now() -> None:
    ours = msgspec.structs.replace(EXPERIMENT, plugins={"quorum": {"least": 2}})
    check_same(ours, ours, PARENT)
    with pytest.raises(GenkidamaError, match=r"\[plugins\] differs"):
        check_same(ours, EXPERIMENT, PARENT)


def test_what_was_pulled_is_taken_over_whole() -> None:
    session = joined(version=3)
    decision = session.receive(Pull(), Weights(version=5, progress=0.5, steps=64, vector=THEIRS))
    assert decision == BlendReply(0.5, steps=64)
    assert isinstance(decision, BlendReply)
    assert decision.sent is None and decision.vector is THEIRS
    assert session.version == 5
    nothing_new = session.receive(Pull(), Weights(version=6, progress=0.5))
    assert isinstance(nothing_new, BlendReply)
    assert nothing_new.vector is None
    session.receive(Pull(), Weights(version=6, stop="over"))
    assert session.over == Over("over")


def answered(session: Session, push: Push, *, version: int = 9) -> Decision:
    return session.receive(push, Weights(version=version, vector=THEIRS))


def test_a_pull_comes_only_while_the_parent_has_all_of_the_childs_weights() -> None:
    session = joined()
    assert session.pull() == Pull()
    push = session.push(OURS)
    assert session.pull() is None  # its reply may still come
    answered(session, push)
    assert session.pull() == Pull()


def test_work_without_a_parent_is_pushed_before_anything_is_pulled_and_counted_once() -> None:
    session = joined()
    session.add_work(7, [], {})
    lost = session.push(OURS)
    session.add_work(5, [], {})
    session.receive(session.hello(), welcome())
    assert session.receive(JOIN, Weights(version=8, vector=THEIRS)) == Keep()
    assert session.pull() is None
    again = session.push(OURS + 1)
    assert (again.sequence, again.steps, again.version) == (lost.sequence, 7, 0)
    # The parent may have counted the first one alone.
    kept = answered(session, again)
    assert isinstance(kept, BlendReply) and kept.vector is None
    assert session.pull() is None
    last = session.push(OURS)
    assert last.steps == 5
    taken = answered(session, last)
    assert isinstance(taken, BlendReply) and taken.vector is THEIRS
    assert session.pull() == Pull()


def test_progress_behind_a_difference_that_is_sent_again_is_pushed_before_a_pull() -> None:
    session = differing(0)
    lost = session.push(OURS)
    session.receive(session.hello(), welcome(DIFFERENCES))
    session.receive(JOIN, Weights(version=8, vector=THEIRS))
    again = session.push(OURS + 1)
    assert again.vector is lost.vector
    answered(session, again)
    assert session.pull() is None
    answered(session, session.push(OURS))
    assert session.pull() == Pull()


def test_progress_before_a_late_reply_has_the_version_that_it_was_learned_from() -> None:
    session = differing(0)
    session.receive(Pull(), Weights(version=5, vector=THEIRS))
    late = session.push(OURS)
    session.add_work(7, [], {})  # it has learned on
    decision = answered(session, late, version=90)
    assert isinstance(decision, BlendReply) and decision.sent is OURS
    assert session.pull() is None
    push = session.push(OURS + 3)
    np.testing.assert_array_equal(push.vector, OURS + 3 - THEIRS)
    assert (push.version, push.steps, push.kind) == (5, 7, "difference")
    answered(session, push, version=91)
    assert (session.version, session.pull()) == (91, Pull())
    session.add_work(7, [], {})
    session.receive(Pull(), Weights(version=99, vector=OURS))  # which was asked for before that
    assert (session.version, session.pull()) == (91, None)


@pytest.mark.parametrize("rule", ["blend", "difference", "gradient", "experience"])
def test_pushes_of_a_child_that_always_learns_on_are_one_reply_behind(rule: str) -> None:
    settings = {"parent.rule": rule, "child.exchange": "update"}
    session = differing(0, experiment=EXPERIMENT.with_settings(settings))
    session.receive(Pull(), Weights(version=5, vector=THEIRS))
    versions = []
    for version in (20, 30, 40, 50):
        late = session.push(OURS + version)
        versions.append(late.version)
        session.add_work(7, [], {})  # it has learned on
        answered(session, late, version=version)
    # Experience is of the policy that acts now.
    assert versions == ([5, 20, 30, 40] if rule == "experience" else [5, 5, 20, 30])
    answered(session, session.push(OURS), version=60)
    assert session.push(OURS).version == 60


def test_differences_start_from_what_was_pulled_unless_that_is_nothing_new() -> None:
    session = differing(0)
    session.receive(Pull(), Weights(version=5, vector=FAR))
    session.receive(Pull(), Weights(version=5, children=7.5))
    push = session.push(OURS)
    assert (push.version, push.kind) == (5, "difference")
    np.testing.assert_array_equal(push.vector, OURS - FAR)


def test_what_only_concerns_the_parent_may_change() -> None:
    session = joined()
    changed = EXPERIMENT.with_settings({"parent.alpha": 0.1, "stop.updates": 9, "name": "other"})
    assert session.receive(session.hello(), welcome(changed)) == JOIN


# What the replies to a join mean.


def test_only_the_first_join_begins() -> None:
    session = told()
    # The connection is lost before the reply, while the network is being built for example.
    session.join(SIGNATURE)
    assert session.receive(session.hello(), welcome()) == JOIN
    assert session.receive(JOIN, Weights(version=0)) == Begin(version=0, progress=0.0)
    assert session.receive(session.hello(), welcome()) == JOIN
    assert session.receive(JOIN, Weights(version=8, vector=THEIRS)) == Keep()
    assert session.push(OURS).version == 0


@pytest.mark.parametrize("next", [False, True])
@pytest.mark.parametrize("session", [told(), joined()], ids=["first", "again"])
def test_a_join_to_what_is_over(session: Session, next: bool) -> None:
    session = deepcopy(session)
    reply = Weights(version=9, stop="it is done", next=next, vector=THEIRS)
    assert session.receive(session.join(SIGNATURE), reply) == Over("it is done", next)
    assert session.over == Over("it is done", next)


# Numbers: what is sent again, and what is gathered meanwhile.


def test_a_push_without_a_reply_is_sent_again_with_the_weights_of_now() -> None:
    session = joined()
    session.add_work(10, [1.0], {"lag": 1.0})
    first = session.push(OURS)
    session.add_work(20, [2.0], {"lag": 2.0})
    session.add_work(30, [3.0], {})
    session.receive(session.hello(), welcome())
    session.receive(JOIN, Weights(version=5))
    again = session.push(THEIRS)
    assert carried(again) == carried(first) == (1, 10, [1.0], {"lag": 1.0})
    assert again.version == 0
    assert again.vector is THEIRS
    session.receive(again, Weights(version=6))
    assert carried(session.push(OURS)) == (2, 50, [2.0, 3.0], {"lag": 2.0})


def test_a_session_that_was_never_connected_has_gathered_all() -> None:
    session = new()
    for number in range(3):
        session.add_work(10, [float(number)], {})
    session.receive(session.hello(), welcome())
    session.receive(session.join(SIGNATURE), Weights(version=0))
    assert carried(session.push(OURS)) == (1, 30, [0.0, 1.0, 2.0], {})


def test_measures_that_are_left_out_are_mentioned_once() -> None:
    session = new()
    assert session.add_work(1, [], {"lag": NAN}) == LeftOut()
    assert session.add_work(1, [NAN], {"PPS": 1.0, "lag": NAN}) == LeftOut(1, ("PPS",))
    assert session.add_work(1, [INFINITY, NAN, 1.0], {"PPS": 1.0, "Lag": 1.0}) == LeftOut(2)
    session.renew()
    assert session.add_work(1, [], {"PPS": 1.0}) == LeftOut()


# What a refusal means.


def test_a_name_that_is_taken_is_numbered_unless_people_have_chosen_it() -> None:
    taken = Refusal(code="name", reason="the name is in use")
    machine = new(numbered=True)
    assert machine.receive(machine.hello(), taken) == Renamed("pi-2")
    assert machine.receive(machine.hello(), taken) == Renamed("pi-3")
    assert machine.hello() == hello(name="pi-3")
    chosen = new()
    with pytest.raises(RequestRefused, match="the parent refuses this child: the name is in use"):
        chosen.receive(chosen.hello(), taken)
    assert chosen.name == "pi"


@pytest.mark.parametrize("code", [code for code in ProtocolError.CODES if code != "name"])
def test_a_number_is_taken_back_only_if_the_token_is_not_for_it(code: str) -> None:
    taken = heard(Refusal(code="name", reason="the name is in use"))
    session = new(numbered=True)
    session.receive(session.hello(), taken)
    with pytest.raises(RequestRefused):
        session.receive(session.hello(), heard(Refusal(code=code, reason="this is for 'pi'")))
    assert session.hello() == hello(name="pi" if code == "token" else "pi-2")
    again = session.receive(session.hello(), taken)
    assert again == Renamed("pi-2" if code == "token" else "pi-3")


def test_a_child_that_trains_a_trial_keeps_its_name() -> None:
    session = new(numbered=True)
    session.receive(session.hello(), welcome(trial=3))
    session.join(SIGNATURE)
    with pytest.raises(RequestRefused) as caught:
        session.receive(session.hello(), Refusal(code="name", reason="the name is in use"))
    assert caught.value.code == "name"
    assert session.name == "pi"


def test_a_child_that_trains_gets_another_name_and_keeps_its_settings() -> None:
    """Its machine was away, and another one with the same name has started meanwhile."""
    own = {"name": "pi", "settings": {"environment": {"lanes": 3}}}
    settings = DIFFERENCES.with_settings({"children": [own]})
    session = differing(0, experiment=settings, numbered=True)
    session.add_work(7, [], {})
    lost = session.push(OURS)
    session.add_work(5, [], {})
    taken = heard(Refusal(code="name", reason="the name is in use"))
    assert session.receive(session.hello(), taken) == Renamed("pi-2")
    assert session.receive(session.hello(), welcome(settings)) == JOIN
    assert session.receive(JOIN, Weights(version=8, vector=THEIRS)) == Keep()
    push = session.push(OURS)
    # The other push may be counted under the other name.
    assert (push.sequence, push.steps, push.kind) == (lost.sequence + 1, 5, "weights")
    with pytest.raises(RequestRefused):
        session.receive(session.hello(), heard(Refusal(code="token", reason="this is for 'pi'")))
    assert session.hello().name == "pi"


def test_weights_that_are_not_finite_are_replaced_and_their_work_is_sent_again() -> None:
    session = joined()
    session.add_work(10, [1.0], {})
    push = session.push(OURS)
    assert session.receive(push, heard(Refusal(code="finite", reason="pi pushes NaN"))) == JOIN
    reset = session.receive(JOIN, Weights(version=3, vector=THEIRS))
    assert reset == Reset(THEIRS)
    assert reset.vector is THEIRS  # type: ignore[union-attr]
    again = session.push(THEIRS)
    assert (again.version, carried(again)) == (3, carried(push))


def test_there_may_be_no_weights_to_fall_back_to() -> None:
    session = joined()
    session.receive(session.push(OURS), Refusal(code="finite", reason="pi pushes NaN"))
    with pytest.raises(
        EnvironmentFailure,
        match=r"^pi pushes NaN, and the parent has no weights to fall back to; lower optimizer",
    ):
        session.receive(JOIN, Weights(version=0))


def test_weights_are_replaced_although_the_run_is_over() -> None:
    session = joined()
    session.receive(session.push(OURS), Refusal(code="finite", reason="pi pushes NaN"))
    reply = Weights(version=3, stop="3 exchanges a child done", vector=THEIRS)
    assert session.receive(JOIN, reply) == Reset(THEIRS)
    assert session.over == Over("3 exchanges a child done")


def test_a_connection_that_is_lost_before_the_weights_are_replaced() -> None:
    """The next parent may know better: the push goes out again and is refused again if need be."""
    session = joined()
    session.receive(session.push(OURS), Refusal(code="finite", reason="pi pushes NaN"))
    session.receive(session.hello(), welcome())
    assert session.receive(JOIN, Weights(version=3)) == Keep()
    assert session.push(OURS).sequence == 1


def test_a_trial_that_is_no_longer_this_childs_is_asked_for_on_a_new_connection() -> None:
    session = joined(trial=7)
    with pytest.raises(ProtocolError, match="say hello again") as caught:
        session.receive(
            session.push(OURS), Refusal(code="trial", reason="it has to say hello again")
        )
    assert caught.value.code == "trial"
    assert session.hello() == hello(trial=7)


@pytest.mark.parametrize("code", ["name", "token", "full", "signature", "malformed", "version"])
@pytest.mark.parametrize("kind", ["hello", "join", "push"])
def test_every_other_refusal_is_raised_and_says_whether_waiting_helps(kind: str, code: str) -> None:
    session = joined()
    request = requests(session)[kind]
    with pytest.raises(RequestRefused, match=r"^the parent refuses this child: no\.$") as caught:
        session.receive(request, Refusal(code=code, reason="no."))
    assert caught.value.code == code
    assert caught.value.exit_code == 1
    assert caught.value.final == (code in ("malformed", "version"))
    assert RequestRefused(Refusal(code=code, reason="no.", final=True)).final


# Replies that make no sense.


def requests(session: Session) -> dict[str, Request]:
    return {
        "hello": session.hello(),
        "join": session.join(SIGNATURE),
        "push": session.push(OURS),
    }


NONSENSE: list[tuple[str, str, Reply, str]] = [
    ("hello", "order", Goodbye(), "the parent answers hello with Goodbye"),
    ("hello", "order", Weights(version=1, proof="p"), "the parent answers hello with Weights"),
    ("join", "order", welcome(), "the parent answers a join with Welcome"),
    ("push", "order", Goodbye(), "the parent answers a push with Goodbye"),
    *(
        (kind, code, Weights(version=1, stop="over", vector=vector(*numbers)), words)
        for kind in ("join", "push")
        for code, numbers, words in (
            ("length", [1.0] * 4, "the parent sends 4 numbers, expected 3"),
            ("length", [], "the parent sends 0 numbers, expected 3"),
            ("finite", [1.0, NAN, 1.0], "the parent sends NaN or infinity"),
            ("finite", [1.0, INFINITY, 1.0], "the parent sends NaN or infinity"),
        )
    ),
]


@pytest.mark.parametrize(("kind", "code", "reply", "words"), NONSENSE)
def test_a_reply_that_makes_no_sense_changes_nothing(
    kind: str, code: str, reply: Reply, words: str
) -> None:
    session = joined(version=2)
    session.add_work(10, [1.0], {})
    request = requests(session)[kind]
    before = state(session)
    with pytest.raises(ProtocolError, match=f"^{words}$") as caught:
        session.receive(request, reply)
    assert caught.value.code == code
    assert state(session) == before


def encoded(encoding: Encoding, version: int = 0) -> Session:
    """A session that may push differences."""
    session = new()
    session.receive(session.hello(), welcome(encoding=encoding))
    session.receive(session.join(SIGNATURE), Weights(version=version, vector=THEIRS))
    return session


def test_a_difference_goes_out_and_one_comes_back() -> None:
    session = encoded("int8")
    parent = ParentDelta("int8")
    parent.join(SIGNATURE)
    parent.answer(Weights(version=0, vector=THEIRS))
    push = session.push(OURS)
    assert push.encoding == "int8"
    pushed = parent.read("pi", push).vector
    assert pushed is not None and np.abs(pushed - OURS).max() < 0.02
    reply = parent.answer(Weights(version=1, vector=vector(2, 3, 5)), parent.read("pi", push))
    decision = session.receive(push, reply)
    assert isinstance(decision, BlendReply)
    assert decision.sent is OURS and decision.vector is not None
    assert np.abs(decision.vector - vector(2, 3, 5)).max() < 0.02
    assert session.version == 1


@pytest.mark.parametrize("kind", ["join", "push"])
def test_a_difference_that_was_not_agreed_on_changes_nothing(kind: str) -> None:
    session = joined(version=2)
    request = requests(session)[kind]
    before = state(session)
    with pytest.raises(ProtocolError, match=r"a difference that was not agreed on$") as caught:
        session.receive(request, Weights(version=3, encoding="int8", vector=THEIRS))
    assert caught.value.code == "base"
    assert state(session) == before


@pytest.mark.parametrize(
    ("content", "code"),
    [(np.zeros(9, np.uint8), "length"), (None, "length"), (np.full(260, 255, np.uint8), "finite")],
)
def test_a_difference_that_makes_no_sense_is_not_taken(content: Any, code: str) -> None:
    session = encoded("int8", version=2)
    push = session.push(OURS)
    with pytest.raises(ProtocolError) as caught:
        session.receive(push, Weights(version=3, stop="over", encoding="int8", vector=content))
    assert caught.value.code == code
    assert session.version == 2 and session.over is None
    assert session.push(OURS).sequence == push.sequence


def test_a_parent_that_does_not_know_the_base_is_joined_anew() -> None:
    session = encoded("int4", version=2)
    push = session.push(OURS)
    with pytest.raises(ProtocolError, match="unknown"):
        session.receive(push, Refusal(code="base", reason="unknown"))
    session.receive(session.hello(), welcome())
    assert session.receive(session.join(SIGNATURE), Weights(version=0)) == Keep()
    again = session.push(OURS)
    assert again.sequence == push.sequence and again.encoding == "" and again.vector is OURS


def test_nothing_follows_from_a_goodbye() -> None:
    session = joined()
    with pytest.raises(ValueError, match="no decision follows from the reply to a Leave"):
        session.receive(session.leave(), Goodbye())


# Ends.


@pytest.mark.parametrize(
    ("code", "reason", "over"),
    [
        (1000, "3 exchanges a child done", Over("3 exchanges a child done")),
        (1000, "", Over("the run is over")),
        (1001, "the parent goes away", None),
        (1006, "", None),
        (None, "", None),
    ],
)
def test_what_a_close_code_means(code: int | None, reason: str, over: Over | None) -> None:
    session = joined()
    session.closed(code, reason)
    assert session.over == over
    assert session.close_code == (1001 if over is None else 1000)


def test_a_reason_has_nothing_that_a_terminal_would_obey() -> None:
    session = joined()
    session.receive(Pull(), Weights(version=1, stop="over\x1b]52;c;ZXZpbA==\x07\n"))
    assert session.over == Over("over ]52;c;ZXZpbA==  ")


def test_the_first_reason_stays_and_the_last_word_says_whether_there_is_more() -> None:
    session = joined(trial=7)
    session.receive(session.push(OURS), Weights(version=1, stop="it has stopped", next=True))
    assert session.over == Over("it has stopped", next=True)
    session.closed(1000, "all trials are done")
    assert session.over == Over("it has stopped")


def test_the_proof_of_the_end_is_kept_for_the_other_parts() -> None:
    session = joined()
    assert session.proof == ""
    session.receive(session.push(OURS), Weights(version=1, stop="over", proof="a proof"))
    assert session.proof == "a proof"
    session.receive(session.push(OURS), Weights(version=2, stop="over"))
    session.receive(session.hello(), welcome(stop="over"))
    assert session.proof == "a proof"
    session.receive(session.hello(), welcome(stop="over", proof="another one"))
    assert session.proof == "another one"


def test_the_next_trial_starts_from_nothing_but_the_numbers_go_on() -> None:
    session = joined(version=5, trial=7)
    session.add_work(10, [1.0], {"lag": 1.0})
    session.push(OURS)
    session.add_work(10, [1.0], {"lag": 1.0})
    session.receive(session.push(OURS), Weights(version=6, stop="it has stopped", next=True))
    session.renew()
    assert (session.over, session.version) == (None, 0)
    assert session.hello() == hello()
    other = EXPERIMENT.with_settings({"parent.rule": "difference"})
    assert session.receive(session.hello(), welcome(other, trial=12)) == Train(other)
    assert session.pushes == "difference"
    larger = Signature.of([("weight", (5,))])
    begin = session.receive(session.join(larger), Weights(version=0, vector=vector(1, 2, 3, 4, 5)))
    assert begin == Begin(version=0, progress=0.0)
    push = session.push(vector(1, 2, 3, 4, 6))
    assert push.vector is not None and push.vector.tolist() == [0, 0, 0, 0, 1]
    assert (push.trial, push.version, carried(push)) == (12, 0, (2, 0, [], {}))


def test_goodbyes_fit_into_their_message() -> None:
    session = joined(trial=7)
    assert session.leave() == Leave(reason="stopped")
    assert session.give_back("no memory") == Leave(reason="no memory", failed=True)
    assert session.give_back("x" * 300) == Leave(reason="x" * 200, failed=True)
    session.closed(1000, "x" * 300)
    assert session.leave() == Leave(reason="x" * 200)


# Differences.

DIFFERENCES = EXPERIMENT.with_settings({"parent.rule": "difference"})
FAR = vector(8, 8, 8)


def differing(
    version: int,
    weights: np.ndarray | None = THEIRS,
    experiment: Experiment = DIFFERENCES,
    **options: Any,
) -> Session:
    session = new(**options)
    session.receive(session.hello(), welcome(experiment))
    session.receive(session.join(SIGNATURE), Weights(version=version, vector=weights))
    return session


def rejoin(
    session: Session,
    version: int,
    weights: np.ndarray | None,
    experiment: Experiment = DIFFERENCES,
) -> None:
    session.receive(session.hello(), welcome(experiment))
    assert session.signature is not None
    decision = session.receive(
        session.join(session.signature), Weights(version=version, vector=weights)
    )
    assert isinstance(decision, Keep)


def said(session: Session) -> tuple[str, int, list[float]]:
    """What the next push carries: its kind, its version, its vector."""
    push = session.push(OURS)
    assert push.vector is not None
    return push.kind, push.version, push.vector.tolist()


def test_a_difference_starts_from_the_last_answer() -> None:
    session = differing(version=4)
    assert said(session) == ("difference", 4, [-3, -3, -3])
    push = session.push(OURS)
    decision = session.receive(push, Weights(version=6, vector=FAR))
    assert isinstance(decision, BlendReply)
    assert decision.sent is OURS
    assert decision.vector is FAR
    assert said(session) == ("difference", 6, [-7, -6, -5])
    session.receive(session.push(OURS), Weights(version=7))
    assert said(session) == ("weights", 7, [1, 2, 3])  # there is nothing to start from


@pytest.mark.parametrize(("version", "said_version"), [(9, 4), (4, 4), (2, 2)])
@pytest.mark.parametrize(
    ("experiment", "kind", "payload"),
    [(DIFFERENCES, "difference", [-3, -3, -3]), (EXPERIMENT, "weights", [1, 2, 3])],
)
def test_after_a_cut_it_starts_from_where_it_did(
    version: int, said_version: int, experiment: Experiment, kind: str, payload: list[float]
) -> None:
    session = differing(version=4, experiment=experiment)
    rejoin(session, version, FAR, experiment)
    assert said(session) == (kind, said_version, payload)


def test_without_anything_to_start_from_it_pushes_its_weights() -> None:
    session = differing(version=0, weights=None)
    assert said(session) == ("weights", 0, [1, 2, 3])
    rejoin(session, 3, FAR)  # another child was first; what it gave was not taken over
    assert said(session) == ("weights", 0, [1, 2, 3])
    session.receive(session.push(OURS), Weights(version=3, vector=FAR))
    assert said(session) == ("difference", 3, [-7, -6, -5])
    rejoin(session, 0, None)  # the parent has lost everything
    assert said(session) == ("weights", 0, [1, 2, 3])


def test_weights_that_replace_diverged_ones_are_where_it_starts_from() -> None:
    session = differing(version=4)
    push = session.push(vector(NAN, 0, 0))
    session.receive(push, Refusal(code="finite", reason="NaN"))
    decision = session.receive(session.join(SIGNATURE), Weights(version=9, vector=FAR))
    assert isinstance(decision, Reset)
    assert said(session) == ("difference", 9, [-7, -6, -5])


def test_a_parent_whose_rule_takes_something_else_is_another_experiment() -> None:
    session = joined()
    with pytest.raises(GenkidamaError, match=r"another experiment \(parent.rule differs\)"):
        session.receive(session.hello(), welcome(DIFFERENCES))


TRAINED = Signature.of([("weight", (3,)), ("statistics.observations", (1,))])
BASE = np.array([1, 2, 3, 30], DTYPE)
CHILD = np.array([1.5, 4, 3, 50], DTYPE)
SLOPE = np.array([-1, 7, 9], DTYPE)


@pytest.mark.parametrize(
    ("pushes", "gradient", "kind", "payload"),
    [
        ("weights", None, "weights", [1.5, 4, 3, 50]),
        ("weights", SLOPE, "weights", [1.5, 4, 3, 50]),
        ("difference", None, "difference", [0.5, 2, 0, 50]),
        ("difference", SLOPE, "difference", [0.5, 2, 0, 50]),
        ("gradient", SLOPE, "gradient", [-1, 7, 9, 50]),
        ("gradient", None, "weights", [1.5, 4, 3, 50]),
    ],
)
def test_a_push_carries_what_the_rule_takes_and_statistics_whole(
    pushes: Kind, gradient: np.ndarray | None, kind: str, payload: list[float]
) -> None:
    base = DeltaBase(pushes)
    base.set(BASE)
    before = CHILD.tobytes()
    said, vector = base.payload(CHILD, gradient, TRAINED)
    assert (said, vector.tolist(), vector.dtype) == (kind, payload, DTYPE)
    assert base.pushed is CHILD
    assert CHILD.tobytes() == before
    assert BASE.tolist() == [1, 2, 3, 30]


def test_a_difference_without_an_answer_is_pushed_again_as_it_was() -> None:
    base = DeltaBase("difference")
    base.set(BASE)
    first = base.payload(CHILD, None, TRAINED)
    again = base.payload(CHILD + DTYPE.type(1.0), None, TRAINED)
    assert again[1] is first[1] and base.pushed is CHILD
    base.set(BASE)
    assert base.payload(CHILD * 2, None, TRAINED)[1].tolist() == [2, 6, 3, 100]


@pytest.mark.parametrize("pushes", ["weights", "difference", "gradient"])
def test_without_a_basis_the_weights_are_pushed(pushes: Kind) -> None:
    base = DeltaBase(pushes)
    assert base.payload(CHILD, SLOPE, TRAINED) == ("weights", CHILD)
    base.set(BASE)
    base.set(None)
    assert base.payload(CHILD, SLOPE, TRAINED) == ("weights", CHILD)


def test_steps_and_returns_add_up_and_the_newest_measures_stay() -> None:
    work = Work()
    assert work.add(10, [1.0], {"lag": 1.0, "pps": 5.0}) == LeftOut()
    assert work.add(20, [2.0, 3.0], {"lag": 2.0}) == LeftOut()
    assert work.add(5, [], {}) == LeftOut()
    assert work == Work(35, [1.0, 2.0, 3.0], {"lag": 2.0})


@pytest.mark.parametrize(
    ("measures", "reported", "left_out"),
    [
        ({"lag": NAN, "pps": -INFINITY}, {"old": 0.0}, ()),
        ({"lag": 1.0, "pps": NAN}, {"lag": 1.0}, ()),
        ({"time": 1.0, "PPS": 1.0, "large": 1e31}, {"old": 0.0}, ("time", "PPS", "large")),
        ({"PPS": NAN, "lag": 2.0, "Lag": 3.0}, {"lag": 2.0}, ("Lag",)),
    ],
)
def test_measures_that_no_push_may_carry(
    measures: dict[str, float], reported: dict[str, float], left_out: tuple[str, ...]
) -> None:
    work = Work(measures={"old": 0.0})
    assert work.add(0, [], measures) == LeftOut(measures=left_out)
    assert work.measures == reported


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY, 1.1e30, -1.1e30])
def test_returns_that_no_push_may_carry(value: float) -> None:
    work = Work()
    assert work.add(1, [1.0, value, 1e30, value, -1e30], {}) == LeftOut(returns=2)
    assert work.returns == [1.0, 1e30, -1e30]


def test_a_day_without_a_parent_leaves_the_newest_returns() -> None:
    work = Work()
    for first in range(0, 10_000, 50):
        assert work.add(1, [float(number) for number in range(first, first + 50)], {}) == LeftOut()
    assert work.returns == [float(number) for number in range(10_000 - 4_096, 10_000)]
    assert work.steps == 200


@given(
    st.lists(st.lists(st.floats(width=64)), max_size=5),
    st.dictionaries(st.text(max_size=5), st.floats(width=64), max_size=40),
)
def test_whatever_a_backend_says_fits_into_a_push(
    returns: list[list[float]], measures: dict[str, float]
) -> None:
    work = Work()
    left_out = sum(work.add(1, values, measures).returns for values in returns)
    assert len(work.returns) + left_out == sum(map(len, returns))
    assert all(map(math.isfinite, work.returns))
    push = Push(version=0, sequence=1, returns=work.returns, measures=work.measures)
    assert decode_request(encode(push)) == push


def test_a_child_says_to_other_shards_which_name_and_role_the_first_gave_it() -> None:
    first, second = new(numbered=True), new(numbered=True)
    first.receive(first.hello(), Refusal(code="name", reason="taken"))
    changes = {"algorithm.name": "dqn", "replay.steps": 5000, "replay.url": "embedded"}
    acting = EXPERIMENT.with_settings({**changes, "child.roles": ["act"]})
    first.receive(first.hello(), welcome(acting))
    second.appear_like(first)
    assert (second.hello().name, second.hello().role) == ("pi-2", "act")
    first.renew()
    assert first.hello().role == "", "the next run may give it another one"
