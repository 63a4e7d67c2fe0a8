"""What the doctor finds of packages.

An import that could kill a process, or never end, is tried in a process of its own.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import signal
import subprocess
import sys

from genkidama.doctor.judgements.check import Check
from genkidama.doctor.judgements.software import Ended, judge_box2d, judge_package, judge_torch
from genkidama.doctor.judgements.versions import Requirement, parse_requirement

__all__ = ["SECONDS", "box2d", "name_of_signal", "packages", "torch", "uvloop"]

#: An import may take so long. torch takes half a minute on a Raspberry Pi 3 with a good SD card.
SECONDS = 300.0

#: Installed names of packages, and the names by which they are imported, where the two differ.
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


def _try(code: str, *arguments: str) -> Ended:
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
        return Ended(None, "")
    text = (ended.stderr if ended.returncode else ended.stdout).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return Ended(ended.returncode, lines[-1] if lines else "", name_of_signal(ended.returncode))


def name_of_signal(code: int) -> str:
    """The signal that has ended a process, from its return code as `subprocess` has it.

    Returns:
        As `"SIGILL"`; empty if no signal has ended it.
    """
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _requirements(extra: tuple[str, ...] = ()) -> list[Requirement] | None:
    """What Genkidama needs everywhere, and the named packages of its extras.

    Returns:
        None if Genkidama is not installed, but run where it lies.
    """
    try:
        lines = importlib.metadata.requires("genkidama")
    except importlib.metadata.PackageNotFoundError:
        return None
    return [
        item
        for item in map(parse_requirement, lines or [])
        if not item.marker or item.name in extra
    ]


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def packages(without: tuple[str, ...] = (), extra: tuple[str, ...] = ()) -> list[Check]:
    """A row for every package that Genkidama needs, but torch.

    Args:
        without: packages that this machine does not need.
        extra: packages of Genkidama's extras that it does need.
    """
    requirements = _requirements(extra)
    if requirements is None:
        found = "genkidama is not installed, so it is not known what it needs"
        return [Check("packages", "warning", found, "pip install genkidama")]
    needed = [item for item in requirements if item.name not in ("torch", *without)]
    modules = {item.name: _MODULES.get(item.name, item.name) for item in needed}
    tried = _try(_IMPORT, *modules.values())
    errors = json.loads(tried.said) if tried.code == 0 else {}
    checks = [
        judge_package(item, _installed(item.name), errors.get(modules[item.name], ""))
        for item in needed
    ]
    if tried.code != 0:
        how = "does not end" if tried.code is None else tried.said
        how = f"dies of {tried.signal}" if tried.signal else how
        way = "import them one by one to see which; reinstall that one"
        checks.append(Check("packages", "failed", f"importing {', '.join(modules)} {how}", way))
    return checks


def torch() -> list[Check]:
    """Whether torch can be imported and take a gradient."""
    required = next((item for item in _requirements() or [] if item.name == "torch"), None)
    specifiers = required.specifiers if required else ""
    return [judge_torch(specifiers, _installed("torch"), _try(_TORCH), platform.machine())]


def box2d() -> list[Check]:
    """Whether LunarLander can be played."""
    python = sys.version_info[:2]
    return [judge_box2d(_try(_BOX2D), platform.system(), platform.machine(), python)]


def uvloop() -> list[Check]:
    """Whether there is the faster event loop, which nothing needs."""
    none = "not installed: optional, a parent is slower without (pip install 'genkidama[uvloop]')"
    return [Check("uvloop", "ok", _installed("uvloop") or none)]
