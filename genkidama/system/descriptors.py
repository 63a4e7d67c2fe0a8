"""How many files and sockets this process may have open."""

from __future__ import annotations

import os
from contextlib import suppress

__all__ = ["RESERVED", "room_for"]

#: These stay free: for checkpoints, the history, the study, and what comes at the same moment.
RESERVED = 128


def room_for(wanted: int) -> int:
    """How many more descriptors may be opened, at most `wanted`, with some left for other things.

    The process' own limit is raised as far as that takes and the system lets it.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
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
