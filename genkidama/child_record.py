"""What the parent knows of one child, whether connected or not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from genkidama.errors import ProtocolError
from genkidama.lines import ParentLine, agree, unknown_base
from genkidama.messages import Hello, Push, Weights
from genkidama.trial import Snapshot, Trial
from genkidama.weights import Signature

__all__ = ["ChildRecord", "cut_off", "kept", "restored"]


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
    #: How many of its pushes had measures, since the parent began.
    measures: int = field(default=0, compare=False, repr=False)
    #: What it trains.
    trial: Trial | None = field(default=None, compare=False, repr=False)
    #: How differences travel on its connection; None if all weights travel whole.
    line: ParentLine | None = field(default=None, compare=False, repr=False)

    def count(self, push: Push, *, left_out: bool) -> None:
        """Counts a push of this session, whether the rule has used it or left it out."""
        self.sequence = push.sequence
        self.exchanges += 1
        self.episodes += len(push.returns)
        self.steps += push.steps
        self.left_out += left_out

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
        if not push.encoding:
            return push
        if self.line is None:
            raise unknown_base(child, push)
        return self.line.read(child, push)

    def join(self, signature: Signature) -> None:
        """It joins with a network of this signature."""
        if self.line is not None:
            self.line.begin(signature)

    def answer(self, weights: Weights, push: Push | None = None) -> Weights:
        """These weights as they travel; `push` as `ParentLine.answer` takes it."""
        return weights if self.line is None else self.line.answer(weights, push)


def cut_off(children: dict[str, ChildRecord]) -> list[str]:
    """The children that took part, are gone without a goodbye, and may come back."""
    return [
        name
        for name, record in children.items()
        if record.exchanges and not (record.connected or record.parted)
    ]


def kept(records: Mapping[str, ChildRecord]) -> dict[str, Any]:
    """What a checkpoint says of all children, as arguments of `Trial.snapshot`."""
    return {
        "children": {name: record.counts() for name, record in records.items()},
        "sessions": {
            name: (record.session, record.sequence)
            for name, record in records.items()
            if record.sequence
        },
    }


def restored(snapshot: Snapshot) -> dict[str, ChildRecord]:
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
