"""GA3C with real agents and a real engine, and the engine's process by itself.

It keeps the contract of every backend.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.environments import make_environment
from genkidama.learning.tensors.tensor_model import TensorModel
from genkidama.plugins.ga3c import backend
from genkidama.plugins.ga3c.backend import GA3C, EngineProcess, Rates
from genkidama.plugins.ga3c.slots import Count, SlotLayout, Slots, pipe, put
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.runtime.process import start_program
from tests.child.problems import bandit_solved, corridor_solved
from tests.child.test_orchestrator import TestContract  # noqa: F401  # which runs here
from tests.helpers import (
    PATIENCE,
    eventually,
    gone,
    merged,
    python,
    shared_memory,
    small,
    starting,
    until,
)
from tests.plugins.ga3c.forked import forked_engines
from tests.runtime.test_shared_block import descriptors


def experiment(
    environment: str, options: dict[str, Any] | None = None, **sections: dict[str, Any]
) -> Experiment:
    """GA3C with a tiny network; sections are merged key by key."""
    settings: dict[str, Any] = {
        "environment": {
            "id": environment
            if ":" in environment or "-" in environment
            else f"tests.environments:{environment}"
        },
        "network": {"hidden": [16]},
        "algorithm": {"name": "a3c", "batch_size": 5},
        "child": {"backend": "ga3c", "exchange": "free", "exchange_seconds": 0.1},
        "ga3c": {"agents": 2, "dynamic": False},
    }
    settings["environment"]["options"] = options or {}
    return merged(settings, **sections)


def bandit(**sections: dict[str, Any]) -> Experiment:
    return experiment(
        "Bandit",
        {"start": 1},
        algorithm={"gamma": 0.9, "entropy_coefficient": 0.01},
        optimizer={"learning_rate": 0.03},
        **{"ga3c": {"agents": 2, "dynamic": False, "training_batch": 8}, **sections},
    )


def faulty(**options: Any) -> Experiment:
    return experiment("tests.tiny:Faulty", options)


@asynccontextmanager
async def training(settings: Experiment, cores: int = 2) -> AsyncIterator[GA3C]:
    backend = GA3C(settings, cores)
    try:
        async with asyncio.timeout(60):
            await backend.startup()
            await backend.begin(None)
        yield backend
    finally:
        async with asyncio.timeout(10):
            await backend.shutdown()


async def exchange(backend: GA3C) -> Any:
    """One exchange with nobody."""
    await backend.due()
    work = backend.take_work()
    backend.release()
    return work


async def train(backend: GA3C, enough: Callable[[Vector], Any], seconds: float = 60.0) -> int:
    """Exchanges with nobody until `enough` of the weights; the number of episodes that it took."""
    episodes = 0
    async with asyncio.timeout(seconds):
        while not enough(backend.snapshot()):
            episodes += len((await exchange(backend)).returns)
    return episodes


def updates(backend: GA3C) -> int:
    return int(backend.slots.counters[:, Count.UPDATES].sum())


@pytest.fixture(scope="module", autouse=True)
def engines() -> Iterator[None]:
    with forked_engines():
        yield
    backend.AGENTS.close()


# Learning.


@pytest.fixture(
    params=["free", pytest.param("episode", marks=pytest.mark.slow)]  # `TestBandit` has a pause
)
def plugged(request: pytest.FixtureRequest) -> Experiment:
    """As `TestContract`, whose test runs here, asks for it."""
    return small(child={"backend": "ga3c", "exchange": request.param}, ga3c={"agents": 2})


@dataclass
class Begun:
    """A backend that has begun with the bandit."""

    backend: GA3C
    initial: Vector
    solved: Callable[[Vector], bool]


@pytest_asyncio.fixture(scope="class", loop_scope="class", params=["episode", "free"])
async def begun(request: pytest.FixtureRequest) -> AsyncIterator[Begun]:
    settings = bandit(child={"backend": "ga3c", "exchange": request.param, "exchange_seconds": 0.1})
    backend = GA3C(settings, 2)
    async with asyncio.timeout(60):
        await backend.startup()
        initial = backend.snapshot()
        await backend.begin(None)
    yield Begun(backend, initial, bandit_solved(settings))
    async with asyncio.timeout(10):
        await backend.shutdown()


@pytest.mark.asyncio(loop_scope="class")
class TestBandit:
    async def test_agents_find_the_best_action_of_every_context(self, begun: Begun) -> None:
        """Only the last step is rewarded. The authors' program drops that reward."""
        backend, solved = begun.backend, begun.solved
        assert not solved(begun.initial)
        assert await train(backend, solved) > 100

    @pytest.mark.parametrize("begun", ["episode"], indirect=True)
    async def test_with_episodes_each_agent_plays_one_between_two_exchanges(
        self, begun: Begun
    ) -> None:
        await exchange(begun.backend)
        found = [len((await exchange(begun.backend)).returns) for _ in range(50)]
        assert set(found) == {2}

    async def test_an_agent_that_is_killed_is_replaced_and_learning_goes_on(
        self, begun: Begun
    ) -> None:
        backend, before = begun.backend, begun.backend.pids
        os.kill(before[0], signal.SIGKILL)
        await train(backend, lambda _: len(backend.pids) == 2 and before[0] not in backend.pids)
        assert before[1] in backend.pids
        backend.reset(begun.initial)
        await train(backend, begun.solved)

    @pytest.mark.parametrize("begun", ["free"], indirect=True)
    async def test_an_engine_that_is_killed_is_replaced_and_nothing_is_forgotten(
        self, begun: Begun, capsys: pytest.CaptureFixture[str]
    ) -> None:
        backend = begun.backend
        seen: list[Vector] = []

        def solved(weights: Vector) -> bool:  # since the test before, the agents have gone on
            seen[:] = [weights]
            return begun.solved(weights)

        await train(backend, solved)
        (learned,), agents, first = seen, backend.pids, backend._engine
        assert first is not None
        first.kill()
        await train(backend, lambda _: backend._engine is not first)
        before = updates(backend)
        await train(backend, lambda _: updates(backend) > before + 50)
        found = backend.snapshot()
        assert np.abs(found - learned).max() < 0.5 * np.abs(found - begun.initial).max()
        assert backend.pids == agents
        assert "engine lost" in capsys.readouterr().err

    @pytest.mark.parametrize("begun", ["free"], indirect=True)
    async def test_it_goes_on_from_a_state_of_its_own(self, begun: Begun) -> None:
        """And what is learned during an exchange is kept: θ_C ← θ_C + β(θ_P − θ_sent)."""
        await train(begun.backend, begun.solved)
        state = begun.backend.state()
        assert state["clock"] > 0
        assert state["state"].any()
        again = GA3C(bandit(), 2)
        try:
            await again.startup()
            assert not begun.solved(again.snapshot())
            again.restore(state)
            assert begun.solved(again.snapshot())
            again.reset(state["weights"])
            assert not again.slots.state.any()
            assert not again.slots.clock.any()
            sent = again.snapshot()
            again.slots.weights += 1.0  # learned meanwhile
            again.blend(sent, sent + 10.0, 0.5)
            np.testing.assert_allclose(again.snapshot(), sent + 6.0, rtol=1e-5)
        finally:
            await again.shutdown()


