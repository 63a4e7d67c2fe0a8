"""A Parent under siege: its memory, and how long an honest child waits meanwhile.

Claim: while peers ping and never read, take no replies, cut their connections, have their joins
refused or say nothing, the Parent's memory stays within 60 MB of where it was, or within 300 MB
where vectors have 16 MB; and it goes on answering an honest child.

Method: a Parent as its own process on the loopback, attacked by raw sockets of this one. Its
resident memory is read ten times a second. An honest child pushes all the time, on a connection of
its own. Each attack begins on a fresh Parent, whose memory before is taken when the honest child,
and those that will be cut or jam, have exchanged once.

    python benchmarks/siege.py [--seconds 20] [--attacks pings joins silent cut jam] [--json]
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from exchange import frame_header
from processes import free_port, parser_of, resident, start_parent, stop, until
from websockets.sync.client import connect

from genkidama.protocol.messages import PROTOCOL, Hello, Join, Push, encode

_SMALL, _LARGE = 3_000, 4_000_000

#: Megabytes within which memory stays, with small vectors and with large ones.
_LIMITS = {_SMALL: 60.0, _LARGE: 300.0}

#: How many peers attack at once.
_PEERS = 10

_UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: parent\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_PINGS = (b"\x89\xfd\0\0\0\0" + bytes(125)) * 8_000


def frame(message: Hello | Join | Push) -> bytes:
    """As a child writes it, masked with zeros."""
    content = bytes(encode(message))
    return bytes(frame_header(len(content))) + content


def entered(port: int, name: str, size: int) -> socket.socket:
    """A raw connection of a child that has joined."""
    peer = opened(port)
    peer.sendall(frame(Hello(protocol=PROTOCOL, name=name, session=name)))
    peer.sendall(frame(Join(signature=[("weight", [size])])))
    return peer


def opened(port: int) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), timeout=5.0)
    peer.sendall(_UPGRADE)
    return peer


def push(size: int, number: int) -> bytes:
    return frame(Push(version=0, sequence=number, steps=1, vector=np.ones(size, np.float32)))


# What attackers do until they are told to end.


def ping(port: int, name: str, size: int, ended: threading.Event) -> None:
    """Pings without a hello, and never reads."""
    while not ended.is_set():
        with opened(port) as peer:
            while not ended.is_set():
                peer.sendall(_PINGS)


def join(port: int, name: str, size: int, ended: threading.Event) -> None:
    """Joins with another network, whose parts have very long names."""
    refused = Join(signature=[("x" * 900_000, [1])])
    while not ended.is_set():
        with opened(port) as peer:
            peer.sendall(frame(Hello(protocol=PROTOCOL, name=name, session=name)))
            peer.sendall(frame(refused))
            while peer.recv(65536) and not ended.is_set():
                pass


def stay_silent(port: int, name: str, size: int, ended: threading.Event) -> None:
    """Opens connections, as many as it gets, and says nothing."""
    peers: list[socket.socket] = []
    while not ended.is_set():
        try:
            peers.append(socket.create_connection(("127.0.0.1", port), timeout=5.0))
        finally:
            if len(peers) > 80:
                peers.pop(0).close()
        ended.wait(0.005)


def cut(port: int, name: str, size: int, ended: threading.Event) -> None:
    """Pushes once and a half, takes the one reply, and is cut off."""
    content = push(size, 1)
    while not ended.is_set():
        with entered(port, name, size) as peer:
            peer.sendall(content)
            peer.sendall(content[: len(content) // 2])
            left = 4 * size
            while left > 0 and (got := peer.recv(1 << 20)):
                left -= len(got)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def jam(port: int, name: str, size: int, ended: threading.Event) -> None:
    """Pushes, and never takes a reply."""
    content = push(size, 1)
    while not ended.is_set():
        with entered(port, name, size) as peer:
            peer.settimeout(1.0)
            while not ended.is_set():
                try:
                    peer.sendall(content)
                except TimeoutError:
                    ended.wait(0.5)
                    # What was sent is not known any more: the rest of this connection is silence.
                    peer.settimeout(None)
                    while not ended.wait(0.5) and is_open(peer):
                        pass
                    break


def is_open(peer: socket.socket) -> bool:
    """Whether the Parent still keeps this connection, of which nothing was read."""
    state = struct.unpack("B", peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0]
    return bool(state == 1)  # ESTABLISHED


Attack = Callable[[int, str, int, threading.Event], None]
ATTACKS: dict[str, tuple[Attack, int]] = {
    "pings": (ping, _SMALL),
    "joins": (join, _SMALL),
    "silent": (stay_silent, _SMALL),
    "cut": (cut, _LARGE),
    "jam": (jam, _LARGE),
}


# What is measured.


def behave(port: int, size: int, ended: threading.Event, waits: list[float]) -> None:
    """Pushes as a child does, and notes how long each reply took."""
    vector = np.ones(size, np.float32)
    with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None) as child:
        child.send(bytes(encode(Hello(protocol=PROTOCOL, name="honest", session="honest"))))
        child.recv()
        child.send(bytes(encode(Join(signature=[("weight", [size])]))))
        child.recv()
        number = 0
        while not ended.is_set():
            number += 1
            begun = time.monotonic()
            child.send(bytes(encode(Push(version=0, sequence=number, vector=vector))))
            child.recv()
            waits.append(time.monotonic() - begun)
            ended.wait(0.05)


def besiege(name: str, seconds: float) -> dict[str, object]:
    """One attack on a Parent of its own."""
    attack, size = ATTACKS[name]
    with tempfile.TemporaryDirectory() as folder:
        experiment = Path(folder) / "siege.toml"
        experiment.write_text(
            'name = "siege"\n[parent]\nsilence_seconds = 10\nlinger_seconds = 0\n'
        )
        port, out = free_port(), Path(folder) / "run"
        parent = start_parent(experiment, out, port)
        try:
            return measure(parent, port, attack, size, seconds) | {"attack": name}
        finally:
            stop(parent)


def measure(
    parent: subprocess.Popen[bytes], port: int, attack: Attack, size: int, seconds: float
) -> dict[str, object]:
    ended, calm = threading.Event(), threading.Event()
    waits: list[float] = []
    honest = threading.Thread(target=behave, args=(port, size, calm, waits), daemon=True)
    honest.start()
    until(lambda: len(waits) >= 20, "20 answers to the honest child")
    before, quiet = resident(parent.pid), len(waits)

    def persist(number: int) -> None:
        while not ended.is_set():
            try:
                attack(port, f"peer-{number}", size, ended)
            except OSError:
                ended.wait(0.02)  # it was thrown out, and comes again

    attackers = [threading.Thread(target=persist, args=(n,), daemon=True) for n in range(_PEERS)]
    for each in attackers:
        each.start()
    sizes = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and parent.poll() is None:
        sizes.append(resident(parent.pid))
        time.sleep(0.1)
    ended.set()
    for each in attackers:
        each.join(15.0)
    after = resident(parent.pid)
    calm.set()
    honest.join(30.0)
    meanwhile = sorted(waits[quiet:]) or [float("inf")]
    return {
        "megabytes_before": round(before, 1),
        "most": round((max(sizes) - before), 1),
        "after": round((after - before), 1),
        "limit": _LIMITS[size],
        "holds": max(sizes) - before <= _LIMITS[size] and parent.poll() is None,
        "exchanges": len(waits) - quiet,
        "p50_ms": round(1e3 * median(meanwhile), 1),
        "most_ms": round(1e3 * meanwhile[-1], 1),
        "alone_ms": round(1e3 * median(waits[:quiet]), 1),
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each attack")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    holds = True
    for name in options.attacks:
        row = besiege(name, options.seconds)
        holds = holds and bool(row["holds"])
        if options.json:
            print(json.dumps(row), flush=True)
        else:
            print(
                f"{name:7} {row['megabytes_before']:6} MB before, {row['most']:+} at most of "
                f"{row['limit']:g}, {row['after']:+} after; honest p50 {row['p50_ms']} ms "
                f"(alone {row['alone_ms']}), most {row['most_ms']}, n {row['exchanges']}",
                flush=True,
            )
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
