"""What this machine offers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["available_cores", "loop_factory", "on_signals", "resident_bytes"]


def available_cores() -> int:
    """How many CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where it is installed; None, meaning asyncio's own, elsewhere."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@contextmanager
def on_signals(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Meanwhile SIGTERM and SIGINT call `handle` in the running event loop, which is the main thread's; afterwards they do
    what they did before: who embeds a parent or a child wants Ctrl-C back."""
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
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
