"""Processes that hang: who is killed and replaced, and what is said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from genkidama.child.orchestrator import CoreOrchestrator
from genkidama.runtime import watchdog
from genkidama.runtime.watchdog import Watchdog
from tests.helpers import PATIENCE, small


def watched(patience: float, marks: dict[int, int | None]) -> tuple[Watchdog, list[int]]:
    hung: list[int] = []
    found = Watchdog(patience, marks.__getitem__, lambda index, _: hung.append(index))
    for index in marks:
        found.ages.started(index)
        found.heard(index, waits=False)
    return found, hung


def test_one_that_is_silent_is_looked_at_and_hangs_only_if_nothing_changes() -> None:
    marks: dict[int, int | None] = {0: 0, 1: 0, 2: None}
    watching, hung = watched(10.0, marks)
    for step in range(30):
        marks[0] = step
        watching.look(1.0)
    assert hung == [1]  # and it is told once


def test_one_that_says_that_it_waits_is_left_alone() -> None:
    watching, hung = watched(5.0, {0: 0})
    watching.heard(0, waits=True)
    for _ in range(20):
        watching.look(1.0)
    assert hung == []


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.05)


async def lived(seconds: float, **sections: Any) -> tuple[list[int], int]:
    """Who lived at first, and how many episodes ended until others did, or the time is over."""
    settings = small(**sections)
    orchestrator = CoreOrchestrator(settings, 1)
    episodes = 0
    try:
        async with asyncio.timeout(PATIENCE):
            await orchestrator.startup()
            await orchestrator.begin(None)
            first = orchestrator.pids
        try:
            async with asyncio.timeout(seconds):
                while not orchestrator.pids or orchestrator.pids == first:
                    await orchestrator.due()
                    episodes += len(orchestrator.take_work().returns)
                    orchestrator.release()
        except TimeoutError:
            return [], episodes
        return orchestrator.pids, episodes
    finally:
        await orchestrator.shutdown()


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("exchange", ["episode", pytest.param("free", marks=pytest.mark.slow)])
async def test_a_core_whose_environment_hangs_is_replaced_and_that_is_said(
    exchange: str, capsys: pytest.CaptureFixture[str]
) -> None:
    others, episodes = await lived(
        PATIENCE,
        environment={
            "id": "tests.tiny:Faulty",
            "options": {"length": 5, "fault": "sleep", "after": 3},
        },
        child={"exchange": exchange, "exchange_seconds": 0.05, "hang_seconds": 0.5},
    )
    assert others and episodes >= 3
    said = capsys.readouterr().err
    assert "core lost" in said and "it hung: it did nothing for " in said
    assert "raise child.hang_seconds" in said


@pytest.mark.usefixtures("_quick")
async def test_a_core_that_is_slow_in_the_middle_of_a_batch_does_not_hang() -> None:
    others, _ = await lived(
        1.3,
        environment={"id": "tests.tiny:Faulty", "options": {"length": 0, "fault": "slow"}},
        child={"exchange": "free", "exchange_seconds": 0.05, "hang_seconds": 0.5},
    )
    assert not others


async def test_a_core_whose_environment_gives_no_number_is_replaced_before_it_spoils_the_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    others, episodes = await lived(
        PATIENCE,
        environment={"id": "tests.tiny:Faulty", "options": {"fault": "nan", "after": 3}},
        child={"exchange": "free", "exchange_seconds": 0.05},
    )
    assert others and episodes >= 3
    assert "the environment gave NaN or infinity as a reward" in capsys.readouterr().err


async def test_a_core_that_eats_memory_at_once_gets_no_more_and_says_so(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Without the kernel's limit it would take 64 GB before it could notice that it leaks."""
    others, episodes = await lived(
        PATIENCE,
        environment={
            "id": "tests.tiny:Faulty",
            "options": {"length": 5, "fault": "eat", "after": 3},
        },
        child={"exchange": "free", "exchange_seconds": 0.05},
    )
    assert others and episodes >= 3
    assert "it took more than " in capfd.readouterr().err
