"""The replay tensor T[C × N × M]: every step that the cores of one child have taken lately.

C cores, N steps a core, M numbers a step: observation, action, reward, terminated, truncated. It lies
in shared memory; every core reads all of it and writes only its own share (thesis §4.5). On-policy
learners read the rollout that their own core has just written; `sample` is for off-policy ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ReplayTensor"]

Array = npt.NDArray[Any]


class ReplayTensor:
    """Named views of T.

    Args:
        tensor: float32 (C, N, M).
        filled: int64 (C,): how many steps of each share are written.
        observation_shape: of one observation.
        action_columns: numbers of one action.
    """

    def __init__(
        self, tensor: Array, filled: Array, observation_shape: tuple[int, ...], action_columns: int
    ) -> None:
        width = int(np.prod(observation_shape))
        if tensor.shape[2] != self.columns(width, action_columns):
            raise ValueError(
                f"a replay tensor of {tensor.shape[2]} columns, expected {self.columns(width, action_columns)}"
            )
        self.tensor, self.filled = tensor, filled
        self.observations = tensor[:, :, :width].reshape(*tensor.shape[:2], *observation_shape)
        self.actions = tensor[:, :, width : width + action_columns]
        self.rewards, self.terminated, self.truncated = (
            tensor[:, :, width + action_columns + i] for i in range(3)
        )

    @staticmethod
    def columns(observation_size: int, action_columns: int) -> int:
        """M."""
        return observation_size + action_columns + 3

    def sample(
        self,
        rng: np.random.Generator,
        count: int,
        *,
        share: int | None = None,
        replacement: bool = True,
    ) -> tuple[Array, Array]:
        """Uniformly random steps, as indices of their core and of their place in its share, each (count,).

        Args:
            share: only this core's steps; all cores' if absent.
            replacement: whether a step may come twice.

        Raises:
            ValueError: there are no steps, or, without replacement, fewer than `count`.
        """
        filled = self.filled.copy()  # other cores go on writing: one look decides
        if share is not None:
            filled[np.arange(len(filled)) != share] = 0
        ends = np.cumsum(filled)
        total = int(ends[-1])
        if total == 0 or (not replacement and count > total):
            raise ValueError(f"{count} steps asked for, {total} are there")
        chosen = (
            rng.integers(total, size=count)
            if replacement
            else rng.choice(total, count, replace=False)
        )
        cores = np.searchsorted(ends, chosen, side="right")
        return cores, chosen - (ends - filled)[cores]
