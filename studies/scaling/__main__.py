"""How much sooner n slow machines learn than one of them: on six tasks, over links, beside peers.

Method: a machine is a control group with a tenth of a core (`--share`), that the kernel enforces,
and if `--links` says so a network namespace behind a slow link. In it runs a real child of a real
parent, or a peer's worker, with all its processes. The parent, and a peer's server, is a machine
that is not held. Nobody is evaluated while training. Snapshots are set aside every 8/n seconds and
judged afterwards: the result is the first with a mean of at least the task's goal over 500 sampled
episodes. Training ends when the mean of its last 100 episodes is a margin above that, or at
`--limit`. `TASKS` in matrix.py has the tasks, with goals, margins and settings.

Without `--contenders` it is the study of the six tasks: 5 seeds of each, 8 of LunarLander. One
machine that learns by itself is measured with two settings, its example's (`alone`) and those of
averaging (`alone-tuned`), and the better one is the control of `average` and `experience` with 4
and 8 machines. LunarLander is averaged over slow links as well, with a random half cut off, with
unequal machines, with machines that come and go, and with one child of other physics.

Time counts from the moment when all machines stand ready, imports and start-up done, and get their
shares. `over the best one` is against the best single machine, in the medians over seeds, with the
lower end of a bootstrap interval of 95 %. `pace` is n machines' steps a second against n times
one's: waiting and exchanging lower it. `learning` is one machine's steps to the goal by n
machines': staleness and averaging lower it. Both are against one machine of the same contender, or
the best one if there is none. `use` is the least part of its share that a machine used: below 0.95
a child was kept waiting by something else on this computer, and its row should be measured again.
A peer's worker that waits for the others uses less by itself; there a row's `idle` tells, which is
then near 0. So does a machine that was cut off or away. `kB/s` are what the kernel counts at the
parent's connections, and the parent's cores include the learner beside it.

Peers: `ddp`, our learner with gradients averaged by torch.distributed (gloo) at every minibatch,
the batch divided among the machines. `flower-long`, our learner in a Flower app of the current
release as its documentation starts it: SuperLink, SuperNodes, FedAvg, 16 batches a round. Flower
starts a process for every message, which imports torch with the machine's share. That time is
counted, since a user has it, too. `sb3`, Stable-Baselines3's PPO with the zoo's settings and n
environments in one machine that has n shares. `whole` is the same for ours: one child with n
shares.

Links: `ethernet` 100 Mbit/s and a round trip of 1 ms, `delay` 100 Mbit/s and 20 ms, `wifi`
20 Mbit/s, 20 ms, 1 % of the packets lost each way, `internet` 5 Mbit/s, 80 ms. Disturbances:
`slow10` and `slow100`, machine 0 gets a tenth or a hundredth of its share; `unequal`, ten times
its share, and the others half of theirs; `cuts`, each minute a random half of the machines is cut
off for 20 seconds; `churn`, every ten seconds one machine leaves, and the one before it is back;
`physics`, the environment of child 0 has another gravity than the one that is judged.

Every run is a line in the results, and is not repeated once it is there. Stop and go on at will.
It takes root (control groups, namespaces), Linux, for peers `make peers`, and for Hopper-v5 MuJoCo,
which the interpreter of the peers has.

    benchmarks/.venv/bin/python -m studies.scaling plan      the six tasks: what is left, and hours
    benchmarks/.venv/bin/python -m studies.scaling run
    python -m studies.scaling run --tasks cartpole acrobot --seeds 1
    python -m studies.scaling run --contenders sac-alone sac-blend --tasks pendulum --share 0.4
    python -m studies.scaling run --contenders blend ddp flower-long --disturbances slow10 slow100
    python -m studies.scaling report
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from itertools import takewhile
from multiprocessing import get_context
from pathlib import Path

from benchmarks import store
from benchmarks.processes import command
from genkidama.errors import EnvironmentFailure
from genkidama.runtime.machine import available_cores
from studies.scaling import figures, matrix, picture
from studies.scaling.machines import ROOT, sweep
from studies.scaling.matrix import (
    CONTENDERS,
    DISTURBANCES,
    LINKS,
    OFF_POLICY,
    STUDIED,
    TASKS,
    Condition,
    Row,
)
from studies.scaling.ours import measure


class SideBySide:
    """Measures as `measure`, and small runs several at once, each in a process of its own."""

    def __init__(self, left: Sequence[Condition], limit: float | None) -> None:
        self._left = list(left)
        self._limit = limit
        self._begun: dict[Condition, Future[Row]] = {}
        self._pool = ExitStack()

    def measure(self, condition: Condition) -> Row:
        """The row of the first condition that is left; those like it after it begin with it."""
        if not self._begun and (count := condition.side_by_side) > 1:
            self._pool.close()
            pool = ProcessPoolExecutor(count, get_context("spawn"))
            self._pool.callback(pool.shutdown, cancel_futures=True)
            for one in takewhile(lambda one: one.side_by_side == count, self._left):
                self._begun[one] = pool.submit(measure, one, self._limit)
        self._left.remove(condition)
        begun = self._begun.pop(condition, None)
        return measure(condition, self._limit) if begun is None else begun.result()

    def __enter__(self) -> SideBySide:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()


def run(wanted: list[Condition], rows: list[Row], options: argparse.Namespace) -> bool:
    """Measures the conditions that have no row yet; whether none has failed."""
    for condition in wanted:
        if (reason := matrix.problem(condition, available_cores())) is not None:
            sys.exit(f"error: {reason}")
    sweep()
    known = earlier()

    def announce(left: Sequence[Condition]) -> str:
        minutes = figures.remaining(left, [*known, *rows]) / 60.0
        return f"about {minutes:.0f} min left"

    left = matrix.missing(wanted, rows)
    with SideBySide(left, options.limit) as machines:
        return store.run(
            wanted,
            left,
            rows,
            options.results,
            measure=machines.measure,
            announce=announce,
            outcome=_outcome,
        )


def earlier() -> list[Row]:
    """Rows that tell how long a run takes."""
    return store.read(ROOT / "docs/results/scaling-averaging.jsonl")


def _outcome(row: Row) -> str:
    reached = row["reached"]
    passage = (
        f"reached after {reached['seconds']:.1f} s and {reached['steps']:,} steps"
        if reached
        else f"not reached in {row['seconds']:.0f} s, training mean {row['training_mean']}"
    )
    return f"{passage}; use {min(row['use']):.2f}–{max(row['use']):.2f}, idle {row['idle']:.0%}"


def report(rows: list[Row], results: Path) -> None:
    """Prints the table of all conditions, and draws LunarLander's."""
    found = figures.scaling(rows)
    print(figures.table(found), end="")
    picture.save(results.with_suffix(".svg"), found)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = store.parser("scaling", __doc__)
    parser.add_argument("what", choices=("run", "plan", "report"))
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices={**CONTENDERS, **OFF_POLICY},
        help="(default: the study of six tasks)",
    )
    parser.add_argument(
        "--machines", type=int, nargs="+", metavar="N", help="(default: each contender's own)"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="(default: 1 to 8, with --contenders 1 to 5)"
    )
    parser.add_argument("--disturbances", nargs="+", choices=DISTURBANCES, default=["none"])
    parser.add_argument("--links", nargs="+", choices=LINKS, default=["none"])
    parser.add_argument(
        "--tasks", nargs="+", choices=TASKS, help="(default: all, with --contenders lunarlander)"
    )
    parser.add_argument(
        "--share", type=float, default=0.1, help="of a core, for each machine (default 0.1)"
    )
    parser.add_argument(
        "--limit", type=float, help="seconds of learning at most (default: the task's)"
    )
    parser.add_argument("--results", type=Path, help="(default: below docs/results)")
    options = parser.parse_args(arguments)
    name = "scaling" if options.contenders else "scaling-tasks"
    options.results = options.results or ROOT / f"docs/results/{name}.jsonl"
    return options


def wanted_of(options: argparse.Namespace) -> list[Condition]:
    """The runs that the command asks for, in their order."""
    if not options.contenders:
        return matrix.study(options.tasks or STUDIED, options.seeds or range(1, 9))
    return matrix.plan(
        options.contenders,
        options.machines,
        options.seeds or range(1, 6),
        options.disturbances,
        options.links,
        options.share,
        options.tasks or ["lunarlander"],
    )


@command
def main() -> int:
    options = parse()
    rows = store.read(options.results)
    wanted = wanted_of(options)
    match options.what:
        case "plan":
            left = matrix.missing(wanted, rows)
            for condition in left:
                print(condition)
            hours = figures.remaining(left, [*earlier(), *rows]) / 3600.0
            print(f"{len(left)} of {len(wanted)} runs are left, about {hours:.1f} h")
        case "run":
            well = run(wanted, rows, options)
            report(rows, options.results)
            return 0 if well else EnvironmentFailure.exit_code
        case "report":
            report(rows, options.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
