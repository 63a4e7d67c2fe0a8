"""The links between the machines and the parent, in user space: a process of its own.

Linux' netem is missing in many kernels, TUN devices in few. One end of a link is a device in the
machine's network namespace, the other end one in the parent's. What is written into one of them
comes here, waits for its turn at the link's rate and for half a round trip, and goes into the
other one. As in a router, at most a tenth of a second of packets waits for its turn.

    python relay.py PARENTS_NAMESPACE MEGABITS DELAY_MS LOSS SEED NAMESPACE...

On its standard input a line of numbers says which links are cut from now on; an empty line mends
all. It ends with that input.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

_TUNSETIFF = 0x400454CA
_TUN, _NO_INFORMATION = 0x0001, 0x1000
_NEW_NETWORK = 0x40000000

#: The longest queue before a link, in seconds of its rate.
_QUEUE_SECONDS = 0.1

#: More than a packet of any device here.
_PACKET = 1 << 16


class Way:
    """One direction of a link.

    Args:
        rate: bytes a second.
        delay: seconds from end to end.
        loss: probability that a packet is lost.
    """

    def __init__(self, rate: float, delay: float, loss: float) -> None:
        self._rate = rate
        self._delay = delay
        self._loss = loss
        self._free = 0.0
        self.cut = False

    def arrival(self, size: int, now: float, luck: float) -> float | None:
        """When a packet arrives that is sent now; None if it never does.

        Args:
            size: bytes.
            now: seconds, never less than before.
            luck: uniform in [0, 1).
        """
        begin = max(now, self._free)
        if self.cut or luck < self._loss or begin - now > _QUEUE_SECONDS:
            return None
        self._free = begin + size / self._rate
        return self._free + self._delay


def device(namespace: str, name: str) -> int:
    """The descriptor of a new TUN device in a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as file:
        if libc.setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"{namespace}: cannot be entered")
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), _TUN | _NO_INFORMATION)
    fcntl.ioctl(descriptor, _TUNSETIFF, request)
    return descriptor


def serve(links: list[tuple[int, int]], ways: dict[int, Way], seed: int) -> None:
    """Carries packets until standard input ends.

    Args:
        links: the descriptors of each link's two ends, the machine's first.
        ways: the direction that begins at each descriptor.
        seed: of the losses.
    """
    rng = random.Random(seed)
    other = {end: far for near, far in links for end, far in ((near, far), (far, near))}
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    watched = [0, *other]
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select(watched, (), (), timeout)
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, end, packet = heapq.heappop(waiting)
            try:
                os.write(end, packet)
            except OSError:
                continue  # a device that is down, or full: the packet is lost
        for end in ready:
            if end == 0:
                line = os.read(0, _PACKET)
                if not line:
                    return
                cut = {int(word) for word in line.decode().splitlines()[-1].split()}
                for link, ends in enumerate(links):
                    for one in ends:
                        ways[one].cut = link in cut
                continue
            try:
                packet = os.read(end, _PACKET)
            except OSError:
                continue
            due = ways[end].arrival(len(packet), now, rng.random())
            if due is not None:
                number += 1
                heapq.heappush(waiting, (due, number, other[end], packet))


def main() -> None:
    parent, megabits, delay_ms, loss, seed, *namespaces = sys.argv[1:]
    rate = float(megabits) * 1e6 / 8
    links = [
        (device(name, "uplink"), device(parent, f"link{number}"))
        for number, name in enumerate(namespaces)
    ]
    ways = {end: Way(rate, float(delay_ms) / 2e3, float(loss)) for ends in links for end in ends}
    print("ready", flush=True)
    serve(links, ways, int(seed))


if __name__ == "__main__":
    main()
