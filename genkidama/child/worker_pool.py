"""WorkerPool: the processes of a backend, which report their work on their pipes.

Laws of this file:
- The pool never computes: it sleeps until a process or a timer wakes it.
- With `exchange = "free"` an exchange is due whenever enough time or steps have passed, and no
  process ever waits.
- With `"episode"` it is due when every element of the semaphore vector is set and an episode has
  ended since the last exchange. If all wait and none has ended, as at the start, the pool releases
  them by itself. With `"update"` the same holds of updates.
- With `"chunk"` processes wait twice: for θ_P before they learn, which one of them may ask for
  early, and for an exchange when all have learned.
- A process that dies, or hangs and is killed, is replaced; meanwhile its element is set. Each
  further death lengthens the delay. A process that dies repeatedly before it has done any work
  ends the child, with the reason that it gave.
- Each index has at most one living process at any time, so each part of the shared memory that
  belongs to an index has one writer.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from genkidama.child.backend import Work
from genkidama.child.shared_memory import SharedWeights
from genkidama.child.worker import ASK, EPISODE, FAILED, PROGRESS, RECORD, RECYCLED, UPDATE
from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure
from genkidama.protocol.diagnostics import ENDLESS_STEPS
from genkidama.runtime.forkserver import ForkedProcess
from genkidama.runtime.log import get_logger
from genkidama.runtime.pacing import RestartPolicy
from genkidama.runtime.process import GRACE_SECONDS, WorkerProcess, end_all
from genkidama.runtime.watchdog import Watchdog

#: Seconds before a process that died a second time is started again, and without a death after
#: which half of its deaths are forgiven.
_FIRST_REST = 0.25
_FORGIVEN_SECONDS = 120.0

#: Seconds before the next attempt if a process could not even be started. A forkserver that was
#: killed is only replaced once the system has noted its end.
_RETRY_SECONDS = 0.2

log = get_logger()


class WorkerStarter(Protocol):
    """The owner of a pool: it starts the processes and sees whether they work."""

    def start_worker(self, index: int, pipe: Connection, seed: tuple[int, ...]) -> ForkedProcess:
        """Starts the process of an index. Called in threads, several at once.

        EOFError, OSError: not possible this time.
        """
        ...

    def trace(self, index: int) -> int | None:
        """A number that changes when the process does anything; None if it waits for others."""
        ...


class SemaphoreVector:
    """The semaphore vector: how the processes of a child wait for each other (thesis §4.6).

    One boolean for each process, (C,), in shared memory. A process that has finished its episode
    lights its own element and sleeps; all else is written by this object, in the orchestrator. When
    all elements are lit, the child exchanges weights, darkens the elements and wakes the processes.
    One that is dead, being restarted or not there yet is absent: it counts as lit, so no other
    waits for it. A process is absent until it enters. Some elements may belong to no process.
    """

    def __init__(self, elements: npt.NDArray[Any]) -> None:
        self._elements = elements
        self._elements[:] = True
        self._absent = np.ones(len(elements), np.bool_)

    def light(self, index: int) -> None:
        """The process is dead or dismissed: its element stays lit until it is back."""
        self._elements[index] = True
        self._absent[index] = True

    def enter(self, index: int) -> None:
        """The process has reported that it waits. If it was absent it takes part from now on.

        The report of one that is there already changes nothing: it has lit its element itself, and
        may have been released since.
        """
        self._absent[index] = False

    def lit(self, index: int) -> bool:
        """True if it waits. Its report may come after it has been released."""
        return bool(self._elements[index])

    @property
    def all_lit(self) -> bool:
        """True if every process waits or is absent, and at least one waits."""
        # NumPy's `all` takes 5 µs for these few bytes, and each record asks.
        return b"\0" not in self._elements.tobytes() and b"\0" in self._absent.tobytes()

    def release(self, only: list[int] | None = None) -> list[int]:
        """Darkens the elements of those that wait, or only of these, and returns their indices:
        the caller wakes them."""
        waiting = np.flatnonzero(self._elements & ~self._absent).tolist() if only is None else only
        self._elements[waiting] = False
        return waiting


class WorkerPool:
    """The processes 0 … count−1. One asyncio loop makes all calls, `begin` before all others.

    Messages call a process a `noun`: `"core"`, `"agent"`. The child's name makes its processes'
    random numbers differ from other children's.
    """

    def __init__(
        self, experiment: Experiment, noun: str, name: str, starter: WorkerStarter
    ) -> None:
        self._experiment = experiment
        self._noun = noun
        self._name = name
        self._starter = starter
        self._free = experiment.child.exchange == "free"
        #: `free`: an exchange is due after this many steps, unless the parent says otherwise.
        self.exchange_steps = experiment.child.exchange_steps
        #: The kind of record that makes an exchange due.
        self._counts = EPISODE if experiment.child.exchange == "episode" else UPDATE
        self._chunks = experiment.child.exchange == "chunk"
        #: `chunk`: whether what is due is a pull, and whether a process has asked for one.
        self.pulls = self.asked = False
        #: Since the last exchange: whether a pull was made, and is over; who has learned.
        self._pulled = not self._chunks
        self._open = False
        self._learned: set[int] = set()
        self._workers: dict[int, WorkerProcess] = {}
        self._count = 0
        self._starts = 0
        self._version = 0
        self._semaphore = SemaphoreVector(np.ones(0, np.bool_))
        self._work = Work()
        #: Steps since the last episode has ended.
        self._endless = 0
        #: Whether an episode has ended, or an update was made, since the last exchange.
        self._played = False
        #: The loss of each process' newest update, by index; the owner takes them out.
        self.updates: dict[int, float] = {}
        self._wake = asyncio.Event()
        self._fatal: Exception | None = None
        self._ending = False
        #: Set when no process should rest any longer before its restart.
        self._no_rest = asyncio.Event()
        #: By index: its last start or dismissal, under way or over.
        self._changes: dict[int, asyncio.Task[None]] = {}
        self._watchdog = Watchdog(experiment.child.hang_seconds, starter.trace, self._hung)
        #: By index: after three deaths without a record of work, a process is given up.
        self._policies: defaultdict[int, RestartPolicy] = defaultdict(
            lambda: RestartPolicy(3, rest=_FIRST_REST, half_life=_FORGIVEN_SECONDS)
        )

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes that live."""
        return [worker.pid for worker in self._workers.values()]

    async def begin(self, count: int, version: int, semaphore: npt.NDArray[Any]) -> None:
        """Starts processes, at least 1, which wait for each other before they play.

        The parent's version is part of the seeds. The semaphore has one element for each process
        that there may ever be. Elements without a process count as absent.
        """
        self._count = count
        self._version = version
        self._semaphore = SemaphoreVector(semaphore)
        for index in range(count):
            self._semaphore.enter(index)
        self._semaphore.release()  # none waits yet, so none is woken: at the start all wait for all
        self._watchdog.begin()
        await self._start_all(range(count))

    async def resize(self, count: int) -> list[int]:
        """Starts processes, or dismisses those with the highest indices, until `count` are left.

        A new process takes part in exchanges from when it first comes to the semaphore. The pipe of
        one that is dismissed is closed after its records are counted. It is neither waited for nor
        replaced any more. If it does not end by itself within a second, it is killed. Returns the
        dismissed; the caller wakes them if they sleep in anything but a read of their pipe.
        """
        # Starts and dismissals that are under way come first. From there to the new count, nothing
        # else runs.
        least = min(count, self._count)
        while changes := [t for i, t in self._changes.items() if i >= least and not t.done()]:
            self._no_rest.set()
            await asyncio.wait(changes)
        self._no_rest.clear()
        if self._ending:
            return []
        before, self._count = self._count, count
        for index in range(count, before):
            self._dismiss(index)
            self._policies[index].worked()
        if self._semaphore.all_lit:
            self._wake.set()
        await self._start_all(range(before, count))
        return list(range(count, before))

    async def _start_all(self, indices: range) -> None:
        starts = [self._change(index, self._start(index)) for index in indices]
        # A caller that is cancelled leaves no unknown process: `shutdown` waits for the starts.
        await asyncio.shield(asyncio.gather(*starts))

    def _change(self, index: int, change: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._changes[index] = asyncio.get_running_loop().create_task(change)
        return self._changes[index]

    async def _start(self, index: int, failure: str = "", rest: float = 0.0) -> None:
        if rest:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._no_rest.wait(), rest)
            if self._ending or index >= self._count:
                return
        self._starts += 1
        name = zlib.crc32(self._name.encode())
        seed = (self._experiment.seed, name, index, self._starts, self._version)
        worker = WorkerProcess(self, index, Connection.recv_bytes)
        worker.failure = failure
        launch = partial(self._starter.start_worker, index, seed=seed)
        try:
            await asyncio.to_thread(worker.start, launch)
        except (EOFError, OSError) as error:
            # The forkserver has been killed. The next attempt starts another one.
            await asyncio.sleep(_RETRY_SECONDS)
            self._replace(index, failure, f"it cannot be started: {type(error).__name__}")
            return
        self._workers[index] = worker
        worker.listen()
        self._watchdog.ages.started(index)
        if self._ending:
            self._hang_up(worker)

    def heard(self, worker: WorkerProcess, message: bytes) -> None:
        """A process has sent a record."""
        self._watchdog.heard(worker.index, not message and self._semaphore.lit(worker.index))
        self._record(worker, message)

    def _record(self, worker: WorkerProcess, record: bytes) -> None:
        if not record:
            self._semaphore.enter(worker.index)
            index = worker.index
            if self._open and index not in self._learned and self._semaphore.lit(index):
                self._release_all([index])  # it waits for what has just come
            elif self._semaphore.all_lit:
                self._wake.set()
            return
        kind, value, steps = RECORD.unpack_from(record)
        if kind in (EPISODE, PROGRESS, UPDATE):
            self._policies[worker.index].worked()
            self._work.steps += steps
            self._look_for_ends(steps, kind == EPISODE)
            self._played |= kind == self._counts
            if kind == EPISODE:
                self._work.returns.append(value)
            elif kind == UPDATE:
                self.updates[worker.index] = value
                self._learned.add(worker.index)
            if self._free and 0 < self.exchange_steps <= self._work.steps:
                self._wake.set()
        elif kind == ASK and not self._pulled:
            self.asked = True
            self._wake.set()
        elif kind == FAILED:
            worker.failure = record[RECORD.size :].decode(errors="replace")

    def _look_for_ends(self, steps: int, ended: bool) -> None:
        """Says once that no episode ends: then there is no return, and perhaps no exchange."""
        before, self._endless = self._endless, 0 if ended else self._endless + steps
        if before < ENDLESS_STEPS * max(1, self._count) <= self._endless:
            exchange = ', and no exchange (child.exchange = "episode")'
            environment = self._experiment.environment
            way = "environment.options has the name that its documentation gives, such as "
            way += "max_episode_steps or max_cycles"
            if not (environment.prefix or environment.vectorized):
                limit = '{ name = "TimeLimit", options = { max_episode_steps = 1000 } }'
                way = f"environment.wrappers = [{limit}]"
            log.warning(
                "no episode ends",
                reason=f"none in the last {self._endless:,} steps, so there is no return"
                f"{exchange if self._counts == EPISODE else ''}; "
                f"if the environment never ends one by itself, set a limit: {way}",
            )

    def lost(self, worker: WorkerProcess) -> None:
        """A process is gone."""
        self._hang_up(worker)
        if self._ending:
            return
        worker.finish(GRACE_SECONDS)  # its environment may have closed the pipe
        code, reason = worker.wait(), worker.reason
        if code != RECYCLED:
            index = {self._noun: worker.index}
            log.warning(f"{self._noun} lost", **index, exit_code=code, reason=reason)
        del self._workers[worker.index]
        if self._semaphore.all_lit:
            self._wake.set()
        self._replace(worker.index, worker.failure, "" if code == RECYCLED else reason)

    def _hung(self, index: int, seconds: float) -> None:
        if (worker := self._workers.get(index)) is not None:
            worker.hung(seconds)

    def _hang_up(self, worker: WorkerProcess) -> None:
        """It is neither read from nor waited for any more."""
        self._watchdog.ages.forget(worker.index)
        worker.hang_up()
        self._semaphore.light(worker.index)

    def _replace(self, index: int, failure: str, reason: str) -> None:
        """Starts a process again, unless it has died too often; without a reason it wanted that."""
        if self._ending or index >= self._count:
            return
        policy, rest = self._policies[index], 0.0
        if reason:
            rest = policy.died(time.monotonic())
        else:
            policy.worked()
        if policy.given_up:
            often = f"{self._noun} {index} died {policy.deaths} times without ending an episode"
            self.fail(EnvironmentFailure(f"{often}: {reason}"))
        else:
            self._change(index, self._start(index, failure, rest))

    def _dismiss(self, index: int) -> None:
        if index in self._workers:
            self._workers[index].read()  # which may find that it is gone
        worker = self._workers.pop(index, None)
        if worker is not None:
            self._hang_up(worker)
            deadline = time.monotonic() + GRACE_SECONDS
            self._change(index, asyncio.to_thread(end_all, [worker], deadline))

    def fail(self, error: Exception) -> None:
        """Training cannot continue: `due` raises this."""
        self._fatal = error
        self._wake.set()

    async def due(self) -> None:
        """Returns when an exchange is due; may be cancelled and called again.

        Raises:
            EnvironmentFailure: a process does not live long enough to do anything.
            Exception: the error given to `fail`.
        """
        if self._free:
            seconds = self._experiment.child.exchange_seconds or None
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), seconds)
        else:
            await self._all_have_played()
        self._wake.clear()
        if self._fatal is not None:
            raise self._fatal

    async def _all_have_played(self) -> None:
        """Returns when all wait at the semaphore and an episode has ended since the last exchange.

        If all wait and no episode has ended, there is nothing to exchange, and they are released.
        That happens at the start, and when the only process has been replaced.
        """
        while self._fatal is None:
            # A process lights its element first and reports it afterwards, so that report may come
            # late. Its other records come before.
            # Looked at once: one that lights its element meanwhile has not been read.
            all_lit = self._semaphore.all_lit
            if all_lit:
                for worker in list(self._workers.values()):
                    worker.read()
                if self._played:
                    self.pulls = False
                    return
            if not self._pulled and (self.asked or all_lit):
                self.pulls = self._pulled = True
                self.asked = False
                return
            if all_lit:
                self.release()
            self._wake.clear()
            await self._wake.wait()

    def take_work(self) -> Work:
        """The processes' work since the last call."""
        work, self._work = self._work, Work()
        if self._fatal is None:
            self._wake.clear()  # what these steps have made due is this exchange
        if self._chunks:
            self._played = self._pulled = False
            self._open = False
            self._learned.clear()
        return work

    def opened(self) -> None:
        """`chunk`: θ_P is there, or nobody answers: until they have learned, none waits."""
        self.asked = False
        self._pulled = self._open = True

    def release(self) -> None:
        """Wakes the processes that wait at the semaphore."""
        if not self._chunks:
            self._played = False
        if not self._free:
            self._release_all()

    def _release_all(self, only: list[int] | None = None) -> None:
        for index in self._semaphore.release(only):
            self._watchdog.ages.wake(index)
            # One that has just died needs no waking: the reader of its pipe lights its element.
            with suppress(OSError, KeyError):
                self._workers[index].pipe.send_bytes(b"")

    async def shutdown(self) -> None:
        """Ends all processes and waits for their end, one second at most.

        Their pipes are closed. A process that sleeps in anything but a read of its pipe must be
        woken before.
        """
        self._ending = True
        self._no_rest.set()
        self._watchdog.end()
        deadline = time.monotonic() + GRACE_SECONDS
        for worker in self._workers.values():
            self._hang_up(worker)
        if self._changes:
            await asyncio.wait(self._changes.values())
        await asyncio.to_thread(end_all, list(self._workers.values()), deadline)
        self._workers.clear()


class PooledBackend:
    """The methods of a `Backend` that every one with a worker pool and shared weights has."""

    experiment: Experiment
    _pool: WorkerPool
    _weights: SharedWeights

    @property
    def pids(self) -> list[int]:
        """The numbers of the worker processes that live."""
        return self._pool.pids

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return self._weights.state()

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self._weights.restore(state)

    def set_progress(self, progress: float) -> None:
        self._weights.set_progress(progress)

    def answered(self, steps: int) -> None:
        self._pool.exchange_steps = steps or self.experiment.child.exchange_steps

    def release(self) -> None:
        self._pool.release()
