"""Checks of requests. Each raises a `ProtocolError` or accepts. Pure."""

from __future__ import annotations

import math

import numpy as np

from genkidama.config.sections import ParentSettings
from genkidama.errors import ProtocolError
from genkidama.protocol.messages import LARGEST_RETURN, PROTOCOL, Hello, Push
from genkidama.protocol.shard import WHOLE, Shard
from genkidama.protocol.vector import (
    DTYPE,
    LARGEST,
    LARGEST_STATISTIC,
    Signature,
    Vector,
    is_finite,
    length,
)
from genkidama.server.rules.blend import Rule
from genkidama.server.trial import STATE_PREFIX, Trial

#: The vector of a push that reports work alone.
NOTHING: Vector = np.zeros(0, DTYPE)


def check_hello(
    message: Hello, session: str, connected: int, limit: int, part: Shard = WHOLE
) -> None:
    """Checks that this child may connect.

    `session` is that of the child connected under this name; empty if there is none.
    """
    if message.protocol != PROTOCOL:
        raise ProtocolError(
            "version",
            f"child {message.name!r} speaks protocol {message.protocol}, "
            f"this parent protocol {PROTOCOL}; install the same version on both",
        )
    if message.part != str(part):
        way = "give it the addresses of all parts, in their order"
        if part == WHOLE:
            way = "start a child of its own for each run, with --cores for its share of the machine"
        raise ProtocolError(
            "part",
            f"child {message.name!r} comes for part {message.part} of a parent, this is part "
            f"{part}; {way}",
        )
    if session and session != message.session:
        raise ProtocolError(
            "name",
            f"the name {message.name!r} is in use by another child; give this one another name",
        )
    if not session and connected >= limit:
        raise ProtocolError("full", f"parent.max_children = {limit}: so many are connected already")


def check_signature(
    child: str, signature: Signature, trial: Trial, settings: ParentSettings
) -> None:
    """Checks that a child with this network may train the trial.

    The run's network may change, since the child that brought it may have been the wrong one. All
    else is refused for good.
    """
    limit = settings.max_parameters
    expected = settings.signature if trial.number is None else ""
    names = [name for name, _ in signature.entries]
    # Safetensors or a checkpoint needs these for something else.
    taken = [name for name in names if name == "__metadata__" or name.startswith(STATE_PREFIX)]
    problem: str | None = None
    if not 0 < signature.size <= limit:
        problem = (
            f"a network of {signature.size} numbers; "
            f"1 to {limit} are accepted (parent.max_parameters)"
        )
    elif signature.size - signature.statistics < trial.part.count:
        problem = f"{trial.part.count} parts share the child's {signature.size} numbers; use fewer"
    elif taken:
        problem = f"child {child!r} gives a parameter the name {taken[0]!r}"
    elif len(set(names)) < len(names):
        problem = f"child {child!r} gives two parameters the same name"
    if problem is not None:
        raise ProtocolError("signature", problem, final=True)
    if expected not in ("", signature.digest):
        problem = (
            f"child {child!r} has another network than parent.signature says: "
            f"{signature.digest}, expected {expected}"
        )
    elif trial.signature is not None and (difference := trial.signature.difference(signature)):
        problem = f"child {child!r} has another network: {difference}"
    if problem is not None:
        raise ProtocolError("signature", problem)


def check_push(child: str, message: Push, trial: Trial, rule: Rule, owned: bool) -> Vector:
    """Checks that this push fits the trial, which the child may train if it is `owned`.

    Returns the push's vector, which may still hold NaN.
    """
    if not owned or message.trial != trial.number:
        raise ProtocolError(
            "trial",
            f"child {child!r} pushes for trial {message.trial}, which it does not own; "
            "it has to say hello again",
        )
    vector = NOTHING if message.kind == "work" else message.vector
    length = 0 if vector is None else len(vector)
    wanted = "" if vector is NOTHING else rule.fits(length, trial.held.size)
    if vector is None or wanted:
        raise ProtocolError("length", f"child {child!r} pushes {length} numbers, expected {wanted}")
    if message.version > trial.version:
        raise ProtocolError(
            "order",
            f"child {child!r} starts from version {message.version}, the newest is {trial.version}",
        )
    return vector


def measure(vector: Vector, statistics: int) -> tuple[float, str]:
    """The Euclidean norm of a vector's trained numbers, and a fault in its numbers, or ""."""
    trained = vector[: len(vector) - statistics] if statistics else vector
    norm = length(trained)
    if not statistics and norm <= LARGEST:
        return norm, ""
    tail = vector[len(trained) :]
    if not (norm < math.inf and is_finite(tail)):
        return norm, "NaN or infinity"
    if norm > LARGEST:
        return norm, f"numbers no network has: their norm is {norm:.3g}, at most {LARGEST:g}"
    if np.abs(tail).max() > LARGEST_STATISTIC:
        return norm, f"running statistics beyond ±{LARGEST_STATISTIC:g}"
    return norm, ""


def check_returns(child: str, returns: list[float]) -> None:
    """Checks that all returns are numbers that can be summed."""
    for value in returns:
        if not -LARGEST_RETURN <= value <= LARGEST_RETURN:
            raise ProtocolError(
                "finite",
                f"child {child!r} reports a return that is NaN, infinite "
                f"or beyond ±{LARGEST_RETURN:g}",
            )
