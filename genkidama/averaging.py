"""How two weight vectors become one, and what α and β do to a run.

Thesis §4.7, Algorithm 2: on every push the parent moves towards the child,
`θ_P ← (1−α)θ_P + αθ_C`, and answers with the result; the child then moves towards the parent,
`θ_C ← (1−β)θ_C + βθ_P`.
"""

from __future__ import annotations

from genkidama.weights import Vector

__all__ = ["blend", "diagnose", "effective_pull", "speed_factor"]


#: Numbers blended at a time: what is taken of the child stays in a second-level cache, so that a large
#: vector crosses the memory bus once. Smaller blocks cost more in calls than they save.
BLOCK = 65_536


def blend(parent: Vector, child: Vector, alpha: float) -> None:
    """`parent ← (1−alpha)·parent + alpha·child`, in place.

    Args:
        parent: float32, shape (n,), written to.
        child: float32, shape (n,), only read.
        alpha: the weight of `child`, in [0, 1]. 0 leaves `parent` as it is, 1 makes it equal to `child`.

    Raises:
        ValueError: `alpha` is outside [0, 1], or the shapes or types differ.

    Source: thesis §4.7, Algorithm 2. The same call with the roles exchanged and `beta` is the child's pull.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha = {alpha!r} is outside [0, 1]")
    if parent.shape != child.shape or parent.ndim != 1:
        raise ValueError(
            f"cannot blend shape {list(child.shape)} into shape {list(parent.shape)}; both must be equal and flat"
        )
    if parent.dtype != child.dtype or parent.dtype.kind != "f" or parent.dtype.itemsize != 4:
        raise ValueError(f"cannot blend {child.dtype} into {parent.dtype}; both must be float32")
    if alpha == 0.0:
        return
    if alpha == 1.0:
        parent[:] = child
        return
    for start in range(0, len(parent), BLOCK):
        _blend(parent[start : start + BLOCK], child[start : start + BLOCK], alpha)


def _blend(parent: Vector, child: Vector, alpha: float) -> None:
    # (1−α)p + αc and not p + α(c−p): the second overflows for finite p and c of opposite sign.
    taken = child * alpha
    parent *= 1.0 - alpha
    parent += taken


def effective_pull(alpha: float, beta: float) -> float:
    """How far a child really moves towards what its parent was before the push: β(1−α).

    The parent that answers has already taken α of the child itself.
    """
    return beta * (1.0 - alpha)


def speed_factor(alpha: float, beta: float) -> float:
    """The parent's speed relative to one child that learns alone: α / (α + β − αβ).

    Exact for one child that gains the same at every exchange; more children lose less.
    """
    return alpha / (alpha + beta - alpha * beta) if alpha > 0.0 else 0.0


def diagnose(alpha: float, beta: float, children: int) -> list[str]:
    """What a user should know about this α and β, one sentence each; empty if nothing is odd."""
    found = []
    if alpha == 0.0:
        found.append(
            "alpha = 0: the parent never takes anything from its children, so nothing is learned"
        )
    if beta == 0.0 and children > 1:
        found.append(
            "beta = 0: children never read the parent, so they do not cooperate; the parent follows the last pushers"
        )
    if 0.0 < speed_factor(alpha, beta) < 0.5:
        found.append(
            f"alpha = {alpha:g} with beta = {beta:g} slows learning to about {speed_factor(alpha, beta):.0%} "
            "of one child that learns alone; raise alpha or lower beta"
        )
    return found
