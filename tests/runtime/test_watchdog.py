"""Processes that hang: who is killed and replaced, and what is said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.child.orchestrator import CoreOrchestrator
from genkidama.runtime import watchdog
from genkidama.runtime.watchdog import HangDetector, Watchdog
from tests.helpers import PATIENCE, small


def watched(patience: float, marks: dict[int, int | None]) -> tuple[Watchdog, list[int]]:
    killed: list[int] = []
    found = Watchdog(patience, marks.__getitem__, lambda index, _: killed.append(index))
    for index in marks:
        found.ages.started(index)
        found.heard(index, waits=False)
    return found, killed


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


@pytest.mark.usefixtures("_quick")
async def test_the_reset_of_a_robot_may_wait_for_a_person() -> None:
    fault = {"length": 2, "fault": "sleep", "where": "reset", "after": 2}
    robot = {"id": "tests.tiny:Faulty", "options": fault, "period": 0.01}
    others, episodes = await lived(1.5, environment=robot, child={"hang_seconds": 0.2})
    assert episodes and not others


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


LIMIT = 30.0


def pass_by(ages: HangDetector, span: float) -> None:
    """So many seconds, in ticks of one."""
    for _ in range(round(span)):
        ages.tick(1.0)


def test_one_that_falls_silent_hangs_after_the_patience_and_nobody_else_does() -> None:
    ages = HangDetector(LIMIT)
    for index in (0, 1, 2):
        ages.started(index)
        ages.sign(index)
    ages.rest(2)
    for _ in range(round(LIMIT)):
        ages.tick(1.0)
        ages.sign(1)
        assert ages.hung == []
    ages.tick(1.0)
    assert [index for index, _ in ages.hung] == [0]
    assert ages.quiet == [0]
    ages.forget(0)
    pass_by(ages, 10.0 * LIMIT)
    assert [index for index, _ in ages.hung] == [1]


def test_it_is_looked_at_from_a_quarter_of_the_patience_on() -> None:
    ages = HangDetector(LIMIT)
    ages.started(0)
    for _ in range(15):  # in halves of a second
        ages.tick(0.5)
    assert ages.quiet == []
    ages.tick(0.5)
    assert ages.quiet == [0]


async def test_it_looks_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sleeping:
        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            await asyncio.sleep(0.0 if len(slept) < 3 else 1e6)

    slept: list[float] = []
    monkeypatch.setattr(watchdog, "asyncio", Sleeping())
    watching, _ = watched(5.0, {0: 0})
    watching.begin()
    while len(slept) < 3:
        await asyncio.sleep(0.0)
    watching.end()
    assert slept == [1.0] * 3


async def test_without_patience_nobody_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.0)
    looked: list[int] = []
    watching = Watchdog(0.0, looked.append, lambda *_: None)
    watching.ages.started(0)
    watching.begin()
    await asyncio.sleep(0.01)
    watching.end()
    assert looked == []


def test_one_that_is_born_may_take_its_time_and_one_that_is_woken_may_not() -> None:
    ages = HangDetector(LIMIT)
    ages.started(0)
    pass_by(ages, 10.0 * LIMIT)
    assert ages.hung == []
    ages.tick(1.0)
    assert ages.hung == [(0, 10.0 * LIMIT + 1.0)]
    ages.rest(0)
    assert ages.hung == []
    ages.wake(0)
    pass_by(ages, LIMIT + 1.0)
    assert [index for index, _ in ages.hung] == [0]


@given(st.floats(LIMIT / 2, 200.0), st.floats(0.0, 3.0))
def test_the_limit_is_learned_from_the_crew(longest: float, times: float) -> None:
    """Whoever has once taken longer, may take some times as long, and so may its siblings."""
    ages = HangDetector(1000.0)
    ages.started(0)
    ages.sign(0)
    ages._patience = LIMIT  # as if it had just not been too long
    for _ in range(int(longest)):
        ages.tick(1.0)
    ages.sign(0)
    assert LIMIT <= ages.limit <= max(LIMIT, 4.0 * longest)
    ages.started(1)
    ages.sign(1)
    for _ in range(int(times * int(longest) * 0.75)):
        ages.tick(1.0)
    assert [index for index, _ in ages.hung] == []


def test_what_was_learned_is_forgotten() -> None:
    ages = HangDetector(LIMIT)
    ages.started(0)
    ages.sign(0)
    pass_by(ages, LIMIT - 1.0)
    ages.sign(0)
    learned = ages.limit
    assert learned > 3.0 * LIMIT
    ages.rest(0)
    pass_by(ages, 600.0)
    assert abs(ages.limit - learned / 2.0) < 0.01
    pass_by(ages, 6000.0)
    assert ages.limit == LIMIT


@given(st.lists(st.floats(0.0, 1e9), max_size=14))
def test_a_machine_that_slept_finds_nobody_old(gaps: list[float]) -> None:
    ages = HangDetector(LIMIT)
    ages.started(0)
    ages.sign(0)
    for gap in gaps:
        ages.tick(gap)
        assert ages.hung == []


@given(
    st.lists(st.sampled_from(["sign", "rest", "wake", "tick", "started", "forget"]), max_size=200)
)
def test_who_gives_a_sign_or_waits_does_not_hang(story: list[str]) -> None:
    ages = HangDetector(1.0)
    for what in story:
        if what == "tick":
            ages.tick(0.9)
        else:
            getattr(ages, what)(0)
            assert ages.hung == [] or what == "wake"
        assert ages.limit >= 1.0
