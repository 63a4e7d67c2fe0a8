"""A child's half of the protocol, without I/O: `Session` makes requests and interprets replies.

    shell                                Session                       ParameterServer
      |  on connecting    hello() ------------ Hello ------------------>  |
      |                                                                   |
      |  receive() <--------------------------- Welcome ----------------  |
      |     Train: build the network; or Wait, Renamed, Over              |
      |                   join(signature) ---- Join ------------------->  |
      |  receive() <--------------------------- Weights ----------------  |
      |     Begin: start training; after a reconnection Keep or Reset     |
      |                   pull() ------------- Pull ------------------->  |   in chunks
      |  receive() <--------------------------- Weights ----------------  |
      |     BlendReply without `sent`: learn from θ_P                     |
      |                   push(vector) ------- Push ------------------->  |
      |  receive() <--------------------------- Weights ----------------  |
      |     BlendReply: blend; Over: stop; a Join: send it at once        |
      |                   leave() ------------ Leave ------------------>  |

Laws of this file:
- No clock, no socket, no file. The shell sends the requests, passes each reply to `receive` with
  its request, and does what the decision says.
- A reply is checked before anything is taken from it. A senseless reply is a `ProtocolError` and
  changes nothing.
- A push without a reply is sent again with the same number, the same work and the current weights.
  So the parent counts it once. Under another name it is not sent again: it may be counted. If it
  was, the parent has none of what the weights have learned since: they stay as they are.
- Work done without a parent is kept, and is part of the next push that has a new number.
- A difference or a gradient names the version of its base. A child without a base pushes its
  weights.
- θ_P is pulled only while θ_C has nothing that the parent lacks: after a reply to a push of all of
  it, and before what is learned next. So work without a parent is pushed before it is replaced.
- What was learned before a reply came was learned from an older θ_P, whose version its push has:
  that of the reply before.
- A session speaks for one vector. It does not know what trains it, or how.

`ParameterServer` is the other half; `docs/reference/protocol.md` describes the conversation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from genkidama._version import __version__
from genkidama.config.allowlist import ANYTHING, check_imports
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import printable
from genkidama.config.parent_address import parse_url
from genkidama.config.sections import Kind
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError, ProtocolError
from genkidama.protocol.delta import ENCODINGS, ChildDelta, check_weights
from genkidama.protocol.messages import (
    LARGEST_RETURN,
    PROTOCOL,
    Hello,
    Join,
    Leave,
    Pull,
    Push,
    Refusal,
    Reply,
    Request,
    Weights,
    Welcome,
    permitted_measures,
)
from genkidama.protocol.shard import WHOLE, Shard
from genkidama.protocol.vector import Signature, Vector, is_finite

#: The sections of an experiment from which a child builds its network, learner and replay.
_BUILT_FROM = (
    *("environment", "network", "algorithm", "optimizer", "child", "replay", "ga3c", "plugins"),
)

#: Returns that one push reports, the newest. Those of a day without a parent fit into it.
_MOST_RETURNS = 4096

#: The longest reason of a `Leave`, in characters.
_LONGEST_REASON = 200

#: The close codes of whoever knows that the run is over, and of whoever may come back.
_RUN_OVER, _GOING_AWAY = 1000, 1001

R = TypeVar("R", Welcome, Weights)


# Decisions. Two are compared without their vectors.


@dataclass(frozen=True)
class Train:
    """Build this experiment, and join with its network."""

    experiment: Experiment


@dataclass(frozen=True)
class Wait:
    """There is nothing to train at present: say hello again after this time."""

    seconds: float


@dataclass(frozen=True)
class Renamed:
    """The name was taken: say hello again on a new connection, under this name."""

    name: str


@dataclass(frozen=True)
class Begin:
    """Start training from `vector` or, if it is None, from initial weights of the child."""

    version: int
    progress: float
    vector: Vector | None = field(default=None, compare=False)
    #: As in `BlendReply`.
    steps: int = 0
    children: float = 0.0


@dataclass(frozen=True)
class Keep:
    """The child has joined again: train on with the present weights."""


@dataclass(frozen=True)
class BlendReply:
    """The push is counted: blend `vector`, if there is one, into the weights. `sent` was pushed.

    Without `sent` the request was a pull: take `vector` over whole.
    """

    progress: float
    sent: Vector | None = field(default=None, compare=False)
    vector: Vector | None = field(default=None, compare=False)
    #: Environment steps that the next push should bring; 0 leaves it to the child.
    steps: int = 0
    #: n: children that push lately; 0 if nothing follows it.
    children: float = 0.0


@dataclass(frozen=True)
class Reset:
    """The weights had become NaN or infinite: take these instead."""

    vector: Vector = field(compare=False)


@dataclass(frozen=True)
class Over:
    """The run is over or, with `next`, only this trial of a search: there may be another."""

    reason: str
    next: bool = False


#: A `Join` is to be sent at once, on the same connection.
Decision: TypeAlias = Train | Wait | Renamed | Begin | Keep | BlendReply | Reset | Over | Join


class RequestRefused(GenkidamaError):
    """The parent refuses this child, with a reason."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"the parent refuses this child: {refusal.reason}")
        self.code = refusal.code
        #: Whether it would refuse it again, however long the child waits.
        self.final = refusal.final or refusal.code in ProtocolError.FINAL


