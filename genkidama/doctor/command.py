"""The command `genkidama doctor`: which checks it makes, in which order, and how it shows them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from genkidama._version import __version__
from genkidama.doctor import connection, host, parent_machine, software
from genkidama.doctor.judgements.check import Check
from genkidama.errors import GenkidamaError

if TYPE_CHECKING:
    from genkidama.experiment import Experiment
    from genkidama.role import Role

__all__ = ["doctor"]

#: How each status is marked, and in which of a terminal's colours.
_MARKS = {"ok": ("ok", 32), "warning": ("!", 33), "failed": ("x", 31), "skipped": ("-", 90)}

#: Columns of the mark and of the name.
_MARK, _NAME = 4, 13


class _Step(NamedTuple):
    #: What the check is trying, for the person who waits.
    trying: str
    checks: Callable[[], Iterable[Check]]


def doctor(options: argparse.Namespace) -> int:
    """Examines this machine; returns the exit code: 1 if a check has failed, else 0.

    Raises:
        GenkidamaError: an argument, or the file that one names, is wrong.
    """
    checks = _examine(_plan(options), quiet=options.json)
    failed = any(check.status == "failed" for check in checks)
    if options.json:
        rows = [check._asdict() for check in checks]
        print(json.dumps({"ok": not failed, "checks": rows, "software": _software()}))
    else:
        print(_summary(checks))
    return int(failed)


def _plan(options: argparse.Namespace) -> list[_Step]:
    """The checks, in their order. All arguments are read here, before the first check."""
    role = _load(_role, options)
    roles = _for_each_part(role)
    for each in roles:
        if each is not None:
            connection.parse_target(each.parent)
    machine = [_Step("this machine", lambda: [*host.python(), *host.system()])]
    experiment = _load(_experiment, options) if options.parent_role else None
    without = parent_machine.NEEDLESS if options.parent_role else ()
    searches = experiment is not None and experiment.search is not None
    extra = parent_machine.SEARCHING if searches else ()
    packages = [_Step("importing packages", lambda: software.packages(without, extra))]
    way = [
        _Step(f"the parent {each.parent if each else ''}", partial(connection.examine, each))
        for each in roles
    ]
    if options.parent_role:
        settings = experiment.parent if experiment is not None else None
        machine += [
            _Step("the disk", lambda: host.disk(options.out, parent_machine.DISK)),
            _Step("the directory of runs", lambda: host.writable("runs", options.out)),
            _Step("the certificate", lambda: parent_machine.certificate(settings)),
            _Step("the tokens", lambda: parent_machine.tokens(settings)),
        ]
        return machine + packages + [_Step("uvloop", software.uvloop)] + way
    cores = role.cores if role else _cores(options)
    wanted = cores if isinstance(cores, int) else None
    state = Path(role.state) if role and role.state else None
    machine += [
        _Step("cores", lambda: host.cores(wanted)),
        _Step("memory", lambda: host.memory(wanted)),
        _Step("the disk", lambda: _disks([Path(sys.prefix), *([state] if state else [])])),
    ]
    if state is not None:
        machine.append(_Step("the directory of the state", lambda: host.writable("state", state)))
    packages += [
        _Step("importing torch, which takes a small machine half a minute", software.torch),
        _Step("playing LunarLander", software.box2d),
        _Step("uvloop", software.uvloop),
    ]
    return machine + packages + way


def _for_each_part(role: Role | None) -> list[Role | None]:
    """The same for each part of the parent; None if no parent is known."""
    if role is None:
        return [None]
    import msgspec  # there, since a role is

    from genkidama.parts import addresses

    return [msgspec.structs.replace(role, parent=address) for address in addresses(role.parent)]


def _disks(folders: list[Path]) -> Iterator[Check]:
    """A row for each disk that holds one of the directories."""
    seen = set()
    for folder in folders:
        (check,) = host.disk(folder)
        device = os.stat(host.existing(folder)).st_dev
        if device not in seen:
            yield check
        seen.add(device)


def _cores(options: argparse.Namespace) -> int | str:
    text: str = options.cores or "auto"
    return int(text) if text.isdecimal() else text


def _load(load: Callable[[argparse.Namespace], Any], options: argparse.Namespace) -> Any:
    """What a file and the arguments say.

    Returns:
        None if a package that reads them is missing or broken; a row will name that package.
    """
    try:
        return load(options)
    except GenkidamaError:
        raise
    except Exception:
        return None


def _role(options: argparse.Namespace) -> Role | None:
    import msgspec  # may be missing

    from genkidama.role import Role  # msgspec

    file = None if options.parent_role else options.file
    given: dict[str, Any] = {
        key: getattr(options, key)
        for key in ("parent", "token_file", "ca_file")
        if getattr(options, key) is not None
    }
    if options.cores is not None:
        given["cores"] = _cores(options)
    role = msgspec.to_builtins(Role.load(file)) if file else {}
    checked = Role.from_dict({**role, **given}, source="the command line")
    return checked if file or options.parent else None


def _experiment(options: argparse.Namespace) -> Experiment:
    from genkidama.experiment import Experiment  # msgspec

    given = {
        f"parent.{key}": getattr(options, key)
        for key in ("tokens_file", "certificate_file", "key_file")
        if getattr(options, key) is not None
    }
    experiment: Experiment = (
        Experiment.load(options.file) if options.file else Experiment.from_dict({})
    )
    return experiment.with_settings(given, source="the command line")


# What is shown.


def _examine(plan: list[_Step], quiet: bool) -> list[Check]:
    """Makes the checks, and shows each row as soon as it is known."""
    terminal = not quiet and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    colour = terminal and not os.environ.get("NO_COLOR")
    found = []
    for step in plan:
        if terminal:
            print(f"... {step.trying}", end="", flush=True)
        for check in step.checks():
            found.append(check)
            if not quiet:
                print(("\r\033[K" if terminal else "") + _row(check, colour), flush=True)
                if terminal:
                    print(f"... {step.trying}", end="", flush=True)
        if terminal:
            print("\r\033[K", end="", flush=True)
    return found


def _row(check: Check, colour: bool) -> str:
    mark, number = _MARKS[check.status]
    painted = f"\033[{number}m{mark}\033[0m" if colour else mark
    row = f"{painted}{' ' * (_MARK - len(mark))}{check.name:{_NAME}}{_line(check.found)}"
    return f"{row}\n{' ' * (_MARK + _NAME)}-> {_line(check.advice)}" if check.advice else row


def _line(text: str) -> str:
    return " ".join(text.split())


def _summary(checks: list[Check]) -> str:
    counts = {status: sum(check.status == status for check in checks) for status in _MARKS}
    words = [
        f"{counts['ok']} ok",
        f"{counts['warning']} warning{'s' * (counts['warning'] != 1)}",
        f"{counts['failed']} failed",
    ]
    return f"\n{', '.join(words)}, {counts['skipped']} skipped"


def _software() -> dict[str, Any]:
    return {
        "genkidama": __version__,
        "protocol": connection.our_protocol(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
