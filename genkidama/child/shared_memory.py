"""What the cores of a child share, as arrays over one block of memory."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.protocol.diagnostics import SHAPE
from genkidama.runtime.shared_block import Block

__all__ = ["Layout", "SharedMemory", "progress_checksum"]

Array = npt.NDArray[Any]

#: So many bytes of a core's rows are looked at, where it writes them.
_WINDOW = 32 << 20


@dataclass(frozen=True)
class Layout:
    """The sizes that a child's memory follows from."""

    #: C: core processes.
    cores: int
    #: N: rows of a core's share of the replay tensor (`ReplayTensor.rows`).
    steps: int
    #: M: numbers of a row (`ReplayTensor.columns`).
    columns: int
    #: Numbers of the weight vector.
    size: int
    #: How many of them are trainable.
    trainable: int
    #: Vectors of optimizer state, of all sets together.
    state_rows: int
    #: Sets of optimizer state: 1 if the cores share it, else one a core.
    state_sets: int
    #: Blocks of experience of a core (`outbox.py`); 0 where cores learn themselves.
    blocks: int = 0
    #: Bytes of an observation that T does not hold, because it is an image of uint8.
    pixels: int = 0
    #: Numbers of θ⁻; 0 where no learner has one.
    target: int = 0
    #: Nodes of a core's tree of priorities; 0 where samples are uniform.
    nodes: int = 0

    def for_cores(self, cores: int, shared: bool) -> Layout:
        """The same for another number of cores, which share their optimizer state or not.

        With 0 cores, only the parts are left that all cores share.
        """
        return replace(self, cores=cores, state_sets=1 if shared else cores)

    @property
    def replay_bytes(self) -> int:
        """Of the replay tensor and its priorities."""
        return self.cores * (self.steps * (4 * self.columns + self.pixels) + 8 * self.nodes)

    def parts(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        return {
            "weights": ((self.size,), np.float32),
            "gradients": ((self.cores, self.trainable), np.float32),
            "state": ((self.state_sets, self.state_rows, self.trainable), np.float32),
            "clock": ((self.state_sets,), np.float64),
            "replay": ((self.cores, self.steps, self.columns), np.float32),
            "pixels": ((self.cores, self.steps, self.pixels), np.uint8),
            "head": ((self.cores,), np.int64),
            "filled": ((self.cores,), np.int64),
            "ended": ((self.cores,), np.int64),
            "priorities": ((self.cores, self.nodes), np.float64),
            "largest": ((self.cores,), np.float64),
            "target": ((self.target,), np.float32),
            "updates": ((self.cores,), np.int64),
            "diagnostics": ((self.cores, *SHAPE), np.float64),
            "version": ((1,), np.int64),
            "refreshed": ((3,), np.int64),
            "sizes": ((self.cores, self.blocks), np.int64),
            "share": ((1,), np.int64),
            "news": ((1,), np.int64),
            "semaphore": ((self.cores,), np.bool_),
            "progress": ((1,), np.float64),
            "stop": ((1,), np.bool_),
        }


class SharedMemory(Block):
    """What the cores of a child share."""

    #: θ_O, the child's weights: float32 (size,).
    weights: Array
    #: One gradient a core: float32 (C, trainable).
    gradients: Array
    #: Optimizer state: float32 (sets, rows, trainable).
    state: Array
    #: Optimizer steps so far: float64 (sets,).
    clock: Array
    #: T[C × N × M]: every core reads all, each writes its own share (`replay.py`): float32.
    replay: Array
    #: The observations of the same rows, if they are images of uint8: uint8 (C, N, pixels).
    pixels: Array
    #: The row after the newest batch of each share, or how many blocks it has written: int64 (C,).
    head: Array
    #: How many rows of each share are written: int64 (C,).
    filled: Array
    #: How many blocks each core has written to its share: int64 (C,).
    ended: Array
    #: Trees over the rows' priorities (`priorities.py`): float64 (C, nodes).
    priorities: Array
    #: The largest priority that each core has given: float64 (C,).
    largest: Array
    #: θ⁻: float32 (target,), the trainable numbers.
    target: Array
    #: Updates that each core has made: int64 (C,).
    updates: Array
    #: How each core's learning goes (`genkidama.protocol.diagnostics`): float64 (C, figures, 2).
    diagnostics: Array
    #: The version of θ_P that the child has heard of last: int64 (1,).
    version: Array
    #: Whether θ⁻ holds numbers; and the version, and all cores' updates, when it got them.
    refreshed: Array
    #: Rows of each block of experience that waits to be sent, 0 of any other: int64 (C, blocks).
    sizes: Array
    #: How many steps a push should bring; 0 if nobody has said: int64 (1,).
    share: Array
    #: How many times θ_P has been taken over whole: int64 (1,).
    news: Array
    #: The semaphore vector: bool (C,).
    semaphore: Array
    #: How much of the run is done: float64 (1,).
    progress: Array
    #: Whether the cores should end: bool (1,).
    stop: Array


def progress_checksum(memory: SharedMemory, index: int) -> int:
    """A number that changes when a core makes a step or finds a gradient.

    It may stay the same over a step that changes nothing, which happens now and then.
    """
    rows = memory.replay[index]
    count = max(1, _WINDOW // max(1, rows[:1].nbytes))
    mark = zlib.crc32(memory.gradients[index])
    for first in {0, int(memory.head[index]) % max(1, len(rows))}:
        mark = zlib.crc32(rows[first : first + count], mark)
    return mark