class AnotherExperiment(GenkidamaError):
    """The parent runs another experiment than that from which this child was built."""


class PartsDiffer(ConfigurationError):
    """The shards of a parent run different experiments, perhaps only for a moment."""


# Bookkeeping.


@dataclass
class DeltaBase:
    """θ_base, the θ_P that the child last took over whole, from which differences and gradients
    start; and the payload of a push. Two are compared without their vectors."""

    #: The kind of push that the parent's rule takes.
    pushes: Kind = "weights"
    #: θ_base; None if there is none, or if weights are pushed.
    vector: Vector | None = field(default=None, compare=False, repr=False)
    #: θ_C at the last push.
    pushed: Vector | None = field(default=None, compare=False, repr=False)
    #: The difference that was pushed and has no reply yet.
    _difference: Vector | None = field(default=None, compare=False, repr=False)

    def set(self, parent: Vector | None) -> None:
        """Sets θ_base to this θ_P; to None if there is none, or if it was not taken over whole."""
        self.vector = parent if self.pushes != "weights" else None
        self._difference = None

    def payload(
        self, vector: Vector | None, gradient: Vector | None, signature: Signature
    ) -> tuple[Kind, Vector | None]:
        """Kind and vector of a push.

        The vector is θ_C, or rows of experience; None if the push reports work alone. The running
        statistics at the end are θ_C's, whatever precedes them. The gradient is at θ_base, one
        number for each trained one. A difference without a reply is pushed again as it was: the
        parent may have counted it, and the next one has what was learned since.
        """
        # With weights that are not finite the parent has to learn that training has diverged.
        if self._difference is not None and vector is not None and is_finite(vector):
            return "difference", self._difference
        self.pushed = vector
        if vector is None:
            return "work", None
        if self.pushes == "experience":
            return self.pushes, vector
        trained = signature.size - signature.statistics
        if self.vector is not None and self.pushes == "difference":
            difference = vector.copy()
            difference[:trained] -= self.vector[:trained]
            self._difference = difference if is_finite(vector) else None
            return "difference", difference
        if self.vector is not None and gradient is not None:
            return "gradient", np.concatenate((gradient, vector[trained:]))
        return "weights", vector


@dataclass(frozen=True)
class LeftOut:
    """Work that a push may not report: a number of returns, and names of measures."""

    returns: int = 0
    measures: tuple[str, ...] = ()


