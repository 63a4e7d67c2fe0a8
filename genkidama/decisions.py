"""What a child's session decides, as values, the one error that is a decision, too, and checks of
what a parent says of itself.

Two decisions are compared without their vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from genkidama.errors import EnvironmentFailure, GenkidamaError, ProtocolError
from genkidama.experiment import Experiment
from genkidama.messages import PROTOCOL, Join, Refusal, Reply, Weights, Welcome
from genkidama.parts import Part
from genkidama.weights import Vector

__all__ = [
    "Begin",
    "Blend",
    "Decision",
    "Keep",
    "Over",
    "Refused",
    "Renamed",
    "Reset",
    "Train",
    "Wait",
    "check_same",
    "check_welcome",
    "expect",
]

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
    #: As in `Blend`.
    steps: int = 0


@dataclass(frozen=True)
class Keep:
    """The connection stands again: train on with the present weights."""


@dataclass(frozen=True)
class Blend:
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
Decision: TypeAlias = Train | Wait | Renamed | Begin | Keep | Blend | Reset | Over | Join


class Refused(GenkidamaError):
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
        raise Refused(reply)
    if not isinstance(reply, kind):
        raise ProtocolError("order", f"the parent answers {to} with {type(reply).__name__}")
    return reply


def check_welcome(welcome: Welcome, parent: str, part: Part) -> None:
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
        if getattr(theirs, section) != getattr(ours, section):
            what = "parent.rule" if section == "pushes" else f"[{section}]"
            raise GenkidamaError(
                f"{parent} now runs another experiment ({what} differs); "
                "start this child again to take part in it"
            )
