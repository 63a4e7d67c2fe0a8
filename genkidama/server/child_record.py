"""What the parent knows of one child, whether connected or not. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from genkidama.errors import ProtocolError
from genkidama.protocol.delta import ParentDelta, agree, unknown_base
from genkidama.protocol.messages import Hello, Push, Weights
from genkidama.protocol.vector import Signature, Vector
from genkidama.server.trial import Snapshot, Trial

__all__ = [
    "ChildRecord",
    "DivergenceSampling",
    "drop_connection",
    "distance",
    "snapshot_children",
    "restore_children",
]

#: The distance is judged by so many numbers, which takes some 10 µs.
_SAMPLE = 4096
#: A child's distance is judged every so many seconds, that of so many children at most.
_EVERY = 1.0
_JUDGED = 64


@dataclass
class ChildRecord:
    """One child, by its name."""

    session: str = ""
    connected: bool = False
    #: Whether it has said goodbye since its last hello.
    parted: bool = False
    #: The number of its last counted push in this session.
    sequence: int = 0
    exchanges: int = 0
    episodes: int = 0
    steps: int = 0
    #: Pushes that the rule has left out.
    left_out: int = 0
    #: The return of the last episode that it has told of.
    last_return: float | None = field(default=None, compare=False)
    #: What it said of itself: its software's version, and its cores, 0 if it did not say.
    software: str = field(default="", compare=False)
    cores: int = field(default=0, compare=False)
    #: How far from θ_P the last of its pushes lay that was judged, |θ_C − θ_P| / |θ_P|, until an
    #: event has said it; and when that was.
    distance: float | UnsetType = field(default=UNSET, compare=False, repr=False)
    judged: float = field(default=-math.inf, compare=False, repr=False)
    #: How many of its pushes had measures, since the parent began.
    measures: int = field(default=0, compare=False, repr=False)
    #: What it trains.
    trial: Trial | None = field(default=None, compare=False, repr=False)
    #: How differences travel on its connection; None if all weights travel whole.
    line: ParentDelta | None = field(default=None, compare=False, repr=False)

    def count(self, push: Push, *, left_out: bool) -> None:
        """Counts a push of this session, whether the rule has used it or left it out."""
        self.sequence = push.sequence
        self.exchanges += 1
        self.episodes += len(push.returns)
        self.steps += push.steps
        self.left_out += left_out
        if push.returns:
            self.last_return = push.returns[-1]

    def measured(self, every: int) -> bool:
        """Counts a push with measures; whether they are among every n-th, which are kept."""
        self.measures += 1
        return not self.measures % every

    def counts(self) -> dict[str, int]:
        """What a checkpoint keeps of it."""
        counts = {"exchanges": self.exchanges, "episodes": self.episodes, "steps": self.steps}
        return {**counts, "left_out": self.left_out} if self.left_out else counts

    def enter(self, hello: Hello, trial: Trial | None, encoding: str) -> None:
        """It says hello. A session that is new begins to count its pushes.

        Args:
            encoding: what the parent wishes, as `agree` takes it.
        """
        if self.session != hello.session:
            self.session = hello.session
            self.sequence = 0
        self.distance = UNSET  # it may be that of another trial
        self.software = hello.software
        self.connected = True
        self.parted = False
        self.trial = trial
        self.line = agree(hello, encoding)

    def leave(self) -> None:
        """Its connection is gone."""
        self.connected = False
        self.trial = None
        self.line = None

    def read(self, child: str, push: Push) -> Push:
        """The same push with its whole vector.

        Raises:
            ProtocolError: it is a difference to weights that are not known here, or is none. Or its
                number is below the last one, which is no push that is sent again.
        """
        if push.sequence < self.sequence:
            raise ProtocolError(
                "order",
                f"child {child!r} sends push {push.sequence} after push {self.sequence} of the "
                "same session; a process that begins again needs another session",
            )
        if push.encoding:
            if self.line is None:
                raise unknown_base(child, push)
            push = self.line.read(child, push)
        return push

    def tell(self) -> float | UnsetType:
        """The distance that no event has said yet."""
        told, self.distance = self.distance, UNSET
        return told

    def join(self, signature: Signature, cores: int = 0) -> None:
        """It joins with a network of this signature, and so many cores."""
        self.cores = cores
        if self.line is not None:
            self.line.join(signature)

    def answer(self, weights: Weights, push: Push | None = None) -> Weights:
        """These weights as they travel; `push` as `ParentDelta.answer` takes it."""
        return weights if self.line is None else self.line.answer(weights, push)


class DivergenceSampling:
    """Which pushes are judged by how far they lie from θ_P: a few, since it takes its time."""

    def __init__(self) -> None:
        self._after = -math.inf

    def take(self, record: ChildRecord, push: Push, now: float) -> None:
        """Takes a push down in its child's record, if it is its turn.

        Args:
            record: of a child that has joined; its trial has θ_P as it is before the push.
            push: with its whole vector.
            now: seconds, never less than at the call before.
        """
        trial = record.trial
        if now < self._after or now < record.judged + _EVERY:
            return
        if trial is None or trial.vector is None:
            return
        self._after = now + _EVERY / _JUDGED
        record.judged = now
        record.distance = distance(push, trial.vector, trial.held.statistics)


def distance(push: Push, parent: Vector, statistics: int) -> float | UnsetType:
    """|θ_C − θ_P| / |θ_P|, judged by a sample of the numbers; UNSET if the push does not say.

    Args:
        push: of a child.
        parent: θ_P, or the part of it that is held here.
        statistics: how many running statistics end it. They are not trained, so they do not count.
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
        found = float(np.sqrt(np.dot(away, away))) / whole if whole > 0.0 else math.nan
    return found if math.isfinite(found) else UNSET


def drop_connection(children: dict[str, ChildRecord]) -> list[str]:
    """The children that took part, are gone without a goodbye, and may come back."""
    return [
        name
        for name, record in children.items()
        if record.exchanges and not (record.connected or record.parted)
    ]


def snapshot_children(records: Mapping[str, ChildRecord]) -> dict[str, Any]:
    """What a checkpoint says of all children, as arguments of `Trial.snapshot`."""
    return {
        "children": {name: record.counts() for name, record in records.items()},
        "sessions": {
            name: (record.session, record.sequence)
            for name, record in records.items()
            if record.sequence
        },
    }


def restore_children(snapshot: Snapshot) -> dict[str, ChildRecord]:
    """The children that a checkpoint knows. None of them is connected."""
    found = {}
    for name in snapshot.children.keys() | snapshot.sessions.keys():
        counts = snapshot.children.get(name, {})
        session, sequence = snapshot.sessions.get(name, ("", 0))
        found[name] = ChildRecord(
            session=session,
            sequence=sequence,
            exchanges=counts.get("exchanges", 0),
            episodes=counts.get("episodes", 0),
            steps=counts.get("steps", 0),
            left_out=counts.get("left_out", 0),
        )
    return found
