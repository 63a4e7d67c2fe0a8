"""The worker's side of a worker process: pipe to the orchestrator, memory guard, entry point.

`genkidama.child.worker_pool` is the other end of the pipe. This module imports no torch: processes
that only step environments need none.

Laws of this file:
- A process reports its work before it sets its element of the semaphore vector.
- While it waits, it sleeps in a read of its pipe. When the orchestrator ends, the
  pipe closes and the process ends, too.
- Any error of the user's environment or network is reported on the pipe. Nothing hangs.
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

from genkidama.child.capacity import GROWTH_BYTES, RESERVE_BYTES, SETTLING_BYTES, allowance
from genkidama.config.formatting import megabytes
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runtime.import_strings import describe_error, is_user_error
from genkidama.runtime.machine import available_bytes, limit_growth, own_bytes
from genkidama.runtime.process import readable

#: Kind, undiscounted return, steps since the last record. EPISODE: an episode has ended, with this
#: return. PROGRESS: an episode continues. UPDATE: an update is made, or a gradient found, with this
#: loss in the return's place, NaN if it is not known. FAILED is followed by the reason. Plug-ins
#: use other kinds. An empty message means that the process waits.
RECORD = struct.Struct("<Bdq")
#: ASK: the process will soon need θ_P to learn from.
READY, EPISODE, FAILED, PROGRESS, UPDATE = range(5)
ASK = 6

#: An episode is reported whenever it has this many further steps: some last minutes.
REPORT_STEPS = 256

#: The exit code of a process that wants to be replaced, because its memory has grown.
RECYCLED = 75

#: How often a process measures its own memory, and the time of its first work.
_LOOK_SECONDS = 1.0
_SETTLING_SECONDS = 5.0

#: Bytes of an error's text that fit into a record.
_LONGEST_REASON = 1000


class StopWorker(Exception):
    """The orchestrator wants this process to end, or is gone."""


class WorkerPipe:
    """A process' end of its pipe to the orchestrator.

    `stop` and `element`, bool (1,), are in shared memory: whether this process should end, and its
    element of the semaphore vector, None if it never waits. It waits after each `"episode"`,
    `"update"`, `"chunk"` or `"block"`.
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
        #: How many have ended.
        self.episodes = 0

    def check(self) -> None:
        """Raises `StopWorker` if this process should end."""
        # Nothing is ever sent to a process that does not wait: what can be read is the pipe's end.
        if self._stop[0] or readable(self.pipe):
            raise StopWorker

    def report(self, kind: int, episode_return: float = 0.0, steps: int = 0) -> None:
        """Sends a record, or raises `StopWorker` if this process should end."""
        if self._stop[0]:
            raise StopWorker
        self.episodes += kind == EPISODE
        self._send(RECORD.pack(kind, episode_return, steps))

    def _send(self, message: bytes) -> None:
        try:
            self.pipe.send_bytes(message)
        except OSError:
            raise StopWorker from None

    def pause(self, after: str = "episode") -> None:
        """Lights this process' element and sleeps until the orchestrator releases all.

        Returns at once if the process does not wait after this event; after the `"start"` every
        process waits that ever does. Raises `StopWorker` if it should end.
        """
        if self._element is None or after not in (self._after, "start"):
            return
        self._element[0] = True
        self._send(b"")
        try:
            self.pipe.recv_bytes()
        except (EOFError, OSError):
            raise StopWorker from None
        if self._stop[0]:
            raise StopWorker


class MemoryGuard:
    """Detects that its process leaks, by one measurement a second."""

    def __init__(self) -> None:
        self._began = self._due = 0.0
        self._limit = self._episodes = 0

    def leaks(self, episodes: int) -> bool:
        """True if the process has grown too much. Calls between two measurements cost nothing.

        The first call belongs after the first work, whose memory, shared pages included, is no
        leak. Afterwards it may grow by `GROWTH_BYTES`, and by more in its first seconds, and within
        an episode, whose frames an environment may keep until it ends, if there is memory.

        Args:
            episodes: how many have ended so far.
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
        within = episodes == self._episodes and not self._began
        self._episodes = episodes
        if size <= self._limit:
            return False
        free = available_bytes()
        roomy = within and (free is None or free > RESERVE_BYTES)
        return not roomy or size > self._limit + SETTLING_BYTES


def run_worker(pipe: Connection, work: Callable[[], int], among: int = 1) -> NoReturn:
    """A process from its fork to its exit. The reason is sent if `work` raises, else its exit code
    counts. The kernel gives it no more than its allowance `among` those that share the memory.
    """
    allowed = allowance(available_bytes(), among)
    limit_growth(allowed)
    # Ctrl-C reaches the whole group of processes, but the orchestrator decides what ends when.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        code = work()
    except BaseException as error:  # the user's environment or network may raise anything, or exit
        if not isinstance(error, ConfigurationError | EnvironmentFailure) or is_user_error(error):
            traceback.print_exc()
        words = str(error) if isinstance(error, EnvironmentFailure) else describe_error(error)
        if isinstance(error, MemoryError) and allowed is not None:
            words = f"it took more than {megabytes(allowed)}: {words}"
        reason = words.encode()[:_LONGEST_REASON]
        pipe.send_bytes(RECORD.pack(FAILED, 0.0, 0) + reason)
        sys.exit(1)
    sys.exit(code)
