"""TCP over links that come and go."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

__all__ = ["retransmit_soon"]

#: Linux 6.15 has it: the longest pause before data without an answer are sent again, in ms.
TCP_RTO_MAX_MS = 44
LONGEST_PAUSE_MS = 2000


def retransmit_soon(transport: asyncio.BaseTransport) -> None:
    """Lets a connection go on two seconds after its link is mended, where the kernel can do that.

    Otherwise TCP doubles its pauses: after a cut of 20 s it may stay silent for another 20 s.
    """
    connected = transport.get_extra_info("socket")
    if connected is None:
        return
    # What uvloop gives is no whole socket.
    with suppress(OSError), socket.socket(fileno=os.dup(connected.fileno())) as line:
        line.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, LONGEST_PAUSE_MS)