@pytest.mark.parametrize(
    ("algorithm", "ga3c"),
    [
        (
            {"name": "a3c", "batch_size": 16, "vtrace": True},
            {"agents": 1, "environments": 4, "predictors": 2, "trainers": 2},
        ),
        (
            {"name": "ppo", "batch_size": 16, "minibatch_size": 16, "gae_lambda": 0.95},
            {"agents": 2, "environments": 2},
        ),
    ],
    ids=["vtrace, two threads of each", "ppo"],
)
async def test_agents_with_several_environments_find_the_way_and_what_every_cell_is_worth(
    algorithm: dict[str, Any], ga3c: dict[str, Any]
) -> None:
    settings = experiment(
        "Corridor",
        algorithm={"gamma": 0.8, "entropy_coefficient": 0.001, **algorithm},
        optimizer={"learning_rate": 0.003},
        ga3c={"dynamic": False, "training_batch": 64, **ga3c},
    )
    async with training(settings) as backend:
        await train(backend, corridor_solved(settings))


# Measures.


async def test_a_balanced_run_predicts_t_max_times_as_often_as_it_trains() -> None:
    """PPS ≈ TPS × t_max, where episodes do not cut rollouts short (Babaeizadeh et al. 2017, §4).

    And an exchange is due after so many steps, though no episode ends.
    """
    settings = experiment(
        "tests.tiny:Faulty",
        {"length": 0},
        child={
            "backend": "ga3c",
            "exchange": "free",
            "exchange_seconds": 0.0,
            "exchange_steps": 400,
        },
        ga3c={"agents": 4, "dynamic": False, "training_batch": 20},
    )
    async with training(settings) as backend, asyncio.timeout(60):
        work = await exchange(backend)
        assert work.steps >= 400
        assert not work.returns
        before = backend.slots.counters.sum(0)
        predictions = rollouts = 0.0
        while rollouts < 200:
            await backend.due()
            done = backend.slots.counters.sum(0) - before
            predictions, rollouts = done[Count.PREDICTIONS], done[Count.ROLLOUTS]
            backend.release()
        measures = backend.take_work().measures
    # At either end of the window, each agent has at most its slots full of steps that are acted and
    # not yet trained on.
    assert abs(predictions - rollouts * 5) <= 2 * 4 * 3 * 5
    assert measures["training_batch"] == pytest.approx(20, abs=0.5)
    assert 1 <= measures["prediction_batch"] <= 4
    assert 0 <= measures["lag"] <= 12
    assert {name: measures[name] for name in ("predictors", "trainers", "agents")} == {
        "predictors": 1,
        "trainers": 1,
        "agents": 4,
    }


