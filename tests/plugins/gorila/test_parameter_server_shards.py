"""A parent's mind that holds a part: what it keeps of a network, and that it ends no run."""

from __future__ import annotations

import numpy as np
import pytest

from genkidama.config.experiment import Experiment
from genkidama.protocol.messages import (
    PROTOCOL,
    Goodbye,
    Hello,
    Join,
    Leave,
    Push,
    Refusal,
    Weights,
)
from genkidama.protocol.shard import WHOLE, Shard, end_proof
from genkidama.protocol.vector import DTYPE, Signature
from genkidama.server.parameter_server import ParameterServer
from genkidama.server.trial import SingleTrialRun

SIGNATURE = Signature.of([("weight", (2, 2)), ("bias", (3,))])


def serving(part: Shard, **settings: object) -> ParameterServer:
    """One with a child that has joined, and of which two updates are asked."""
    changes = {"stop.updates": 2, "parent.alpha": 0.5, **settings}
    experiment = Experiment().with_settings(changes)
    server = ParameterServer(experiment, trials=SingleTrialRun(experiment, part=part))
    server.secret = "of all parts"
    server.handle("", Hello(protocol=PROTOCOL, name="pi", session="s", part=str(part)), 0.0)
    reply = server.handle("pi", Join.of(SIGNATURE), 0.0)
    assert isinstance(reply, Weights), reply
    return server


def push(server: ParameterServer, sequence: int, *numbers: float) -> Weights | Refusal:
    request = Push(version=0, sequence=sequence, steps=5, vector=np.array(numbers, DTYPE))
    reply = server.handle("pi", request, 1.0)
    assert isinstance(reply, Weights | Refusal)
    return reply


def test_a_part_takes_its_own_numbers_and_no_others() -> None:
    server = serving(Shard(2, 2))
    assert push(server, 1, 1.0, 2.0, 3.0, 4.0) == push(server, 1, 1.0, 2.0, 3.0, 4.0)
    reply = push(server, 2, 3.0, 4.0, 5.0, 6.0)
    assert isinstance(reply, Weights) and reply.vector is not None
    assert reply.vector.tolist() == [2.0, 3.0, 4.0, 5.0]
    snapshot = server.snapshot(2.0)
    assert (snapshot.part, snapshot.whole) == ("2/2", [*SIGNATURE.entries])
    assert server.trial.held.entries == (("weight", (1,)), ("bias", (3,)))
    refused = push(server, 3, *range(7))
    assert isinstance(refused, Refusal) and refused.code == "length"
    assert refused.reason == "child 'pi' pushes 7 numbers, expected 4"


def test_every_part_compares_the_whole_network() -> None:
    server = serving(Shard(2, 2))
    other = Hello(protocol=PROTOCOL, name="other", session="t", part="2/2")
    server.handle("", other, 0.0)
    narrow = Signature.of([("weight", (4, 1)), ("bias", (3,))])  # this part of it is the same
    assert Shard(2, 2).of(narrow) == server.trial.held
    reply = server.handle("other", Join.of(narrow), 0.0)
    assert isinstance(reply, Refusal) and "shape [4, 1], expected 'weight'" in reply.reason


@pytest.mark.parametrize("part", [WHOLE, Shard(1, 2), Shard(2, 2)])
def test_only_the_first_part_ends_the_run_and_the_others_are_told(part: Shard) -> None:
    server = serving(part)
    numbers = [0.0] * server.trial.held.size
    for sequence in (1, 2):
        reply = push(server, sequence, *numbers)
    assert isinstance(reply, Weights)
    assert reply.progress == 1.0
    assert reply.stop == ("2 exchanges a child done" if part.is_first else "")
    first = serving(Shard(1, 2))
    for sequence in (1, 2):
        told = push(first, sequence, *[0.0] * first.trial.held.size)
    assert isinstance(told, Weights) and bool(reply.proof) == (part == Shard(1, 2))
    leave = Leave(reason=told.stop, over=True, proof=told.proof)
    assert server.handle("pi", leave, 1.0) == Goodbye()
    assert server.stop == "2 exchanges a child done"
    assert [event.event for event in server.take_events()].count("stop") == 1


@pytest.mark.parametrize("secret", ["of all parts", ""])
def test_no_child_says_by_itself_that_the_run_is_over(secret: str) -> None:
    """Nor by the proof of another reason, or of an end before the stop conditions were changed."""
    stop = Experiment().to_dict()["stop"]
    ended = end_proof("of all parts", {**stop, "updates": 1}, "1 exchanges a child done")
    ours = end_proof("of all parts", {**stop, "updates": 2}, "2 exchanges a child done")
    for reason, proof in (
        ("evil", ""),
        ("", ""),
        ("evil", "0" * 64),
        ("evil", "ψ" * 64),
        ("evil", ours),
        ("1 exchanges a child done", ended),
        ("evil", end_proof("guessed", {**stop, "updates": 2}, "evil")),
    ):
        server = serving(Shard(2, 2))
        server.secret = secret
        leave = Leave(reason=reason, over=True, proof=proof)
        assert server.handle("pi", leave, 1.0) == Goodbye()
        assert server.stop == "" and server.refusals == {"part": 1}
        assert server.connected == []


def test_no_child_ends_what_the_first_part_goes_on_with() -> None:
    server = serving(Shard(1, 2))
    server.handle("pi", Leave(reason="it is enough", over=True), 1.0)
    assert server.stop == ""


def test_gradients_that_make_no_sense_are_refused_and_counted() -> None:
    server = serving(WHOLE, **{"parent.rule": "gradient", "child.exchange": "update"})
    push(server, 1, *range(7))
    theta = server.trial.vector
    assert theta is not None
    before = theta.copy()
    for sequence, version, numbers in (
        (2, 1, [1.0] * 6),
        (3, 1, [1.0] * 6 + [np.nan]),
        (4, 1, [1.0] * 6 + [np.inf]),
        (5, 2, [1.0] * 7),
    ):
        request = Push(
            version=version,
            sequence=sequence,
            kind="gradient",
            vector=np.array(numbers, DTYPE),
        )
        assert isinstance(server.handle("pi", request, 1.0), Refusal)
    assert server.refusals == {"length": 1, "finite": 2, "order": 1}
    assert theta.tobytes() == before.tobytes() and server.trial.version == 1
    lines = [event for event in server.take_events() if event.event == "refused"]
    assert [(line.child, line.code) for line in lines] == [  # type: ignore[attr-defined]
        ("pi", "length"),
        ("pi", "finite"),  # the second is summed up later
        ("pi", "order"),
    ]


def test_what_is_discarded_is_counted_by_child() -> None:
    options = {"max_staleness": 0}
    settings = {
        "parent.rule": "gradient",
        "child.exchange": "update",
        "parent.rule_options": options,
    }
    server = serving(WHOLE, **{**settings, "stop.updates": 9})
    push(server, 1, *range(7))
    for sequence in (2, 3):
        gradient = np.ones(7, DTYPE)
        request = Push(version=1, sequence=sequence, kind="gradient", vector=gradient)
        assert isinstance(server.handle("pi", request, 1.0), Weights)
    assert server.trial.version == 2
    assert server.snapshot(1.0).children["pi"]["left_out"] == 1
