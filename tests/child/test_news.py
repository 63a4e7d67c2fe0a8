"""A pull that stands, and the requests beside it, over a line whose other end a test writes."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from genkidama.child import transport
from genkidama.child.parent_connection import LongPoll
from genkidama.errors import ProtocolError
from genkidama.protocol.messages import Leave, Pull, Reply, Request, Weights, decode_request, encode
from genkidama.protocol.session import Session
from genkidama.protocol.vector import DTYPE, Signature

SIGNATURE = Signature.of([("layer.weight", (3, 2))])
LEAVE = Leave(reason="tea")


class Line:
    """A connection: what was sent on it, and what the parent answers."""

    def __init__(self) -> None:
        self.sent: list[Request] = []
        self.replies: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(self, frame: bytes) -> None:
        self.sent.append(decode_request(frame))

    async def recv(self, decode: bool) -> bytes:
        return await self.replies.get()

    def answer(self, *replies: Reply | bytes) -> None:
        for reply in replies:
            self.replies.put_nowait(reply if isinstance(reply, bytes) else encode(reply))


class Told:
    """A backend that notes what it is told."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def pulling(self) -> None:
        self.notes.append("pulling")

    def pulled(self, weights: np.ndarray | None, steps: int) -> None:
        self.notes.append((None if weights is None else weights.tolist(), steps))

    def set_progress(self, progress: float) -> None:
        self.notes.append(progress)


def weights(value: float, version: int = 1, **more: Any) -> Weights:
    return Weights(version=version, vector=np.full(SIGNATURE.size, value, DTYPE), **more)


class Talk:
    def __init__(self) -> None:
        session = Session("pi", "word", parent="ws://parent")
        session.join(SIGNATURE)
        self.over = 0
        self.line: Any = Line()
        self.told: Any = Told()
        self.news = LongPoll(session, self._ended)

    def _ended(self) -> None:
        self.over += 1

    async def ask(self, asks: bool = False) -> Reply:
        return await self.news.ask(self.line, LEAVE, self.told if asks else None)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_news_are_told_when_they_come_and_nobody_waits() -> None:
    talk = Talk()
    await talk.news.pull(talk.line, talk.told)
    assert talk.line.sent == [Pull(wait=True)]
    assert talk.told.notes == ["pulling"]
    talk.line.answer(weights(2.0, progress=0.25, steps=64))
    await turns()
    assert talk.told.notes == ["pulling", 0.25, ([2.0] * 6, 64)]
    talk.line.answer(weights(3.0))
    assert (await talk.ask()).vector.tolist() == [3.0] * 6  # type: ignore[union-attr]


async def test_the_reply_to_a_pull_that_stands_comes_before_that_to_what_is_asked_next() -> None:
    talk = Talk()
    await talk.news.pull(talk.line, talk.told)
    talk.line.answer(Weights(version=1, progress=0.5), weights(4.0, version=2))
    reply = await talk.ask()
    assert isinstance(reply, Weights) and reply.version == 2
    assert talk.told.notes == ["pulling", 0.5, (None, 0)]


async def test_news_are_asked_for_with_another_request() -> None:
    talk = Talk()
    talk.line.answer(weights(4.0, version=2))
    reply = await talk.ask(asks=True)
    assert isinstance(reply, Weights) and reply.version == 2
    assert talk.line.sent == [LEAVE, Pull(wait=True)]
    assert talk.told.notes == ["pulling"]
    talk.line.answer(weights(5.0, stop="over"))
    await turns()
    assert talk.told.notes[-1] == ([5.0] * 6, 0)
    assert talk.over == 1


async def test_what_goes_wrong_with_a_pull_is_raised_by_the_next_request() -> None:
    talk = Talk()
    await talk.news.pull(talk.line, talk.told)
    talk.line.answer(b"nonsense")
    await turns()
    with pytest.raises(ProtocolError):
        await talk.ask()


async def test_a_parent_that_does_not_answer_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "REPLY_SECONDS", 0.05)
    talk = Talk()
    await talk.news.pull(talk.line, talk.told)
    with pytest.raises(TimeoutError):
        await talk.ask()


async def test_a_pull_that_is_forgotten_hears_nothing() -> None:
    talk = Talk()
    await talk.news.pull(talk.line, talk.told)
    await turns()
    talk.news.forget()
    await turns()
    talk.line.answer(weights(1.0))
    await turns()
    assert talk.told.notes == ["pulling"]
