"""MinAtar's Breakout by A3C on GA3C: an update a rollout or grouped, with V-trace and without.

Question: does A3C learn a game on GA3C, as documented, with an update from each rollout? What do
grouping and V-trace change, at equal steps, and how far is PPO on the same backend ahead?

Method: network and game of `examples/minatar/breakout.toml`, one predictor, one trainer. A3C has 32
copies of the game, as the document has, 16 in each of two agents, n-step returns with t_max = 5,
and Adam; PPO is the file. Each form's rate is the best of `RATES` with seed 0, by the mean over the
whole run; the other seeds count. `lag` is the mean number of updates between acting and learning.
Two runs may share a machine, since steps count and not seconds; a row's seconds say nothing then.

Bound: an hour. What would change our mind: a form learns better if its interval over the seeds
lies above that of another.

Each run is a line of the results, and is not repeated once it is there.

    python -m studies.ga3c.learning run [--forms a3c grouped] [--seeds 0]
    python -m studies.ga3c.learning run --forms grouped ppo --seeds 1 2 3 --steps 1_000_000
    python -m studies.ga3c.learning report
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import genkidama
from benchmarks import store
from benchmarks.processes import command
from benchmarks.store import Row
from genkidama.config.experiment import Experiment
from studies.differences import middle, number
from studies.ga3c.drive import ROOT

STEPS = 200_000
#: The training mean is read so often.
MOMENTS = 10
EPISODES = 200
RATES = (3e-4, 1e-3, 3e-3)

#: A3C, in place of the file's PPO.
_A3C = {
    "name": "a3c",
    "gamma": 0.99,
    "gae_lambda": 1.0,
    "batch_size": 5,
    "across_episodes": False,
    "value_coefficient": 0.5,
    "entropy_coefficient": 0.01,
    "max_gradient_norm": 0.5,
}

#: What a table calls a form, `algorithm.vtrace`, and `ga3c.training_batch`.
FORMS: dict[str, tuple[str, bool, int]] = {
    "a3c": ("A3C, an update a rollout", False, 0),
    "grouped": ("A3C, 80 steps an update", False, 80),
    "vtrace": ("with V-trace, an update a rollout", True, 0),
    "grouped-vtrace": ("with V-trace, 80 steps an update", True, 80),
    "ppo": ("PPO, the file", False, 0),
}


class Wanted(NamedTuple):
    """One run. PPO has its file's rate."""

    form: str
    rate: float
    seed: int
    steps: int = STEPS

    def __str__(self) -> str:
        return f"{FORMS[self.form][0]}, rate {self.rate:g}, seed {self.seed}, {self.steps:,} steps"

    @classmethod
    def of(cls, row: Row) -> Wanted:
        return cls(*(row[key] for key in cls._fields))


def experiment(one: Wanted) -> Experiment:
    """The settings of a run."""
    _, vtrace, grouping = FORMS[one.form]
    settings = Experiment.load(ROOT / "examples/minatar/breakout.toml").to_dict()
    if one.form != "ppo":
        settings["algorithm"] = {**_A3C, "vtrace": vtrace}
        settings["ga3c"] |= {"training_batch": grouping, "environments": 16, "rollouts": 2}
    settings["optimizer"]["learning_rate"] = one.rate
    settings["stop"] |= {"steps": one.steps}
    return Experiment.from_dict({**settings, "seed": one.seed})


def measure(one: Wanted, episodes: int = EPISODES) -> Row:
    """One row: the training means on the way, and what the last weights earn."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        settings = experiment(one)
        run = genkidama.train(settings, children=1, cores=2, out=Path(folder) / "run", episodes=0)
        curve: list[list[float]] = []
        measured: dict[str, list[float]] = {"lag": [], "updates": []}
        for line in run.history():
            if line["event"] == "exchange" and line["mean_return"] is not None:
                if line["steps"] * MOMENTS >= one.steps * (len(curve) + 1):
                    curve.append([line["steps"], round(line["mean_return"], 2)])
            elif line["event"] == "measures":
                for name, values in measured.items():
                    values += [line[name]] if isinstance(line.get(name), int | float) else []
        seconds = time.monotonic() - began
        judged = genkidama.evaluate(run, episodes=episodes, best=False)
    return {
        **one._asdict(),
        "curve": curve,
        "whole": round(fmean(mean for _, mean in curve), 2),
        "mean": round(judged.mean, 2),
        "std": round(judged.std, 2),
        "episodes": episodes,
        "seconds": round(seconds, 1),
        **{name: round(fmean(values), 2) for name, values in measured.items() if values},
    }


def best_rates(rows: Sequence[Row]) -> dict[str, float]:
    """Each form's rate, of those that seed 0 has tried."""
    tried = sorted((row["whole"], row["form"], row["rate"]) for row in rows if not row["seed"])
    return {form: rate for _, form, rate in tried} | {"ppo": 1e-3}


def planned(
    forms: Sequence[str], seeds: Sequence[int], rows: Sequence[Row], steps: int = STEPS
) -> Iterator[Wanted]:
    """Runs in their order: the rates by seed 0, then seed by seed."""
    best = best_rates(rows)
    for seed in seeds:
        for form in forms:
            if seed:
                yield from [Wanted(form, best[form], seed, steps)] if form in best else []
            elif form != "ppo":
                yield from (Wanted(form, rate, 0, steps) for rate in RATES)


def table(rows: Sequence[Row]) -> str:
    """A line for each form: medians over the seeds, and their intervals; seed 0 does not count."""
    lines = [
        "| | rate | steps | seeds | mean after a tenth | half | all | whole | last weights | lag |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for steps in sorted({row["steps"] for row in rows}):
        for form, (label, _, _) in FORMS.items():
            own = [row for row in rows if (row["form"], row["steps"]) == (form, steps)]
            if not (own := [row for row in own if row["seed"]]):
                continue
            places = (0, MOMENTS // 2 - 1, -1)
            means = [[row["curve"][place][1] for row in own] for place in places]
            means += [[row[name] for row in own] for name in ("whole", "mean")]
            lag = number(median(row["lag"] for row in own))
            lines.append(
                f"| {label} | {own[0]['rate']:g} | {steps:,} | {len(own)} "
                f"| {' | '.join(map(middle, means))} | {lag} |"
            )
    return "\n".join(lines) + "\n"


@command
def main(arguments: list[str] | None = None) -> int:
    parser = store.parser("ga3c.learning", __doc__)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    results: Any = ROOT / "docs/results/ga3c-learning.jsonl"
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args(arguments)
    rows = store.read(options.results)
    if options.what == "report":
        print(table(rows))
        return 0
    well = True
    for seed in options.seeds:  # the rates of the others follow from seed 0
        wanted = list(planned(options.forms, [seed], rows, options.steps))
        done = set(map(Wanted.of, rows))
        well &= store.run(
            wanted,
            [one for one in wanted if one not in done],
            rows,
            options.results,
            measure=measure,
            announce=lambda left: f"{len(left)} left of this seed",
            outcome=lambda row: f"{row['mean']} in {row['seconds']:.0f} s, lag {row.get('lag')}",
        )
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
