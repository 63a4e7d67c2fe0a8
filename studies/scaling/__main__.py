"""How much sooner n slow machines learn LunarLander than one of them, beside peers.

Method: a machine is a control group with a tenth of a core (`--share`), that the kernel enforces,
and if `--links` says so a network namespace behind a slow link. In it runs a real child of a real
parent, or a peer's worker, with all its processes. The parent, and a peer's server, is a machine
that is not held. Nobody is evaluated while training. Snapshots are set aside every 8/n seconds and
judged afterwards: the result is the first with a mean of at least 200 over 500 sampled
episodes. Training ends when the mean of its last 100 episodes is 30 above that, or at `--limit`.

Time counts from the moment when all machines stand ready, imports and start-up done, and get their
shares. Speed-up is against one machine of the same contender, in the medians over seeds;
`against best` is against the fastest single machine of all. Efficiency, which is speed-up by n, is
`pace` × `learning`. `pace` is n machines' steps a second against n times one's: waiting and
exchanging lower it. `learning` is one machine's steps to the goal by n machines': staleness and
averaging lower it. `use` is the least part of its share that a machine used: below 0.95 a child was
kept waiting by something else on this computer, and its row should be measured again. A peer's
worker that waits for the others uses less by itself; there a row's `idle` tells, which is then
near 0.

Peers: `ddp`, our learner with gradients averaged by torch.distributed (gloo) at every minibatch,
the batch divided among the machines (`ddp-each`: a whole batch each). `flower`, our learner in a
Flower app of the current release as its documentation starts it: SuperLink, SuperNodes, FedAvg, a
batch a round (`flower-long`: 16). Flower starts a process for every message, which imports torch
with the machine's share. That time is counted, since a user has it, too. `sb3`,
Stable-Baselines3's PPO with the zoo's settings and n environments in one machine that has n
shares. `whole` is the same for ours: one child with n shares.

Links: `ethernet` 100 Mbit/s and a round trip of 1 ms, `wifi` 20 Mbit/s, 20 ms, 1 % of the packets
lost each way, `internet` 5 Mbit/s, 80 ms. Disturbances: `slow10` and `slow100`, machine 0 gets a
tenth or a hundredth of its share; `cuts`, each minute a random half of the machines is cut off for
20 seconds; `late`, the second half joins after `--late` seconds; `alone`, the second half is cut
off once, from second `--alone` on and for a minute. Such a run has no goal and ends 45 s later. Its
row has `means`, each second's mean of the last 100 episodes of the machines that were not cut off,
and the report says for how long it was more than 20 below its value at the others' return.

Tasks (`--tasks`), for `average`, `average-half` and `experience`: beside `lunarlander` there are
`cartpole`, `breakout` (MinAtar's, a convolution) and `continuous` (LunarLanderContinuous-v3), each
with its own goal; `TASKS` in matrix.py has them. `sent` and `received` of a row are bytes a second
at the parent, as the kernel counts them at its connections. `parent_cpu` is the parent's CPU time
with that of the learner beside it.

Every run is a line in the results, and is not repeated once it is there. Stop and go on at will.
It takes root (control groups, namespaces), Linux, and for peers `make peers`.

    python -m studies.scaling run                       ours at 1 to 16 machines, peers at 1, 8
    python -m studies.scaling run --contenders blend --machines 1 8 --seeds 1
    python -m studies.scaling run --disturbances slow10 slow100 --contenders blend ddp flower
    python -m studies.scaling run --contenders average experience --machines 8 \
        --tasks cartpole breakout continuous --seeds 1 2 3
    python -m studies.scaling run --contenders average --machines 8 --links ethernet \
        --disturbances alone
    python -m studies.scaling plan | report
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import store
from benchmarks.judging import Judge, first
from benchmarks.processes import command
from genkidama.errors import EnvironmentFailure
from genkidama.runtime.machine import available_cores
from studies.scaling import figures, matrix, picture
from studies.scaling.machines import ROOT, Machines, folder_for, sweep
from studies.scaling.matrix import CONTENDERS, DISTURBANCES, LINKS, TASKS, Condition, Row
from studies.scaling.ours import Ours, experiment_of


def measure(condition: Condition, options: argparse.Namespace) -> Row:
    """One row: the run, and its snapshots judged."""
    began = time.time()
    root = Path(tempfile.mkdtemp(prefix="scaling-"))
    folder = folder_for(root, condition)
    task = TASKS[condition.task]
    goal, every = task.goal + task.margin, task.every / condition.machines
    limit = options.limit or task.limit
    alone = DISTURBANCES[condition.disturbance].alone
    if alone:
        cut = matrix.alone(condition.machines, options.alone)
        goal, limit = 1e9, cut[-1][0] + matrix.AFTER_SECONDS
    row: Row = {**condition.as_row(), "date": time.strftime("%F %T"), "limit": limit}
    try:
        with Machines(condition, folder, limit) as machines:
            if alone:
                machines.plan = cut
                row["alone"] = [moment for moment, _ in cut]
            if CONTENDERS[condition.contender].kind == "ours":
                run = Ours(machines, folder, goal, every)
            else:
                from studies.scaling.rivals import rival

                run = rival(machines, folder, goal, every)
            row |= run.run(limit, options.late)
        if "reached" not in row:
            with Judge(experiment_of(condition), condition.seed) as judge:
                row["reached"] = first(run.snapshots(), task.goal, judge, task.scale)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    row["wall"] = round(time.time() - began, 1)
    return row


def run(wanted: list[Condition], rows: list[Row], options: argparse.Namespace) -> bool:
    """Measures the conditions that have no row yet; whether none has failed."""
    for condition in wanted:
        if (reason := matrix.problem(condition, available_cores())) is not None:
            sys.exit(f"error: {reason}")
    sweep()

    def announce(left: Sequence[Condition]) -> str:
        minutes = figures.remaining(left, rows) / 60.0
        return f"about {minutes:.0f} min left"

    return store.run(
        wanted,
        matrix.missing(wanted, rows),
        rows,
        options.results,
        measure=lambda condition: measure(condition, options),
        announce=announce,
        outcome=_outcome,
    )


def _outcome(row: Row) -> str:
    reached = row["reached"]
    passage = (
        f"reached after {reached['seconds']:.1f} s and {reached['steps']:,} steps"
        if reached
        else f"not reached in {row['seconds']:.0f} s, training mean {row['training_mean']}"
    )
    return f"{passage}; use {min(row['use']):.2f}–{max(row['use']):.2f}, idle {row['idle']:.0%}"


def report(rows: list[Row]) -> None:
    """Prints the table of all conditions."""
    print(
        f"{'contender':>10} {'n':>3} {'disturbed':>9} {'link':>8} {'seeds':>7} {'seconds':>8} "
        f"{'steps':>10} {'speed-up':>8} {'effic.':>6} {'pace':>5} {'learning':>8} {'best':>5} "
        f"{'stale':>6} {'use':>5}"
    )
    found = figures.scaling(rows)
    for one in found:
        if one.task != "lunarlander":
            continue
        seconds = f"{one.seconds:.1f}" if one.seconds is not None else "–"
        steps = f"{one.steps:,.0f}" if one.steps is not None else "–"
        stale = f"{one.staleness:.1f}" if one.staleness is not None else "–"
        speed_up, efficiency, pace, learning, best = (
            "–" if value is None else f"{value:.2f}"
            for value in (one.speed_up, one.efficiency, one.pace, one.learning, one.against_best)
        )
        print(
            f"{one.contender:>10} {one.machines:>3} {one.disturbance:>9} {one.link:>8} "
            f"{one.reached:>3}/{one.seeds:<3} {seconds:>8} {steps:>10} {speed_up:>8} "
            f"{efficiency:>6} {pace:>5} {learning:>8} {best:>5} {stale:>6} {one.use:>5.2f}"
        )
    print(figures.tasks(found) + figures.falls(rows), end="")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = store.parser("scaling", __doc__)
    parser.add_argument("what", choices=("run", "plan", "report"))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument(
        "--machines", type=int, nargs="+", metavar="N", help="(default: each contender's own)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--disturbances", nargs="+", choices=DISTURBANCES, default=["none"])
    parser.add_argument("--links", nargs="+", choices=LINKS, default=["none"])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["lunarlander"])
    parser.add_argument(
        "--share", type=float, help="of a core, for each machine (default: the task's, 0.1)"
    )
    parser.add_argument(
        "--limit", type=float, help="seconds of learning at most (default: the task's)"
    )
    parser.add_argument(
        "--late", type=float, default=30.0, help="when `late` machines join (default 30)"
    )
    parser.add_argument(
        "--alone", type=float, default=15.0, help="when `alone` begins (default 15)"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "docs/results/scaling.jsonl")
    return parser.parse_args(arguments)


@command
def main() -> int:
    options = parse()
    rows = store.read(options.results)
    wanted = matrix.plan(
        options.contenders,
        options.machines,
        options.seeds,
        options.disturbances,
        options.links,
        options.share,
        options.tasks,
    )
    match options.what:
        case "plan":
            left = matrix.missing(wanted, rows)
            for condition in left:
                print(condition)
            hours = figures.remaining(left, rows) / 3600.0
            print(f"{len(left)} of {len(wanted)} runs are left, about {hours:.1f} h")
        case "run":
            well = run(wanted, rows, options)
            report(rows)
            picture.save(options.results.with_suffix(".svg"), figures.scaling(rows))
            return 0 if well else EnvironmentFailure.exit_code
        case "report":
            report(rows)
            picture.save(options.results.with_suffix(".svg"), figures.scaling(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
