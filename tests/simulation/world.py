"""World: one clock, one network and one disk for simulated machines, each with an event loop.

The program runs unchanged above three seams, in the manner of FoundationDB's simulator:

- `Machine` is the event loop of one process. Waiting costs no time: the clock jumps to the next
  callback. A killed process never runs again, whatever it waited for.
- `Wire` is the transport of a connection. Bytes arrive late, in pieces, or not at all.
- `Disk` stands between the program and a real folder. It knows what a power cut would leave.

All chance comes from generators with seeds of their own, so that an event that is left out does not
change what happens elsewhere.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import itertools
import logging
import os
import random
import secrets
import shutil
import time
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import CoroutineType
from typing import Any
from unittest import mock

from genkidama.child import transport
from genkidama.child.health import Health
from genkidama.runs import history
from genkidama.runtime import files

#: Unix time at which each day begins.
_DAWN = 1.8e9

#: Callbacks at one moment; more never let the clock go on.
_MOST_AT_ONCE = 100_000

#: Seconds after which TCP gives up a connection whose other end is silent.
_TCP_PATIENCE = (10.0, 120.0)

#: Seconds after which a try to connect is given up.
_DIAL_SECONDS = 3.5


class Broken(AssertionError):
    """A law does not hold."""


class Killed(BaseException):
    """The process ends in the middle of a call."""


class World:
    """The clock, and all machines.

    Args:
        seed: of everything that is left to chance.
        root: an empty folder, in which each machine's disk is a folder.
    """

    def __init__(self, seed: str, root: Path) -> None:
        self.seed = seed
        self.root = root
        #: Seconds since the day began.
        self.now = 0.0
        self.machines: list[Machine] = []
        #: The process that runs at present.
        self.running: Machine | None = None
        self.listeners: dict[tuple[str, int], Listener] = {}
        #: Machines that the others cannot reach at present, with the time of the cut.
        self.cut: dict[str, float] = {}
        #: The first law that was broken.
        self.broken: Broken | None = None
        #: Callbacks that ran.
        self.turns = 0
        self._queue: list[tuple[float, int, asyncio.Handle, Machine]] = []
        self._order = itertools.count()
        self._disks: dict[str, Disk] = {}

    def chance(self, of: str) -> random.Random:
        """A generator of its own for this purpose."""
        return random.Random(f"{self.seed}/{of}")

    def breaks(self, law: str) -> None:
        """Notes that a law is broken, which ends the day."""
        self.broken = self.broken or Broken(f"{self.now:.3f} s: {law}")

    def disk(self, host: str) -> Disk:
        """The disk of a machine, which outlives its processes."""
        if host not in self._disks:
            self._disks[host] = Disk(self, self.root / host)
        return self._disks[host]

    def schedule(self, when: float, handle: asyncio.Handle, machine: Machine) -> None:
        heapq.heappush(self._queue, (max(when, self.now), next(self._order), handle, machine))

    def run(self, until: float) -> None:
        """Runs all callbacks up to a moment.

        Raises:
            Broken: a law is broken.
        """
        at_once = 0
        while self._queue and self._queue[0][0] <= until:
            when, _, handle, machine = heapq.heappop(self._queue)
            if machine.dead or handle.cancelled():
                continue
            at_once = at_once + 1 if when == self.now else 0
            if at_once > _MOST_AT_ONCE:
                self.breaks("a process runs without ever waiting")
            self.now = when
            self.turns += 1
            self.run_as(machine, handle._run)
            if machine.dying:
                machine.kill()
            if self.broken is not None:
                raise self.broken
        self.now = max(self.now, until)

    def run_as(self, machine: Machine, call: Callable[[], Any]) -> Any:
        """Calls something as this process."""
        before, loop = self.running, events._get_running_loop()
        self.running = machine
        events._set_running_loop(machine)
        try:
            return call()
        finally:
            self.running = before
            events._set_running_loop(loop)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Puts this world in the place of the system's clock, chance and files."""
        chance = self.chance("system")
        with (
            mock.patch.multiple(time, monotonic=self._monotonic, time=self._time),
            mock.patch.multiple(
                secrets,
                token_hex=lambda size=16: chance.randbytes(size).hex(),
                token_bytes=lambda size=16: chance.randbytes(size),
            ),
            mock.patch.multiple(random, random=chance.random, randint=chance.randint),
            mock.patch.object(files, "os", _Os(self)),
            mock.patch.object(files, "open", self._open, create=True),
            mock.patch.object(history, "os", _Os(self)),
            mock.patch.object(transport, "_dial", self.dial),
            mock.patch.object(Health, "figures", _no_sensors),
        ):
            websockets = logging.getLogger("websockets")
            listener = _Errors(self)
            websockets.addHandler(listener)
            before, websockets.propagate = websockets.propagate, False
            try:
                yield
            finally:
                for machine in self.machines:
                    machine.kill()
                websockets.removeHandler(listener)
                websockets.propagate = before

    async def dial(self, host: str, port: int) -> Wire:
        """A connection of the running process."""
        machine = self.running
        assert machine is not None
        deadline = self.now + _DIAL_SECONDS
        while machine.host in self.cut or host in self.cut:
            await asyncio.sleep(0.5)
            if self.now > deadline:
                raise TimeoutError
        await asyncio.sleep(machine.chance.uniform(0.001, 0.1))
        listener = self.listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")
        near, far = Wire(machine, listener.machine.host), Wire(listener.machine, machine.host)
        near.other, far.other = far, near
        listener.offer(far)
        return near

    def _monotonic(self) -> float:
        return self.now if self.running is None else self.running.time()

    def _time(self) -> float:
        skew = 0.0 if self.running is None else self.disk(self.running.host).skew
        return _DAWN + self.now + skew

    def _open(self, path: Path, mode: str) -> _File:
        return _File(self.disk_of_running(), path, mode)

    def disk_of_running(self) -> Disk:
        machine = self.running
        assert machine is not None
        if machine.dead or machine.dying:
            raise OSError(errno.EIO, "a dead process writes nothing")
        return self.disk(machine.host)


