"""What the kernel lets this process take, and what it has taken."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

from genkidama.system.machine import resident_bytes

__all__ = ["limit_growth", "own_bytes"]


def limit_growth(by: int | None) -> None:
    """Has the kernel refuse memory when this process has taken so many bytes more than now.

    Blocks that it shares do not count, and neither do files. Only Linux can.

    Args:
        by: bytes; None for no limit. Where there is a tighter limit already, that stays.
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
