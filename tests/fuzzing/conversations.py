"""Targets that talk: children that keep no rule and a parent, and a child and a malicious parent.

An input is a list: the number of the settings, then steps. A step of a child is
`[connection, seconds, map, bytes behind it]`; with the map 0 the connection is lost. A reply of a
parent is `[map, bytes behind it]`, or the close code of a connection that is lost.
"""

from __future__ import annotations

import math
from copy import deepcopy
from functools import cache
from typing import Any

import msgspec
import numpy as np

from genkidama.config.experiment import Experiment
from genkidama.errors import GenkidamaError, ProtocolError
from genkidama.plugins.actors.rule import Columns, Experience, LearnedBatch
from genkidama.plugins.hypertrick.search import Search
from genkidama.protocol.messages import (
    PROTOCOL,
    Goodbye,
    Hello,
    Join,
    Leave,
    Message,
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
from genkidama.protocol.session import (
    Begin,
    BlendReply,
    Keep,
    Over,
    Renamed,
    Reset,
    Session,
    Train,
    Wait,
)
from genkidama.protocol.shard import Shard
from genkidama.protocol.vector import DTYPE, Signature, blend, is_finite
from genkidama.server.events import as_lines, from_line
from genkidama.server.parameter_server import ParameterServer
from genkidama.server.trial import SingleTrialRun
from tests.fuzzing.mutation import Target, framed, mutated_tree, pack, unpack

#: The fields of all messages, and their types.
FIELDS = tuple(
    sorted(
        {
            word
            for kind in (Hello, Join, Push, Pull, Leave, Welcome, Weights, Refusal)
            for word in (*kind.__struct_fields__, str(kind.__struct_config__.tag))
        }
    )
)

ENTRIES: list[tuple[str, list[int]]] = [("weight", [2, 2]), ("statistics.observations", [3])]
SIGNATURE = Signature.of(ENTRIES)
VECTOR = np.arange(SIGNATURE.size, dtype=DTYPE)

#: What a search varies.
SPACE = {"algorithm.gamma": [0.9, 0.99]}

#: Settings of the runs.
_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"parent": {"encoding": "int4", "average": 0.9}, "stop": {"updates": 9}},
    {"parent": {"encoding": "int8", "rule": "weighted"}, "stop": {"seconds": 9.0}},
    {"parent": {"rule": "difference", "encoding": "float16"}, "child": {"exchange_steps": 9}},
    {"parent": {"rule": "gradient"}, "child": {"exchange": "update"}},
    {"parent": {"push_limit": 3.0, "push_window": 3, "quarantine_after": 2}},
    {"child": {"exchange": "chunk"}},
    {"parent": {"rule": "experience"}},
    {"stop": {"mean_return": 5.0, "window": 2}},
    {
        "search": {"trials": 2, "phases": 2, "phase_steps": 10, "space": SPACE},
        "stop": {"window": 2},
    },
)

#: The part that the run of the same number is: the stop of the others is not theirs to say.
_PARTS = {0: Shard(1, 1), 3: Shard(2, 2)}

#: A small network, few children, and steps of an input.
_SMALL = {"max_parameters": 64, "max_children": 3}
_STEPS = 40

_CONNECTIONS = 4


@cache
def _experiment(number: int) -> Experiment:
    settings = _SETTINGS[number]
    return Experiment.from_dict({**settings, "parent": {**settings.get("parent", {}), **_SMALL}})


def _server(number: int) -> ParameterServer:
    number %= len(_SETTINGS)
    experiment = _experiment(number)
    if experiment.searches:
        search = Search(experiment)
        for trial in range(2):
            search.offer(trial, {"algorithm.gamma": 0.9}, 0.0)
        return ParameterServer(experiment, "run", trials=search)
    part = _PARTS.get(number, Shard())
    server = ParameterServer(experiment, "run", trials=SingleTrialRun(experiment, part=part))
    server.secret = "of the parts"
    if isinstance(server.trials.rule, Experience):
        size = SIGNATURE.size
        learned = LearnedBatch(np.zeros(size, DTYPE), np.zeros((2, 4), DTYPE), np.zeros(1))
        server.trials.rule.begin(Columns(1, 1, choices=(2,)), 4, learned)
        server.trial.vector = learned.weights.copy()
        server.trial.signature = SIGNATURE
    return server


