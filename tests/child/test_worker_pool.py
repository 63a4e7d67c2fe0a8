"""Crew with real processes: which are started and dismissed, what is counted, what is due when."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil
import pytest

from genkidama.child import worker_pool as crew_module
from genkidama.child.backend import Work
from genkidama.child.worker_pool import SemaphoreVector, WorkerPool
from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure
from genkidama.runtime.forkserver import ForkedProcess
from tests.child.memory import shared_memory
from tests.child.workers import LIGHT
from tests.helpers import PATIENCE, eventually, small, until

#: How many elements the semaphore of each pool here has.
ELEMENTS = 4


class Yard:
    """Starts the processes of a pool, and knows all that were started."""

    def __init__(self, experiment: Experiment, plans: tuple[str, ...]) -> None:
        self.experiment, self._plans = experiment, plans
        self.memory = shared_memory(ELEMENTS)
        #: Index, seed and process number of each.
        self.started: list[tuple[int, tuple[int, ...], int]] = []
        #: Whoever was started while another of its index lived.
        self.doubles: list[int] = []
        #: Nobody is started while this is not set.
        self.gate = threading.Event()
        self.gate.set()
        self.asked = 0
        #: None: whoever is silent waits.
        self.traced: int | None = None

    def trace(self, index: int) -> int | None:
        return self.traced

    def start_worker(self, index: int, line: Connection, seed: tuple[int, ...]) -> ForkedProcess:
        self.asked += 1
        assert self.gate.wait(PATIENCE)
        if any(other == index for other, _, _ in self.living()):
            self.doubles.append(index)
        plan = self._plans[min(index, len(self._plans) - 1)]
        process = LIGHT.start(
            "tests.child.workers:work", (index, self.memory, line, plan), self.experiment
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
    """A pool of so many, which ends without a trace.

    Its first process follows the first plan and so on, the rest the last one.
    """
    experiment = small(child=child or {"exchange": "episode"})
    yard = Yard(experiment, plans)
    pool = WorkerPool(experiment, "agent", "pool", yard)
    try:
        await pool.begin(count, 7, yard.memory.semaphore)
        yield pool, yard
    finally:
        yard.gate.set()
        async with asyncio.timeout(10):
            await pool.shutdown()
        yard.memory.close()
    assert not yard.living() and not yard.doubles


async def turn(pool: WorkerPool) -> Work:
    async with asyncio.timeout(PATIENCE):
        await pool.due()
    done = pool.take_work()
    pool.release()
    return done


async def full_turn(pool: WorkerPool, count: int) -> None:
    """Exchanges until so many have played between two of them."""
    async with asyncio.timeout(PATIENCE):
        while len((await turn(pool)).returns) != count:
            pass


# Where all wait, and none has played.


async def test_at_the_start_all_wait_for_all_and_no_exchange_is_due() -> None:
    async with begun(3, "episodes") as (pool, _):
        for _ in range(5):
            assert await turn(pool) == Work(36, [12.0] * 3)


async def test_one_that_dies_before_the_start_holds_nobody_up() -> None:
    async def alone(pool: WorkerPool) -> None:
        while True:
            assert await turn(pool) == Work(12, [12.0])

    async with begun(2, "episodes", "die") as (pool, _):
        with pytest.raises(EnvironmentFailure, match="agent 1 died 3 times"):
            await alone(pool)
        assert len(pool.pids) == 1


async def test_the_only_one_when_it_is_replaced_plays_before_there_is_an_exchange() -> None:
    async with begun(1, "episodes") as (pool, yard):
        assert await turn(pool) == Work(12, [12.0])
        await pool.due()
        assert pool.take_work() == Work(12, [12.0])
        os.kill(yard.pid(0), signal.SIGKILL)
        pool.release()
        assert await turn(pool) == Work(12, [12.0])
        assert len(yard.started) == 2


async def test_what_was_played_before_the_only_one_died_is_exchanged() -> None:
    async with begun(1, "episodes") as (pool, yard):
        await pool.due()
        os.kill(yard.pid(0), signal.SIGKILL)
        await eventually(lambda: len(yard.started) == 2)
        assert await turn(pool) == Work(12, [12.0])


async def test_waiting_for_the_start_may_be_given_up_and_taken_up_again() -> None:
    async with begun(2, "episodes") as (pool, _):
        for _ in range(50):
            with suppress(TimeoutError):
                await asyncio.wait_for(pool.due(), 0.001)
                break
        for _ in range(2):
            assert await turn(pool) == Work(24, [12.0] * 2)


# More and fewer.


async def test_those_that_are_added_take_part_and_other_elements_hold_nobody_up() -> None:
    async with begun(1, "episodes") as (pool, yard):
        assert await turn(pool) == Work(12, [12.0])
        assert await pool.resize(3) == []
        assert sorted(index for index, _, _ in yard.started) == [0, 1, 2]
        await full_turn(pool, 3)
        for _ in range(5):
            assert await turn(pool) == Work(36, [12.0] * 3)
        assert yard.memory.semaphore[3]


async def test_those_that_are_dismissed_end_and_are_neither_waited_for_nor_replaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with begun(3, "episodes") as (pool, yard):
        await full_turn(pool, 3)
        stays = yard.pid(0)
        assert await pool.resize(1) == [1, 2]
        assert pool.pids == [stays]
        await turn(pool)  # with what the two have said before
        for _ in range(5):
            assert await turn(pool) == Work(12, [12.0])
        await eventually(lambda: len(yard.living()) == 1)
        assert yard.memory.semaphore[1:].all()
        assert len(yard.started) == 3
    assert "lost" not in capsys.readouterr().err


async def test_what_those_that_are_dismissed_have_done_is_counted() -> None:
    async with begun(3, "episodes") as (pool, yard):
        await full_turn(pool, 3)
        until(lambda: yard.memory.semaphore.all())  # all wait again; nobody has listened since
        assert await pool.resize(1) == [1, 2]
        assert await turn(pool) == Work(36, [12.0] * 3)


async def test_an_exchange_is_due_when_the_one_that_all_wait_for_is_dismissed() -> None:
    async with begun(2, "episodes", "deaf") as (pool, yard):
        await turn(pool)
        waiting = asyncio.ensure_future(turn(pool))
        await eventually(lambda: yard.memory.semaphore[0])
        assert not waiting.done()
        assert await pool.resize(1) == [1]
        assert await waiting == Work(12, [12.0])


async def test_one_that_does_not_end_is_killed_before_another_takes_its_place() -> None:
    async with begun(2, "episodes", "deaf") as (pool, yard):
        await turn(pool)  # now the second hears nothing
        deaf = yard.pid(1)
        assert await pool.resize(1) == [1]
        assert psutil.pid_exists(deaf)
        assert await pool.resize(2) == []
        assert not psutil.pid_exists(deaf) and psutil.pid_exists(yard.pid(1))
        assert len(pool.pids) == 2


async def test_one_that_is_just_being_replaced_can_be_dismissed() -> None:
    async with begun(2, "episodes") as (pool, yard):
        await full_turn(pool, 2)
        yard.gate.clear()
        os.kill(yard.pid(1), signal.SIGKILL)
        await eventually(lambda: yard.asked == 3)
        resizing = asyncio.ensure_future(pool.resize(1))
        await turn(pool)
        await turn(pool)
        assert not resizing.done()
        yard.gate.set()
        assert await resizing == [1]
        assert pool.pids == [yard.pid(0)]
        await eventually(lambda: len(yard.living()) == 1)


async def test_one_that_dies_and_is_dismissed_at_once_is_not_replaced() -> None:
    async with begun(2, "episodes") as (pool, yard):
        await full_turn(pool, 2)
        os.kill(yard.pid(1), signal.SIGKILL)
        until(lambda: not psutil.pid_exists(yard.pid(1)))  # and the pool has not heard of it
        assert await pool.resize(1) == [1]
        await turn(pool)
        for _ in range(5):
            assert await turn(pool) == Work(12, [12.0])
        assert yard.asked == 2


async def test_a_resize_that_is_given_up_leaves_nobody_behind() -> None:
    async with begun(1, "episodes") as (pool, yard):
        yard.gate.clear()
        resizing = asyncio.ensure_future(pool.resize(3))
        await eventually(lambda: yard.asked == 3)
        resizing.cancel()
        await asyncio.wait((resizing,))
        assert resizing.cancelled()
    assert len(yard.started) == 3  # and `begun` has seen that all are gone


async def test_whoever_is_being_started_at_the_end_is_ended_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # They end by themselves.
    monkeypatch.setattr("genkidama.child.worker_pool.GRACE_SECONDS", 2 * PATIENCE)
    async with begun(2, "episodes") as (pool, yard):
        yard.gate.clear()
        os.kill(yard.pid(1), signal.SIGKILL)
        await eventually(lambda: yard.asked == 3)
        resizing, ending = (
            asyncio.ensure_future(pool.resize(1)),
            asyncio.ensure_future(pool.shutdown()),
        )
        await asyncio.sleep(0)
        yard.gate.set()
        async with asyncio.timeout(PATIENCE):
            await ending
        assert await resizing == []
        assert len(yard.started) == 3 and not yard.living() and not pool.pids


async def test_random_numbers_differ_by_child_index_birth_and_version() -> None:
    async with begun(2, "episodes") as (pool, yard):
        await pool.resize(3)
        seeds = [seed for _, seed, _ in sorted(yard.started)]
    name = zlib.crc32(b"pool")
    assert seeds == [(yard.experiment.seed, name, index, index + 1, 7) for index in range(3)]


# Progress.


async def test_steps_of_episodes_that_go_on_make_an_exchange_due() -> None:
    async with begun(2, "progress", exchange="free", exchange_seconds=0.0, exchange_steps=200) as (
        pool,
        _,
    ):
        for _ in range(3):
            done = await turn(pool)
            assert done.steps >= 200 and done.steps % 5 == 0
            assert done.returns == []


async def test_steps_that_an_exchange_has_taken_along_make_no_other_one_due() -> None:
    settings = {"exchange": "free", "exchange_seconds": 0.0, "exchange_steps": 50}
    async with begun(1, "progress", **settings) as (pool, _):
        for _ in range(3):
            async with asyncio.timeout(PATIENCE):
                await pool.due()
            due = pool._work.steps
            await eventually(lambda due=due: pool._work.steps > due)  # type: ignore[misc]
            assert pool.take_work().steps > 50
            pool.release()


WRAPPER = 'environment.wrappers = [{ name = "TimeLimit", options = { max_episode_steps = 1000 } }]'
OPTION = (
    "environment.options has the name that its documentation gives, such as max_episode_steps or "
    "max_cycles"
)


@pytest.mark.parametrize(
    ("exchange", "cost", "environment", "way"),
    [
        ("episode", ', and no exchange (child.exchange = "episode")', {}, WRAPPER),
        ("free", "", {}, WRAPPER),
        ("free", "", {"vectorized": True}, OPTION),
        ("free", "", {"id": "pettingzoo:sisl.pursuit_v4"}, OPTION),
    ],
)
async def test_an_environment_that_ends_no_episode_is_told_once_with_the_way_out(
    exchange: str,
    cost: str,
    environment: dict[str, Any],
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(crew_module, "ENDLESS_STEPS", 50)
    async with begun(2, "progress", exchange=exchange) as (pool, _):
        pool._experiment = small(environment=environment)
        await eventually(lambda: pool._work.steps >= 300)
    (line,) = (each for each in capsys.readouterr().err.splitlines() if "no episode ends" in each)
    told = json.loads(line)
    assert told["level"] == "warning"
    assert told["reason"] == (
        f"none in the last 100 steps, so there is no return{cost}; if the environment never ends "
        f"one by itself, set a limit: {way}"
    )


async def test_where_episodes_end_nothing_is_said_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(crew_module, "ENDLESS_STEPS", 11)
    async with begun(1, "episodes") as (pool, _):
        for _ in range(5):
            assert await turn(pool) == Work(12, [12.0])
    assert "no episode ends" not in capsys.readouterr().err


@pytest.mark.parametrize("plan", ["fall", "end"])
async def test_who_makes_progress_may_die_again_and_again(
    plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew_module, "_FIRST_REST", 0.01)
    async with begun(1, plan, exchange="free", exchange_seconds=0.01) as (pool, yard):
        steps = 0
        while steps < 30:
            steps += (await turn(pool)).steps
        assert len(yard.started) >= 6


async def test_who_makes_none_ends_the_child_under_the_name_of_its_kind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with begun(1, "die") as (pool, yard):
        with pytest.raises(
            EnvironmentFailure,
            match=r"^agent 0 died 3 times without ending an episode: exit code 3$",
        ):
            await turn(pool)
        assert len(yard.started) == 3
    assert (
        '"agent": 0, "exit_code": 3, "reason": "exit code 3", "event": "agent lost"'
        in capsys.readouterr().err
    )


async def test_a_backend_may_say_that_training_cannot_go_on() -> None:
    async with begun(1, "deaf") as (pool, _):
        await turn(pool)
        waiting = asyncio.ensure_future(pool.due())
        await asyncio.sleep(0)
        pool.fail(EnvironmentFailure("the model is gone"))
        with pytest.raises(EnvironmentFailure, match="the model is gone"):
            await asyncio.wait_for(waiting, PATIENCE)


async def test_with_updates_an_exchange_is_due_when_each_has_made_one() -> None:
    async with begun(2, "updates", "updates", exchange="update") as (pool, _):
        for _ in range(2):
            async with asyncio.timeout(PATIENCE):
                await pool.due()
            assert pool.updates == {0: 0.0, 1: 1.0}
            assert pool.take_work() == Work(steps=24, returns=[12.0, 12.0])
            pool.updates = {}
            pool.release()


async def test_with_updates_an_episode_alone_makes_no_exchange_due() -> None:
    async with begun(1, "episodes", exchange="update") as (pool, _):
        due = asyncio.create_task(pool.due())
        await eventually(lambda: due.done() or pool._work.steps >= 60)
        assert not due.done()
        due.cancel()


async def test_in_chunks_one_that_is_woken_before_its_report_is_read_is_not_woken_again() -> None:
    lines = []

    class Starter:
        def start_worker(self, index: int, line: Connection, seed: object) -> Any:
            lines.append(Connection(os.dup(line.fileno())))
            return subprocess.Popen(["true"])

        def trace(self, index: int) -> int:
            return 0

    experiment = small(child={"exchange": "chunk"}, algorithm={"batch_size": 64})
    pool, elements = WorkerPool(experiment, "core", "pool", Starter()), np.zeros(1, np.bool_)
    await pool.begin(1, 7, elements)
    (line,) = lines
    elements[0] = True
    line.send_bytes(b"")
    pool.opened()
    pool.release()
    for _ in range(3):
        await asyncio.sleep(0)
    assert line.recv_bytes() == b"" and not line.poll()
    line.close()
    await pool.shutdown()


ABSENT, RUNNING, WAITING = "absent", "running", "waiting"

State = tuple[str, ...]
Action = tuple[str, int]


def possible(state: State) -> list[Action]:
    """What can happen next.

    A core says that it waits: an absent one comes with this word, from another it may be late. One
    that is there dies. A running one finishes its episode. All are released.
    """
    actions: list[Action] = []
    for core, word in enumerate(state):
        actions += [("enter", core)]
        actions += [("die", core)] if word != ABSENT else []
        actions += [("finish", core)] if word == RUNNING else []
    # The orchestrator releases at any time: after an exchange, and where there is none to make.
    return [*actions, ("release", -1)]


def after(state: State, action: Action) -> State:
    """The rules, in words.

    A core that comes or finishes waits; a late word changes nothing; the dead are absent; a release
    sets the waiting running.
    """
    kind, core = action
    if kind == "enter" and state[core] != ABSENT:
        return state
    if kind == "release":
        return tuple(RUNNING if word == WAITING else word for word in state)
    word = {"enter": WAITING, "finish": WAITING, "die": ABSENT}[kind]
    return (*state[:core], word, *state[core + 1 :])


def act(semaphore: SemaphoreVector, elements: np.ndarray, action: Action) -> list[int]:
    kind, core = action
    if kind == "release":
        return semaphore.release()
    if kind == "enter":
        semaphore.enter(core)
    elif kind == "die":
        semaphore.light(core)
    else:
        elements[core] = True  # the core itself, from its own process
    return []


def check(semaphore: SemaphoreVector, elements: np.ndarray, state: State) -> None:
    assert semaphore.all_lit is (RUNNING not in state and WAITING in state)
    assert elements.tolist() == [word != RUNNING for word in state]


@pytest.mark.parametrize("cores", [1, 2, 3, 4])
def test_in_every_state_that_can_be_reached_everybody_waits_for_those_that_run_and_for_no_dead(
    cores: int,
) -> None:
    start: State = (ABSENT,) * cores
    seen: set[State] = {start}
    paths: list[tuple[State, list[Action]]] = [(start, [])]
    for state, path in paths:
        for action in possible(state):
            # The whole story again, on a semaphore of its own: from where it came must not matter.
            elements = np.zeros(cores, np.bool_)
            semaphore = SemaphoreVector(elements)
            told = start
            check(semaphore, elements, told)
            for step in [*path, action]:
                waiting = (
                    [core for core, word in enumerate(told) if word == WAITING]
                    if step[0] == "release"
                    else []
                )
                assert act(semaphore, elements, step) == waiting, (told, step)
                told = after(told, step)
                check(semaphore, elements, told)
            if told not in seen:
                seen.add(told)
                paths.append((told, [*path, action]))
    assert len(seen) == 3**cores
