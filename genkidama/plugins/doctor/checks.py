"""Judgements: measured numbers and texts become rows of the doctor's answer. Pure.

Laws of this file:
- Nothing here looks at the machine, the clock or the network, or needs more than the standard
  library.
- A check that is not ok says what to do.
"""

from __future__ import annotations

import errno
import re
from typing import NamedTuple

from genkidama._version import DISTRIBUTION, pip_install
from genkidama.child import capacity

#: In seconds.
DAY = 86400.0

#: Names of 64-bit ARM in `platform.machine()`.
ARM = ("aarch64", "arm64")

#: Tolerated offsets of a clock in seconds. Beyond the first, times in histories of several machines
#: mislead; beyond the second, certificates and package downloads begin to fail.
_OFFSETS = (5.0, 300.0)

#: A certificate that ends sooner should be renewed.
_CERTIFICATE_DAYS = 30

_PI_OS = "install the 64-bit Raspberry Pi OS"
_NO_WHEELS = "there are wheels of torch for x86_64 and aarch64 only; "
_NO_WHEELS += "elsewhere it has to be built from source"
_NEEDS_TORCH = "only convolutions, GA3C, and networks and losses of your own need it"
_GLIBC = "the wheels of torch and NumPy need glibc 2.28 or later"  # manylinux_2_28
_CRASHES = "2.4.0 and 2.10.* crash on ARMv8.0 (Raspberry Pi 3 and 4)"
_STUCK = "a worn SD card, or too little memory: see `dmesg` and `free -h`"
_NO_BOX2D_WHEEL = (
    "there is no wheel for this machine; it is built from source: "
    "sudo apt install g++ python3-dev && pip install swig setuptools && "
    "pip install --no-build-isolation box2d-py==2.3.8"
)
_FREE = "end other programs (a desktop: sudo systemctl set-default multi-user.target), or add swap"


class Check(NamedTuple):
    """A row: what was checked, how it is, what was found and, if it is not ok, what to do."""

    name: str
    #: `"ok"`, `"warning"`, `"failed"` or `"skipped"`.
    status: str
    found: str
    advice: str = ""


def size(count: int) -> str:
    """Bytes for people: `"1.5 GiB"`, `"300 MiB"`."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


def duration(seconds: float) -> str:
    """Seconds for people, in the largest unit of which there are two: `"7 seconds"`, `"3 days"`."""
    for unit, length in (("year", 365.25 * DAY), ("day", DAY), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}s"
    return f"{seconds:.0f} seconds"


# Versions. The package `packaging` would read them, but may be missing.


class Requirement(NamedTuple):
    """A line of a package's requirements; its marker is the condition behind the semicolon."""

    name: str
    specifiers: str
    marker: str


def parse_requirement(line: str) -> Requirement:
    """A requirement as `importlib.metadata.requires` gives it."""
    head, _, marker = line.partition(";")
    found = re.match(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^()]*)\)?\s*\Z", head)
    if found is None:
        return Requirement(head.strip(), "", marker.strip())
    return Requirement(found[1], re.sub(r"\s", "", found[2]), marker.strip())


def version_allowed(version: str, specifiers: str) -> bool:
    """True if a requirement allows a version; 2.6.0a1 and 2.6.0+cpu count as 2.6.0."""
    return all(_holds(release(version), one) for one in specifiers.split(",") if one)


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with; none if it begins with something else."""
    found = re.match(r"\s*v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _holds(version: tuple[int, ...], specifier: str) -> bool:
    found = re.match(r"(~=|===?|!=|<=|>=|<|>)(.*)\Z", specifier)
    if found is None:
        return True
    other = release(found[2])
    length = len(other) if found[2].endswith(".*") else max(len(version), len(other))
    ours, theirs = ((*each, *[0] * length)[:length] for each in (version, other))
    return {
        "~=": ours >= theirs and ours[: len(other) - 1] == theirs[: len(other) - 1],
        "==": ours == theirs,
        "===": ours == theirs,
        "!=": ours != theirs,
        "<=": ours <= theirs,
        ">=": ours >= theirs,
        "<": ours < theirs,
        ">": ours > theirs,
    }[found[1]]


# The machine.


def judge_python(version: tuple[int, ...]) -> Check:
    """Checks this Python against pyproject.toml's `requires-python`."""
    way = "Genkidama needs Python 3.11 or later: Debian 12 and Raspberry Pi OS 12 have it"
    good = version[:2] >= (3, 11)
    return Check(
        "python", "ok" if good else "failed", ".".join(map(str, version)), way * (not good)
    )