@dataclass
class Work:
    """A child's work since the last exchange."""

    #: Environment steps.
    steps: int = 0
    #: Undiscounted return of each finished episode.
    returns: list[float] = field(default_factory=list)
    #: Figures of the backend's own about this time, for the parent's history: rates, means, sizes.
    #: At most 32, named with a–z, 0–9 and `_` as `permitted_measures` says. NaN and infinity stand
    #: for none and are left out.
    measures: dict[str, float] = field(default_factory=dict)

    def add(self, steps: int, returns: list[float], measures: dict[str, float]) -> LeftOut:
        """Adds work, and returns what a push may not carry, which is left out.

        Returns are undiscounted, one for each episode that ended; none is NaN, infinite or beyond
        ±1e30. A NaN or infinite measure means "not measured", and is not mentioned.
        """
        reported = [value for value in returns if abs(value) <= LARGEST_RETURN]
        permitted = permitted_measures(measures)
        self.steps += steps
        self.returns = (self.returns + reported)[-_MOST_RETURNS:]
        self.measures = permitted or self.measures
        refused = (name for name in measures if name not in permitted)
        figures = tuple(name for name in refused if abs(measures[name]) < math.inf)
        return LeftOut(len(returns) - len(reported), figures)


class Session:
    """One child's conversation: its name, its trial, and the work that its parent has counted.

    `word` differs between two processes with the same name. `numbered` if the name gets a number
    where it is taken: no person has chosen it. `parent` is the parent's name in errors. An empty
    role leaves it to the parent. `allow` are modules as `check_imports` takes them.
    """

    def __init__(
        self,
        name: str,
        word: str,
        *,
        numbered: bool = False,
        parent: str,
        role: str = "",
        part: Shard = WHOLE,
        allow: Sequence[str] = (ANYTHING,),
    ) -> None:
        self.name = name
        self.parent = parent
        self.part = part
        #: The experiment, the run's name and, in a search, the trial; set by the first welcome.
        self.experiment: Experiment | None = None
        self.run = ""
        self.trial: int | None = None
        #: Whether there was no trial for this child when it last said hello.
        self.waits = False
        #: Of the numbers that the parent holds; set by `join`.
        self.signature: Signature | None = None
        self._join = Join(signature=[])
        self.cores = 0
        #: The version of θ_P from which the next push has learned: usually that of the last reply.
        self.version = 0
        #: That of the last reply.
        self._newest = 0
        #: Set when the run is over, or the trial.
        self.over: Over | None = None
        #: The proof of that for the other shards, if this is the first one.
        self.proof = ""
        self._word = word
        self._allow = allow
        #: The role that this child was started with, and that which a run has given it.
        self._own_role: Any = role.removeprefix("experiment")
        self._role: Any = self._own_role
        self._stem = name if numbered else ""
        #: The name whose settings of `children` it has, and keeps if it gets another name.
        self._settings_of = name
        self._number = 1
        self._sequence = 0
        self._pending = Work()
        self._unanswered: Work | None = None
        #: Whether the last push was of weights, and of a push that had no reply.
        self._again = False
        self._started = False
        self._base = DeltaBase()
        #: Whether the parent has all of θ_C, or will have it with the reply to the last push.
        self._settled = True
        #: The reason why NaN or infinite weights were refused, until the parent has sent others.
        self._diverged = ""
        self._named_measures = False
        self._delta = ChildDelta()

    # Requests.

    def hello(self) -> Hello:
        """The first request on every connection, and the one after a trial."""
        self._diverged = ""
        return Hello(
            protocol=PROTOCOL,
            name=self.name,
            session=self._word,
            software=__version__,
            trial=self.trial,
            encodings=list(ENCODINGS),
            role=self._role,
            part=str(self.part),
        )

    def join(self, signature: Signature) -> Join:
        """The request after hello, when the network is built."""
        self.signature = self.part.of(signature)
        self._join = Join.of(signature)
        self._join.cores = self.cores
        return self._join

    @property
    def pushes(self) -> Kind:
        """The kind of push that the parent's rule takes."""
        return self._base.pushes

    def push(self, vector: Vector | None, gradient: Vector | None = None) -> Push:
        """The weights, or what the parent takes instead, and all pending work.

        If the last push has no reply, this one has its number and its work. θ_C, float32
        (signature.size,), must not change until the reply has come. A child that only acts has
        none.
        """
        again = self._unanswered is not None
        if self._unanswered is None:
            self._unanswered = self._pending
            self._pending = Work()
            self._sequence += 1
        assert self.signature is not None
        kind, payload = self._base.payload(vector, gradient, self.signature)
        self._again = again and kind == self.pushes == "weights"
        self._settled = self._base.pushed is vector and not self._again
        push = Push(
            version=self.version,
            sequence=self._sequence,
            steps=self._unanswered.steps,
            returns=self._unanswered.returns,
            trial=self.trial,
            measures=self._unanswered.measures,
            kind=kind,
            vector=payload,
        )
        return self._delta.write(push)

    def pull(self) -> Pull | None:
        """Asks for θ_P, from which the child then learns; None if θ_C has to be pushed first."""
        return Pull() if self._settled and self._unanswered is None else None

    def leave(self, over: str = "", proof: str = "") -> Leave:
        """The last request. For another shard than the first, `over` is the reason why the first
        has ended the run, and `proof` its proof."""
        reason = over or (self.over.reason if self.over else "stopped")
        return Leave(reason=reason[:_LONGEST_REASON], over=bool(over), proof=proof)

    def give_back(self, reason: str) -> Leave:
        """The last request on a connection, if the trial cannot be trained here."""
        return Leave(reason=reason[:_LONGEST_REASON], failed=True)

    # Events.

    def appear_like(self, other: Session) -> None:
        """Takes the name and the role that another shard of the parent has given to this child."""
        self.name = other.name
        self._number = other._number
        self._role = other._role

    def add_work(self, steps: int, returns: list[float], measures: dict[str, float]) -> LeftOut:
        """Adds work since the last call to the next push; see `Work.add`.

        Measures that are left out are mentioned only the first time.
        """
        self._settled = False
        left_out = self._pending.add(steps, returns, measures)
        if self._named_measures:
            return LeftOut(left_out.returns)
        self._named_measures = bool(left_out.measures)
        return left_out

    def receive(self, request: Request, reply: Reply) -> Decision:
        """Decides by the reply to a request, but not to one that was given up.

        Raises:
            ProtocolError: the reply makes no sense here, or the parent no longer knows this
                conversation. The connection is of no use any more, and nothing has changed.
            ConfigurationError: the experiment needs a module that may not be imported.
            RequestRefused: the parent refuses this child.
            GenkidamaError: this parent is of no use to the child any more.
        """
        decision = self._decide(request, reply)
        if isinstance(reply, Welcome | Weights) and reply.proof:
            self.proof = reply.proof
        return decision

    def _decide(self, request: Request, reply: Reply) -> Decision:
        match request:
            case Push():
                return self._after_push(request, reply)
            case Pull():
                return self._blend(expect(Weights, reply, "a pull"), None)
            case Hello():
                return self._after_hello(reply)
            case Join():
                return self._after_join(reply)
        raise ValueError(f"no decision follows from the reply to a {type(request).__name__}")

    def closed(self, code: int | None, reason: str) -> None:
        """Notes the end of a connection, with the parent's close code and reason, if any."""
        if code == _RUN_OVER:
            self._end(reason or "the run is over")

    @property
    def close_code(self) -> int:
        """The code with which the child closes a connection: after 1000 nobody waits for it at the
        run's end, of which the end of its trial says nothing."""
        return _GOING_AWAY if self.over is None or self.over.next else _RUN_OVER

    def renew(self) -> None:
        """Forgets the trial that is over, so that the next hello asks for another one."""
        self.trial = None
        self._role = self._own_role
        self.signature = None
        self.version = 0
        self.over = None
        self._pending = Work()
        self._unanswered = None
        self._started = False
        self._settled = True

    # One method a reply.

    def _after_hello(self, reply: Reply) -> Decision:
        training = self.signature is not None
        known = training and self.trial is not None  # a trial is the name's
        code = reply.code if isinstance(reply, Refusal) and self._stem and not known else ""
        if code == "name":
            self._number += 1
            self.name = f"{self._stem}-{self._number}"
            self._unanswered = None
            self._base.set(None)
            return Renamed(self.name)
        if code == "token":
            self.name = self._stem  # the token is for no numbered name
            self._number = 1
        welcome = expect(Welcome, reply, "hello")
        check_welcome(welcome, self.parent, self.part)
        self._delta = ChildDelta(welcome.encoding)
        return self._resume(welcome) if training else self._start(welcome)

    def _start(self, welcome: Welcome) -> Decision:
        self.run = welcome.run
        self.waits = welcome.wait > 0.0
        if self.waits:
            return Wait(welcome.wait)
        self.trial = welcome.trial
        if welcome.stop:
            return self._end(welcome.stop)
        self._settings_of = self.name
        self.experiment = self._read(welcome)
        if self.experiment.shares_replay:
            self._role = self.experiment.role
        self._base = DeltaBase(self.experiment.pushes)
        return Train(self.experiment)

    def _resume(self, welcome: Welcome) -> Decision:
        """Joins again. The parent may be another one, or another child may have the trial."""
        if self.trial is not None and welcome.stop:
            return self._end(welcome.stop)
        if self.trial is not None and welcome.run != self.run:
            return self._end(f"{self.parent} has another run now", next=True)
        if welcome.trial != self.trial or welcome.wait:
            return self._end("another child trains it now", next=True)
        assert self.experiment is not None
        check_same(self.experiment, self._read(welcome), self.parent)
        self.run = welcome.run  # not before: what was learned until now is no other run's
        return self._join

    def _after_join(self, reply: Reply) -> Decision:
        weights = expect(Weights, reply, "a join")
        check_weights(weights, self.signature)
        diverged = self._diverged
        self._diverged = ""
        again = self._started and not diverged
        # θ_C is what it was. A parent may have gone back behind the version that it started from.
        self.version = min(self.version, weights.version) if again else weights.version
        if not again or self._base.vector is None or weights.vector is None:
            self._base.set(None if again else weights.vector)
        self._newest = self.version
        self._settled = not again
        assert self.signature is not None
        self._delta.join(weights, self.signature)
        if weights.stop:
            self._end(weights.stop, weights.next)
        if diverged:
            if weights.vector is None:
                raise EnvironmentFailure(
                    f"{diverged}, and the parent has no weights to fall back to; "
                    "lower optimizer.learning_rate"
                )
            return Reset(weights.vector)
        if self.over is not None:
            return self.over
        if self._started:
            return Keep()
        self._started = True
        return Begin(
            weights.version, weights.progress, weights.vector, weights.steps, weights.children
        )

    def _after_push(self, push: Push, reply: Reply) -> Decision:
        if isinstance(reply, Refusal) and reply.code == "finite" and self.signature is not None:
            self._diverged = reply.reason
            return self._join
        if isinstance(reply, Refusal) and reply.code in ("trial", "base"):
            # The reply to the next hello has the trial, and the one to the next join θ_P.
            raise ProtocolError(reply.code, reply.reason)
        decision = self._blend(expect(Weights, reply, "a push"), self._base.pushed)
        self._unanswered = None
        return decision

    def _blend(self, weights: Weights, sent: Vector | None) -> BlendReply:
        weights = self._delta.read(weights)
        check_weights(weights, self.signature)
        if self._settled or self.pushes == "experience":
            self.version = weights.version
        else:  # θ_C has learned more than was pushed
            self.version = min(self._newest, weights.version)
        self._newest = weights.version
        if sent is not None or weights.vector is not None:  # a pull may bring nothing new
            self._base.set(weights.vector)
        if weights.stop:
            self._end(weights.stop, weights.next)
        vector = self._delta.settle(weights)
        if sent is not None and self._again:
            vector = None
        return BlendReply(weights.progress, sent, vector, weights.steps, weights.children)

    def _end(self, reason: str, next: bool = False) -> Over:
        """Keeps the first reason. The last call decides whether there may be another trial."""
        self.over = Over(self.over.reason if self.over else printable(reason), next)
        return self.over

    def _read(self, welcome: Welcome) -> Experiment:
        source = f"the experiment of {self.parent}"
        settings = own_part(welcome.experiment, self._settings_of)
        check_imports(settings, self._allow)  # before anything looks for plug-ins
        experiment = Experiment.from_dict(settings, source=source).for_child(self._settings_of)
        return resolve_host(experiment, self.parent)


