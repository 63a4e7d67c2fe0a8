"""The rows of benchmarks and studies as JSON lines, and the loop that measures missing ones."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from genkidama.errors import ConfigurationError, EnvironmentFailure

One = TypeVar("One")

#: What one run has found.
Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """The whole lines of a file; none if it is not there.

    Raises:
        ConfigurationError: a whole line is no JSON object.
    """
    if not path.exists():
        return []
    rows: list[Row] = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break  # it was cut off as it was written
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise ConfigurationError(f"{path}:{number}: is no JSON object; delete that line")
        rows.append(row)
    return rows


@cache
def origin(tree: Path = Path(__file__).parent) -> Row:
    """The commit of a checkout, and the machine.

    The commit ends with `-dirty` if files differ from it, but for results: a study that goes on
    has written some.
    """
    described = ["git", "describe", "--always", "--exclude=*"]
    commit = subprocess.run(described, cwd=tree, capture_output=True, text=True).stdout.strip()
    differs = ["git", "diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)docs/results"]
    if subprocess.run(differs, cwd=tree, capture_output=True).returncode == 1:
        commit += "-dirty"
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    machine = f"{os.cpu_count()} cores, {names[0] if names else platform.machine()}"
    return {"commit": commit, "machine": machine}


def append(path: Path, row: Row) -> None:
    """Adds a line, with commit, machine and date; one that was cut off before goes away."""
    row = {**origin(), "date": time.strftime("%F %T"), **row}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def once(path: Path, rows: list[Row], key: Row, measure: Callable[[], Row]) -> None:
    """Measures what has no row with this key yet, appends it to the file and to `rows`, and prints
    it."""
    if any(key.items() <= row.items() for row in rows):
        return
    row = {**key, **measure()}
    rows.append(row)
    append(path, row)
    print(json.dumps(row), flush=True)


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Keeps a second `run` out of the folder.

    Raises:
        ConfigurationError: there is one already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"{folder}: another run works there; stop it, or give another folder with --work"
            ) from None
        yield


def run(
    wanted: Sequence[One],
    missing: Sequence[One],
    rows: list[Row],
    path: Path,
    *,
    measure: Callable[[One], Row],
    announce: Callable[[Sequence[One]], str],
    outcome: Callable[[Row], str],
) -> bool:
    """Measures runs that have no row, and appends each row to `rows` and to the file.

    A run that fails has no row, and is tried again when the command is.

    Args:
        wanted: all runs of the plan.
        missing: those without a row, in their order.
        rows: of the file.
        path: of the file.
        measure: gives the row of a run, or raises an `EnvironmentFailure`.
        announce: describes the first of the runs that are left.
        outcome: describes a row.

    Returns:
        Whether no run has failed.
    """
    well = True
    for number in range(len(missing)):
        left = missing[number:]
        place = f"[{len(wanted) - len(left) + 1}/{len(wanted)}] {left[0]}"
        print(f"{place}: {announce(left)} …", flush=True)
        try:
            row = measure(left[0])
        except EnvironmentFailure as error:
            print(f"{place}: failed: {error}", flush=True)
            well = False
            continue
        append(path, row)
        rows.append(row)
        print(f"{place}: {outcome(row)}", flush=True)
    return well


def parser(name: str, text: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m studies.NAME`; its help is the text of the module."""
    kind = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(
        prog=f"python -m studies.{name}", description=text, formatter_class=kind
    )


def add_places(parser: argparse.ArgumentParser, results: Path, work: Path) -> None:
    """The options `--results` and `--work`."""
    parser.add_argument("--results", type=Path, default=results, help="a line for each run")
    parser.add_argument("--work", type=Path, default=work, help="files of runs under way")
