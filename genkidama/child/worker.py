"""What a core and an agent have in common: a line to their orchestrator, a guard, an entry.

The crew reads at the other end of the line. This module imports no torch, since an agent has none.

Laws of this file:
- A process says what it has done before it lights its element of the semaphore vector.
- While it waits, it sleeps in a read of its line. The line's end is the orchestrator's end: the
  process ends too.
- Whatever an environment or a network of the user's raises is reported on the line. Nothing hangs.
"""

from __future__ import annotations

import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy.typing as npt

from genkidama.child.capacity import GROWTH_BYTES, SETTLING_BYTES, allowance
from genkidama.config.formatting import megabytes
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runtime.machine import available_bytes, limit_growth, own_bytes
from genkidama.runtime.user_errors import describe_error, is_user_error

__all__ = [
    "BLOCK",
    "EPISODE",
    "FAILED",
    "GONE",
    "PROGRESS",
    "READY",
    "RECORD",
    "RECYCLED",
    "REPORT_STEPS",
    "UPDATE",
    "StopWorker",
    "BufferedPipe",
    "WorkerPipe",
    "MemoryGuard",
    "run_worker",
]

#: Kind, undiscounted return, steps since the last record. EPISODE: an episode has ended, with this
#: return. PROGRESS: an episode goes on. UPDATE: an update is made, or a gradient found, with this
#: loss in the return's place, NaN if it is not known. BLOCK: so many blocks of experience have been
#: written, this one included. FAILED is followed by the reason. An empty message means: I wait.
RECORD = struct.Struct("<Bdq")
READY, EPISODE, FAILED, PROGRESS, UPDATE, BLOCK = range(6)

#: After so many steps of an episode there is a record of it: some episodes last minutes.
REPORT_STEPS = 256

#: The exit code of a process that asks to be replaced, because its memory has grown.
RECYCLED = 75

#: How often a process looks at its own memory, and what it takes for its first work.
_LOOK_SECONDS = 1.0
_SETTLING_SECONDS = 5.0

#: How much of an error's text fits into a record.
_LONGEST_REASON = 1000


class StopWorker(Exception):
    """The orchestrator wants this process to end."""


#: What a process meets where its orchestrator wants it to end, or is gone.
GONE = (StopWorker, EOFError, BrokenPipeError, ConnectionResetError)


class WorkerPipe:
    """A process' end of its line to the orchestrator.

    Args:
        pipe: this end of the pipe.
        stop: bool, shape (1,), in shared memory: whether this process should end.
        element: bool, shape (1,), in shared memory: its element of the semaphore vector; None for
            a process that never waits.
        after: what it waits after: each `"episode"`, `"update"` or `"block"`.
    """

    def __init__(
        self,
        pipe: Connection,
        stop: npt.NDArray[Any],
        element: npt.NDArray[Any] | None,
        after: str = "episode",
    ) -> None:
        self._after = after
        self.pipe = pipe
        self._stop = stop
        self._element = element

    def check(self) -> None:
        """Raises `StopWorker` if this process should end."""
        # Nothing is ever sent to a process that does not wait: what can be read is the line's end.
        if self._stop[0] or self.pipe.poll():
            raise StopWorker

    def report(self, kind: int, episode_return: float = 0.0, steps: int = 0) -> None:
        """Sends a record, or raises `StopWorker` if this process should end."""
        if self._stop[0]:
            raise StopWorker
        self.pipe.send_bytes(RECORD.pack(kind, episode_return, steps))

    def pause(self, after: str = "episode") -> None:
        """Lights this process' element and sleeps until the orchestrator releases all.

        A process that does not wait after this goes on at once. Raises `StopWorker` if this process
        should end.

        Args:
            after: an `"episode"`, an `"update"`, a `"block"`, or the `"start"`, after which all
                wait that ever do.
        """
        if self._element is None or after not in (self._after, "start"):
            return
        self._element[0] = True
        self.pipe.send_bytes(b"")
        self.pipe.recv_bytes()
        if self._stop[0]:
            raise StopWorker


class BufferedPipe(WorkerPipe):
    """A line that keeps its records until a block is given away, and sends them together.

    Each message wakes the orchestrator, which costs a slow machine as much as ten steps.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kept: list[bytes] = []

    def report(self, kind: int, episode_return: float = 0.0, steps: int = 0) -> None:
        if self._stop[0]:
            raise StopWorker
        self._kept.append(RECORD.pack(kind, episode_return, steps))
        if kind == BLOCK:
            self.pipe.send_bytes(b"".join(self._kept))
            self._kept.clear()


class MemoryGuard:
    """Notices that its process leaks: it looks once a second, however much is done in between."""

    def __init__(self) -> None:
        self._began = self._due = 0.0
        self._limit = 0

    def leaks(self) -> bool:
        """Whether the process has grown too much. It costs nothing between two looks.

        The first call belongs after the first work: what that takes, shared pages included, is no
        leak. Afterwards it may grow by `GROWTH_BYTES`, and by more in its first seconds.
        """
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + _LOOK_SECONDS
        size = own_bytes()
        if not self._limit:
            self._began = now
            self._limit = size + SETTLING_BYTES
        elif self._began and now - self._began >= _SETTLING_SECONDS:
            self._began = 0.0
            self._limit = min(self._limit, size) + GROWTH_BYTES
        return size > self._limit


def run_worker(pipe: Connection, life: Callable[[], int], among: int = 1) -> NoReturn:
    """A process from its fork to its exit.

    Args:
        pipe: its end of the line; the reason goes there if `life` raises.
        life: what it does; returns the exit code.
        among: how many processes share this machine's memory with it, itself included. The kernel
            gives it no more than its allowance.
    """
    allowed = allowance(available_bytes(), among)
    limit_growth(allowed)
    # Ctrl-C reaches the whole group of processes, but the orchestrator decides what ends when.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        code = life()
    except Exception as error:  # the user's environment or network may raise anything
        if not isinstance(error, ConfigurationError | EnvironmentFailure) or is_user_error(error):
            traceback.print_exc()
        words = str(error) if isinstance(error, EnvironmentFailure) else describe_error(error)
        if isinstance(error, MemoryError) and allowed is not None:
            words = f"it took more than {megabytes(allowed)}: {words}"
        reason = words.encode()[:_LONGEST_REASON]
        pipe.send_bytes(RECORD.pack(FAILED, 0.0, 0) + reason)
        sys.exit(1)
    sys.exit(code)
