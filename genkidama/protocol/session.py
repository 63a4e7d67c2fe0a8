"""A child's side of the conversation with its parent, as one pure object: requests out, replies in.

Laws of this file:
- No clock, no socket, no file. The shell sends the requests that `hello`, `join`, `push` and
  `leave` give. It hands each reply to `hear` together with its request, and follows the decision.
- A reply is checked before anything is taken from it. A senseless reply is a `ProtocolError` and
  changes nothing.
- A push without a reply is sent again, with the same number, the same work and the present weights.
  So the parent counts it once.
- A child's work without a parent is gathered, and goes with the next push that has a new number.
- A difference or a gradient is pushed with the version of its basis. A child without a basis
  pushes its weights.
- A session speaks for one vector. It does not know what trains it, or how.

`ParameterServer` is the other end of the conversation; `docs/protocol.md` describes both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec
import numpy as np

from genkidama._version import __version__
from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure, GenkidamaError, ProtocolError
from genkidama.protocol.compression import ENCODINGS
from genkidama.protocol.delta import ChildDelta, check_weights
from genkidama.protocol.messages import (
    LARGEST_RETURN,
    PROTOCOL,
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
    permitted_measures,
)
from genkidama.protocol.shard import WHOLE, Shard
from genkidama.protocol.vector import Signature, Vector, is_finite

__all__ = [
    "DeltaBase",
    "Begin",
    "BlendReply",
    "Decision",
    "PendingWork",
    "Keep",
    "LeftOut",
    "Over",
    "RequestRefused",
    "Renamed",
    "Reset",
    "Session",
    "Train",
    "Wait",
    "check_same",
    "check_welcome",
    "expect",
    "resolve_host",
    "with_free_exchange",
]


# ------------------------------------------------------------------------------------------------
# What a child's session decides, as values, the one error that is a decision, too, and checks of
# what a parent says of itself.
#
# Two decisions are compared without their vectors.

#: What of an experiment a child has built its network and its learner from.
_BUILT_FROM = ("environment", "network", "algorithm", "optimizer", "child", "ga3c", "pushes")

R = TypeVar("R", Welcome, Weights)


@dataclass(frozen=True)
class Train:
    """Build this experiment, and join with its network."""

    experiment: Experiment


@dataclass(frozen=True)
class Wait:
    """There is nothing to train at present: say hello again in so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Renamed:
    """The name was taken: say hello again on a new connection, under this name."""

    name: str


@dataclass(frozen=True)
class Begin:
    """Start training from `vector` or, if it is None, from weights of the child's own."""

    version: int
    progress: float
    vector: Vector | None = field(default=None, compare=False)
    #: As in `BlendReply`.
    steps: int = 0


@dataclass(frozen=True)
class Keep:
    """The connection stands again: train on with the present weights."""


@dataclass(frozen=True)
class BlendReply:
    """The push is counted: blend `vector`, if there is one, into the weights. `sent` was pushed.

    Without `sent` nothing was pushed but θ_P asked for: take it over whole.
    """

    progress: float
    sent: Vector | None = field(default=None, compare=False)
    vector: Vector | None = field(default=None, compare=False)
    #: How many steps the next push should bring; 0 leaves it to the child.
    steps: int = 0


@dataclass(frozen=True)
class Reset:
    """The weights had become NaN or infinite: take these instead."""

    vector: Vector = field(compare=False)


@dataclass(frozen=True)
class Over:
    """The run is over or, with `next`, only this trial of a search: there may be another."""

    reason: str
    next: bool = False


#: What the shell has to do. It sends a `Join` at once, on the same connection.
Decision: TypeAlias = Train | Wait | Renamed | Begin | Keep | BlendReply | Reset | Over | Join


