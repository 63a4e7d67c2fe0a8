"""Resources of this machine and this process: cores, memory, descriptors, signals, and an end with
the process that started it."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import mmap
import os
import re
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# What the kernel lets this process take, and what it has taken.


def limit_growth(by: int | None) -> None:
    """Has the kernel refuse memory beyond this many bytes more than now; None for no limit.

    Blocks that it shares do not count, and neither do files. A tighter limit stays. Only Linux can.
    """
    if by is None:
        return
    with suppress(OSError, ValueError, StopIteration):
        with open("/proc/self/status", "rb") as file:
            now = next(int(line.split()[1]) << 10 for line in file if line.startswith(b"VmData:"))
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min([now + by, *limits]), hard))


def own_bytes() -> int:
    """This process' memory in RAM now, without files and without what it shares by descriptor.

    Elsewhere than on Linux, as `resident_bytes`.
    """
    with suppress(OSError, ValueError), open("/proc/self/statm", "rb") as file:
        resident, shared = map(int, file.read().split()[1:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return resident_bytes()


# TCP over links that come and go.

#: Linux 6.15 has it: the longest pause before data without an answer are sent again, in ms, and
#: the least that it takes.
TCP_RTO_MAX_MS = 44
LONGEST_PAUSE_MS = 1000

#: Milliseconds without an acknowledgment that end a connection, where the kernel has that option
#: and where it has not.
SILENCE_MS = (120_000, 10_000)

#: Seconds without data before a keepalive probe, which macOS has as TCP_KEEPALIVE, and between two;
#: and how many without an answer end a connection where the silence cannot be set.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPALIVE": 5, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 5}


def keep_alive(line: socket.socket, silence: int) -> None:
    """Has a connection end after so many ms without an answer, also while nothing is sent; after
    ten seconds where the system, as macOS, lacks that option."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {**_KEEPALIVE, "TCP_USER_TIMEOUT": silence}.items():
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def set_tcp_timeouts(transport: asyncio.BaseTransport) -> None:
    """Lets a connection go on a second after its link is mended, where the kernel can do that.

    Otherwise TCP doubles its pauses: after a cut of 20 s it may stay silent for another 20 s. There
    the connection ends after ten seconds, so that a new one can be tried every few seconds.
    Keepalive probes tell a connection that only waits.
    """
    connected = transport.get_extra_info("socket")
    if connected is None:
        return
    # What uvloop gives is no whole socket.
    with suppress(OSError), socket.socket(fileno=os.dup(connected.fileno())) as line:
        silence = SILENCE_MS[0]
        try:
            line.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, LONGEST_PAUSE_MS)
        except OSError:
            silence = SILENCE_MS[1]
        keep_alive(line, silence)


# How many files and sockets this process may have open.

#: These stay free: for checkpoints, the history, the study, and what comes at the same moment.
RESERVED = 128


def descriptors_left(wanted: int) -> int:
    """The number of descriptors that may still be opened, at most `wanted`; `RESERVED` stay free.

    The process' own limit is raised as far as that takes and the system lets it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _open() + RESERVED
    if soft != resource.RLIM_INFINITY and soft < needed + wanted:
        limit = needed + wanted
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        if limit > soft:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                soft = limit
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - needed)


def _open() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return len(os.listdir(folder))
    return 0


_ROOT = Path("/")

#: What numerical libraries read when they are loaded. One thread each: more fight for the CPU.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


def available_cores() -> int:
    """The number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_name() -> str:
    """The host name in letters, digits, `-` and `_`; `"child"` if there is none."""
    host = socket.gethostname().partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]", "-", host).strip("-_")[:48] or "child"


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where it is installed; None, meaning asyncio's own, elsewhere."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@contextmanager
def on_signals(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Meanwhile SIGTERM and SIGINT call `handle` in the running event loop, the main thread's.

    Afterwards they do what they did before: a program that embeds a parent or a child wants Ctrl-C
    back.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def resident_bytes() -> int:
    """This process' memory in RAM now; elsewhere than on Linux, the most that it ever was."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def available_bytes(root: Path = _ROOT) -> int | None:
    """The bytes that this process and its children may still allocate before the system runs out.

    The machine sets a limit, and so does each control group of this process (a container, a unit
    with `MemoryMax`). The tightest one counts, and the result may be below 0. It is None where the
    system does not say, as on anything but Linux.
    """
    rooms = _machines_room(root) + _groups_rooms(root)
    return min(rooms) if rooms else None


def _machines_room(root: Path) -> list[int]:
    with suppress(OSError):
        text = (root / "proc/meminfo").read_text()
        found = re.findall(r"^MemAvailable:\s*(\d+)", text, re.MULTILINE)
        return [int(size) * 1024 for size in found]
    return []


#: By version of the control groups' interface: the files with a group's limits, the file with its
#: usage, and the keys in `memory.stat` of what the kernel can have back. These are pages of files,
#: counted as `MemAvailable` counts them. (In version 1, `inactive_file` without `total_` leaves out
#: the groups below.)
_GROUP_FILES = {
    2: (("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file")),
    1: (
        ("memory.limit_in_bytes",),
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
}

#: Version 1 writes that there is no limit as a number near 2⁶³.
_NO_LIMIT = 1 << 60

#: In version 1, `memory.stat` has the smallest limit of all groups above, also of groups that a
#: container cannot see.
_HIERARCHY = "hierarchical_memory_limit"


def _groups_rooms(root: Path) -> list[int]:
    """The bytes left in each control group of this process that has a limit."""
    rooms = []
    for version, group, top in _groups(root):
        while True:
            rooms += _groups_room(group, version)
            if group == top:
                break
            group = group.parent
    return rooms


def _groups_room(group: Path, version: int) -> list[int]:
    limits, usage, reclaimable = _GROUP_FILES[version]
    try:
        used = int((group / usage).read_text())
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        statistics = {key: int(value) for key, value in lines}
    except (OSError, ValueError):  # the topmost group has none of these files
        return []
    found = [statistics[_HIERARCHY]] if _HIERARCHY in statistics else []
    for name in limits:
        with suppress(OSError, ValueError):  # ValueError: "max", no limit
            found.append(int((group / name).read_text()))
    if not found or min(found) >= _NO_LIMIT:
        return []
    return [min(found) - used + sum(statistics.get(key, 0) for key in reclaimable)]


def _groups(root: Path) -> Iterator[tuple[int, Path, Path]]:
    """Version, folder and topmost folder of each control group here that may limit memory."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    memberships = {
        2 if number == "0" else 1: path
        for number, controllers, path in (line.split(":", 2) for line in lines)
        if number == "0" or "memory" in controllers.split(",")
    }
    for fields in map(str.split, mounts):
        kind, _, options = fields[fields.index("-") + 1 :][:3]
        if kind == "cgroup2":
            version = 2
        elif kind == "cgroup" and "memory" in options.split(","):
            version = 1
        else:
            continue
        if version not in memberships:
            continue
        # A container may see only a part of the hierarchy, but read its place in the whole.
        top = root / fields[4].lstrip("/")
        below = os.path.relpath(memberships[version], fields[3])
        folder = top if below == "." or below.startswith("..") else top / below
        yield version, folder if folder.is_dir() else top, top


