"""A parent's half of the protocol, without I/O: `ParameterServer.handle(child, message, now)`.

Laws of this file:
- No clock, no socket, no file. The shell passes `now` (seconds, never going back) and writes the
  events that `take_events` gives it.
- Nothing here waits, so each push is applied at once and whole, without a lock.
- A refused message changes nothing but a counter: the weights and the run go on untouched.
- A *trial* is one set of hyperparameters with its vector and history. `Trials` assigns it to
  children and ends it. Nothing here asks whether the run is a search.
"""

from __future__ import annotations

import hmac
import math
from collections import Counter
from collections.abc import Collection
from copy import deepcopy
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from genkidama.config.experiment import Experiment
from genkidama.config.formatting import printable, shortened
from genkidama.config.plugin import home, is_of_parents
from genkidama.errors import ConfigurationError, ProtocolError
from genkidama.protocol.messages import (
    Goodbye,
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
)
from genkidama.protocol.shard import SECRET, Shard, end_proof
from genkidama.protocol.vector import Signature, Vector, is_finite
from genkidama.runtime.pacing import Throttle
from genkidama.server.child_record import (
    SAMPLE_SECONDS,
    ChildRecord,
    restore_children,
    sample_distance,
    snapshot_children,
)
from genkidama.server.events import (
    Commanded,
    Event,
    Joined,
    Left,
    Measures,
    PushesRefused,
    Stopped,
    Warned,
)
from genkidama.server.rules.blend import Update
from genkidama.server.trial import SingleTrialRun, Snapshot, Trial, Trials, extended, limits_of
from genkidama.server.validation import (
    check_hello,
    check_push,
    check_returns,
    check_signature,
    measure,
)

#: What an owner may ask for.
ACTIONS = ("stop", "checkpoint", "extend", "film", "exclude", "admit")

#: Names that are remembered, before children that are gone are forgotten.
_MOST_NAMES = 4096