class RequestRefused(GenkidamaError):
    """The parent does not want this child, and says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"the parent refuses this child: {refusal.reason}")
        self.code = refusal.code
        #: Whether it would refuse it again, however long the child waits.
        self.final = refusal.final or refusal.code in ProtocolError.FINAL


def expect(kind: type[R], reply: Reply, to: str) -> R:
    """The reply, if it is of this kind.

    Raises:
        Refused: it is a refusal.
        ProtocolError: it is of another kind.
    """
    if isinstance(reply, Refusal):
        raise RequestRefused(reply)
    if not isinstance(reply, kind):
        raise ProtocolError("order", f"the parent answers {to} with {type(reply).__name__}")
    return reply


def check_welcome(welcome: Welcome, parent: str, part: Shard) -> None:
    """Checks that a parent is what the child takes it for.

    Raises:
        EnvironmentFailure: it speaks another protocol, or is another part.
    """
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
    """Checks that a parent that has come back still runs what the child was built from.

    Raises:
        GenkidamaError: it runs another experiment.
    """
    for section in _BUILT_FROM:
        if getattr(theirs, section, None) != getattr(ours, section, None):
            what = "parent.rule" if section == "pushes" else f"[{section}]"
            raise GenkidamaError(
                f"{parent} now runs another experiment ({what} differs); "
                "start this child again to take part in it"
            )


# ------------------------------------------------------------------------------------------------
# What differences and gradients start from: θ_P as the child last took it over whole. Pure.


@dataclass
class DeltaBase:
    """θ_base, and what a push carries for it. Two are compared without their vectors."""

    #: What the parent's rule takes.
    pushes: Kind = "weights"
    #: θ_base; None if there is none, or if weights are pushed.
    vector: Vector | None = field(default=None, compare=False, repr=False)
    #: θ_C at the last push.
    pushed: Vector | None = field(default=None, compare=False, repr=False)
    #: The difference that was pushed and not answered yet.
    _difference: Vector | None = field(default=None, compare=False, repr=False)

    def take_over(self, parent: Vector | None) -> None:
        """θ_base is this θ_P; None if there is none, or if the child did not take it over."""
        self.vector = parent if self.pushes != "weights" else None
        self._difference = None

    def carried(
        self, vector: Vector | None, gradient: Vector | None, signature: Signature
    ) -> tuple[Kind, Vector | None]:
        """What a push carries, and the word for it.

        The running statistics at the end are θ_C's own, whatever is before them. A difference that
        was not answered is pushed again as it was: the parent may have counted it, and then what
        was learned since is in the next one.

        Args:
            vector: θ_C, float32, shape (signature.size,), only read; or rows of experience. None
                if nothing is pushed but what was done.
            gradient: at θ_base, float32, one number for each trained one; None if there is none.
        """
        again = self.vector is not None and self._difference is not None
        # Otherwise it goes on: the parent shall hear that training has diverged.
        if again and vector is not None and is_finite(vector):
            assert self._difference is not None
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
        if self.vector is not None and gradient is not None and self.pushes == "gradient":
            return "gradient", np.concatenate((gradient, vector[trained:]))
        return "weights", vector


# ------------------------------------------------------------------------------------------------
# What a child has done since its last push, kept within what a push may report.

#: One push reports the newest returns, at most so many. Even a day without a parent then fits into
#: a push.
_MOST_RETURNS = 4096


@dataclass(frozen=True)
class LeftOut:
    """What a push may not report: the number of returns, and the names of measures."""

    returns: int = 0
    measures: tuple[str, ...] = ()


@dataclass
class PendingWork:
    """Work that the parent has not heard of."""

    #: Environment steps.
    steps: int = 0
    #: Undiscounted return of each of the newest finished episodes.
    returns: list[float] = field(default_factory=list)
    #: The backend's own figures, the newest that there are.
    measures: dict[str, float] = field(default_factory=dict)

    def add(self, steps: int, returns: list[float], measures: dict[str, float]) -> LeftOut:
        """Adds the work since the last call, and leaves out what a push may not carry.

        Args:
            steps: environment steps.
            returns: undiscounted, one for each episode that ended. A push carries no return that
                is NaN, infinite or beyond ±1e30.
            measures: the backend's own figures; see
            `genkidama.protocol.messages.permitted_measures`.

        Returns:
            What has been left out. A NaN or infinite measure means "not measured", and is not
            mentioned.
        """
        reported = [value for value in returns if abs(value) <= LARGEST_RETURN]
        permitted = permitted_measures(measures)
        self.steps += steps
        self.returns = (self.returns + reported)[-_MOST_RETURNS:]
        self.measures = permitted or self.measures
        unknown = (name for name in measures if name not in permitted)
        figures = tuple(name for name in unknown if abs(measures[name]) < math.inf)
        return LeftOut(len(returns) - len(reported), figures)


#: So many characters of a reason fit into a `Leave`.
_LONGEST_REASON = 200

#: A parent closes with this code when the run is over, and with another code if it may come back.
_RUN_OVER = 1000


def resolve_host(experiment: Experiment, parent: str) -> Experiment:
    """The same, its engine's host named: one without a name is on the parent's machine.

    Args:
        parent: `ws://HOST:PORT`.
    """
    replay = experiment.section("replay")
    scheme, found, rest = ("" if replay is None else replay.url).partition("://")
    user, at, place = rest.rpartition("@")
    if not found or not (place.startswith((":", "/")) or not place):
        return experiment
    host = urlsplit(parent).hostname or "127.0.0.1"
    named = f"[{host}]" if ":" in host else host
    replay = msgspec.structs.replace(replay, url=f"{scheme}://{user}{at}{named}{place}")
    return msgspec.structs.replace(experiment, replay=replay)


def with_free_exchange(experiment: Experiment) -> Experiment:
    """The same for a child whose role brings nothing that `child.exchange` counts: a free one."""
    child = experiment.child
    lacking = {"act": "update", "learn": "episode"}.get(experiment.role)
    if child.exchange != lacking:
        return experiment
    seconds = child.exchange_seconds or (0.0 if child.exchange_steps else 1.0)
    replace = msgspec.structs.replace
    return replace(experiment, child=replace(child, exchange="free", exchange_seconds=seconds))


class Session:
    """A child's mind: who it is, what it trains, what its parent has counted.

    Args:
        name: unique among the parent's children.
        word: a random word that tells this process from another one with the same name.
        numbered: whether the name gets a number if it is taken; False if a person has chosen it.
        parent: the parent's name in errors, its address for example.
        role: what it wants to do; empty or "experiment" leaves it to the parent.
        part: which part of a parent it is.
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
    ) -> None:
        self.name = name
        self.parent = parent
        self.part = part
        #: The experiment, the run's name and, in a search, the trial; set by the first welcome.
        self.experiment: Experiment | None = None
        self.run = ""
        self.trial: int | None = None
        #: What the parent holds of the network; set by `join`.
        self.signature: Signature | None = None
        self._join = Join(signature=[])
        self.cores = 0
        #: The version of θ_P in the parent's last weights.
        self.version = 0
        #: Set when the run is over, or the trial.
        self.over: Over | None = None
        #: What proves it to the other parts, if this is the first one.
        self.proof = ""
        self._word = word
        self._role: Any = role.removeprefix("experiment")
        self._base = name if numbered else ""
        self._number = 1
        self._sequence = 0
        self._gathered = PendingWork()
        self._unanswered: PendingWork | None = None
        self._begun = False
        self._basis = DeltaBase()
        #: Why the parent has refused NaN or infinite weights, until it has given others.
        self._diverged = ""
        self._told_of_measures = False
        self._line = ChildDelta()

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
        """What the parent's rule takes."""
        return self._basis.pushes

    def push(self, vector: Vector | None, gradient: Vector | None = None) -> Push:
        """The weights, or what the parent takes instead, and all gathered work.

        If the last push has no reply, this one has its number and its work.

        Args:
            vector: θ_C, float32, shape (signature.size,). It must not change until the reply is
                heard. None from a child that only acts.
            gradient: as `DeltaBase.carried` takes it.
        """
        if self._unanswered is None:
            self._unanswered = self._gathered
            self._gathered = PendingWork()
            self._sequence += 1
        assert self.signature is not None
        kind, carried = self._basis.carried(vector, gradient, self.signature)
        push = Push(
            version=self.version,
            sequence=self._sequence,
            steps=self._unanswered.steps,
            returns=self._unanswered.returns,
            trial=self.trial,
            measures=self._unanswered.measures,
            kind=kind,
            vector=carried,
        )
        return self._line.write(push)

    def leave(self, over: str = "", proof: str = "") -> Leave:
        """The last request; `over` is why the first part, if this is another, has ended the run,
        and `proof` its proof."""
        reason = over or (self.over.reason if self.over else "stopped")
        return Leave(reason=reason[:_LONGEST_REASON], over=bool(over), proof=proof)

    def give_back(self, reason: str) -> Leave:
        """The last request on a connection, if the trial cannot be trained here."""
        return Leave(reason=reason[:_LONGEST_REASON], failed=True)

    # What has happened.

    def call_like(self, other: Session) -> None:
        """Takes over the name that another part has given to this child."""
        self.name = other.name
        self._number = other._number

    def gather(self, steps: int, returns: list[float], measures: dict[str, float]) -> LeftOut:
        """Adds the work since the last call to that of the next push; see `PendingWork.add`.

        Returns:
            What has been left out. Measures are mentioned only the first time.
        """
        left_out = self._gathered.add(steps, returns, measures)
        if self._told_of_measures:
            return LeftOut(left_out.returns)
        self._told_of_measures = bool(left_out.measures)
        return left_out

    def hear(self, request: Request, reply: Reply) -> Decision:
        """Decides what follows from a reply.

        Args:
            request: the request that is answered. A reply that comes after its request was given up
                must not be handed in.
            reply: as `decode_reply` gives it.

        Raises:
            ProtocolError: the reply makes no sense here, or the parent no longer knows this
                conversation. The connection is of no use any more, and nothing has changed.
            Refused: the parent does not want this child.
            GenkidamaError: the child cannot go on with this parent.
        """
        if isinstance(reply, Welcome | Weights) and reply.proof:
            self.proof = reply.proof
        match request:
            case Push():
                return self._hear_of_push(request, reply)
            case Pull():
                return self._blend(expect(Weights, reply, "a pull"), None)
            case Hello():
                return self._hear_of_hello(reply)
            case Join():
                return self._hear_of_join(reply)
        raise ValueError(f"no decision follows from the reply to a {type(request).__name__}")

    def closed(self, code: int | None, reason: str) -> None:
        """The connection is gone, with the parent's close code and reason, if it gave any."""
        if code == _RUN_OVER:
            self._end(reason or "the run is over")

    def renew(self) -> None:
        """Forgets the trial that is over, so that the next hello asks for another one."""
        self.trial = None
        self.signature = None
        self.version = 0
        self.over = None
        self._gathered = PendingWork()
        self._unanswered = None
        self._begun = False
        self._basis = DeltaBase()

    # Inside.

    def _hear_of_hello(self, reply: Reply) -> Decision:
        training = self.signature is not None
        if isinstance(reply, Refusal) and reply.code == "name" and self._base and not training:
            self._number += 1
            self.name = f"{self._base}-{self._number}"
            return Renamed(self.name)
        if isinstance(reply, Refusal) and reply.code == "token" and self._base and not training:
            self.name = self._base  # the token is for no numbered name
            self._number = 1
        welcome = expect(Welcome, reply, "hello")
        check_welcome(welcome, self.parent, self.part)
        self.run = welcome.run
        self._line = ChildDelta(welcome.encoding)
        return self._resume(welcome) if training else self._start(welcome)

    def _start(self, welcome: Welcome) -> Decision:
        if welcome.wait:
            return Wait(welcome.wait)
        self.trial = welcome.trial
        if welcome.stop:
            return self._end(welcome.stop)
        self.experiment = self._read(welcome)
        if self.experiment.shares_replay:
            self._role = self.experiment.role
        self._basis = DeltaBase(self.experiment.pushes)
        return Train(self.experiment)

    def _resume(self, welcome: Welcome) -> Decision:
        """The parent may have been replaced, or may have given the trial to another child."""
        if self.trial is not None and welcome.stop:
            return self._end(welcome.stop)
        if welcome.trial != self.trial or welcome.wait:
            return self._end("another child trains it now", next=True)
        assert self.experiment is not None
        check_same(self.experiment, self._read(welcome), self.parent)
        return self._join

    def _hear_of_join(self, reply: Reply) -> Decision:
        weights = expect(Weights, reply, "a join")
        check_weights(weights, self.signature)
        diverged = self._diverged
        self._diverged = ""
        known = self._basis.vector is not None and weights.vector is not None
        if self._begun and not diverged and known:
            # What is pushed next starts from the same basis. A parent may have gone back behind it.
            self.version = min(self.version, weights.version)
        else:
            self.version = weights.version
            self._basis.take_over(None if self._begun and not diverged else weights.vector)
        assert self.signature is not None
        self._line.begin(weights, self.signature)
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
        if self._begun:
            return Keep()
        self._begun = True
        return Begin(weights.version, weights.progress, weights.vector, weights.steps)

    def _hear_of_push(self, push: Push, reply: Reply) -> Decision:
        if isinstance(reply, Refusal) and reply.code == "finite" and self.signature is not None:
            self._diverged = reply.reason
            return self._join
        if isinstance(reply, Refusal) and reply.code in ("trial", "base"):
            # The reply to the next hello will tell what to train, and to the next join θ_P.
            raise ProtocolError(reply.code, reply.reason)
        decision = self._blend(expect(Weights, reply, "a push"), self._basis.pushed)
        self._unanswered = None
        return decision

    def _blend(self, weights: Weights, sent: Vector | None) -> BlendReply:
        weights = self._line.read(weights)
        check_weights(weights, self.signature)
        self.version = weights.version
        self._basis.take_over(weights.vector)
        if weights.stop:
            self._end(weights.stop, weights.next)
        return BlendReply(weights.progress, sent, self._line.settle(weights), weights.steps)

    def _end(self, reason: str, next: bool = False) -> Over:
        """Keeps the first reason. The last call decides whether there may be another trial."""
        self.over = Over(self.over.reason if self.over else reason, next)
        return self.over

    def _read(self, welcome: Welcome) -> Experiment:
        told = Experiment.from_dict(welcome.experiment, source=f"the experiment of {self.parent}")
        return resolve_host(told, self.parent)
