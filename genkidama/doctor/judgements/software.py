"""What to think of packages, of torch and of Box2D, from what processes that tried them said."""

from __future__ import annotations

from typing import NamedTuple

from genkidama.doctor.judgements.check import Check
from genkidama.doctor.judgements.versions import Requirement, version_allowed

__all__ = ["ARM", "Ended", "judge_box2d", "judge_package", "judge_torch"]

#: What `platform.machine()` calls 64-bit ARM.
ARM = ("aarch64", "arm64")

_CRASHES = "2.4.0 and 2.10.* crash on ARMv8.0 (Raspberry Pi 3 and 4)"
_STUCK = "a worn SD card, or too little memory: see `dmesg` and `free -h`"
_NO_BOX2D_WHEEL = (
    "there is no wheel for this machine; it is built from source: "
    "sudo apt install g++ python3-dev && pip install swig setuptools && "
    "pip install --no-build-isolation box2d-py==2.3.8 && pip install pygame-ce"
)


class Ended(NamedTuple):
    """How a process that tried something has ended."""

    #: As `subprocess` has it; None if the process was ended because it took too long.
    code: int | None
    #: The last line that it printed.
    said: str
    #: The name of the signal that has ended it, as `"SIGILL"`; empty if none has.
    signal: str = ""


def judge_package(requirement: Requirement, version: str | None, error: str) -> Check:
    """Whether a package is there, in a version that we can use, and can be imported.

    Args:
        version: the installed one; None if there is none.
        error: what importing it says; empty if it works.
    """
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
    """What to think of a process that has imported torch and taken one gradient.

    Args:
        specifiers: what we require of it, as `">=2.6,!=2.10.*,<3"`.
        version: the installed one, as its metadata says; None if there is none.
        ended: the process; if all went well, torch's version is what it said.
        machine: the processor, as `platform.machine()` calls it.
    """
    wanted = "'torch==2.9.*'" if machine in ARM else f"'torch{specifiers}'"
    install = f"pip install {wanted}"
    name = f"torch {version}" if version else "torch"
    if ended.code != 0 and "No module named 'torch'" in ended.said:
        return Check("torch", "failed", "not installed", install)
    if ended.signal:
        way = _way_out_of(ended.signal, wanted, machine)
        return Check("torch", "failed", f"{name}: its process dies of {ended.signal}", way)
    if version is not None and specifiers and not version_allowed(version, specifiers):
        found = f"{version}, but {specifiers} is needed ({_CRASHES})"
        return Check("torch", "failed", found, install)
    if ended.code is None:
        return Check("torch", "failed", f"{name}: importing it does not end", _STUCK)
    if ended.code != 0:
        way = f"reinstall it: {install} --force-reinstall"
        return Check("torch", "failed", f"{name} fails: {ended.said}", way)
    return Check("torch", "ok", f"{ended.said}, a forward and a backward pass")


def _way_out_of(signal: str, wanted: str, machine: str) -> str:
    """What to do where importing torch ends in a signal; `wanted` is what pip is to install."""
    lacks = "this processor lacks instructions that it was built for"
    if signal == "SIGILL" and machine in ARM:
        return f"{lacks}; {_CRASHES}: pip install {wanted}"
    if signal == "SIGILL":
        hides = "a virtual machine may hide them: CPU type `host`"
        return f"{lacks} ({hides}); or another version: pip install {wanted}"
    if signal == "SIGKILL":
        return "most often the kernel's, for want of memory: see `dmesg`; free some, or add swap"
    return f"{_CRASHES}; reinstall it: pip install --force-reinstall {wanted}"


def judge_box2d(ended: Ended, system: str, machine: str, python: tuple[int, ...]) -> Check:
    """What to think of a process that has played LunarLander-v3 for a step.

    Args:
        system, machine: as `platform` calls them, as `"Linux"`, `"aarch64"`.
        python: Python's version.
    """
    if ended.code == 0:
        return Check("box2d", "ok", "LunarLander-v3 made and stepped")
    if ended.code is None:
        return Check("box2d", "failed", "making LunarLander-v3 does not end", _STUCK)
    no_wheel = (system == "Linux" and machine in ARM) or python >= (3, 14)
    way = _NO_BOX2D_WHEEL if no_wheel else "pip install 'gymnasium[box2d]'"
    if ended.signal:
        found = f"playing LunarLander-v3 dies of {ended.signal}"
        return Check("box2d", "failed", found, f"install it anew: {way}")
    return Check("box2d", "failed", f"LunarLander-v3 cannot be made: {ended.said}", way)
