"""Notifications of a service to systemd by sd_notify(3): ready, status, alive.

Laws of this file:
- Without systemd nothing happens; a message that cannot be sent is lost, and stops nothing.
- The watchdog beats in the event loop that does the work: if the loop hangs, the service hangs.
- While a service is supervised, its environment does not name systemd's socket, so no process that
  it starts can speak for it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

#: Seconds between two notifications about the status.
STATUS_SECONDS = 2.0

#: Sends one message of these assignments, as `"READY=1", "STATUS=3 children"`.
Notify: TypeAlias = Callable[..., None]

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


@asynccontextmanager
async def supervised(status: Callable[[], str]) -> AsyncIterator[Notify]:
    """Meanwhile systemd hears from this process, if it has started it.

    It is sent a status, a few words, and `WATCHDOG=1` twice in each of its watchdog's periods. The
    context's value tells it more.
    """
    before = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    address = before.get("NOTIFY_SOCKET", "")

    def notify(*assignments: str) -> None:
        if address:
            _send(address, "\n".join(" ".join(each.splitlines()) for each in assignments))

    period = _period(before)
    beats = []
    if address:
        tell = _repeat(STATUS_SECONDS, lambda: notify(f"STATUS={status()}"))
        beats.append(asyncio.create_task(tell))
    if period:
        beats.append(asyncio.create_task(_repeat(period / 2, lambda: notify("WATCHDOG=1"))))
    try:
        yield notify
    finally:
        for beat in beats:
            beat.cancel()
        os.environ.update(before)


async def _repeat(seconds: float, action: Callable[[], None]) -> None:
    while True:
        action()
        await asyncio.sleep(seconds)


def _period(variables: dict[str, str]) -> float:
    """Seconds of the watchdog's period; 0 if there is none, or it is another process'."""
    with suppress(ValueError):
        if int(variables.get("WATCHDOG_PID", os.getpid())) == os.getpid():
            return max(0, int(variables.get("WATCHDOG_USEC", 0))) / 1e6
    return 0.0


def _send(address: str, message: str) -> None:
    """One datagram to a socket with a path, or with an abstract name behind `@`."""
    with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)  # the loop must not wait for systemd
        channel.sendto(message.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
