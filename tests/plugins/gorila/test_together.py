from __future__ import annotations

import asyncio

import pytest

from genkidama.plugins.gorila.sharded_connection import gather_all, wait_any


async def _later(value: int, ended: list[int]) -> int:
    try:
        await asyncio.sleep(0.01 * value)
        return value
    finally:
        ended.append(value)


async def _fail() -> int:
    raise ValueError("no")


async def test_all_results_come_in_their_order() -> None:
    ended: list[int] = []
    assert await gather_all(_later(value, ended) for value in (2, 1)) == [2, 1]
    assert ended == [1, 2]


async def test_the_first_error_ends_the_others() -> None:
    ended: list[int] = []
    with pytest.raises(ValueError, match="no"):
        await gather_all([_later(1000, ended), _fail()])
    assert ended == [1000]


async def test_the_first_end_ends_the_others() -> None:
    ended: list[int] = []
    await wait_any(_later(value, ended) for value in (1, 1000))
    assert ended == [1, 1000]


async def test_what_is_cancelled_cancels_all() -> None:
    ended: list[int] = []
    task = asyncio.create_task(gather_all(_later(value, ended) for value in (1000, 2000)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [1000, 2000]
