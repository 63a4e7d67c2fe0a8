"""Plays days: `python -m tests.simulation [--seed N | --from N --seeds N] | planted | hours N`.

`hours N` plays days on all cores for N hours, from the first that its file of rows does not have.
It can be stopped at any time, and goes on where it was. At its end it prints how many days there
are of this version of the program, and which of them broke a law.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count
from pathlib import Path

from benchmarks import store
from tests.simulation.planted import BUGS, hunt
from tests.simulation.shelf import Plan, plan, play, shrink

#: Days of a row.
_BLOCK = 50


def main() -> int:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tests.simulation", None, __doc__, formatter_class=kind
    )
    parser.add_argument(
        "what", nargs="?", choices=["planted", "hours"], help="hunt the planted bugs, or play on"
    )
    parser.add_argument("hours", nargs="?", type=float, default=1.0, help="(1)")
    parser.add_argument("--seed", type=int, help="play this day, and print what happens")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--seeds", type=int, default=200, help="how many days")
    parser.add_argument("--no-shrink", action="store_true", help="print a broken day as it is")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--results", type=Path, default=Path("build/days.jsonl"), help="of `hours`")
    asked = parser.parse_args()
    gc.freeze()  # to look through the modules again and again takes a seventh of the time
    if asked.what == "hours":
        return _play_on(asked.hours, asked.jobs, asked.results)
    if asked.what is not None:
        return _hunt_all(asked.seeds)
    if asked.seed is not None:
        report = play(plan(asked.seed), print)
        print(report)
        return bool(report.broken)
    return _play_all(range(asked.first, asked.first + asked.seeds), shrinks=not asked.no_shrink)


def _play_all(seeds: range, shrinks: bool) -> int:
    began = said = time.monotonic()
    days = pushes = faults = 0
    seconds = 0.0
    for seed in seeds:
        day = plan(seed)
        report = play(day)
        days += 1
        pushes += report.pushes
        faults += report.faults
        seconds += report.seconds
        if report.broken:
            print(f"make simulate SEED={seed}: {report.broken}")
            if shrinks:
                _show(shrink(day))
            return 1
        if time.monotonic() > said + 10:
            said = time.monotonic()
            left = (said - began) / days * (len(seeds) - days)
            print(f"{days} of {len(seeds)} days, {left:.0f} s left", file=sys.stderr)
    print(
        f"{days} days, {seconds / 3600:.1f} hours, {pushes} pushes, {faults} faults: "
        "no law was broken"
    )
    return 0


def _show(day: Plan) -> None:
    print("the fewest events that break a law:")
    for happening in day.happenings:
        print(f"  {happening.at:8.3f} s  {happening.kind}")
    print(f"with {day.children} children, {day.shards} shards, {day.settings}")


def _play_on(hours: float, jobs: int, results: Path) -> int:
    """Plays blocks of days that this version has no row of, until the time is over."""
    commit = store.origin()["commit"]
    rows = [row for row in store.read(results) if row["commit"] == commit]
    done = {row["first"] for row in rows}
    left = (first for first in count(0, _BLOCK) if first not in done)
    end = time.monotonic() + 3600.0 * hours
    running: set[Future[store.Row]] = set()
    with ProcessPoolExecutor(jobs) as pool:
        while running or time.monotonic() < end:
            while len(running) < jobs and time.monotonic() < end:
                running.add(pool.submit(_block, next(left)))
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for row in (each.result() for each in ended):
                store.append(results, row)
                rows.append(row)
                for law in row["broken"]:
                    print(law, flush=True)
    broken = [law for row in rows for law in row["broken"]]
    days, pushes, faults = (sum(row[name] for row in rows) for name in ("days", "pushes", "faults"))
    simulated, cpu = (sum(row[name] for row in rows) / 3600.0 for name in ("seconds", "cpu"))
    print(
        f"{days:,} days of {commit}: {simulated:,.0f} hours in {cpu:.1f} hours of a core, "
        f"{pushes:,} pushes, {faults:,} faults, {len(broken)} days broke a law"
    )
    print("\n".join(broken))
    return bool(broken)


def _block(first: int) -> store.Row:
    """The row of some days."""
    began = time.process_time()
    reports = {seed: play(plan(seed)) for seed in range(first, first + _BLOCK)}
    return {
        "first": first,
        "days": len(reports),
        **{
            name: sum(getattr(each, name) for each in reports.values())
            for name in ("seconds", "pushes", "faults")
        },
        "cpu": time.process_time() - began,
        "broken": [f"make simulate SEED={s}: {r.broken}" for s, r in reports.items() if r.broken],
    }


def _hunt_all(seeds: int) -> int:
    found = 0
    print("| bug | found on day | what was broken |\n|---|---|---|")
    for bug in BUGS:
        lines = [line for line in hunt(bug, seeds) if line.startswith("make simulate SEED=")]
        found += bool(lines)
        day, _, law = lines[0].partition("=")[2].partition(": ") if lines else ("never", "", "")
        print(f"| {bug.name} | {day} | {law.partition(': ')[2]} |", flush=True)
    print(f"\n{found} of {len(BUGS)} found")
    return found < len(BUGS)


if __name__ == "__main__":
    sys.exit(main())