def _no_sensors(health: Health, run: str, now: float) -> dict[str, float]:
    """Figures of a machine without sensors: those of the real one would differ from play to play,
    and take a quarter of a day's time to read."""
    return {}


class _Errors(logging.Handler):
    """Errors that websockets logs, as of a handler that raises."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        machine = self._world.running
        if machine is not None and not machine.dead:
            error = record.exc_info[1] if record.exc_info else None
            self._world.breaks(f"{machine.host}: {record.getMessage()}: {error!r}")


_Loop: Any = asyncio.AbstractEventLoop


class Machine(_Loop):  # type: ignore[misc]  # of a loop's methods it has those that are called
    """The event loop of one process.

    Args:
        host: the machine's name. It has one disk, and may run one process after another.
        rate: seconds of its clock in a second.
    """

    def __init__(self, world: World, host: str, rate: float = 1.0) -> None:
        self.world = world
        self.host = host
        self.dead = False
        #: Whether it ends with the callback that runs.
        self.dying = False
        self.wires: list[Wire] = []
        self.opened: list[int] = []
        self.chance = world.chance(f"{host}/{len(world.machines)}")
        self._rate = rate
        self.born = world.now
        self._tasks: list[asyncio.Task[Any]] = []
        #: Work of threads, which a kill may leave half done.
        self._threads: list[Callable[[], Any]] = []
        world.machines.append(self)

    def start(self, work: Any) -> asyncio.Task[Any]:
        """Runs a coroutine as this process."""
        task: asyncio.Task[Any] = self.world.run_as(self, lambda: self.create_task(work))
        return task

    def kill(self, silent: bool = False) -> None:
        """Ends the process as SIGKILL does.

        Args:
            silent: the machine has lost its power, so that nobody hears that it is gone.
        """
        if self.dead:
            return
        for work in self._threads:
            if self.chance.random() < 0.5:  # it came as far as this
                self.world.disk(self.host).fuse = self.chance.randint(0, 5)
                with suppress(Killed, Exception):
                    self.world.run_as(self, work)
                self.world.disk(self.host).fuse = None
        self.dead, self.dying = True, False
        self._threads.clear()
        for listener in [*self.world.listeners.values()]:
            if listener.machine is self:
                listener.close()
        for wire in [*self.wires]:
            wire.die(silent)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that never began
            while self._tasks:  # the end of one may begin another
                task = self._tasks.pop()
                task._log_destroy_pending = False
                self.world.run_as(self, partial(_close, task.get_coro()))
        self._tasks.clear()
        for descriptor in self.opened:
            with suppress(OSError):
                os.close(descriptor)

    # asyncio calls these.

    def time(self) -> float:
        return (self.world.now - self.born) * self._rate + 1000.0

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.world.schedule(self.world.now, handle, self)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.world.schedule(self.born + (when - 1000.0) / self._rate, handle, self)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: the queue passes over it."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        if len(self._tasks) > 64:
            self._tasks = [each for each in self._tasks if not each.done()]
        self._tasks.append(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not (self.dead or self.dying):
            error = context.get("exception")
            self.world.breaks(f"{self.host}: {context['message']}: {error!r}")

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """Runs `func` at the end of the time that the disk takes."""
        future = self.create_future()

        def work() -> Any:
            return func(*args)

        def end() -> None:
            self._threads.remove(work)
            try:
                result = work()
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self._threads.append(work)
        self.call_later(self.world.disk(self.host).delay(), end)
        return future

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        fd.watch(self, lambda: callback(*args))

    def remove_reader(self, fd: Any) -> bool:
        fd.watch(self, None)
        return True

    async def create_server(
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """A server that the parent's acceptor takes the place of."""
        server = mock.Mock()
        server.sockets = []
        return server

    async def create_connection(
        self, factory: Any, host: Any = None, port: Any = None, *, sock: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        wire = sock or await self.world.dial(host, port)
        protocol = factory()
        wire.attach(protocol)
        return wire, protocol

    async def connect_accepted_socket(self, factory: Any, sock: Any, **_: Any) -> tuple[Any, Any]:
        protocol = factory()
        sock.wire.attach(protocol)
        return sock.wire, protocol


def _close(coroutine: Any) -> None:
    """Frees what a coroutine holds. What it does in the end reaches nobody: its machine is dead."""
    chain = []
    while isinstance(coroutine, CoroutineType):
        chain.append(coroutine)
        coroutine = coroutine.cr_await
    for each in reversed(chain):
        while each.cr_frame is not None:
            with suppress(BaseException):
                each.close()


class Listener:
    """A listening socket."""

    def __init__(self, machine: Machine, host: str, port: int) -> None:
        self.machine = machine
        self.address = (host, port)
        self._waiting: deque[Wire] = deque()
        self._ready: Callable[[], None] | None = None

    def listen(self, backlog: int) -> None:
        self.machine.world.listeners[self.address] = self

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def setblocking(self, flag: bool) -> None:
        """Nothing: it never blocks."""

    def watch(self, machine: Machine, ready: Callable[[], None] | None) -> None:
        self._ready = ready
        if ready is not None and self._waiting:
            machine.call_soon(ready)

    def offer(self, wire: Wire) -> None:
        self._waiting.append(wire)
        if self._ready is not None:
            self.machine.call_soon(self._ready)

    def accept(self) -> tuple[Accepted, tuple[str, int]]:
        if not self._waiting:
            raise BlockingIOError
        wire = self._waiting.popleft()
        return Accepted(wire), (wire.peer, 40000)

    def close(self) -> None:
        self.machine.world.listeners.pop(self.address, None)
        for wire in self._waiting:
            wire.die(silent=False)
        self._waiting.clear()


class Accepted:
    """An accepted socket, which has no transport yet."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def setblocking(self, flag: bool) -> None:
        """Nothing: it never blocks."""

    def setsockopt(self, *_: Any) -> None:
        """Nothing: there is nothing to tune."""

    def send(self, data: bytes) -> int:
        self.wire.write(data)
        return len(data)

    def shutdown(self, how: int) -> None:
        self.wire.write_eof()

    def recv(self, size: int) -> bytes:
        return self.wire.take(size)

    def close(self) -> None:
        self.wire.close()


class Wire(asyncio.Transport):
    """One end of a connection. What is written arrives at `other`, in order, later."""

    def __init__(self, machine: Machine, peer: str) -> None:
        super().__init__({"peername": (peer, 40000), "sockname": (machine.host, 8765)})
        self.machine = machine
        self.peer = peer
        self.other: Wire
        self.protocol: Any = None
        self._world = machine.world
        self._chance = machine.world.chance(f"wire {len(machine.wires)} {machine.host} {peer}")
        #: Bytes that have arrived and were not read; None behind them is the end.
        self._inbox: deque[bytes | None] = deque()
        self._paused = False
        self._closing = False
        self._lost = False
        #: When the last bytes that this end sent arrive.
        self._arrival = 0.0
        #: Bytes that still pass; None for all.
        self._passing: int | None = None
        self._resending = False
        self._unsent: deque[bytes | None] = deque()
        machine.wires.append(self)

    def attach(self, protocol: Any) -> None:
        self.protocol = protocol
        protocol.connection_made(self)
        self._call(self._read)

    # asyncio's protocols call these.

    def write(self, data: Any) -> None:
        if not self._closing and not self._lost:
            self._send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing:
            self._send(None)

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def close(self) -> None:
        if not self._closing and not self._lost:
            self._send(None)
            self._closing = True
            self._lose(None)

    def abort(self) -> None:
        if not self._lost:
            self.other.reset_soon()
            self._lose(None)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._call(self._read)

    def is_reading(self) -> bool:
        return not self._paused

    def set_write_buffer_limits(self, high: Any = None, low: Any = None) -> None:
        """Nothing: there is room for all."""

    def get_write_buffer_size(self) -> int:
        return sum(len(data or b"") for data in self._unsent)

    # The network calls these.

    def cut_after(self, count: int) -> None:
        """Loses all that this end sends after some more bytes, and in the end the connection."""
        if self._passing is None:
            self._passing = count
            for end in (self, self.other):
                end._call_later(end._chance.uniform(*_TCP_PATIENCE), end.reset)

    def die(self, silent: bool) -> None:
        """This end's process is gone."""
        self._lost = True
        if not silent:
            self.other.reset_soon()
        else:
            other = self.other
            other._call_later(other._chance.uniform(*_TCP_PATIENCE), other.reset)

    def reset_soon(self) -> None:
        self._call_later(self._chance.uniform(0.001, 0.1), self.reset)

    def reset(self) -> None:
        self._lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def take(self, size: int) -> bytes:
        """What has arrived, for a socket without a transport."""
        if not self._inbox:
            raise BlockingIOError
        return self._inbox.popleft() or b""

    def _send(self, data: bytes | None) -> None:
        self._unsent.append(data)
        self._flush()

    def _flush(self) -> None:
        """Sends what waits, unless the line is down; then it is tried again."""
        self._resending = False
        if self.machine.host in self._world.cut or self.peer in self._world.cut:
            since = max(self._world.cut.get(each, 0.0) for each in (self.machine.host, self.peer))
            if self._world.now - since > _TCP_PATIENCE[0]:
                self.reset()
            else:
                self._resending = True
                self._call_later(1.0, self._flush)
            return
        while self._unsent:
            data = self._unsent.popleft()
            if self._passing is not None:
                data = (data or b"")[: self._passing]
                self._passing -= len(data)
                if not data:
                    continue
            at = len(data or b"")
            if data and self._chance.random() < 0.05:  # in two pieces
                at = self._chance.randint(1, len(data))
            self._deliver(data[:at] if data else data)
            if data and data[at:]:
                self._deliver(data[at:])

    def _deliver(self, data: bytes | None) -> None:
        late = self._chance.expovariate(1.0 / 0.01) if self._chance.random() < 0.2 else 0.002
        self._arrival = max(self._arrival, self._world.now + late)
        self.other._call_later(self._arrival - self._world.now, lambda: self.other._arrive(data))

    def _arrive(self, data: bytes | None) -> None:
        if not self._lost:
            self._inbox.append(data)
            self._read()

    def _read(self) -> None:
        while self._inbox and not self._paused and not self._lost and self.protocol is not None:
            data = self._inbox.popleft()
            if data is not None:
                self.protocol.data_received(data)
            elif not self.protocol.eof_received():
                self.close()

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            if self.protocol is not None:
                self._call(lambda: self.protocol.connection_lost(error))

    def _call(self, callback: Callable[[], Any]) -> None:
        self.machine.call_soon(callback)

    def _call_later(self, seconds: float, callback: Callable[[], Any]) -> None:
        handle = asyncio.Handle(callback, (), self.machine)
        self._world.schedule(self._world.now + max(0.0, seconds), handle, self.machine)


class Disk:
    """One machine's disk, and its clock.

    Args:
        path: a real folder.
    """

    def __init__(self, world: World, path: Path) -> None:
        self.path = path
        self._world = world
        path.mkdir()
        #: Seconds that this machine's clock is wrong by.
        self.skew = 0.0
        #: The system's number of the error that each write meets; 0 for none.
        self.fault = 0
        self.slow = False
        #: Operations until the process is killed.
        self.fuse: int | None = None
        #: Files that a bit was flipped in, by inode.
        self.flipped: set[int] = set()
        self._chance = world.chance(f"disk {path.name}")
        #: What was flushed: contents by inode, and by folder the inodes of its names.
        self._contents: dict[int, bytes] = {}
        self._names: dict[str, dict[str, int]] = {}

    def delay(self) -> float:
        """Seconds that a write takes."""
        return self._chance.uniform(1.0, 15.0) if self.slow else self._chance.uniform(0.0, 0.1)

    def touch(self) -> None:
        """Meets whatever is in the way of the next write."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                machine = self._world.running
                if machine is not None:
                    machine.dying = True
                raise Killed
        if self.fault:
            raise OSError(self.fault, os.strerror(self.fault))

    def flush(self, descriptor: int) -> None:
        """As fsync."""
        self.touch()
        found = os.fstat(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            self._names[path] = {
                each.name: each.inode() for each in os.scandir(path) if each.is_file()
            }
        else:
            self._contents[found.st_ino] = Path(path).read_bytes()

    def cut_power(self) -> None:
        """Leaves what was flushed and, by chance, some of the rest."""
        for folder in [self.path, *(path for path in self.path.rglob("*") if path.is_dir())]:
            flushed = self._names.get(str(folder), {})
            there = {path.name: path for path in folder.iterdir() if path.is_file()}
            for name in sorted(there.keys() | flushed.keys()):
                if ".db" in name:  # SQLite writes by itself
                    continue
                self._lose(folder / name, flushed.get(name))

    def _lose(self, path: Path, flushed: int | None) -> None:
        inode = path.stat().st_ino if path.exists() else None
        if inode != flushed and self._chance.random() < 0.5:  # the name had not been written yet
            inode = flushed
        if inode is None:
            path.unlink(missing_ok=True)
            return
        content = self._contents.get(inode, b"")
        if path.exists() and path.stat().st_ino == inode:
            now = path.read_bytes()
            if now == content:
                return
            least = len(content) if now.startswith(content) else 0
            content = now[: self._chance.randint(least, len(now))]
        path.write_bytes(content)
        self._contents[path.stat().st_ino] = content
        if inode in self.flipped:
            self.flipped.add(path.stat().st_ino)

    def flip(self, path: Path) -> None:
        """Turns one bit of a file round."""
        content = bytearray(path.read_bytes())
        if content:
            content[self._chance.randrange(len(content))] ^= 1 << self._chance.randrange(8)
            path.write_bytes(content)
            self._contents[path.stat().st_ino] = bytes(content)
            self.flipped.add(path.stat().st_ino)

    def delete(self, folder: Path) -> None:
        """Removes a folder, durably."""
        shutil.rmtree(folder, ignore_errors=True)
        for name in [*self._names]:
            if Path(name).is_relative_to(folder):
                del self._names[name]


class _File:
    """A file that is open for writing."""

    def __init__(self, disk: Disk, path: Path, mode: str) -> None:
        disk.touch()
        self._disk = disk
        self._file = open(path, mode)  # noqa: SIM115  # its owner closes it

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, content: bytes) -> None:
        try:
            self._disk.touch()
        except BaseException:
            self._file.write(content[: len(content) // 2])
            raise
        self._file.write(content)

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()


class _Os:
    """The module `os` with a machine's disk in it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        disk = self._world.disk_of_running()
        if flags & os.O_CREAT:
            disk.touch()
        descriptor = os.open(path, flags, mode)
        assert self._world.running is not None
        self._world.running.opened.append(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        machine = self._world.running
        if machine is not None and descriptor in machine.opened:
            machine.opened.remove(descriptor)
            os.close(descriptor)

    def write(self, descriptor: int, data: Any) -> int:
        self._world.disk_of_running().touch()
        return os.write(descriptor, bytes(data))

    def ftruncate(self, descriptor: int, length: int) -> None:
        self._world.disk_of_running().touch()
        os.ftruncate(descriptor, length)

    def replace(self, source: Any, target: Any) -> None:
        self._world.disk_of_running().touch()
        os.replace(source, target)

    def fsync(self, descriptor: int) -> None:
        self._world.disk_of_running().flush(descriptor)
