from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from genkidama.child.transport import Transport
from genkidama.parent import Parent
from genkidama.runtime import machine
from genkidama.runtime.machine import LONGEST_PAUSE_MS, TCP_RTO_MAX_MS, set_tcp_timeouts
from tests.helpers import running, url
from tests.parent.parents import experiment


def _options(transport: asyncio.BaseTransport, *options: int) -> tuple[int, ...]:
    descriptor = os.dup(transport.get_extra_info("socket").fileno())
    with socket.socket(fileno=descriptor) as line:
        return tuple(line.getsockopt(socket.IPPROTO_TCP, option) for option in options)


def _knows() -> bool:
    with socket.socket() as line:
        try:
            line.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, LONGEST_PAUSE_MS)
        except OSError:
            return False
    return True


async def _both(folder: Path, *options: int) -> set[tuple[int, ...]]:
    """The options of a parent's connection and of its child's."""
    async with running(experiment(), folder) as parent:
        assert isinstance(parent, Parent)
        connection = await Transport(url(parent.address)).open()
        (channel,) = parent.connections._open
        found = {_options(each.transport, *options) for each in (connection, channel)}
        await connection.close()
    return found


@pytest.mark.skipif(not _knows(), reason="this kernel does not limit the pauses")
async def test_parent_and_child_send_again_soon(tmp_path: Path) -> None:
    found = await _both(tmp_path, TCP_RTO_MAX_MS, socket.TCP_USER_TIMEOUT)
    assert found == {(LONGEST_PAUSE_MS, 120_000)}


async def test_where_the_kernel_cannot_a_connection_without_an_answer_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "TCP_RTO_MAX_MS", 9999)  # an older kernel refuses it likewise
    options = socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL
    assert await _both(tmp_path, *options) == {(10_000, 5, 1)}


async def test_a_system_with_fewer_options_keeps_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = socket.TCP_KEEPINTVL
    for name in ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT"):  # which macOS has not
        monkeypatch.delattr(socket, name)
    assert await _both(tmp_path, option) == {(1,)}


async def test_what_is_no_tcp_is_left_alone() -> None:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_unix_connection(sock=ours)
    set_tcp_timeouts(writer.transport)
    writer.write(b"tea")
    await writer.drain()
    assert theirs.recv(3) == b"tea"
    writer.close()
    theirs.close()
    set_tcp_timeouts(asyncio.BaseTransport())
