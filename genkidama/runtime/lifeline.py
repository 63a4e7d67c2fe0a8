"""Processes that the kernel ends with their starter, however that ends.

This works even while a process computes, sleeps or hangs, but only on Linux. Elsewhere a process
notices by itself, when its pipe closes.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
from contextlib import suppress

#: From Linux' prctl.h and fcntl.h.
_PR_SET_PDEATHSIG = 1
_F_SETSIG = 10

_LINUX = sys.platform == "linux"


def end_with_parent(parent: int | None = None) -> None:
    """Has the kernel kill this process with the thread that started it; now, if that is gone."""
    if _LINUX:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def end_with_pipe(descriptor: int) -> None:
    """Has the kernel kill this process when nobody holds the other end of a pipe any more.

    Nothing is ever written to the pipe, and no other process may have this end, to read, open.
    """
    if _LINUX:
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGKILL)
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([descriptor], [], [], 0.0)[0]:  # it has ended before
        os._exit(1)
