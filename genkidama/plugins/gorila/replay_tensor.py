"""The replay tensor T[C × N × M] as a ring: recent steps of the cores of one child, to sample.

C cores, N rows a core, M numbers a row, in shared memory. Each core reads all of it and writes only
its own share (thesis §4.5). A core without `replay.steps` has one batch instead
(`genkidama.child.collector.BatchSink`).

Laws of this file:
- A row is a step: observation, action, reward, terminated, truncated, log μ of the action, and the
  distance in rows to the next observation. Or it is only such an observation, with distance 0: a
  *stop*.
- A core writes one block a batch: its steps in their order, and behind them one stop for each cut,
  which is a truncation or the batch's end within an episode. So s′ is exact wherever the episode
  could go on, and a block needs no row of another block, whatever becomes of the core.
- If the next block continues the same episode, it begins in the row of the last stop, which
  holds its first observation already. So only truncations cost rows: one each.
- With L = `environment.lanes` of several, a block is L trajectories, one behind the other, and the
  next block begins in a new row: each batch's end costs L rows. The stop of a lane that went on
  says where, as soon as it has: minus how many rows further down. At the end of a lap it says 0.
- No block wraps around. A block has at most 2·B rows, where B is `algorithm.batch_size`; where
  fewer are left after `head`, the next block begins at row 0 and `filled` says where the lap ended.
- `head` is the row after the newest block. It is written when the block is whole.
- The next 2·B rows that a core may write are never sampled. So the rows that a reader finds stay as
  they are until the core has ended the block that it is at, and begins another. `ended` counts
  blocks, after `head` is written: where it stands still, nothing that was found has changed. Where
  it does not, `overwritten` tells which rows may have.
- The observation after a row is further down in the same lap, and is overwritten later.
- Images of uint8 are kept beside T, as bytes: a quarter of the memory.
- A share has 4·B + 1 rows more than `replay.steps`, and with several lanes L more for each batch of
  these. So at least `replay.steps` steps can be sampled once the first lap is over, less what
  truncations and dead cores cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from genkidama.child.shared_memory import ReplayRows, SharedArray, SharedMemory

Array = npt.NDArray[Any]


def ring_arrays(rows: int, columns: int, pixels: int = 0) -> dict[str, SharedArray]:
    """The arrays of a replay tensor of N rows a core and M columns. `pixels` are the bytes of an
    observation that is kept beside T, an image of uint8."""
    arrays = {
        "replay": SharedArray((rows, columns), "float32"),
        "filled": SharedArray((), "int64"),
        "ended": SharedArray((), "int64"),
    }
    if pixels:
        arrays["pixels"] = SharedArray((rows, pixels), "uint8")
    return arrays


class ReadView(NamedTuple):
    """The shares as they were at one moment: int64 (C,) each."""

    #: The number of rows at the share's beginning can be sampled.
    front: Array
    #: The number of rows further down.
    back: Array
    #: The first of those.
    start: Array
    #: `head` and `ended`.
    head: Array
    ended: Array


class ReplayTensor:
    """Named views of T, float32 (C, N, M); images are beside it in `pixels`. `head`, `filled` (rows
    written in this lap and the last) and `ended` (blocks written) are int64 (C,)."""

    def __init__(
        self,
        memory: SharedMemory,
        batch: int,
        observation_shape: tuple[int, ...],
        action_columns: int,
    ) -> None:
        tensor = memory.replay
        images = hasattr(memory, "pixels")
        #: The number of columns of an observation in T.
        self.width = width = 0 if images else int(np.prod(observation_shape))
        expected = self.columns(width, action_columns)
        if tensor.shape[2] != expected:
            raise ValueError(f"a replay tensor of {tensor.shape[2]} columns, expected {expected}")
        self.tensor = tensor
        self.batch = batch
        self.head = memory.head
        self.filled = memory.filled
        self.ended = memory.ended
        observations = memory.pixels if images else tensor[:, :, :width]
        self.observations = observations.reshape(*tensor.shape[:2], *observation_shape)
        self.actions = tensor[:, :, width : width + action_columns]
        first = width + action_columns
        self.rewards = tensor[:, :, first]
        self.terminated = tensor[:, :, first + 1]
        self.truncated = tensor[:, :, first + 2]
        self.log_mu = tensor[:, :, first + 3]
        self.following = tensor[:, :, first + 4]

    @staticmethod
    def columns(observation_size: int, action_columns: int) -> int:
        """M: two columns more than those of a single batch."""
        return observation_size + action_columns + 5

    @staticmethod
    def rows(steps: int, batch: int, lanes: int = 1) -> int:
        """N for this `replay.steps`."""
        # The oldest block may be there in part, without its steps and with its stops.
        stops = 0 if lanes == 1 else lanes * (-(-steps // batch) + 1)
        return steps + stops + 4 * batch + 1

    def view(self) -> ReadView:
        """The rows of each share that can be sampled now."""
        ended = self.ended.copy()  # the last that a core writes is the first that is read
        head = self.head.copy()  # one read decides: other cores keep writing
        filled = self.filled.copy()
        room = 2 * self.batch
        wraps = head + room > self.tensor.shape[1]
        front = np.where(wraps, 0, head)
        start = np.where(wraps, room, head + room)
        back = np.maximum(np.where(wraps, head, filled) - start, 0)
        return ReadView(front, back, start, head, ended)

    def overwritten(self, view: ReadView, cores: Array, rows: Array) -> Array:
        """True for steps that may have changed since this view found them: (B,) bool."""
        if np.array_equal(self.ended, view.ended):
            return np.zeros(len(rows), np.bool_)
        now = self.view()
        size = self.tensor.shape[1]
        room = 2 * self.batch
        # A block that does not fit before the share's end begins at its first row.
        ahead = np.where(now.head + room > size, size - now.head + room, room)
        passed = (now.head - view.head) % size + ahead
        passed[(now.ended - view.ended) * room + ahead >= size] = size
        result: Array = (rows - view.head[cores]) % size < passed[cores]
        return result


class RingSegment:
    """One core's writes to the tensor: a block a batch, of L trajectories (`lanes`)."""

    def __init__(self, replay: ReplayTensor, index: int, lanes: int = 1) -> None:
        self._lanes = lanes
        self._index = index
        #: Called when a block is written whose steps cannot be sampled yet, with the core's index,
        #: its first row, the row after its steps, and the new `head`.
        self.written: Callable[[int, int, int, int], None] = lambda *_: None
        #: The stops of the lanes that the last block left in the midst of an episode, by lane.
        self._open: dict[int, int] = {}
        self._tensor = replay.tensor[index]
        self._batch = replay.batch
        self._room = 2 * replay.batch
        self._columns = ReplayRows(
            replay.observations[index],
            replay.actions[index],
            replay.rewards[index],
            replay.terminated[index],
            replay.truncated[index],
        )
        self._head = replay.head[index : index + 1]
        self._filled = replay.filled[index : index + 1]
        self._ended = replay.ended[index : index + 1]
        self._start = 0
        self._log_mu = replay.log_mu[index]
        self._following = replay.following[index]

    def begin(self, goes_on: bool) -> ReplayRows:
        """The B rows that the next batch is written to. `goes_on` if it continues the episode in
        which this segment's last block was cut."""
        head = int(self._head[0])
        start = head - 1 if goes_on else head
        if head + self._room > len(self._following):
            self._filled[0] = head
            start = 0
            self._open.clear()  # what lies before it is overwritten sooner than the stops are
        self._start = start
        stop = start + self._batch
        observations, actions, rewards, terminated, truncated = self._columns
        return ReplayRows(
            observations[start:stop],
            actions[start:stop],
            rewards[start:stop],
            terminated[start:stop],
            truncated[start:stop],
        )

    def end(self, steps: int, cuts: list[int], following: list[Array], log_mu: Any) -> None:
        """The batch is written: all cores may read it now. Arguments as `RolloutSink.end`."""
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
        self.written(self._index, start, stops, head)
        if head > self._filled[0]:
            self._filled[0] = head
        self._head[0] = head
        # This row may be the last stop of the block before. It becomes a step only now: a core that
        # dies earlier leaves that stop as it was.
        self._following[start] = distances[0]
        if self._lanes > 1:
            self._link(steps, cuts)
        self._ended[0] += 1

    def _link(self, steps: int, cuts: list[int]) -> None:
        """Says at the open stops where their lanes went on, and notes which are open now."""
        length = steps // self._lanes
        for lane, stop in self._open.items():
            self._following[stop] = stop - (self._start + lane * length)
        ends = {(lane + 1) * length - 1: lane for lane in range(self._lanes)}
        truncated = self._columns.truncated
        self._open = {
            ends[cut]: self._start + steps + number
            for number, cut in enumerate(cuts)
            if cut in ends and not truncated[self._start + cut]
        }

    def rehearse(self) -> None:
        """Fills all rows with the first one: as much memory as there ever will be."""
        self._tensor[1:] = self._tensor[:1]
        self._columns.observations[1:] = self._columns.observations[:1]
        self._following[:-1] = 1.0
        self._following[-1] = 0.0
        self.written(self._index, 0, len(self._following) - 1, 0)
        self._head[0] = self._filled[0] = len(self._following)
        self._ended[0] += 1
