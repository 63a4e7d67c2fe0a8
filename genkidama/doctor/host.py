"""What the doctor finds on the machine itself. Each check is a function that gives its rows."""

from __future__ import annotations

import errno
import platform
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from genkidama.doctor.judgements.check import Check
from genkidama.doctor.judgements.machine import (
    judge_c_library,
    judge_clock_alone,
    judge_cores,
    judge_disk,
    judge_memory,
    judge_processor,
    judge_python,
    parse_quota,
)
from genkidama.system.machine import available_bytes, available_cores

__all__ = [
    "clock",
    "cores",
    "disk",
    "existing",
    "memory",
    "python",
    "running_bytes",
    "system",
    "writable",
]

_GIB = 1 << 30

#: Bytes. Below the first, a child's state or an update of its packages may fail; below the second
#: they will some day.
_CHILD_DISK = (_GIB // 10, _GIB // 2)

#: systemd-timesyncd makes this file when it has set the clock.
_SYNCHRONIZED = Path("/run/systemd/timesync/synchronized")


def python() -> list[Check]:
    """The interpreter."""
    return [judge_python(sys.version_info[:3])]


def system() -> list[Check]:
    """Processor, bits and, on Linux, the C library."""
    bits = 64 if sys.maxsize > 2**32 else 32
    checks = [judge_processor(platform.system(), platform.machine(), bits)]
    if platform.system() == "Linux":
        checks.append(judge_c_library(*platform.libc_ver()))
    return checks


def cores(wanted: int | None, root: Path = Path("/")) -> list[Check]:
    """CPU cores, and what a cgroup allows of them.

    Args:
        wanted: core processes; None if nobody has said how many.
        root: where `proc` and `sys` are.
    """
    return [judge_cores(wanted, available_cores(), _quota(root))]


def _quota(root: Path) -> float | None:
    """The tightest quota of this process' cgroup (version 2) and of all groups above it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for own in (line[3:].lstrip("/") for line in lines if line.startswith("0::")):
        top = root / "sys/fs/cgroup"
        for folder in [top / own, *(top / own).parents]:
            try:
                quotas.append(parse_quota((folder / "cpu.max").read_text()))
            except OSError:
                continue
    return min((quota for quota in quotas if quota is not None), default=None)


def memory(wanted: int | None, root: Path = Path("/")) -> list[Check]:
    """Memory for so many core processes; None stands for one each CPU core."""
    count = available_cores() if wanted is None else wanted
    return [
        judge_memory(
            available_bytes(root),
            _free_swap(root),
            count,
            said=wanted is not None,
            running=running_bytes(root),
        )
    ]


def running_bytes(root: Path = Path("/")) -> int:
    """Bytes that this user's running children take, with all their processes; 0 if nobody says."""
    parents: dict[int, int] = {}
    children: set[int] = set()
    for folder in (root / "proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
            if b"\0-m\0genkidama.child\0" in (folder / "cmdline").read_bytes():
                children.add(int(folder.name))
    taken = 0
    for process in parents:
        line = [process]
        while (above := parents.get(line[-1], 0)) and above not in line:
            line.append(above)
        if children.intersection(line):
            with suppress(OSError):
                rows = (root / f"proc/{process}/smaps_rollup").read_text().splitlines()
                taken += sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Pss:"))
    return taken


def _free_swap(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("SwapFree:"))


def disk(folder: Path, limits: tuple[int, int] = _CHILD_DISK) -> list[Check]:
    """The room that is left where a directory is, or will be."""
    there = existing(folder)
    try:
        return [judge_disk(shutil.disk_usage(there).free, str(there), *limits)]
    except OSError as error:
        way = "is the disk still there? see `dmesg`"
        return [Check("disk", "failed", f"{there}: {error.strerror}", way)]


def writable(name: str, folder: Path) -> list[Check]:
    """Whether this user may write to a directory, or make it. Nothing stays there."""
    there = existing(folder)
    found = f"{folder} can be {'written' if folder.exists() else 'made'}"
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0")
    except OSError as error:
        way = f"give it to the user that runs Genkidama (sudo chown USER {there}), "
        way += "or run the doctor as that user (sudo -u USER …)"
        if error.errno == errno.EROFS:
            way = "its file system is read-only: mount it writable; "
            way += "a worn SD card ends like this, see `dmesg`"
        return [Check(name, "failed", f"{there} cannot be written: {error.strerror}", way)]
    return [Check(name, "ok", found)]


def existing(folder: Path) -> Path:
    """The directory, or the nearest above it that exists."""
    there = folder.absolute()
    while not there.is_dir() and there != there.parent:
        there = there.parent
    return there


def clock() -> list[Check]:
    """Whether the clock may be right, as far as this machine alone can tell."""
    package = Path(__file__).resolve().parent.parent
    newest = max(path.stat().st_mtime for path in package.rglob("*.py"))
    said = "synchronized by systemd-timesyncd" if _SYNCHRONIZED.exists() else ""
    return [judge_clock_alone(time.time(), newest, said)]
