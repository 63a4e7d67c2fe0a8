"""Processes that an environment has started: adopted when their own parent ends, named, and ended.

On Linux a subreaper (prctl(2)) becomes the parent of every descendant whose own parent has ended.
So whatever was started below it, by whatever way, stays below it. Elsewhere only the process group
of a worker is known.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from genkidama.runtime.machine import LINUX

#: The environment variable of each forked process, and of all that it starts: its process number.
WORKER = "GENKIDAMA_WORKER"

#: From Linux' prctl.h.
_PR_SET_CHILD_SUBREAPER = 36

#: Seconds between SIGTERM and SIGKILL: a robot's driver switches its motors off.
GRACE_SECONDS = 0.5

_POLL_SECONDS = 0.01

#: What a log says before their names.
ENDED = "ended what an environment left"


class Descendant(NamedTuple):
    """A process below this one."""

    pid: int
    parent: int
    #: As `"sleep 1000"`.
    command: str

    def __str__(self) -> str:
        return f"{self.command} ({self.pid})"


def adopt_orphans() -> None:
    """Makes this process the subreaper of all below it. Only Linux can."""
    if LINUX:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[Descendant]:
    """All living processes below this one, parents first; none where the system tells nothing."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdecimal() and (parent := _parent(int(name))):
                children[parent].append(int(name))
    found, waiting = [], [os.getpid()]
    for parent in waiting:
        for pid in children[parent]:
            found.append(Descendant(pid, parent, command_of(pid)))
            waiting.append(pid)
    return found


def worker_of(pid: int) -> int:
    """The forked process that has started this one; 0 if it is not known."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/environ", "rb") as file:
        for variable in file.read().split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == WORKER.encode():
                return int(value)
    return 0


def end(found: list[Descendant], number: int = signal.SIGTERM) -> None:
    """Sends these a signal, by default one that lets them clean up."""
    for each in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(each.pid, number)


def end_all(
    reap: Callable[[], object] = lambda: None, spared: Collection[int] = ()
) -> list[Descendant]:
    """Ends all below this process, within its grace; returns them.

    Args:
        reap: waits for those that have ended, without blocking.
        spared: process numbers of those that live on.
    """

    def living() -> list[Descendant]:
        return [each for each in descendants() if each.pid not in spared]

    found = living()
    end(found)
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := living()) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        reap()
    while left and time.monotonic() < deadline + GRACE_SECONDS:  # they may still start others
        end(left, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
        reap()
        left = living()
    return found


@contextmanager
def ended() -> Iterator[None]:
    """Ends at its end what was started within, also by an environment; standard error names it."""
    adopt_orphans()
    before = {each.pid for each in descendants()}
    try:
        yield
    finally:
        if left := end_all(spared=before):
            print(f"{ENDED}: {', '.join(map(str, left))}", file=sys.stderr)


def _parent(pid: int) -> int:
    """The parent of a process that lives, else 0."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        state, parent = file.read().rpartition(b")")[2].split()[:2]
        return int(parent) if state != b"Z" else 0
    return 0


def command_of(pid: int) -> str:
    """The command of a process, cut off after 100 characters; `?` if it is not known."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().replace(b"\0", b" ").decode(errors="replace").split()
        return " ".join(words)[:100]
    return "?"
