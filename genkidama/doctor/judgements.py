"""What the doctor thinks of what was found: pure functions, from numbers and texts to a `Check`.

Laws of this file:
- Nothing here looks at the machine, the clock or the network, and nothing needs more than the standard library.
- What is not ok says what to do.
"""

from __future__ import annotations

import errno
import re
import signal
from typing import NamedTuple

from genkidama import capacity

__all__ = [
    "DAY",
    "Check",
    "Requirement",
    "architecture",
    "bare_clock",
    "box2d",
    "c_library",
    "certificate",
    "clock_offset",
    "closed_port",
    "cores",
    "death",
    "disk",
    "memory",
    "package",
    "parse_quota",
    "parse_requirement",
    "python_version",
    "server_header",
    "torch",
    "unknown_name",
    "version_allowed",
]

DAY = 86400.0

_MIB = 1 << 20
_GIB = 1 << 30

#: pyproject.toml's `requires-python`.
_PYTHON = (3, 11)

#: The wheels of torch and NumPy are built for manylinux_2_28.
_GLIBC = (2, 28)

#: What a clock may be off by, in seconds: beyond the first, times in histories of several machines mislead; beyond the second,
#: certificates and package downloads begin to fail.
_OFFSETS = (5.0, 300.0)

#: A certificate that ends sooner should be renewed.
_CERTIFICATE_DAYS = 30

_SUPPORTED = ("x86_64", "amd64", "aarch64", "arm64")
_ARM = ("aarch64", "arm64")


class Check(NamedTuple):
    """One row: what was checked, how it is, what was found and, if it is not ok, what to do."""

    name: str
    #: `"ok"`, `"warning"`, `"failed"` or `"skipped"`.
    status: str
    found: str
    advice: str = ""


# The machine.


def python_version(version: tuple[int, ...]) -> Check:
    """Whether Genkidama runs on this Python."""
    found = ".".join(map(str, version))
    if version[:2] >= _PYTHON:
        return Check("python", "ok", found)
    wanted = ".".join(map(str, _PYTHON))
    return Check(
        "python",
        "failed",
        found,
        f"Genkidama needs Python {wanted} or later: Debian 12 and Raspberry Pi OS 12 have it",
    )


def architecture(system: str, machine: str, bits: int) -> Check:
    """Whether there are wheels for this processor.

    Args:
        system, machine: as `platform` calls them, as `"Linux"`, `"aarch64"`: the kernel's.
        bits: of this Python, 32 or 64.
    """
    found = f"{system} {machine}, {bits} bits"
    if system not in ("Linux", "Darwin"):
        return Check(
            "system", "failed", found, "Genkidama runs on Linux and macOS; on Windows use WSL 2"
        )
    if bits != 64 and machine in _ARM:
        way = "the kernel has 64 bits, this Python 32: install the 64-bit Raspberry Pi OS"
        return Check("system", "failed", found, way)
    if machine.startswith("armv7") or machine == "armv8l":
        return Check(
            "system",
            "failed",
            found,
            "there is no torch for 32 bits: install the 64-bit Raspberry Pi OS (Pi 3, 4, 5, Zero 2)",
        )
    if machine.startswith("armv6"):
        return Check(
            "system",
            "failed",
            found,
            "this Raspberry Pi has 32 bits only, and there is no torch for it: take a Pi 3 or later",
        )
    if bits != 64:
        return Check(
            "system",
            "failed",
            found,
            "there is no torch for 32 bits: install a 64-bit system and Python",
        )
    if machine.lower() not in _SUPPORTED:
        way = "there are wheels of torch for x86_64 and aarch64 only; elsewhere it has to be built from source"
        return Check("system", "warning", found, way)
    return Check("system", "ok", found)


