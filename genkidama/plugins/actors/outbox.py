"""Blocks of experience on their way from a child's cores to its parent, in shared memory.

With `parent.rule = "experience"` a core's share of the replay tensor is `BLOCKS` blocks, which it
fills in turns, and the orchestrator sends the full ones.

Laws of this file:
- A block has the rows that `genkidama.plugins.actors.rule.Columns` describes: the steps of one lane
  after the other, and behind them all a stop for each cut. It needs no row of another block.
- A block with a size is the orchestrator's, one without is its core's. The core hands it over with
  a record on its pipe, the orchestrator returns it when the parent has answered.
- A core without a block waits. So a child that cannot reach its parent does not grow, and
  the steps that it has collected are kept.
- A full block survives its core. One that a core has begun is lost with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.child.shared_memory import ReplayRows, SharedArray, SharedMemory
from genkidama.child.worker import EPISODE, RECORD, StopWorker, WorkerPipe
from genkidama.plugins.actors.rule import Columns, most_rows
from genkidama.protocol.vector import Vector

Array = npt.NDArray[Any]

#: Blocks of a core: one is written while others are on their way.
BLOCKS = 4


#: A kind of record beside those of `genkidama.child.worker`. Its number says how many blocks a core
#: has written, this one included.
BLOCK = 5


def block_rows(batch: int) -> int:
    """The most rows of a block of `batch` steps: each of them may be truncated."""
    return 2 * batch


def block_arrays(batch: int, columns: Columns) -> dict[str, SharedArray]:
    """The arrays of a child's memory for blocks of `batch` steps."""
    return {
        "replay": SharedArray((BLOCKS * block_rows(batch), columns.count), "float32"),
        # Rows of each block that waits to be sent, 0 of any other.
        "sizes": SharedArray((BLOCKS,), "int64"),
        # The steps that a push should bring; 0 leaves them to the child.
        "share": SharedArray((1,), "int64", per_core=False),
        # How often θ_P has been taken over.
        "news": SharedArray((1,), "int64", per_core=False),
    }


class BufferedPipe(WorkerPipe):
    """A pipe that holds its records until a block is handed over, and sends them together. Each
    message wakes the orchestrator, which costs a slow machine as much as ten steps."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._held: list[bytes] = []

    def report(self, kind: int, episode_return: float = 0.0, steps: int = 0) -> None:
        if self._stop[0]:
            raise StopWorker
        self.episodes += kind == EPISODE
        self._held.append(RECORD.pack(kind, episode_return, steps))
        if kind == BLOCK:
            self._send(b"".join(self._held))
            self._held.clear()


class Outbox:
    """The `RolloutSink` of a core that collects for its parent."""

    def __init__(
        self,
        memory: SharedMemory,
        index: int,
        columns: Columns,
        observation_shape: tuple[int, ...],
        gamma: float,
        pipe: WorkerPipe,
    ) -> None:
        self._columns = columns
        self._shape = observation_shape
        self._gamma = gamma
        self._pipe = pipe
        self._blocks = memory.replay[index].reshape(BLOCKS, -1, columns.count)
        self._sizes = memory.sizes[index]
        #: The number of blocks that the core has written, with those of its dead predecessors.
        self._written = memory.head[index : index + 1]
        self._discounted = [0.0]

    def play(self, lanes: int) -> None:
        """Sets the lanes of further blocks; each begins a new episode."""
        self._discounted = [0.0] * lanes

    def begin(self, goes_on: bool) -> ReplayRows:
        """As `RolloutSink.begin`; waits until a block is the core's."""
        while self._sizes[self._next]:
            self._pipe.pause("block")
        columns = self._columns
        block = self._blocks[self._next]
        return ReplayRows(
            block[:, : columns.observation].reshape(len(block), *self._shape),
            block[:, columns.actions],
            block[:, columns.reward],
            block[:, columns.terminated],
            block[:, columns.truncated],
        )

    def end(self, steps: int, cuts: list[int], following: list[Array], log_mu: Any) -> None:
        """As `RolloutSink.end`; hands the block over."""
        columns = self._columns
        block = self._blocks[self._next]
        size = steps + len(cuts)
        block[steps:size] = 0.0
        if cuts:
            observations = np.asarray(following, np.float32)
            block[steps:size, : columns.observation] = observations.reshape(len(cuts), -1)
        block[:steps, columns.log_mu] = np.nan_to_num(log_mu)
        block[:steps, columns.following] = 1.0
        block[cuts, columns.following] = np.arange(steps, size) - cuts
        if columns.discounted:
            self._discount(block[:steps])
        number = self._next
        # In this order: a core that is killed in between leaves an empty block, not one for ever.
        self._written[0] += 1
        self._sizes[number] = size
        self._pipe.report(BLOCK, 0.0, int(self._written[0]))

    def rehearse(self) -> None:
        self._blocks[:] = 0.0

    @property
    def _next(self) -> int:
        return int(self._written[0]) % BLOCKS

    def _discount(self, block: Array) -> None:
        columns = self._columns
        ends = (block[:, columns.terminated] + block[:, columns.truncated]) > 0.0
        length = len(block) // len(self._discounted)
        for lane, discounted in enumerate(self._discounted):
            for t in range(lane * length, (lane + 1) * length):
                discounted = self._gamma * discounted + float(block[t, columns.reward])
                block[t, -1] = discounted
                if ends[t]:
                    discounted = 0.0
            self._discounted[lane] = discounted