class ParameterServer:
    """A parent without I/O: its children, θ_P, and the reply to each message.

    Args:
        experiment: the settings.
        run: the run's name.
        trials: None makes a plain run.

    It is not thread-safe, and need not be: one event loop calls `handle` for all children.
    """

    def __init__(self, experiment: Experiment, run: str = "", trials: Trials | None = None) -> None:
        if trials is None and experiment.searches:
            raise ValueError("this experiment is a search: give trials=Search(experiment)")
        self.experiment = experiment
        self.run = run
        self.trials: Trials = SingleTrialRun(experiment) if trials is None else trials
        #: The one trial of a plain run.
        self.trial = self.trials.trial
        self.roles = RoleAssignment(experiment)
        self.children: dict[str, ChildRecord] = {}
        #: The children that take part: they are connected and have joined.
        self.joined: set[str] = set()
        #: Numbers of refused messages, by code.
        self.refusals: Counter[str] = Counter()
        #: The reason why the run is over; empty before.
        self.stop = ""
        #: Names of children that the run's owner has excluded.
        self.excluded: set[str] = set()
        #: What the owner has asked of the shell, which takes it out: `"checkpoint"`, `"film"`.
        self.asked: set[str] = set()
        #: The secret of all shards of a parent; empty if they share none.
        self.secret = ""
        self._events = self.trials.events
        self._tally = self.trials.tally
        #: Of refusals by code: a child in a loop must not fill a disk.
        self._refused = Throttle[PushesRefused](1.0)
        #: The earliest time of the next sample of a child's distance from θ_P, which takes time.
        self._sample_at = -math.inf
        self._average = experiment.parent.average
        self._every = experiment.parent.history_every

    # The shell calls these.

    def handle(self, child: str, message: Request, now: float) -> Reply:
        """Answers one message of `child`. The reply is a `Refusal` if the message is not allowed.

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
                case Pull():
                    return self._pull(child, now)
                case Join():
                    return self._join(child, message, now)
                case Leave():
                    return self._leave(child, message, now)
        except ProtocolError as error:
            return self.refuse(child, error, now)

    def refuse(self, child: str, error: ProtocolError, now: float) -> Refusal:
        """Counts a message that is not allowed, and makes the reply."""
        code, reason = error.code, shortened(error.reason)
        event = PushesRefused(time=now, child=child, code=code, reason=reason)
        self.refusals[code] += 1
        self.trials.rule.refused(child)
        if self._refused.add(code, event, now):
            self._events.append(event)
        return Refusal(code=code, reason=reason, final=error.final)

    def disconnected(self, child: str, reason: str, now: float, knows: bool = False) -> None:
        """Notes the end of a child's connection. The child may return under the same name.

        Args:
            knows: whether the child has heard of the run's end, if the run is over.
        """
        self.trials.vanished(child, now)
        record = self.children.get(child)
        if record is None or not record.connected:
            return
        record.parted = record.parted or (knows and bool(self.stop))
        self.joined.discard(child)
        self.trials.rule.forget(child)
        trial = record.trial
        record.leave()
        del self.children[child]
        if record.exchanges:
            self.children[child] = record  # behind those that went before it
        alone = all(self.children[name].trial is not trial for name in self.joined)
        if alone and trial is not None and trial.vector is None:
            # Without a push so far, the next child may bring another network.
            trial.signature = None
        self._events.append(Left(time=now, child=child, reason=reason))

    def command(
        self, action: str, by: str, now: float, child: str = "", share: float = 0.5
    ) -> Commanded:
        """Does what the run's owner asks, and notes it.

        Args:
            action: as in the event.
            by: the name of the owner's token.
            now: seconds, as for `handle`.
            child: the name of the child to exclude, or to admit again.
            share: of each limit of `[stop]` that `"extend"` adds to it, above 0, 10 at most.

        Raises:
            ProtocolError: it cannot be done; nothing has changed.
        """
        event = Commanded(time=now, action=action, by=by)
        if problem := self._command_problem(action, child, share):
            raise ProtocolError("order", problem)
        if action == "extend":
            stop = extended(self.experiment.stop, share)
            self.experiment = replace(self.experiment, stop=stop)
            self.trials.limit(stop)
            event.limits = limits_of(stop)
        elif action in ("exclude", "admit"):
            event.child = child
            (self.excluded.add if action == "exclude" else self.excluded.discard)(child)
            self.asked.add("checkpoint")  # it holds the names
        elif action != "stop":
            self.asked |= {action, "checkpoint"}
        self._events.append(event)
        if action == "stop":
            self._end(f"stopped by {by}", now)
        elif action == "exclude":
            self.disconnected(child, f"excluded by {by}", now)
            self._part_excluded()
        return event

    def _command_problem(self, action: str, child: str, share: float) -> str:
        """The reason why a command cannot be done; empty if it can."""
        environment = self.experiment.environment
        match action:
            case "checkpoint" | "film" if self.trials.shared and self.trial.vector is None:
                return "there are no weights yet"
            case "film" if not self.trials.shared:
                return "a film of a search: play its best trial with `genkidama play`"
            case "film" if self.trial.part.count > 1:
                return "a parent in parts makes no film: play its checkpoint with `genkidama play`"
            case "film" if environment.is_device:
                return "a film would need a second environment, and move it"
            case "film" if "film" in self.asked:
                return "a film is being made"
            case "checkpoint" | "film":
                return ""
            case "stop" | "extend" | "exclude" | "admit" if self.stop:
                return f"the run is over: {self.stop}"
            case "stop" | "exclude" if not self.trial.part.is_first:
                return f"this is part {self.trial.part} of the parent; ask the first"
            case "extend" if not self.trials.shared:
                return "a search ends with its trials; search.trials and search.seconds say when"
            case "extend" if self.trial.part.count > 1:
                return (
                    "a parent in parts keeps its limits: its parts have proven them to each other"
                )
            case "extend" if not limits_of(self.experiment.stop):
                return "the run has no limit: it ends when its goal is reached"
            case "extend" if not 0.0 < share <= 10.0:
                return f"share = {share:g}: expected a number above 0, 10 at most"
            case "exclude" if child not in self.children:
                return f"child = {child!r}: there is no child of this name"
            case "admit" if child not in self.excluded:
                return f"child = {child!r}: no child of this name is excluded"
            case "stop" | "extend" | "exclude" | "admit":
                return ""
        return f"action = {action!r}: expected one of {', '.join(ACTIONS)}"

    def tick(self, now: float) -> None:
        """Checks stop conditions that depend on time. Call it about once a second."""
        self._check_stop(now)
        self.settle(now)

    def settle(self, now: float, last: bool = False) -> None:
        """Makes the events of refusals that have none: one for all of a code."""
        for event, count in self._refused.due(now, last):
            event.time = now
            if count > 1:
                event.count = count
            self._events.append(event)

    def take_events(self) -> list[Event]:
        """The events since the last call, oldest first."""
        events = self._events.copy()
        self._events.clear()
        return events

    # The state, for others to read.

    @property
    def exchanges(self) -> int:
        """Pushes applied, of all children."""
        return self._tally.exchanges

    @property
    def updates(self) -> float:
        """Exchanges a child, the thesis' updates. See `ProgressCounter`."""
        return self._tally.updates

    def idle(self, child: str) -> bool:
        """True if a child waits for a trial, or its trial has ended or is another child's."""
        record = self.children.get(child)
        trial = None if record is None else record.trial
        return trial is None or bool(trial.stop) or not self.trials.owns(child, trial)

    @property
    def connected(self) -> list[str]:
        return [name for name, record in self.children.items() if record.connected]

    def seconds(self, now: float) -> float:
        """Seconds of training, from the first join on."""
        return self._tally.seconds(now)

    def progress(self, now: float) -> float:
        """The share of a plain run that is done, in [0, 1]; only more time decreases it."""
        return self.trials.progress(self.trial, now)

    def snapshot(self, now: float) -> Snapshot:
        """The metadata of a checkpoint of a plain run."""
        averaging = self.trials.averaging
        return self.trial.snapshot(
            exchanges=self.exchanges,
            updates=self.updates,
            seconds=self.seconds(now),
            **snapshot_children(self.children, bool(self.stop)),
            excluded=sorted(self.excluded),
            pushing=None if averaging is None else averaging.pushing.weights(),
        )

    def restore(self, snapshot: Snapshot, signature: Signature, vector: Vector) -> None:
        """Resumes from a checkpoint. The vector is used as it is, not copied."""
        self.trial.restore(snapshot, signature, vector)
        self._tally.restore(snapshot.exchanges, snapshot.updates, snapshot.seconds)
        self.children.update(restore_children(snapshot))
        if self.trials.averaging is not None:
            self.trials.averaging.pushing.restore(snapshot.pushing)
        self.excluded.update(snapshot.excluded)
        self._part_excluded()

    def _part_excluded(self) -> None:
        """Expects no excluded child back."""
        for name in self.excluded & self.children.keys():
            self.children[name].parted = True

    # One method a message.

    def _hello(self, message: Hello, now: float) -> Reply:
        name = message.name
        if name in self.excluded:
            raise ProtocolError("excluded", f"the run's owner has excluded the child {name!r}")
        record = self.children.get(name)
        session = record.session if record is not None and record.connected else ""
        settings = self.experiment.parent
        check_hello(message, session, len(self.connected), settings.max_children, self.trial.part)
        trial = self.trial if self.stop else self.trials.assign(name, now, message.trial)
        sent = self.roles.experiment_for(message, trial.experiment, self.connected) if trial else {}
        if name not in self.children:
            self._make_room()
        record = self.children.setdefault(name, ChildRecord())
        record.enter(message, trial, settings.encoding if self.trials.shared else "float32")
        self.joined.discard(name)
        return Welcome(
            protocol=message.protocol,
            experiment=sent,
            run=self.run,
            stop=self.stop,
            proof=self._proof(self.stop),
            trial=trial.number if trial else None,
            wait=0.0 if trial else self.trials.wait,
            encoding=record.delta.encoding if trial and record.delta else "",
            part=str(self.trial.part),
        )

    def _make_room(self) -> None:
        """Forgets a child that is gone, if there are too many: the first that said goodbye or, if
        none did, the first that was cut off. If it comes back, it is a new child: its counts begin
        at zero, and a push that it sends again is counted again."""
        if len(self.children) < _MOST_NAMES:
            return
        gone = [name for name, record in self.children.items() if not record.connected]
        if gone:
            del self.children[min(gone, key=lambda name: not self.children[name].parted)]

    def _join(self, child: str, message: Join, now: float) -> Reply:
        record, trial = self._record(child)
        signature = Signature.of(message.signature)
        check_signature(child, signature, trial, self.experiment.parent)
        trial.signature = signature
        self.joined.add(child)
        self._tally.start(now)
        self.trials.joined(trial, now)
        version, size = trial.version, signature.size
        event = Joined(time=now, child=child, version=version, parameters=size, trial=trial.label)
        self._events.append(event)
        self.trials.rule.forget(child)
        record.join(trial.held, message.cores)
        return self._pull(child, now)

    def _pull(self, child: str, now: float) -> Reply:
        record, trial = self._record(child)
        if child not in self.joined:
            raise ProtocolError("order", f"child {child!r} pulls before it has joined")
        weights = self._weights(child, trial, now)
        if trial.vector is not None and not self.trials.rule.pull(trial.vector, child):
            weights.vector = None
        return record.answer(weights)

    def _push(self, child: str, message: Push, now: float) -> Reply:
        record, trial = self._record(child)
        if child not in self.joined or trial.signature is None:
            raise ProtocolError("order", f"child {child!r} pushes before it has joined")
        message = record.read(child, message)
        trials, rule = self.trials, self.trials.rule
        vector = check_push(child, message, trial, rule, trials.owns(child, trial))
        statistics = trial.held.statistics
        norm, wrong = 0.0, ""
        if message.kind == "experience":
            wrong = "" if is_finite(vector) else "NaN or infinity"
        elif message.kind != "work":
            norm, wrong = measure(vector, statistics)
        if wrong:
            return self._diverged(child, trial, wrong, now)
        if message.returns:
            check_returns(child, message.returns)
        # A push whose reply got lost is answered again and counted once. The result of a run that
        # is over stays as it is.
        if message.sequence > record.sequence and not (self.stop or trial.stop):
            children = self.roles.pushing(self.joined)
            staleness, averaging = trial.version - message.version, self.trials.averaging
            update = Update(
                vector,
                message.version,
                staleness,
                message.steps,
                child,
                children,
                now,
                trials.progress(trial, now),
                message.measures.get("loss"),
                statistics,
                norm,
                None if averaging is None else averaging.push(child, children, staleness, now),
            )
            if now >= self._sample_at and sample_distance(record, message, now):
                self._sample_at = now + SAMPLE_SECONDS
            left_out = trial.apply(update, message.kind, rule, self._average)
            if left_out != "":
                self._tally.count(children)
            self._count(child, record, trial, message, left_out, now)
            trials.pushed(trial, now, child, message.steps)
            self._check_stop(now)
        return record.answer(self._weights(child, trial, now, answer=True), message)

    def _count(
        self,
        child: str,
        record: ChildRecord,
        trial: Trial,
        message: Push,
        left_out: str | None,
        now: float,
    ) -> None:
        label = trial.label
        trial.steps += message.steps
        if message.returns:
            trial.episodes += len(message.returns)
            trial.add_returns(message.returns)
        if warning := record.count(message, left_out=bool(left_out)):
            reason = f"{child}: {warning}; environment.wrappers can set a limit"
            self._events.append(Warned(time=now, trial=label, reason=reason))
        if left_out or not self._tally.exchanges % self._every:
            staleness = trial.version - (left_out is None) - message.version
            event = trial.exchanged(child, self._tally.updates, staleness, left_out, now)
            event.distance, record.distance = record.distance, UNSET
            self._events.append(event)
        if message.measures and record.measured(self._every):
            # Every n-th of each child: otherwise children that push in turns would be left out.
            backend, figures = trial.experiment["child"]["backend"], message.measures
            told = Measures(time=now, backend=backend, child=child, trial=label, figures=figures)
            self._events.append(told)

    def _leave(self, child: str, message: Leave, now: float) -> Reply:
        record, trial = self._record(child)
        record.parted = True
        reason = printable(message.reason)
        self.trials.left(child, trial, message.failed, reason, now)
        if message.over and not trial.part.is_first:
            expected = self._proof(message.reason, check=True)
            if expected and hmac.compare_digest(expected.encode(), message.proof.encode()):
                self._end(reason, now)
            else:
                self.refuse(child, _unproven(child, trial.part), now)
        self._check_stop(now)
        self.disconnected(child, reason or "left", now)
        return Goodbye()

    def _record(self, child: str) -> tuple[ChildRecord, Trial]:
        record = self.children.get(child)
        if record is None or not record.connected or record.trial is None:
            raise ProtocolError("order", "the first message of a connection is a hello")
        return record, record.trial

    def _weights(self, child: str, trial: Trial, now: float, answer: bool = False) -> Weights:
        """θ_P. Without its vector if it answers the push of a trial that no other child shares."""
        return Weights(
            version=trial.version,
            progress=self.trials.progress(trial, now),
            stop=self.stop or trial.stop,
            proof=self._proof(self.stop) if self.stop else "",
            next=bool(trial.stop) and not self.stop,
            steps=self.trials.share(child, len(self.joined)),
            children=0.0 if self.trials.averaging is None else self.trials.averaging.children,
            vector=trial.vector if self.trials.shared or not answer else None,
        )

    def _diverged(self, child: str, trial: Trial, wrong: str, now: float) -> Weights:
        if self.trials.shared:
            raise ProtocolError("finite", f"child {child!r} pushes {wrong}")
        if not (self.stop or trial.stop):
            self.trials.diverged(trial, now)
            self._check_stop(now)
        return self._weights(child, trial, now, answer=True)

    def _proof(self, reason: str, *, check: bool = False) -> str:
        """The proof of the run's end for the other shards; empty before, and on these, unless they
        `check` one."""
        part = self.trial.part
        if not reason or part.count == 1 or not (part.is_first or check):
            return ""
        return end_proof(self.secret, self.experiment.to_dict()["stop"], reason)

    def _check_stop(self, now: float) -> None:
        if not self.stop and (reason := self.trials.over(now)):
            self._end(reason, now)

    def _end(self, reason: str, now: float) -> None:
        if not self.stop:
            self.stop = reason
            self._events.append(Stopped(time=now, reason=reason, version=self.trials.version))


