"""Trains with two children of unequal speed: one of the thesis' Raspberry Pis was slower.

It takes what `genkidama train` takes of a cell, and `--slower`. Parent and children are started by
their own commands, as on a shelf. Control groups share the cores out to the children, so it takes
root. They get all cores, also where other programs want some of them.

    python -m studies.thesis.unequal examples/lunarlander/thesis.toml --slower 2 \\
        --cores 4 --seed 1 --out runs/unequal
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks import store
from benchmarks.processes import command, free_port, stop, wait_for_port
from genkidama.errors import EnvironmentFailure
from genkidama.runs.run import CHILDREN
from genkidama.runtime.machine import available_cores, end_with_parent
from studies.groups import Group

#: How often the processes are looked at.
_LOOK_SECONDS = 0.2

#: Children have so long to end, once the parent has ended.
_GRACE_SECONDS = 30.0


def _start(line: Sequence[str], log: Path, group: Group | None = None) -> subprocess.Popen[bytes]:
    def enter() -> None:
        end_with_parent(os.getppid())
        if group is not None:
            group.enter()

    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *line], stdout=output, stderr=output, preexec_fn=enter
        )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = store.parser("thesis.unequal", __doc__)
    parser.add_argument("file", help="the experiment's TOML")
    parser.add_argument("--slower", type=float, required=True, help="times, of the second child")
    parser.add_argument("--cores", type=int, required=True, help="core processes of each child")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the run directory")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args(arguments)


@command
def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    out: Path = options.out
    address = f"127.0.0.1:{free_port()}"
    settings = [f"seed={options.seed}", "parent.open=true", *options.set]
    words = [word for setting in settings for word in ("--set", setting)]
    log = out.with_name("parent.log")
    parent = _start(
        ["genkidama.parent", options.file, "--listen", address, "--out", str(out), *words], log
    )
    wait_for_port(parent, int(address.rpartition(":")[2]), log)
    with ExitStack() as stack:
        children = []
        for name, share in {"child-1": options.slower, "child-2": 1.0}.items():
            group = stack.enter_context(closing(Group(f"unequal-{os.getpid()}-{name}")))
            group.hold(available_cores() * share / (1.0 + options.slower))
            line = ["genkidama.child", "--parent", f"ws://{address}", "--name", name]
            line += ["--allow", "*", "--state", str(out / CHILDREN), "--cores", str(options.cores)]
            children.append(_start(line, out.with_name(f"{name}.log"), group))
        try:
            while parent.poll() is None:
                _check(children)
                time.sleep(_LOOK_SECONDS)
            deadline = time.monotonic() + _GRACE_SECONDS
            while any(child.poll() is None for child in children) and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
            _check(children)
        finally:
            for process in (parent, *children):
                if process.poll() is None:
                    stop(process)
    return parent.returncode


def _check(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """With one child alone the run would go on, and be another one.

    Raises:
        EnvironmentFailure: one of them has failed.
    """
    for number, child in enumerate(children, 1):
        if child.poll():
            raise EnvironmentFailure(f"child-{number} ended with code {child.returncode}")


if __name__ == "__main__":
    sys.exit(main())