# Checks of what a parent says of itself, and the experiment as a child uses it.


def expect(kind: type[R], reply: Reply, to: str) -> R:
    """The reply, if it is of this kind; a RequestRefused or a ProtocolError if not."""
    if isinstance(reply, Refusal):
        raise RequestRefused(reply)
    if not isinstance(reply, kind):
        raise ProtocolError("order", f"the parent answers {to} with {type(reply).__name__}")
    return reply


def check_welcome(welcome: Welcome, parent: str, part: Shard) -> None:
    """Checks that a parent speaks this protocol and is the shard that the child expects."""
    if welcome.protocol != PROTOCOL:
        raise EnvironmentFailure(
            f"{parent} speaks protocol {welcome.protocol}, this child {PROTOCOL}; "
            "install the same version"
        )
    if welcome.part != str(part):
        raise EnvironmentFailure(
            f"{parent} is part {welcome.part} of a parent, this child takes it for part "
            f"{part}; list the addresses of all parts in their order"
        )


def check_same(ours: Experiment, theirs: Experiment, parent: str) -> None:
    """Checks that a parent that is back still runs the experiment that the child was built from."""
    for section in (*_BUILT_FROM, "pushes"):
        if getattr(theirs, section, None) != getattr(ours, section, None):
            what = "parent.rule" if section == "pushes" else f"[{section}]"
            raise AnotherExperiment(
                f"{parent} now runs another experiment ({what} differs); "
                "start this child again to take part in it"
            )


