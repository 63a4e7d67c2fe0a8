"""The rows of a global replay, which an engine keeps in one string for all children. Pure.

Laws of this file:
- A row is a step, or a *stop*, which is the observation that followed where a trajectory was cut.
- The row behind a step has the observation that followed it, unless the step has terminated. So a
  step's s′ is exact, and n-step returns need no more than the rows behind it.
- A block is what one core writes at once. It begins with a step, and ends with a stop or with a
  step that has terminated. So no step needs a row of another block, and whichever rows of a block
  are overwritten first, the others stay whole.
- Where a block goes on with the trajectory that the last one was cut from, and that one is still
  here, its stop gives way to the step.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from genkidama.config.formatting import megabytes

__all__ = ["Drawn", "RingRows", "describe", "join_blocks", "rows_for"]

Array = npt.NDArray[Any]

#: Behind the actions: reward, terminated, truncated, log μ, and 1 for a step or 0 for a stop.
_REWARD, _TERMINATED, _TRUNCATED, _LOG_MU, _IS_STEP = range(-5, 0)

#: A core gathers so many rows before it sends them.
GATHERED_ROWS = 64


class Drawn(NamedTuple):
    """B steps as they lie in the ring; copies."""

    #: (B, ...) as they are kept: uint8 or float32. So is `following`.
    observations: Array
    actions: Array
    #: (B,) float32: Σ γ^k·r_k over the steps that each stands for, scaled.
    rewards: Array
    following: Array
    terminated: Array
    truncated: Array
    log_mu: Array
    #: (B,): how many steps each stands for.
    lengths: Array


@dataclass(frozen=True)
class RingRows:
    """What a row is made of.

    Args:
        shape: of an observation.
        pixels: whether observations are kept as uint8 instead of float32.
        actions: numbers of one action.
    """

    shape: tuple[int, ...]
    pixels: bool
    actions: int

    @property
    def observation_bytes(self) -> int:
        return int(np.prod(self.shape)) * (1 if self.pixels else 4)

    @property
    def numbers(self) -> int:
        """Numbers of a row beside the observation."""
        return self.actions + 5

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return self.observation_bytes + 4 * self.numbers

    @property
    def _kind(self) -> str:
        return "u1" if self.pixels else "<f4"

    def _dtype(self, steps: int | None = None) -> np.dtype[Any]:
        """Of a row or, with `steps`, of what is sent of a step: s, the numbers of all, s′."""
        first = ("observation", self._kind, self.shape)
        if steps is None:
            return np.dtype([first, ("numbers", "<f4", (self.numbers,))])
        last = ("following", self._kind, self.shape)
        return np.dtype([first, ("numbers", "<f4", (steps, self.numbers)), last])

    def block(
        self,
        observations: Array,
        actions: Array,
        rewards: Array,
        terminated: Array,
        truncated: Array,
        cuts: list[int],
        following: list[Array],
        log_mu: Any,
    ) -> Array:
        """The rows of a batch: its steps in their order, and a stop behind each cut.

        Args:
            observations: (n, ...).
            actions: (n, columns).
            rewards, terminated, truncated: (n,).
            cuts: after which steps the trajectory is cut, in their order.
            following: the observations that followed there.
            log_mu: of the actions, (n,) or one number for all.
        """
        steps = len(rewards)
        block = np.zeros(steps + len(cuts), self._dtype())
        where = np.arange(steps) + np.searchsorted(cuts, np.arange(steps))
        block["observation"][where] = observations
        numbers = block["numbers"]
        numbers[where, : self.actions] = actions
        numbers[where, _REWARD] = rewards
        numbers[where, _TERMINATED] = terminated
        numbers[where, _TRUNCATED] = truncated
        numbers[where, _LOG_MU] = log_mu
        numbers[where, _IS_STEP] = 1.0
        if cuts:
            stops = np.array(cuts) + np.arange(1, len(cuts) + 1)
            block["observation"][stops] = following
        return block

    def drawn(
        self,
        reply: bytes,
        steps: int,
        gamma: float,
        scale: Callable[[Array], Array] = lambda rewards: rewards,
    ) -> Drawn:
        """What an engine has sent of sampled steps.

        Args:
            reply: of each: s, the numbers of it and the `steps` − 1 rows behind, s′.
            steps: n of n-step returns.
            gamma: γ.
            scale: from the environment's rewards (any shape) to those that are summed up.
        """
        found = np.frombuffer(reply, self._dtype(steps))
        numbers = found["numbers"]
        alive = np.ones((len(found), steps), np.bool_)
        for k in range(1, steps):
            over = numbers[:, k - 1, _TERMINATED] > 0.0
            alive[:, k] = alive[:, k - 1] & ~over & (numbers[:, k, _IS_STEP] > 0.0)
        lengths = alive.sum(1)
        last = numbers[np.arange(len(found)), lengths - 1]
        # A number that is not alive may be anything, even NaN.
        rewards = scale(np.where(alive, numbers[:, :, _REWARD], np.float32(0.0)))
        discounts = np.where(alive, np.power(gamma, np.arange(steps)).astype(np.float32), 0.0)
        observations = found["observation"].copy()
        following = found["following"].copy()
        terminated = last[:, _TERMINATED] > 0.0
        # Nothing follows a termination; its own observation is as good as any other there.
        following[terminated] = observations[terminated]
        return Drawn(
            observations,
            numbers[:, 0, : self.actions].copy(),
            (rewards * discounts).sum(1, dtype=np.float32),
            following,
            terminated,
            last[:, _TRUNCATED] > 0.0,
            numbers[:, 0, _LOG_MU].copy(),
            lengths,
        )

    def stretches(self, reply: bytes, lengths: list[int]) -> list[tuple[Array, Array, Array]]:
        """Trajectories that an engine has sent: the rows of each, and the observation behind.

        Returns:
            Of each trajectory of m steps: observations (m + 1, ...), as they are kept; actions
            (m, columns), and of each step reward, terminated, truncated, log μ (m, 4), float32.
        """
        found = []
        start = 0
        for length in lengths:
            rows = np.frombuffer(reply, self._dtype(), length, start)
            start += length * self.width
            size = self.observation_bytes
            behind = np.frombuffer(reply[start : start + size], self._kind).reshape(1, *self.shape)
            start += size
            observations = np.concatenate((rows["observation"], behind))
            numbers = rows["numbers"]
            found.append(
                (
                    observations,
                    numbers[:, : self.actions].copy(),
                    numbers[:, _REWARD:_IS_STEP].copy(),
                )
            )
        return found


def join_blocks(blocks: list[Array], block: Array, goes_on: bool) -> None:
    """Appends a block to others that have not been sent.

    Args:
        goes_on: whether its first step is the one at which the last of them was cut.
    """
    if goes_on and blocks:
        blocks[-1] = blocks[-1][:-1]
    blocks.append(block)


def rows_for(steps: int, batch: int, lanes: int) -> int:
    """How many rows hold so many steps, if none is truncated within a batch.

    Args:
        steps: `replay.steps`.
        batch: `algorithm.batch_size`.
        lanes: `environment.lanes`.
    """
    return steps + lanes * (-(-steps // batch) + 1) + 2 * batch + GATHERED_ROWS


def describe(environment: dict[str, Any], rows: RingRows, capacity: int, prioritized: bool) -> str:
    """What a ring holds. Two experiments can share one if these words are the same.

    Args:
        environment: `[environment]`, as plain values.
        capacity: how many rows.
        prioritized: whether each step has a priority.
    """
    settled = {key: environment[key] for key in ("id", "options", "wrappers", "vectorized")}
    kind = "uint8" if rows.pixels else "float32"
    return (
        f"{environment['id']} ({zlib.crc32(repr(settled).encode()):08x}), {kind} {rows.shape}, "
        f"{rows.actions} a, {capacity} rows, {megabytes(capacity * rows.width)}"
        + (", priorities" if prioritized else "")
    )
