"""The feed: one encoding for all, thinned, and the whole document for who was slow."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from genkidama.plugins.dashboard import broadcast
from genkidama.plugins.dashboard.broadcast import Broadcaster, Page
from genkidama.runs.status import RunStatus, fold
from tests.stories import BEGAN, began, pushed, told


class Viewer:
    """Keeps the frames that it is sent."""

    def __init__(self) -> None:
        self.free = True
        self.frames: list[bytes] = []

    def write_frame(self, frame: bytes) -> None:
        assert self.free
        self.frames.append(frame)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(content(frame)) for frame in self.frames]


def content(frame: bytes) -> bytes:
    """What is in a frame, as websockets reads it."""
    reader = StreamReader()
    reader.feed_data(frame)
    parsing = Frame.parse(reader.read_exact, mask=False, max_size=None)
    try:
        next(parsing)
    except StopIteration as end:
        assert end.value.opcode is Opcode.TEXT and end.value.fin
        return bytes(end.value.data)
    raise AssertionError("more is expected")


class Shown(Page):
    """Counts how often it is completed."""

    completed = 0

    def now(self) -> float:
        return BEGAN + 5

    def complete(self) -> None:
        self.completed += 1


def watched(status: RunStatus) -> Broadcaster:
    return Shown(status).feed


async def test_all_are_given_the_same_bytes_and_the_slow_ones_the_whole() -> None:
    status = told(began("a"))
    feed = watched(status)
    first, second = Viewer(), Viewer()
    feed.add(first)
    status.take([pushed(1)])
    feed.send()
    feed.add(second)
    second.free = False
    status.take([pushed(2)])
    feed.send()
    second.free = True
    status.take([pushed(3)])
    feed.send()
    status.take([pushed(4)])
    feed.send()
    assert [message["type"] for message in first.messages] == ["status"] + 4 * ["change"]
    assert [message["type"] for message in second.messages] == ["status", "status", "change"]
    assert first.frames[-1] is second.frames[-1]
    seen = [None, None]
    for number, viewer in enumerate((first, second)):
        for message in viewer.messages:
            seen[number] = fold(seen[number], message)  # type: ignore[call-overload]
    assert seen[0] == seen[1] and len(seen[0]["learning"]["curve"]["rows"]) == 4  # type: ignore[index]
    feed.close()


async def test_the_status_is_made_once_for_many_and_again_after_a_change() -> None:
    status = told(began("a"))
    feed = watched(status)
    assert feed.status() is feed.status()
    viewer = Viewer()
    feed.add(viewer)
    before = feed.status()
    status.take([pushed(1)])
    feed.send()
    assert feed.status() is not before and b'"version":1' in feed.status()
    feed.close()


async def test_nothing_is_made_while_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "SECONDS", 0.001)
    page = Shown(told(began("a")))
    feed = page.feed
    feed._rest = 0.001
    viewer = Viewer()
    feed.add(viewer)
    while len(viewer.frames) < 4:
        await asyncio.sleep(0.005)
    feed.remove(viewer)
    count = page.completed
    await asyncio.sleep(0.05)
    assert page.completed == count and len(feed) == 0


async def test_large_documents_come_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = watched(told(began("a")))
    monkeypatch.setattr(broadcast.time, "thread_time", iter([0.0, 0.02] * 9).__next__)
    feed.add(Viewer())
    assert feed._rest == pytest.approx(4.0) and feed.spent == pytest.approx(0.02)
    feed.close()