def judge_processor(system: str, machine: str, bits: int) -> Check:
    """Checks for wheels for this kernel, named as by `platform`, and Python's bits."""
    no_pi = "this Raspberry Pi has 32 bits only, and there is no torch for it: take a Pi 3 or later"
    old_pi = f"there is no torch for 32 bits: {_PI_OS} (Pi 3, 4, 5, Zero 2)"
    ways = (
        (
            system not in ("Linux", "Darwin"),
            "Genkidama runs on Linux and macOS; on Windows use WSL 2",
        ),
        (bits != 64 and machine in ARM, f"the kernel has 64 bits, this Python 32: {_PI_OS}"),
        (machine.startswith("armv7") or machine == "armv8l", old_pi),
        (machine.startswith("armv6"), no_pi),
        (bits != 64, "there is no torch for 32 bits: install a 64-bit system and Python"),
        (machine.lower() not in ("x86_64", "amd64", *ARM), _NO_WHEELS),
    )
    way = next((way for holds, way in ways if holds), "")
    status = {"": "ok", _NO_WHEELS: "warning"}.get(way, "failed")
    return Check("system", status, f"{system} {machine}, {bits} bits", way)


def judge_c_library(name: str, version: str) -> Check:
    """Checks whether wheels work with a C library, as `platform.libc_ver()` gives it."""
    found = " ".join((name or "not glibc", version)).strip()
    if name == "glibc" and release(version) >= (2, 28):
        return Check("c library", "ok", found)
    way = "install a newer system (Debian 10 has 2.28)"
    way = way if name == "glibc" else "take a Debian, Raspberry Pi OS, Ubuntu or Fedora"
    return Check("c library", "failed", found, f"{_GLIBC}: {way}")


def parse_quota(text: str) -> float | None:
    """CPU cores that a cgroup may use on average, from its `cpu.max`; None if all."""
    found = re.fullmatch(r"\s*(\d+)\s+(\d+)\s*", text)
    return int(found[1]) / int(found[2]) if found and int(found[2]) else None


def judge_cores(wanted: int | None, available: int, quota: float | None) -> Check:
    """Checks the CPU cores, and a cgroup's quota of them, for the wanted core processes."""
    found = f"{available} CPU core{'s' * (available != 1)}"
    if wanted is not None:
        found += f" for {wanted} core processes"
    if quota is not None and quota < min(available, available if wanted is None else wanted):
        found += f", of which a cgroup allows {quota:g} on average"
        way = f"raise the limit (CPUQuota=, docker --cpus), or use --cores {max(1, int(quota))}"
        return Check("cores", "warning", found, way)
    if wanted is not None and wanted > available:
        way = f"core processes that share a core slow each other down: --cores {available}"
        return Check("cores", "warning", found, way)
    return Check("cores", "ok", found)


def judge_memory(
    available: int | None, swap: int, wanted: int, said: bool, running: int = 0
) -> Check:
    """Checks whether the memory is enough for the core processes, by their measured use; in bytes.

    `said` if a person has asked for that number, rather than for one each CPU core. The bytes of a
    child that is `running` here count as available.
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
    if available < capacity.CHILD_BYTES + per_core:
        return Check("memory", "failed", found, _FREE)
    fit = capacity.expected_cores(available, wanted)
    if fit >= wanted:
        return Check("memory", "ok", found)
    if said:
        return Check("memory", "failed", found, f"--cores {fit} fits; or {_FREE}")
    way = f"a child with --cores auto takes what fits, about {fit}; for more, {_FREE}"
    return Check("memory", "warning", found, way)


def judge_disk(free: int, where: str, least: int, better: int) -> Check:
    """Checks the free bytes: below `least` little works, below `better` not for long."""
    found = f"{size(free)} free at {where}"
    if free >= better:
        return Check("disk", "ok", found)
    way = f"make room there, {size(better)} or more; "
    way += "`du -xh / | sort -h | tail` shows what is large"
    return Check("disk", "failed" if free < least else "warning", found, way)


def judge_clock_alone(now: float, newest: float, said: str = "") -> Check:
    """Checks whether a clock can be right, given the time of the package's newest file (Unix s)."""
    if now >= newest - DAY:  # files may come from another time zone
        return Check("clock", "ok", said or "plausible; there is no parent's to compare it with")
    way = "a Raspberry Pi has no battery for its clock: "
    way += "sudo timedatectl set-ntp true, or sudo date -s '…'"
    found = f"{duration(newest - now)} before Genkidama was installed"
    return Check("clock", "failed", found, way)


