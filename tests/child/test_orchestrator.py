"""CoreOrchestrator with real core processes, and the contract that every backend keeps."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import msgspec
import numpy as np
import psutil
import pytest

from genkidama.child import child as child_module
from genkidama.child import orchestrator as module
from genkidama.child.backend import Backend, make_backend
from genkidama.child.capacity import GROWTH_BYTES
from genkidama.child.child import Child
from genkidama.child.orchestrator import CoreOrchestrator, PreparedCore
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.protocol.vector import Signature
from genkidama.runtime.forkserver import ForkServer
from genkidama.runtime.process import GRACE_SECONDS, WorkerProcess
from tests.helpers import (
    CONSTANT,
    PATIENCE,
    Serving,
    eventually,
    history,
    python,
    running,
    shared_memory,
    small,
    url,
)
from tests.runtime.test_shared_block import descriptors

EXCHANGES = pytest.mark.parametrize("exchange", ["episode", "free"])


def faulty(exchange: str = "free", **options: Any) -> Experiment:
    return small(
        environment={"id": "tests.tiny:Faulty", "options": options}, child={"exchange": exchange}
    )


@pytest.fixture(scope="module", autouse=True)
def _nursery() -> None:
    """Lets the nursery of all tests warm up with an environment that survives it."""

    async def build() -> None:
        orchestrator = CoreOrchestrator(small(), 1)
        await orchestrator.startup()
        await orchestrator.shutdown()

    asyncio.run(build())


@asynccontextmanager
async def begun(experiment: Experiment, cores: int = 2) -> AsyncIterator[CoreOrchestrator]:
    """An orchestrator whose cores train from their initial weights, shut down at the end."""
    orchestrator = CoreOrchestrator(experiment, cores)
    try:
        await orchestrator.startup()
        await orchestrator.begin(None)
        yield orchestrator
    finally:
        async with asyncio.timeout(10):
            await orchestrator.shutdown()


async def turn(backend: Backend, seconds: float = 30.0) -> int:
    """One exchange with nobody; gives the episodes that were played."""
    async with asyncio.timeout(seconds):
        await backend.due()
    work = backend.take_work()
    backend.release()
    return len(work.returns)


async def turns(backend: Backend, episodes: int) -> None:
    while episodes > 0:
        episodes -= await turn(backend)


class Draws(gymnasium.Env[Any, Any]):
    """An episode is one step, which pays what the reset has drawn."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._drawn = self.np_random.random()
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), self._drawn, True, False, {}


async def test_a_resumed_run_draws_other_random_numbers_than_at_its_start() -> None:
    async def drawn(version: int) -> list[float]:
        orchestrator = CoreOrchestrator(small(environment={"id": f"{__name__}:Draws"}), 1)
        try:
            await orchestrator.startup()
            await orchestrator.begin(None, version)
            async with asyncio.timeout(PATIENCE):
                await orchestrator.due()
            return orchestrator.take_work().returns[:5]
        finally:
            await orchestrator.shutdown()

    first, again, resumed = [await drawn(version) for version in (0, 0, 7)]
    assert first == again and not {*first} & {*resumed}


# The contract.


@pytest.fixture(params=["hogwild-episode", "hogwild-free", f"{CONSTANT}-free"])
def plugged(request: pytest.FixtureRequest) -> Experiment:
    """An experiment for each backend but those of plug-ins, whose tests import the contract."""
    name, _, exchange = request.param.rpartition("-")
    return small(child={"backend": name, "exchange": exchange})


