"""Exchanges a second at the Parent.

Claim: a Parent carries at least 0.65 times the exchanges of a bare websockets server for a network
of 3,000 numbers, and at least 0.8 times for 250,000 and 4,000,000, with 1, 16 and 64 children. It
carries a multiple of Flower's pushes.

Method: the Parent and the bare server are processes of their own on core 0. The bare server
(websockets on uvloop, no compression) receives the same bytes, sends as many back as the Parent
does, and does nothing else. This process, on core 1, plays the children of both, on raw sockets.
Each child sends one push and waits for its reply. Its frames are built once and differ only in
their sequence number, so that every exchange is decoded, checked, blended, counted and written to
the history. In the end the history's count must equal the number of pushes, or there are no
figures. A reply is recognized by its length alone, and thrown away in the kernel. Windows alternate
bare, Parent, bare, Parent, …; figures are medians over the windows. A window ends when its last
push is answered, and all its exchanges count.

`server` is the server's CPU time an exchange. `busy` is the load generator's share of its core:
near 100 % the figures measure the generator. With one child nothing overlaps, so the ratio includes
the generator's time, which is the same in both; compare `server` there.

Flower (flwr) runs from the peers' environment, on its legacy gRPC path, the fastest that it has.
Its server is on core 0, its 16 clients are on core 1 and return the weights unchanged. Pushes are
rounds × clients.

    python benchmarks/exchange.py                  everything, about ten minutes
    python benchmarks/exchange.py --no-parent      the bare server and the generator alone
    python benchmarks/exchange.py --children 16 --sizes 3000 --windows 5 --seconds 3
    python benchmarks/exchange.py --rules weighted difference gradient
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from processes import (
    cpu_seconds,
    free_port,
    interpreter_of_peers,
    keep,
    parser_of,
    start,
    start_parent,
    stop,
    wait_for_port,
)

from genkidama.config.plugin import find, names
from genkidama.protocol.messages import PROTOCOL, Hello, Join, Kind, Push, Request, Weights, encode
from genkidama.protocol.vector import DTYPE

SERVER_CORE, LOAD_CORE = 0, 1

#: A number whose eight bytes show where an encoded push holds its sequence number.
_SEQUENCE = 0x7EDCBA9876543210

#: Bytes that one `recv` throws away at most.
_DISCARD = 1 << 20


@dataclass
class Window:
    """One measurement of one server."""

    rate: float
    p50_ms: float
    p99_ms: float
    server_us: float
    busy: float


@dataclass
class Measurement:
    """Median figures of one server for one size and number of children."""

    server: str
    children: int
    parameters: int
    windows: list[Window] = field(default_factory=list)

    def median(self, name: str) -> float:
        return float(statistics.median(getattr(window, name) for window in self.windows))

    def as_dict(self) -> dict[str, object]:
        names = ("rate", "p50_ms", "p99_ms", "server_us", "busy")
        return {
            "server": self.server,
            "children": self.children,
            "parameters": self.parameters,
            "rates": [window.rate for window in self.windows],
            **{name: self.median(name) for name in names},
        }


class Connection:
    """One child as the server sees it: a websocket on a raw socket, one push in flight."""

    def __init__(
        self, port: int, vector: memoryview, joins: str | None, kind: Kind = "weights"
    ) -> None:
        """Connects, says hello, and joins under the name `joins`.

        If `joins` is None, it only connects: the bare server knows neither hello nor join. `kind`
        is what its pushes say that they carry.
        """
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upgrade(port)
        size = len(vector) // DTYPE.itemsize
        if joins is not None:
            self._ask(Hello(protocol=PROTOCOL, name=joins, session=os.urandom(8).hex()))
            self._ask(Join(signature=[("policy.0.weight", [size])]))
        # Everything of a push but its vector, whose memory all connections share.
        push = encode(
            Push(
                version=0,
                sequence=_SEQUENCE,
                steps=300,
                returns=[12.5],
                kind=kind,
                vector=np.zeros(size, DTYPE),
            )
        )
        head = push[: len(push) - len(vector)]
        self._head = frame_header(len(push)) + head
        self._sequence_at = self._head.index(struct.pack(">Q", _SEQUENCE))
        self._vector = vector
        self.pushes = 0
        self._smallest_reply = len(vector)
        self._unsent: list[memoryview] = []
        self._frame_left = 0
        self._partial = b""
        self.began = 0
        self.socket.setblocking(False)

    def push(self, now: int) -> bool:
        """Begins an exchange. False if the socket is full, so that `flush` must go on."""
        self.pushes += 1
        struct.pack_into(">Q", self._head, self._sequence_at, self.pushes)
        self.began = now
        sent = self.socket.sendmsg((self._head, self._vector))
        if sent == len(self._head) + len(self._vector):
            return True
        assert sent >= len(self._head)
        self._unsent.append(self._vector[sent - len(self._head) :])
        return False

    def flush(self) -> bool:
        """Sends more of the push. True once all of it is on its way."""
        (rest,) = self._unsent
        try:
            sent = self.socket.send(rest)
        except BlockingIOError:
            return False
        self._unsent = [rest[sent:]] if sent < len(rest) else []
        return not self._unsent

    def is_answered(self) -> bool:
        """Takes what has arrived; True once the reply is complete."""
        if self._frame_left:
            try:
                # The kernel drops these bytes instead of copying them.
                self._frame_left -= self.socket.recv_into(
                    _bin, min(self._frame_left, _DISCARD), socket.MSG_TRUNC
                )
            except BlockingIOError:
                return False
            return not self._frame_left
        try:
            received = self._partial + self.socket.recv(14 - len(self._partial))
        except BlockingIOError:
            return False
        if len(received) == len(self._partial):
            raise SystemExit("the server closed a connection")
        extra = {126: 2, 127: 8}.get(received[1], 0) if len(received) > 1 else 0
        if len(received) < 2 + extra:
            self._partial = received
            return False
        self._partial = b""
        size = int.from_bytes(received[2 : 2 + extra]) if extra else received[1]
        beyond = received[2 + extra :]
        opcode = received[0]
        if opcode == 0x89 and len(beyond) >= size:  # a ping that came whole, between two replies
            self.socket.sendall(bytes((0x8A, 0x80 | size, 0, 0, 0, 0)) + beyond[:size])
            self._partial = beyond[size:]
            return False
        if opcode != 0x82 or size < self._smallest_reply:
            raise SystemExit(f"an unexpected frame: opcode {opcode:#x}, {size} bytes: {beyond!r}")
        self._frame_left = size - len(beyond)
        return self.is_answered()

    def close(self) -> None:
        self.socket.close()

    def _upgrade(self, port: int) -> None:
        self.socket.sendall(
            f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += self._receive(1)
        if not answer.startswith(b"HTTP/1.1 101"):
            raise SystemExit(f"no websocket: {answer!r}")

    def _ask(self, message: Request) -> None:
        """A request outside the windows: its reply is read, and a refusal ends the benchmark."""
        body = encode(message)
        self.socket.sendall(frame_header(len(body)) + body)
        _, size = self._receive(2)
        size = int.from_bytes(self._receive({126: 2, 127: 8}[size])) if size > 125 else size
        reply = self._receive(size)
        if b"refusal" in reply[:64]:
            raise SystemExit(f"refused: {reply!r}")

    def _receive(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            if not part:
                raise SystemExit(f"the server closed a connection after {bytes(found)!r}")
            found += part
        return bytes(found)


_bin = bytearray(_DISCARD)


def frame_header(size: int) -> bytearray:
    """A client's frame header.

    Its masking key is 0, so that prepared payloads pass unchanged. The server unmasks all the same.
    """
    if size < 126:
        return bytearray((0x82, 0x80 | size)) + bytes(4)
    if size < 1 << 16:
        return bytearray((0x82, 0xFE)) + size.to_bytes(2) + bytes(4)
    return bytearray((0x82, 0xFF)) + size.to_bytes(8) + bytes(4)


def run_window(connections: list[Connection], pid: int, seconds: float) -> Window:
    """Drives all connections for `seconds`, lets the last exchanges finish, and counts."""
    poll = select.epoll()
    by_fd = {connection.socket.fileno(): connection for connection in connections}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    latencies = array("q")
    clock, both = time.perf_counter_ns, select.EPOLLIN | select.EPOLLOUT
    server_cpu, load_cpu, begin = cpu_seconds(pid), time.process_time(), clock()
    end = begin + int(seconds * 1e9)
    for fd, connection in by_fd.items():
        if not connection.push(clock()):
            poll.modify(fd, both)
    waiting = len(connections)
    now = begin
    while waiting:
        events = poll.poll(60.0)
        if not events:
            raise SystemExit("the server has not answered for a minute")
        for fd, event in events:
            connection = by_fd[fd]
            if event & select.EPOLLOUT and connection.flush():
                poll.modify(fd, select.EPOLLIN)
            if event & ~select.EPOLLOUT and connection.is_answered():
                now = clock()
                latencies.append(now - connection.began)
                if now >= end:
                    waiting -= 1
                elif not connection.push(now):
                    poll.modify(fd, both)
    wall = (now - begin) * 1e-9
    load_cpu, server_cpu = time.process_time() - load_cpu, cpu_seconds(pid) - server_cpu
    poll.close()
    p50, p99 = np.percentile(np.asarray(latencies), (50, 99)) * 1e-6
    count = len(latencies)
    return Window(
        rate=count / wall,
        p50_ms=float(p50),
        p99_ms=float(p99),
        server_us=server_cpu / count * 1e6,
        busy=load_cpu / wall,
    )


@contextlib.contextmanager
def connected(
    port: int, children: int, vector: memoryview, manners: bool, kind: Kind = "weights"
) -> Iterator[list[Connection]]:
    connections = [
        Connection(port, vector, f"load-{index}" if manners else None, kind)
        for index in range(children)
    ]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


def random_vector(size: int) -> memoryview:
    """The bytes of so many numbers."""
    return memoryview(np.random.default_rng(0).normal(0.0, 0.1, size).astype(DTYPE).tobytes())


def compare(size: int, options: argparse.Namespace, directory: Path) -> list[Measurement]:
    """All numbers of children for one size: drives a bare server and a Parent in turns."""
    vector = random_vector(size)
    servers: dict[str, tuple[subprocess.Popen[bytes], int]] = {}
    found = []
    out, pushes = directory / f"parent-{size}", 0
    try:
        port = free_port()
        servers["bare"] = start_bare(port, size, directory / f"bare-{size}.log"), port
        if not options.no_parent:
            port = free_port()
            experiment = settings_for("blend", options.optimizer, directory)
            servers["parent"] = start_parent(experiment, out, port, SERVER_CORE), port
        for rule in options.rules:
            port, place = free_port(), directory / f"{rule}-{size}"
            experiment = settings_for(rule, options.optimizer, directory)
            servers[rule] = start_parent(experiment, place, port, SERVER_CORE), port
            with connected(port, 1, vector, manners=True) as connections:
                run_window(connections, servers[rule][0].pid, 0.0)  # now it has weights
        for children in options.children:
            # 64 clients of a large network take turns of seconds. Each needs a few in a window.
            seconds = max(options.seconds, children * size * 2.5e-8)
            measurements = [Measurement(name, children, size) for name in servers]
            for turn in range(options.windows + 1):
                for measurement in measurements:
                    process, port = servers[measurement.server]
                    with connected(
                        port,
                        children,
                        vector,
                        manners=measurement.server != "bare",
                        kind=find("rules", measurement.server).takes
                        if measurement.server in names("rules")
                        else "weights",
                    ) as connections:
                        run_window(connections, process.pid, 0.2)
                        window = run_window(connections, process.pid, seconds)
                        if measurement.server == "parent":
                            pushes += sum(connection.pushes for connection in connections)
                    if turn:  # the first turn warms caches and allocators up
                        measurement.windows.append(window)
            show(measurements)
            for measurement in measurements:
                keep(options.results, measurement.as_dict())
            found += measurements
    finally:
        for process, _ in servers.values():
            stop(process)
    if "parent" in servers and (applied := last_version(out / "history.jsonl")) != pushes:
        raise SystemExit(f"the Parent counted {applied} exchanges, but {pushes} were made")
    return found


def settings_for(rule: str, optimizer: str, directory: Path) -> Path:
    """The experiment of a Parent with this rule."""
    exchange = "update" if find("rules", rule).takes == "gradient" else "free"
    path = directory / f"exchange-{rule}.toml"
    path.write_text(
        f'[parent]\nalpha = 0.5\nrule = "{rule}"\n[child]\nexchange = "{exchange}"\n'
        f'[optimizer]\nname = "{optimizer}"\n',
        encoding="utf-8",
    )
    return path


def last_version(history: Path) -> int:
    """The version after the last exchange in the history: how many pushes were applied."""
    with history.open("rb") as file:
        file.seek(max(0, history.stat().st_size - (1 << 16)))
        lines = file.read().splitlines()
    return next(
        (int(json.loads(line)["version"]) for line in reversed(lines) if b'"exchange"' in line), 0
    )


def show(measurements: list[Measurement]) -> None:
    for measurement in measurements:
        ratio = measurement.median("rate") / measurements[0].median("rate")
        low, high = (pick(window.rate for window in measurement.windows) for pick in (min, max))
        spread = f"[{low:,.1f}–{high:,.1f}]"
        print(
            f"{measurement.parameters:>9,} {measurement.children:>8} {measurement.server:>7} "
            f"{measurement.median('rate'):>10,.1f} {spread:>21} {ratio:>6.2f} "
            f"{measurement.median('p50_ms'):>9.3f} {measurement.median('p99_ms'):>9.3f} "
            f"{measurement.median('server_us'):>10,.1f} {measurement.median('busy'):>6.0%}",
            flush=True,
        )


def run_flower(size: int, clients: int, seconds: float, directory: Path) -> float:
    """Pushes a second at a Flower server of the same size of network."""
    python = interpreter_of_peers()
    script, port = Path(__file__).parent / "peers" / "flower.py", free_port()
    log, result = directory / "flower.log", directory / f"flower-{size}.json"
    own = f"server {port} {size} {clients} --seconds {seconds} --result {result}"
    server = start([python, str(script), *own.split()], log, SERVER_CORE)
    wait_for_port(server, port, log, 60.0)
    swarm = start([python, str(script), "clients", str(port), str(clients)], log, LOAD_CORE)
    try:
        server.wait(seconds + 60.0)
    except subprocess.TimeoutExpired:
        pass
    finally:
        stop(server)
        stop(swarm)
    if not result.exists():
        raise SystemExit(f"Flower gave no result:\n{log.read_text(errors='replace')[-2000:]}")
    return float(json.loads(result.read_text())["pushes_per_second"])


def start_bare(port: int, size: int, log: Path) -> subprocess.Popen[bytes]:
    """The bare server, which answers as a Parent does whose network has so many numbers."""
    reply = len(encode(Weights(version=1 << 15, vector=np.zeros(size, DTYPE))))
    bare = start([sys.executable, __file__, "--serve", str(port), str(reply)], log, SERVER_CORE)
    wait_for_port(bare, port, log)
    return bare


async def serve_bare(port: int, reply_size: int) -> None:
    """The server to compare with: it passes the same bytes both ways, and does nothing else."""
    from websockets.asyncio.server import ServerConnection, serve

    reply = bytes(reply_size)

    async def answer(websocket: ServerConnection) -> None:
        async for _ in websocket:
            await websocket.send(reply)

    async with serve(answer, "127.0.0.1", port, compression=None, max_size=None) as server:
        await server.serve_forever()


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--children", type=int, nargs="+", default=[1, 16, 64], metavar="N")
    sizes = [3_000, 250_000, 4_000_000]
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help="numbers of a network")
    parser.add_argument("--windows", type=int, default=5, help="windows of each server (default 5)")
    length = "length of a window; longer where a large network needs it (default 3)"
    parser.add_argument("--seconds", type=float, default=3.0, help=length)
    flower = "sizes to run Flower with; empty for none"
    parser.add_argument("--flower-sizes", type=int, nargs="*", default=[3_000], help=flower)
    parser.add_argument("--flower-clients", type=int, default=16, metavar="N")
    parser.add_argument("--rules", nargs="*", default=[], choices=sorted(names("rules")))
    parser.add_argument("--optimizer", default="adam", help="of the rule gradient (default adam)")
    parser.add_argument("--no-parent", action="store_true", help="only the bare server")
    parser.add_argument("--results", type=Path, help="file to which rows are appended")
    parser.add_argument("--serve", type=int, nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> None:
    options = parse(sys.argv[1:])
    if options.serve:
        import uvloop

        uvloop.run(serve_bare(*options.serve))
        return
    os.sched_setaffinity(0, {LOAD_CORE})
    print(
        f"{'numbers':>9} {'children':>8} {'server':>7} {'rate':>10} {'[least–most]':>21}", end=" "
    )
    print(f"{'ratio':>6} {'p50 ms':>9} {'p99 ms':>9} {'server µs':>10} {'busy':>6}", flush=True)
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="exchange-") as name:
        for size in options.sizes:
            measurements += compare(size, options, Path(name))
        for size in options.flower_sizes:
            clients = options.flower_clients
            rate = run_flower(size, clients, options.seconds, Path(name))
            row = {"server": "flower", "parameters": size, "clients": clients, "rate": rate}
            said = f"Flower, {size:,} numbers, {clients} clients: {rate:,.0f} pushes/s"
            for each in measurements:
                if (each.server, each.parameters, each.children) == ("parent", size, clients):
                    row["multiple"] = each.median("rate") / rate
                    said += f"; the Parent's {row['multiple']:.1f} times as many"
            keep(options.results, row)
            print(said)


if __name__ == "__main__":
    main()
