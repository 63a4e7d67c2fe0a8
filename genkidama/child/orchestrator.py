"""CoreOrchestrator: a child's shared memory and its core processes. The built-in backend, `"hogwild"`.

Laws of this file:
- The orchestrator never computes: it sleeps until a core or a timer wakes it.
- With `exchange = "episode"` an exchange is due when every element of the semaphore vector is lit;
  with `"free"` whenever enough time or steps have passed, and the cores never wait.
- A core that dies is replaced, its element lit meanwhile. A core that dies again and again before it
  ends an episode ends the child, with the reason that it gave.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import _forkserver
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from genkidama.blending import blend
from genkidama.child.backend import Work
from genkidama.child.memory import Layout, SharedMemory
from genkidama.child.nursery import EXPERIMENT_VARIABLE, describe
from genkidama.child.records import EPISODE, FAILED, RECORD, RECYCLED
from genkidama.child.replay import ReplayTensor
from genkidama.child.semaphore import SemaphoreVector
from genkidama.console import make_logger
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.experiment import Experiment
from genkidama.weights import DTYPE, Signature, Vector

__all__ = ["CoreOrchestrator"]

#: What libraries of a core read when they are loaded. One thread each: more only fight over the CPU. And
#: glibc takes large blocks from the kernel and gives them back: on its heap, torch's batches between an
#: environment's small leftovers would fragment it by megabytes a second.
_CORE_VARIABLES = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"),
    "MALLOC_MMAP_THRESHOLD_": "65536",
}

#: So many deaths of one core without an episode between them mean that it will never live.
_FATAL_DEATHS = 3

#: How long to wait when a core cannot even be started: a nursery that was killed is only replaced once the system has noted its end.
_RETRY_SECONDS = 0.2

#: How long the cores get to end by themselves before they are killed.
_GRACE_SECONDS = 1.0

#: Processes are started in threads, several at once, and starting one changes for a moment what all threads share.
_lock = threading.Lock()

log = make_logger()


@dataclass
class _Core:
    """The orchestrator's side of one core process."""

    index: int
    process: ForkServerProcess
    line: Connection
    #: Deaths since the core last ended an episode.
    deaths: int = 0
    failure: str = ""
    #: Whether it has come to the semaphore; until then its element is lit for it, but at the start.
    present: bool = False


