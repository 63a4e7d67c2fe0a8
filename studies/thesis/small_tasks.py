"""α and β on cart pole and MinAtar's Breakout, and the older-parent form of an exchange.

Question: does the thesis' table of α and β (LunarLander, docs/results/thesis.md) carry over to
other tasks? And does it matter whether a child blends with θ_P of after its push (Algorithm 2) or
of before it (§4.2, equation 2)?

Method: two children of four cores each, with our A3C settings. All cores are the program's own, but
take turns in one process, a batch each, as if each had a CPU: so a run depends on its seed alone,
and not on who else uses the machine. A child exchanges after a batch of each core, as the thesis'
does after an episode of each core. At three moments 10 sampled episodes judge θ_P.

Bound: 50 minutes at idle priority. What would change our mind: the table does not carry over if,
with α = 0.1, β = 0.9 does not end below β = 0.1, or if α = 0.1 does not end below α = 0.9. The form
matters if a cell with one ends clearly apart from the same cell with the other.

Each run is a line of `docs/results/thesis-small.jsonl`, and is not repeated once it is there.

    python -m studies.thesis.small_tasks run --tasks cartpole
    python -m studies.thesis.small_tasks report         the tables, which `studies.thesis report`
                                                        puts into docs/results/thesis.md
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from benchmarks import store
from benchmarks.processes import command
from benchmarks.store import Row
from genkidama.child.core import SingleCore
from genkidama.child.core_forkserver import layout_of
from genkidama.child.shared_memory import SharedMemory
from genkidama.config.experiment import Experiment
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.protocol.vector import blend
from genkidama.runs.evaluation_worker import play
from studies.differences import NONE, compare, interval, medians, number, span
from studies.thesis.measure import JUDGING, ROOT

RESULTS = ROOT / "docs/results/thesis-small.jsonl"
FILE = "examples/lunarlander/a3c.toml"
CHILDREN, CORES = 2, 4
LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
#: Cells of cart pole with the older-parent form as well.
OLDER = ((0.1, 0.9), (0.5, 0.5), (0.9, 0.9))
MOMENTS, EPISODES = 3, 10

#: Steps of all children, and what differs from the file.
TASKS: dict[str, tuple[int, dict[str, Any]]] = {
    "cartpole": (
        30_000,
        {
            "environment.id": "CartPole-v1",
            "environment.reward_scale": 0.1,
            "algorithm.gamma": 0.98,
            "algorithm.gae_lambda": 0.9,
        },
    ),
    "breakout": (
        80_000,
        {
            "environment.id": "minatar.gym:BaseEnv",
            "environment.options": {"game": "breakout", "use_minimal_action_set": True},
            "environment.wrappers": [{"name": "FlattenObservation"}],
            "environment.reward_scale": 1.0,
            "algorithm.gamma": 0.99,
            "algorithm.gae_lambda": 0.95,
            "algorithm.entropy_coefficient": 0.01,
        },
    ),
}


@dataclass(frozen=True)
class Condition:
    """One run. The form is that of the child's blend: with θ_P of `after` or `before` its push."""

    task: str
    alpha: float
    beta: float
    form: str
    seed: int

    def __str__(self) -> str:
        return f"{self.task}, α = {self.alpha}, β = {self.beta}, {self.form}, seed {self.seed}"


class _Pipe:
    """In place of a core's pipe to its orchestrator: nobody listens."""

    def report(self, *_: object) -> None: ...

    def pause(self, *_: object) -> None: ...


class Child:
    """The cores of a child and their memory, in this process."""

    def __init__(self, settings: Experiment, model: Model, number: int) -> None:
        self.memory = SharedMemory(layout_of(settings, model).for_cores(CORES))
        self.memory.weights[:] = model.numbers
        pipe: Any = _Pipe()
        self.cores = [
            SingleCore(index, settings, self.memory, pipe, (settings.seed, number, index))
            for index in range(CORES)
        ]
        for index, core in enumerate(self.cores):
            core.collector.reset(settings.seed * 1000 + number * CORES + index)
            core.pull()

    def work(self, progress: float) -> int:
        """A batch of each core; the number of steps."""
        self.memory.progress[0] = progress
        steps = 0
        for core in self.cores:
            batch = core.collector.collect()
            core.learn(batch)
            steps += batch.steps
        return steps


