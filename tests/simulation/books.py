"""Books of one parent: what it counted, what it saved, and the laws that both obey.

Laws, checked with each message, checkpoint and restart:
- A push counts once, if it starts from a version that is there, and before the run's end. Only a
  push that counts changes θ_P, a version or a count of steps.
- θ_P is what the rule's formula makes of the pushes that counted, in float64.
- A checkpoint holds exactly the pushes that had counted when it was copied, and the last number of
  each session.
- A file under a checkpoint's name is whole, unless a bit of it was flipped.
- A parent resumes from a state that was saved, and from none older than the last checkpoint that
  it has noted or resumed from, unless the disk was damaged since.
- A child takes over the θ_P of the version that it is told. A difference that it pushes is what it
  has learned since the θ_P that it took last.
- A push whose reply a child has read is in the parent, or is lost with a parent that has said that
  it went back. Steps are in one place: at the parent, in the session, or lost in that way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.errors import ConfigurationError
from genkidama.parent import Parent
from genkidama.protocol.messages import Hello, Push, Refusal, Reply
from genkidama.protocol.session import Begin, BlendReply, Decision, Reset, Session
from genkidama.protocol.vector import Vector
from genkidama.runs.checkpoint import load
from genkidama.server.trial import Snapshot, Trial
from tests.simulation.world import Disk, World

#: Seconds from a token's check to the hello, at most.
_HANDSHAKE = 15.0

#: The session of a liar, whose own token is good for any name.
LIE = "lie"

#: A child, its session, and the number of its push.
Key = tuple[str, str, int]


@dataclass
class _Entry:
    """A push that counted."""

    key: Key
    steps: int
    #: Whether it was left out, or brought work alone, and so made no version.
    versionless: bool
    #: Whether it brought work alone, and so was no exchange.
    work: bool


@dataclass
class _Saved:
    """A checkpoint as it was copied."""

    version: int
    steps: int
    vector: Vector
    #: How many entries it holds.
    length: int


@dataclass
class Books:
    """The books of a parent, or of one of its shards, through all its restarts."""

    world: World
    name: str
    #: Whether the vectors on the wire are θ_P to the bit.
    exact: bool = True
    #: Whether only a push that counts changes θ_P.
    steady: bool = True
    entries: list[_Entry] = field(default_factory=list)
    #: θ_P of each version.
    vectors: dict[int, Vector] = field(default_factory=dict)
    saved: list[_Saved] = field(default_factory=list)
    #: Pushes that counted and were lost when the parent went back to a checkpoint.
    lost: dict[Key, int] = field(default_factory=dict)
    #: The version of the newest checkpoint that must be there.
    durable: int = 0
    pushes: int = 0
    parent: Parent | None = None
    #: Whether the run has ever ended: a push that comes later is answered, and does not count.
    over: bool = False
    _copies: dict[int, tuple[Snapshot, int]] = field(default_factory=dict)
    _counted: dict[Key, int] = field(default_factory=dict)
    _now: float = 0.0
    _damaged: bool = False
    _bases: dict[str, Vector | None] = field(default_factory=dict)
    _revoked: tuple[str, float] = "", 0.0

    # The parent's life.

    def looks(self, disk: Disk) -> None:
        """Nobody writes at present: all that has a checkpoint's name can be read."""
        for path in disk.path.rglob("[!.]*.safetensors"):
            if path.stat().st_ino not in disk.flipped:
                try:
                    load(path)
                except ConfigurationError as error:
                    self._break(f"a checkpoint is torn: {error}")

    def attach(self, parent: Parent) -> None:
        """Watches a parent that has not started yet."""
        self.parent = parent
        self._now = 0.0
        self._copies.clear()
        server = parent.server
        handle = server.handle
        server.handle = lambda child, message, now: self._handle(handle, child, message, now)  # type: ignore[method-assign]
        snapshot = server.snapshot

        def copied(now: float) -> Snapshot:
            made = snapshot(now)
            for child in {entry.key[0] for entry in self.entries}:
                session, sequence = self._sequence(child)
                if sequence and made.sessions.get(child) != (session, sequence):
                    self._break(f"a checkpoint lacks push {sequence} of {child}'s session")
            self._copies[id(made)] = made, len(self.entries)
            return made

        server.snapshot = copied  # type: ignore[method-assign]

    def started(self) -> None:
        """The parent has started, with the state that it found."""
        trial = self._trial
        if trial.vector is None:
            if self.durable:
                self._break(f"starts afresh, though version {self.durable} was saved")
            self._go_back(0)
            self.vectors = {}
            return
        found = [
            each
            for each in self.saved
            if (each.version, each.steps) == (trial.version, trial.steps)
            and _same(each.vector, trial.vector)
        ]
        if not found:
            self._break(f"resumes from version {trial.version}, which nobody saved so")
        elif trial.version < self.durable:
            self._break(f"resumes from version {trial.version}, though {self.durable} was saved")
        else:
            self._go_back(found[-1].length)
            self.durable = max(self.durable, trial.version)
            self.vectors = {
                version: vector
                for version, vector in self.vectors.items()
                if version <= trial.version
            }

    def _go_back(self, length: int) -> None:
        for entry in self.entries[length:]:
            self.lost[entry.key] = entry.steps
        del self.entries[length:]
        self._counted = {entry.key: entry.steps for entry in self.entries}

    def damaged(self) -> None:
        """The disk has lost what was on it."""
        self.durable = 0
        self._damaged = True

    def saves(self, snapshot: Snapshot, vector: Vector, state: dict[str, Any]) -> None:
        """A checkpoint is about to be written."""
        copy = self._copies.get(id(snapshot))
        if copy is None:
            self._break("saves a snapshot that nobody made")
            return
        length = copy[1]
        # Of entries, the newest may be gone with a parent before this one.
        held = self.entries[:length]
        if snapshot.steps != sum(entry.steps for entry in held):
            self._break(f"a checkpoint has {snapshot.steps} steps, and its pushes others")
        if snapshot.exchanges != sum(not entry.work for entry in held):
            self._break(f"a checkpoint has {snapshot.exchanges} exchanges, and its pushes others")
        newest = {(entry.key[0], entry.key[1]): entry.key[2] for entry in held}
        for child, (session, sequence) in snapshot.sessions.items():
            if newest.get((child, session), sequence) != sequence:
                self._break(f"a checkpoint has push {sequence} of {child}, and its pushes others")
        trained = state.get("__trained__", vector)
        known = self.vectors.get(snapshot.version)
        if known is not None and not _same(known, trained):
            self._break(f"a checkpoint of version {snapshot.version} holds other weights")
        self.saved.append(_Saved(snapshot.version, snapshot.steps, trained.copy(), length))

    def wrote(self, version: int) -> None:
        """A checkpoint is on the disk."""
        self.durable = max(self.durable, version)
        self._damaged = False

    def ended(self) -> None:
        """The parent has ended in order."""
        trial = self._trial
        if trial.vector is not None and self.durable < trial.version and not self._damaged:
            self._break(f"ends with version {trial.version}, and saved {self.durable}")

    def is_deadly(self, child: str) -> bool:
        """Whether the parent takes no more of this child, as it should."""
        return False

    @property
    def is_busy(self) -> bool:
        """Whether it is right that it lets a child wait."""
        return False

    def revokes(self, child: str) -> None:
        """From now on this child's token is good no longer, and all others are."""
        self._revoked = child, self.world.now

    # Messages.

    def _handle(self, handle: Callable[..., Reply], child: str, message: Any, now: float) -> Reply:
        trial = self._trial
        if now < self._now:
            self._break(f"its clock goes back from {self._now} to {now}")
        self._now = now
        before = trial.version, trial.steps, trial.episodes
        vector = None if trial.vector is None else trial.vector.copy()
        known = self.vectors.get(trial.version)
        if vector is not None and known is not None and not _same(known, vector):
            self._break(f"version {trial.version} has changed between two messages")
        sequence = self._sequence(child)
        ended = self.parent is not None and bool(self.parent.server.stop)
        reply = handle(child, message, now)
        self.over |= self.parent is not None and bool(self.parent.server.stop)
        after = trial.version, trial.steps, trial.episodes
        counts = isinstance(message, Push) and after[1:] != before[1:]
        counts = counts or after[0] != before[0]
        if isinstance(message, Push) and self._sequence(child) != sequence:
            self._count(child, message, before, vector)
            if ended:
                self._break(f"a push of {child} counts after the run's end")
        elif counts:
            self._break(f"a {type(message).__name__} of {child} counts, and is no push that may")
        elif self.steady and not _same(vector, trial.vector) and not _is_finite_refusal(reply):
            self._break(f"a {type(message).__name__} of {child} changes θ_P, and counts nothing")
        if trial.vector is not None:
            self.vectors[trial.version] = trial.vector.copy()
        if isinstance(message, Hello):
            self._greet(message.name, message.session)
        return reply

    def _greet(self, name: str, session: str) -> None:
        revoked, since = self._revoked
        if name == "stranger":
            self._break("a stranger without a token is heard")
        if session == LIE:
            return
        if name.partition("-")[0] == revoked and self.world.now > since + _HANDSHAKE:
            self._break(f"{name} is heard, though its token was taken back")

    def _sequence(self, child: str) -> tuple[str, int]:
        record = None if self.parent is None else self.parent.server.children.get(child)
        return ("", 0) if record is None else (record.session, record.sequence)

    def _count(
        self, child: str, message: Push, before: tuple[int, int, int], vector: Vector | None
    ) -> None:
        trial = self._trial
        session, sequence = self._sequence(child)
        key = child, session, sequence
        if sequence != message.sequence:
            self._break(f"push {message.sequence} of {child} is counted as {sequence}")
        if key in self._counted:
            self._break(f"push {sequence} of {child} counts twice")
        if message.version > before[0]:
            self._break(f"push {sequence} of {child} starts from a version that is not there")
        if trial.steps != before[1] + message.steps:
            self._break(f"push {sequence} of {child} brings {message.steps} steps, others count")
        if trial.episodes != before[2] + len(message.returns):
            self._break(f"push {sequence} of {child} brings other episodes than count")
        made = trial.version - before[0]
        if made not in (0, 1):
            self._break(f"push {sequence} of {child} makes {made} versions")
        if made and vector is not None and self.exact and message.vector is not None:
            self._replay(child, message, vector)
        if self.steady and not made and not _same(vector, trial.vector):
            self._break(f"push {sequence} of {child} makes no version, and changes θ_P")
        self.pushes += 1
        self._counted[key] = message.steps
        self.entries.append(_Entry(key, message.steps, not made, message.kind == "work"))

    def _replay(self, child: str, message: Push, before: Vector) -> None:
        """Compares θ_P with the formula of the rule."""
        settings = self._trial.experiment["parent"]
        alpha, rule = settings["alpha"], settings["rule"]
        assert message.vector is not None
        theirs = message.vector.astype(np.float64)
        averaging = None if self.parent is None else self.parent.server.trials.averaging
        if averaging is not None or settings["rule_options"]:
            return
        if rule == "blend":
            expected = (1.0 - alpha) * before + alpha * theirs
        elif rule == "difference" and message.kind == "difference":
            expected = before + alpha * theirs
        else:
            return
        assert self._trial.vector is not None
        if not np.allclose(self._trial.vector, expected, rtol=1e-5, atol=1e-5):
            self._break(f"θ_P is not what {rule} makes of a push of {child}")

    # The children's side.

    def takes(self, session: Session, decision: Decision, version: int) -> None:
        """A session has decided by a reply with weights of this version."""
        vector = getattr(decision, "vector", None)
        took = vector is not None or getattr(decision, "sent", None) is not None
        if took and isinstance(decision, Begin | BlendReply | Reset):
            self._bases[session.name] = None if vector is None else vector.copy()
        known = self.vectors.get(version)
        if vector is None or known is None:
            return
        close = (
            np.array_equal(vector, known) if self.exact else np.allclose(vector, known, atol=1.0)
        )
        if not close:
            self._break(f"{session.name} takes other weights than those of version {version}")

    def pushes_from(self, session: Session, weights: Vector, push: Push) -> None:
        """A session has made a push that it does not send again."""
        base = self._bases.get(session.name)
        if push.kind != "difference" or push.encoding or push.vector is None or base is None:
            return
        if not _same(push.vector, weights - base):
            self._break(f"{session.name} pushes a difference to other weights than it took")

    def settles(self, session: Session, word: str, gathered: int) -> None:
        """A session's work at the end of the day.

        Args:
            word: the session.
            gathered: the steps that its child has brought.
        """
        answered = session._sequence - (session._unanswered is not None)
        total = session._pending.steps
        if session._unanswered is not None:
            total += session._unanswered.steps
        for sequence in range(1, answered + 1):
            key = session.name, word, sequence
            steps = self._counted.get(key, self.lost.get(key))
            if steps is None:
                self._break(f"push {sequence} of {session.name} was answered, and is nowhere")
                return
            total += steps
        if total != gathered:
            self._break(f"{session.name} has made {gathered} steps, and {total} are found")

    def closes(self) -> None:
        """The end of the day."""
        trial = self._trial
        if trial.steps != sum(entry.steps for entry in self.entries):
            self._break("the parent's steps are not those of its pushes")
        versions = sum(not entry.versionless for entry in self.entries)
        if trial.version != versions:
            self._break(f"version {trial.version} after {versions} pushes that make one")

    @property
    def _trial(self) -> Trial:
        assert self.parent is not None
        return self.parent.server.trial

    def _break(self, law: str) -> None:
        self.world.breaks(f"{self.name}: {law}")


def _same(one: npt.NDArray[Any] | None, other: npt.NDArray[Any] | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.tobytes() == other.tobytes()


def _is_finite_refusal(reply: Reply) -> bool:
    """Whether θ_P may have gone back, since a push made NaN of it."""
    return isinstance(reply, Refusal) and reply.code == "finite"
