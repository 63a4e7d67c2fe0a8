"""A child's shared memory: one anonymous block, and NumPy arrays over its parts.

The block has no name in any file system, only file descriptors. So the kernel frees it with the
last process that holds one: however a child dies, nothing is left behind.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from dataclasses import dataclass, replace
from multiprocessing import reduction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Block", "Layout", "Parts", "SharedMemory", "size_of"]

Array = npt.NDArray[Any]

#: Parts start at cache lines, so that no two cores write to the same one.
_LINE = 64


class Parts(Protocol):
    """What a block's arrays follow from. It travels to other processes with the block."""

    def parts(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shape and type of each array, in their order."""
        ...


def size_of(layout: Parts) -> int:
    """Bytes of a layout's block."""
    return sum(_padded(_bytes(shape, dtype)) for shape, dtype in layout.parts().values())


class Block:
    """The arrays that a layout names, over one anonymous block.

    An instance can be handed to a process that is being started, and is the same memory there.

    Args:
        layout: names, shapes and types.
        descriptor: of a block that another process has made for the same layout. If it is absent, a
            new block is made.
    """

    def __init__(self, layout: Parts, descriptor: int | None = None) -> None:
        self.layout = layout
        size = size_of(layout)
        self.descriptor = _anonymous_file(size) if descriptor is None else descriptor
        self._map = mmap.mmap(self.descriptor, size)
        start = 0
        for name, (shape, dtype) in layout.parts().items():
            setattr(
                self,
                name,
                np.frombuffer(self._map, dtype, int(np.prod(shape)), start).reshape(shape),
            )
            start += _padded(_bytes(shape, dtype))

    def __getstate__(self) -> tuple[Parts, Any]:
        return self.layout, reduction.DupFd(self.descriptor)

    def __setstate__(self, state: tuple[Parts, Any]) -> None:
        layout, descriptor = state
        Block.__init__(self, layout, descriptor.detach())

    def close(self) -> None:
        """Gives the descriptor back; the memory goes with the last array that views it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


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

    def for_cores(self, cores: int, shared: bool) -> Layout:
        """The same for another number of cores, which share their optimizer state or not.

        With 0 cores, only the parts are left that all cores share.
        """
        return replace(self, cores=cores, state_sets=1 if shared else cores)

    def parts(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        return {
            "weights": ((self.size,), np.float32),
            "gradients": ((self.cores, self.trainable), np.float32),
            "state": ((self.state_sets, self.state_rows, self.trainable), np.float32),
            "clock": ((self.state_sets,), np.float64),
            "replay": ((self.cores, self.steps, self.columns), np.float32),
            "head": ((self.cores,), np.int64),
            "filled": ((self.cores,), np.int64),
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
    #: The row after the newest batch of each share: int64 (C,).
    head: Array
    #: How many rows of each share are written: int64 (C,).
    filled: Array
    #: The semaphore vector: bool (C,).
    semaphore: Array
    #: How much of the run is done: float64 (1,).
    progress: Array
    #: Whether the cores should end: bool (1,).
    stop: Array


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("genkidama")
    else:  # not Linux: a file that loses its name before any other process can see it
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _padded(size: int) -> int:
    return -(-size // _LINE) * _LINE


def _bytes(shape: tuple[int, ...], dtype: Any) -> int:
    size: int = np.dtype(dtype).itemsize
    return math.prod(shape) * size