class TestContract:
    """What `Backend` promises, kept by all that are plugged in."""

    @pytest.fixture
    async def backend(self, plugged: Experiment) -> AsyncIterator[Backend]:
        backend = make_backend(plugged, 2, "contract")
        yield backend
        async with asyncio.timeout(10):
            await backend.shutdown()

    async def test_it_keeps_its_promises(self, plugged: Experiment, backend: Backend) -> None:
        """One after the other: what takes time is that a backend starts."""
        signature = await backend.startup()
        await self.before_it_begins_its_weights_are_read_and_written(backend, signature)
        await self.it_learns_from_given_weights_and_counts_what_it_did(backend, signature)
        # The state brings a restarted child back.
        state = backend.state()
        successor = make_backend(plugged, 2, "contract")
        try:
            await successor.startup()
            successor.restore(state)
            again = successor.state()
            assert state.keys() == again.keys()
            for name, array in state.items():
                np.testing.assert_array_equal(again[name], array)
        finally:
            await successor.shutdown()

    async def before_it_begins_its_weights_are_read_and_written(
        self, backend: Backend, signature: Signature
    ) -> None:
        initial = backend.snapshot()
        assert initial.shape == (signature.size,)
        assert initial.dtype == np.float32
        assert np.isfinite(initial).all()
        # Nothing trains yet.
        await asyncio.sleep(0)
        np.testing.assert_array_equal(backend.snapshot(), initial)
        assert backend.take_work().steps == 0
        # The blend moves towards the parent.
        parent = np.linspace(-1.0, 1.0, signature.size, dtype=np.float32)
        for beta in (0.0, 0.25, 1.0):
            sent = backend.snapshot()
            backend.blend(sent, parent, beta)
            expected = (1.0 - beta) * sent + beta * parent
            np.testing.assert_allclose(backend.snapshot(), expected, atol=1e-6)
        # A reset takes the given weights, and a snapshot is a copy.
        snapshot = backend.snapshot()
        kept = snapshot.copy()
        backend.reset(np.full(signature.size, 3.0, np.float32))
        np.testing.assert_array_equal(backend.snapshot(), np.full(signature.size, 3.0))
        np.testing.assert_array_equal(snapshot, kept)

    async def it_learns_from_given_weights_and_counts_what_it_did(
        self, backend: Backend, signature: Signature
    ) -> None:
        backend.set_progress(0.25)
        given = np.full(signature.size, 0.5, np.float32)
        given.flags.writeable = False  # as a message's vector is
        await backend.begin(given)
        begun = backend.snapshot()
        assert np.abs(begun - given).max() < 0.5
        # Waiting may be given up and taken up again.
        for _ in range(3):
            waiting = asyncio.ensure_future(backend.due())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait((waiting,))
        steps = 0
        returns: list[float] = []
        while len(returns) < 4:
            async with asyncio.timeout(30):
                await backend.due()
            work = backend.take_work()
            steps += work.steps
            returns += work.returns
            backend.set_progress(0.5)  # taken note of at any time
            backend.release()
        assert steps >= len(returns)
        assert np.isfinite(returns).all()
        assert (backend.snapshot() != begun).any()


# Exchanges.


async def test_with_episodes_every_exchange_is_of_one_episode_the_first_of_a_late_child_too(
    tmp_path: Path,
) -> None:
    """Algorithm 2 of the thesis pushes after an episode: so many updates are so many episodes."""
    async with running(faulty("episode", length=7), tmp_path) as parent:
        address = url(parent.address)
        async with Serving(Child(address, name="first")):
            await eventually(lambda: parent.server.trial.version >= 2)
            async with Serving(Child(address, name="late")):
                exchanges = await eventually(lambda: exchanges_with("late", tmp_path))
    for exchange in exchanges:
        assert exchange["episodes"] == exchange["version"]
        assert exchange["steps"] == 7 * exchange["version"]


def exchanges_with(child: str, run: Path) -> list[dict[str, Any]]:
    """The exchanges of a run so far, if this child had one."""
    exchanges = history(run, "exchange")
    return exchanges if any(exchange["child"] == child for exchange in exchanges) else []


async def test_with_episodes_the_cores_rest_during_an_exchange() -> None:
    async with begun(faulty("episode", length=7), cores=2) as orchestrator:
        for _ in range(3):
            async with asyncio.timeout(30):
                await orchestrator.due()
            before = orchestrator.snapshot()
            cores = [psutil.Process(pid) for pid in orchestrator.pids]
            await eventually(
                lambda cores=cores: all(core.status() == psutil.STATUS_SLEEPING for core in cores)
            )
            np.testing.assert_array_equal(orchestrator.snapshot(), before)
            orchestrator.release()


