"""Hogwild: cores that act, learn and die on shared memory, on problems whose optima are known."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from genkidama.child.orchestrator import CoreOrchestrator
from genkidama.config.experiment import Experiment
from genkidama.protocol.vector import Vector
from tests.child.problems import bandit_solved, corridor_solved, experiment

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def training(settings: Experiment, cores: int = 2) -> AsyncIterator[CoreOrchestrator]:
    orchestrator = CoreOrchestrator(settings, cores)
    try:
        async with asyncio.timeout(60):
            await orchestrator.startup()
            await orchestrator.begin(None)
        yield orchestrator
    finally:
        await orchestrator.shutdown()


async def train(
    orchestrator: CoreOrchestrator, enough: Callable[[Vector], bool], seconds: float = 40.0
) -> int:
    """Exchanges with nobody until `enough` of the weights; the number of episodes that it took."""
    episodes = 0
    async with asyncio.timeout(seconds):
        while True:
            await orchestrator.due()
            episodes += len(orchestrator.take_work().returns)
            weights = orchestrator.snapshot()
            orchestrator.release()
            if enough(weights):
                return episodes


def bandit(algorithm: str = "a3c", lanes: int = 1, **child: Any) -> Experiment:
    settings = {"name": algorithm, "batch_size": 32, "gamma": 0.9, "entropy_coefficient": 0.01} | (
        {"minibatch_size": 16, "epochs": 2} if algorithm == "ppo" else {}
    )
    return experiment(
        "Bandit",
        {"start": 1},
        environment={"lanes": lanes},
        algorithm=settings,
        optimizer={"learning_rate": 0.01},
        child={"exchange_seconds": 0.1, **child},
    )


def corridor(algorithm: str = "ppo", **child: Any) -> Experiment:
    settings = {
        "name": algorithm,
        "batch_size": 64,
        "gamma": 0.8,
        "gae_lambda": 0.95,
        "entropy_coefficient": 0.001,
    }
    settings |= (
        {"minibatch_size": 32, "epochs": 4}
        if algorithm == "ppo"
        else {"across_episodes": False, "pull_steps": 128}
    )
    return experiment(
        "Corridor",
        algorithm=settings,
        optimizer={"learning_rate": 0.005},
        child={"exchange_seconds": 0.1, **child},
    )


@pytest.mark.parametrize("exchange", ["free", "episode"])
async def test_two_cores_find_the_best_action_of_every_context(exchange: str) -> None:
    """By PPO; by A3C they do in the test of a core that is killed."""
    settings = bandit("ppo", exchange=exchange)
    solved = bandit_solved(settings)
    async with training(settings) as orchestrator:
        assert not solved(orchestrator.snapshot())
        assert await train(orchestrator, solved) > 100


async def test_so_they_do_in_four_lanes_each() -> None:
    settings = bandit(lanes=4, exchange="episode")
    solved = bandit_solved(settings)
    async with training(settings) as orchestrator:
        assert await train(orchestrator, solved) > 100


@pytest.mark.parametrize(("exchange", "algorithm"), [("free", "ppo"), ("episode", "a3c")])
async def test_two_cores_find_the_way_and_what_every_cell_is_worth(
    exchange: str, algorithm: str
) -> None:
    settings = corridor(algorithm, exchange=exchange)
    async with training(settings) as orchestrator:
        await train(orchestrator, corridor_solved(settings))


@pytest.mark.parametrize("exchange", ["free", "episode"])
async def test_a_core_that_is_killed_is_replaced_and_learning_goes_on(exchange: str) -> None:
    settings = bandit(exchange=exchange)
    solved = bandit_solved(settings)
    async with training(settings) as orchestrator:
        start, before = orchestrator.snapshot(), orchestrator.pids
        assert await train(orchestrator, solved) > 100
        os.kill(before[0], signal.SIGKILL)
        await train(
            orchestrator,
            lambda _: len(orchestrator.pids) == 2 and before[0] not in orchestrator.pids,
        )
        assert before[1] in orchestrator.pids
        # From the beginning again: the two that are there now must learn it, and both take part.
        orchestrator.memory.head[:] = 0
        orchestrator.memory.replay[:] = 0.0
        orchestrator.reset(start)
        assert not solved(orchestrator.snapshot())
        await train(
            orchestrator, lambda weights: solved(weights) and orchestrator.memory.head.all()
        )
        assert orchestrator.memory.replay[:, :, 4].any(1).all()  # rewards, in both shares
