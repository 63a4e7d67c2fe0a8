"""A parent's record of each child, connected or not. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from genkidama.errors import ProtocolError
from genkidama.protocol.delta import ParentDelta, agree, unknown_base
from genkidama.protocol.diagnostics import ENDLESS_STEPS
from genkidama.protocol.messages import Hello, Push, Weights
from genkidama.protocol.vector import Signature, Vector
from genkidama.server.trial import Snapshot, Trial

#: Numbers of a sample for the distance, which takes some 10 µs.
_SAMPLE = 4096
#: Seconds from one sample of a child to the next, and from one sample of any child to the next.
_EVERY = 1.0
SAMPLE_SECONDS = _EVERY / 64


@dataclass
class ChildRecord:
    """One child, by its name."""

    session: str = ""
    connected: bool = False
    #: Whether it has said goodbye since its last hello, or knows that the run is over.
    parted: bool = False
    #: The number of its last counted push in this session.
    sequence: int = 0
    exchanges: int = 0
    episodes: int = 0
    steps: int = 0
    #: Pushes that the rule has left out.
    left_out: int = 0
    #: Steps since its last episode ended.
    endless: int = field(default=0, compare=False)
    #: The return of its last episode.
    last_return: float | None = field(default=None, compare=False)
    #: The version of its software, and its cores; 0 if it did not say.
    software: str = field(default="", compare=False)
    cores: int = field(default=0, compare=False)
    #: How far from θ_P the last of its pushes lay that was judged, |θ_C − θ_P| / |θ_P|, until an
    #: event has said it; and when that was.
    distance: float | UnsetType = field(default=UNSET, compare=False, repr=False)
    judged: float = field(default=-math.inf, compare=False, repr=False)
    #: Pushes with measures, since the parent started.
    measures: int = field(default=0, compare=False, repr=False)
    #: Its trial.
    trial: Trial | None = field(default=None, compare=False, repr=False)
    #: The encoding of its connection; None if all weights travel whole.
    delta: ParentDelta | None = field(default=None, compare=False, repr=False)

    def count(self, push: Push, *, left_out: bool) -> str:
        """Counts a push of this session, whether the rule has used it or left it out.

        Returns:
            A warning, once the child has made very many steps in which no episode ended.
        """
        self.sequence = push.sequence
        self.exchanges += 1
        self.episodes += len(push.returns)
        self.steps += push.steps
        self.left_out += left_out
        if push.returns:
            self.last_return = push.returns[-1]
        before, self.endless = self.endless, 0 if push.returns else self.endless + push.steps
        if not before < ENDLESS_STEPS * max(1, self.cores) <= self.endless:
            return ""
        return f"no episode has ended in {self.endless:,} steps, so there is no return"

    def measured(self, every: int) -> bool:
        """Counts a push with measures, and returns whether it is an n-th one, which is kept."""
        self.measures += 1
        return not self.measures % every

    def counts(self) -> dict[str, int]:
        """Its counts, for a checkpoint."""
        counts = {"exchanges": self.exchanges, "episodes": self.episodes, "steps": self.steps}
        return {**counts, "left_out": self.left_out} if self.left_out else counts

    def enter(self, hello: Hello, trial: Trial | None, encoding: str) -> None:
        """Notes a hello. A new session counts its pushes from zero."""
        if self.session != hello.session:
            self.session = hello.session
            self.sequence = 0
        self.distance = UNSET  # it may be that of another trial
        self.software = hello.software
        self.connected = True
        self.parted = False
        self.trial = trial
        self.delta = agree(hello, encoding)

    def leave(self) -> None:
        """Notes the end of its connection."""
        self.connected = False
        self.trial = None
        self.delta = None

    def read(self, child: str, push: Push) -> Push:
        """The same push with its whole vector.

        A ProtocolError says that it is a difference to weights that are not known here, or none, or
        that its number is below the last one, which is no push that is sent again.
        """
        if push.sequence < self.sequence:
            raise ProtocolError(
                "order",
                f"child {child!r} sends push {push.sequence} after push {self.sequence} of the "
                "same session; a process that begins again needs another session",
            )
        if push.encoding:
            if self.delta is None:
                raise unknown_base(child, push)
            push = self.delta.read(child, push)
        return push

    def join(self, signature: Signature, cores: int) -> None:
        """Notes a join with a network of this signature."""
        self.cores = cores
        if self.delta is not None:
            self.delta.join(signature)

    def answer(self, weights: Weights, push: Push | None = None) -> Weights:
        """These weights as they travel; `push` as `ParentDelta.answer` takes it."""
        return weights if self.delta is None else self.delta.answer(weights, push)


def sample_distance(record: ChildRecord, push: Push, now: float) -> bool:
    """Records the distance of a push, if the turn of its child, which has joined, has come.

    The trial has θ_P as it is before the push, which has its whole vector.
    """
    trial = record.trial
    if now < record.judged + _EVERY or trial is None or trial.vector is None:
        return False
    record.judged = now
    record.distance = distance(push, trial.vector, trial.held.statistics)
    return True


def distance(push: Push, parent: Vector, statistics: int) -> float | UnsetType:
    """|θ_C − θ_P| / |θ_P|, judged by a sample of the numbers; UNSET if the push does not say.

    θ_P may be the part that is held here. The running statistics that end it do not count.
    """
    trained = len(parent) - statistics
    if push.kind not in ("weights", "difference") or push.vector is None:
        return UNSET
    if not 0 < trained <= len(push.vector):
        return UNSET
    step = -(-trained // _SAMPLE)
    ours = parent[:trained:step]
    theirs = push.vector[:trained:step]
    with np.errstate(all="ignore"):
        away = theirs if push.kind == "difference" else theirs - ours
        whole = float(np.sqrt(np.dot(ours, ours)))
        ratio = float(np.sqrt(np.dot(away, away))) / whole if whole > 0.0 else math.nan
    return ratio if math.isfinite(ratio) else UNSET


def absent_children(children: dict[str, ChildRecord]) -> list[str]:
    """Children that took part, are gone without a goodbye, and may come back."""
    return [
        name
        for name, record in children.items()
        if record.exchanges and not (record.connected or record.parted)
    ]


def snapshot_children(records: Mapping[str, ChildRecord], over: bool) -> dict[str, Any]:
    """The children in the metadata of a checkpoint, as arguments of `Trial.snapshot`.

    It says who has said goodbye, unless the run is over: a parent that is started again then waits
    for all.
    """
    return {
        "children": {
            name: record.counts() | ({"parted": 1} if record.parted and not over else {})
            for name, record in records.items()
        },
        "sessions": {
            name: (record.session, record.sequence)
            for name, record in records.items()
            if record.sequence
        },
    }


def restore_children(snapshot: Snapshot) -> dict[str, ChildRecord]:
    """The records in a checkpoint. None of these children is connected."""
    records = {}
    for name in snapshot.children.keys() | snapshot.sessions.keys():
        counts: dict[str, Any] = snapshot.children.get(name, {})
        session, sequence = snapshot.sessions.get(name, ("", 0))
        known = {key: counts.get(key, 0) for key in ("exchanges", "episodes", "steps", "left_out")}
        parted = bool(counts.get("parted"))
        records[name] = ChildRecord(session=session, parted=parted, sequence=sequence, **known)
    return records