def c_library(name: str, version: str) -> Check:
    """Whether the wheels of torch and NumPy can be used on this Linux.

    Args:
        name, version: as `platform.libc_ver()` gives them, as `"glibc"`, `"2.36"`; empty or another name where it is not glibc.
    """
    least = ".".join(map(str, _GLIBC))
    if name != "glibc":
        way = f"the wheels of torch and NumPy need glibc {least} or later: take a Debian, Raspberry Pi OS, Ubuntu or Fedora"
        return Check("c library", "failed", " ".join((name or "not glibc", version)).strip(), way)
    if _release(version) < _GLIBC:
        way = f"the wheels of torch and NumPy need glibc {least} or later: install a newer system (Debian 10 has {least})"
        return Check("c library", "failed", f"glibc {version}", way)
    return Check("c library", "ok", f"glibc {version}")


def parse_quota(text: str) -> float | None:
    """How many CPU cores a cgroup may use on average, from its `cpu.max`; None if as many as it likes.

    >>> parse_quota("150000 100000")
    1.5
    >>> parse_quota("max 100000")
    """
    words = text.split()
    if len(words) != 2 or not (words[0].isdecimal() and words[1].isdecimal()) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def cores(wanted: int | None, available: int, quota: float | None) -> Check:
    """Whether there are CPU cores for so many core processes.

    Args:
        wanted: core processes; None if nobody has said how many.
        available: CPU cores that this process may use.
        quota: CPU cores that its cgroup may use on average; None if all.
    """
    found = f"{available} CPU core{'s' * (available != 1)}" + (
        f" for {wanted} core processes" if wanted is not None else ""
    )
    if quota is not None and quota < min(available, available if wanted is None else wanted):
        found += f", of which a cgroup allows {quota:g} on average"
        return Check(
            "cores",
            "warning",
            found,
            f"raise the limit (CPUQuota=, docker --cpus), or use --cores {max(1, int(quota))}",
        )
    if wanted is not None and wanted > available:
        return Check(
            "cores",
            "warning",
            found,
            f"core processes that share a core slow each other down: --cores {available}",
        )
    return Check("cores", "ok", found)


def memory(available: int | None, swap: int, wanted: int, said: bool, running: int = 0) -> Check:
    """Whether the memory is enough for so many core processes, by what they have been measured to take.

    Args:
        available: bytes that a new process may take now; None if the system does not say.
        swap: bytes of swap that are free.
        wanted: core processes.
        said: whether somebody has asked for just so many, rather than for as many as there are CPU cores.
        running: bytes that a child takes which runs already: the one that is asked about, so they count as available.
    """
    if available is None:
        return Check("memory", "skipped", "this system does not say how much is available")
    takes = capacity.CHILD_BYTES + wanted * (capacity.CORE_BYTES + capacity.GROWTH_BYTES)
    available += running
    found = f"{size(available)} available{f' with the {size(running)} of the child that runs' if running else ''}, "
    found += f"{f'{size(swap)} of swap' if swap else 'no swap'}; "
    found += f"a child with {wanted} core{'s' * (wanted != 1)} takes about {size(takes)}"
    free = (
        "end other programs (a desktop: sudo systemctl set-default multi-user.target), or add swap"
    )
    if available < capacity.CHILD_BYTES + capacity.CORE_BYTES + capacity.GROWTH_BYTES:
        return Check("memory", "failed", found, free)
    if (fit := capacity.expected_cores(available, wanted)) < wanted:
        if said:
            return Check("memory", "failed", found, f"--cores {fit} fits; or {free}")
        return Check(
            "memory",
            "warning",
            found,
            f"a child with --cores auto takes what fits, about {fit}; for more, {free}",
        )
    return Check("memory", "ok", found)


def disk(free: int, where: str, least: int, better: int) -> Check:
    """Whether there is enough room.

    Args:
        free: bytes that this user may still write.
        where: which directory that is.
        least, better: bytes below which nothing goes well, or not for long.
    """
    found = f"{size(free)} free at {where}"
    if free >= better:
        return Check("disk", "ok", found)
    way = (
        f"make room there, {size(better)} or more; `du -xh / | sort -h | tail` shows what is large"
    )
    return Check("disk", "failed" if free < least else "warning", found, way)


