"""How the parent uses a push, and what α and β do to a run. Pure NumPy.

The documented rule is `Blend` (thesis §4.7, Algorithm 2). On every push the parent moves towards
the child, `θ_P ← (1−α)θ_P + αθ_C`, and answers with the result. The child then moves towards the
parent, `θ_C ← (1−β)θ_C + βθ_P`. `parent.rule` chooses another `Rule`, of `genkidama.server.rules`
or of one's own.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy.typing as npt

from genkidama.protocol.vector import Vector, blend

__all__ = ["Blend", "Update", "Rule", "RuleState", "diagnose", "speed_factor"]

#: What a rule remembers between two pushes: float32 or float64 arrays by name.
RuleState: TypeAlias = dict[str, npt.NDArray[Any]]


class Update(msgspec.Struct, gc=False):
    """What a push brings to a rule."""

    #: float32, shape (n,). A rule may only read it, and only until `Rule.apply` returns.
    vector: Vector
    #: The version of θ_P that the child started from.
    version: int
    #: How many pushes have been applied since that version.
    staleness: int
    #: Environment steps behind it.
    steps: int
    #: The name of the child.
    child: str
    #: How many children take part, including this one.
    children: int = 1
    #: When it came: seconds, never less than those of the push before, on through restarts.
    seconds: float = 0.0
    #: How much of the run is done, in [0, 1].
    progress: float = 0.0
    #: The loss that the child has measured; None if it has measured none.
    loss: float | None = None
    #: How many running statistics end the vector. They are θ_C's own, whatever is pushed.
    statistics: int = 0
    #: The Euclidean norm of the numbers before them, at most `LARGEST`; None if not measured.
    length: float | None = None


@runtime_checkable
class Rule(Protocol):
    """How the parent uses a push. A class of your own inherits from this one and writes `apply`.

    It is made once a run, as `Class(parent.alpha, **parent.rule_options)`. One event loop calls it
    for all children in turns. It must not wait, and every push pays for what it does.

    Every rule keeps these promises; `tests/rules` checks them:
    - Finite weights and a push of honest size give finite weights. Where a rule cannot keep that,
      the parent takes the push back, and refuses it (`Trial.take`).
    - It is deterministic: the same pushes give the same weights to the bit.
    - It reads the push and writes θ_P in place. It keeps neither array.
    - `state` holds all that it remembers, and `restore` makes a new rule go on like the old one.
    """

    #: What a push's vector is: `"weights"`, θ_C; `"difference"`, θ_C − θ_base, where θ_base is the
    #: θ_P that the child started from; `"gradient"`, the mean of its cores' gradients at θ_base.
    takes: ClassVar[Literal["weights", "difference", "gradient", "experience"]] = "weights"

    #: Whether a push that the parent lets in can make neither θ_P nor the state overflow, so that
    #: nobody needs to look.
    convex: ClassVar[bool] = False

    def start(self, push: Update) -> Vector | None:
        """θ_P of a parent that has none, made from its first push. That holds θ_C, whatever the
        rule takes.

        Returns:
            A new vector. None if the push cannot become θ_P; the parent then refuses it with the
            code `order`.
        """
        return push.vector.copy()

    def apply(self, parent: Vector, push: Update) -> str | None:
        """Changes θ_P in place.

        Args:
            parent: θ_P, float32, shape (n,), written to.
            push: what the child brings; its vector has the same shape and is finite.

        Returns:
            A word that says why the push is left out; None if it is used. What is left out does not
            make a new version. The parent counts it by child, and the history has the word.
        """
        raise NotImplementedError

    def moved(self) -> float:
        """An upper bound for the Euclidean norm of the last step of θ_P's trained numbers.

        It spares the parent a look at all of θ_P after the push, as long as the steps add up to
        less than float32 can hold. Infinity, if it is not known.
        """
        return math.inf

    def fits(self, count: int, size: int) -> str:
        """What a push has to bring, if its vector must not have `count` numbers; else empty.

        Args:
            count: numbers of the push's vector.
            size: numbers of θ_P.
        """
        return "" if count == size else str(size)

    def largest(self, size: int) -> int:
        """The most numbers that the vector of a push, or of its answer, has; θ_P has `size`."""
        return size

    def share(self, child: str, children: int) -> int:
        """How many steps the child's next push should bring; 0 says nothing.

        Args:
            children: how many take part.
        """
        return 0

    def pull(self, parent: Vector, child: str) -> bool:
        """A child asks for θ_P between two pushes; a rule may bring it up to date, in place.

        Returns:
            Whether it is news to the child.
        """
        return True

    def forget(self, child: str) -> None:
        """The child does not take part any more. It may come back."""
        return

    def refused(self, child: str) -> None:
        """Something that the child said was not allowed, and changed nothing."""
        return

    def state(self) -> RuleState:
        """What the rule remembers; empty if nothing. A checkpoint holds it beside the network.

        The arrays are copied before the next push.
        """
        return {}

    def restore(self, state: RuleState) -> None:
        """Takes over the `state` of another rule of the same class.

        Raises:
            ValueError: an array is missing, or does not fit.
        """
        return

    def diagnose(self, beta: float, children: int) -> list[str]:
        """What a user should know of this rule with this β and so many children, in sentences."""
        return []


class Blend(Rule):
    """The documented rule: θ_P ← (1−α)θ_P + αθ_C. It remembers nothing.

    Source: thesis §4.7, Algorithm 2.
    """

    convex = True

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def apply(self, parent: Vector, push: Update) -> None:
        blend(parent, push.vector, self.alpha)

    def diagnose(self, beta: float, children: int) -> list[str]:
        return diagnose(self.alpha, beta, children)


def speed_factor(alpha: float, beta: float) -> float:
    """The parent's speed relative to one child that learns alone: α / (α + β − αβ).

    Exact for one child that gains the same at every exchange; more children lose less.
    """
    return alpha / (alpha + beta - alpha * beta) if alpha > 0.0 else 0.0


def diagnose(alpha: float, beta: float, children: int) -> list[str]:
    """What a user should know of `Blend` with this α and β, in sentences."""
    found = []
    if alpha == 0.0:
        found.append(
            "alpha = 0: the parent never takes anything from its children, so nothing is learned"
        )
    if beta == 0.0 and children > 1:
        found.append(
            "beta = 0: children never read the parent, so they do not cooperate; "
            "the parent follows the last pushers"
        )
    factor = speed_factor(alpha, beta)
    if 0.0 < factor < 0.5:
        found.append(
            f"alpha = {alpha:g} with beta = {beta:g} slows learning to about {factor:.0%} "
            "of one child that learns alone; raise alpha or lower beta"
        )
    return found
