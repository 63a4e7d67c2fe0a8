"""How weights travel between a parent and one child: whole, or as differences in fewer bytes. Pure.

Laws of this file:
- A hello offers encodings, and the welcome chooses one. Without one, all weights travel whole.
- The difference in a push is to the vector of the last `Weights`. The difference in a reply is to
  the push that it answers. So whatever a line loses, both ends know where they stand.
- The answer to a join is whole. A connection begins with it, and so does a parent that has started
  again.
- What a message leaves over stays with its sender: the parent keeps θ_P as it is, and the child
  keeps in θ_C what it could not say.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import numpy as np

from genkidama.compression import ENCODINGS, Encoding, compress, expand
from genkidama.errors import ProtocolError
from genkidama.messages import Hello, Push, Weights
from genkidama.weights import Signature, Vector

__all__ = ["ChildLine", "ParentLine", "agree", "as_known_to"]

#: The settings that came with protocol 2. A child of protocol 1 refuses an experiment with them.
_SINCE_2 = {"parent": ("encoding",)}


def agree(hello: Hello, encoding: str) -> ParentLine | None:
    """The parent's end of a line to this child; None if all weights travel whole.

    Args:
        encoding: what the parent wishes, its setting `parent.encoding`.
    """
    agreed = (name for name in ENCODINGS if name == encoding and name in hello.encodings)
    return next(map(ParentLine, agreed), None)


def as_known_to(protocol: int, experiment: dict[str, Any]) -> dict[str, Any]:
    """The experiment without the settings that a child of this protocol does not know."""
    if protocol > 1:
        return experiment
    known = deepcopy(experiment)
    for section, names in _SINCE_2.items():
        for name in names:
            known[section].pop(name, None)
    return known


class ParentLine:
    """The parent's end of the line to one child. It holds one vector, the child's θ_P.

    Args:
        encoding: how differences are written, one of `ENCODINGS`.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self._trainable = 0
        #: θ_P as the child has it, and its version.
        self.known: Vector | None = None
        self._version = 0

    def begin(self, weights: Weights, signature: Signature) -> None:
        """These weights answer a join of a network with this signature."""
        self._trainable = signature.trainable
        self._know(weights.version, weights.vector)

    def answer(self, weights: Weights, pushed: Vector) -> Weights:
        """The reply to a push whose vector was `pushed`, written as a difference if it can be."""
        vector = weights.vector
        if vector is None:
            return weights
        found = compress(self.encoding, vector, pushed, self._trainable)
        if found is None:
            self._know(weights.version, vector)
            return weights
        difference, self.known = found
        self._version = weights.version
        return msgspec.structs.replace(weights, encoding=self.encoding, vector=difference)

    def read(self, child: str, push: Push) -> Push:
        """The same push with its whole vector.

        Raises:
            ProtocolError: its difference is to weights that this parent does not know, or is none.
        """
        if self.known is None or push.version != self._version:
            raise unknown_base(child, push)
        vector = _expand(push, self.known, self._trainable)
        return msgspec.structs.replace(push, encoding="", vector=vector)

    def _know(self, version: int, vector: Vector | None) -> None:
        # The blend changes θ_P in place.
        self.known = None if vector is None else vector.copy()
        self._version = version


class ChildLine:
    """The child's end of the line.

    Args:
        encoding: what the welcome has chosen, one of `ENCODINGS`.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self._trainable = 0
        #: θ_P as it has last arrived.
        self.known: Vector | None = None
        #: θ_C as it was pushed, and as the parent reads it.
        self._pushed: Vector | None = None
        self._read: Vector | None = None

    def begin(self, weights: Weights, signature: Signature) -> None:
        """These weights answer the join of a network with this signature."""
        self._trainable = signature.trainable
        self.known = weights.vector

    def write(self, push: Push) -> Push:
        """The same push, its vector as a difference if it can be."""
        vector = push.vector
        assert vector is not None
        self._pushed = self._read = vector
        if self.known is None:
            return push
        found = compress(self.encoding, vector, self.known, self._trainable)
        if found is None:
            return push
        difference, self._read = found
        return msgspec.structs.replace(push, encoding=self.encoding, vector=difference)

    def read(self, weights: Weights) -> Weights:
        """The reply to the last push, with its whole vector.

        Raises:
            ProtocolError: its difference is none.
        """
        if not weights.encoding:
            return weights
        if self._read is None:
            raise ProtocolError("base", "the parent sends a difference to nothing")
        vector = _expand(weights, self._read, self._trainable)
        return msgspec.structs.replace(weights, encoding="", vector=vector)

    def settle(self, theirs: Vector | None) -> tuple[Vector | None, Vector | None]:
        """The push is answered by `theirs`, which has been read and is finite.

        Returns:
            θ_C as it was pushed, and what to blend into it: θ_P and what the push left over. So the
            blend leaves in θ_C what the parent has not heard of.
        """
        pushed, read = self._pushed, self._read
        self.known = theirs
        if theirs is None or pushed is None or read is None or read is pushed:
            return pushed, theirs
        return pushed, theirs + (pushed - read)


def unknown_base(child: str, push: Push) -> ProtocolError:
    """A push with a difference to weights that the parent does not know."""
    return ProtocolError(
        "base",
        f"child {child!r} pushes a difference to version {push.version}, which this connection "
        "does not know; it has to join again",
    )


def _expand(message: Push | Weights, base: Vector, trainable: int) -> Vector:
    difference = message.vector
    if difference is None:
        difference = np.empty(0, np.uint8)
    return expand(message.encoding, difference, base, trainable)
