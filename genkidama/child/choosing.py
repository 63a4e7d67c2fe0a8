"""How the actions of a batch are chosen, and what is noted of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from genkidama.child.replay import Rows
from genkidama.learning.model import Model

__all__ = ["Explorer", "Noted"]

Array = npt.NDArray[Any]


class Explorer:
    """How actions are drawn, with an ε that may change between batches.

    Args:
        changing: ε of the next batch; None if it stays as it is.
        epsilon: as it is at first.
        make: from ε to a function that draws actions.
    """

    def __init__(
        self, changing: Callable[[], float] | None, epsilon: float, make: Callable[[float], Any]
    ) -> None:
        self._changing = changing
        self._epsilon = epsilon
        self._make = make
        self._sample = make(epsilon)

    def sampler(self) -> Any:
        """What draws the actions of the next batch."""
        if self._changing is not None:
            epsilon = self._changing()
            if epsilon != self._epsilon:
                self._epsilon = epsilon
                self._sample = self._make(epsilon)
        return self._sample


class Noted:
    """The policy's outputs at each step of a batch, if the learner asks how probable actions were.

    Args:
        model: whose policy it is.
        wanted: whether the learner asks.
        lanes, length: a batch has so many trajectories of so many steps.
    """

    def __init__(self, model: Model, wanted: bool, lanes: int, length: int) -> None:
        self._head = model.head
        shape = (lanes, length, model.head.outputs)
        self.outputs = np.zeros(shape, np.float32) if wanted else None

    def log_mu(self, rows: Rows, steps: int) -> Array | None:
        """log μ of the batch's actions, float32 (steps,)."""
        if self.outputs is None:
            return None
        actions = torch.from_numpy(rows.actions[:steps].astype(self._head.dtype))
        # A batch that was stopped early has shorter trajectories.
        played = self.outputs[:, : steps // len(self.outputs)]
        outputs = torch.from_numpy(played.reshape(steps, self._head.outputs))
        result: Array = self._head.log_probability(outputs, actions).numpy()
        return result