class _Line:
    """The shell of a parent: its connections, as `parent.connections` handles them."""

    def __init__(self, server: ParameterServer) -> None:
        self.server = server
        #: The name of each connection's child, and whether it has joined.
        self.names: dict[int, str] = {}
        self.joined: set[int] = set()

    def lose(self, connection: int, now: float) -> None:
        self.joined.discard(connection)
        if name := self.names.pop(connection, ""):
            self.server.disconnected(name, "gone", now)

    def take(self, connection: int, frame: bytes, now: float) -> None:
        server, name = self.server, self.names.get(connection, "")
        before = _weights(server)
        try:
            message = decode_request(frame)
            fresh = isinstance(message, Hello)
            if not name and not fresh:
                raise ProtocolError("order", "no hello")
            fits = isinstance(message, Hello) and message.name == name and server.idle(name)
            if name and fresh and not fits:
                raise ProtocolError("order", "a second hello")
        except ProtocolError as error:
            reply: Any = server.refuse(name or "peer", error, now)
            fresh = False
        else:
            reply = server.handle(name or "peer", message, now)
        again = decode_reply(encode(reply))
        assert type(again) is type(reply)
        if isinstance(reply, Refusal):
            assert _weights(server) == before
            if connection not in self.joined or reply.code in ("malformed", "unknown"):
                self.lose(connection, now)
        elif fresh:
            assert isinstance(message, Hello)
            self.joined.discard(connection)
            for other in [key for key, value in self.names.items() if value == message.name]:
                self.joined.discard(other)
                del self.names[other]
            self.names[connection] = message.name
        elif isinstance(message, Join):
            self.joined.add(connection)
        elif isinstance(reply, Goodbye):
            self.names.pop(connection)
            self.joined.discard(connection)


def _weights(server: ParameterServer) -> tuple[Any, ...]:
    """All that a refused message must leave as it was."""
    trial = server.trial
    vector = None if trial.vector is None else trial.vector.tobytes()
    return vector, trial.version, trial.steps, trial.episodes, server.exchanges, server.stop


def parent(data: bytes) -> None:
    """Nothing that children say breaks a parent, and what is refused changes nothing."""
    number, *steps = _listed(data)
    server = _server(number if isinstance(number, int) else 0)
    line, now, version = _Line(server), 0.0, 0
    for step in steps[:_STEPS]:
        match step:
            case [int(connection), int() | float() as seconds, header, bytes(behind)]:
                connection %= _CONNECTIONS
                now += min(abs(seconds), 100.0) if math.isfinite(seconds) else 0.0
            case _:
                continue
        if header == 0:
            line.lose(connection, now)
        else:
            line.take(connection, framed(header, behind), now)
        server.tick(now)
        for event in as_lines(server.take_events()).splitlines():
            assert from_line(event) is not None
        trial = server.trial
        assert trial.version >= version
        assert len(server.connected) <= 3
        assert trial.vector is None or is_finite(trial.vector)
        version = trial.version
    snapshot = msgspec.json.decode(msgspec.json.encode(server.snapshot(now)))
    assert snapshot["version"] == version


def _listed(data: bytes) -> list[Any]:
    tree = unpack(data)
    return tree if isinstance(tree, list) and tree else [0]


def step(connection: int, message: Message) -> list[Any]:
    """A message as a step of an input."""
    vector = getattr(message, "vector", None)
    frame = encode(message)  # type: ignore[arg-type]
    end = 4 + int.from_bytes(frame[:4], "little")
    header = msgspec.msgpack.decode(frame[4:end])
    return [connection, 0.5, header, b"" if vector is None else vector.tobytes()]


def _some_children() -> list[bytes]:
    found = []
    for number in range(len(_SETTINGS)):
        kind: Any = _experiment(number).pushes
        part = str(_PARTS.get(number, Shard()))
        encodings = [_experiment(number).parent.encoding]
        vector = np.array([0, 1, 0, 0, 0, -1, 0] * 2, DTYPE)[: 14 if kind == "experience" else 7]
        held = _PARTS.get(number, Shard()).of(SIGNATURE).size
        steps: list[Any] = []
        for child, name in enumerate(("a", "b")):
            hello = Hello(protocol=PROTOCOL, name=name, session="s", part=part, encodings=encodings)
            steps += [step(child, hello), step(child, Join(signature=ENTRIES))]
        for sequence in (1, 2, 3):
            for child in (0, 1):
                push = Push(version=0, sequence=sequence, steps=5, returns=[1.0])
                push.trial = child if _experiment(number).searches else None
                push.vector = vector if kind == "experience" else vector[:held]
                push.kind = kind if sequence > 1 or kind == "experience" else "weights"
                push.measures = {"loss": 0.5}
                steps.append(step(child, push))
        steps += [step(0, Pull()), [1, 1, 0, b""], step(0, Leave(over=True, proof="no"))]
        found.append(pack([number, *steps]))
    return found