async def test_the_gradient_is_the_mean_of_the_cores_that_have_found_one() -> None:
    settings = small(parent={"rule": "gradient"}, child={"exchange": "update", "cores": 2})
    async with begun(settings, cores=2) as orchestrator:
        for _ in range(2):
            async with asyncio.timeout(30):
                await orchestrator.due()
            before = orchestrator.snapshot()
            orchestrator.take_work()
            found = orchestrator.memory.gradients.copy()
            assert (np.linalg.norm(found, axis=1) > 0.0).all()
            gradient = orchestrator.gradient()
            assert gradient is not None
            np.testing.assert_allclose(gradient, found.mean(0), rtol=1e-6)
            assert orchestrator.gradient() is None
            np.testing.assert_array_equal(orchestrator.snapshot(), before)
            orchestrator.release()
        # A core that has not found one yet has no part in the mean.
        async with asyncio.timeout(30):
            await orchestrator.due()
        orchestrator._pool.updates = {1: 0.5}
        assert orchestrator.take_work().measures["loss"] == 0.5
        gradient = orchestrator.gradient()
        assert gradient is not None
        np.testing.assert_array_equal(gradient, orchestrator.memory.gradients[1])
        orchestrator.release()


async def test_free_cores_never_wait() -> None:
    settings = small(environment={"id": "tests.tiny:Faulty"}, child={"exchange_seconds": 3600.0})
    async with begun(settings, cores=2) as orchestrator:
        await eventually(lambda: len(orchestrator._pool._work.returns) > 50)


async def test_a_free_exchange_is_due_after_so_many_steps() -> None:
    settings = small(
        environment={"id": "tests.tiny:Faulty"},
        child={"exchange_seconds": 0.0, "exchange_steps": 200},
    )
    async with begun(settings, cores=2) as orchestrator:
        for _ in range(3):
            async with asyncio.timeout(30):
                await orchestrator.due()
            assert orchestrator.take_work().steps >= 200
        for told, least in ((2000, 2000), (0, 200)):
            orchestrator.answered(told)
            async with asyncio.timeout(30):
                await orchestrator.due()
            assert least <= orchestrator.take_work().steps


# Cores that die.


@EXCHANGES
async def test_all_cores_may_be_killed_at_once(exchange: str) -> None:
    async with begun(faulty(exchange), cores=2) as orchestrator:
        await turns(orchestrator, 4)
        killed = set(orchestrator.pids)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        await turns(orchestrator, 40)
        await eventually(
            lambda: len(orchestrator.pids) == 2 and not killed & set(orchestrator.pids)
        )
        await turns(orchestrator, 20)


