"""Everything the parent decides, as one pure method: `ParameterServer.handle(child, message, now)`.

Laws of this file:
- No clock, no socket, no file: the shell passes `now` (seconds, never going back) and writes what
  `take_events` gives it.
- Nothing here waits, so each blend is atomic without a lock.
- A refused message changes nothing but a counter: the weights and the run go on untouched.
- Parent side, a *trial* is one set of hyperparameters with its vector and history. A plain run has
  one, shared by all children, that is never stopped before the run's own end. In a search each child
  has its own, whose vector is what that child pushed last; `genkidama.tuning.service` says which.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from genkidama.averaging import blend
from genkidama.errors import ProtocolError
from genkidama.experiment import Experiment
from genkidama.messages import (
    PROTOCOL,
    Goodbye,
    Hello,
    Join,
    Leave,
    Push,
    Refusal,
    Reply,
    Request,
    Weights,
    Welcome,
)
from genkidama.trial import Snapshot, Trial
from genkidama.tuning.service import Search, SearchTrial
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
    #: What it trains.
    trial: Trial | None = field(default=None, compare=False, repr=False)


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
        #: The one trial of a plain run.
        self.trial = Trial(window=experiment.stop.window, experiment=experiment.to_dict())
        #: Hands out trials, if the experiment is a search.
        self.search = Search(experiment, self._note) if experiment.search is not None else None
        self.children: dict[str, ChildRecord] = {}
        #: How many messages were refused, by code.
        self.refusals: Counter[str] = Counter()
        #: Why the run is over; empty while it goes on.
        self.stop = ""
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
        if self.search is not None:
            self.search.vanished(child, now)
        record = self.children.get(child)
        if record is not None and record.connected:
            record.connected = record.joined = False
            if not record.exchanges:
                del self.children[child]
            trial, record.trial = record.trial, None
            if (
                trial is not None
                and trial.vector is None
                and not any(
                    other.joined for other in self.children.values() if other.trial is trial
                )
            ):
                trial.signature = (
                    None  # nobody has pushed: the next child may bring another network
                )
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

    def idle(self, child: str) -> bool:
        """Whether a child has nothing to train: in a search, while it waits for a trial or when its trial has ended."""
        record = self.children.get(child)
        return self.search is not None and (
            record is None or record.trial is None or bool(record.trial.stop)
        )

    @property
    def connected(self) -> list[str]:
        return [name for name, record in self.children.items() if record.connected]

    def seconds(self, now: float) -> float:
        """Seconds of training, from the first join on."""
        return self._seconds_before + (now - self._began if self._began is not None else 0.0)

    def progress(self, now: float) -> float:
        """How much of the strictest countable stop condition is used up, in [0, 1]; it never goes back,
        though a new child lowers the updates, so that schedules do not either. Of a plain run."""
        stop, used = self.experiment.stop, self._progress
        if stop.updates:
            used = self.updates / stop.updates
        if stop.episodes:
            used = max(used, self.trial.episodes / stop.episodes)
        if stop.seconds:
            used = max(used, self.seconds(now) / stop.seconds)
        self._progress = min(1.0, used)
        return self._progress

    def snapshot(self, now: float, trial: Trial | None = None) -> Snapshot:
        """What a checkpoint says beside the vector: of the plain run, or of one trial of a search."""
        if isinstance(trial, SearchTrial):
            return Snapshot(
                version=trial.version,
                exchanges=trial.version,
                updates=trial.version,
                episodes=trial.episodes,
                steps=trial.steps,
                seconds=trial.seconds,
                alpha=self.experiment.parent.alpha,
                beta=self.experiment.child.beta,
                mean_return=trial.mean_return,
                returns=list(trial.returns),
                experiment=trial.experiment,
            )
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
                name: {
                    "exchanges": record.exchanges,
                    "episodes": record.episodes,
                    "steps": record.steps,
                }
                for name, record in self.children.items()
            },
            experiment=trial.experiment,
        )

    def restore(self, snapshot: Snapshot, signature: Signature, vector: Vector) -> None:
        """Goes on where a checkpoint left off. The vector is taken over, not copied."""
        self.trial.restore(snapshot, signature, vector)
        self.children = {
            name: ChildRecord(
                exchanges=counts.get("exchanges", 0),
                episodes=counts.get("episodes", 0),
                steps=counts.get("steps", 0),
            )
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
            raise ProtocolError(
                "name",
                f"the name {message.name!r} is in use by another child; give this one another name",
            )
        if record is None or not record.connected:
            limit = self.experiment.parent.max_children
            if len(self.connected) >= limit:
                raise ProtocolError(
                    "full", f"{limit} children are connected already (parent.max_children)"
                )
        trial: Trial | None = self.trial
        if self.search is not None and not self.stop:
            trial = self.search.assign(message.name, now, message.trial)
        record = self.children.setdefault(message.name, ChildRecord())
        if record.session != message.session:
            record.session, record.sequence = message.session, 0
        record.connected, record.joined, record.trial = True, False, trial
        if trial is None:
            assert self.search is not None
            return Welcome(protocol=PROTOCOL, experiment={}, run=self.run, wait=self.search.wait)
        return Welcome(
            protocol=PROTOCOL,
            experiment=trial.experiment,
            run=self.run,
            stop=self.stop,
            trial=trial.number,
        )

    def _join(self, child: str, message: Join, now: float) -> Reply:
        record, trial = self._record(child)
        signature = message.as_signature()
        limit = self.experiment.parent.max_parameters
        if not 0 < signature.size <= limit:
            raise ProtocolError(
                "signature",
                f"a network of {signature.size} numbers; 1 to {limit} are accepted (parent.max_parameters)",
            )
        if any(
            name == "__metadata__" for name, _ in signature.entries
        ):  # no safetensors file could hold it
            raise ProtocolError(
                "signature", f"child {child!r} gives a parameter the name '__metadata__'"
            )
        if len({name for name, _ in signature.entries}) < len(signature.entries):
            raise ProtocolError("signature", f"child {child!r} gives two parameters the same name")
        if trial.signature is None:
            trial.signature = signature
        elif (difference := trial.signature.difference(signature)) is not None:
            raise ProtocolError("signature", f"child {child!r} has another network: {difference}")
        record.joined = True
        if self._began is None:
            self._began = now
        if self.search is not None and isinstance(trial, SearchTrial):
            self.search.heard(trial, now)
        self._note(
            now,
            "join",
            child=child,
            version=trial.version,
            parameters=signature.size,
            **_number(trial),
        )
        return self._weights(trial, now)

    def _push(self, child: str, message: Push, now: float) -> Reply:
        record, trial = self._record(child)
        if not record.joined or trial.signature is None:
            raise ProtocolError("order", f"child {child!r} pushes before it has joined")
        if message.trial != trial.number or (
            self.search is not None and not self.search.owns(child, trial)
        ):
            raise ProtocolError(
                "trial",
                f"child {child!r} pushes for trial {message.trial}, which it does not own; it has to say hello again",
            )
        vector = message.vector
        if vector is None or len(vector) != trial.signature.size:
            length = 0 if vector is None else len(vector)
            raise ProtocolError(
                "length",
                f"child {child!r} pushes {length} numbers, expected {trial.signature.size}",
            )
        if message.version > trial.version:
            raise ProtocolError(
                "order",
                f"child {child!r} starts from version {message.version}, the newest is {trial.version}",
            )
        if not is_finite(vector):
            if isinstance(trial, SearchTrial):
                return self._diverged(trial, now)
            raise ProtocolError("finite", f"child {child!r} pushes NaN or infinity")
        if not all(-_LARGEST_RETURN <= value <= _LARGEST_RETURN for value in message.returns):
            raise ProtocolError(
                "finite",
                f"child {child!r} reports a return that is NaN, infinite or beyond ±{_LARGEST_RETURN:g}",
            )
        if message.sequence <= record.sequence:
            return self._weights(
                trial, now, answer=True
            )  # a push whose reply got lost: answered again, counted once
        if self.stop or trial.stop:
            return self._weights(
                trial, now, answer=True
            )  # the run is over, and what it came to stays as it is
        if trial.vector is None:
            trial.vector = (
                vector.copy()
            )  # with no weights of its own, the parent takes the first child's
        elif self.search is not None:
            trial.vector[:] = vector  # nobody else has any share in them
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
            event: Event = {
                "time": now,
                "event": "exchange",
                "child": child,
                "version": trial.version,
                "update": self.updates,
                "staleness": staleness,
                "episodes": trial.episodes,
                "steps": trial.steps,
                "mean_return": trial.mean_return,
            }
            if trial.number is not None:
                event["trial"] = trial.number
            self._events.append(event)
        if message.measures and not record.exchanges % self.experiment.parent.history_every:
            # Every n-th of each child, not of all: its figures are a sample, and children that push in turns are all in it.
            self._events.append(
                {
                    "time": now,
                    "event": trial.experiment["child"]["backend"],
                    "child": child,
                    **_number(trial),
                    **message.measures,
                }
            )
        if self.search is not None and isinstance(trial, SearchTrial):
            self.search.heard(trial, now)
            self.search.advance(trial, now)
        self._check_stop(now)
        return self._weights(trial, now, answer=True)

    def _leave(self, child: str, message: Leave, now: float) -> Reply:
        _, trial = self._record(child)
        if self.search is not None and self.search.owns(child, trial):
            if message.failed:
                self.search.failed(child, message.reason, now)
            else:
                self.search.released(child)
            self._check_stop(now)
        self.disconnected(child, message.reason or "left", now)
        return Goodbye()

    def _record(self, child: str) -> tuple[ChildRecord, Trial]:
        record = self.children.get(child)
        if record is None or not record.connected or record.trial is None:
            raise ProtocolError("order", "the first message of a connection is a hello")
        return record, record.trial

    def _weights(self, trial: Trial, now: float, answer: bool = False) -> Weights:
        """θ_P; only its version where it `answer`s a push of a search, since it is what the child has pushed."""
        if self.search is None:
            return Weights(
                version=trial.version,
                progress=self.progress(now),
                stop=self.stop,
                vector=trial.vector,
            )
        # Once a search is over, a child is told so with the trial of a plain run, which nobody trains.
        return Weights(
            version=trial.version,
            progress=self.search.progress(trial) if isinstance(trial, SearchTrial) else 1.0,
            stop=self.stop or trial.stop,
            next=bool(trial.stop) and not self.stop,
            vector=None if answer else trial.vector,
        )

    def _diverged(self, trial: SearchTrial, now: float) -> Weights:
        assert self.search is not None
        if not (self.stop or trial.stop):
            self.search.diverged(trial, now)
            self._check_stop(now)
        return self._weights(trial, now, answer=True)

    def _check_stop(self, now: float) -> None:
        if self.stop:
            return
        if self.search is not None:
            self.stop = self.search.over(now)
            if self.stop:
                self._note(now, "stop", reason=self.stop)
            return
        stop, trial = self.experiment.stop, self.trial
        mean = (
            trial.mean_return
            if stop.mean_return is not None and len(trial.returns) == stop.window
            else None
        )
        if stop.mean_return is not None and mean is not None and mean >= stop.mean_return:
            self.stop = (
                f"mean return {mean:.1f} over {stop.window} episodes reached {stop.mean_return:g}"
            )
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


def _number(trial: Trial) -> dict[str, int]:
    """The trial's number as a history's line holds it: absent in a plain run."""
    return {} if trial.number is None else {"trial": trial.number}
