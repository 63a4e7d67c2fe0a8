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

from typing import Any

from genkidama._version import __version__
from genkidama.basis import Basis
from genkidama.compression import ENCODINGS
from genkidama.decisions import (
    Begin,
    Blend,
    Decision,
    Keep,
    Over,
    Renamed,
    Reset,
    Train,
    Wait,
    check_same,
    check_welcome,
    expect,
)
from genkidama.errors import EnvironmentFailure, ProtocolError
from genkidama.experiment import Experiment
from genkidama.gathered import Gathered, LeftOut
from genkidama.lines import ChildLine, check_weights
from genkidama.messages import (
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
)
from genkidama.parts import WHOLE, Part
from genkidama.roles import reachable
from genkidama.weights import Signature, Vector

__all__ = ["Session"]

#: So many characters of a reason fit into a `Leave`.
_LONGEST_REASON = 200

#: A parent closes with this code when the run is over, and with another code if it may come back.
_RUN_OVER = 1000


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
        part: Part = WHOLE,
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
        self._gathered = Gathered()
        self._unanswered: Gathered | None = None
        self._begun = False
        self._basis = Basis()
        #: Why the parent has refused NaN or infinite weights, until it has given others.
        self._diverged = ""
        self._told_of_measures = False
        self._line = ChildLine()

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
            gradient: as `Basis.carried` takes it.
        """
        if self._unanswered is None:
            self._unanswered = self._gathered
            self._gathered = Gathered()
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
        """Adds the work since the last call to that of the next push; see `Gathered.add`.

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
        self._gathered = Gathered()
        self._unanswered = None
        self._begun = False
        self._basis = Basis()

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
        self._line = ChildLine(welcome.encoding)
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
        self._basis = Basis(self.experiment.pushes)
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

    def _blend(self, weights: Weights, sent: Vector | None) -> Blend:
        weights = self._line.read(weights)
        check_weights(weights, self.signature)
        self.version = weights.version
        self._basis.take_over(weights.vector)
        if weights.stop:
            self._end(weights.stop, weights.next)
        return Blend(weights.progress, sent, self._line.settle(weights), weights.steps)

    def _end(self, reason: str, next: bool = False) -> Over:
        """Keeps the first reason. The last call decides whether there may be another trial."""
        self.over = Over(self.over.reason if self.over else reason, next)
        return self.over

    def _read(self, welcome: Welcome) -> Experiment:
        told = Experiment.from_dict(welcome.experiment, source=f"the experiment of {self.parent}")
        return reachable(told, self.parent)
