"""An emulated radio link between two network namespaces, for benchmarks. Needs Linux and root.

Each namespace has a TUN device. One process reads what is sent on both, and writes it to the other
after its time on the air. Both directions share the air, as on Wi-Fi. A packet that finds too much
waiting before it is dropped.

    with link(Air(megabits=20.0, milliseconds=20.0, loss=0.01)) as (near, far):
        start([*near.enter, "python", …]); near.address
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from genkidama.runtime.machine import end_with_parent

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_WITHOUT_HEADER = 0x1001

#: A packet waits at most so long for the air, in seconds.
_LONGEST_QUEUE = 0.25
_MTU = 1500


@dataclass(frozen=True)
class Air:
    """What the link is like: both directions share `megabits` a second."""

    megabits: float
    #: Round trip.
    milliseconds: float
    #: The share of packets that never arrive, each way.
    loss: float


@dataclass(frozen=True)
class Place:
    """One end of the link."""

    #: Empty for that of this process.
    namespace: str
    address: str

    @property
    def enter(self) -> list[str]:
        """What stands before a command that is to run there."""
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []


@contextlib.contextmanager
def link(air: Air) -> Iterator[tuple[Place, Place]]:
    """Two namespaces that see each other through this air, until the block ends."""
    word = f"air{os.getpid()}"
    places = Place(f"{word}a", "10.91.0.1"), Place(f"{word}b", "10.91.0.2")
    for place in places:
        _ip("netns", "add", place.namespace)
    carrier = None
    try:
        command = [sys.executable, __file__, *(place.namespace for place in places)]
        command += [str(air.megabits), str(air.milliseconds), str(air.loss)]
        carrier = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=end_with_parent)
        assert carrier.stdout is not None
        if carrier.stdout.readline() != b"ready\n":
            raise SystemExit("no link: /dev/net/tun, root and iproute2 are needed")
        for place, other in (places, places[::-1]):
            inside = ("-n", place.namespace)
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "addr", "add", place.address, "peer", other.address, "dev", "air")
            _ip(*inside, "link", "set", "air", "mtu", str(_MTU), "up")
        yield places
    finally:
        if carrier is not None:
            carrier.terminate()
            carrier.wait()
        for place in places:
            _ip("netns", "del", place.namespace)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _tun(namespace: str) -> int:
    """A TUN device `air` in this namespace, into which this process moves."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"no way into {namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"air", _IFF_TUN_WITHOUT_HEADER))
    return device


def carry(devices: tuple[int, int], air: Air) -> None:
    """Carries packets until it is ended."""
    chance = random.Random(0)
    poll = select.poll()
    for device in devices:
        poll.register(device, select.POLLIN)
    #: When a packet arrives, its number, where, and what it is.
    flying: list[tuple[float, int, int, bytes]] = []
    free, count = 0.0, 0
    while True:
        wait = max(0.0, flying[0][0] - time.monotonic()) * 1e3 if flying else None
        ready = poll.poll(wait)
        now = time.monotonic()
        while flying and flying[0][0] <= now:
            _, _, target, packet = heapq.heappop(flying)
            with contextlib.suppress(OSError):
                os.write(target, packet)
        for source, _ in ready:
            packet = os.read(source, _MTU + 64)
            if free - now > _LONGEST_QUEUE:
                continue
            free = max(free, now) + len(packet) * 8 / (air.megabits * 1e6)
            if chance.random() < air.loss:
                continue
            count += 1
            target = devices[1] if source == devices[0] else devices[0]
            heapq.heappush(flying, (free + air.milliseconds / 2e3, count, target, packet))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("namespaces", nargs=2)
    parser.add_argument("air", nargs=3, type=float)
    options = parser.parse_args()
    near, far = map(_tun, options.namespaces)
    print("ready", flush=True)
    carry((near, far), Air(*options.air))


if __name__ == "__main__":
    main()