# Packages.


class Ended(NamedTuple):
    """The end of a process that tried something."""

    #: As `subprocess` has it; None if the process was ended because it took too long.
    code: int | None
    #: Its last line.
    said: str
    #: The signal that has ended it, as `"SIGILL"`; empty if none has.
    signal: str = ""


def judge_package(requirement: Requirement, version: str | None, error: str) -> Check:
    """Checks whether a package is installed in an allowed version and can be imported."""
    name, specifiers = requirement.name, requirement.specifiers
    install = f"pip install '{name}{specifiers}'"
    if version is None:
        return Check(name, "failed", "not installed", install)
    if not version_allowed(version, specifiers):
        return Check(name, "failed", f"{version}, but {specifiers} is needed", install)
    if error:
        way = f"pip install --force-reinstall '{name}{specifiers}'; "
        way += "a missing lib….so comes from the system: apt-file search its name"
        return Check(name, "failed", f"{version} cannot be imported: {error}", way)
    return Check(name, "ok", version)


def judge_torch(specifiers: str, version: str | None, ended: Ended, machine: str) -> Check:
    """A process that has imported torch, taken one gradient and printed torch's version."""
    if ended.code != 0 and "No module named 'torch'" in ended.said:
        return Check("torch", "ok", f"not installed: {_NEEDS_TORCH} ({pip_install('torch')})")
    wanted = "'torch==2.9.*'" if machine in ARM else f"'torch{specifiers}'"
    install = f"pip install {wanted}"
    name = f"torch {version}" if version else "torch"
    if ended.signal:
        found, way = f"{name}: its process dies of {ended.signal}", _CRASHES
        lacks = "this processor lacks instructions that it was built for"
        if ended.signal == "SIGILL" and machine in ARM:
            way = f"{lacks}; {_CRASHES}: {install}"
        elif ended.signal == "SIGILL":
            way = f"{lacks} (a virtual machine may hide them: CPU type `host`); "
            way += f"or another version: {install}"
        elif ended.signal == "SIGKILL":
            way = "most often the kernel's, for want of memory: see `dmesg`; "
            way += "free some, or add swap"
        else:
            way += f"; reinstall it: pip install --force-reinstall {wanted}"
    elif version is not None and specifiers and not version_allowed(version, specifiers):
        found, way = f"{version}, but {specifiers} is needed ({_CRASHES})", install
    elif ended.code is None:
        found, way = f"{name}: importing it does not end", _STUCK
    elif ended.code != 0:
        found, way = f"{name} fails: {ended.said}", f"reinstall it: {install} --force-reinstall"
    else:
        return Check("torch", "ok", f"{ended.said}, a forward and a backward pass")
    return Check("torch", "failed", found, way)


def judge_box2d(ended: Ended, system: str, machine: str, python: tuple[int, ...]) -> Check:
    """A process that has played LunarLander-v3 for a step; the machine named as by `platform`."""
    no_wheel = (system == "Linux" and machine in ARM) or python >= (3, 14)
    way = _NO_BOX2D_WHEEL if no_wheel else pip_install("lander")
    if ended.code == 0:
        return Check("box2d", "ok", "LunarLander-v3 made and stepped")
    if ended.code is None:
        return Check("box2d", "failed", "making LunarLander-v3 does not end", _STUCK)
    if ended.signal:
        found = f"playing LunarLander-v3 dies of {ended.signal}"
        return Check("box2d", "failed", found, f"install it anew: {way}")
    return Check("box2d", "warning", f"LunarLander-v3 cannot be made: {ended.said}", way)


