"""Crew: the processes of a backend, each with a line on which it says what it has done.

Laws of this file:
- The crew never computes: it sleeps until a process or a timer wakes it.
- With `exchange = "free"` an exchange is due whenever enough time or steps have passed, and no
  process ever waits.
- With `"episode"` it is due when every element of the semaphore vector is lit and an episode has
  ended since the last exchange. Where all wait and none has ended, as at the start, the crew lets
  them go on by itself. With `"update"` the same holds of updates.
- A process that dies, or hangs and is killed, is replaced, its element lit meanwhile; the more
  often, the later. One that dies again and again before it has done anything ends the child, with
  the reason that it gave.
- At any time at most one process of an index lives, so each part of the shared memory that an index
  owns has one writer.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import structlog

from genkidama.child.backend import Work
from genkidama.child.semaphore import SemaphoreVector
from genkidama.child.worker import EPISODE, FAILED, PROGRESS, RECORD, RECYCLED, UPDATE
from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure
from genkidama.runtime.pacing import RestartPolicy
from genkidama.runtime.process import GRACE_SECONDS, WorkerProcess, end_all
from genkidama.runtime.watchdog import Trace, Watchdog

__all__ = ["WorkerPool"]

#: How long a process that dies a second time waits before it is started again, and how long it
#: must live for half of its deaths to be forgiven.
_FIRST_REST = 0.25
_FORGIVEN_SECONDS = 120.0

#: How long to wait after a process could not even be started. A nursery that was killed is only
#: replaced once the system has noted its end.
_RETRY_SECONDS = 0.2

#: Starts the process of an index, given its end of the pipe and the seed of its random numbers. It
#: is called in threads, several at once. EOFError and OSError mean: not possible this time.
Fork: TypeAlias = Callable[[int, Connection, tuple[int, ...]], ForkServerProcess]

log = structlog.get_logger()


class WorkerPool:
    """The processes 0 … count−1. One asyncio loop makes all calls, `begin` before all others.

    Args:
        experiment: all settings.
        noun: what one of the processes is called in messages: `"core"`, `"agent"`.
        name: the child's name; it makes its processes' random numbers differ from other children's.
        fork: starts a process.
        trace: shows whether a process that says nothing works.
    """

    def __init__(
        self, experiment: Experiment, noun: str, name: str, fork: Fork, trace: Trace | None = None
    ) -> None:
        self._experiment = experiment
        self._noun = noun
        self._name = name
        self._fork = fork
        self._free = experiment.child.exchange == "free"
        #: `free`: an exchange is due after so many steps, if the parent says nothing else.
        self.exchange_steps = experiment.child.exchange_steps
        #: What it takes for an exchange to be due.
        self._counts = UPDATE if experiment.child.exchange == "update" else EPISODE
        self._members: dict[int, WorkerProcess] = {}
        self._count = 0
        self._births = 0
        self._version = 0
        self._semaphore = SemaphoreVector(np.ones(0, np.bool_))
        self._work = Work()
        #: Whether an episode has ended, or an update was made, since the last exchange.
        self._played = False
        #: The loss of each process' newest update, by index; the owner takes them out.
        self.updates: dict[int, float] = {}
        self._wake = asyncio.Event()
        self._fatal: Exception | None = None
        self._ending = False
        #: Set when nobody who has died should wait any longer.
        self._no_rest = asyncio.Event()
        #: By index: its last start or dismissal, under way or over.
        self._changes: dict[int, asyncio.Task[None]] = {}
        self._watch = Watchdog(experiment.child.hang_seconds, trace, self._hung)
        #: By index: after three deaths without a record of work, a process is given up.
        self._policies: defaultdict[int, RestartPolicy] = defaultdict(
            lambda: RestartPolicy(3, rest=_FIRST_REST, half_life=_FORGIVEN_SECONDS)
        )

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes that live."""
        return [member.pid for member in self._members.values()]

    async def begin(self, count: int, version: int, semaphore: npt.NDArray[Any]) -> None:
        """Starts so many processes, which wait for each other before they play.

        Args:
            count: at least 1.
            version: the parent's, part of the seeds.
            semaphore: bool, in shared memory: one element for each process that there may ever be.
                Elements without a process count as absent.
        """
        self._count = count
        self._version = version
        self._semaphore = SemaphoreVector(semaphore)
        for index in range(count):
            self._semaphore.enter(index)
        self._semaphore.release()  # none waits yet, so none is woken: at the start all wait for all
        self._watch.begin()
        await self._start_all(range(count))

    async def resize(self, count: int) -> list[int]:
        """Starts processes, or dismisses those with the highest indices, until there are so many.

        A new process takes part in exchanges from when it first comes to the semaphore. The line of
        one that is dismissed is closed, after what it has said is counted. It is neither waited for
        nor replaced any more. If it does not end by itself within a second, it is killed.

        Args:
            count: at least 1, at most the semaphore's elements.

        Returns:
            The processes that were dismissed. The caller wakes them at once where they sleep in
            anything but a read of their line.
        """
        # Starts and dismissals that are under way come first. From here to the new count nothing
        # else runs.
        least = min(count, self._count)
        while changes := [
            task for index, task in self._changes.items() if index >= least and not task.done()
        ]:
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
        # Shielded: a caller that is cancelled leaves no unknown process behind.
        # `shutdown` waits for the starts.
        await asyncio.shield(
            asyncio.gather(*(self._change(index, self._start(index)) for index in indices))
        )

    def _change(self, index: int, change: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._changes[index] = asyncio.get_running_loop().create_task(change)
        return self._changes[index]

    async def _start(self, index: int, failure: str = "", rest: float = 0.0) -> None:
        if rest:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._no_rest.wait(), rest)
            if self._ending or index >= self._count:
                return
        self._births += 1
        name = zlib.crc32(self._name.encode())
        seed = (self._experiment.seed, name, index, self._births, self._version)
        member = WorkerProcess(self, index, Connection.recv_bytes)
        member.failure = failure
        try:
            await asyncio.to_thread(member.start, lambda pipe: self._fork(index, pipe, seed))
        except (EOFError, OSError) as error:
            # The nursery has been killed. The next attempt starts another one.
            await asyncio.sleep(_RETRY_SECONDS)
            reason = f"it cannot be started: {type(error).__name__}"
            self._replace(index, failure, reason)
            return
        self._members[index] = member
        member.listen()
        self._watch.ages.born(index)
        if self._ending:
            self._hang_up(member)

    def heard(self, worker: WorkerProcess, message: bytes) -> None:
        """A process has sent records."""
        self._watch.heard(worker.index, not message and self._semaphore.lit(worker.index))
        self._heard(worker, message)

    def _heard(self, member: WorkerProcess, record: bytes) -> None:
        if not record:
            self._semaphore.enter(member.index)
            if self._semaphore.all_lit:
                self._wake.set()
            return
        kind, value, steps = RECORD.unpack_from(record)
        if kind in (EPISODE, PROGRESS, UPDATE):
            self._policies[member.index].worked()
            self._work.steps += steps
            self._played |= kind == self._counts
            if kind == EPISODE:
                self._work.returns.append(value)
            elif kind == UPDATE:
                self.updates[member.index] = value
            if self._free and 0 < self.exchange_steps <= self._work.steps:
                self._wake.set()
        elif kind == FAILED:
            member.failure = record[RECORD.size :].decode(errors="replace")

    def lost(self, member: WorkerProcess) -> None:
        """A process is gone."""
        self._hang_up(member)
        if self._ending:
            return
        code, reason = member.wait(), member.reason
        if code != RECYCLED:
            index = {self._noun: member.index}
            log.warning(f"{self._noun} lost", **index, exit_code=code, reason=reason)
        del self._members[member.index]
        if self._semaphore.all_lit:
            self._wake.set()
        self._replace(member.index, member.failure, "" if code == RECYCLED else reason)

    def _hung(self, index: int, seconds: float) -> None:
        if (member := self._members.get(index)) is not None:
            member.hung(seconds)

    def _hang_up(self, member: WorkerProcess) -> None:
        """Nobody listens to it or waits for it any more."""
        self._watch.ages.gone(member.index)
        member.hang_up()
        self._semaphore.light(member.index)

    def _replace(self, index: int, failure: str, reason: str) -> None:
        """Starts a process again, unless it has died too often.

        Its last life ended for this `reason`, which is empty if it asked to be replaced. One of its
        lives gave this `failure` itself.
        """
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
            return
        self._change(index, self._start(index, failure, rest))

    def _dismiss(self, index: int) -> None:
        if index in self._members:
            self._members[index].read()  # which may find that it is gone
        member = self._members.pop(index, None)
        if member is not None:
            self._hang_up(member)
            deadline = time.monotonic() + GRACE_SECONDS
            self._change(index, asyncio.to_thread(end_all, [member], deadline))

    def fail(self, error: Exception) -> None:
        """Training cannot go on: `due` raises this."""
        self._fatal = error
        self._wake.set()

    async def due(self) -> None:
        """Returns when an exchange is due; may be cancelled and called again.

        Raises:
            EnvironmentFailure: a process does not live long enough to do anything.
            Exception: what `fail` was told.
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

        Where all wait and no episode has ended, there is nothing to exchange, and they go on. So it
        is at the start, and when the only process has been replaced.
        """
        while self._fatal is None:
            # A process lights its element first and then says so, so its word may come late. What
            # it did, it has said before.
            if self._semaphore.all_lit:
                for member in list(self._members.values()):
                    member.read()
                if self._played:
                    return
                self.release()
            self._wake.clear()
            await self._wake.wait()

    def take_work(self) -> Work:
        """What the processes have done since the last call."""
        work, self._work = self._work, Work()
        if self._fatal is None:
            self._wake.clear()  # what these steps have made due meanwhile is this exchange
        return work

    def release(self) -> None:
        """Lets the processes that wait at the semaphore go on."""
        self._played = False
        if not self._free:
            self._release_all()

    def _release_all(self) -> None:
        for index in self._semaphore.release():
            self._watch.ages.wake(index)
            # One that has just died needs no waking: the reader of its line lights its element.
            with suppress(OSError, KeyError):
                self._members[index].pipe.send_bytes(b"")

    async def shutdown(self) -> None:
        """Ends all processes and waits for their end, one second at most.

        Their lines are closed. A process that sleeps in anything but a read of its line, or looks
        at a flag, is to be told before.
        """
        self._ending = True
        self._no_rest.set()
        self._watch.end()
        deadline = time.monotonic() + GRACE_SECONDS
        for member in self._members.values():
            self._hang_up(member)
        if self._changes:
            await asyncio.wait(self._changes.values())
        await asyncio.to_thread(end_all, list(self._members.values()), deadline)
        self._members.clear()
