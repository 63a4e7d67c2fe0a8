"""Rule, the interface by which a parent uses pushes, and `Blend`, the default. Pure NumPy.

`Blend` is the thesis' rule (§4.7, Algorithm 2). On every push the parent moves towards the child,
`θ_P ← (1−α)θ_P + αθ_C`, and answers with the result. The child then moves towards the parent,
`θ_C ← (1−β)θ_C + βθ_P`. `parent.rule` selects another `Rule`, of `genkidama.server.rules`
or a custom one.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy.typing as npt

from genkidama.protocol.vector import Vector, blend

#: The memory of a rule between two pushes: float32 or float64 arrays by name.
RuleState: TypeAlias = dict[str, npt.NDArray[Any]]


class Update(msgspec.Struct, gc=False):
    """A push, as a rule gets it."""

    #: float32, shape (n,). A rule may only read it, and only until `Rule.apply` returns.
    vector: Vector
    #: The version of θ_P that the child started from.
    version: int
    #: Pushes applied since that version.
    staleness: int
    #: Environment steps behind it.
    steps: int
    #: The name of the child.
    child: str
    #: Children that take part, including this one.
    children: int = 1
    #: Its time in seconds, which never decreases, also through restarts.
    seconds: float = 0.0
    #: The share of the run that is done, in [0, 1].
    progress: float = 0.0
    #: The loss that the child has measured; None if it has measured none.
    loss: float | None = None
    #: Running statistics at the end of the vector. They are θ_C's, whatever is pushed.
    statistics: int = 0
    #: The Euclidean norm of the numbers before them, at most `LARGEST`; None if not measured.
    length: float | None = None
    #: α of this push; None means the rule's own.
    alpha: float | None = None


@runtime_checkable
class Rule(Protocol):
    """The use of a push by the parent. A custom rule inherits from this class and defines `apply`.

    It is made once a run, as `Class(parent.alpha, **parent.rule_options)`. One event loop calls it
    for all children in turns. It must not wait, and every push pays for what it does.

    Every rule keeps these promises; `tests/server/rules` checks them:

    - Finite weights and a push of honest size give finite weights. Where a rule cannot keep that,
      the parent takes the push back, and refuses it (`Trial.apply`).
    - It is deterministic: the same pushes give the same weights to the bit.
    - It reads the push and writes θ_P in place. It keeps neither array.
    - `state` holds all of its memory, and with `restore` a new rule continues like the old one.
    """

    #: What a push's vector is: `"weights"`, θ_C; `"difference"`, θ_C − θ_base, where θ_base is the
    #: θ_P that the child started from; `"gradient"`, the mean of its cores' gradients at θ_base.
    takes: ClassVar[Literal["weights", "difference", "gradient", "experience"]] = "weights"

    #: True if no push that the parent accepts can make θ_P or the state overflow, so that nothing
    #: is checked afterwards.
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
            The reason why the push is left out, in a word; None if it is used. A push that is left
            out makes no new version. The parent counts it by child, and the history has the word.
        """
        raise NotImplementedError

    def moved(self) -> float:
        """An upper bound for the Euclidean norm of the last step of θ_P's trained numbers.

        It spares the parent a look at all of θ_P after the push, as long as the steps add up to
        less than float32 can hold. Infinity, if it is not known.
        """
        return math.inf

    def fits(self, count: int, size: int) -> str:
        """The expected length in words, if a push must not have `count` numbers; else empty.

        Args:
            count: numbers of the push's vector.
            size: numbers of θ_P.
        """
        return "" if count == size else str(size)

    def largest(self, size: int) -> int:
        """The most numbers that the vector of a push, or of its answer, has; θ_P has `size`."""
        return size

    def share(self, child: str, children: int) -> int:
        """Environment steps of the child's next push; 0 leaves it to the child.

        Args:
            children: those that take part.
        """
        return 0

    def pull(self, parent: Vector, child: str) -> bool:
        """Brings θ_P up to date, in place, since a child asks for it between two pushes.

        Returns:
            True if it is news to the child.
        """
        return True

    def forget(self, child: str) -> None:
        """Forgets a child that takes part no longer. It may come back."""
        return

    def refused(self, child: str) -> None:
        """Notes that a message of the child was refused, and changed nothing."""
        return

    def state(self) -> RuleState:
        """The rule's memory; empty if it has none. A checkpoint holds it beside the network.

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
        """Sentences for the user on this rule with this β and number of children."""
        return []


class Blend(Rule):
    """The documented rule: θ_P ← (1−α)θ_P + αθ_C. It has no memory.

    Source: thesis §4.7, Algorithm 2.
    """

    convex = True

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def apply(self, parent: Vector, push: Update) -> None:
        blend(parent, push.vector, self.alpha if push.alpha is None else push.alpha)

    def diagnose(self, beta: float, children: int) -> list[str]:
        return diagnose(self.alpha, beta, children)


def speed_factor(alpha: float, beta: float) -> float:
    """The parent's speed relative to one child that learns alone: α / (α + β − αβ).

    Exact for one child that gains the same at every exchange; more children lose less.
    """
    return alpha / (alpha + beta - alpha * beta) if alpha > 0.0 else 0.0


def diagnose(alpha: float, beta: float, children: int) -> list[str]:
    """Sentences for the user on `Blend` with this α and β."""
    sentences = []
    if alpha == 0.0:
        sentences.append(
            "alpha = 0: the parent never takes anything from its children, so nothing is learned"
        )
    if beta == 0.0 and children > 1:
        sentences.append(
            "beta = 0: children never read the parent, so they do not cooperate; "
            "the parent follows the last pushers"
        )
    factor = speed_factor(alpha, beta)
    if 0.0 < factor < 0.5:
        sentences.append(
            f"alpha = {alpha:g} with beta = {beta:g} slows learning to about {factor:.0%} "
            "of one child that learns alone; raise alpha or lower beta"
        )
    return sentences
