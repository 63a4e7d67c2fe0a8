"""How soon and how well the examples are learned, beside Stable-Baselines3's PPO on the same cores.

Claims: `lunarlander`: the mean of 500 sampled evaluation episodes reaches 200 within 8 s in the
median of 10 fresh seeds, and within 15 s in each. It reaches 270 within 60 s in 8 of the seeds, and
the run's best weights have at least 240 in each. `landing` is the first claim alone, in less time.
`compare`: the same runs in turns with Stable-Baselines3's PPO with the zoo's settings. `settings`:
as `landing`, in turns with Stable-Baselines3's PPO with the settings of our file: how much of the
difference is the program, and how many steps each needs.
`continuous`, `cartpole`, `pendulum`: so are these, by the mean of the last 100 training episodes;
500 sampled episodes with the best weights reach 200, 475 and -200 in 5 of 5 seeds. `envpool`: as
`compare`, where both train in EnvPool's LunarLander and are judged in Gymnasium's; that needs
EnvPool in both environments. `dqn`: LunarLander by DQN: the best checkpoint reaches 200 in 5 of 5
seeds within 150,000 steps, sooner than Stable-Baselines3's DQN with the zoo's settings;
`dqn-cartpole`: 475. `a3c`: 200, however long it takes. `thesis`: the mean that
`thesis.toml` reaches with 2 x 4 cores after 2,000 updates.

Method: runs of ours and of the peer alternate. Neither is evaluated while it trains. Snapshots are
set aside (ours: a checkpoint every half second; the peer: at most every 5 s) and judged afterwards
by 500 sampled episodes each. The time of a snapshot counts from the start of the training command,
imports and start-up included. Snapshots are judged as soon as the mean training return comes near
the goal (within 30), which can only make a first passage later.

Every run is a line in the results file, and is not repeated once it is there. Stop and go on at
will.

    python -m benchmarks.learning compare [--seeds 201 202 203 204 205] [--results FILE]
    python -m benchmarks.learning settings --results docs/results/settings.jsonl
    python -m benchmarks.learning lunarlander | continuous | a3c | thesis | … | report
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import genkidama
from benchmarks import store
from benchmarks.judging import Judge, Snapshot, first
from benchmarks.processes import ROOT, parser_of, peer
from benchmarks.store import Row
from genkidama.runs import checkpoint as checkpoints
from genkidama.runs.run import Run

EXAMPLES = ROOT / "examples"
NEAR = 30.0


@dataclass
class Contender:
    """One of our examples."""

    #: Below `examples/`.
    file: str
    #: Mean returns whose first passage is looked for in the snapshots.
    goals: tuple[float, ...] = ()
    #: Seconds between two snapshots; 0 takes those that the example keeps, and judges all.
    every: float = 0.5
    #: More arguments for `genkidama train`.
    arguments: tuple[str, ...] = ()
    #: The peer's task, and the mean of its last 100 training episodes that ends it.
    task: str = ""
    #: More arguments for the peer.
    peer: tuple[str, ...] = ()
    goal: float = 0.0
    #: Episodes that each snapshot is judged by to find the best; 0 takes the best training mean.
    choose: int = 0
    #: The peer's script, in `benchmarks/peers/`.
    script: str = "sb3.py"


CONTENDERS = {
    "lunarlander": Contender("lunarlander/lunarlander.toml", (200, 270), task="lunarlander"),
    "landing": Contender(
        "lunarlander/lunarlander.toml", (200,), arguments=("--set", "stop.mean_return=235")
    ),
    "settings": Contender(
        "lunarlander/lunarlander.toml",
        (200,),
        arguments=("--set", "stop.mean_return=235"),
        task="lunarlander",
        peer=("--ours", "--every", "0.5", "--until-mean", "235"),
    ),
    "envpool": Contender(
        "lunarlander/lunarlander-envpool.toml", (200,), task="lunarlander", peer=("--envpool",)
    ),
    "a3c": Contender("lunarlander/a3c.toml", (200,), every=2.0),
    "thesis": Contender(
        "lunarlander/thesis.toml", every=0.0, arguments=("--children", "2", "--cores", "4")
    ),
    "continuous": Contender(
        "lunarlander/continuous.toml", (200,), every=1.0, task="continuous", goal=200.0
    ),
    "cartpole": Contender("cartpole/cartpole.toml", task="cartpole", goal=475.0),
    "dqn": Contender(
        "lunarlander/dqn.toml",
        (200,),
        every=2.0,
        arguments=("--children", "1"),
        choose=20,
        task="lunarlander",
        script="sb3_dqn.py",
    ),
    "dqn-cartpole": Contender(
        "cartpole/dqn.toml",
        (475,),
        every=1.0,
        arguments=("--children", "1"),
        choose=20,
        task="cartpole",
        script="sb3_dqn.py",
    ),
    "pendulum": Contender("pendulum/pendulum.toml", task="pendulum", goal=-200.0),
}


def ours(contender: Contender, seed: int) -> Row:
    """One run through `genkidama train`, and its snapshots judged."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "genkidama", "train", str(EXAMPLES / contender.file)]
        command += contender.arguments
        command += ["--seed", str(seed), "--out", str(out), "--episodes", "0"]
        if contender.every:
            command += [
                "--set",
                f"parent.checkpoint_seconds={contender.every}",
                "--set",
                "parent.checkpoint_keep=100000",
            ]
        launched = time.time()
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        total = time.time() - launched
        run = Run.open(out)
        history = list(run.history())
        joined = next(event["time"] for event in history if event["event"] == "join")
        snapshot = run.snapshot
        final = genkidama.evaluate(run.final, episodes=500, seed=seed)
        weights = run if contender.choose else run.best or run.final
        best = genkidama.evaluate(weights, episodes=500, seed=seed, choose=contender.choose)
        row: Row = {
            "seconds": total,
            "start_up": joined - launched,
            "steps": snapshot.steps,
            "episodes": snapshot.episodes,
            "updates": snapshot.updates,
            "final": [final.mean, final.std],
            "best": [best.mean, best.std],
        }
        if contender.goals:
            snapshots = _snapshots(run, joined - launched)
            with Judge(run.experiment, seed) as judge:
                for goal in contender.goals:
                    reached = _first(snapshots, goal, judge)
                    row[f"to_{goal}"] = reached and reached["seconds"]
                    row[f"steps_to_{goal}"] = reached and reached["steps"]
        if contender.goal:
            passed = (
                event["time"] - launched
                for event in history
                if event["event"] == "exchange" and (event["mean_return"] or -1e9) >= contender.goal
            )
            row["trained_to_goal"] = next(passed, None)
        if not contender.every:
            row["curve"] = [_judged(path, seed) for path in run.checkpoints]
        return row


