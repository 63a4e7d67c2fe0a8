"""What to think of a machine: its Python, processor, C library, cores, memory, disk and clock."""

from __future__ import annotations

from genkidama import capacity
from genkidama.doctor.judgements.check import DAY, Check, duration, size
from genkidama.doctor.judgements.versions import release

__all__ = [
    "judge_c_library",
    "judge_clock_alone",
    "judge_cores",
    "judge_disk",
    "judge_memory",
    "judge_processor",
    "judge_python",
    "parse_quota",
]

#: pyproject.toml's `requires-python`.
_PYTHON = (3, 11)

#: The wheels of torch and NumPy are built for manylinux_2_28.
_GLIBC = (2, 28)

_SUPPORTED = ("x86_64", "amd64", "aarch64", "arm64")
_PI_OS = "install the 64-bit Raspberry Pi OS"


def judge_python(version: tuple[int, ...]) -> Check:
    """Whether Genkidama runs on this Python."""
    found = ".".join(map(str, version))
    if version[:2] >= _PYTHON:
        return Check("python", "ok", found)
    wanted = ".".join(map(str, _PYTHON))
    way = f"Genkidama needs Python {wanted} or later: Debian 12 and Raspberry Pi OS 12 have it"
    return Check("python", "failed", found, way)


def judge_processor(system: str, machine: str, bits: int) -> Check:
    """Whether there are wheels for this processor.

    Args:
        system, machine: as `platform` calls them, as `"Linux"`, `"aarch64"`: the kernel's.
        bits: of this Python, 32 or 64.
    """
    status, way = "failed", ""
    if system not in ("Linux", "Darwin"):
        way = "Genkidama runs on Linux and macOS; on Windows use WSL 2"
    elif bits != 64 and machine in ("aarch64", "arm64"):
        way = f"the kernel has 64 bits, this Python 32: {_PI_OS}"
    elif machine.startswith("armv7") or machine == "armv8l":
        way = f"there is no torch for 32 bits: {_PI_OS} (Pi 3, 4, 5, Zero 2)"
    elif machine.startswith("armv6"):
        way = "this Raspberry Pi has 32 bits only, and there is no torch for it: "
        way += "take a Pi 3 or later"
    elif bits != 64:
        way = "there is no torch for 32 bits: install a 64-bit system and Python"
    elif machine.lower() not in _SUPPORTED:
        status = "warning"
        way = "there are wheels of torch for x86_64 and aarch64 only; "
        way += "elsewhere it has to be built from source"
    return Check("system", status if way else "ok", f"{system} {machine}, {bits} bits", way)


def judge_c_library(name: str, version: str) -> Check:
    """Whether the wheels of torch and NumPy can be used on this Linux.

    Args:
        name, version: as `platform.libc_ver()` gives them, as `"glibc"`, `"2.36"`. The name is
            empty or another one where the library is not glibc.
    """
    least = ".".join(map(str, _GLIBC))
    need = f"the wheels of torch and NumPy need glibc {least} or later"
    if name != "glibc":
        found = " ".join((name or "not glibc", version)).strip()
        way = f"{need}: take a Debian, Raspberry Pi OS, Ubuntu or Fedora"
        return Check("c library", "failed", found, way)
    if release(version) < _GLIBC:
        way = f"{need}: install a newer system (Debian 10 has {least})"
        return Check("c library", "failed", f"glibc {version}", way)
    return Check("c library", "ok", f"glibc {version}")


def parse_quota(text: str) -> float | None:
    """How many CPU cores a cgroup may use on average, from its `cpu.max`; None if all.

    >>> parse_quota("150000 100000")
    1.5
    >>> parse_quota("max 100000")
    """
    words = text.split()
    if len(words) != 2 or not (words[0].isdecimal() and words[1].isdecimal()) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def judge_cores(wanted: int | None, available: int, quota: float | None) -> Check:
    """Whether there are CPU cores for so many core processes.

    Args:
        wanted: core processes; None if nobody has said how many.
        available: CPU cores that this process may use.
        quota: CPU cores that its cgroup may use on average; None if all.
    """
    found = f"{available} CPU core{'s' * (available != 1)}"
    if wanted is not None:
        found += f" for {wanted} core processes"
    if quota is not None and quota < min(available, available if wanted is None else wanted):
        found += f", of which a cgroup allows {quota:g} on average"
        fit = max(1, int(quota))
        way = f"raise the limit (CPUQuota=, docker --cpus), or use --cores {fit}"
        return Check("cores", "warning", found, way)
    if wanted is not None and wanted > available:
        way = f"core processes that share a core slow each other down: --cores {available}"
        return Check("cores", "warning", found, way)
    return Check("cores", "ok", found)


def judge_memory(
    available: int | None, swap: int, wanted: int, said: bool, running: int = 0
) -> Check:
    """Whether the memory is enough for so many core processes, by measurements of what they take.

    Args:
        available: bytes that a new process may take now; None if the system does not say.
        swap: bytes of swap that are free.
        wanted: core processes.
        said: whether somebody has asked for just so many, rather than for one each CPU core.
        running: bytes that a child already takes here. It is the child in question, so they count
            as available.
    """
    if available is None:
        return Check("memory", "skipped", "this system does not say how much is available")
    per_core = capacity.CORE_BYTES + capacity.GROWTH_BYTES
    takes = capacity.CHILD_BYTES + wanted * per_core
    available += running
    found = f"{size(available)} available"
    found += f" with the {size(running)} of the child that runs" if running else ""
    found += f", {f'{size(swap)} of swap' if swap else 'no swap'}; "
    found += f"a child with {wanted} core{'s' * (wanted != 1)} takes about {size(takes)}"
    free = "end other programs (a desktop: sudo systemctl set-default multi-user.target), "
    free += "or add swap"
    if available < capacity.CHILD_BYTES + per_core:
        return Check("memory", "failed", found, free)
    fit = capacity.expected_cores(available, wanted)
    if fit >= wanted:
        return Check("memory", "ok", found)
    if said:
        return Check("memory", "failed", found, f"--cores {fit} fits; or {free}")
    way = f"a child with --cores auto takes what fits, about {fit}; for more, {free}"
    return Check("memory", "warning", found, way)


def judge_disk(free: int, where: str, least: int, better: int) -> Check:
    """Whether there is enough room.

    Args:
        free: bytes that this user may still write.
        where: which directory that is.
        least, better: bytes below which nothing goes well, or not for long.
    """
    found = f"{size(free)} free at {where}"
    if free >= better:
        return Check("disk", "ok", found)
    way = f"make room there, {size(better)} or more; "
    way += "`du -xh / | sort -h | tail` shows what is large"
    return Check("disk", "failed" if free < least else "warning", found, way)


def judge_clock_alone(now: float, newest: float, said: str = "") -> Check:
    """Whether a clock that can be compared with no other can be right.

    Args:
        now: what it says, in Unix seconds.
        newest: when the newest file of the package was made, in Unix seconds.
        said: what the system says about it, as `"synchronized"`.
    """
    if now < newest - DAY:
        found = f"{duration(newest - now)} before Genkidama was installed"
        way = "a Raspberry Pi has no battery for its clock: "
        way += "sudo timedatectl set-ntp true, or sudo date -s '…'"
        return Check("clock", "failed", found, way)
    return Check("clock", "ok", said or "plausible; there is no parent's to compare it with")
