"""A child's shared memory: one anonymous block, and NumPy arrays over its parts.

The block has no name in any file system, only file descriptors, so the kernel frees it with the last
process that holds one: however a child dies, nothing is left behind.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Layout", "SharedMemory"]

Array = npt.NDArray[Any]

#: Parts start at cache lines, so that no two cores write to the same one.
_LINE = 64


@dataclass(frozen=True)
class Layout:
    """The sizes that a child's memory follows from."""

    #: C: core processes.
    cores: int
    #: N: steps of a core's share of the replay tensor.
    steps: int
    #: M: numbers of a step: observation, action, reward, terminated, truncated.
    columns: int
    #: Numbers of the weight vector.
    size: int
    #: How many of them are trainable.
    trainable: int
    #: Vectors of optimizer state, of all sets together.
    state_rows: int
    #: Sets of optimizer state: 1 if the cores share it, else one a core.
    state_sets: int

    def parts(self) -> dict[str, tuple[tuple[int, ...], type[Any]]]:
        """Shape and type of each part, in their order."""
        return {
            "weights": ((self.size,), np.float32),
            "gradients": ((self.cores, self.trainable), np.float32),
            "state": ((self.state_sets, self.state_rows, self.trainable), np.float32),
            "clock": ((self.state_sets,), np.float64),
            "replay": ((self.cores, self.steps, self.columns), np.float32),
            "filled": ((self.cores,), np.int64),
            "semaphore": ((self.cores,), np.bool_),
            "progress": ((1,), np.float64),
            "stop": ((1,), np.bool_),
        }


class SharedMemory:
    """The arrays. An instance can be handed to a process that is being started, and is the same memory there."""

    #: θ_O, the child's weights: float32 (size,).
    weights: Array
    #: One gradient a core: float32 (C, trainable).
    gradients: Array
    #: Optimizer state: float32 (sets, rows, trainable).
    state: Array
    #: Optimizer steps so far: float64 (sets,).
    clock: Array
    #: T[C × N × M]: every core reads all, each writes its own share: float32.
    replay: Array
    #: How many steps of each core's share are written: int64 (C,).
    filled: Array
    #: The semaphore vector: bool (C,).
    semaphore: Array
    #: How much of the run is done: float64 (1,).
    progress: Array
    #: Whether the cores should end: bool (1,).
    stop: Array

    def __init__(self, layout: Layout) -> None:
        self._open(layout, _anonymous_file(_total(layout)))

    def _open(self, layout: Layout, descriptor: int) -> None:
        self.layout = layout
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, _total(layout))
        start = 0
        for name, (shape, dtype) in layout.parts().items():
            count = int(np.prod(shape))
            setattr(self, name, np.frombuffer(self._map, dtype, count, start).reshape(shape))
            start += _padded(count * np.dtype(dtype).itemsize)

    def __getstate__(self) -> tuple[Layout, Any]:
        return self.layout, reduction.DupFd(self._descriptor)

    def __setstate__(self, state: tuple[Layout, Any]) -> None:
        layout, descriptor = state
        self._open(layout, descriptor.detach())

    def close(self) -> None:
        """Gives the descriptor back; the memory goes with the last array that views it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("genkidama")
    else:  # not Linux: a file that has lost its name before anybody could see it
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _padded(size: int) -> int:
    return -(-size // _LINE) * _LINE


def _total(layout: Layout) -> int:
    return sum(_padded(int(np.prod(shape)) * np.dtype(dtype).itemsize) for shape, dtype in layout.parts().values())