def private_bytes(root: Path = _ROOT) -> int | None:
    """Bytes that only this process has and has written; None where the system does not say."""
    for name in ("smaps_rollup", "smaps"):  # the sum, since Linux 4.14, and what it is the sum of
        with suppress(OSError):
            lines = (root / "proc/self" / name).read_text().splitlines()
            sizes = [int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")]
            if sizes:
                return sum(sizes) * 1024
    return None


def unmap_libraries() -> None:
    """Takes code and constants of all libraries out of this process' memory; what is needed again
    is mapped again.

    A library's first moments run through most of it. The pages stay in the system's cache, but no
    process holds them there any more. Only Linux can.
    """
    with suppress(OSError, AttributeError):
        text = Path("/proc/self/smaps").read_text()
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        # Each mapping is a line with its addresses, followed by lines with its figures.
        for mapping in _MAPPING.finditer(text):
            start, end = (int(mapping[key], 16) for key in ("start", "end"))
            madvise(start, end - start, mmap.MADV_DONTNEED)


#: A library's code or constants in `/proc/self/smaps`, unchanged since they were mapped.
_MAPPING = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) r-[x-]p .*\.so\S*\n"
    r"(?:[A-Z].*\n)*?Anonymous: +0 kB\n"
    r"(?:[A-Z].*\n)*?Swap: +0 kB$",
    re.MULTILINE,
)


def keep_large_blocks() -> None:
    """Has this process keep memory that it frees, up to blocks of 32 MiB. Only glibc can.

    It comes to that by itself, unless it was told to do otherwise.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 64 << 20)


def return_large_blocks() -> None:
    """Has this process take blocks of 32 KiB and more from the kernel, and give them back.

    On glibc's heap, torch's batches between an environment's small leftovers would fragment it by
    megabytes a second. (A3C's batch of 240 × 64 numbers is 61 KB: with a threshold of 64 KiB a core
    grew by 42 MB in 60,000 steps, with this one by 2.)
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 32 << 10)


#: From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def forget_peak() -> None:
    """Has `since_peak_bytes` look back no further than to this moment. Only Linux can."""
    with suppress(OSError), open("/proc/self/clear_refs", "wb") as file:
        file.write(b"5")


def since_peak_bytes(root: Path = _ROOT) -> int:
    """Bytes of RAM that this process took at its peak and no more; 0 where the system is silent."""
    try:
        text = (root / "proc/self/status").read_text()
        sizes = dict(re.findall(r"^(VmHWM|VmRSS):\s*(\d+)", text, re.MULTILINE))
        return max(0, int(sizes["VmHWM"]) - int(sizes["VmRSS"])) * 1024
    except (OSError, KeyError):
        return 0


#: From Linux' prctl.h and fcntl.h.
_PR_SET_PDEATHSIG = 1
_F_SETSIG = 10

LINUX = sys.platform == "linux"


def end_with_parent(parent: int | None = None) -> None:
    """Has the kernel kill this process with the thread that started it; now, if that is gone.

    This works even while the process computes, sleeps or hangs, but only on Linux. Elsewhere a
    process notices by itself, when its pipe closes.
    """
    if LINUX:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def at_end_of_pipe(descriptor: int, act: Callable[[], None]) -> None:
    """Interrupts this process' main thread for a call when `end_with_pipe` would kill it. Only
    Linux can."""
    signal.signal(signal.SIGIO, lambda *_: act())
    _signal_at_end(descriptor, signal.SIGIO)


def _signal_at_end(descriptor: int, number: int) -> None:
    if LINUX:
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(descriptor, _F_SETSIG, number)
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)


def end_with_pipe(descriptor: int) -> None:
    """Has the kernel kill this process when nobody holds the other end of a pipe any more.

    Nothing is ever written to the pipe, and no other process may have this end, to read, open.
    """
    _signal_at_end(descriptor, signal.SIGKILL)
    if select.select([descriptor], [], [], 0.0)[0]:  # it has ended before
        os._exit(1)
