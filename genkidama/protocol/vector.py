"""One vector: all numbers of a network as flat float32, and the signature that names its parts.

Laws of this file:
- A weight vector is one-dimensional, float32, little-endian, of exactly `signature.size` numbers.
- Two vectors may be blended only if their signatures are equal. Equal signatures have equal
  digests.
- The trainable parameters come first, running statistics (normalization) last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isfinite, nan, prod, sqrt
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

#: The type of every number in memory, on the wire and on disk.
DTYPE = np.dtype("<f4")

Vector: TypeAlias = npt.NDArray[np.float32]

#: Numbers worked on at a time. Intermediate results stay in a second-level cache, so that a large
#: vector crosses the memory bus once. Below 10,000 numbers OpenBLAS starts no threads.
BLOCK = 8_192

#: Numbers blended at a time; smaller blocks cost more in calls than they save.
_BLENDED = 65_536

#: The longest push (Euclidean norm of its trained numbers) and the largest running statistic that a
#: parent takes. No network computes with such weights. Below them the sums, the squares and the
#: momenta of any number of pushes stay far from float32's 3.4e38.
LARGEST = 1e15
LARGEST_STATISTIC = 1e30

#: The entries of a signature that are running statistics: of the observations, of the returns.
STATISTICS = ("statistics.observations", "statistics.returns")


@dataclass(frozen=True)
class Signature:
    """The names and shapes of a vector's parts, in their order.

    `entries` is a tuple of `(name, shape)`; a scalar has the shape `()`.
    """

    entries: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, entries: Iterable[tuple[str, Sequence[int]]]) -> Signature:
        return cls(tuple((name, tuple(int(n) for n in shape)) for name, shape in entries))

    @cached_property
    def size(self) -> int:
        """The number of float32 numbers of a vector."""
        return sum(prod(shape) for _, shape in self.entries)

    @cached_property
    def statistics(self) -> int:
        """The number of running statistics at its end; the numbers before them are trained."""
        return sum(prod(shape) for name, shape in self.entries if name in STATISTICS)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of a text with a line `name:d0,d1,...` for each entry, ended by `\\n`."""
        text = "".join(f"{name}:{','.join(map(str, shape))}\n" for name, shape in self.entries)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def slices(self) -> dict[str, slice]:
        """The slice of each entry in the vector."""
        slices, start = {}, 0
        for name, shape in self.entries:
            slices[name] = slice(start, start + prod(shape))
            start += prod(shape)
        return slices

    def difference(self, other: Signature) -> str | None:
        """The first entry in which `other` differs from this one, as a sentence; None if equal."""
        for position, (mine, theirs) in enumerate(zip(self.entries, other.entries, strict=False)):
            if mine != theirs:
                return (
                    f"parameter {position} is {theirs[0]!r} with shape {list(theirs[1])}, "
                    f"expected {mine[0]!r} with shape {list(mine[1])}"
                )
        ours, count = len(self.entries), len(other.entries)
        if count == ours:
            return None
        name, shape = max(self.entries, other.entries, key=len)[min(ours, count)]
        return (
            f"parameter {name!r} with shape {list(shape)} is "
            f"{'missing' if count < ours else 'not expected'} "
            f"({count} parameters, expected {ours})"
        )


def unflatten(vector: Vector, signature: Signature) -> dict[str, Vector]:
    """Named views into `vector`. Nothing is copied: writing to a view writes to the vector.

    Raises:
        ValueError: the vector's length is not the signature's size.
    """
    if vector.shape != (signature.size,):
        raise ValueError(f"a vector of shape {list(vector.shape)}, expected [{signature.size}]")
    return {
        name: vector[signature.slices[name]].reshape(shape) for name, shape in signature.entries
    }


def is_finite(vector: Vector) -> bool:
    """True if the vector is free of NaN and infinity."""
    return isfinite(_square(vector)) or bool(np.isfinite(vector).all())


