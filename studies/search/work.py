"""Methods of a search at equal expected work, as HyperTrick's paper compares them (§5.2.4).

Question: with the same number of phases to be expected, which method finds the better
configuration, in how much time, and how busy are the nodes? There are two, a process of one core
each; or eight, each in a control group with a fifth of a core, which takes root.

Method: A3C on cart pole over the paper's space (learning rate, γ, t_max), at most 9 phases a trial.
Hyperband with restarts and 30 trials (two turns of its brackets) runs 144 phases; each other
method has as many trials as come nearest to that by its own expectation, and HyperTrick has 30
trials, too, with the r of equation 9. All draw at random, and the same configurations in the same
order. The best configuration, which the best completed trial has, is trained again with three
seeds, as a plain run with the steps of a whole trial, and then plays 100 episodes.

Each search is a line of the results, and is not repeated once it is there. Stop and go on at will.

    python -m studies.search.work plan
    python -m studies.search.work run                   8 methods, 2 and 8 nodes, 5 seeds
    python -m studies.search.work report                writes the page, with importances
    python -m studies.search.work run --methods hyperband --nodes 2 --seeds 1 --phase-steps 200 \\
        --results /tmp/work.jsonl --work /tmp/work      seconds, to see that it runs
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import genkidama
from benchmarks import store
from benchmarks.processes import command, free_port, stop
from benchmarks.store import Row
from genkidama.errors import EnvironmentFailure
from genkidama.plugins.hypertrick.rule import eviction_rate_for
from genkidama.plugins.hypertrick.settings import SearchSettings
from studies.differences import number, span
from studies.groups import Group
from studies.search.measure import EXAMPLES

ROOT = Path(__file__).resolve().parents[2]

PHASES = 9

#: Phases that Hyperband with restarts runs: two turns of 27 + 18 + 27.
WORK = 144

#: With the same number of trials HyperTrick has this expected completion rate.
TRIALS = 30

#: By name: what a table calls it, and its settings of `search`.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "hypertrick": (
        "HyperTrick",
        {"eviction_rate": eviction_rate_for(WORK / TRIALS / PHASES, PHASES)},
    ),
    "hyperband-restart": ("Hyperband, from scratch", {"method": "hyperband", "restart": True}),
    "hyperband": ("Hyperband, going on", {"method": "hyperband"}),
    "successive-halving": ("Successive Halving, going on", {"method": "successive_halving"}),
    "asynchronous-hyperband": ("Hyperband, asynchronous", {"method": "asynchronous_hyperband"}),
    "asha": ("ASHA, stopping", {"method": "asha", "reduction_factor": 3}),
    "pbt": ("PBT", {"method": "pbt"}),
    "random": ("random search", {"method": "random"}),
}

#: A node's share of a core, where it is in a control group.
_SHARE = 0.2

_AGAIN = (101, 102, 103)


def expected_work(settings: dict[str, Any], trials: int) -> float:
    """Phases that a search of so many trials is expected to run."""
    search = SearchSettings(phases=PHASES, trials=trials, **settings)
    return search.rule().expected_completion_rate * trials * PHASES


def trials_of(settings: dict[str, Any]) -> int:
    """The number of trials that comes nearest to the same expected work."""
    return min(range(1, 200), key=lambda trials: abs(expected_work(settings, trials) - WORK))


@dataclass(frozen=True)
class Wanted:
    """One search."""

    method: str
    nodes: int
    seed: int
    phase_steps: int

    def __str__(self) -> str:
        return f"{METHODS[self.method][0]}, {self.nodes} nodes, seed {self.seed}"

    def is_of(self, row: Row) -> bool:
        return self == Wanted(*(row[key] for key in ("method", "nodes", "seed", "phase_steps")))


def experiment(one: Wanted) -> genkidama.Experiment:
    """The experiment of a search."""
    own = METHODS[one.method][1]
    search = {"phases": PHASES, "phase_steps": one.phase_steps, "trials": trials_of(own), **own}
    return genkidama.Experiment.load(EXAMPLES / "search.toml").with_settings(
        {
            "environment.id": "CartPole-v1",
            "environment.reward_scale": 0.1,
            "child.exchange_seconds": 0.2,
            "stop.window": 20,
            "seed": one.seed,
            **{f"search.{key}": value for key, value in search.items()},
        }
    )


def measure(one: Wanted, options: argparse.Namespace) -> Row:
    """Searches, or goes on with a search that was cut off, and trains the best one again."""
    from genkidama.plugins.hypertrick.local_search import search
    from genkidama.plugins.hypertrick.study import importances, open_study, read

    folder = options.work / f"{one.method}-{one.nodes}-{one.seed}-{one.phase_steps}"
    out = folder / "search"
    begun = (out / "study.db").exists()
    folder.mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        nodes = [_node(stack, number, one.nodes, address, folder) for number in range(one.nodes)]
        search(
            experiment(one),
            children=0,
            listen=address,
            out=None if begun else out,
            resume=out if begun else None,
        )
        for number, node in enumerate(nodes):
            if node.wait(60):
                raise EnvironmentFailure(
                    f"node {number} of {one} ended with code {node.returncode}: its log is in "
                    f"{folder}; delete that folder and try again"
                )
    found = read(open_study(f"sqlite:///{out.absolute() / 'study.db'}", out.name))
    if found.best is None or found.observed is None:
        raise EnvironmentFailure(f"{out}: no trial has a score; give --phase-steps more")
    shares = importances(found)
    row = {
        **asdict(one),
        "expected": expected_work(METHODS[one.method][1], len(found.trials)),
        "phases": sum(len(trial.phases) for trial in found.trials),
        "seconds": found.search_time,
        "occupancy": found.occupancy,
        "score": found.best.score,
        "observed": found.observed[1].score,
        "time_to_best": found.best.phases[-1].end,
        "params": found.best.params,
        "again": _again(one, found.best.params, folder),
        "importances": shares.shares if shares else {},
        "tried": [[*trial.params.values(), trial.score] for trial in reversed(found.ranking)],
    }
    shutil.rmtree(folder)
    return row


def _node(
    stack: ExitStack, number: int, nodes: int, address: str, folder: Path
) -> subprocess.Popen[bytes]:
    """A node, which ends with the search; with more than two in a control group."""
    group = None
    if nodes > 2:
        group = stack.enter_context(closing(Group(f"search-{os.getpid()}-{number}")))
        group.hold(_SHARE)
    words = ["--parent", f"ws://{address}", "--name", f"node-{number + 1}", "--cores", "1"]
    with (folder / f"node-{number + 1}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "genkidama.child", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=None if group is None else group.enter,
        )
    stack.callback(lambda: process.poll() is None and stop(process))
    return process


def _again(one: Wanted, params: dict[str, Any], folder: Path) -> list[float]:
    """Mean returns of plain runs with these settings."""
    plain = experiment(one).to_dict()
    del plain["search"]
    settings = {**params, "stop.steps": PHASES * one.phase_steps}
    means = []
    for seed in _AGAIN:
        chosen = genkidama.Experiment.from_dict(plain).with_settings({**settings, "seed": seed})
        out = folder / f"again-{seed}"
        shutil.rmtree(out, ignore_errors=True)
        run = genkidama.train(chosen, children=1, cores=1, out=out)
        means.append(genkidama.evaluate(run, episodes=100).mean)
    return means


# The page.


def text(rows: Sequence[Row]) -> str:
    """The page."""
    return "\n".join([_HEAD, *_table(rows), *_importances(rows)]) + "\n"


_HEAD = f"""# Results: searches at equal expected work