async def test_an_agent_has_no_torch_and_little_memory_of_its_own() -> None:
    async with training(experiment("LunarLander-v3")) as backend:
        await train(backend, lambda _: updates(backend) > 20)
        for pid in backend.pids:
            assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
            assert psutil.Process(pid).memory_full_info().uss <= 20e6


async def test_threads_and_agents_are_adjusted_while_it_runs() -> None:
    settings = experiment(
        "Corridor",
        ga3c={
            "dynamic": True,
            "agents": 2,
            "window_seconds": 0.1,
            "max_predictors": 2,
            "max_trainers": 2,
            "max_agents": 3,
        },
    )
    async with training(settings) as backend:
        tried: set[tuple[int, ...]] = set()

        def several(_: Vector) -> bool:
            tried.add(tuple(backend.setting))
            return len(tried) > 4 and {agents for *_, agents in tried} >= {2, 3}

        await train(backend, several)
        assert backend.adjustment is not None
        assert len(backend.adjustment.trace) >= 4
        await train(backend, lambda _: len(backend.pids) == backend.setting.agents)
        before = updates(backend)
        await train(backend, lambda _: updates(backend) > before + 20)


# What goes wrong.


async def test_an_engine_that_dies_again_and_again_ends_the_child() -> None:
    async with training(bandit()) as backend:

        def kill(_: Vector) -> None:
            assert backend._engine is not None
            backend._engine.kill()

        with pytest.raises(
            EnvironmentFailure, match="died 3 times without an update: exit code -9"
        ):
            await train(backend, kill)


async def test_an_engine_that_cannot_be_started_again_ends_the_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def launch() -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(backend, "_RETRY_SECONDS", 0.0)
    child = GA3C(bandit(child={"exchange_seconds": 60.0}), 1)
    child._slots = SimpleNamespace(updates=0)  # type: ignore[assignment]
    monkeypatch.setattr(child, "_launch", launch)
    child.engine_lost("exit code -9", False)
    async with asyncio.timeout(10):
        with pytest.raises(EnvironmentFailure, match=r"died 3 times .* started: Cannot allocate"):
            await child.due()
    child._slots = None
    await child.shutdown()


async def test_an_engine_that_dies_as_it_builds_is_told() -> None:
    """What else it may be is in `test_engine.py`."""
    backend = GA3C(faulty(fault="kill", where="construct"), 1)
    try:
        with pytest.raises(EnvironmentFailure, match="cannot be seen: the process ended: killed"):
            await backend.startup()
    finally:
        await backend.shutdown()


def test_no_cores_are_the_users_mistake() -> None:
    with pytest.raises(ConfigurationError, match="cores = 0: at least 1 is needed"):
        GA3C(faulty(), 0)


# The engine's process.

BANDIT = Experiment.from_dict(
    {
        "environment": {"id": "tests.environments:Bandit"},
        "network": {"hidden": [6]},
        "algorithm": {"name": "a3c", "batch_size": 4},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "child": {"backend": "ga3c"},
        "ga3c": {"device": "cpu"},
    }
)


