"""CoreOrchestrator: a child's shared memory and its core processes. The backend `"hogwild"`.

The cores themselves are a `WorkerPool`, which starts, awaits, replaces and counts them. An exchange
reads and writes `SharedWeights`. The orchestrator never computes and imports no torch: a process
tells it what it must know of the network.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

import numpy.typing as npt
import structlog

from genkidama.child.backend import Work
from genkidama.child.capacity import (
    CHILD_BYTES,
    CORE_BYTES,
    GROWTH_BYTES,
    RESERVE_BYTES,
    cores_that_fit,
    refusal_of_replay,
)
from genkidama.child.forkservers import CORES
from genkidama.child.metrics import DiagnosticsReader
from genkidama.child.shared_memory import Layout, SharedMemory, progress_checksum
from genkidama.child.shared_weights import SharedWeights
from genkidama.child.worker_pool import WorkerPool
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import megabytes
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.protocol.session import with_free_exchange
from genkidama.protocol.vector import Signature, Vector
from genkidama.runtime.machine import available_bytes
from genkidama.runtime.shared_block import size_of

__all__ = ["CoreOrchestrator"]

#: What a core costs is measured for no longer than this: an environment may hang.
_REHEARSAL_SECONDS = 5.0

#: So often a process that is to say what the network is may die, and the pause in between.
_ATTEMPTS = 3
_RETRY_SECONDS = 0.2

#: What the processes that this module starts call first.
_DESCRIBE = "genkidama.child.core_forkserver:describe"
_CORE = "genkidama.child.core:run_core"

log = structlog.get_logger()


class _Died(EnvironmentFailure):
    """A process is dead that should have said what the network is."""


class CoreOrchestrator:
    """Owns a child's cores. See `Backend` for what each method promises.

    Args:
        experiment: all settings.
        cores: core processes to run, at least 1. If `child.cores` is "auto" there will be fewer
            where they would not fit into the memory; after `startup`, the attribute of this name is
            how many there are.
        name: the child's name; it makes its cores' random numbers differ from other children's.
    """

    def __init__(self, experiment: Experiment, cores: int, name: str = "child") -> None:
        if cores < 1:
            raise ConfigurationError(f"cores = {cores}: at least 1 is needed")
        self.experiment = with_free_exchange(experiment)
        self.cores = cores
        self.name = name
        self._crew = self._make_crew()
        self._memory: SharedMemory | None = None
        #: The cores whose updates nobody has asked about yet.
        self._updated: set[int] = set()
        self._describer: ForkServerProcess | None = None
        self._stopping = False
        #: The nursery that this backend began with; None if it is another program's.
        self._nursery: int | None = None

    @property
    def memory(self) -> SharedMemory:
        assert self._memory is not None, "startup() comes first"
        return self._memory

    @property
    def pids(self) -> list[int]:
        """The process numbers of the cores that live."""
        return self._crew.pids

    async def startup(self) -> Signature:
        nursery = CORES.pid
        describing = asyncio.ensure_future(asyncio.to_thread(self._describe_patiently))
        try:
            entries, vector, layout, cost = await asyncio.shield(describing)
        except asyncio.CancelledError:
            # A small machine imports torch for half a minute. A child that is told to stop does not
            # wait for that.
            self._stopping = True
            while not describing.done():
                self._abandon(nursery)
                await asyncio.wait((describing,), timeout=0.1)
            describing.exception()
            raise
        self._nursery = CORES.pid
        self.signature = Signature.of(entries)
        shared = self.experiment.optimizer.shared
        self.cores = self._fitting(cost, size_of(layout.for_cores(0, shared)))
        layout = layout.for_cores(self.cores, shared)
        self._check_replay(layout)
        self._memory = SharedMemory(layout)
        self._weights = SharedWeights(self._memory, vector)
        self._diagnosis = DiagnosticsReader(self.experiment, self.cores)
        return self.signature

    def _describe_patiently(self) -> tuple[Any, bytes, Layout, int | None]:
        """`_describe`, again if the nursery or its process was killed, unless this child stops."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._describe()
            except _Died as error:
                if attempt == _ATTEMPTS or self._stopping:
                    raise
                log.warning("starts again", child=self.name, reason=str(error))
                # A nursery that was killed is only replaced once the system has noted its end.
                time.sleep(_RETRY_SECONDS)
        raise AssertionError

    def _describe(self) -> tuple[Any, bytes, Layout, int | None]:
        ours, theirs = multiprocessing.Pipe()
        code = ""
        cost = None
        tight = self._tight()
        with ours:
            try:
                with theirs:
                    self._describer = CORES.start(
                        _DESCRIBE,
                        (self.experiment, theirs),
                        self.experiment,
                    )
                answer = ours.recv()
            except (EOFError, OSError):
                # If start() raises it, the nursery itself died of what it imports or builds.
                if self._describer is not None:
                    self._describer.join()
                    code = f" with exit code {self._describer.exitcode}"
                self._describer = None
                kind = EnvironmentFailure if tight else _Died
                raise kind(
                    f"the process that builds the network died{code}{tight}; "
                    f"try `python -c 'import torch'` on this machine, "
                    f"and the environment {self.experiment.environment.id!r} by itself"
                ) from None
            if answer[0] == "ok":
                # An environment that kills it will kill cores, too.
                with suppress(EOFError, OSError):
                    if ours.poll(_REHEARSAL_SECONDS):
                        cost = ours.recv()
                    else:
                        self._describer.kill()
        self._describer.join()
        describer, self._describer = self._describer, None
        describer.close()
        if answer[0] == "error":
            raise ConfigurationError(answer[1])
        return answer[1], answer[2], answer[3], cost

    def _tight(self) -> str:
        """Warns if there is not even enough memory for the nursery.

        Returns:
            The reason to give if the nursery then dies; empty if there is enough.
        """
        available = None if CORES.born else available_bytes()
        if available is None or available >= CHILD_BYTES:
            return ""
        needs, free = megabytes(CHILD_BYTES), megabytes(available)
        reason = f"a child needs {needs} before its first core, {free} are free"
        log.warning(reason, child=self.name)
        return f": {reason}"

    def _fitting(self, cost: int | None, shared: int) -> int:
        """How many cores to run. If not all fit, it logs why.

        Args:
            cost: bytes that a core takes for itself; None if that could not be measured.
            shared: bytes that all of them share, not taken yet.
        """
        available, needs = available_bytes(), (CORE_BYTES if cost is None else cost) + GROWTH_BYTES
        reserve = shared + RESERVE_BYTES
        fit = cores_that_fit(available, needs, self.cores, reserve)
        if available is None or self.cores * needs + reserve <= available:
            return self.cores
        free = megabytes(max(0, available - reserve))
        beside = f"{free} are free beside a reserve of {megabytes(reserve)}"
        why = f"a core needs {megabytes(needs)}, {beside}"
        if self.experiment.child.cores != "auto":
            log.warning(
                f"{self.cores} cores as told, though {fit} would fit: {why}", child=self.name
            )
            return self.cores
        if needs + reserve > available:
            log.warning(
                f"1 of {self.cores} cores, and that may be too much: {why}", child=self.name
            )
        else:
            log.info(f"{fit} of {self.cores} cores: {why}", child=self.name)
        return fit

    def _check_replay(self, layout: Layout) -> None:
        """Refuses a replay tensor for which there is no room, before it is made."""
        shape = (layout.cores, layout.steps, layout.columns)
        steps = 0 if self.experiment.shares_replay else self.experiment.replay.steps
        batch = self.experiment.algorithm.batch_size
        if why := refusal_of_replay(available_bytes(), shape, layout.replay_bytes, steps, batch):
            raise ConfigurationError(why)

    def _abandon(self, nursery: int | None) -> None:
        """Kills what `startup` has started, and so ends whatever waits for that.

        A nursery that was there before lives on.
        """
        if (started := CORES.pid) is not None and started != nursery:
            with suppress(ProcessLookupError):
                os.kill(started, signal.SIGKILL)
        if (describer := self._describer) is not None:
            with suppress(ValueError):  # `_describe` has just closed it
                describer.kill()

    async def begin(self, weights: Vector | None, version: int = 0) -> None:
        self._weights.begin(weights)
        await self._crew.begin(self.cores, version, self.memory.semaphore)

    def _make_crew(self) -> WorkerPool:
        return WorkerPool(self.experiment, "core", self.name, self._fork, self._trace)

    def _trace(self, index: int) -> int:
        return progress_checksum(self.memory, index)

    def _fork(self, index: int, line: Connection, seed: tuple[int, ...]) -> ForkServerProcess:
        return CORES.start(
            _CORE, (index, self.experiment, self.memory, line, seed), self.experiment
        )

    async def due(self) -> None:
        await self._crew.due()

    def snapshot(self) -> Vector | None:
        return None if self.experiment.role == "act" else self._weights.snapshot()

    def take_work(self) -> Work:
        work = self._crew.take_work()
        memory = self.memory
        work.measures = self._diagnosis.figures(memory.diagnostics, float(memory.progress[0]))
        updates, self._crew.updates = self._crew.updates, {}
        self._updated.update(updates)
        if updates:
            work.measures["loss"] = sum(updates.values()) / len(updates)
        return work

    def gradient(self) -> Vector | None:
        found = sorted(self._updated)
        self._updated.clear()
        return self.memory.gradients[found].mean(0) if found else None

    def blend(self, sent: Vector, parent: Vector, beta: float) -> None:
        # Free cores have gone on since the snapshot.
        self._weights.blend(sent, parent, beta, self.experiment.child.exchange == "free")

    def reset(self, weights: Vector) -> None:
        self._weights.reset(weights)
        self.memory.refreshed[:] = 0  # θ⁻ begins anew, too

    def heard(self, version: int) -> None:
        """The version of θ_P that came last, by which θ⁻ may be renewed."""
        self.memory.version[0] = version

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return self._weights.state()

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self._weights.restore(state)

    def set_progress(self, progress: float) -> None:
        self._weights.set_progress(progress)

    def answered(self, steps: int) -> None:
        self._crew.exchange_steps = steps or self.experiment.child.exchange_steps

    def release(self) -> None:
        self._crew.release()

    async def shutdown(self) -> None:
        if self._memory is not None:
            self._memory.stop[0] = True
        ending = asyncio.ensure_future(self._crew.shutdown())
        await asyncio.wait((ending,), timeout=0.1)
        while not ending.done():
            # If the nursery was killed just before, a core waits for a new one to import torch.
            self._abandon(self._nursery)
            await asyncio.wait((ending,), timeout=0.1)
        await ending
        if self._memory is not None:
            self._memory.close()
