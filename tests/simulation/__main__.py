"""Plays days: `python -m tests.simulation [--seed N | --from N --seeds N] | planted`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.planted import BUGS, hunt
from tests.simulation.shelf import Plan, plan, play, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["planted"], help="hunt the planted bugs")
    parser.add_argument("--seed", type=int, help="play this day, and print what happens")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--seeds", type=int, default=200, help="how many days")
    parser.add_argument("--no-shrink", action="store_true", help="print a broken day as it is")
    asked = parser.parse_args()
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
