"""What several tests need: real processes that leave traces, fake backends, fake parents."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import psutil
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from benchmarks.processes import PATIENCE, ROOT
from benchmarks.processes import free_port as free_port
from benchmarks.processes import history as history
from benchmarks.processes import until as until
from benchmarks.started import Started
from genkidama.child.backend import Work
from genkidama.child.child import Child
from genkidama.config.allowlist import modules
from genkidama.config.experiment import Experiment
from genkidama.parent import Parent
from genkidama.protocol.messages import Reply, Request, decode_request, encode
from genkidama.protocol.shard import WHOLE, Shard
from genkidama.protocol.vector import DTYPE, Signature, Vector, blend
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runs.run import Run
from genkidama.runtime import forkserver
from genkidama.server.parameter_server import Snapshot


def python(
    *words: str | Path, folder: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A program of Python's that has ended, as `python("-c", code)`, and its output as text."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


async def eventually(
    condition: Callable[[], Any], what: str = "", seconds: float = PATIENCE
) -> Any:
    """`until` for code that runs in the same loop as what it waits for."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what or condition}"
        await asyncio.sleep(0.005)
    return found


def merged(settings: dict[str, Any], **sections: dict[str, Any]) -> Experiment:
    """An experiment of these settings; sections are merged into them key by key."""
    changed = {name: {**settings.get(name, {}), **section} for name, section in sections.items()}
    return Experiment.from_dict({**settings, **changed})


def small(**sections: dict[str, Any]) -> Experiment:
    """CartPole with a tiny network; sections are merged into it key by key."""
    settings: dict[str, Any] = {
        "name": "small",
        "environment": {"id": "CartPole-v1"},
        "network": {"hidden": [8]},
        "algorithm": {"name": "a3c", "batch_size": 16},
        "child": {"exchange": "free", "exchange_seconds": 0.05, "cores": 1},
        "stop": {},
    }
    return merged(settings, **sections)


def untrained(path: Path, experiment: Experiment, version: int = 1) -> Run:
    """A run directory as a parent leaves it, with weights that nobody has trained."""
    from genkidama.learning.environments import make_environment
    from genkidama.learning.model import Model

    model = Model(experiment, make_environment(experiment.environment))
    path.mkdir(parents=True, exist_ok=True)
    (path / "experiment.toml").write_text(experiment.to_toml())
    folder = CheckpointFolder(path / "checkpoints")
    folder.prepare()
    counts = {
        "exchanges": version,
        "updates": float(version),
        "episodes": 2 * version,
        "steps": 50 * version,
        "seconds": 1.5 * version,
    }
    snapshot = Snapshot(
        version=version, alpha=0.5, beta=0.5, experiment=experiment.to_dict(), **counts
    )  # type: ignore[arg-type]
    folder.save_latest(model.signature, model.numbers, snapshot)
    return Run(path, modules(experiment.to_dict()))


# Real processes.


@contextmanager
def starting(folder: Path) -> Iterator[Callable[..., Started]]:
    """A function that starts `python -m ARGUMENTS…` in `folder`; the end kills what is left.

    A single argument is a whole command line.
    """
    all_started: list[Started] = []

    def start(*arguments: object) -> Started:
        words = [*map(str, arguments)] if len(arguments) > 1 else shlex.split(str(arguments[0]))
        all_started.append(Started(folder, tuple(words)))
        return all_started[-1]

    try:
        yield start
    finally:
        for started in all_started:
            started.end()


@dataclass
class Ended:
    code: int
    out: str
    err: str


def command(folder: Path, *arguments: object, seconds: float = 60.0) -> Ended:
    """Runs `python -m ARGUMENTS…` in `folder` to its end; arguments as in `starting`."""
    with starting(folder) as start:
        process = start(*arguments)
        return Ended(process.wait(seconds), process.out, process.err)


@contextmanager
def one_forkserver() -> Iterator[None]:
    """Has all tasks of this process be forked from one forkserver, as a command has one.

    Otherwise each evaluation starts a program that imports what it needs.
    """
    forkserver.share()
    try:
        yield
    finally:
        forkserver.leave_shared()


