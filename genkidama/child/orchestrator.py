"""CoreOrchestrator: a child's shared memory and its core processes. The backend `"hogwild"`.

The cores are a `WorkerPool`, which starts, awaits, replaces and counts them. An exchange reads and
writes `SharedWeights`. The orchestrator never computes and imports no torch: a process that does
describes the network to it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, Any, NamedTuple

from genkidama.child.backend import Work
from genkidama.child.capacity import (
    CORE_BYTES,
    GROWTH_BYTES,
    RESERVE_BYTES,
    child_bytes,
    cores_that_fit,
)
from genkidama.child.shared_memory import (
    DiagnosticsReader,
    Layout,
    SharedMemory,
    SharedWeights,
    check_replay,
    progress_checksum,
)
from genkidama.child.worker_pool import PooledBackend, WorkerPool
from genkidama.config.decoding import check_least
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import megabytes
from genkidama.config.schedules import following
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.forms import tensor_setting
from genkidama.protocol.diagnostics import CycleReader
from genkidama.protocol.session import with_free_exchange
from genkidama.protocol.vector import Signature, Vector
from genkidama.runtime.forkserver import ForkedProcess, ForkServer
from genkidama.runtime.log import get_logger
from genkidama.runtime.machine import ONE_THREAD, available_bytes
from genkidama.runtime.process import GRACE_SECONDS, in_thread, without_timeout
from genkidama.runtime.shared_block import size_of

#: Attempts to have the network described by a process, which may die, and the pause in between.
_ATTEMPTS = 3
_RETRY_SECONDS = 0.2

#: Bytes of a traceback that are kept.
_MOST_BYTES = 1 << 20

#: Seconds that the first reset of an environment may take, if `child.hang_seconds` is 0.
_LONGEST_RESET = 86_400.0

#: `chunk`: the shortest of this many answers is the link's latency, whatever else the CPU had to
#: do. Up to this part of a chunk, cores wait for it.
_WAITS = 16
_SHORT = 1 / 16

#: The entry points of the processes that this module starts.
_PREPARED = "genkidama.child.core_forkserver:run_prepared"
_CORE = "genkidama.child.core:run_core"

log = get_logger()


#: Forks cores. They never use a GPU. If torch saw one, the backward pass in the forkserver would
#: start CUDA's autograd threads there, and a process with threads must not be forked.
CORES = ForkServer("genkidama.child.core_forkserver", {**ONE_THREAD, "CUDA_VISIBLE_DEVICES": ""})


#: The first core of this program's child, which the program that has started that has prepared.
_inherited: list[PreparedCore] = []


def inherit(words: str) -> None:
    """Takes over a core, `PreparedCore` in words, for the first child of this program."""
    _inherited.append(PreparedCore.inherited(words))


class _DescriberDied(EnvironmentFailure):
    """The process that should have described the network is dead."""


class Description(NamedTuple):
    """A network and its environment, as a core describes them."""

    #: The signature's entries, and the initial vector.
    entries: Any
    vector: bytes
    #: Of the memory with one core.
    layout: Layout
    #: As `genkidama.learning.spaces.describe_spaces` gives them.
    spaces: Any
    #: Bytes that a core takes for itself, if that is known.
    cost: int | None


class PreparedCore:
    """A core before there is a memory to work on: it builds its environments, once, and describes
    the network. `core_forkserver.run_prepared` is its side of the conversation.
    """

    def __init__(
        self, process: ForkedProcess, pipe: Connection, said: IO[bytes] | None = None
    ) -> None:
        self.process, self.pipe = process, pipe
        #: What it writes before there is a child.
        self._said = said
        self._began = time.monotonic()

    @classmethod
    def start(cls, experiment: Experiment, check: bool = False) -> PreparedCore:
        """Starts one. With a check, before there is a child, it tries a few random steps of a
        user's environment. EOFError, OSError: not possible this time."""
        ours, theirs = Pipe()
        said = TemporaryFile() if check else None  # noqa: SIM115
        streams = None if said is None else (theirs.fileno(), said.fileno(), said.fileno())
        with theirs:
            try:
                arguments = (experiment, theirs, check)
                process = CORES.start(_PREPARED, arguments, experiment, streams)
            except BaseException:
                ours.close()
                raise
        return cls(process, ours, said)

    def built(self, say: Callable[[float], None] = lambda _: None) -> list[str]:
        """Waits until its environments are built; `say` is told each second how long it takes.

        Returns what the check has found that one may not think of.

        Raises:
            ConfigurationError: they cannot be built.
            EOFError, OSError: it is dead.
        """
        while not self.pipe.poll(1.0):
            say(time.monotonic() - self._began)
        notices: list[str] = self._take()[1]
        return notices

    def describe(self, experiment: Experiment) -> Description | None:
        """Its description of the network; None if that has another environment than its own.

        Raises:
            ConfigurationError: the network cannot be built.
            EOFError, OSError: it is dead.
        """
        self.pipe.send(experiment)
        if (answer := self._take())[0] != "ok":
            return None
        _, entries, vector, layout, spaces = answer
        return Description(entries, vector, layout, spaces, self.pipe.recv())

    @classmethod
    def inherited(cls, words: str) -> PreparedCore:
        """One that another program has started; see `descriptors`."""
        pid, answers, alive, pipe = map(int, words.split(","))
        pipes = Connection(answers, writable=False), Connection(alive, readable=False)
        return cls(ForkedProcess(*pipes, pid), Connection(pipe))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that a program inherits which is to have it."""
        return (*self.process.descriptors, self.pipe.fileno())

    def __str__(self) -> str:
        return ",".join(map(str, (self.process.pid, *self.descriptors)))

    def leave(self) -> None:
        """Leaves it to the program that has inherited it."""
        self.pipe.close()
        self.process.close()
        if self._said is not None:
            self._said.close()

    def begin(self, seed: int) -> None:
        """Has it begin its first episodes."""
        self.pipe.send(seed)

    def begun(self, seconds: float) -> None:
        """Waits until it has. EOFError, OSError: it is dead, or has not within this time."""
        if not self.pipe.poll(seconds):
            raise TimeoutError
        self._take()

    def work(
        self, index: int, experiment: Experiment, memory: SharedMemory, pipe: Connection, seed: Any
    ) -> ForkedProcess:
        """Has it be the core of this index. EOFError, OSError: it is dead."""
        try:
            self.pipe.send((index, experiment, memory.layout, seed))
            with without_timeout():
                for descriptor in (memory.descriptor, pipe.fileno(), 2):
                    reduction.send_handle(self.pipe, descriptor, self.process.pid)
        except OSError:
            self.end()
            raise
        self.pipe.close()
        return self.process

    def interrupt(self) -> None:
        """Has a thread that waits for it learn that it is gone."""
        with suppress(OSError), socket.socket(fileno=os.dup(self.pipe.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Ends it within its grace."""
        self.pipe.close()
        self.process.end(GRACE_SECONDS)
        self.leave()

    def _take(self) -> tuple[Any, ...]:
        answer: tuple[Any, ...] = self.pipe.recv()
        if answer[0] == "error":
            raise ConfigurationError(answer[1] + self._kept())
        return answer

    def _kept(self) -> str:
        """The place of a traceback, if it has written one and there is no log of a child."""
        text = b"" if self._said is None else os.pread(self._said.fileno(), _MOST_BYTES, 0)
        if b"Traceback (most recent call last):" not in text:
            return ""
        with NamedTemporaryFile(prefix="genkidama-", suffix=".log", delete=False) as file:
            file.write(text)
        return f"; the whole traceback is in {file.name}"


