"""Memory that a parent and its learner share: a batch of rows, and the weights learned from it.

Laws of this file:
- The two take turns, and each turn begins with a message on their socket. From "learn" to "learned"
  all belongs to the learner, and else to the parent. So nothing is read while it is written.
- `beat` alone may be read at any time: it shows that the learner works.
- The learner copies a batch's rows before it changes anything, and writes θ and the optimizer's
  state after it has learned from all of them. So a learner that dies leaves the state before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.runtime.shared_block import Block

__all__ = ["LearnerLayout", "LearnerMemory"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LearnerLayout:
    """The sizes that the shared memory follows from."""

    #: Numbers of the weight vector.
    size: int
    #: How many of them are trainable.
    trainable: int
    #: Vectors of optimizer state.
    state_rows: int
    #: Rows of a batch, at most.
    rows: int
    #: M: numbers of a row.
    columns: int

    def parts(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        return {
            "weights": ((self.size,), np.float32),
            "state": ((self.state_rows, self.trainable), np.float32),
            "clock": ((1,), np.float64),
            "beat": ((1,), np.int64),
            "rows": ((self.rows, self.columns), np.float32),
        }


class LearnerMemory(Block):
    """The arrays; `LearnerLayout` gives their shapes."""

    #: θ.
    weights: Array
    #: The optimizer's state, and its steps so far.
    state: Array
    clock: Array
    #: A number that grows with each update, and with the batch's end.
    beat: Array
    #: The batch: blocks one behind the other, from the first row on.
    rows: Array
