"""What an exchange reads and writes of a child's shared memory, the same for every backend here."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from genkidama.protocol.vector import DTYPE, Vector, blend

__all__ = ["SharedWeights", "change"]

Array = npt.NDArray[Any]

#: The arrays that a restarted child would miss.
_STATE = ("weights", "state", "clock")


class SharedProgress(Protocol):
    """A block of shared memory that holds what is learned."""

    #: θ_C: float32, shape (size,).
    weights: Array
    #: Optimizer state: float32, any shape.
    state: Array
    #: Optimizer steps so far: float64, any shape.
    clock: Array
    #: How much of the run is done: float64, shape (1,).
    progress: Array


class SharedWeights:
    """θ_C, the optimizer's state and the run's progress, where processes read and write them, too.

    Args:
        memory: the block that they lie in.
        vector: the initial weights, as bytes of float32.
    """

    def __init__(self, memory: SharedProgress, vector: bytes) -> None:
        self._memory = memory
        memory.weights[:] = np.frombuffer(vector, DTYPE)

    def begin(self, weights: Vector | None) -> None:
        """θ_C ← these weights, or stays as it is."""
        if weights is not None:
            self._memory.weights[:] = weights

    def snapshot(self) -> Vector:
        """A copy of θ_C."""
        return self._memory.weights.copy()

    def blend(self, sent: Vector, parent: Vector, beta: float, keep_changes: bool) -> None:
        """θ_C ← (1−β)θ_C + βθ_P.

        Args:
            sent: θ_C as it was pushed.
            parent: θ_P.
            beta: the share of the parent, in [0, 1].
            keep_changes: whether θ_C may have gone on since it was sent. Then what was learned
                meanwhile is kept: θ_C ← θ_C + β(θ_P − θ_sent), which is the same where nothing has
                changed. It is kept in any case after a push that was sent again.
        """
        if not beta:
            return
        if keep_changes or not np.array_equal(self._memory.weights, sent):
            self._memory.weights += change(sent, parent, beta)
        else:
            blend(self._memory.weights, parent, beta)

    def reset(self, weights: Vector) -> None:
        """θ_C ← these weights; the optimizer's state is forgotten."""
        self._memory.state[:] = 0.0
        self._memory.clock[:] = 0.0
        self._memory.weights[:] = weights

    def state(self) -> dict[str, Array]:
        """Copies of all that a restarted child would miss."""
        return {name: getattr(self._memory, name).copy() for name in _STATE}

    def restore(self, state: dict[str, Array]) -> None:
        """Takes over what `state` gave, except arrays whose shape is another one now.

        So another number of cores or another optimizer starts with fresh momenta.
        """
        for name, array in state.items():
            ours = getattr(self._memory, name)
            if ours.shape == array.shape:
                ours[:] = array

    def set_progress(self, progress: float) -> None:
        """How much of the run is done, in [0, 1]."""
        self._memory.progress[0] = progress


def change(sent: Vector, parent: Vector, beta: float) -> Vector:
    """What an exchange adds to weights that have gone on since they were sent: β(θ_P − θ_sent)."""
    return (parent - sent) * DTYPE.type(beta)
