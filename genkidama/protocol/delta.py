"""How weights travel between a parent and one child: whole, or as differences in fewer bytes. Pure.

Laws of this file:
- A hello offers encodings, and the welcome chooses one. Without one, all weights travel whole.
- A push of weights is a difference to the vector of the last `Weights`, and its reply is one to
  that push. So whatever a line loses, both ends know where they stand.
- A push of the kind `difference` is one to nothing. A gradient travels whole, because what it left
  over would have no place to stay, and so does experience. The replies to these, and to a pull, are
  differences to the last `Weights`. If they have no vector, both ends know what they knew.
- The answer to a join is whole. A connection begins with it, and so does a parent that has started
  again.
- What a message leaves over stays with its sender: the parent keeps θ_P as it is, and the child
  keeps in θ_C what it could not say.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from genkidama.errors import ProtocolError
from genkidama.protocol.compression import ENCODINGS, Encoding, compress, expand
from genkidama.protocol.messages import Hello, Push, Weights
from genkidama.protocol.vector import DTYPE, Signature, Vector, is_finite

__all__ = ["ChildDelta", "ParentDelta", "agree", "check_weights"]


def agree(hello: Hello, encoding: str) -> ParentDelta | None:
    """The parent's end of a line to this child; None if all weights travel whole.

    Args:
        encoding: what the parent wishes, its setting `parent.encoding`.
    """
    agreed = (name for name in ENCODINGS if name == encoding and name in hello.encodings)
    return next(map(ParentDelta, agreed), None)


class ParentDelta:
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

    def begin(self, signature: Signature) -> None:
        """A child joins with a network of this signature. The next answer is whole."""
        self._trainable = signature.size - signature.statistics
        self.known = None

    def answer(self, weights: Weights, push: Push | None = None) -> Weights:
        """These weights as a difference, if they can be one.

        Args:
            push: the push that they answer, which has been read; None for a join or a pull.
        """
        vector = weights.vector
        if vector is None:
            return weights
        base = self.known if push is None or push.kind != "weights" else push.vector
        found = base is not None and compress(self.encoding, vector, base, self._trainable)
        self._version = weights.version
        if not found:
            self.known = vector.copy()  # the blend changes θ_P in place
            return weights
        difference, self.known = found
        return msgspec.structs.replace(weights, encoding=self.encoding, vector=difference)

    def read(self, child: str, push: Push) -> Push:
        """The same push with its whole vector.

        Raises:
            ProtocolError: its difference is to weights that this parent does not know, or is none.
        """
        base = self.known
        if base is None or (push.kind == "weights" and push.version != self._version):
            raise unknown_base(child, push)
        if push.kind != "weights":
            base = np.zeros_like(base)
        vector = _expand(push, base, self._trainable)
        return msgspec.structs.replace(push, encoding="", vector=vector)


@dataclass
class ChildDelta:
    """The child's end of the line. Two are compared without their vectors."""

    #: What the welcome has chosen, one of `ENCODINGS`; empty if all weights travel whole.
    encoding: Encoding = ""
    _trainable: int = 0
    #: θ_P as it has last arrived, and its version.
    known: Vector | None = field(default=None, compare=False, repr=False)
    _version: int = 0
    #: The weights that wait for their reply, as the parent reads them; None if there are none.
    _read: Vector | None = field(default=None, compare=False, repr=False)
    #: What the parent does not read in the push that waits; None if it reads all.
    _rest: Vector | None = field(default=None, compare=False, repr=False)

    def begin(self, weights: Weights, signature: Signature) -> None:
        """These weights answer the join of a network with this signature."""
        self._trainable = signature.size - signature.statistics
        self.known = None
        self._know(weights)

    def write(self, push: Push) -> Push:
        """The same push, its vector as a difference if it can be."""
        vector = push.vector
        if not self.encoding or vector is None:
            return push
        self._read = vector if push.kind == "weights" else None
        self._rest = None
        base = self._start_of(push, vector)
        found = base is not None and compress(self.encoding, vector, base, self._trainable)
        if not found:
            return push
        difference, read = found
        self._rest = vector - read
        if self._read is not None:
            self._read = read
        return msgspec.structs.replace(push, encoding=self.encoding, vector=difference)

    def read(self, weights: Weights) -> Weights:
        """The reply to the last push, or to a pull, with its whole vector.

        Raises:
            ProtocolError: its difference is none.
        """
        if not weights.encoding:
            return weights
        if weights.encoding != self.encoding:
            raise _not_agreed()
        base = self.known if self._read is None else self._read
        if base is None:
            raise ProtocolError("base", "the parent sends a difference to nothing")
        vector = _expand(weights, base, self._trainable)
        return msgspec.structs.replace(weights, encoding="", vector=vector)

    def settle(self, weights: Weights) -> Vector | None:
        """The last request is answered by these weights, which have been read and are finite.

        Returns:
            What to blend into θ_C: θ_P and what the push left over. So the blend leaves in θ_C what
            the parent has not heard of.
        """
        rest = self._rest
        self._know(weights)
        return weights.vector if weights.vector is None or rest is None else weights.vector + rest

    def _start_of(self, push: Push, vector: Vector) -> Vector | None:
        """What the vector of this push can be a difference to; None if it has to travel whole."""
        if push.kind == "weights":
            return self.known if push.version == self._version else None
        return np.zeros(len(vector), DTYPE) if push.kind == "difference" else None

    def _know(self, weights: Weights) -> None:
        self._read = None
        self._rest = None
        if self.encoding and weights.vector is not None:
            self.known = weights.vector
            self._version = weights.version


def unknown_base(child: str, push: Push) -> ProtocolError:
    """A push with a difference to weights that the parent does not know."""
    return ProtocolError(
        "base",
        f"child {child!r} pushes a difference to version {push.version}, which this connection "
        "does not know; it has to join again",
    )


def check_weights(weights: Weights, signature: Signature | None) -> None:
    """Checks that the parent's weights, which have been read, can belong to this network."""
    vector = weights.vector
    size = signature.size if signature is not None else 0
    if weights.encoding:
        raise _not_agreed()
    if vector is not None and len(vector) != size:
        raise ProtocolError("length", f"the parent sends {len(vector)} numbers, expected {size}")
    if vector is not None and not is_finite(vector):
        raise ProtocolError("finite", "the parent sends NaN or infinity")


def _not_agreed() -> ProtocolError:
    return ProtocolError("base", "the parent sends a difference that was not agreed on")


def _expand(message: Push | Weights, base: Vector, trainable: int) -> Vector:
    difference = message.vector
    if difference is None:
        difference = np.empty(0, np.uint8)
    return expand(message.encoding, difference, base, trainable)
