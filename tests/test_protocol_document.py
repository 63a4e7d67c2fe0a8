"""docs/reference/protocol.md is held to the parent: what it claims is what a real one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from genkidama.errors import ProtocolError
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.parent import Parent
from genkidama.protocol.messages import Join, Leave, Push, Refusal, Weights, encode
from tests.helpers import ROOT, running, small
from tests.parent.fake_child import FakeChild, vector
from tests.parent.parents import experiment

TEXT = (ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")


@pytest.fixture
async def parent(tmp_path: Path) -> AsyncIterator[Parent]:
    async with running(experiment(), tmp_path / "run") as parent:
        yield parent


UPGRADE = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET /child HTTP/1.1\r\nHost: p\r\n\r\n", b"HTTP/1.1 426 "),
        (b"GET / HTTP/1.1\r\nHost: p\r\n\r\n", b"HTTP/1.1 403 "),
        (b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"HTTP/1.1 200 "),
        (b"GET / HTTP/1.1\r\nHost: p\r\n" + UPGRADE + b"\r\n", b"HTTP/1.1 400 "),
        (b"POST / HTTP/1.1\r\nHost: p\r\n\r\n", b"HTTP/1.1 405 "),
        (b"GET /child HTTP/1.0\r\nHost: p\r\n\r\n", b"HTTP/1.1 505 "),
        (b"GET /" + b"a" * 8192 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.1 414 "),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 8192 + b"\r\n\r\n", b"HTTP/1.1 431 "),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 129 + b"\r\n", b"HTTP/1.1 431 "),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b""),
        (b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab", b""),
        (b"HEAD /healthz HTTP/1.1\r\nHost: p\r\n\r\n", b"HTTP/1.1 200 "),
    ],
    ids=["426", "403", "200", "400", "405", "505", "414", "431", "many", "noise", "body", "head"],
)
async def test_http_answers_are_as_they_are_told(
    parent: Parent, request_: bytes, answer: bytes
) -> None:
    reader, writer = await asyncio.open_connection(*parent.address)
    writer.write(request_)
    async with asyncio.timeout(10):
        got = await reader.read()
    writer.close()
    assert got.startswith(answer) and bool(got) == bool(answer)
    if request_.startswith(b"HEAD"):
        assert got.endswith(b"\r\n\r\n")
    assert all(f"`{code}`" in TEXT for code in (426, 400, 405, 505, 414, 431))


def fragments(count: int) -> bytes:
    push = encode(Push(version=0, sequence=1, vector=vector(1.0)))
    parts = [push[:1], *[b""] * (count - 2), push[1:]]
    return b"".join(
        Frame(Opcode.CONT if number else Opcode.BINARY, part, fin=number == count - 1).serialize(
            mask=True
        )
        for number, part in enumerate(parts)
    )


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (fragments(4096), None),
        (fragments(4097), 1009),
        (Frame(Opcode.TEXT, b"text").serialize(mask=True), 1008),
    ],
    ids=["4096", "4097", "text"],
)
async def test_close_codes_are_as_they_are_told(
    parent: Parent, frames: bytes, code: int | None
) -> None:
    async with FakeChild(parent.address) as child:
        await child.enter()
        child.connection.transport.write(frames)
        if code is None:
            assert isinstance(await child.hear(), Weights)
        else:
            assert (await child.closed())[0] == code


async def test_sequences_may_have_gaps_and_returns_may_be_many(parent: Parent) -> None:
    async with FakeChild(parent.address) as child:
        await child.enter()
        known = parent.server.children["pi"]
        for sequence, returns, counted in ((1, 10_000, 1), (2**53, 0, 2), (2**53, 5, 2)):
            push = Push(version=0, sequence=sequence, returns=[0.0] * returns, vector=vector(1.0))
            assert isinstance(await child.ask(push), Weights)
            assert (known.exchanges, known.episodes) == (counted, 10_000)
        refusal = await child.refused(Push(version=0, sequence=7, vector=vector(1.0)))
        assert refusal.code == "order" and "needs another session" in refusal.reason


async def test_a_second_network_leaves_the_connection_open_and_a_goodbye_ends_it(
    parent: Parent,
) -> None:
    async with FakeChild(parent.address, "pi-1") as child:
        await child.enter()
        await child.pushed(1.0)
        other = await child.refused(Join(signature=[("w", [1])]))
        assert (other.code, other.final) == ("signature", False)
        named = await child.refused(Join(signature=[("__metadata__", [1])]))
        assert (named.code, named.final) == ("signature", True)
        await child.pushed(1.0)
        await child.ask(Leave())
        assert (await child.closed())[0] == 1000


async def test_a_signature_with_which_nobody_has_pushed_is_forgotten(parent: Parent) -> None:
    async with FakeChild(parent.address, "wrong") as first:
        first.signature = type(first.signature).of([("w", (1,))])
        await first.enter()
        async with FakeChild(parent.address, "right") as second:
            await second.hello()
            refusal = await second.join()
            assert isinstance(refusal, Refusal) and not refusal.final
            assert (await second.closed())[0] == 1008
        await first.leave()
    async with FakeChild(parent.address, "right") as second:
        await second.enter()
        await second.pushed(1.0)


def test_each_code_stands_in_the_tables() -> None:
    (rows,) = [part for part in TEXT.split("\n\n") if "| refused with | a child |" in part]
    ends, _, waits = rows.partition("| `name` |")
    for code in set(ProtocolError.CODES) - {"origin"}:  # no child hears that one: it gets 403
        assert f"| `{code}` | " in TEXT, code
        assert f"`{code}`" in (ends if code in ProtocolError.FINAL else waits + "`name`"), code


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"network": {"hidden": [8, 6]}},
            "policy.0 8x4, policy.2 6x8, policy.4 2x6, value.0 8x4, value.2 6x8, value.4 1x6",
        ),
        (
            {"network": {"hidden": [8, 6], "shared": True}},
            "body.0 8x4, body.2 6x8, policy.0 2x6, value.0 1x6",
        ),
        (
            {"environment": {"id": "Pendulum-v1"}},
            "log_deviation 1, policy.0 8x3, policy.2 1x8, value.0 8x3, value.2 1x8",
        ),
        (
            {"environment": {"normalize_observations": True, "normalize_rewards": True}},
            "policy.0 8x4, policy.2 2x8, value.0 8x4, value.2 1x8, "
            "statistics.observations 9, statistics.returns 3",
        ),
    ],
    ids=["apart", "shared", "box", "statistics"],
)
def test_the_parts_of_a_perceptron(settings: dict[str, Any], expected: str) -> None:
    made = small(**settings)
    parts = []
    for part in expected.split(", "):
        name, shape = part.split()
        dimensions = tuple(int(number) for number in shape.split("x"))
        if len(dimensions) == 1:
            parts.append((name, dimensions))
        else:
            parts += [(f"{name}.weight", dimensions), (f"{name}.bias", dimensions[:1])]
    assert Model(made, make_environment(made.environment)).signature.entries == tuple(parts)
