"""A process is born, or is not."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import pytest

from genkidama.child.member import bear


async def test_what_cannot_be_started_leaves_no_line_open() -> None:
    lines: list[Connection] = []

    def fork(index: int, line: Connection, seed: tuple[int, ...]) -> Any:
        lines.append(line)
        assert (index, seed) == (3, (1, 2))
        raise EOFError

    with pytest.raises(EOFError):
        await bear(fork, 3, (1, 2))
    assert lines[0].closed


async def test_what_is_born_has_the_other_end_of_the_line_and_its_history() -> None:
    member = await bear(lambda index, line, seed: line.send_bytes(b"I live"), 1, (), "cold")  # type: ignore[arg-type,return-value]
    assert member.line.recv_bytes() == b"I live"
    assert (member.index, member.failure) == (1, "cold")
    member.line.close()
