"""What the doctor finds of packages. Whatever could kill a process, or never end, is tried in a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from typing import NamedTuple

from genkidama.doctor import judgements
from genkidama.doctor.judgements import Check, Requirement

__all__ = ["SECONDS", "box2d", "packages", "torch", "uvloop"]

#: So long an import may take. torch takes half a minute on a Raspberry Pi 3 with a good SD card.
SECONDS = 300.0

#: Names under which packages are imported, where these differ from those under which they are installed.
_MODULES = {"tomli-w": "tomli_w"}

_IMPORT = """
import importlib, json, sys
errors = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        errors[name] = f"{type(error).__name__}: {error}"
print(json.dumps(errors))
"""

_TORCH = """
import torch
torch.set_num_threads(1)
layer = torch.nn.Linear(8, 2)
layer(torch.ones(4, 8)).square().sum().backward()
assert bool(torch.isfinite(layer.weight.grad).all()), "a gradient is not finite"
print(torch.__version__)
"""

_BOX2D = """
import gymnasium
environment = gymnasium.make("LunarLander-v3")
environment.reset(seed=0)
environment.step(0)
environment.close()
"""


class _Tried(NamedTuple):
    """How a process has ended."""

    #: As `subprocess` has it; None if it was still running after `SECONDS`.
    code: int | None
    #: The last line that it has printed.
    said: str


def _try(code: str, *arguments: str) -> _Tried:
    """Runs a text of Python in an interpreter like this one."""
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _Tried(None, "")
    text = (ended.stderr if ended.returncode else ended.stdout).decode(errors="replace")
    return _Tried(
        ended.returncode,
        next((line.strip() for line in reversed(text.splitlines()) if line.strip()), ""),
    )


def _requirements(extra: tuple[str, ...] = ()) -> list[Requirement] | None:
    """What Genkidama needs everywhere, and these of its extras; None if it is not installed, but run where it lies."""
    try:
        lines = importlib.metadata.requires("genkidama")
    except importlib.metadata.PackageNotFoundError:
        return None
    return [
        item
        for item in map(judgements.parse_requirement, lines or [])
        if not item.marker or item.name in extra
    ]


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def packages(without: tuple[str, ...] = (), extra: tuple[str, ...] = ()) -> list[Check]:
    """Every package that Genkidama needs, but torch: is it there, is its version one of those allowed, can it be imported?

    Args:
        without: packages that this machine does not need.
        extra: packages of Genkidama's extras that it does need.
    """
    requirements = _requirements(extra)
    if requirements is None:
        return [
            Check(
                "packages",
                "warning",
                "genkidama is not installed, so it is not known what it needs",
                "pip install genkidama",
            )
        ]
    names = {
        item.name: _MODULES.get(item.name, item.name)
        for item in requirements
        if item.name not in ("torch", *without)
    }
    tried = _try(_IMPORT, *names.values())
    errors = json.loads(tried.said) if tried.code == 0 else {}
    checks = [
        judgements.package(item, _installed(item.name), errors.get(names[item.name], ""))
        for item in requirements
        if item.name in names
    ]
    if tried.code != 0:
        how = judgements.death(tried.code) if tried.code is not None else ""
        found = f"importing {', '.join(names)} {f'dies of {how}' if how else 'does not end' if tried.code is None else tried.said}"
        checks.append(
            Check(
                "packages",
                "failed",
                found,
                "import them one by one to see which; reinstall that one",
            )
        )
    return checks


def torch() -> list[Check]:
    """Whether torch can be imported and take a gradient."""
    required = next((item for item in _requirements() or [] if item.name == "torch"), None)
    tried = _try(_TORCH)
    return [
        judgements.torch(
            required.specifiers if required else "", _installed("torch"), *tried, platform.machine()
        )
    ]


def box2d() -> list[Check]:
    """Whether LunarLander can be played."""
    return [
        judgements.box2d(*_try(_BOX2D), platform.system(), platform.machine(), sys.version_info[:2])
    ]


def uvloop() -> list[Check]:
    """Whether there is the faster event loop. It is missed nowhere."""
    version = _installed("uvloop")
    return [
        Check(
            "uvloop",
            "ok",
            version
            or "not installed: optional, a parent is slower without (pip install 'genkidama[uvloop]')",
        )
    ]