async def test_a_large_network_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it takes in its first batches is more than what a leaking core is replaced for."""
    monkeypatch.setattr(module, "_CORE", "tests.child.workers:run_watched_core")
    settings = small(
        network={"hidden": [1200, 1200], "activation": "relu"},
        algorithm={"name": "a3c", "batch_size": 2},
    )
    async with begun(settings, cores=1) as orchestrator:
        pids = orchestrator.pids
        while orchestrator.memory.clock[0] < 12:  # this core looks at its memory all the time
            await turn(orchestrator)
        assert orchestrator.pids == pids


async def test_an_environments_error_is_not_the_childs_end() -> None:
    experiment = small(environment={"id": "tests.plugins.ga3c.numbered:Cut"})
    async with begun(experiment, cores=1) as orchestrator:
        with pytest.raises(EnvironmentFailure, match=r": simulator \(tests/.*numbered.py:.*step"):
            await turns(orchestrator, sys.maxsize)


async def test_a_killed_nursery_is_replaced_too() -> None:
    async with begun(faulty(), cores=1) as orchestrator:
        await turns(orchestrator, 4)
        core = psutil.Process(orchestrator.pids[0])
        nursery = core.parent()
        assert nursery is not None and "forkserver" in " ".join(nursery.cmdline())
        nursery.kill()
        core.kill()
        await turns(orchestrator, 20)
        await eventually(lambda: orchestrator.pids not in ([], [core.pid]))
        await turns(orchestrator, 20)


async def test_stopped_while_a_killed_nursery_is_replaced_it_does_not_wait() -> None:
    """As where a service manager sends SIGTERM to the whole group. The new one takes a minute."""
    async with begun(faulty(), cores=1) as orchestrator:
        await turns(orchestrator, 4)
        orchestrator.experiment = faulty(fault="sleep", where="construct")
        core = psutil.Process(orchestrator.pids[0])
        nursery = core.parent()
        assert nursery is not None
        nursery.kill()
        await eventually(lambda: nursery.status() == psutil.STATUS_ZOMBIE)
        core.kill()
        await eventually(lambda: module.CORES.pid != nursery.pid)
        began = time.monotonic()
    assert time.monotonic() - began < 1.0


async def test_a_nursery_that_dies_while_it_is_born_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead = ForkServer("tests.child.workers", {"GENKIDAMA_TEST_LIGHT": "1"})
    start = dead.start
    killed: list[int] = []

    def start_and_kill(entry: str, args: Any, experiment: Any, streams: Any = None) -> Any:
        if len(killed) < 2:
            process = start("time:sleep", (60,), experiment)  # it is born
            assert dead.pid is not None and process.pid is not None
            killed.append(dead.pid)
            os.kill(dead.pid, signal.SIGKILL)
            os.kill(process.pid, signal.SIGKILL)
            raise EOFError
        return module_cores.start(entry, args, experiment)

    module_cores = module.CORES
    monkeypatch.setattr(dead, "start", start_and_kill)
    monkeypatch.setattr(module, "CORES", dead)
    orchestrator = CoreOrchestrator(faulty(), 1)
    try:
        await orchestrator.startup()
    finally:
        await orchestrator.shutdown()
        dead.close()
    assert len(killed) == 2


# As many cores as fit into the memory.

MB = 10**6

#: What is free beside the reserve, and how much a core needs: in the log line.
NEEDS = r"a core needs (\d+) MB, (\d+) MB are free beside a reserve of (\d+) MB"


async def started(experiment: Experiment, cores: int = 4) -> int:
    """How many cores an orchestrator takes."""
    orchestrator = CoreOrchestrator(experiment, cores)
    try:
        await orchestrator.startup()
        assert len(orchestrator.memory.gradients) == orchestrator.cores
        return orchestrator.cores
    finally:
        await orchestrator.shutdown()


def words(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """Level and text of each line of the log since the last call."""
    return [
        (line["level"], line["event"])
        for line in map(json.loads, capsys.readouterr().err.splitlines())
    ]


AUTO = small(child={"cores": "auto"})


async def test_where_memory_is_short_there_are_as_many_cores_as_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = set()
    monkeypatch.setattr(module, "available_bytes", lambda: None)  # this system does not tell
    assert await started(AUTO) == 4
    for megabytes in (-1, 90, 120, 150, 180, 300):
        monkeypatch.setattr(module, "available_bytes", lambda size=megabytes: size * MB)
        cores = await started(AUTO)
        found.add(cores)
        said = words(capsys)
        if cores == 4:
            assert said == []
            continue
        ((level, text),) = said
        match = re.fullmatch(rf"{cores} of 4 cores(, and that may be too much)?: {NEEDS}", text)
        assert match is not None, text
        needs, free, reserve = map(int, match.groups()[1:])
        assert abs(free - max(0, megabytes - reserve)) <= 1
        assert match[1] or megabytes > 0
        assert level == ("warning" if match[1] else "info")
        assert cores == max(1, free // needs)
    assert {1, 2, 4} <= found


async def test_a_number_of_cores_is_obeyed_even_if_they_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: 120 * MB)
    assert await started(small(child={"cores": 3}), cores=3) == 3
    ((level, text),) = words(capsys)
    assert level == "warning"
    assert re.fullmatch(rf"3 cores as told, though 1 would fit: {NEEDS}", text)


@pytest.mark.parametrize(("own", "expected"), [(None, 1), (2, 2)])
async def test_a_child_says_how_many_cores_it_took(
    tmp_path: Path,
    own: Any,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(child_module, "available_cores", lambda: 4)
    monkeypatch.setattr(module, "available_bytes", lambda: 0)
    async with running(AUTO, tmp_path) as parent:
        child = Child(url(parent.address), name="pi", cores=own)
        async with Serving(child):
            await eventually(lambda: "last exchange" in child.status, "an exchange")
            assert f" on {expected} core" in child.status
    said = map(json.loads, capsys.readouterr().err.splitlines())
    assert [line["cores"] for line in said if line["event"] == "training"] == [expected]


async def cost_of(experiment: Experiment) -> int:
    orchestrator = CoreOrchestrator(experiment, 1)
    *_, cost = await asyncio.to_thread(orchestrator._describe)
    await orchestrator.shutdown()
    assert cost is not None
    return cost


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="this kernel does not tell what is private"
)
async def test_what_a_core_costs_is_measured() -> None:
    large = {"network": {"hidden": [1000, 1000]}, "algorithm": {"batch_size": 512}}
    little, much = await cost_of(small()), await cost_of(small(**large))
    # Its own weights and gradient are 8 MB each. In the batch, two layers' values before and after
    # the activation are 2 MB each.
    assert 2 * MB < little < 40 * MB
    assert 20 * MB < much - little < 60 * MB
    each = await cost_of(small(**large, optimizer={"shared": False}))
    assert 12 * MB < each - much < 20 * MB  # two momenta of its own


async def test_what_a_core_costs_is_what_one_takes() -> None:
    cost = await cost_of(small())
    async with begun(small(), cores=2) as orchestrator:
        await turns(orchestrator, 200)
        maps = [psutil.Process(pid).memory_maps() for pid in orchestrator.pids]
    for core in maps:
        assert 0.5 * cost < sum(part.private_dirty for part in core) < cost + GROWTH_BYTES


@pytest.mark.parametrize("fault", ["raise", "kill", "sleep"])
@pytest.mark.parametrize("where", ["step", "reset"])
async def test_an_environment_that_fails_before_its_core_works_fails_again_there(
    where: str, fault: str
) -> None:
    settings = faulty(fault=fault, where=where)
    child = msgspec.structs.replace(settings.child, hang_seconds=0.3)
    orchestrator = CoreOrchestrator(msgspec.structs.replace(settings, child=child), 2)
    try:
        async with asyncio.timeout(10):
            await orchestrator.startup()
        assert orchestrator.cores == 2
        assert len(orchestrator._prepared) == (2 if where == "step" or fault == "raise" else 0)
    finally:
        await orchestrator.shutdown()


async def test_too_little_memory_for_the_nursery_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # One that is not there yet; it dies as if for want of memory.
    nursery = ForkServer("no_such_module")
    monkeypatch.setattr(module, "CORES", nursery)
    monkeypatch.setattr(module, "available_bytes", lambda: 40 * MB)
    orchestrator = CoreOrchestrator(faulty(fault="kill", where="construct"), 1)
    with pytest.raises(
        EnvironmentFailure,
        match=r"exit code -9: a child needs 50 MB before its first core, 40 MB are free; ",
    ):
        await orchestrator.startup()
    nursery.close()
    warning = ("warning", "a child needs 50 MB before its first core, 40 MB are free")
    # On a machine that is busy the building, which takes a while, is told, too.
    assert [each for each in words(capsys) if each[0] != "info"] == [warning]


# Networks and environments that cannot be built.


@pytest.mark.parametrize(
    ("experiment", "error", "words"),
    [
        (
            small(algorithm={"name": "tests.child.problems:Unbuilt"}),
            ConfigurationError,
            "algorithm.name = 'tests.child.problems:Unbuilt': cannot be built: ValueError: no idea",
        ),
        (
            faulty(fault="raise", where="construct"),
            ConfigurationError,
            "environment.id = 'tests.tiny:Faulty'.*the cable",
        ),
        (
            faulty(fault="kill", where="construct"),
            EnvironmentFailure,
            "'tests.tiny:Faulty' by itself",
        ),
    ],
)
async def test_what_cannot_be_built_is_told(
    experiment: Experiment, error: type[GenkidamaError], words: str
) -> None:
    orchestrator = CoreOrchestrator(experiment, 1)
    try:
        with pytest.raises(error, match=words):
            await orchestrator.startup()
    finally:
        await orchestrator.shutdown()


def test_no_cores_are_the_users_mistake() -> None:
    with pytest.raises(ConfigurationError, match="cores = 0: at least 1 is needed"):
        CoreOrchestrator(small(), 0)


# What is left behind.


async def test_nothing_is_left_behind() -> None:
    names = shared_memory(os.getpid())

    async def life() -> list[psutil.Process]:
        async with begun(small(), cores=2) as orchestrator:
            await turns(orchestrator, 4)
            assert shared_memory(os.getpid(), *orchestrator.pids) <= names
            return [psutil.Process(pid) for pid in orchestrator.pids]

    await life()  # the nursery and the threads that start processes come with the first and stay
    before = descriptors()
    cores = await life()
    assert not any(core.is_running() for core in cores)
    # A thread lets go of the memory that it has started a core with a moment later.
    await eventually(lambda: descriptors() <= before)


async def test_the_memory_of_a_run_that_is_over_is_given_back_before_the_next(
    tmp_path: Path,
) -> None:
    """Whose replay may need that room."""

    def mapped() -> int:
        maps = Path("/proc/self/maps").read_text()
        blocks = re.findall(r"(\w+)-(\w+) .*/memfd:genkidama", maps)
        return sum(int(end, 16) - int(begin, 16) for begin, end in blocks)

    gc.collect()
    gc.disable()  # nobody knows when it looks by itself
    before = mapped()
    try:
        async with (
            running(small(stop={"updates": 2}), tmp_path) as parent,
            Serving(Child(url(parent.address), name="pi", stay=True)),
        ):
            await eventually(lambda: mapped() > before, "a run's memory")
            await eventually(lambda: parent.server.stop, "the end of the run")
            await eventually(lambda: mapped() <= before, "the end of its memory", 10.0)
    finally:
        gc.enable()


async def test_cores_that_do_not_answer_are_killed_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All have the same deadline."""
    deadlines: list[float] = []

    def finish(core: WorkerProcess, seconds: float) -> None:
        deadlines.append(time.monotonic() + seconds)
        finish_one(core, seconds)

    finish_one = WorkerProcess.finish
    monkeypatch.setattr(WorkerProcess, "finish", finish)
    async with begun(faulty(fault="sleep", after=1), cores=3) as orchestrator:
        await turns(orchestrator, 3)
        cores = [psutil.Process(pid) for pid in orchestrator.pids]
        await orchestrator.shutdown()
    assert len(deadlines) == 3 and max(deadlines) - min(deadlines) < 0.5 * GRACE_SECONDS
    assert not any(core.is_running() for core in cores)


