"""Faults for real: what becomes of a run when what it stands on fails.

Each row is one trial: real processes train CartPole for some seconds, one fault comes at one stage,
the run ends by itself or is resumed as its user would, and one checker looks at what is left:

- the directory can be read, its newest checkpoint loads, no history line is damaged;
- versions never go back but to a checkpoint that was said, and each push counts once;
- counts of the children and of the parent agree;
- who ends without success says why in a line, and nobody leaves a traceback;
- no process, no shared memory and no temporary file is left.

A power cut is played by ext4's own means on a disk of its own: what was not flushed is gone.
A clock is set, and a disk slow, by a library that is loaded before libc (`shim.c`, needs cc). Links
are those of `studies.scaling`. It takes root and Linux.

Stop at any point and go on: a trial that has a row is not repeated. `table` writes the table into
docs/results/reliability.md, between its two markers.

    python -m studies.faults run [--only WORD …] [--times 1] [--together 3]
    python -m studies.faults table
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks import store
from benchmarks.processes import ROOT, command
from benchmarks.store import Row
from genkidama.errors import EnvironmentFailure
from studies.faults.faults import FAULTS, OUTCOMES, Fault
from studies.faults.shelf import Shelf, experiment

_RESULTS = ROOT / "docs" / "results" / "faults.jsonl"
_PAGE = ROOT / "docs" / "results" / "reliability.md"
_BEGIN, _END = "<!-- faults: begin -->\n", "<!-- faults: end -->\n"
_NEW_MOUNTS = 0x00020000


class Trial(NamedTuple):
    fault: Fault
    stage: str
    number: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.fault.name, self.stage, self.number


def plan(options: argparse.Namespace) -> list[Trial]:
    """All trials: the first of each row, then the second, …."""
    every = [
        Trial(fault, stage, number)
        for fault in FAULTS
        if all(word in fault.name for word in options.only)
        for stage in fault.stages
        for number in range(min(fault.times, options.times or fault.times))
    ]
    # The longest first: they hardly compute, and others run beside them.
    return sorted(every, key=lambda each: (each.fault.seconds < 60.0, each.number))


def play(trial: Trial, folder: Path, shim: Path | None) -> Row:
    """One trial, in a new folder."""
    began = time.monotonic()
    luck = random.Random(repr(trial.key))
    outcome = ""
    with Shelf(folder, luck, shim) as shelf:
        try:
            outcome = trial.fault.play(shelf, trial.stage)
        except (Exception, SystemExit) as error:
            shelf.broken.append(f"{type(error).__name__}: {error}")
    fault, stage, number = trial.key
    return {
        "fault": fault,
        "stage": stage,
        "number": number,
        "outcome": outcome,
        "broken": shelf.broken,
        "seconds": round(time.monotonic() - began, 1),
    }


def run(options: argparse.Namespace) -> int:
    if os.geteuid() or not hasattr(os, "fork") or sys.platform != "linux":
        raise EnvironmentFailure("faults: need root and Linux")
    if (
        ctypes.CDLL(None).unshare(_NEW_MOUNTS)
        or subprocess.run(
            ["mount", "--make-rprivate", "--make-rshared", "/"], check=False
        ).returncode
    ):
        raise EnvironmentFailure("faults: no mounts of its own can be had here")
    rows = store.read(options.results)
    done = {(row["fault"], row["stage"], row["number"]) for row in rows}
    missing = [trial for trial in plan(options) if trial.key not in done]
    work = Path(tempfile.mkdtemp(prefix="faults-"))
    shim: Path | None = work / "shim.so"
    source = Path(__file__).with_name("shim.c")
    if subprocess.run(
        ["cc", "-shared", "-fPIC", "-O", "-o", str(shim), str(source)], check=False
    ).returncode:
        print("no cc: clocks stay right, and disks fast", flush=True)
        missing = [t for t in missing if "clock" not in t.fault.name and "slow" not in t.fault.name]
        shim = None
    left = sum(trial.fault.seconds for trial in missing)
    told = threading.Lock()
    broken = 0

    def one(index: int) -> None:
        nonlocal left, broken
        trial = missing[index]
        folder = work / str(index)
        row = play(trial, folder, shim)
        with told:
            store.append(options.results, row)
            left -= trial.fault.seconds
            broken += bool(row["broken"])
            print(
                f"[{index + 1}/{len(missing)}] {row['fault']}, {row['stage']}: {row['outcome']}, "
                f"{row['seconds']:.0f} s; {left / options.together / 60:.0f} min left",
                *(f"    {line}" for line in row["broken"]),
                *([f"    {folder}"] if row["broken"] else []),
                sep="\n",
                flush=True,
            )
        if not row["broken"]:
            shutil.rmtree(folder, ignore_errors=True)

    experiment()  # msgspec must not meet a type for the first time in two threads at once
    with ThreadPoolExecutor(options.together) as threads:
        try:
            for done_one in [threads.submit(one, index) for index in range(len(missing))]:
                done_one.result()
        finally:
            threads.shutdown(cancel_futures=True)
    if not broken:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{len(missing)} trials, {broken} of them break a law")
    return int(bool(broken))


def table(rows: list[Row]) -> str:
    """The table fault × times × outcome, of all stages together, in Markdown.

    The faults after which each run went on share a line.
    """
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        of = counts.setdefault(row["fault"], Counter())
        of["broken" if row["broken"] else row["outcome"]] += 1
    columns = (*OUTCOMES, "broken")
    lines = [
        f"| fault | times | {' | '.join(columns)} |",
        "|---" + "|--:" * (1 + len(columns)) + "|",
    ]
    counted = {each.name: counts[each.name] for each in FAULTS if each.name in counts}
    harmless = [name for name, of in counted.items() if of["went on"] == of.total()]
    shared = sum((counted.pop(name) for name in harmless), Counter[str]())
    if harmless:
        counted["; ".join(harmless)] = shared
    for name, found in counted.items():
        cells = [str(found[each] or "") for each in columns]
        lines.append(f"| {name} | {found.total()} | {' | '.join(cells)} |")
    total = sum(counts.values(), Counter[str]())
    cells = [str(total[each] or 0) for each in columns]
    lines.append(f"| **all** | {total.total()} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write(page: Path, text: str) -> None:
    """Puts the text between the page's markers."""
    before, rest = page.read_text().split(_BEGIN)
    after = rest.split(_END)[1]
    page.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{after}")


@command
def main() -> int:
    parser = store.parser("faults", __doc__)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--only", nargs="*", default=[], help="words of the faults to run")
    parser.add_argument("--times", type=int, default=0, help="of each row at most (0: as planned)")
    parser.add_argument("--together", type=int, default=3, help="trials that run at a time")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="a line for each trial")
    parser.add_argument("--page", type=Path, default=_PAGE, help="where the table goes")
    options = parser.parse_args()
    if options.what == "table":
        write(options.page, table(store.read(options.results)))
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
