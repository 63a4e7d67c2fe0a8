"""Gorila's bundles on many slow machines, beside the same in step.

No claim, a comparison (Nair et al. 2015 have 100 bundles on 100 machines, figure 3). A bundle acts,
remembers and learns: a child of one core that trains `examples/cartpole/dqn.toml` and sends a
gradient an update to one Adam at the parent. A machine is a control group with a tenth of a core,
as in `studies.scaling`. `synchronous` is our learner in torch.distributed: each update averages
one gradient of every machine, and all wait for the slowest.

Each bundle makes an update a step. So n bundles make as many updates a step as one, and in step
they make 1/n of that, each from n times as many samples. They begin to learn after 512 steps of all
together.

`slow10` holds the first bundle to a hundredth of a core. `gorila-discards` leaves out gradients
that are older than 24 versions, or whose loss lies 4 standard deviations above the running mean.

Snapshots are judged afterwards by 100 greedy episodes each: the last one after `--seconds` of
learning, and the last one within `--steps` steps of all bundles together. `to 475` is the first
with a mean of 475 over 500 episodes.

Every run is a line in the results, and is not repeated once it is there. Stop and go on at will. It
takes root (control groups), Linux, and `make peers`.

    python -m studies.gorila run [--seeds 1 2 3] [--contenders gorila synchronous]
    python -m studies.gorila report
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from benchmarks import store
from benchmarks.judging import Judge, first
from benchmarks.processes import command
from genkidama.errors import EnvironmentFailure
from studies.scaling import matrix
from studies.scaling.machines import ROOT, Machines, folder_for, sweep
from studies.scaling.matrix import BUNDLES, Condition, Row
from studies.scaling.ours import Ours, experiment_of
from studies.scaling.rivals import rival

GOAL = 475.0

#: A training mean that no run reaches: runs end by their limits.
_NEVER = 1e9


def measure(condition: Condition, options: argparse.Namespace) -> Row:
    """One row: the run, and its snapshots judged."""
    began = time.time()
    root = Path(tempfile.mkdtemp(prefix="gorila-"))
    folder = folder_for(root, condition)
    row: Row = {**condition.as_row(), "date": time.strftime("%F %T")}
    row |= {"at_seconds": options.seconds, "at_steps": options.steps}
    # One machine alone gets so far in some minutes; there is no use in waiting longer for it.
    limit = max(options.seconds, options.limit / condition.machines)
    try:
        with Machines(condition, folder, limit) as machines:
            ours = BUNDLES[condition.contender].kind == "ours"
            run = (Ours if ours else rival)(machines, folder, _NEVER, 8.0 / condition.machines)
            row |= run.run(limit)
        snapshots = run.snapshots()
        in_time = [one for one in snapshots if one.seconds <= options.seconds]
        in_steps = [one for one in snapshots if one.steps <= options.steps]
        with Judge(experiment_of(condition), condition.seed) as judge:
            if in_time:
                row["in_time"] = [in_time[-1].steps, *judge(in_time[-1], 100)]
            if in_steps and snapshots[-1].steps >= 0.9 * options.steps:
                row["in_steps"] = [in_steps[-1].seconds, *judge(in_steps[-1], 100)]
            row["reached"] = first(snapshots, GOAL, judge)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    row["wall"] = round(time.time() - began, 1)
    return row


def planned(options: argparse.Namespace) -> list[Condition]:
    """All runs, in their order: without a disturbance first, seed by seed."""
    names = [name for name in BUNDLES if name in options.contenders]
    plan = matrix.plan(names, None, options.seeds)
    plan = [one for one in plan if one.contender != "gorila-discards"]
    return plan + matrix.plan(names, [8], options.seeds, ["slow10"])


def report(rows: list[Row]) -> None:
    """Prints a line for each condition: medians of its seeds."""
    print(
        f"{'contender':>16} {'n':>2} {'disturbed':>9} {'seeds':>5} {'in time':>8} {'steps':>8} "
        f"{'in steps':>8} {'seconds':>8} {'to 475, s':>10} {'stale':>6} {'left out':>8} {'use':>5}"
    )
    keys = {(row["contender"], row["machines"], row["disturbance"]): None for row in rows}
    for key in sorted(keys, key=lambda key: (key[2], list(BUNDLES).index(key[0]), key[1])):
        these = [
            row for row in rows if (row["contender"], row["machines"], row["disturbance"]) == key
        ]
        in_time = [row["in_time"] for row in these if row.get("in_time")]
        in_steps = [row["in_steps"] for row in these if row.get("in_steps")]
        reached = [row["reached"]["seconds"] for row in these if row["reached"]]
        stale = [row["staleness"]["mean"] for row in these if row.get("staleness")]
        left_out = [
            sum(row["left_out"].values()) / max(1, row["version"] + sum(row["left_out"].values()))
            for row in these
            if row.get("left_out")
        ]
        cells = [
            f"{key[0]:>16} {key[1]:>2} {key[2]:>9} {len(these):>5}",
            f"{_median(one[1] for one in in_time):>8}",
            f"{_median(one[0] for one in in_time):>8}",
            f"{_median(one[1] for one in in_steps):>8}",
            f"{_median(one[0] for one in in_steps):>8}",
            f"{f'{median(reached):.0f} ({len(reached)})' if reached else '–':>10}",
            f"{_median(stale):>6}",
            f"{f'{median(left_out):.1%}' if left_out else '–':>8}",
            f"{min(min(row['use']) for row in these):>5.2f}",
        ]
        print(" ".join(cells))


def _median(values: Iterable[float]) -> str:
    found = list(values)
    return f"{median(found):.1f}" if found else "–"


@command
def main(arguments: list[str] | None = None) -> int:
    parser = store.parser("gorila", __doc__)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--contenders", nargs="+", choices=BUNDLES, default=list(BUNDLES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=60.0, help="of learning (default 60)")
    parser.add_argument("--steps", type=int, default=10_000, help="of all bundles (default 10000)")
    parser.add_argument(
        "--limit",
        type=float,
        default=240.0,
        help="seconds of one machine alone; n end after an n-th of it (default 240)",
    )
    parser.add_argument("--results", type=Path, default=ROOT / "docs/results/gorila.jsonl")
    options = parser.parse_args(arguments)
    rows = store.read(options.results)
    if options.what == "run":
        sweep()
        wanted = planned(options)
        well = store.run(
            wanted,
            matrix.missing(wanted, rows),
            rows,
            options.results,
            measure=lambda condition: measure(condition, options),
            announce=lambda left: f"{len(left)} left",
            outcome=lambda row: f"use {min(row['use']):.2f}",
        )
        if not well:
            return EnvironmentFailure.exit_code
    report(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