SCRIPT = """
import asyncio, os, signal, sys, threading
import genkidama
from tests.helpers import small

class OfTheScript: pass

async def main():
    orchestrator = genkidama.CoreOrchestrator(small(), 3)
    await orchestrator.startup()
    await orchestrator.begin(None)
    await orchestrator.due()
    await orchestrator.shutdown()
    assert sys.modules["__main__"].OfTheScript is OfTheScript
    assert "torch" not in sys.modules, "an orchestrator imports no torch"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())

print("imported", os.getpid())
asyncio.run(main())
"""


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    found = python("script.py", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("imported") == 1


async def test_stopped_while_the_network_is_built_it_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A minute, here; nor is another process started instead of the one that it ends."""
    started: list[PreparedCore] = []
    start = PreparedCore.start

    def noted(*args: Any) -> PreparedCore:
        started.append(start(*args))
        return started[-1]

    monkeypatch.setattr(PreparedCore, "start", noted)
    orchestrator = CoreOrchestrator(faulty(fault="sleep", where="construct"), 1)
    starting = asyncio.ensure_future(orchestrator.startup())
    await eventually(lambda: bool(orchestrator._prepared))
    starting.cancel()
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait((starting,))
        await orchestrator.shutdown()
    assert len(started) == 1


# Chunks.


def chunks(**sections: Any) -> Experiment:
    """Four chunks of four steps in each of two lanes."""
    algorithm = {"name": "ppo", "batch_size": 32, "minibatch_size": 8}
    return small(
        environment={"lanes": 2},
        algorithm={**algorithm, **sections.pop("algorithm", {})},
        child={"exchange": "chunk"},
        **sections,
    )


async def test_cores_take_the_parents_weights_before_they_learn_and_push_afterwards() -> None:
    async with begun(chunks(), cores=2) as orchestrator, asyncio.timeout(60):
        given = orchestrator.weights() + np.float32(0.5)
        steps = 0
        for turn in range(6):
            await orchestrator.due()
            assert orchestrator.pulls
            orchestrator.waited(0.0)  # a quick link, however short a chunk is
            orchestrator.take(given)
            orchestrator.release()
            await orchestrator.due()
            assert not orchestrator.pulls
            work = orchestrator.take_work()
            steps += work.steps
            pushed = orchestrator.snapshot()
            assert pushed is not None
            assert 0.0 < np.abs(pushed - given).max() < 0.2, turn  # it has learned from there
            given = given + np.float32(0.5)
            orchestrator.blend(pushed, given, 1.0)
            np.testing.assert_array_equal(orchestrator.weights(), given)
            orchestrator.release()
        # A chunk is eight steps, and eight more if the answer has taken long; a core that the
        # machine holds up misses a turn.
        assert 6 * 8 <= steps <= 7 * 2 * 16


@pytest.mark.parametrize("waits", [True, False])
def test_a_late_answer_is_also_that_of_a_core_that_waits_for_it_already(waits: bool) -> None:
    """Or it would learn without the others, and they would never be in step again."""
    opened: list[bool] = []
    pool = SimpleNamespace(pulls=False, opened=lambda: opened.append(True), release=lambda: None)
    memory = SimpleNamespace(
        averaging=np.array([0.0, 0.0, 0.0, 0.0, 3.0, 2.0]), semaphore=np.array([waits, False])
    )
    orchestrator: Any = SimpleNamespace(_pool=pool, memory=memory, _acting_on=True)
    CoreOrchestrator.release(orchestrator)
    assert opened == [True] * waits
    assert memory.averaging[4:].tolist() == [3.0, 3.0 if waits else 2.0]


async def test_without_a_parent_cores_learn_on_from_their_own_weights() -> None:
    async with begun(chunks(), cores=2) as orchestrator, asyncio.timeout(60):
        before = orchestrator.weights().copy()
        for turn in range(8):
            await orchestrator.due()
            assert orchestrator.pulls == (not turn % 2)
            if not orchestrator.pulls:
                orchestrator.take_work()
            orchestrator.release()  # nobody has answered
        assert (orchestrator.weights() != before).any()


async def test_over_a_slow_link_cores_ask_early_and_act_on_until_the_answer_is_there() -> None:
    async with begun(chunks(), cores=1) as orchestrator, asyncio.timeout(60):
        orchestrator._waits.extend([10.0] * 16)  # longer than any chunk
        for _ in range(4):
            while True:
                await orchestrator.due()
                if not orchestrator.pulls:
                    break
                orchestrator.waited(10.0)
                orchestrator.take(orchestrator.weights().copy())
                orchestrator.release()
            pushed = orchestrator.snapshot()
            assert pushed is not None
            orchestrator.take_work()
            await eventually(lambda: orchestrator._pool.asked)  # it acts before the answer
            orchestrator.blend(pushed, pushed + np.float32(1.0), 1.0)
            assert not orchestrator._pool.asked  # the answer is the one that was asked for
            orchestrator.release()
