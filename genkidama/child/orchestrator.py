"""CoreOrchestrator: a child's shared memory and its core processes. The built-in backend, `"hogwild"`.

The cores themselves are a `Crew`: who is started, waited for, replaced and counted is said there. The
orchestrator never computes, and imports no torch: what it must know of the network, a process tells it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.blending import blend
from genkidama.child.backend import Work
from genkidama.child.crew import Crew
from genkidama.child.forkserver import CORES
from genkidama.child.memory import Layout, SharedMemory
from genkidama.child.nursery import describe
from genkidama.child.records import start_core
from genkidama.child.replay import ReplayTensor
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.experiment import Experiment
from genkidama.weights import DTYPE, Signature, Vector

__all__ = ["CoreOrchestrator"]


class CoreOrchestrator:
    """Owns a child's cores. See `Backend` for what each method promises.

    Args:
        experiment: all settings.
        cores: core processes to run, at least 1.
        name: the child's name; it makes its cores' random numbers differ from other children's.
    """

    def __init__(self, experiment: Experiment, cores: int, name: str = "child") -> None:
        if cores < 1:
            raise ConfigurationError(f"cores = {cores}: at least 1 is needed")
        self.experiment, self.cores, self.name = experiment, cores, name
        self._crew = Crew(experiment, "core", name, self._fork)
        self._memory: SharedMemory | None = None
        self._describer: ForkServerProcess | None = None

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
        describing = asyncio.ensure_future(asyncio.to_thread(self._describe))
        try:
            entries, vector, facts = await asyncio.shield(describing)
        except asyncio.CancelledError:
            # A small machine imports torch for half a minute; whoever is told to stop does not wait for that.
            while not describing.done():
                self._abandon(nursery)
                await asyncio.wait((describing,), timeout=0.1)
            describing.exception()
            raise
        self.signature = Signature.of(entries)
        settings = self.experiment
        sets = 1 if settings.optimizer.shared else self.cores
        self._memory = SharedMemory(
            Layout(
                cores=self.cores,
                steps=settings.algorithm.batch_size,
                columns=ReplayTensor.columns(facts["observation_size"], facts["action_columns"]),
                size=self.signature.size,
                trainable=facts["trainable"],
                state_rows=facts["state_rows"],
                state_sets=sets,
            )
        )
        self._memory.weights[:] = np.frombuffer(vector, DTYPE)
        return self.signature

    def _describe(self) -> tuple[Any, bytes, dict[str, int]]:
        ours, theirs = multiprocessing.Pipe()
        code = ""
        with ours:
            try:
                with theirs:
                    self._describer = CORES.start(describe, (self.experiment, theirs), self.experiment)
                answer = ours.recv()
            except (EOFError, OSError):  # from start(): the nursery itself died of what it imports or builds
                if self._describer is not None:
                    self._describer.join()
                    code = f" with exit code {self._describer.exitcode}"
                raise EnvironmentFailure(
                    f"the process that builds the network died{code}; "
                    f"try `python -c 'import torch'` on this machine, and the environment {self.experiment.environment.id!r} by itself"
                ) from None
        self._describer.join()
        self._describer.close()
        self._describer = None
        if answer[0] == "error":
            raise ConfigurationError(answer[1])
        return answer[1], answer[2], answer[3]

    def _abandon(self, nursery: int | None) -> None:
        """Kills what `startup` has started, and with it whatever waits for that: all but the nursery that was there before."""
        with suppress(ProcessLookupError):
            if (started := CORES.pid) is not None and started != nursery:
                os.kill(started, signal.SIGKILL)
            if self._describer is not None and self._describer.pid is not None:
                os.kill(self._describer.pid, signal.SIGKILL)

    async def begin(self, weights: Vector | None, version: int = 0) -> None:
        if weights is not None:
            self.memory.weights[:] = weights
        await self._crew.begin(self.cores, version, self.memory.semaphore)

    def _fork(self, index: int, line: Connection, seed: tuple[int, ...]) -> ForkServerProcess:
        return CORES.start(start_core, (index, self.experiment, self.memory, line, seed), self.experiment)

    async def due(self) -> None:
        await self._crew.due()

    def snapshot(self) -> Vector:
        return self.memory.weights.copy()

    def take_work(self) -> Work:
        return self._crew.take_work()

    def blend(self, sent: Vector, parent: Vector, beta: float) -> None:
        if not beta:
            return
        weights = self.memory.weights
        if self.experiment.child.exchange == "free":
            # The cores have gone on since the snapshot; what they learned meanwhile is kept:
            # θ_C ← θ_C + β(θ_P − θ_sent), which is the documented blend where nothing has changed.
            weights += (parent - sent) * DTYPE.type(beta)
        else:
            blend(weights, parent, beta)

    def reset(self, weights: Vector) -> None:
        self.memory.state[:] = 0.0
        self.memory.clock[:] = 0.0
        self.memory.weights[:] = weights

    def state(self) -> dict[str, npt.NDArray[Any]]:
        memory = self.memory
        return {"weights": memory.weights.copy(), "state": memory.state.copy(), "clock": memory.clock.copy()}

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        for name, array in state.items():
            ours = getattr(self.memory, name)
            if ours.shape == array.shape:  # another number of cores or another optimizer starts with fresh momenta
                ours[:] = array

    def set_progress(self, progress: float) -> None:
        self.memory.progress[0] = progress

    def release(self) -> None:
        self._crew.release()

    async def shutdown(self) -> None:
        if self._memory is not None:
            self._memory.stop[0] = True
        await self._crew.shutdown()
        if self._memory is not None:
            self._memory.close()