class Outboxes:
    """The orchestrator's side of all cores' blocks, of `block` rows each."""

    def __init__(self, memory: SharedMemory, block: int) -> None:
        cores, _, columns = memory.replay.shape
        self._sizes = memory.sizes
        self._blocks = memory.replay.reshape(cores, BLOCKS, -1, columns)
        self._most = most_rows(columns, block)
        #: By core: blocks that it has handed over, and how many of them are being sent or gone.
        self._given = [0] * cores
        self._taken = [0] * cores
        #: The core whose blocks are taken first.
        self._turn = 0
        self._sending: list[tuple[int, int]] = []
        self._push: Vector | None = None

    def given(self, core: int, number: int) -> None:
        """The core reports how many blocks it has handed over."""
        self._given[core] = number

    def has_room(self, core: int) -> bool:
        """True if one of the core's blocks is its own."""
        return not self._sizes[core].all()

    @property
    def ready(self) -> bool:
        """True if there is a block to send."""
        return self._push is not None or self._given != self._taken

    def pack(self) -> Vector:
        """The rows of the next push: all full blocks, as far as a push has room. They are the same
        until they are acknowledged. Without a full block it is a stop alone."""
        if self._push is None:
            rows = 0
            cores = len(self._given)
            for turn in range(self._turn, self._turn + cores):
                core = turn % cores
                # What is older has been left empty, and written again.
                oldest = max(self._taken[core], self._given[core] - BLOCKS)
                for number in range(oldest, self._given[core]):
                    size = int(self._sizes[core, number % BLOCKS])
                    if rows + size > self._most:
                        break
                    rows += size
                    self._sending.append((core, number % BLOCKS))
                    self._taken[core] = number + 1
            self._turn = (self._turn + 1) % cores
            blocks = [self._blocks[c, k, : self._sizes[c, k]] for c, k in self._sending]
            empty = np.zeros((1, self._blocks.shape[-1]), np.float32)
            self._push = np.concatenate(blocks or [empty]).reshape(-1)
        return self._push

    def acknowledge(self) -> int:
        """The push is answered: returns its blocks to their cores, and the number of its rows."""
        rows = 0
        for core, block in self._sending:
            rows += int(self._sizes[core, block])
            self._sizes[core, block] = 0
        self._sending.clear()
        self._push = None
        return rows
