"""An emulated radio link between two network namespaces, for benchmarks. Needs Linux and root.

Each namespace has a TUN device, and `relay.py` carries what is written into one of them to the
other. Both directions share the air, as on Wi-Fi.

    with link(Air(megabits=20.0, milliseconds=20.0, loss=0.01)) as (near, far):
        subprocess.run([*near.enter, "ping", "-c", "3", far.address])
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from relay import Way, device, serve

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
    figures = map(str, (air.megabits, air.milliseconds, air.loss))
    command = [sys.executable, __file__, *figures, *(place.namespace for place in places)]
    try:
        pipe = subprocess.PIPE  # the carrier ends with its input
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as carrier:
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
        for place in places:
            _ip("netns", "del", place.namespace)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def main() -> None:
    megabits, milliseconds, loss, *namespaces = sys.argv[1:]
    near, far = (device(name, "air") for name in namespaces)
    way = Way(float(megabits) * 1e6 / 8, float(milliseconds) / 2e3, float(loss))
    print("ready", flush=True)
    serve([(near, far)], {near: way, far: way}, seed=0)


if __name__ == "__main__":
    main()