`python -m studies.search.work report` writes this page from `search-work.jsonl`.

A3C on cart pole over the space of HyperTrick's paper, at most {PHASES} phases a trial. Each method
is expected to run about {WORK} phases. Two nodes have a core each, eight a fifth of a core. The
table has medians over the seeds (least to most, from two on). *Completed* is the score of the best
trial that ran all phases. *Again* is what the best configuration earns when it is trained anew with
three seeds: mean returns of 100 episodes, their median over all seeds.
"""


def _table(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        yield "No row yet."
        return
    yield (
        "| nodes | method | seeds | phases of expected | seconds | occupancy | completed | again |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for nodes in sorted({row["nodes"] for row in rows}):
        for name, (label, _) in METHODS.items():
            own = [row for row in rows if (row["nodes"], row["method"]) == (nodes, name)]
            if not own:
                continue

            def cell(key: str, own: list[Row] = own) -> str:
                values = [row[key] for row in own]
                spread = f" ({span((min(values), max(values)))})" if len(own) > 1 else ""
                return number(median(values)) + spread

            again = [value for row in own for value in row["again"]]
            yield (
                f"| {nodes} | {label} | {len(own)} "
                f"| {median(row['phases'] for row in own):.0f} of "
                f"{median(row['expected'] for row in own):.0f} "
                f"| {cell('seconds')} | {median(row['occupancy'] for row in own):.0%} "
                f"| {cell('score')} "
                f"| {number(median(again))} ({span((min(again), max(again)))}) |"
            )


def _importances(rows: Sequence[Row]) -> Iterator[str]:
    own = [row for row in rows if row["method"] == "hypertrick" and row["importances"]]
    tried = [trial for row in own for trial in row["tried"]]
    if len(tried) < 20:
        return
    names = list(own[0]["params"])
    shares, fit = forest_importances(tried)
    yield ""
    yield "## What matters, in HyperTrick's searches"
    yield ""
    yield f"| | {' | '.join(names)} |"
    yield "|---|" + "---|" * len(names)
    yield f"| as the paper's table 4 | {' | '.join(f'{share:.0%}' for share in shares)} |"
    means = [fmean(row["importances"][name] for row in own) for name in names]
    yield f"| fANOVA, mean of {len(own)} searches | {' | '.join(f'{m:.0%}' for m in means)} |"
    yield ""
    yield "Table 4's: impurity, by the best of 100 random forests in 10-fold cross-validation, of"
    yield f"the last scores of {len(tried)} trials of all searches together (R² {fit:.2f})."


def forest_importances(
    tried: Sequence[Sequence[float]], forests: int = 100
) -> tuple[list[float], float]:
    """Impurity importances as in table 4 of HyperTrick's paper, and the cross-validated R².

    Args:
        tried: for each trial its settings and its score.
        forests: of how many the best is chosen.
    """
    import numpy as np
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.model_selection import KFold, RandomizedSearchCV

    table = np.asarray(tried, float)
    chosen = RandomizedSearchCV(
        RandomForestRegressor(random_state=0),
        {
            "n_estimators": [10, 20, 50],
            "max_depth": [None, 2, 3, 5, 8],
            "min_samples_leaf": [1, 2, 4, 8],
            "max_features": [0.3, 0.7, 1.0],
        },
        n_iter=forests,
        cv=KFold(10, shuffle=True, random_state=0),
        random_state=0,
    ).fit(table[:, :-1], table[:, -1])
    return [float(s) for s in chosen.best_estimator_.feature_importances_], float(
        chosen.best_score_
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = store.parser("search.work", __doc__)
    parser.add_argument("what", choices=("plan", "run", "report"))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--phase-steps", type=int, default=4000, help="length of a phase")
    store.add_places(parser, ROOT / "docs/results/search-work.jsonl", ROOT / "runs/search-work")
    parser.add_argument("--document", type=Path, default=ROOT / "docs/results/search-work.md")
    return parser.parse_args(arguments)


@command
def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    rows = store.read(options.results)
    wanted = [
        Wanted(name, nodes, seed, options.phase_steps)
        for seed in options.seeds
        for nodes in options.nodes
        for name in METHODS
        if name in options.methods
    ]
    missing = [one for one in wanted if not any(map(one.is_of, rows))]
    if options.what == "plan":
        for one in missing:
            own = METHODS[one.method][1]
            trials = trials_of(own)
            print(f"{one}: {trials} trials, {expected_work(own, trials):.0f} phases")
        print(f"{len(missing)} of {len(wanted)} are left")
    elif options.what == "report":
        options.document.write_text(text(rows), encoding="utf-8")
        print(options.document)
    else:
        with store.only_one(options.work):
            well = store.run(
                wanted,
                missing,
                rows,
                options.results,
                measure=lambda one: measure(one, options),
                announce=lambda left: f"{len(left)} searches are left",
                outcome=lambda row: (
                    f"{row['score']:.0f} in {row['seconds']:.0f} s, {row['phases']} phases, "
                    f"occupancy {row['occupancy']:.0%}, again {fmean(row['again']):.0f}"
                ),
            )
        return 0 if well else EnvironmentFailure.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