class Started:
    """An engine's process and what a backend has of it, for two agents."""

    def __init__(self) -> None:
        self.predictions, self.training, self.bells = pipe(), pipe(), [pipe() for _ in range(2)]
        ends = (*self.predictions, *self.training, *(bell for _, bell in self.bells))
        self.lost: list[tuple[str, bool]] = []
        self.process = EngineProcess([end.fileno() for end in ends], self)

    def engine_lost(self, reason: str, alive: bool) -> None:
        self.lost.append((reason, alive))

    async def put_to_work(self) -> tuple[Any, ...]:
        """Has a predictor and a trainer start; the engine's description."""
        description = entries, vector, facts, _ = await self.process.build(BANDIT)
        size = Signature.of(entries).size
        self.slots = Slots(
            SlotLayout(agents=2, environments=1, rollouts=3, steps=4, size=size, threads=4, **facts)
        )
        self.slots.weights[:] = np.frombuffer(vector, DTYPE)
        self.process.attach(self.slots)
        self.process.tell("reset")
        self.process.tell("resize", 1, 1)
        return description

    async def ask(self) -> None:
        """Has agent 1 ask for a prediction of the first row of its lane, and awaits the answer."""
        self.slots.position[1] = 12
        self.slots.asked[1] += 1
        put(self.predictions[1].fileno(), (1,))
        while self.slots.answered[1] != self.slots.asked[1]:
            await asyncio.to_thread(self.bells[1][0].poll, 0.1)

    async def end(self) -> None:
        await self.process.end()
        bells = (end for bell in self.bells for end in bell)
        for end in (*self.predictions, *self.training, *bells):
            end.close()


@pytest.fixture
async def started() -> AsyncIterator[Started]:
    found = Started()
    async with asyncio.timeout(PATIENCE):
        yield found
    await found.end()


async def test_it_says_what_its_network_is_predicts_learns_and_ends(started: Started) -> None:
    model = TensorModel(BANDIT, make_environment(BANDIT.environment))
    description = await started.put_to_work()
    facts = {
        "observation_shape": (3,),
        "observation_type": "float32",
        "action_columns": 1,
        "trainable": 76,
        "state_rows": 1,
    }
    assert description == (model.signature.entries, model.numbers.tobytes(), facts, "cpu")
    slots = started.slots
    slots.observations[12] = [0.5, -1.0, 2.0]
    await started.ask()
    with torch.no_grad():
        _, value = model.network(torch.tensor([[0.5, -1.0, 2.0]]))
    assert slots.values[12] == pytest.approx(value.item())
    # As Ctrl-C, which is the orchestrator's business.
    os.kill(started.process.pid, signal.SIGINT)
    slots.rewards[12], slots.lengths[3], slots.busy[3] = 5.0, 1, True
    put(started.training[1].fileno(), (3,))
    await eventually(lambda: slots.updates == 1)
    assert (slots.weights != model.numbers).any()
    # A thread counts what it has done when it has told of it.
    await eventually(lambda: slots.counters.sum(0).tolist() == [1, 1, 1, 1, 1, 0])
    await started.process.end()
    assert started.process.wait(0) == 0 and not started.lost


async def test_one_that_cannot_build_what_it_is_told_says_why_and_ends(started: Started) -> None:
    nowhere = BANDIT.with_settings({"environment.id": "tests.nowhere:Nothing"})
    with pytest.raises(ConfigurationError, match=r"^environment.id = 'tests.nowhere:Nothing': "):
        await started.process.build(nowhere)
    await eventually(lambda: started.process.wait(0) is not None)
    assert started.process.wait(0) == 1