# The clock.


def clock_offset(seconds: float) -> Check:
    """What to think of a clock that is so far from the parent's; positive if it is ahead."""
    off = abs(seconds)
    found = (
        "as the parent's, to a second"
        if off < 1.5
        else f"{duration(off)} {'ahead of' if seconds > 0 else 'behind'} the parent's"
    )
    if off <= _OFFSETS[0]:
        return Check("clock", "ok", found)
    way = "set both clocks by NTP: sudo timedatectl set-ntp true, and see `timedatectl timesync-status`"
    return Check("clock", "failed" if off > _OFFSETS[1] else "warning", found, way)


def bare_clock(now: float, newest: float, said: str = "") -> Check:
    """Whether a clock that can be compared with no other can be right.

    Args:
        now: what it says, in Unix seconds.
        newest: when the newest file of the package was made, in Unix seconds.
        said: what the system says about it, as `"synchronized"`.
    """
    if now < newest - DAY:
        way = "a Raspberry Pi has no battery for its clock: sudo timedatectl set-ntp true, or sudo date -s '…'"
        return Check(
            "clock", "failed", f"{duration(newest - now)} before Genkidama was installed", way
        )
    return Check("clock", "ok", said or "plausible; there is no parent's to compare it with")


# Packages.


class Requirement(NamedTuple):
    """A line of a package's requirements."""

    name: str
    #: As `">=2.6,!=2.10.*,<3"`, without spaces.
    specifiers: str
    #: The condition behind the semicolon; empty if there is none.
    marker: str


def parse_requirement(line: str) -> Requirement:
    """A requirement as `importlib.metadata.requires` gives it. `packaging` would do that, and is no dependency of ours.

    >>> parse_requirement("torch!=2.10.*,<3,>=2.6; extra == 'x'")
    Requirement(name='torch', specifiers='!=2.10.*,<3,>=2.6', marker="extra == 'x'")
    """
    head, _, marker = line.partition(";")
    found = re.match(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^()]*)\)?\s*\Z", head)
    if found is None:
        return Requirement(head.strip(), "", marker.strip())
    return Requirement(found[1], re.sub(r"\s", "", found[2]), marker.strip())


def version_allowed(version: str, specifiers: str) -> bool:
    """Whether a version is one of those that a requirement allows.

    Only what comes before letters and `+` is compared: 2.6.0a1 and 2.6.0+cpu count as 2.6.0.

    >>> version_allowed("2.10.0+cpu", ">=2.6,!=2.10.*,<3")
    False
    """
    return all(
        _holds(_release(version), specifier) for specifier in specifiers.split(",") if specifier
    )


def _holds(version: tuple[int, ...], specifier: str) -> bool:
    found = re.match(r"(~=|===?|!=|<=|>=|<|>)(.*)\Z", specifier)
    if found is None:
        return True
    operator, text = found[1], found[2]
    other = _release(text)
    if text.endswith(".*"):
        same = _padded(version, len(other))[: len(other)] == other
        return same if operator == "==" else not same
    length = max(len(version), len(other))
    ours, theirs = _padded(version, length), _padded(other, length)
    if operator == "~=":
        return ours >= theirs and ours[: len(other) - 1] == theirs[: len(other) - 1]
    return {
        "==": ours == theirs,
        "===": ours == theirs,
        "!=": ours != theirs,
        "<=": ours <= theirs,
        ">=": ours >= theirs,
        "<": ours < theirs,
        ">": ours > theirs,
    }[operator]


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"\s*v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _padded(version: tuple[int, ...], length: int) -> tuple[int, ...]:
    return version + (0,) * (length - len(version))


