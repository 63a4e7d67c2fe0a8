"""Everything the parent decides, as one pure method: `ParameterServer.handle(child, message, now)`.

Laws of this file:
- No clock, no socket, no file: the shell passes `now` (seconds, never going back) and writes what
  `take_events` gives it.
- Nothing here waits, so each blend is atomic without a lock.
- A refused message changes nothing but a counter: the weights and the run go on untouched.
- Parent side, a *trial* is one set of hyperparameters with its vector and history. A plain run has
  one, shared by all children, that is never stopped before the run's own end.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from math import fsum
from typing import Any

import msgspec

from genkidama.blending import blend
from genkidama.errors import ProtocolError
from genkidama.experiment import Experiment
from genkidama.messages import PROTOCOL, Goodbye, Hello, Join, Leave, Push, Refusal, Reply, Request, Weights, Welcome
from genkidama.weights import Signature, Vector, is_finite

__all__ = ["ChildRecord", "ParameterServer", "Snapshot", "Trial"]

Event = dict[str, Any]

#: Beyond this a return is nonsense, and the sum of a window of them could overflow.
_LARGEST_RETURN = 1e30


@dataclass
class ChildRecord:
    """What the parent knows of one child, connected or not."""

    session: str = ""
    connected: bool = False
    joined: bool = False
    #: The number of its last counted push in this session.
    sequence: int = 0
    exchanges: int = 0
    episodes: int = 0
    steps: int = 0


@dataclass
class Trial:
    """One set of hyperparameters with its weights: θ_P, what it means, and how far it has come."""

    window: int
    signature: Signature | None = None
    vector: Vector | None = None
    #: How many pushes have been applied.
    version: int = 0
    episodes: int = 0
    steps: int = 0
    returns: deque[float] = field(default_factory=deque)
    _sum: float = 0.0
    _unchecked: int = 0

    def add_returns(self, returns: list[float]) -> None:
        kept = self.returns
        for value in returns:
            kept.append(value)
            self._sum += value
            if len(kept) > self.window:
                self._sum -= kept.popleft()
        self._unchecked += len(returns)
        if self._unchecked >= self.window:  # the running sum's rounding errors are thrown away now and then
            self._sum, self._unchecked = fsum(kept), 0

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last `window` episodes, of fewer if there are fewer, None if there are none."""
        return self._sum / len(self.returns) if self.returns else None


class Snapshot(msgspec.Struct, kw_only=True):
    """A trial's state as a checkpoint's metadata holds it, beside the vector and its signature."""

    version: int
    exchanges: int
    updates: float
    episodes: int
    steps: int
    #: Seconds of training so far.
    seconds: float
    alpha: float
    beta: float
    mean_return: float | None = None
    returns: list[float] = []
    #: Per child: `exchanges`, `episodes`, `steps`.
    children: dict[str, dict[str, int]] = {}
    experiment: dict[str, Any] = {}