@pytest.mark.parametrize("described", [False, True], ids=["as it is born", "before its memory"])
async def test_one_that_nobody_talks_to_ends_without_a_word(
    started: Started, described: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """As one whose starter has died or been told to stop."""
    if described:
        await started.process.build(BANDIT)
        started.process.hang_up()
    else:
        started.process.pipe.close()
    assert await asyncio.to_thread(started.process.wait, PATIENCE) == 0
    assert capfd.readouterr().err == ""


# What is left behind.


async def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    names = shared_memory(os.getpid())

    async def life(killed: bool) -> list[psutil.Process]:
        async with training(bandit()) as backend:
            await train(backend, lambda _: updates(backend) > 20)
            assert backend._engine is not None
            processes = [psutil.Process(pid) for pid in (*backend.pids, backend._engine.pid)]
            assert shared_memory(os.getpid(), *(each.pid for each in processes)) <= names
            if killed:
                os.kill(backend.pids[0], signal.SIGKILL)
                backend._engine.kill()
                first = backend._engine
                await train(backend, lambda _: backend._engine is not first)
                processes += [psutil.Process(pid) for pid in backend.pids]
            return processes

    assert not any(process.is_running() for process in await life(killed=False))
    await asyncio.sleep(0)  # a cancelled task goes in the next turn of the loop
    before = descriptors()  # with the forkservers, which stay
    # One whole program, as a child's engines are, and for the next one a fork.
    fork, programs = backend.start_program, iter([start_program])
    monkeypatch.setattr(backend, "start_program", lambda *args: next(programs, fork)(*args))
    assert not any(process.is_running() for process in await life(killed=True))
    # A thread that has waited for a process goes later.
    await eventually(lambda: descriptors() <= before)


async def test_stopped_while_the_environment_is_built_it_does_not_wait() -> None:
    """A minute, here; nor does a thread wait, for whose end the program would."""
    backend = GA3C(faulty(fault="sleep", where="construct"), 1)
    beginning = asyncio.ensure_future(backend.startup())
    await eventually(lambda: backend._engine is not None)
    beginning.cancel()
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait((beginning,))
        await backend.shutdown()
        await asyncio.get_running_loop().shutdown_default_executor()


#: It imports nothing of this file, which imports torch.
SCRIPT = f"""
import asyncio, sys
from genkidama.config.experiment import Experiment
from genkidama.plugins.ga3c.backend import GA3C

async def main():
    backend = GA3C(Experiment.from_dict({bandit().to_dict()!r}), 2)
    await backend.startup()
    await backend.begin(None)
    await backend.due()
    assert "torch" not in sys.modules, "a child that waits imports no torch"
    print("trains", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_child_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    """Of the engine, too, which is a program here, whose threads sleep in their queues."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with starting(tmp_path) as start:
        child = start("script")
        until(lambda: "trains" in child.out, "it trains")
        family = child.family()
        assert len(family) >= 5  # itself, the engine, the nursery, two agents
        os.kill(child.pid, signal.SIGKILL)
        until(lambda: gone(*(each.pid for each in family)), "its family's end", 10.0)


MANY = """
import resource
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.plugins.ga3c.backend import GA3C

for hard in (8192, 1024):
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        GA3C(Experiment().with_settings({"child.backend": "ga3c", "ga3c.max_agents": 600}), 2)
    except ConfigurationError as error:
        print(error)
    else:
        print("is built")
"""


def test_more_agents_than_files_may_be_opened_for_are_the_users_mistake() -> None:
    built, refused = python("-c", MANY).stdout.splitlines()
    assert built == "is built"
    assert re.fullmatch(
        r"ga3c.max_agents = 600: this process may open files for 17\d agents; .*: ulimit -n, .*",
        refused,
    )


def test_rates_are_those_since_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(backend.time, "monotonic", lambda: now)
    found = Rates()
    counters = np.zeros(len(Count), np.int64)
    counters[:] = [60, 20, 8, 40, 4, 80]
    now = 12.0
    expected = {"tps": 4.0, "pps": 30.0, "updates": 2.0}
    means = {"prediction_batch": 3.0, "training_batch": 10.0, "lag": 2.0}
    assert found.figures(counters) == expected | means
    now = 13.0
    later = found.figures(counters.copy())
    assert later["tps"] == later["pps"] == later["updates"] == 0.0
    assert all(math.isnan(later[name]) for name in means)


async def test_weights_on_a_device_are_copied_also_for_an_exchange_that_does_not_wait() -> None:
    """Or the child would push those that it has begun with."""
    copies = []

    async def publish() -> None:
        copies.append(1)

    backend = GA3C.__new__(GA3C)
    backend._on_device, backend._engine = True, SimpleNamespace(publish=publish)  # type: ignore[assignment]
    backend._pool = SimpleNamespace(due=asyncio.Event().wait)  # type: ignore[assignment]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await backend.due()
    assert copies == [1]
