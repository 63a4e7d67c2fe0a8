"""The replay tensor T[C × N × M]: steps that the cores of one child have taken lately.

C cores, N rows a core, M numbers a row. It lies in shared memory; every core reads all of it and
writes only its own share (thesis §4.5). With `replay.steps = 0` a share is one batch long, and
nobody reads it but its own core. Otherwise it is a ring that learners sample, with these laws:

- A row is a step: observation, action, reward, terminated, truncated, log μ of the action, and how
  many rows further down the observation lies that followed. Or it is only such an observation, and
  says 0 there: a *stop*.
- A core writes one block a batch: its steps in their order, and behind them one stop for each cut,
  which is a truncation or the batch's end within an episode. So s′ is exact wherever the episode
  could go on, and a block needs no row of another block, whatever becomes of the core.
- Where the next block goes on with the same episode, it begins in the row of the last stop, which
  holds its first observation already. So only truncations cost rows: one each.
- With L = `environment.lanes` of several, a block is L trajectories, one behind the other, and the
  next block begins in a new row: each batch's end costs L rows.
- No block wraps around. A block has at most 2·B rows, where B is `algorithm.batch_size`; where
  fewer are left after `head`, the next block begins at row 0 and `filled` says where the lap ended.
- `head` is the row after the newest block. It is written when the block is whole.
- The next 2·B rows that a core may write are never sampled. So the rows that a reader finds stay as
  they are until the core has ended the block that it is at, and begins another. A reader that takes
  longer to copy them is not warned.
- A share has 4·B + 1 rows more than `replay.steps`, and with several lanes L more for each batch of
  these. So at least `replay.steps` steps can be sampled once the first lap is over, less what
  truncations and dead cores cost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from genkidama.child.memory import SharedMemory
from genkidama.learning.model import Model
from genkidama.learning.rollout import Transitions, scaled

__all__ = ["LearnersReplay", "ReplayTensor", "Rows", "Share"]

Array = npt.NDArray[Any]


class Rows(NamedTuple):
    """Views of the rows that a core writes its next batch to, one array a column."""

    observations: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array


class ReplayTensor:
    """Named views of T.

    Args:
        memory: the child's; `replay` is T, float32 (C, N, M), `head` and `filled` are int64 (C,).
        batch: B.
        observation_shape: of one observation.
        action_columns: numbers of one action.

    Raises:
        ValueError: T has another number of columns.
    """

    def __init__(
        self,
        memory: SharedMemory,
        batch: int,
        observation_shape: tuple[int, ...],
        action_columns: int,
    ) -> None:
        tensor = memory.replay
        width = int(np.prod(observation_shape))
        self.kept = tensor.shape[1] > batch
        expected = self.columns(width, action_columns, self.kept)
        if tensor.shape[2] != expected:
            raise ValueError(f"a replay tensor of {tensor.shape[2]} columns, expected {expected}")
        self.tensor = tensor
        self.batch = batch
        self.head = memory.head
        self.filled = memory.filled
        self.observations = tensor[:, :, :width].reshape(*tensor.shape[:2], *observation_shape)
        self.actions = tensor[:, :, width : width + action_columns]
        first = width + action_columns
        self.rewards = tensor[:, :, first]
        self.terminated = tensor[:, :, first + 1]
        self.truncated = tensor[:, :, first + 2]
        if self.kept:
            self.log_mu = tensor[:, :, first + 3]
            self.following = tensor[:, :, first + 4]

    @staticmethod
    def columns(observation_size: int, action_columns: int, kept: bool) -> int:
        """M. A ring, whose steps are `kept`, has two columns more than a single batch."""
        return observation_size + action_columns + (5 if kept else 3)

    @staticmethod
    def rows(steps: int, batch: int, lanes: int = 1) -> int:
        """N for this `replay.steps`: one batch if that is 0."""
        if not steps:
            return batch
        # The oldest block may be there in part, without its steps and with its stops.
        stops = 0 if lanes == 1 else lanes * (-(-steps // batch) + 1)
        return steps + stops + 4 * batch + 1

    def readable(self) -> tuple[Array, Array, Array]:
        """Which rows of each share can be sampled: three of int64 (C,).

        Returns:
            How many at the share's beginning; how many further down; and where those begin.
        """
        head = self.head.copy()  # one look decides: other cores go on writing
        filled = self.filled.copy()
        if not self.kept:
            return np.zeros_like(head), np.zeros_like(head), head
        room = 2 * self.batch
        wraps = head + room > self.tensor.shape[1]
        front = np.where(wraps, 0, head)
        start = np.where(wraps, room, head + room)
        back = np.maximum(np.where(wraps, head, filled) - start, 0)
        return front, back, start

    def sample(
        self,
        rng: np.random.Generator,
        count: int,
        *,
        share: int | None = None,
        replacement: bool = True,
    ) -> Transitions:
        """Uniformly random steps as the environment gave them; copies.

        Args:
            rng: decides.
            count: how many.
            share: only this core's steps; all cores' if absent.
            replacement: whether a step may come twice.

        Raises:
            ValueError: no steps can be sampled or, without replacement, fewer than `count`.
        """
        front, back, start = self.readable()
        if share is not None:
            elsewhere = np.arange(len(front)) != share
            front[elsewhere] = 0
            back[elsewhere] = 0
        ends = np.cumsum(front + back)
        total = int(ends[-1])

        def places(numbers: Array) -> tuple[Array, Array, Array]:
            """Core, row and `following` of each of the readable rows with these numbers."""
            cores = np.searchsorted(ends, numbers, side="right")
            rows = numbers - (ends - front - back)[cores]
            rows += np.where(rows < front[cores], 0, (start - front)[cores])
            return cores, rows, self.following[cores, rows]

        if replacement and total:
            drawn = places(rng.integers(total, size=count))
            # Stops are drawn again. They are as rare as cuts are.
            while not drawn[2].all():
                again = drawn[2] == 0.0
                others = places(rng.integers(total, size=int(again.sum())))
                for column, new in zip(drawn, others, strict=True):
                    column[again] = new
            return self._copied(*drawn)
        steps = np.flatnonzero(places(np.arange(total))[2]) if total else np.arange(0)
        if count > len(steps) or not total:
            raise ValueError(f"{count} steps asked for, {len(steps)} are there")
        return self._copied(*places(rng.choice(steps, count, replace=False)))

    def _copied(self, cores: Array, rows: Array, following: Array) -> Transitions:
        terminated = self.terminated[cores, rows] > 0.0
        # Nothing follows a termination; its own observation is as good as any other there.
        after = rows + np.where(terminated, 0, following).astype(np.intp)
        return Transitions(
            observations=self.observations[cores, rows],
            actions=self.actions[cores, rows],
            rewards=self.rewards[cores, rows],
            following=self.observations[cores, after],
            terminated=terminated,
            truncated=self.truncated[cores, rows] > 0.0,
            log_mu=self.log_mu[cores, rows],
        )


class Share:
    """What one core writes of the tensor: a block a batch.

    Args:
        replay: the tensor.
        index: the core's.
    """

    def __init__(self, replay: ReplayTensor, index: int) -> None:
        self._replay = replay
        self._tensor = replay.tensor[index]
        self._batch = replay.batch
        self._room = 2 * replay.batch
        self._columns = Rows(
            replay.observations[index],
            replay.actions[index],
            replay.rewards[index],
            replay.terminated[index],
            replay.truncated[index],
        )
        self._head = replay.head[index : index + 1]
        self._filled = replay.filled[index : index + 1]
        self._start = 0
        if replay.kept:
            self._log_mu = replay.log_mu[index]
            self._following = replay.following[index]

    def begin(self, goes_on: bool) -> Rows:
        """The B rows that the next batch is written to.

        Args:
            goes_on: whether it continues the episode in which this `Share`'s last block was cut.
        """
        if not self._replay.kept:
            return self._columns
        head = int(self._head[0])
        start = head - 1 if goes_on else head
        if head + self._room > len(self._following):
            self._filled[0] = head
            start = 0
        self._start = start
        stop = start + self._batch
        observations, actions, rewards, terminated, truncated = self._columns
        return Rows(
            observations[start:stop],
            actions[start:stop],
            rewards[start:stop],
            terminated[start:stop],
            truncated[start:stop],
        )

    def end(self, steps: int, cuts: list[int], following: list[Array], log_mu: Any) -> None:
        """The batch is written: from now on all cores may read it.

        Args:
            steps: how many.
            cuts: after which of them the trajectory is cut, in their order.
            following: the observations that followed there.
            log_mu: of the actions, (steps,) or one number for all.
        """
        if not self._replay.kept:
            self._head[0] = self._filled[0] = steps
            return
        start = self._start
        stops = start + steps
        head = stops + len(cuts)
        self._log_mu[start:stops] = log_mu
        self._following[stops:head] = 0.0
        if cuts:
            self._columns.observations[stops:head] = following
        distances = np.ones(steps, np.float32)
        distances[cuts] = np.arange(steps, steps + len(cuts)) - cuts
        self._following[start + 1 : stops] = distances[1:]
        if head > self._filled[0]:
            self._filled[0] = head
        self._head[0] = head
        # This row may be the last stop of the block before. It becomes a step only now: a core that
        # dies earlier leaves that stop as it was.
        self._following[start] = distances[0]

    def rehearse(self) -> None:
        """Fills all rows with the first one: as much memory as there ever will be."""
        self._tensor[1:] = self._tensor[:1]
        if self._replay.kept:
            self._following[:-1] = 1.0
            self._following[-1] = 0.0
            self._head[0] = self._filled[0] = len(self._following)


class LearnersReplay:
    """The tensor as a learner sees it: steps as its rollouts have them.

    Args:
        replay: the tensor.
        model: for its head, its settings and its running statistics.
        rng: decides what is drawn.
        index: the core that learns.
    """

    def __init__(
        self, replay: ReplayTensor, model: Model, rng: np.random.Generator, index: int
    ) -> None:
        self._replay = replay
        self._model = model
        self._rng = rng
        self._index = index

    def __len__(self) -> int:
        front, back, _ = self._replay.readable()
        return int(front.sum() + back.sum())

    def sample(self, count: int, *, own: bool = False, replacement: bool = True) -> Transitions:
        share = self._index if own else None
        drawn = self._replay.sample(self._rng, count, share=share, replacement=replacement)
        model = self._model
        drawn.actions = drawn.actions.astype(model.head.dtype)
        drawn.rewards = scaled(
            drawn.rewards, model.experiment.environment, model.moments("returns")
        )
        normalize = model.normalizer()
        if normalize is not None:
            drawn.observations = normalize(drawn.observations)
            drawn.following = normalize(drawn.following)
        return drawn
