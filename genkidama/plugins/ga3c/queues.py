"""The queues between agents, predictors and trainers: pipes that carry indices, four bytes each.

Laws of this file:
- A pipe is a queue. Writes of so few bytes are atomic, whichever process writes. A read takes one
  index, or all that are there up to a maximum, and sleeps while there is none. Both are one system
  call.
- What the indices mean lies in shared memory. Nothing is pickled.
- A bell is a pipe of meaningless bytes. It says "look again"; ringing once too often does no harm.
"""

from __future__ import annotations

import array
import fcntl
import os
import termios
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["LEAVE", "put", "ring", "take", "waiting"]

#: The index that tells the thread which takes it to end.
LEAVE = 2**32 - 1

_INDEX = np.dtype("<u4")


def put(queue: int, indices: Iterable[int]) -> None:
    """Appends indices to the queue with this descriptor, together."""
    os.write(queue, array.array("I", indices).tobytes())


def take(queue: int, most: int) -> npt.NDArray[np.uint32]:
    """One index, and all others that are there, up to `most`; sleeps until there is one.

    Raises:
        EOFError: no process is left that could put any.
    """
    taken = os.read(queue, _INDEX.itemsize * most)
    if not taken:
        raise EOFError
    return np.frombuffer(taken, _INDEX)


def waiting(queue: int) -> int:
    """How many indices are in the queue."""
    count = array.array("i", [0])
    fcntl.ioctl(queue, termios.FIONREAD, count)
    return count[0] // _INDEX.itemsize


def ring(bell: int) -> None:
    """Wakes the process that sleeps in a read of this bell. One that is gone needs no waking."""
    try:
        os.write(bell, b"\0")
    except (BrokenPipeError, BlockingIOError):  # the latter: it has not looked for 64 KiB of bells
        return