@dataclass
class _Counts:
    steps: int = 0
    returns: list[float] = field(default_factory=list)


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
        self._free = experiment.child.exchange == "free"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["genkidama.child.nursery"])
        self._cores: dict[int, _Core] = {}
        self._births = self._version = 0
        self._counts = _Counts()
        self._wake = asyncio.Event()
        self._fatal: Exception | None = None
        self._ending = False
        self._restarts: set[asyncio.Task[None]] = set()
        self._memory: SharedMemory | None = None
        self._describer: ForkServerProcess | None = None

    @property
    def memory(self) -> SharedMemory:
        assert self._memory is not None, "startup() comes first"
        return self._memory

    @property
    def pids(self) -> list[int]:
        """The process numbers of the cores that live."""
        return [core.process.pid for core in self._cores.values() if core.process.pid is not None]

    async def startup(self) -> Signature:
        nursery = _nursery()
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
        self._semaphore = SemaphoreVector(self._memory.semaphore)
        return self.signature

    def _describe(self) -> tuple[Any, bytes, dict[str, int]]:
        ours, theirs = self._context.Pipe()
        process = self._describer = self._context.Process(target=describe, args=(self.experiment, theirs), daemon=True)
        with ours:
            try:
                with theirs, _starting(self.experiment):
                    process.start()
                answer = ours.recv()
            except (EOFError, OSError):  # from start(): the nursery itself died of what it imports or builds
                if process.pid is not None:
                    process.join()
                code = "" if process.pid is None else f" with exit code {process.exitcode}"
                raise EnvironmentFailure(
                    f"the process that builds the network died{code}; "
                    f"try `python -c 'import torch'` on this machine, and the environment {self.experiment.environment.id!r} by itself"
                ) from None
        process.join()
        process.close()
        self._describer = None
        if answer[0] == "error":
            raise ConfigurationError(answer[1])
        return answer[1], answer[2], answer[3]

    async def begin(self, weights: Vector | None, version: int = 0) -> None:
        self._version = version
        if weights is not None:
            self.memory.weights[:] = weights
        for index in range(self.cores):
            self._semaphore.enter(index)
        self._semaphore.release()  # nobody waits yet, so nobody is woken: at the start all wait for all
        await asyncio.gather(*(self._start(index) for index in range(self.cores)))

    async def _start(self, index: int, deaths: int = 0, failure: str = "") -> None:
        self._births += 1
        seed = (self.experiment.seed, zlib.crc32(self.name.encode()), index, self._births, self._version)
        ours, theirs = self._context.Pipe()
        try:
            with theirs:
                process = await asyncio.to_thread(self._fork, index, theirs, seed)
        except (EOFError, OSError) as error:  # the nursery has been killed; the next attempt starts another one
            ours.close()
            await asyncio.sleep(_RETRY_SECONDS)
            self._replace(index, deaths + 1, failure, f"it cannot be started: {type(error).__name__}")
            return
        self._cores[index] = _Core(index, process, ours, deaths, failure)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._listen, self._cores[index])

    def _abandon(self, nursery: int | None) -> None:
        """Kills what `startup` has started, and with it whatever waits for that: all but the nursery that was there before."""
        with suppress(ProcessLookupError):
            if (started := _nursery()) is not None and started != nursery:
                os.kill(started, signal.SIGKILL)
            if self._describer is not None and self._describer.pid is not None:
                os.kill(self._describer.pid, signal.SIGKILL)

    def _fork(self, index: int, line: Connection, seed: tuple[int, ...]) -> ForkServerProcess:
        # Imported here, by name only: the orchestrator itself must not import torch.
        from genkidama.child.records import start_core

        process = self._context.Process(target=start_core, args=(index, self.experiment, self.memory, line, seed), daemon=True)
        with _starting(self.experiment):
            process.start()
        return process

    def _listen(self, core: _Core) -> None:
        """A core has said something, or is gone."""
        try:
            while core.line.poll():
                self._heard(core, core.line.recv_bytes())
        except (EOFError, OSError):
            self._lost(core)

    def _heard(self, core: _Core, record: bytes) -> None:
        if not record:  # it waits at the semaphore, its element lit by itself
            if not core.present:
                core.present = True
                self._semaphore.enter(core.index)
            if self._semaphore.all_lit:
                self._wake.set()
            return
        kind, episode_return, length = RECORD.unpack_from(record)
        if kind == EPISODE:
            core.deaths = 0
            self._counts.steps += length
            self._counts.returns.append(episode_return)
            if self._free and 0 < self.experiment.child.exchange_steps <= self._counts.steps:
                self._wake.set()
        elif kind == FAILED:
            core.failure = record[RECORD.size :].decode(errors="replace")

    def _lost(self, core: _Core) -> None:
        asyncio.get_running_loop().remove_reader(core.line.fileno())
        core.line.close()
        self._semaphore.light(core.index)
        if self._ending:
            return
        core.process.join()
        code = core.process.exitcode
        deaths = core.deaths + 1
        if code == RECYCLED:
            deaths = 0
        else:
            log.warning("core lost", core=core.index, exit_code=code, reason=core.failure or "killed")
        del self._cores[core.index]
        if self._semaphore.all_lit:
            self._wake.set()
        self._replace(core.index, deaths, core.failure, core.failure or f"exit code {code}")

    def _replace(self, index: int, deaths: int, failure: str, reason: str) -> None:
        """Starts a core again after its `deaths`-th death in a row, of `reason`; `failure` is what it has said itself."""
        if self._ending:
            return
        if deaths >= _FATAL_DEATHS:
            self._fatal = EnvironmentFailure(f"core {index} died {deaths} times without ending an episode: {reason}")
            self._wake.set()
            return
        restart = asyncio.get_running_loop().create_task(self._start(index, deaths, failure))
        self._restarts.add(restart)
        restart.add_done_callback(self._restarts.discard)

    async def due(self) -> None:
        settings = self.experiment.child
        if self._free and settings.exchange_seconds:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), settings.exchange_seconds)
        elif self._free:
            await self._wake.wait()
        else:
            # A core lights its element first and then says so; by then the exchange may be under way or over.
            while not self._semaphore.all_lit and self._fatal is None:
                self._wake.clear()
                await self._wake.wait()
            for core in list(self._cores.values()):
                self._listen(core)  # what it did, it has said before it lit its element
        self._wake.clear()
        if self._fatal is not None:
            raise self._fatal

    def snapshot(self) -> Vector:
        return self.memory.weights.copy()

    def take_work(self) -> Work:
        counts, self._counts = self._counts, _Counts()
        return Work(counts.steps, counts.returns)

    def blend(self, sent: Vector, parent: Vector, beta: float) -> None:
        if not beta:
            return
        weights = self.memory.weights
        if self._free:
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
        if self._free:
            return
        for index in self._semaphore.release():
            try:
                self._cores[index].line.send_bytes(b"")
            except (OSError, KeyError):
                continue  # it has just died; the reader of its line notices and lights its element

    async def shutdown(self) -> None:
        self._ending = True
        for task in list(self._restarts):
            await task
        if self._memory is not None:
            self._memory.stop[0] = True
        loop = asyncio.get_running_loop()
        for core in self._cores.values():
            if not core.line.closed:
                loop.remove_reader(core.line.fileno())
                core.line.close()
        await asyncio.to_thread(self._end_processes)
        self._cores.clear()
        if self._memory is not None:
            self._memory.close()

    def _end_processes(self) -> None:
        deadline = time.monotonic() + _GRACE_SECONDS
        for process in [core.process for core in self._cores.values()]:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()
            process.close()


@contextmanager
def _starting(experiment: Experiment) -> Iterator[None]:
    """Around every start of a process.

    A nursery that is born now is told what to warm up with. Multiprocessing is kept from importing the
    caller's main script in every core: cores run code of this package only, so a research script needs
    no `if __name__ == "__main__"`, and a core does not carry what the script imports. And Ctrl-C, which
    reaches a whole terminal, interrupts nothing that is started here: the orchestrator decides what ends when.
    """
    with _lock:
        variables = {**_CORE_VARIABLES, EXPERIMENT_VARIABLE: msgspec.json.encode(experiment.to_dict()).decode()}
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        resource_tracker.ensure_running()  # it unblocks SIGINT when it starts, which the nursery's start would have it do
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            sys.modules["__main__"] = main
            for name, value in before.items():  # whoever embeds a child has an environment of its own
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _nursery() -> int | None:
    """The nursery's process number, which multiprocessing tells nobody."""
    number: int | None = getattr(_forkserver, "_forkserver_pid", None)
    return number
