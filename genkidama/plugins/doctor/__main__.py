"""The command `genkidama doctor`: its arguments, its checks in their order, and its display.

`python -m genkidama.plugins.doctor` is the same where the `genkidama` command cannot start. Nobody
who only asks for help imports a check.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from genkidama._version import __version__
from genkidama.config.formatting import plural
from genkidama.errors import GenkidamaError
from genkidama.plugins.doctor import DOCTOR
from genkidama.runtime.log import Parser

if TYPE_CHECKING:
    from genkidama.config.experiment import Experiment
    from genkidama.config.role import Role
    from genkidama.plugins.doctor.checks import Check

#: Each status' mark, and its colour on a terminal.
_MARKS = {"ok": ("ok", 32), "warning": ("!", 33), "failed": ("x", 31), "skipped": ("-", 90)}

#: Columns of the mark and of the name.
_MARK, _NAME = 4, 13


class _Step(NamedTuple):
    #: What the check is trying, for the person who waits.
    trying: str
    checks: Callable[[], Iterable[Check]]


def doctor(options: argparse.Namespace) -> int:
    """Examines this machine; returns the exit code: 1 if a check has failed, else 0."""
    if options.bench:
        from genkidama.plugins.doctor.bench import bench

        print(json.dumps(bench()))
        return 0
    from genkidama.plugins.doctor.measurements import our_protocol

    checks = _examine(_plan(options), quiet=options.json)
    counts = {status: sum(check.status == status for check in checks) for status in _MARKS}
    failed = counts["failed"]
    if options.json:
        software = {
            "genkidama": __version__,
            "protocol": our_protocol(),
            "python": platform.python_version(),
            "system": platform.platform(),
        }
        rows = [check._asdict() for check in checks]
        print(json.dumps({"ok": not failed, "checks": rows, "software": software}))
    else:
        warnings = plural(counts["warning"], "warning")
        print(f"\n{counts['ok']} ok, {warnings}, {failed} failed, {counts['skipped']} skipped")
    return int(failed > 0)


def _plan(options: argparse.Namespace) -> list[_Step]:
    """The checks, in their order. All arguments are read here, before the first check."""
    from genkidama.plugins.doctor import measurements as found

    role = _load(_role, options)
    roles = _for_each_part(role)
    for each in roles:
        if each is not None:
            found.parse_target(each.parent)
    way = [
        _Step(f"the parent {each.parent if each else ''}", partial(found.examine, each))
        for each in roles
    ]
    machine = _Step("this machine", found.system)
    uvloop = _Step("uvloop", found.uvloop)
    trying = "importing packages"
    if options.parent_role:  # without what training needs: a parent that learns is a child, too
        experiment = _load(_experiment, options)
        settings = experiment.parent if experiment is not None else None
        searches = experiment is not None and experiment.search is not None
        extra = ("optuna",) if searches else ()
        return [
            machine,
            _Step("the disk", lambda: found.disks([options.out], found.PARENT_DISK)),
            _Step("the directory of runs", lambda: found.writable("runs", options.out)),
            _Step("the certificate", lambda: found.certificate(settings)),
            _Step("the tokens", lambda: found.tokens(settings)),
            _Step(trying, lambda: found.packages(("gymnasium",), extra)),
            uvloop,
            *way,
        ]
    cores = role.cores if role else _cores(options)
    wanted = cores if isinstance(cores, int) else None
    states = [Path(role.state)] if role and role.state else []
    folders = [Path(sys.prefix), *states]
    return [
        machine,
        _Step("cores", lambda: found.cores(wanted)),
        _Step("memory", lambda: found.memory(wanted)),
        _Step("the disk", lambda: found.disks(folders, found.CHILD_DISK)),
        *(
            _Step("the directory of the state", partial(found.writable, "state", state))
            for state in states
        ),
        _Step(trying, found.packages),
        _Step("importing torch, which takes a small machine half a minute", found.torch),
        _Step("playing LunarLander", found.box2d),
        uvloop,
        *way,
    ]


def _for_each_part(role: Role | None) -> list[Role | None]:
    """The same for each part of the parent; None if no parent is known."""
    if role is None:
        return [None]
    import msgspec  # there, since a role is

    from genkidama.protocol.shard import addresses, fingerprints

    many = addresses(role.parent)
    known = fingerprints(role.fingerprint, many, role.parent)
    return [
        msgspec.structs.replace(role, parent=address, fingerprint=fingerprint)
        for address, fingerprint in zip(many, known, strict=True)
    ]


def _cores(options: argparse.Namespace) -> int | str:
    text: str = options.cores or "auto"
    return int(text) if text.isdecimal() else text


def _load(load: Callable[[argparse.Namespace], Any], options: argparse.Namespace) -> Any:
    """The settings of a file and the arguments; None if a package that reads them is missing or
    broken, which a row will name."""
    try:
        return load(options)
    except GenkidamaError:
        raise
    except Exception:
        return None


def _given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def _role(options: argparse.Namespace) -> Role | None:
    import msgspec  # may be missing

    from genkidama.config.role import Role  # msgspec

    file = None if options.parent_role else options.file
    given = _given(options, "parent", "token_file", "ca_file")
    text = options.parent or os.environ.get("GENKIDAMA_JOIN", "")
    if "@" in text or "#" in text:
        from genkidama.protocol.tokens import Invitation

        invitation = Invitation.parse(text)
        given |= {"parent": invitation.parent, "fingerprint": invitation.fingerprint}
        if invitation.token:
            os.environ["GENKIDAMA_TOKEN"] = invitation.token
    if options.cores is not None:
        given["cores"] = _cores(options)
    role = msgspec.to_builtins(Role.load(file)) if file else {}
    checked = Role.from_dict({**role, **given}, source="the command line")
    return checked if file or text else None


def _experiment(options: argparse.Namespace) -> Experiment:
    from genkidama.config.experiment import Experiment  # msgspec

    given = _given(options, "tokens_file", "certificate_file", "key_file")
    file = options.file
    experiment: Experiment = Experiment.load(file) if file else Experiment.from_dict({})
    settings = {f"parent.{name}": value for name, value in given.items()}
    return experiment.with_settings(settings, source="the command line")


def _examine(plan: list[_Step], quiet: bool) -> list[Check]:
    """Makes the checks, and shows each row as soon as it is known."""
    terminal = not quiet and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    colour = terminal and not os.environ.get("NO_COLOR")
    found = []
    for step in plan:
        trying = f"... {step.trying}" if terminal else ""
        print(trying, end="", flush=True)
        for check in step.checks():
            found.append(check)
            if not quiet:
                print(("\r\033[K" if terminal else "") + _row(check, colour), flush=True)
                print(trying, end="", flush=True)
        print("\r\033[K" if terminal else "", end="", flush=True)
    return found


def _row(check: Check, colour: bool) -> str:
    mark, number = _MARKS[check.status]
    painted = f"\033[{number}m{mark}\033[0m" if colour else mark
    found, advice = " ".join(check.found.split()), " ".join(check.advice.split())
    row = f"{painted}{' ' * (_MARK - len(mark))}{check.name:{_NAME}}{found}"
    return f"{row}\n{' ' * (_MARK + _NAME)}-> {advice}" if advice else row


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code. That is 0, 1 (a check has failed), 2 (the user's mistake)
    or 130 (interrupted)."""
    parser = Parser(
        prog="python -m genkidama.plugins.doctor",
        description="Examines this machine, and the way to its parent.",
    )
    for name, more in DOCTOR.options:
        parser.add_argument(name, **more)
    options = parser.parse_args(arguments)
    try:
        return doctor(options)
    except GenkidamaError as error:
        print("error:", " ".join(str(error).split("\n")), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