def _unproven(child: str, part: Shard) -> ProtocolError:
    return ProtocolError(
        "part",
        f"child {child!r} says that the run is over, and has no proof of the first part: part "
        f"{part} goes on; parts that are started by hand need one {SECRET}, or are stopped by hand",
    )


class RoleAssignment:
    """The roles of children that share a replay, and the experiment that each is sent.

    A child has the role that it asks for. Otherwise it gets the one that is furthest below its
    share of `child.roles` among the connected children. A child that returns under the same name
    keeps its role; a restarted parent learns it from the child.

    Args:
        experiment: the settings of all.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._list = experiment.child.roles
        self._experiment = experiment
        #: Tables of installed plug-ins that children need.
        self._plugins = [name for name in experiment.plugins if not is_of_parents(name)]
        self._of: dict[str, str] = {}
        #: Settings of `[replay]` that only children learn, as its address; in no file.
        self.replay: dict[str, Any] = {}

    def experiment_for(
        self, hello: Hello, experiment: dict[str, Any], connected: Collection[str]
    ) -> dict[str, Any]:
        """The experiment as this child is sent it.

        Args:
            hello: of the child.
            experiment: of its trial; it is not changed.
            connected: all connected children, this one included.

        Raises:
            ProtocolError: the child wants a role that the experiment has no room for.
        """
        experiment = self._without_the_parents(experiment)
        name = hello.name
        plain = set(self._list) == {"bundle"}
        role = hello.role or self._of.get(name) or self._next(connected)
        if plain and role == "bundle" and not self.replay:
            self._of.pop(name, None)
            return experiment
        sent = deepcopy(experiment)
        if self.replay:
            sent.setdefault("replay", {}).update(self.replay)
        sent["child"]["roles"] = [role]
        if hello.role:
            try:
                Experiment.from_dict(sent, source=f"child {name!r} with role = {role!r}")
            except ConfigurationError as error:
                raise ProtocolError("role", str(error)) from None
        if len(self._of) >= _MOST_NAMES:
            self._of = {name: role for name, role in self._of.items() if name in connected}
        self._of[name] = role
        return sent

    def _without_the_parents(self, experiment: dict[str, Any]) -> dict[str, Any]:
        """The same settings without those of installed plug-ins that only the parent needs."""
        ours, sent = self._experiment, experiment
        if len(self._plugins) < len(ours.plugins):
            tables = {name: sent["plugins"][name] for name in self._plugins}
            sent = {**sent, "plugins": tables}
        if rule := home("rules", ours.parent.rule):
            sent = {**sent, "parent": {**sent["parent"], "rule": rule}}
            sent["child"] = {**sent["child"], "push": ours.pushes}
        return sent

    def pushing(self, joined: Collection[str]) -> int:
        """The number of these children that bring something to learn from; at least 1."""
        if not self._of:  # asked with each push, and roles are rare
            return len(joined) or 1
        return max(1, sum(self._of.get(name) != "act" for name in joined))

    def _next(self, connected: Collection[str]) -> str:
        others = [self._of[name] for name in connected if name in self._of]
        return min(self._list, key=lambda role: others.count(role) / self._list.count(role))
