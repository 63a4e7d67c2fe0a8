"""Tasks that need a memory: what a GRU learns of them, beside a perceptron and RecurrentPPO.

Claims, each with `examples/memory/` on two cores: `cartpole`, CartPole without velocities, has a
mean return of at least 450 after 60 s, and below 100 without a memory. `tmaze`, a T-maze with a
corridor of 20 steps, has at least 0.9, and at most 0.2 without one, where each turn is a guess.
`popgym`, POPGym's RepeatPreviousEasy, has at least 0.9, and at most -0.4 without one; it is not
compared with the peer, and takes the interpreter of `make peers`. `acting`: with a GRU of 64 units
cores make at least 0.5 of the steps of a perceptron's in the same CPU time.

Everybody stops when the last 100 episodes reach the example's goal, or after `--seconds`, the
perceptron after 30 s. RecurrentPPO runs with the settings of rl-baselines3-zoo, which end after
100,000 steps, and with ours. A run is judged by 100 sampled episodes with the weights that `train`
chooses, or the last. Each run is a line in the results file, and is not repeated once it is there.
Nothing else should run meanwhile.

    python -m benchmarks.memory_tasks cartpole [--seeds 1 2 3 4 5] [--seconds 60] [--alone]
    python -m benchmarks.memory_tasks acting [--lanes 1 8 16]
    python -m benchmarks.memory_tasks report
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

# Before anything that loads a BLAS.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

from benchmarks import store
from benchmarks.cores import records, single
from benchmarks.processes import ROOT, parser_of, peer
from benchmarks.store import Row
from genkidama.config.experiment import Experiment
from genkidama.runs.run import Run

EXAMPLES = ROOT / "examples/memory"

TASKS = ("cartpole", "tmaze", "popgym")

#: Those that the peer learns, too.
COMPARED = ("cartpole", "tmaze")

#: Units of the GRU by who learns.
MEMORY = {"genkidama": 64, "perceptron": 0}

#: A perceptron does not reach the goal: it has no need of longer.
PERCEPTRON_SECONDS = 30.0

#: RecurrentPPO's settings by the name of its rows.
PEERS = {"sb3-contrib": "zoo", "sb3-contrib, our settings": "ours"}


def ours(task: str, memory: int, seed: int, seconds: float) -> Row:
    """One run of an example through `genkidama train`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "genkidama", "train", f"{task}.toml", "--out", str(out)]
        command += ["--seed", str(seed), "--episodes", "100"]
        command += ["--set", f"network.memory={memory}", "--set", f"stop.seconds={seconds}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            command, check=True, stderr=subprocess.DEVNULL, cwd=EXAMPLES, env=environment
        )
        run = Run.open(out, allow=["positions", "tmaze", "popgym"])
        judged = json.loads((out / "evaluation.json").read_text())
        took = run.snapshot.seconds
        return {"mean": judged["mean"], "steps": run.snapshot.steps, "seconds": took}


def acting(lanes: int, rounds: int = 15) -> Row:
    """Steps of a core in a second of CPU time, in turns; medians."""

    def experiment(memory: int) -> Experiment:
        network = {"hidden": [64], "memory": memory}
        algorithm = {"name": "ppo", "batch_size": 1024}
        environment = {"id": "CartPole-v1", "lanes": lanes}
        given = {"environment": environment, "network": network, "algorithm": algorithm}
        return Experiment.from_dict(given | {"child": {"exchange": "free"}})

    rates: dict[str, list[float]] = {name: [] for name in MEMORY}
    with (
        single(experiment(MEMORY["genkidama"])) as (remembers, _, its),
        single(experiment(MEMORY["perceptron"])) as (forgets, _, others),
    ):
        for _ in range(rounds):
            turns = (("genkidama", remembers, its), ("perceptron", forgets, others))
            for name, core, line in turns:
                began = time.process_time()
                steps = core.collector.collect().steps
                rates[name].append(steps / (time.process_time() - began))
                records(line)
    found: Row = {f"{name}_steps": median(numbers) for name, numbers in rates.items()}
    pairs = zip(rates["genkidama"], rates["perceptron"], strict=True)
    return found | {"ratio": median(mine / theirs for mine, theirs in pairs)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("what", choices=[*TASKS, "acting", "report"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--alone", action="store_true", help="without the peer")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "build/memory_tasks.jsonl", help="JSON lines"
    )
    options = parser.parse_args()
    done = store.read(options.results)
    once = partial(store.once, options.results, done)
    if options.what == "acting":
        for lanes in options.lanes:
            once({"what": "acting", "lanes": lanes}, lambda lanes=lanes: acting(lanes))
    elif options.what != "report":
        for seed in options.seeds:
            for name, memory in MEMORY.items():
                key = {"what": options.what, "by": name, "seed": seed}
                seconds = options.seconds if memory else min(PERCEPTRON_SECONDS, options.seconds)
                once(key, partial(ours, options.what, memory, seed, seconds))
            for name, settings in (
                () if options.alone or options.what not in COMPARED else PEERS.items()
            ):
                key = {"what": options.what, "by": name, "seed": seed}
                asked = ["--task", options.what, "--settings", settings, "--seed", str(seed)]
                asked += ["--seconds", str(options.seconds)]
                once(key, partial(peer, "sb3_memory.py", *asked))
    report(done)


def report(rows: list[Row]) -> None:
    """Prints medians, and the least and the most."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        who = str(row.get("by", f"{row.get('lanes')} lanes"))
        groups.setdefault((row["what"], who), []).append(row)
    for (what, who), found in sorted(groups.items()):
        for key in ("mean", "steps", "seconds", "ratio"):
            numbers = [row[key] for row in found if key in row]
            if numbers:
                spread = f"{min(numbers):,.2f} to {max(numbers):,.2f}, n = {len(numbers)}"
                print(f"{what} {who}: {key} {median(numbers):,.2f} ({spread})")


if __name__ == "__main__":
    main()