def own_part(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """The settings without those of other children, whose plug-ins this machine may lack."""
    children = settings.get("children")
    if not isinstance(children, list | tuple):
        return settings
    own = [
        each
        for each in children
        if not isinstance(each, dict) or fnmatchcase(name, str(each.get("name")))
    ]
    return {**settings, "children": own}


def resolve_host(experiment: Experiment, parent: str) -> Experiment:
    """The experiment with the host of its replay's engine: without one it is the parent's."""
    replay = experiment.section("replay")
    scheme, separator, rest = ("" if replay is None else replay.url).partition("://")
    user, at, place = rest.rpartition("@")
    if not separator or not (place.startswith((":", "/")) or not place):
        return experiment
    ours = parse_url(parent)
    named = "127.0.0.1" if ours is None else ours._replace(port=None, path="").place
    replay = msgspec.structs.replace(replay, url=f"{scheme}://{user}{at}{named}{place}")
    return msgspec.structs.replace(experiment, replay=replay)


def with_free_exchange(experiment: Experiment) -> Experiment:
    """The experiment with a free exchange, if `child.exchange` counts what the role does not do."""
    child = experiment.child
    lacking = {"act": "update", "learn": "episode"}.get(experiment.role)
    if child.exchange != lacking:
        return experiment
    seconds = child.exchange_seconds or (0.0 if child.exchange_steps else 1.0)
    replace = msgspec.structs.replace
    return replace(experiment, child=replace(child, exchange="free", exchange_seconds=seconds))
