"""Crew with real processes: which are started and dismissed, what is counted, what is due when."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

import psutil
import pytest

from genkidama.child import worker_pool as crew_module
from genkidama.child.backend import Work
from genkidama.child.shared_memory import Layout, SharedMemory
from genkidama.child.worker_pool import WorkerPool
from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure
from tests.child.crewmates import LIGHT
from tests.helpers import PATIENCE, eventually, small, until

#: How many elements the semaphore of each crew here has.
ELEMENTS = 4


class Yard:
    """Starts the processes of a crew, and knows all that were started."""

    def __init__(self, experiment: Experiment, plans: tuple[str, ...]) -> None:
        self.experiment, self._plans = experiment, plans
        self.memory = SharedMemory(
            Layout(ELEMENTS, steps=1, columns=1, size=1, trainable=1, state_rows=0, state_sets=1)
        )
        #: Index, seed and process number of each.
        self.started: list[tuple[int, tuple[int, ...], int]] = []
        #: Whoever was started while another of its index lived.
        self.doubles: list[int] = []
        #: Nobody is started while this is not set.
        self.gate = threading.Event()
        self.gate.set()
        self.asked = 0

    def fork(self, index: int, line: Connection, seed: tuple[int, ...]) -> ForkServerProcess:
        self.asked += 1
        assert self.gate.wait(PATIENCE)
        if any(other == index for other, _, _ in self.living()):
            self.doubles.append(index)
        plan = self._plans[min(index, len(self._plans) - 1)]
        process = LIGHT.start(
            "tests.child.crewmates:work", (index, self.memory, line, plan), self.experiment
        )
        assert process.pid is not None
        self.started.append((index, seed, process.pid))
        return process

    def living(self) -> list[tuple[int, tuple[int, ...], int]]:
        return [started for started in self.started if psutil.pid_exists(started[2])]

    def pid(self, index: int) -> int:
        """Of the last one that was started."""
        return next(pid for other, _, pid in reversed(self.started) if other == index)


@asynccontextmanager
async def begun(count: int, *plans: str, **child: Any) -> AsyncIterator[tuple[WorkerPool, Yard]]:
    """A crew of so many, which ends without a trace.

    Its first process follows the first plan and so on, the rest the last one.
    """
    experiment = small(child=child or {"exchange": "episode"})
    yard = Yard(experiment, plans)
    crew = WorkerPool(experiment, "agent", "crew", yard.fork)
    try:
        await crew.begin(count, 7, yard.memory.semaphore)
        yield crew, yard
    finally:
        yard.gate.set()
        async with asyncio.timeout(10):
            await crew.shutdown()
        yard.memory.close()
    assert not yard.living() and not yard.doubles


async def turn(crew: WorkerPool) -> Work:
    async with asyncio.timeout(PATIENCE):
        await crew.due()
    done = crew.take_work()
    crew.release()
    return done


async def full_turn(crew: WorkerPool, count: int) -> None:
    """Exchanges until so many have played between two of them."""
    async with asyncio.timeout(PATIENCE):
        while len((await turn(crew)).returns) != count:
            pass


# Where all wait, and none has played.


async def test_at_the_start_all_wait_for_all_and_no_exchange_is_due() -> None:
    async with begun(3, "episodes") as (crew, _):
        for _ in range(5):
            assert await turn(crew) == Work(36, [12.0] * 3)


async def test_one_that_dies_before_the_start_holds_nobody_up() -> None:
    async def alone(crew: WorkerPool) -> None:
        while True:
            assert await turn(crew) == Work(12, [12.0])

    async with begun(2, "episodes", "die") as (crew, _):
        with pytest.raises(EnvironmentFailure, match="agent 1 died 3 times"):
            await alone(crew)
        assert len(crew.pids) == 1


async def test_the_only_one_when_it_is_replaced_plays_before_there_is_an_exchange() -> None:
    async with begun(1, "episodes") as (crew, yard):
        assert await turn(crew) == Work(12, [12.0])
        await crew.due()
        assert crew.take_work() == Work(12, [12.0])
        os.kill(yard.pid(0), signal.SIGKILL)
        crew.release()
        assert await turn(crew) == Work(12, [12.0])
        assert len(yard.started) == 2


async def test_what_was_played_before_the_only_one_died_is_exchanged() -> None:
    async with begun(1, "episodes") as (crew, yard):
        await crew.due()
        os.kill(yard.pid(0), signal.SIGKILL)
        await eventually(lambda: len(yard.started) == 2)
        assert await turn(crew) == Work(12, [12.0])


async def test_waiting_for_the_start_may_be_given_up_and_taken_up_again() -> None:
    async with begun(2, "episodes") as (crew, _):
        for _ in range(50):
            with suppress(TimeoutError):
                await asyncio.wait_for(crew.due(), 0.001)
                break
        for _ in range(2):
            assert await turn(crew) == Work(24, [12.0] * 2)


# More and fewer.


async def test_those_that_are_added_take_part_and_other_elements_hold_nobody_up() -> None:
    async with begun(1, "episodes") as (crew, yard):
        assert await turn(crew) == Work(12, [12.0])
        assert await crew.resize(3) == []
        assert sorted(index for index, _, _ in yard.started) == [0, 1, 2]
        await full_turn(crew, 3)
        for _ in range(5):
            assert await turn(crew) == Work(36, [12.0] * 3)
        assert yard.memory.semaphore[3]


async def test_those_that_are_dismissed_end_and_are_neither_waited_for_nor_replaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with begun(3, "episodes") as (crew, yard):
        await full_turn(crew, 3)
        stays = yard.pid(0)
        assert await crew.resize(1) == [1, 2]
        assert crew.pids == [stays]
        await turn(crew)  # with what the two have said before
        for _ in range(5):
            assert await turn(crew) == Work(12, [12.0])
        await eventually(lambda: len(yard.living()) == 1)
        assert yard.memory.semaphore[1:].all()
        assert len(yard.started) == 3
    assert "lost" not in capsys.readouterr().err


async def test_what_those_that_are_dismissed_have_done_is_counted() -> None:
    async with begun(3, "episodes") as (crew, yard):
        await full_turn(crew, 3)
        until(lambda: yard.memory.semaphore.all())  # all wait again; nobody has listened since
        assert await crew.resize(1) == [1, 2]
        assert await turn(crew) == Work(36, [12.0] * 3)


async def test_an_exchange_is_due_when_the_one_that_all_wait_for_is_dismissed() -> None:
    async with begun(2, "episodes", "deaf") as (crew, yard):
        await turn(crew)
        waiting = asyncio.ensure_future(turn(crew))
        await eventually(lambda: yard.memory.semaphore[0])
        assert not waiting.done()
        assert await crew.resize(1) == [1]
        assert await waiting == Work(12, [12.0])


async def test_one_that_does_not_end_is_killed_before_another_takes_its_place() -> None:
    async with begun(2, "episodes", "deaf") as (crew, yard):
        await turn(crew)  # now the second hears nothing
        deaf = yard.pid(1)
        assert await crew.resize(1) == [1]
        assert psutil.pid_exists(deaf)
        assert await crew.resize(2) == []
        assert not psutil.pid_exists(deaf) and psutil.pid_exists(yard.pid(1))
        assert len(crew.pids) == 2


async def test_one_that_is_just_being_replaced_can_be_dismissed() -> None:
    async with begun(2, "episodes") as (crew, yard):
        await full_turn(crew, 2)
        yard.gate.clear()
        os.kill(yard.pid(1), signal.SIGKILL)
        await eventually(lambda: yard.asked == 3)
        resizing = asyncio.ensure_future(crew.resize(1))
        await turn(crew)
        await turn(crew)
        assert not resizing.done()
        yard.gate.set()
        assert await resizing == [1]
        assert crew.pids == [yard.pid(0)]
        await eventually(lambda: len(yard.living()) == 1)


async def test_one_that_dies_and_is_dismissed_at_once_is_not_replaced() -> None:
    async with begun(2, "episodes") as (crew, yard):
        await full_turn(crew, 2)
        os.kill(yard.pid(1), signal.SIGKILL)
        until(lambda: not psutil.pid_exists(yard.pid(1)))  # and the crew has not heard of it
        assert await crew.resize(1) == [1]
        await turn(crew)
        for _ in range(5):
            assert await turn(crew) == Work(12, [12.0])
        assert yard.asked == 2


async def test_a_resize_that_is_given_up_leaves_nobody_behind() -> None:
    async with begun(1, "episodes") as (crew, yard):
        yard.gate.clear()
        resizing = asyncio.ensure_future(crew.resize(3))
        await eventually(lambda: yard.asked == 3)
        resizing.cancel()
        await asyncio.wait((resizing,))
        assert resizing.cancelled()
    assert len(yard.started) == 3  # and `begun` has seen that all are gone


async def test_whoever_is_being_started_at_the_end_is_ended_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "genkidama.child.worker_pool.GRACE_SECONDS", 2 * PATIENCE
    )  # they end by themselves
    async with begun(2, "episodes") as (crew, yard):
        yard.gate.clear()
        os.kill(yard.pid(1), signal.SIGKILL)
        await eventually(lambda: yard.asked == 3)
        resizing, ending = (
            asyncio.ensure_future(crew.resize(1)),
            asyncio.ensure_future(crew.shutdown()),
        )
        await asyncio.sleep(0)
        yard.gate.set()
        async with asyncio.timeout(PATIENCE):
            await ending
        assert await resizing == []
        assert len(yard.started) == 3 and not yard.living() and not crew.pids


async def test_random_numbers_differ_by_child_index_birth_and_version() -> None:
    async with begun(2, "episodes") as (crew, yard):
        await crew.resize(3)
        seeds = [seed for _, seed, _ in sorted(yard.started)]
    name = zlib.crc32(b"crew")
    assert seeds == [(yard.experiment.seed, name, index, index + 1, 7) for index in range(3)]


# Progress.


async def test_steps_of_episodes_that_go_on_make_an_exchange_due() -> None:
    async with begun(2, "progress", exchange="free", exchange_seconds=0.0, exchange_steps=200) as (
        crew,
        _,
    ):
        for _ in range(3):
            done = await turn(crew)
            assert done.steps >= 200 and done.steps % 5 == 0
            assert done.returns == []


async def test_steps_that_an_exchange_has_taken_along_make_no_other_one_due() -> None:
    settings = {"exchange": "free", "exchange_seconds": 0.0, "exchange_steps": 50}
    async with begun(1, "progress", **settings) as (crew, _):
        for _ in range(3):
            async with asyncio.timeout(PATIENCE):
                await crew.due()
            due = crew._work.steps
            await eventually(lambda due=due: crew._work.steps > due)  # type: ignore[misc]
            assert crew.take_work().steps > 50
            crew.release()


async def test_who_makes_progress_may_die_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew_module, "_FIRST_REST", 0.01)
    async with begun(1, "fall", exchange="free", exchange_seconds=0.01) as (crew, yard):
        steps = 0
        while steps < 30:
            steps += (await turn(crew)).steps
        assert len(yard.started) >= 6


async def test_who_makes_none_ends_the_child_under_the_name_of_its_kind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with begun(1, "die") as (crew, yard):
        with pytest.raises(
            EnvironmentFailure,
            match=r"^agent 0 died 3 times without ending an episode: exit code 3$",
        ):
            await turn(crew)
        assert len(yard.started) == 3
    assert (
        '"agent": 0, "exit_code": 3, "reason": "exit code 3", "event": "agent lost"'
        in capsys.readouterr().err
    )


async def test_a_backend_may_say_that_training_cannot_go_on() -> None:
    async with begun(1, "deaf") as (crew, _):
        await turn(crew)
        waiting = asyncio.ensure_future(crew.due())
        await asyncio.sleep(0)
        crew.fail(EnvironmentFailure("the model is gone"))
        with pytest.raises(EnvironmentFailure, match="the model is gone"):
            await asyncio.wait_for(waiting, PATIENCE)


async def test_with_updates_an_exchange_is_due_when_each_has_made_one() -> None:
    async with begun(2, "updates", "updates", exchange="update") as (crew, _):
        for _ in range(2):
            async with asyncio.timeout(PATIENCE):
                await crew.due()
            assert crew.updates == {0: 0.0, 1: 1.0}
            assert crew.take_work() == Work(steps=24, returns=[12.0, 12.0])
            crew.updates = {}
            crew.release()


async def test_with_updates_an_episode_alone_makes_no_exchange_due() -> None:
    async with begun(1, "episodes", exchange="update") as (crew, _):
        due = asyncio.create_task(crew.due())
        await eventually(lambda: due.done() or crew._work.steps >= 60)
        assert not due.done()
        due.cancel()