def package(requirement: Requirement, version: str | None, error: str) -> Check:
    """Whether a package is there, in a version that we can use, and can be imported.

    Args:
        version: the installed one; None if there is none.
        error: what importing it says; empty if it works.
    """
    wanted = f"{requirement.name}{requirement.specifiers}"
    install = f"pip install '{wanted}'"
    if version is None:
        return Check(requirement.name, "failed", "not installed", install)
    if not version_allowed(version, requirement.specifiers):
        return Check(
            requirement.name,
            "failed",
            f"{version}, but {requirement.specifiers} is needed",
            install,
        )
    if error:
        way = f"pip install --force-reinstall '{wanted}'; a missing lib….so comes from the system: apt-file search its name"
        return Check(requirement.name, "failed", f"{version} cannot be imported: {error}", way)
    return Check(requirement.name, "ok", version)


def death(code: int) -> str:
    """The signal that has ended a process, as `"SIGILL"`, from what `subprocess` calls its return code; empty if none has."""
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def torch(specifiers: str, version: str | None, code: int | None, said: str, machine: str) -> Check:
    """What to think of a process that has imported torch and taken one gradient.

    Args:
        specifiers: what we require of it, as `">=2.6,!=2.10.*,<3"`.
        version: the installed one, as its metadata says; None if there is none.
        code: how the process ended, as `subprocess` has it; None if it did not in time.
        said: its last line: torch's version if all went well, else an error.
        machine: the processor, as `platform.machine()` calls it.
    """
    arm = machine in _ARM
    install = "pip install 'torch==2.9.*'" if arm else f"pip install 'torch{specifiers}'"
    known = "2.4.0 and 2.10.* crash on ARMv8.0 (Raspberry Pi 3 and 4)"
    name = f"torch {version}" if version else "torch"
    if code != 0 and "No module named 'torch'" in said:
        return Check("torch", "failed", "not installed", install)
    if code is not None and (died := death(code)):
        ways = {
            "SIGILL": f"this processor lacks instructions that it was built for; {known}: {install}"
            if arm
            else "this processor lacks instructions that it was built for (a virtual machine may hide them: CPU type `host`); "
            f"or another version: {install}",
            "SIGKILL": "most often the kernel's, for want of memory: see `dmesg`; free some, or add swap",
        }
        way = ways.get(
            died,
            f"{known}; reinstall it: pip install --force-reinstall {install[len('pip install ') :]}",
        )
        return Check("torch", "failed", f"{name}: its process dies of {died}", way)
    if version is not None and specifiers and not version_allowed(version, specifiers):
        return Check("torch", "failed", f"{version}, but {specifiers} is needed ({known})", install)
    if code is None:
        return Check(
            "torch",
            "failed",
            f"{name}: importing it does not end",
            "a worn SD card, or too little memory: see `dmesg` and `free -h`",
        )
    if code != 0:
        return Check(
            "torch", "failed", f"{name} fails: {said}", f"reinstall it: {install} --force-reinstall"
        )
    return Check("torch", "ok", f"{said}, a forward and a backward pass")


def box2d(code: int | None, said: str, system: str, machine: str, python: tuple[int, ...]) -> Check:
    """What to think of a process that has played LunarLander-v3 for a step; arguments as `torch`'s, and Python's version."""
    name = "box2d"
    if code == 0:
        return Check(name, "ok", "LunarLander-v3 made and stepped")
    if (system == "Linux" and machine in _ARM) or python >= (3, 14):
        way = (
            "there is no wheel for this machine; it is built from source: sudo apt install g++ python3-dev && "
            "pip install swig setuptools && pip install --no-build-isolation box2d-py==2.3.8 && pip install pygame-ce"
        )
    else:
        way = "pip install 'gymnasium[box2d]'"
    if code is None:
        return Check(
            name,
            "failed",
            "making LunarLander-v3 does not end",
            "a worn SD card, or too little memory: see `dmesg` and `free -h`",
        )
    if died := death(code):
        return Check(
            name, "failed", f"playing LunarLander-v3 dies of {died}", f"install it anew: {way}"
        )
    return Check(name, "failed", f"LunarLander-v3 cannot be made: {said}", way)