class CoreOrchestrator(PooledBackend):
    """Owns a child's cores. See `Backend` for what each method promises.

    Args:
        experiment: all settings.
        cores: core processes to run, at least 1. If `child.cores` is "auto" there will be fewer
            where they would not fit into the memory; after `startup`, the attribute of this name is
            how many there are.
        name: the child's name; it makes its cores' random numbers differ from other children's.
    """

    #: As `progress_checksum` takes them.
    _blocks = 0

    def __init__(self, experiment: Experiment, cores: int, name: str = "child") -> None:
        check_least(cores=cores)
        self.experiment = with_free_exchange(experiment)
        self.cores = cores
        self.name = name
        self._pool = self._make_pool()
        self._memory: SharedMemory | None = None
        #: `chunk`: seconds from a request of θ_P to its answer, of the newest ones.
        self._waits: deque[float] = deque(maxlen=_WAITS)
        #: Whether the cores did not wait for the answer that is under way.
        self._acting_on = False
        #: The cores that have made updates since the last exchange.
        self._updated: set[int] = set()
        #: By index: the cores that have not begun to work.
        self._prepared: dict[int, PreparedCore] = {}
        self._stopping = False
        #: The core that was started last.
        self._newest: ForkedProcess | None = None

    @property
    def memory(self) -> SharedMemory:
        assert self._memory is not None, "startup() comes first"
        return self._memory

    async def startup(self) -> Signature:
        self.signature, layout, vector = await in_thread(self._prepare_patiently, self._interrupt)
        self._memory = SharedMemory(layout)
        self._weights = SharedWeights(self._memory, vector)
        self._diagnostics = DiagnosticsReader(self.experiment, self.cores)
        period = self.experiment.environment.period
        self._cycles = CycleReader(period) if period else None
        return self.signature

    def _interrupt(self) -> None:
        """Ends the preparation, in which a small machine imports torch for half a minute."""
        self._stopping = True
        for core in list(self._prepared.values()):
            core.interrupt()

    def _prepare_patiently(self) -> tuple[Signature, Layout, bytes]:
        """`_prepare`, again if a process for it was killed, unless this child stops."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._prepare()
            except _DescriberDied as error:
                if attempt == _ATTEMPTS or self._stopping:
                    raise
                log.warning("starts again", child=self.name, reason=str(error))
                # A forkserver that was killed is only replaced once the system has noted its end.
                time.sleep(_RETRY_SECONDS)
        raise AssertionError

    def _prepare(self) -> tuple[Signature, Layout, bytes]:
        """Prepares all cores, of which the first describes the network.

        Returns the signature, the layout of the memory, and the initial vector.
        """
        tight = self._tight()
        try:
            entries, vector, layout, _, cost = self._describe()
        except ConfigurationError:
            self._prepared.pop(0).end()
            raise
        except (EOFError, OSError):
            first = self._prepared.pop(0, None)
            if self._stopping and first is not None and first.process.poll() is None:
                first.process.kill()
                CORES.close()  # it may be busy for long
            code = ""
            if first is not None:
                code = f" with exit code {first.process.wait()}"
                first.leave()
            kind = EnvironmentFailure if tight else _DescriberDied
            torch = tensor_setting(self.experiment) and ", and `python -c 'import torch'`"
            raise kind(
                f"the process that builds the network died{code}{tight}; "
                f"try the environment {self.experiment.environment.id!r} by itself{torch}"
            ) from None
        self.cores = self._fitting(cost, size_of(layout.for_cores(0)))
        layout = layout.for_cores(self.cores)
        check_replay(self.experiment, layout)
        with suppress(EOFError, OSError):  # it is started again when it is to work
            for index in range(1, self.cores):
                self._prepared[index] = PreparedCore.start(self.experiment)
        self._with_each(lambda index, core: core.built(self._say_building) if index else None)
        self._with_each(lambda index, core: core.begin(self._first_seed(index)))
        end = time.monotonic() + (self.experiment.child.hang_seconds or _LONGEST_RESET)
        self._with_each(lambda _, core: core.begun(max(0.0, end - time.monotonic())))
        return Signature.of(entries), layout, vector

    def _with_each(self, act: Callable[[int, PreparedCore], Any]) -> None:
        """Does something with each prepared core. One that is dead, or cannot build its
        environments, is started again when it is to work, and reports that."""
        for index, core in list(self._prepared.items()):
            try:
                act(index, core)
            except (ConfigurationError, EOFError, OSError):
                self._prepared.pop(index).end()

    def _first_seed(self, index: int) -> int:
        # NumPy's random numbers would take a megabyte of this process, which needs no others.
        seed = (self.experiment.seed, self.name, index)
        return zlib.crc32(repr(seed).encode()) % 2**31

    def _describe(self) -> Description:
        """As `PreparedCore.describe`, of core 0."""
        while _inherited:
            inherited = self._prepared[0] = _inherited.pop()
            with suppress(EOFError, OSError):
                if (found := inherited.describe(self.experiment)) is not None:
                    return found
            self._prepared.pop(0).end()
        first = self._prepared[0] = PreparedCore.start(self.experiment)
        first.built(self._say_building)
        found = first.describe(self.experiment)
        assert found is not None
        return found

    def _say_building(self, seconds: float) -> None:
        """Notes in the log that environments are being built, after 4, 8, 16, … seconds."""
        if (whole := round(seconds)) >= 4 and whole & (whole - 1) == 0:
            log.info("building the environment", child=self.name, seconds=whole)

    def _tight(self) -> str:
        """Warns if memory is short even for the forkserver; returns why it may die then."""
        available = None if CORES.running else available_bytes()
        takes = child_bytes(bool(tensor_setting(self.experiment)))
        if available is None or available >= takes:
            return ""
        needs, free = megabytes(takes), megabytes(available)
        reason = f"a child needs {needs} before its first core, {free} are free"
        log.warning(reason, child=self.name)
        return f": {reason}"

    def _fitting(self, cost: int | None, shared: int) -> int:
        """The number of cores to run. If not all fit, it logs why. `cost` are the bytes that a core
        takes for itself, None if not measured; `shared` those that all share, not taken yet."""
        available, needs = available_bytes(), (CORE_BYTES if cost is None else cost) + GROWTH_BYTES
        reserve = shared + RESERVE_BYTES
        fit = cores_that_fit(available, needs, self.cores, reserve)
        if available is None or self.cores * needs + reserve <= available:
            return self.cores
        free = megabytes(max(0, available - reserve))
        beside = f"{free} are free beside a reserve of {megabytes(reserve)}"
        why = f"a core needs {megabytes(needs)}, {beside}"
        if self.experiment.child.cores != "auto":
            text = f"{self.cores} cores as told, though {fit} would fit: {why}"
            log.warning(text, child=self.name)
            return self.cores
        if needs + reserve > available:
            text = f"1 of {self.cores} cores, and that may be too much: {why}"
            log.warning(text, child=self.name)
        else:
            log.info(f"{fit} of {self.cores} cores: {why}", child=self.name)
        return fit

    async def begin(self, weights: Vector | None, version: int = 0) -> None:
        self._weights.begin(weights)
        await self._pool.begin(self.cores, version, self.memory.semaphore)

    def _make_pool(self) -> WorkerPool:
        """The pool of its processes; the plug-in actors has another kind."""
        return WorkerPool(self.experiment, "core", self.name, self)

    def start_worker(self, index: int, pipe: Connection, seed: tuple[int, ...]) -> ForkedProcess:
        if (prepared := self._prepared.pop(index, None)) is not None:
            return prepared.work(index, self.experiment, self.memory, pipe, seed)
        arguments = (index, self.experiment, self.memory, pipe, seed)
        self._newest = CORES.start(_CORE, arguments, self.experiment)
        return self._newest

    def trace(self, index: int) -> int | None:
        if self._cycles is not None and self.memory.resetting[index, 0]:
            return None  # somebody may have to bring the robot back
        return progress_checksum(self.memory, index, self._blocks)

    async def due(self) -> None:
        await self._pool.due()

    def snapshot(self) -> Vector | None:
        if self.experiment.role == "act":
            return None
        vector = self._weights.snapshot()
        averaging = self.memory.averaging
        if averaging[1] > _SHORT * averaging[3] > 0.0:
            # The link is slow: they act on and take θ_P over when it comes.
            averaging[4] += 1.0
            self._acting_on = True
            self._pool.release()
        return vector

    def release(self) -> None:
        averaging = self.memory.averaging
        # One that has acted on may wait already: what has come is as new as what it would ask for.
        if self._pool.pulls or (self._acting_on and self.memory.semaphore.any()):
            self._pool.opened()
            averaging[5] = averaging[4]
        elif not self._acting_on:
            averaging[4] += 1.0
        self._acting_on = False
        self._pool.release()

    @property
    def pulls(self) -> bool:
        return self._pool.pulls

    @property
    def hidden(self) -> tuple[float, float]:
        chunk = float(self.memory.averaging[3])
        early = float(self.memory.averaging[1]) if self._pool.pulls else chunk * self._acting_on
        return min(early, chunk), chunk

    def weights(self) -> Vector:
        return self.memory.weights

    def waited(self, seconds: float) -> None:
        self._waits.append(seconds)

    def take(self, weights: Vector | None) -> None:
        if weights is not None:
            self.memory.weights[:] = weights
        self._renewed()

    def _renewed(self) -> None:
        """Lets cores see that the parent has answered."""
        averaging = self.memory.averaging
        averaging[0] += 1.0
        averaging[1] = min(self._waits, default=0.0)
        if self._pool.asked:  # while a push was under way, whose answer is as new
            self._pool.opened()
            averaging[5] = averaging[4]

    def averaged(self, children: float) -> None:
        """The number of children that push lately, for the cores."""
        self.memory.averaging[2] = children

    def rest(self, share: float) -> tuple[int, int] | None:
        """Has this share of each process' lanes rest from its next batch on; 0 lets all play.

        Returns the lanes that play, and all lanes; None where none can rest.
        """
        environment = self.experiment.environment
        together = environment.vectorized or environment.prefix
        if environment.lanes == 1 or together or self.experiment.replay_steps:
            return None
        self.memory.resting[0] = share
        lanes = following(self.experiment, float(self.memory.averaging[2])).lanes
        return max(1, round(lanes * (1.0 - share))), round(lanes)

    def take_work(self) -> Work:
        work = self._pool.take_work()
        memory = self.memory
        work.measures = self._diagnostics.figures(memory.diagnostics, *memory.progress.tolist())
        if "learning_rate" in work.measures:
            follows = following(self.experiment, float(memory.averaging[2]))
            work.measures["learning_rate"] *= follows.rate
        if self._cycles is not None:
            work.measures |= self._cycles.figures(memory.cycles)
        updates, self._pool.updates = self._pool.updates, {}
        self._updated.update(updates)
        if updates:
            work.measures["loss"] = sum(updates.values()) / len(updates)
        return work

    def gradient(self) -> Vector | None:
        updated = sorted(self._updated)
        self._updated.clear()
        return self.memory.gradients[updated].mean(0) if updated else None

    def blend(self, sent: Vector, parent: Vector, beta: float) -> None:
        # Free cores have learned since the snapshot.
        self._weights.blend(sent, parent, beta, self.experiment.child.exchange == "free")
        self._renewed()

    def reset(self, weights: Vector) -> None:
        self._weights.reset(weights)
        for name, array in self.memory.layout.arrays.items():
            if array.reset:
                getattr(self.memory, name)[:] = 0
        self._renewed()

    def heard(self, version: int) -> None:
        """θ_P's last version, for the cores."""
        self.memory.progress[1] = version
        self.alive()

    def alive(self) -> None:
        """Tells environments with a clock that the parent is there."""
        if self._cycles is not None:
            self.memory.answered[0] = time.monotonic()

    async def shutdown(self) -> None:
        if self._memory is not None:
            self._memory.stop[0] = True
        for core in self._prepared.values():
            await asyncio.to_thread(core.end)
        if self._newest is not None and not self._newest.lives:
            CORES.close()  # it hangs in the environment, or imports torch for long
        await self._pool.shutdown()
        if self._memory is not None:
            self._memory.close()