def _square(vector: Vector) -> float:
    """The dot product with itself; infinite or NaN where numbers are too large."""
    # `vdot` warns of no overflow, and each push pays for an `errstate`.
    if len(vector) <= BLOCK:
        return float(np.vdot(vector, vector))
    total = 0.0
    for start in range(0, len(vector), BLOCK):
        block = vector[start : start + BLOCK]
        total += float(np.vdot(block, block))
    return total


def length(vector: Vector) -> float:
    """The Euclidean norm; NaN if one of the numbers is NaN or infinite, and else finite."""
    # A NaN or an infinity survives in the dot product of a block with itself, which is cheaper than
    # a look at each number. Large numbers overflow there, too, so only the slow look decides.
    total = _square(vector)
    if isfinite(total):
        return sqrt(total)
    largest = float(np.max(np.abs(vector)))
    return largest * float(np.linalg.norm(vector / largest)) if isfinite(largest) else nan


def blend(parent: Vector, child: Vector, alpha: float) -> None:
    """`parent ← (1−alpha)·parent + alpha·child`, in place.

    Args:
        parent: float32, shape (n,), written to.
        child: float32, shape (n,), only read.
        alpha: the weight of `child`, in [0, 1]. 0 leaves `parent` as it is, 1 makes it `child`.

    Raises:
        ValueError: `alpha` is outside [0, 1], or the shapes or types differ.

    Source: thesis §4.7, Algorithm 2. The same call with the roles exchanged and `beta` is the
    child's pull.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha = {alpha!r} is outside [0, 1]")
    if parent.shape != child.shape or parent.ndim != 1:
        raise ValueError(
            f"cannot blend shape {list(child.shape)} into shape {list(parent.shape)}; "
            "both must be equal and flat"
        )
    if not (parent.dtype == child.dtype == DTYPE):
        raise ValueError(f"cannot blend {child.dtype} into {parent.dtype}; both must be float32")
    if alpha == 0.0:
        return
    if alpha == 1.0:
        parent[:] = child
        return
    kept, taken = _shares(alpha)
    if len(parent) <= _BLENDED:  # views cost as much as a small vector's arithmetic
        _blend(parent, child, kept, taken)
        return
    for start in range(0, len(parent), _BLENDED):
        part = slice(start, start + _BLENDED)
        _blend(parent[part], child[part], kept, taken)


@lru_cache(64)
def _shares(alpha: float) -> tuple[Vector, Vector]:
    """1−α and α as arrays without a dimension, which NumPy multiplies faster than a `float`."""
    return np.array(1.0 - alpha, DTYPE), np.array(alpha, DTYPE)


def _blend(parent: Vector, child: Vector, kept: Vector, taken: Vector) -> None:
    # (1−α)p + αc and not p + α(c−p): the second overflows for finite p and c of opposite sign.
    np.multiply(parent, kept, parent)
    np.add(parent, np.multiply(child, taken), parent)


def checksum(tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> str:
    """BLAKE2b (128 bits, hex) of all metadata but `"checksum"`, then of all tensors, sorted by
    name."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(metadata.keys() - {"checksum"}):
        digest.update(f"{key}={metadata[key]}\n".encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name}:{array.dtype.str}{list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def are_numbers(rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """True for each of rows (n, …) has finite numbers alone, none beyond ±`LARGEST`: bool (n,)."""
    if rows.dtype == np.uint8:
        return np.ones(len(rows), np.bool_)
    flat = rows.reshape(len(rows), -1)
    good = (flat.max(1, initial=0.0) <= LARGEST) & (flat.min(1, initial=0.0) >= -LARGEST)
    return np.asarray(good)


def are_actions(actions: npt.NDArray[Any], choices: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """True for each of actions (n, columns) can be one, if it is discrete: bool (n,).

    Args:
        choices: the number of discrete actions in each of the first columns, counted from 0.
    """
    if not choices:
        return np.ones(len(actions), np.bool_)
    actions = actions[:, : len(choices)]
    valid = (actions >= 0.0) & (actions < choices) & (actions == np.floor(actions))
    return np.asarray(valid.all(1))
