"""What differences and gradients start from: θ_P as the child last took it over whole. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from genkidama.messages import Kind
from genkidama.weights import Signature, Vector, is_finite

__all__ = ["Basis"]


@dataclass
class Basis:
    """θ_base, and what a push carries for it. Two are compared without their vectors."""

    #: What the parent's rule takes.
    pushes: Kind = "weights"
    #: θ_base; None if there is none, or if weights are pushed.
    vector: Vector | None = field(default=None, compare=False, repr=False)
    #: θ_C at the last push.
    pushed: Vector | None = field(default=None, compare=False, repr=False)
    #: The difference that was pushed and not answered yet.
    _difference: Vector | None = field(default=None, compare=False, repr=False)

    def take_over(self, parent: Vector | None) -> None:
        """θ_base is this θ_P; None if there is none, or if the child did not take it over."""
        self.vector = parent if self.pushes != "weights" else None
        self._difference = None

    def carried(
        self, vector: Vector | None, gradient: Vector | None, signature: Signature
    ) -> tuple[Kind, Vector | None]:
        """What a push carries, and the word for it.

        The running statistics at the end are θ_C's own, whatever is before them. A difference that
        was not answered is pushed again as it was: the parent may have counted it, and then what
        was learned since is in the next one.

        Args:
            vector: θ_C, float32, shape (signature.size,), only read; or rows of experience. None
                if nothing is pushed but what was done.
            gradient: at θ_base, float32, one number for each trained one; None if there is none.
        """
        again = self.vector is not None and self._difference is not None
        # Otherwise it goes on: the parent shall hear that training has diverged.
        if again and vector is not None and is_finite(vector):
            assert self._difference is not None
            return "difference", self._difference
        self.pushed = vector
        if vector is None:
            return "work", None
        if self.pushes == "experience":
            return self.pushes, vector
        trained = signature.size - signature.statistics
        if self.vector is not None and self.pushes == "difference":
            difference = vector.copy()
            difference[:trained] -= self.vector[:trained]
            self._difference = difference if is_finite(vector) else None
            return "difference", difference
        if self.vector is not None and gradient is not None and self.pushes == "gradient":
            return "gradient", np.concatenate((gradient, vector[trained:]))
        return "weights", vector