# The parent.


def unknown_name(host: str, reason: str) -> Check:
    """What to do about a name that is not known."""
    found = f"{host}: {reason}"
    if host.endswith(".local"):
        way = "names in .local need multicast DNS: sudo apt install avahi-daemon libnss-mdns, here and on the parent; or give an IP address"
    else:
        way = "check the spelling and this machine's network (`ip address`), or give the parent's IP address"
    return Check("name", "failed", found, way)


def closed_port(host: str, port: int, number: int | None, reason: str) -> Check:
    """What to do about a port to which no connection can be made.

    Args:
        number: the `errno` of the attempt; None if it has taken too long.
        reason: the system's words.
    """
    if number is None or number == errno.ETIMEDOUT:
        found, way = (
            "no answer",
            f"is {host} switched on (`ping {host}`), and does its firewall let port {port} through?",
        )
    elif number == errno.ECONNREFUSED:
        found = "refused: nothing listens there"
        way = "start the parent (systemctl status genkidama-parent), with that port and listening beyond itself: --listen 0.0.0.0:PORT"
    elif number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
        found, way = (
            f"no way there: {reason}",
            "are both machines in the same network, and switched on? See `ip route`",
        )
    else:
        found, way = reason, "check the address, and this machine's firewall"
    return Check("port", "failed", f"{host}:{port}: {found}", way)


def server_header(header: str, healthy: bool, version: str, protocol: int | None) -> Check:
    """Whether the parent and this machine have the same Genkidama.

    Args:
        header: what the parent says of itself: `genkidama/VERSION protocol/N`.
        healthy: whether its `/healthz` is well.
        version, protocol: ours; the protocol is None if our own messages cannot be imported.
    """
    found = re.search(r"genkidama/(\S+) protocol/(\d+)", header)
    if found is None:
        if healthy:
            return Check(
                "version",
                "warning",
                f"hidden by {header or 'a proxy'}",
                "compare `genkidama --version` on both machines",
            )
        who = f"{header or 'something'} answers"
        return Check(
            "version",
            "failed",
            f"{who}, which is no parent of this version",
            "check host and port; or install the same version",
        )
    theirs, number = found[1], int(found[2])
    both = f"the parent has {theirs} with protocol {number}, this machine {version} with protocol {protocol}"
    same = f"install the same version on both: pip install genkidama=={theirs}"
    if protocol is not None and number != protocol:
        return Check("version", "failed", both, same)
    if theirs != version:
        return Check("version", "warning", f"the parent has {theirs}, this machine {version}", same)
    return Check("version", "ok", f"{theirs}, protocol {number}, on both sides")


def certificate(row: str, names: list[str], ends: float, now: float, protocol: str) -> Check:
    """Whether a verified certificate, which has not ended, will do for a while.

    Args:
        row: what the row is called.
        names: of hosts and addresses that it is for.
        ends: when, in Unix seconds.
        now: the same clock.
        protocol: as `"TLSv1.3"`.
    """
    found = f"{protocol}, certificate for {', '.join(names)}, {(ends - now) / DAY:.0f} days left"
    if ends - now < _CERTIFICATE_DAYS * DAY:
        return Check(
            row,
            "warning",
            found,
            "make a new one before it ends; the parent has to be started again with it",
        )
    return Check(row, "ok", found)


# Words.


def size(count: int) -> str:
    """Bytes for people: `"1.5 GiB"`, `"300 MiB"`."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


def duration(seconds: float) -> str:
    """Seconds for people: `"7 seconds"`, `"3 days"`, in the largest unit of which there are two."""
    for unit, length in (("year", 365.25 * DAY), ("day", DAY), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}s"
    return f"{seconds:.0f} seconds"
