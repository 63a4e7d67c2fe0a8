"""Actors as real processes: blocks come, nothing waits but for a block, and none is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from genkidama.child.backend import make_backend
from genkidama.child.worker_pool import SemaphoreVector
from genkidama.config.experiment import Experiment
from genkidama.plugins.actors import backend as backend_module
from genkidama.plugins.actors.backend import ActorPool, Actors
from genkidama.plugins.actors.outbox import BLOCKS, block_arrays
from genkidama.plugins.actors.rule import Columns
from genkidama.runtime.process import WorkerProcess
from tests.child.memory import shared_memory
from tests.child.problems import experiment
from tests.helpers import eventually

#: Five cells, one number for the action.
COLUMNS = Columns(5, 1)


def acting(**sections: Any) -> Experiment:
    return experiment(
        "Corridor",
        algorithm={"batch_size": 64},
        parent={"rule": "experience"},
        **sections,
    )


@asynccontextmanager
async def begun(settings: Experiment, cores: int = 1) -> AsyncIterator[Actors]:
    backend = make_backend(settings, cores, "pi")
    assert isinstance(backend, Actors)
    try:
        await backend.startup()
        await backend.begin(None)
        yield backend
    finally:
        async with asyncio.timeout(10):
            await backend.shutdown()


async def pushed(backend: Actors) -> np.ndarray:
    """The rows of the next push, which is not answered yet."""
    async with asyncio.timeout(60):
        while True:
            await backend.due()
            vector = backend.snapshot()
            if vector is not None:
                rows = vector.reshape(-1, COLUMNS.count)
                assert COLUMNS.problem(rows) == ""
                return rows
            backend.pulling()
            backend.release()


def answer(backend: Actors, weights: float | None = None, steps: int = 0) -> None:
    if weights is not None:
        vector = np.full(backend.signature.size, weights, np.float32)
        backend.blend(vector, vector, 0.0)
    backend.answered(steps)
    backend.release()


async def test_blocks_are_pushed_and_steps_and_returns_reported() -> None:
    async with begun(acting(), cores=2) as backend:
        rows = 0
        steps = 0
        returns: list[float] = []
        while rows < 2000:
            found = await pushed(backend)
            rows += int((found[:, COLUMNS.following] > 0).sum())
            work = backend.take_work()
            steps += work.steps
            returns += work.returns
            answer(backend)
        assert set(returns) <= {0.0, 1.0}
        # What is reported and what is sent differ by the steps under way.
        assert abs(rows - steps) < 2 * (BLOCKS + 1) * 64 + 2 * 256


async def test_the_answer_is_taken_over_whole_and_changes_what_actors_do() -> None:
    async with begun(acting()) as backend:
        await pushed(backend)
        answer(backend, 0.25)
        assert (backend.memory.weights == 0.25).all()
        assert backend.memory.news[0] == 1
        # All outputs are equal with these weights, so each of two actions has the probability ½.
        for _ in range(2 * BLOCKS):
            rows = await pushed(backend)
            answer(backend)
        steps = rows[rows[:, COLUMNS.following] > 0]
        np.testing.assert_allclose(steps[:, COLUMNS.log_mu], np.log(0.5), atol=1e-5)


async def test_half_of_the_lanes_rest_and_play_again() -> None:
    async def blocks(least: int, most: int) -> None:
        """Answers pushes until the blocks have so many rows: steps, and what follows them."""
        while True:
            await pushed(backend)
            sizes = backend.memory.sizes[0]
            fits = (sizes[sizes > 0] >= least).all() and (sizes <= most).all()
            answer(backend)
            if fits:
                return

    async with asyncio.timeout(60), begun(acting(environment={"lanes": 8})) as backend:
        await blocks(64 + 8, 200)
        assert backend.rest(0.5) == (4, 8)
        await blocks(32 + 4, 32 + 31)
        assert backend.rest(0.0) == (8, 8)
        await blocks(64 + 8, 200)


async def test_without_answers_actors_fill_their_blocks_and_sleep_and_lose_nothing() -> None:
    async with begun(acting()) as backend:
        first = (await pushed(backend)).copy()
        await eventually(lambda: backend.memory.sizes.all(), "all blocks full")
        backend.release()
        (pid,) = backend.pids
        before = _cpu_ticks(pid)
        await asyncio.sleep(0.3)
        assert _cpu_ticks(pid) - before <= 2
        assert (await pushed(backend)).tobytes() == first.tobytes()
        began = time.monotonic()
        await backend.due()
        assert time.monotonic() - began > 0.1, "a child without a parent does not spin"
        answer(backend)
        rows = await pushed(backend)
        both = np.concatenate([first, rows])
        assert (both[:, COLUMNS.following] > 0).sum() >= 64 * BLOCKS


async def test_between_pushes_newer_weights_are_asked_for() -> None:
    async with begun(acting()) as backend:
        (pid,) = backend.pids
        os.kill(pid, signal.SIGSTOP)  # it collects nothing
        asked = 0
        async with asyncio.timeout(30):
            while asked < 3:
                await backend.due()
                if backend.snapshot() is not None:
                    answer(backend)
                    continue
                asked += 1
                backend.pulling()
                with pytest.raises(TimeoutError):  # one that stands is enough
                    await asyncio.wait_for(backend.due(), 0.02)
                vector = np.full(backend.signature.size, float(asked), np.float32)
                backend.pulled(vector, 64)
                assert (backend.memory.weights == asked).all()
        os.kill(pid, signal.SIGCONT)


async def test_news_that_come_while_a_push_is_under_way_leave_it_as_it_is() -> None:
    async with begun(acting()) as backend:
        first = (await pushed(backend)).copy()
        backend.pulled(np.full(backend.signature.size, 0.5, np.float32), 64)
        assert (await pushed(backend)).tobytes() == first.tobytes()
        assert (backend.memory.weights == 0.5).all()


async def test_a_slow_core_is_not_kept_from_its_steps_by_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(backend_module, "time", SimpleNamespace(monotonic=lambda: now))
    pool = ActorPool(acting(), "core", "pi", Actors(acting(), 1))
    assert pool.until(64) <= 0.0, "at first"
    pool.answered(0)
    now += 0.01
    pool.answered(1)  # 10 ms a row
    pool.pulling()
    assert pool.until(64) == pytest.approx(0.64)
    now += 0.5
    assert pool.until(256) == pytest.approx(2.06)


def test_a_robot_asks_for_news_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(backend_module, "time", SimpleNamespace(monotonic=lambda: now))
    pool = ActorPool(acting(), "core", "pi", Actors(acting(), 1))
    pool.has_clock = True
    pool.answered(0)
    now += 0.02
    pool.answered(1)  # 20 ms a row
    pool.pulling()
    assert pool.until(64) == pytest.approx(0.1)


def test_each_step_of_a_block_of_images_is_a_sign_of_life() -> None:
    columns = Columns(84 * 84 * 4, 1)
    backend = Actors(acting(), 1)
    backend._memory = memory = shared_memory(more=block_arrays(512, columns))
    backend._cycles = None
    for blocks, row in ((0, 511), (1, 1024), (1, 1535), (7, 3583)):
        memory.head[0] = blocks
        before = backend.trace(0)
        assert backend.trace(0) == before
        memory.replay[0, row, columns.actions] = 1.0
        assert backend.trace(0) != before
    memory.close()


async def test_a_push_that_is_refused_is_dropped() -> None:
    async with begun(acting()) as backend:
        first = (await pushed(backend)).copy()
        backend.reset(np.zeros(backend.signature.size, np.float32))
        backend.release()
        assert (await pushed(backend)).tobytes() != first.tobytes()
        assert not backend.memory.weights.any()


async def test_a_core_that_is_killed_is_replaced_and_its_full_blocks_are_sent() -> None:
    async with begun(acting()) as backend:
        await eventually(lambda: backend.memory.sizes.all(), "all blocks full")
        (pid,) = backend.pids
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: backend.pids and backend.pids != [pid], "another core")
        rows = await pushed(backend)
        assert (rows[:, COLUMNS.following] > 0).sum() == 64 * BLOCKS
        answer(backend)
        assert (await pushed(backend)).size


async def test_a_core_whose_word_comes_after_the_answer_is_woken_all_the_same() -> None:
    pool = ActorPool(acting(), "core", "pi", Actors(acting(), 1))  # type: ignore[arg-type]
    elements = np.zeros(1, np.bool_)
    pool._semaphore = SemaphoreVector(elements)
    pool._semaphore.enter(0)
    pool.release()
    worker = WorkerProcess(pool)
    theirs = worker._theirs
    pool._workers[0] = worker
    pool.outboxes = Full()  # type: ignore[assignment]
    for room in (False, True):
        Full.room = room
        elements[0] = True
        pool._record(worker, b"")
        assert theirs.poll() is room
    assert theirs.recv_bytes() == b""
    worker.pipe.close()
    theirs.close()


class Full:
    """Outboxes of which a test says whether they have room."""

    room = False

    def has_room(self, core: int) -> bool:
        return self.room


async def test_lanes_follow_what_the_parent_asks_for() -> None:
    settings = experiment(
        "Corridor",
        environment={"lanes": 4},
        algorithm={"batch_size": 64},
        parent={"rule": "experience"},
    )
    async with begun(settings) as backend:
        sizes = []
        for share in [64] * 4 + [16] * 12:
            backend.memory.share[0] = share
            rows = await pushed(backend)
            sizes.append(int((rows[:, COLUMNS.following] > 0).sum()))
            answer(backend, steps=share)
        assert sizes[0] % 64 == 0
        assert sizes[-1] <= 16 * BLOCKS
        assert not sizes[-1] % 16


def _cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