class ParameterServer:
    """The parent's mind: who is there, what θ_P is, what each message is answered.

    Args:
        experiment: the settings; `parent.alpha` and `[stop]` are used here.
        run: the run's name, told to the children.

    Not thread-safe and in no need of it: one event loop calls `handle` for all children.
    """

    def __init__(self, experiment: Experiment, run: str = "") -> None:
        self.experiment = experiment
        self.run = run
        self.trial = Trial(window=experiment.stop.window)
        self.children: dict[str, ChildRecord] = {}
        #: How many messages were refused, by code.
        self.refusals: Counter[str] = Counter()
        #: Why the run is over; empty while it goes on.
        self.stop = ""
        self._welcome = experiment.to_dict()
        self._events: list[Event] = []
        self._exchanges = 0
        self._pushers = 0
        self._progress = 0.0
        #: Seconds of training before this process, and when this one's training began.
        self._seconds_before = 0.0
        self._began: float | None = None

    # What the shell calls.

    def handle(self, child: str, message: Request, now: float) -> Reply:
        """Answers one message of `child`. A message that is not allowed is answered with a `Refusal`.

        Args:
            child: the name under which the connection said hello; for a `Hello` itself, any text.
            message: as `decode_request` gives it.
            now: seconds, never less than at the call before.
        """
        try:
            match message:
                case Push():
                    return self._push(child, message, now)
                case Hello():
                    return self._hello(message, now)
                case Join():
                    return self._join(child, message, now)
                case Leave():
                    return self._leave(child, message, now)
        except ProtocolError as error:
            return self.refuse(child, error, now)

    def refuse(self, child: str, error: ProtocolError, now: float) -> Refusal:
        """Counts and notes something that is not allowed, and words the reply."""
        self.refusals[error.code] += 1
        self._note(now, "refused", child=child, code=error.code, reason=error.reason)
        return Refusal(code=error.code, reason=error.reason)

    def disconnected(self, child: str, reason: str, now: float) -> None:
        """The child's connection is gone. It may come back under the same name."""
        record = self.children.get(child)
        if record is not None and record.connected:
            record.connected = record.joined = False
            if not record.exchanges:
                del self.children[child]
            if self.trial.vector is None and not any(other.joined for other in self.children.values()):
                self.trial.signature = None  # nobody has pushed: the next child may bring another network
            self._note(now, "leave", child=child, reason=reason)

    def tick(self, now: float) -> None:
        """Lets time-bound stop conditions come true while nobody pushes."""
        self._check_stop(now)

    def take_events(self) -> list[Event]:
        """What happened since the last call, oldest first, one dictionary a line of the history."""
        events, self._events = self._events, []
        return events

    # What others may read.

    @property
    def exchanges(self) -> int:
        """Pushes applied, of all children."""
        return self._exchanges

    @property
    def updates(self) -> float:
        """Exchanges a child on average: the thesis' count of updates."""
        return self._exchanges / max(1, self._pushers)

    @property
    def connected(self) -> list[str]:
        return [name for name, record in self.children.items() if record.connected]

    def seconds(self, now: float) -> float:
        """Seconds of training, from the first join on."""
        return self._seconds_before + (now - self._began if self._began is not None else 0.0)

    def progress(self, now: float) -> float:
        """How much of the strictest countable stop condition is used up, in [0, 1]; it never goes back,
        though a new child lowers the updates, so that schedules do not either."""
        stop, used = self.experiment.stop, self._progress
        if stop.updates:
            used = self.updates / stop.updates
        if stop.episodes:
            used = max(used, self.trial.episodes / stop.episodes)
        if stop.seconds:
            used = max(used, self.seconds(now) / stop.seconds)
        self._progress = min(1.0, used)
        return self._progress

    def snapshot(self, now: float) -> Snapshot:
        """What a checkpoint says beside the vector."""
        trial = self.trial
        return Snapshot(
            version=trial.version,
            exchanges=self._exchanges,
            updates=self.updates,
            episodes=trial.episodes,
            steps=trial.steps,
            seconds=self.seconds(now),
            alpha=self.experiment.parent.alpha,
            beta=self.experiment.child.beta,
            mean_return=trial.mean_return,
            returns=list(trial.returns),
            children={
                name: {"exchanges": record.exchanges, "episodes": record.episodes, "steps": record.steps}
                for name, record in self.children.items()
            },
            experiment=self._welcome,
        )

    def restore(self, snapshot: Snapshot, signature: Signature, vector: Vector) -> None:
        """Goes on where a checkpoint left off. The vector is taken over, not copied."""
        trial = self.trial
        trial.signature, trial.vector, trial.version = signature, vector, snapshot.version
        trial.episodes, trial.steps = snapshot.episodes, snapshot.steps
        trial.add_returns(snapshot.returns)
        self.children = {
            name: ChildRecord(exchanges=counts.get("exchanges", 0), episodes=counts.get("episodes", 0), steps=counts.get("steps", 0))
            for name, counts in snapshot.children.items()
        }
        self._exchanges = snapshot.exchanges
        self._pushers = sum(1 for record in self.children.values() if record.exchanges)
        self._seconds_before = snapshot.seconds

    # One method a message.

    def _hello(self, message: Hello, now: float) -> Reply:
        if message.protocol != PROTOCOL:
            raise ProtocolError(
                "version",
                f"child {message.name!r} speaks protocol {message.protocol}, this parent protocol {PROTOCOL}; "
                "install the same version on both",
            )
        record = self.children.get(message.name)
        if record is not None and record.connected and record.session != message.session:
            raise ProtocolError("name", f"the name {message.name!r} is in use by another child; give this one another name")
        if record is None or not record.connected:
            limit = self.experiment.parent.max_children
            if len(self.connected) >= limit:
                raise ProtocolError("full", f"{limit} children are connected already (parent.max_children)")
        record = self.children.setdefault(message.name, ChildRecord())
        if record.session != message.session:
            record.session, record.sequence = message.session, 0
        record.connected, record.joined = True, False
        return Welcome(protocol=PROTOCOL, experiment=self._welcome, run=self.run, stop=self.stop)

    def _join(self, child: str, message: Join, now: float) -> Reply:
        record = self._record(child)
        signature, trial = message.as_signature(), self.trial
        limit = self.experiment.parent.max_parameters
        if not 0 < signature.size <= limit:
            raise ProtocolError("signature", f"a network of {signature.size} numbers; 1 to {limit} are accepted (parent.max_parameters)")
        if any(name == "__metadata__" for name, _ in signature.entries):  # no safetensors file could hold it
            raise ProtocolError("signature", f"child {child!r} gives a parameter the name '__metadata__'")
        if len({name for name, _ in signature.entries}) < len(signature.entries):
            raise ProtocolError("signature", f"child {child!r} gives two parameters the same name")
        if trial.signature is None:
            trial.signature = signature
        elif (difference := trial.signature.difference(signature)) is not None:
            raise ProtocolError("signature", f"child {child!r} has another network: {difference}")
        record.joined = True
        if self._began is None:
            self._began = now
        self._note(now, "join", child=child, version=trial.version, parameters=signature.size)
        return self._weights(now)

    def _push(self, child: str, message: Push, now: float) -> Reply:
        record, trial = self._record(child), self.trial
        if not record.joined or trial.signature is None:
            raise ProtocolError("order", f"child {child!r} pushes before it has joined")
        vector = message.vector
        if vector is None or len(vector) != trial.signature.size:
            length = 0 if vector is None else len(vector)
            raise ProtocolError("length", f"child {child!r} pushes {length} numbers, expected {trial.signature.size}")
        if message.version > trial.version:
            raise ProtocolError("order", f"child {child!r} starts from version {message.version}, the newest is {trial.version}")
        if not is_finite(vector):
            raise ProtocolError("finite", f"child {child!r} pushes NaN or infinity")
        if not all(-_LARGEST_RETURN <= value <= _LARGEST_RETURN for value in message.returns):
            raise ProtocolError("finite", f"child {child!r} reports a return that is NaN, infinite or beyond ±{_LARGEST_RETURN:g}")
        if message.sequence <= record.sequence:
            return self._weights(now)  # a push whose reply got lost: answered again, counted once
        if self.stop:
            return self._weights(now)  # the run is over, and what it came to stays as it is
        if trial.vector is None:
            trial.vector = vector.copy()  # with no weights of its own, the parent takes the first child's
        else:
            blend(trial.vector, vector, self.experiment.parent.alpha)
        staleness = trial.version - message.version
        trial.version += 1
        trial.episodes += len(message.returns)
        trial.steps += message.steps
        trial.add_returns(message.returns)
        self._exchanges += 1
        self._pushers += not record.exchanges
        record.sequence = message.sequence
        record.exchanges += 1
        record.episodes += len(message.returns)
        record.steps += message.steps
        if not self._exchanges % self.experiment.parent.history_every:
            self._note(
                now,
                "exchange",
                child=child,
                version=trial.version,
                update=self.updates,
                staleness=staleness,
                episodes=trial.episodes,
                steps=trial.steps,
                mean_return=trial.mean_return,
            )
        self._check_stop(now)
        return self._weights(now)

    def _leave(self, child: str, message: Leave, now: float) -> Reply:
        self._record(child)
        self.disconnected(child, message.reason or "left", now)
        return Goodbye()

    def _record(self, child: str) -> ChildRecord:
        record = self.children.get(child)
        if record is None or not record.connected:
            raise ProtocolError("order", "the first message of a connection is a hello")
        return record

    def _weights(self, now: float) -> Weights:
        trial = self.trial
        return Weights(version=trial.version, progress=self.progress(now), stop=self.stop, vector=trial.vector)

    def _check_stop(self, now: float) -> None:
        if self.stop:
            return
        stop, trial = self.experiment.stop, self.trial
        mean = trial.mean_return if stop.mean_return is not None and len(trial.returns) == stop.window else None
        if stop.mean_return is not None and mean is not None and mean >= stop.mean_return:
            self.stop = f"mean return {mean:.1f} over {stop.window} episodes reached {stop.mean_return:g}"
        elif stop.updates is not None and self.updates >= stop.updates:
            self.stop = f"{stop.updates} updates done"
        elif stop.episodes is not None and trial.episodes >= stop.episodes:
            self.stop = f"{stop.episodes} episodes done"
        elif stop.seconds is not None and self.seconds(now) >= stop.seconds:
            self.stop = f"{stop.seconds:g} seconds are over"
        if self.stop:
            self._note(now, "stop", reason=self.stop, version=trial.version)

    def _note(self, now: float, event: str, **details: Any) -> None:
        self._events.append({"time": now, "event": event, **details})