# The way to a parent.


def judge_unknown_name(host: str, reason: str) -> Check:
    """A name that is not known."""
    way = "check the spelling and this machine's network (`ip address`), "
    way += "or give the parent's IP address"
    if host.endswith(".local"):
        way = "names in .local need multicast DNS: sudo apt install avahi-daemon libnss-mdns, "
        way += "here and on the parent; or give an IP address"
    return Check("name", "failed", f"{host}: {reason}", way)


def judge_closed_port(host: str, port: int, number: int | None, reason: str) -> Check:
    """A port to which no connection can be made; an `errno` of None says that it took too long."""
    if number is None or number == errno.ETIMEDOUT:
        found = "no answer"
        way = f"is {host} switched on (`ping {host}`), "
        way += f"and does its firewall let port {port} through?"
    elif number == errno.ECONNREFUSED:
        found = "refused: nothing listens there"
        way = "start the parent (systemctl status genkidama-parent), with that port "
        way += "and listening beyond itself: --listen 0.0.0.0:PORT"
    elif number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
        found = f"no way there: {reason}"
        way = "are both machines in the same network, and switched on? See `ip route`"
    else:
        found, way = reason, "check the address, and this machine's firewall"
    return Check("port", "failed", f"{host}:{port}: {found}", way)


def judge_server_header(header: str, healthy: bool, version: str, protocol: int | None) -> Check:
    """Checks the parent's `genkidama/VERSION protocol/N`, and whether its `/healthz` is well. Our
    protocol is None if our own messages cannot be imported."""
    stated = re.search(r"genkidama/(\S+) protocol/(\d+)", header)
    if stated is None and healthy:
        way = "compare `genkidama --version` on both machines"
        return Check("version", "warning", f"hidden by {header or 'a proxy'}", way)
    if stated is None:
        found = f"{header or 'something'} answers, which is no parent of this version"
        way = "check host and port; or install the same version"
        return Check("version", "failed", found, way)
    theirs, number = stated[1], int(stated[2])
    same = f"install the same version on both: pip install {DISTRIBUTION}=={theirs}"
    if protocol is not None and number != protocol:
        found = f"the parent has {theirs} with protocol {number}, "
        found += f"this machine {version} with protocol {protocol}"
        return Check("version", "failed", found, same)
    if theirs != version:
        return Check("version", "warning", f"the parent has {theirs}, this machine {version}", same)
    return Check("version", "ok", f"{theirs}, protocol {number}, on both sides")


def judge_certificate(row: str, names: list[str], ends: float, now: float, protocol: str) -> Check:
    """Checks the end of a verified certificate; `ends` and `now` are in Unix seconds."""
    found = f"{protocol}, certificate for {', '.join(names)}, {(ends - now) / DAY:.0f} days left"
    if ends - now >= _CERTIFICATE_DAYS * DAY:
        return Check(row, "ok", found)
    way = "make a new one before it ends; the parent has to be started again with it"
    return Check(row, "warning", found, way)


def judge_page(status: int, reason: str, page: str) -> Check:
    """Checks by an HTTP status, 0 without an answer, whether the parent shows its run there."""
    if status in (200, 401):
        token = " for viewers (genkidama token --viewer, at the parent)" if status == 401 else ""
        return Check("page", "ok", page + token)
    if status == 403:
        way = "ask by an address, as http://192.168.1.2:8765/"
        return Check("page", "warning", f"{page} is not shown under this name", way)
    way = "install this version at the parent, or look for a proxy in between"
    return Check("page", "warning", f"{page}: {reason}", way)


def judge_clock_offset(seconds: float) -> Check:
    """The distance of this clock from the parent's; positive if it is ahead."""
    off = abs(seconds)
    side = "ahead of" if seconds > 0 else "behind"
    found = "as the parent's, to a second" if off < 1.5 else f"{duration(off)} {side} the parent's"
    if off <= _OFFSETS[0]:
        return Check("clock", "ok", found)
    way = "set both clocks by NTP: sudo timedatectl set-ntp true, "
    way += "and see `timedatectl timesync-status`"
    return Check("clock", "failed" if off > _OFFSETS[1] else "warning", found, way)