def measure(condition: Condition, steps: int = 0) -> Row:
    """The row of a run of so many steps, or of as many as its task has."""
    began = time.process_time()
    most, changes = TASKS[condition.task]
    most = steps or most
    settings = Experiment.load(ROOT / FILE).with_settings(
        {
            "seed": condition.seed,
            "environment.lanes": 8,
            "algorithm.batch_size": 240,  # 30 steps of each lane, as in the file
            "optimizer.learning_rate": 1e-3,  # with 2e-3 one child alone ends lower on cart pole
            **changes,
        }
    )
    environment = make_environment(settings.environment)
    model = Model(settings, environment)
    children = [Child(settings, model, number) for number in range(CHILDREN)]
    theta = model.numbers.copy()
    made, exchanges = 0, 0
    curve: list[list[float]] = []
    while len(curve) < MOMENTS:
        for child in children:
            made += child.work(made / most)
            older = theta.copy()
            blend(theta, child.memory.weights, condition.alpha)
            blend(
                child.memory.weights, older if condition.form == "before" else theta, condition.beta
            )
            for core in child.cores:
                core.pull()
            exchanges += 1
        if made * MOMENTS >= most * (len(curve) + 1):
            model.numbers[:] = theta
            returns = play(model, environment, range(EPISODES), condition.seed + JUDGING, False)
            curve.append([made, round(fmean(returns), 2), round(pstdev(returns), 2)])
    apart = float(np.linalg.norm(children[0].memory.weights - children[1].memory.weights))
    return {
        **vars(condition),
        "steps": made,
        "exchanges": exchanges,
        "curve": curve,
        "apart": round(apart / float(np.linalg.norm(theta)), 4),
        "cpu": round(time.process_time() - began, 2),
    }


def plan(tasks: list[str], levels: list[float], seeds: list[int]) -> list[Condition]:
    """All runs in their order: every cell has its first seed before any has its second."""
    cells = [(alpha, beta, "after") for alpha in levels for beta in levels]
    older = [(alpha, beta, "before") for alpha, beta in OLDER if {alpha, beta} <= {*levels}]
    return [
        Condition(task, *cell, seed)
        for task in tasks
        for seed in seeds
        for cell in cells + (older if task == "cartpole" else [])
    ]


def ends(rows: Sequence[Row], task: str, alpha: float, beta: float, form: str) -> list[float]:
    """Each seed's mean return after the last step."""
    cell = (task, alpha, beta, form)
    return [
        row["curve"][-1][1]
        for row in sorted(rows, key=lambda row: row["seed"])
        if (row["task"], row["alpha"], row["beta"], row["form"]) == cell
    ]


def tables(rows: Sequence[Row]) -> list[tuple[list[str], list[list[str]]]]:
    """Heads and lines: each task's returns by α and β, and the differences asked for."""
    found = []
    for task in TASKS:
        levels = sorted({row["alpha"] for row in rows if row["task"] == task})
        if not levels:
            continue
        lines = []
        for alpha in levels:
            line = [f"**α = {alpha}**"]
            for beta in levels:
                means = ends(rows, task, alpha, beta, "after")
                text = f"{number(float(np.median(means)))} ({span(interval([means], medians))})"
                line.append(text if means else NONE)
            lines.append(line)
        found.append(([task, *(f"β = {beta}" for beta in levels)], lines))
    lines = []
    for task in TASKS:
        for what, one, other in (
            ("β = 0.9 less β = 0.1, at α = 0.1", (0.1, 0.9, "after"), (0.1, 0.1, "after")),
            ("β = 0.9 less β = 0.1, at α = 0.9", (0.9, 0.9, "after"), (0.9, 0.1, "after")),
            ("α = 0.9 less α = 0.1, at β = 0.1", (0.9, 0.1, "after"), (0.1, 0.1, "after")),
            ("α = 0.9 less α = 0.1, at β = 0.9", (0.9, 0.9, "after"), (0.1, 0.9, "after")),
            *(
                (f"θ_P of before less of after, α = {alpha}, β = {beta}",
                 (alpha, beta, "before"), (alpha, beta, "after"))
                for alpha, beta in OLDER
            ),
        ):  # fmt: skip
            ours, others = ends(rows, task, *one), ends(rows, task, *other)
            if ours and others:
                less = compare(ours, others)
                lines.append([what, number(less.value, sign=True), span(less.interval)])
    found.append((["", "difference", "interval"], lines))
    return found


@command
def main(arguments: list[str] | None = None) -> int:
    parser = store.parser("thesis.small_tasks", __doc__)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--levels", type=float, nargs="+", default=list(LEVELS), help="of α and β")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=0, help="in place of the task's")
    store.add_places(parser, RESULTS, ROOT / "runs/thesis-small")
    options = parser.parse_args(arguments)
    rows = store.read(options.results)
    if options.what == "report":
        from studies.thesis.tables import markdown

        print(*(markdown(*table) for table in tables(rows)), sep="\n")
        return 0
    done = {Condition(*(row[name] for name in Condition.__annotations__)) for row in rows}
    wanted = plan(options.tasks, options.levels, options.seeds)
    with store.only_one(options.work):
        store.run(
            wanted,
            [one for one in wanted if one not in done],
            rows,
            options.results,
            measure=lambda one: measure(one, options.steps),
            announce=lambda left: f"{len(left)} left",
            outcome=lambda row: f"{row['curve'][-1][1]} after {row['cpu']} s of CPU time",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