def gone(*pids: int) -> bool:
    """True once all have ended, if only as zombies: an orphan stays one where PID 1 reaps none."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
    return True


def shared_memory(pid: int, *more: int) -> set[str]:
    """The files in /dev/shm that these processes have mapped. What has no name is in none, and goes
    with its last process; a name stays."""
    files = [Path(f"/proc/{each}/maps") for each in (pid, *more)]
    maps = "".join(file.read_text() for file in files if file.exists())
    return {line for line in re.findall("/dev/shm/.*", maps) if not line.endswith(" (deleted)")}


# A backend that learns nothing.


class ConstantBackend:
    """Moves all its weights by the same amount before each exchange, and notes what it is told.

    `network.options` may set `size` (of the vector), `first` (its initial value), `gain` (what
    training adds before each exchange) and `seconds` (how long that takes).
    """

    def __init__(self, experiment: Experiment, cores: int, name: str) -> None:
        options = {
            "size": 4,
            "first": 0.0,
            "gain": 1.0,
            "seconds": 0.002,
            **experiment.network.options,
        }
        self.signature = Signature.of([("constant", (options["size"],))])
        self.weights: Vector = np.full(options["size"], options["first"], DTYPE)
        self.gain, self.seconds = options["gain"], options["seconds"]
        self.experiment, self.cores, self.name = experiment, cores, name
        self.exchanges = 0
        self.progress: list[float] = []
        #: Each blend: what was sent, what the parent answered, what came of it.
        self.blends: list[tuple[float, float, float]] = []
        self.resets: list[float] = []
        self.work = Work()
        self.failure: Exception | None = None
        self.begun = self.ended = False

    async def startup(self) -> Signature:
        return self.signature

    async def begin(self, weights: Vector | None, version: int = 0) -> None:
        self.begun = True
        if weights is not None:
            self.weights[:] = weights

    async def due(self) -> None:
        await asyncio.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure
        self.weights += DTYPE.type(self.gain)
        self.work.steps += 10
        self.work.returns.append(float(self.exchanges))
        self.exchanges += 1

    def snapshot(self) -> Vector:
        return self.weights.copy()

    def take_work(self) -> Work:
        work, self.work = self.work, Work()
        return work

    def blend(self, sent: Vector, parent: Vector, beta: float) -> None:
        if np.array_equal(self.weights, sent):
            blend(self.weights, parent, beta)
        else:  # it has gone on since
            self.weights += DTYPE.type(beta) * (parent - sent)
        self.blends.append((float(sent[0]), float(parent[0]), float(self.weights[0])))

    def reset(self, weights: Vector) -> None:
        self.weights[:] = weights
        self.resets.append(float(weights[0]))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {"weights": self.weights.copy()}

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self.weights[:] = state["weights"]

    def set_progress(self, progress: float) -> None:
        self.progress.append(progress)

    def release(self) -> None:
        pass

    async def shutdown(self) -> None:
        self.ended = True


CONSTANT = f"{__name__}:ConstantBackend"


def constant(**sections: dict[str, Any]) -> Experiment:
    """An experiment that every child meets with a `ConstantBackend`."""
    return small(**{**sections, "child": {"backend": CONSTANT, **sections.get("child", {})}})


@asynccontextmanager
async def running(
    experiment: Experiment, out: Path, listen: str = "127.0.0.1:0", part: Shard = WHOLE
) -> AsyncIterator[Parent]:
    """A parent that serves in this loop and is shut down at the end."""
    parent = Parent(experiment, out=out, listen=listen, part=part)
    await parent.startup()
    serving = asyncio.create_task(parent.serve())
    try:
        yield parent
    finally:
        parent.stop()
        await serving
        await parent.shutdown()


class Serving:
    """A child that serves in this loop: `async with Serving(child)`.

    It is stopped at the end, and its error is raised there.
    """

    def __init__(self, child: Child) -> None:
        self.child = child

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.child.serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.child.stop()
        async with asyncio.timeout(PATIENCE):
            await self.task

    @property
    def backend(self) -> ConstantBackend:
        assert isinstance(self.child.backend, ConstantBackend)
        return self.child.backend

    async def exchanged(self, count: int) -> None:
        """Waits until there have been `count` exchanges, answered or not, since now."""
        await eventually(lambda: self.task.done() or self.child.backend is not None, "a backend")
        goal = self.backend.exchanges + count
        await eventually(lambda: self.task.done() or self.backend.exchanges >= goal, "exchanges")


def url(address: tuple[str, int]) -> str:
    return f"ws://{address[0]}:{address[1]}"


# A parent that says what a test tells it to say.

Answer = Reply | bytes | str | None


@dataclass
class FakeParent:
    """Answers each request with what `answer` gives: a reply, raw bytes, a text, or nothing."""

    answer: Callable[[Request], Answer]
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    connections: list[ServerConnection] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._converse, "127.0.0.1", 0, compression=None, max_size=None, close_timeout=0.1
        )
        self.url = url(next(iter(self._server.sockets)).getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _converse(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        with suppress(ConnectionClosed):
            while True:
                frame = await connection.recv()
                assert isinstance(frame, bytes)
                request = decode_request(frame)
                self.requests.append(request)
                answer = self.answer(request)
                if answer is not None:
                    await connection.send(
                        answer if isinstance(answer, bytes | str) else encode(answer)
                    )