# A child and a parent that says anything.

#: What a child that pushes this is sent.
_EXPERIMENTS = tuple(
    {"parent": {"rule": rule}, "child": {"exchange": exchange}}
    for rule, exchange in (("blend", "free"), ("difference", "episode"), ("gradient", "update"))
)


def session(data: bytes) -> None:
    """Nothing that a parent says breaks a child, and what makes no sense changes nothing."""
    number, *replies = _listed(data)
    numbered = bool(number) if isinstance(number, int) else False
    child = Session("pi", "word", numbered=numbered, parent="ws://10.0.0.1:8765", allow=("torch",))
    weights, request = VECTOR.copy(), child.hello()
    for reply in replies[:_STEPS]:
        match reply:
            case [header, bytes(behind)]:
                frame = framed(header, behind)
            case int():
                child.closed(reply, "closed")
                request = child.hello()
                if child.over is not None:
                    return
                continue
            case _:
                continue
        before = _mind(child)
        try:
            decision = child.receive(request, decode_reply(frame))
        except ProtocolError:
            assert _mind(child) == before
            request = child.hello()
            continue
        except GenkidamaError:
            return  # the child ends with that error
        request = _carried_out(child, decision, weights)  # type: ignore[assignment]
        if request is None:
            return


def _carried_out(child: Session, decision: Any, weights: Any) -> Request | None:
    """The next request of a child; None if it ends."""
    match decision:
        case Join():
            return decision
        case Train():
            return child.join(SIGNATURE)
        case Wait() | Renamed():
            return child.hello()
        case Over():
            if not decision.next:
                return None
            child.renew()
            return child.hello()
        case Begin() | Reset() if decision.vector is not None:
            assert is_finite(decision.vector)
            weights[:] = decision.vector
        case BlendReply() if decision.vector is not None:
            assert 0.0 <= decision.progress <= 1.0
            assert is_finite(decision.vector)
            blend(weights, decision.vector, 0.5)
        case _:
            assert isinstance(decision, Begin | Keep | BlendReply)
    if child.over is not None:
        if not child.over.next:
            assert encode(child.leave())
            return None
        child.renew()
        return child.hello()
    child.add_work(3, [1.0], {"loss": 0.5})
    request = child.pull() if child.version % 2 else None
    push = request or child.push(weights.copy(), np.ones(4, DTYPE))
    assert type(decode_request(encode(push))) is type(push)
    return push


def _mind(child: Session) -> dict[str, Any]:
    """All that a session holds, as values that can be compared."""
    held = dict(vars(child))
    experiment = held.pop("experiment")
    vectors = {
        name: value.tobytes() if isinstance(value, np.ndarray) else value
        for part in ("_delta", "_base")
        for name, value in vars(held.pop(part)).items()
    }
    return {**deepcopy(held), **vectors, "experiment": id(experiment)}


def _some_parents() -> list[bytes]:
    found = [pack([0, step(0, Weights(version=1, proof="p"))[2:]])]  # it took the proof
    for number, experiment in enumerate(_EXPERIMENTS):
        said: list[Message] = [
            Welcome(protocol=PROTOCOL, experiment=experiment, run="r", encoding="int8"),
            Weights(version=2, progress=0.1, steps=5, vector=VECTOR),
            Weights(version=3, progress=0.1, children=2.0, vector=VECTOR),
            Weights(version=4, progress=0.2, encoding="int8", vector=np.zeros(272, np.uint8)),
            Refusal(code="finite", reason="NaN"),
            Weights(version=5, vector=VECTOR),
            Weights(version=5, stop="over", next=True, vector=VECTOR),
            Refusal(code="name", reason="is taken"),
            Welcome(protocol=PROTOCOL, experiment=experiment, trial=2, wait=1.0),
            Welcome(protocol=PROTOCOL, experiment=experiment, trial=2),
        ]
        replies = [step(0, message)[2:] for message in said]
        found += [pack([number, *replies]), pack([number, *replies[:4], 1006, *replies[:3], 1000])]
    return found


TARGETS = {
    "parent": Target(parent, mutated_tree, _some_children, FIELDS),
    "session": Target(session, mutated_tree, _some_parents, FIELDS),
}
