from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from genkidama.child.transport import Transport
from genkidama.parent import Parent
from genkidama.runtime.machine import LONGEST_PAUSE_MS, TCP_RTO_MAX_MS, set_retransmission_timeout
from tests.helpers import running, url
from tests.parent.parents import experiment


def _pause(transport: asyncio.BaseTransport) -> int:
    descriptor = os.dup(transport.get_extra_info("socket").fileno())
    with socket.socket(fileno=descriptor) as line:
        return line.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)


def _knows() -> bool:
    with socket.socket() as line:
        try:
            line.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, LONGEST_PAUSE_MS)
        except OSError:
            return False
    return True


@pytest.mark.skipif(not _knows(), reason="this kernel does not limit the pauses")
async def test_parent_and_child_send_again_soon(tmp_path: Path) -> None:
    async with running(experiment(), tmp_path) as parent:
        assert isinstance(parent, Parent)
        connection = await Transport(url(parent.address)).open()
        (channel,) = parent.connections._open
        assert _pause(connection.transport) == LONGEST_PAUSE_MS
        assert _pause(channel.transport) == LONGEST_PAUSE_MS
        await connection.close()


async def test_what_is_no_tcp_is_left_alone() -> None:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_unix_connection(sock=ours)
    set_retransmission_timeout(writer.transport)
    writer.write(b"tea")
    await writer.drain()
    assert theirs.recv(3) == b"tea"
    writer.close()
    theirs.close()
    set_retransmission_timeout(asyncio.BaseTransport())