def _judged(path: Path, seed: int) -> tuple[float, float, float]:
    evaluation = genkidama.evaluate(path, episodes=500, seed=seed)
    return checkpoints.load(path).snapshot.updates, evaluation.mean, evaluation.std


def _first(snapshots: list[Snapshot], goal: float, judge: Judge) -> Row | None:
    """The first snapshot with a mean of at least `goal`."""
    near = NEAR if goal <= 200 else NEAR / 2
    worth = [one for one in snapshots if (one.training_mean or -1e9) >= goal - near]
    return first(worth, goal, judge)


def _snapshots(run: Run, start_up: float) -> list[Snapshot]:
    """The checkpoints, oldest first, with seconds from the command's start."""
    found = []
    for path in run.checkpoints:
        loaded = checkpoints.load(path)
        state = loaded.snapshot
        found.append(
            Snapshot(state.seconds + start_up, state.steps, state.mean_return, loaded.vector)
        )
    return found


def theirs(contender: Contender, seed: int) -> Row:
    """One run of Stable-Baselines3's, judged by its own script."""
    own = f"learn --task {contender.task} --seed {seed} --limit 480"
    goal = ["--until-mean", str(contender.goal)] if contender.goal else []
    row = peer(contender.script, *own.split(), *contender.peer, *goal)
    start_up = row["startup_seconds"]
    for goal, reached in row.get("reached", {}).items():
        row[f"to_{goal}"] = reached and reached["seconds"] + start_up
        row[f"steps_to_{goal}"] = reached and reached["steps"]
    if contender.goal:
        passed = row["training_mean_passed"][str(round(contender.goal))]
        row["trained_to_goal"] = passed and passed + start_up
    return row


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("what", choices=("compare", "report", *CONTENDERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[201, 202, 203, 204, 205])
    parser.add_argument("--alone", action="store_true", help="without the peer's runs")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/learning.jsonl")
    options = parser.parse_args()
    done = store.read(options.results)

    def once(what: str, seed: int, measure: Callable[[Contender, int], Row], name: str) -> None:
        if any(row["what"] == what and row["seed"] == seed for row in done):
            return
        row = {"what": what, "seed": seed, **measure(CONTENDERS[name], seed)}
        done.append(row)
        store.append(options.results, row)
        quiet = ("snapshots", "curve", "judged")
        said = {key: value for key, value in row.items() if key not in quiet}
        print(json.dumps(said), flush=True)

    if options.what != "report":
        name = "lunarlander" if options.what == "compare" else options.what
        contender = CONTENDERS[name]
        beside = not options.alone and (
            options.what in ("compare", "envpool", "settings")
            or contender.goal
            or "dqn" in contender.script
        )
        for seed in options.seeds:
            once(name, seed, ours, name)
            if beside:
                once(f"peer-{name}", seed, theirs, name)
    report(done)


def report(rows: list[Row]) -> None:
    """Prints the passages and final means of all runs, and the ratios of ours to the peer."""
    by: dict[str, dict[int, Row]] = {}
    for row in rows:
        by.setdefault(row["what"], {})[row["seed"]] = row
    for what, runs in by.items():
        for seed, row in runs.items():
            found = [
                f"{key.removeprefix('to_')} after {seconds:.1f} s"
                for key, seconds in row.items()
                if key.startswith("to_") and seconds
            ]
            found += [
                f"{key.removeprefix('steps_to_')} after {steps:,} steps"
                for key, steps in row.items()
                if key.startswith("steps_to_") and steps
            ]
            if row.get("trained_to_goal"):
                found.append(f"training mean at the goal after {row['trained_to_goal']:.1f} s")
            if not what.startswith("peer"):
                (mean, std), (best, spread) = row["final"], row["best"]
                found.append(f"final {mean:.1f} ± {std:.1f}, best {best:.1f} ± {spread:.1f}")
            print(f"{what} seed {seed}: {row['seconds']:.0f} s; {'; '.join(found)}")
    for what in CONTENDERS:
        _summarize(what, by.get(what, {}), by.get(f"peer-{what}", {}))


def _summarize(what: str, ours: dict[int, Row], peers: dict[int, Row]) -> None:
    """Medians, the worst, and the ratios of the seeds that both have."""
    key = "trained_to_goal" if CONTENDERS[what].goal else "to_200"
    times = [row[key] for row in ours.values() if row.get(key)]
    if times:
        print(
            f"{what}: {len(times)} of {len(ours)} seeds, "
            f"median {median(times):.1f} s, worst {max(times):.1f} s"
        )
    ratios = [
        ours[seed][key] / row[key]
        for seed, row in peers.items()
        if row.get(key) and seed in ours and ours[seed].get(key)
    ]
    if ratios:
        print(
            f"{what}, ours / peer: median {median(ratios):.3f}, worst {max(ratios):.3f}, "
            f"n = {len(ratios)}"
        )


if __name__ == "__main__":
    main()
