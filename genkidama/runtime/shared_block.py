"""Shared memory: one anonymous block, and NumPy arrays over its parts.

The block has no name in any file system, only file descriptors. So the kernel frees it with the
last process that holds one: however a process dies, nothing is left behind.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from genkidama.config.formatting import megabytes
from genkidama.errors import EnvironmentFailure

Array = npt.NDArray[Any]

#: Parts start at cache lines, so that no two cores write to the same one.
_LINE = 64


class BlockLayout(Protocol):
    """Names, shapes and types of a block's arrays. It is sent to other processes with the block."""

    def parts(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shape and type of each array, in their order."""
        ...


def size_of(layout: BlockLayout) -> int:
    """Bytes of a layout's block."""
    return sum(_padded(_bytes(shape, dtype)) for shape, dtype in layout.parts().values())


class Block:
    """The arrays that a layout names, over one anonymous block: a new one, or the descriptor's.

    An instance can be handed to a process that is being started, and is the same memory there.
    """

    def __init__(self, layout: BlockLayout, descriptor: int | None = None) -> None:
        self.layout = layout
        size = size_of(layout)
        self.descriptor = _anonymous_file(size) if descriptor is None else descriptor
        try:
            self._map = mmap.mmap(self.descriptor, size)
        except (OSError, OverflowError) as error:
            raise _too_large(size, error) from None
        start = 0
        for name, (shape, dtype) in layout.parts().items():
            flat = np.frombuffer(self._map, dtype, math.prod(shape), start)
            setattr(self, name, flat.reshape(shape))
            start += _padded(_bytes(shape, dtype))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Array: ...

    def __getstate__(self) -> tuple[BlockLayout, Any]:
        return self.layout, reduction.DupFd(self.descriptor)

    def __setstate__(self, state: tuple[BlockLayout, Any]) -> None:
        layout, descriptor = state
        Block.__init__(self, layout, descriptor.detach())

    def close(self) -> None:
        """Gives the descriptor back; the memory goes with the last array that views it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("genkidama")
    else:  # not Linux: a file that loses its name before any other process can see it
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
    except (OSError, OverflowError) as error:
        os.close(descriptor)
        raise _too_large(size, error) from None
    return descriptor


def _too_large(size: int, error: Exception) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"{megabytes(size)} of memory for all processes cannot be had: "
        f"{getattr(error, 'strerror', None) or error}; lower algorithm.batch_size, replay.steps or "
        "the size of the network"
    )


def _padded(size: int) -> int:
    return -(-size // _LINE) * _LINE


def _bytes(shape: tuple[int, ...], dtype: Any) -> int:
    size: int = np.dtype(dtype).itemsize
    return math.prod(shape) * size
