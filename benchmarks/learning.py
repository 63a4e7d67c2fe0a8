"""How soon and how well LunarLander is learned, beside Stable-Baselines3's PPO on the same cores.

Claims (`compare`): `lunarlander.toml` trains with two children of one core each and a real parent.
The mean of 500 sampled evaluation episodes reaches 200 in each of 5 fresh seeds. Beside the
wall-clock time of Stable-Baselines3's PPO with the zoo's settings, that takes at most a third in
the median, and never more than half. The mean reaches 250 within two minutes in 4 of the 5 seeds.
`a3c`: with `a3c.toml` the mean reaches 200 in each of 5 seeds, however long that takes. `thesis`:
the mean that `thesis.toml` reaches with 2 x 4 cores after 2,000 updates.

Method: runs of ours and of the peer alternate. Neither is evaluated while it trains. Snapshots are
set aside (ours: a checkpoint every 2 s; the peer: at most every 5 s) and judged afterwards by 500
sampled episodes each. The time of a snapshot counts from the start of the training command, imports
and start-up included. Snapshots are judged as soon as the mean training return comes near the goal
(within 30), which can only make a first passage later.

With `--envpool` both train in EnvPool's LunarLander, ours with `lunarlander-envpool.toml`, and both
are judged in Gymnasium's. That needs EnvPool in both environments.

Every run is a line in the results file, and is not repeated once it is there. Stop and go on at
will.

    python benchmarks/learning.py compare [--envpool] [--seeds 101 102 103 104 105] [--results FILE]
    python benchmarks/learning.py a3c | thesis | report
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import genkidama
from genkidama.system import checkpoint as checkpoints
from genkidama.system.run import Run

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples/lunarlander"
NEAR = 30.0
Row = dict[str, Any]


def ours(file: str, seed: int, *, children: int, cores: int, every: float, scan: bool) -> Row:
    """One run through `genkidama train`, and its snapshots judged."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [
            sys.executable,
            "-m",
            "genkidama",
            "train",
            str(EXAMPLES / file),
            "--children",
            str(children),
            "--cores",
            str(cores),
        ]
        command += ["--seed", str(seed), "--out", str(out), "--episodes", "0"]
        if scan:
            command += [
                "--set",
                f"parent.checkpoint_seconds={every}",
                "--set",
                "parent.checkpoint_keep=100000",
            ]
        launched = time.time()
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        total = time.time() - launched
        run = Run.open(out)
        history = list(run.history())
        joined = next(event["time"] for event in history if event["event"] == "join")
        snapshot = run.load().snapshot
        final = genkidama.evaluate(run.final, episodes=500, seed=seed)
        best = genkidama.evaluate(run.best or run.final, episodes=500, seed=seed)
        row: Row = {
            "seconds": total,
            "start_up": joined - launched,
            "steps": snapshot.steps,
            "episodes": snapshot.episodes,
            "updates": snapshot.updates,
            "final": [final.mean, final.std],
            "best": [best.mean, best.std],
        }
        if scan:
            row["to_200"] = _first(run, joined - launched, 200, seed)
        elif "thesis" in file:
            row["curve"] = [[Run(out).path.name, *_judged(path, seed)] for path in run.checkpoints]
        return row


def _judged(path: Path, seed: int) -> tuple[float, float, float]:
    evaluation = genkidama.evaluate(path, episodes=500, seed=seed)
    return checkpoints.load(path).snapshot.updates, evaluation.mean, evaluation.std


def _first(run: Run, start_up: float, goal: float, seed: int) -> float | None:
    """Seconds from the command's start to the first checkpoint with a mean of at least `goal`."""
    for path in run.checkpoints:
        snapshot = checkpoints.load(path).snapshot
        if snapshot.mean_return is not None and snapshot.mean_return >= goal - NEAR:
            if genkidama.evaluate(path, episodes=100, seed=seed + 1).mean < goal - NEAR / 2:
                continue  # a short look saves a long one; it may miss a passage, not invent one
            if genkidama.evaluate(path, episodes=500, seed=seed).mean >= goal:
                return snapshot.seconds + start_up
    return None


def peer(seed: int, *more: str) -> Row:
    """One run of Stable-Baselines3's PPO, judged by its own script."""
    python = ROOT / "benchmarks/.venv/bin/python"
    if not python.exists():
        sys.exit("the peers are not installed: make peers")
    command = [
        str(python),
        str(ROOT / "benchmarks/peers/sb3.py"),
        "learn",
        "--seed",
        str(seed),
        "--limit",
        "480",
        *more,
    ]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    row: Row = json.loads(text.splitlines()[-1])
    for goal in ("200", "250"):
        reached = row["reached"][goal]
        row[f"to_{goal}"] = reached and reached["seconds"] + row["startup_seconds"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("compare", "a3c", "thesis", "report"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103, 104, 105])
    parser.add_argument("--results", type=Path)
    parser.add_argument(
        "--envpool", action="store_true", help="compare: both train in EnvPool's LunarLander"
    )
    options = parser.parse_args()
    pool, extra = ("-envpool", ["--envpool"]) if options.envpool else ("", [])
    if options.results is None:
        options.results = ROOT / f"benchmarks/results/learning{pool}.jsonl"
    options.results.parent.mkdir(parents=True, exist_ok=True)
    done = (
        [json.loads(line) for line in options.results.read_text().splitlines()]
        if options.results.exists()
        else []
    )

    def once(what: str, seed: int, measure: Any) -> None:
        if any(row["what"] == what and row["seed"] == seed for row in done):
            return
        row = {"what": what, "seed": seed, **measure()}
        done.append(row)
        with options.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            json.dumps(
                {key: value for key, value in row.items() if key not in ("snapshots", "curve")}
            ),
            flush=True,
        )

    for seed in options.seeds:
        if options.what == "compare":
            once(
                "lunarlander",
                seed,
                lambda seed=seed: ours(
                    f"lunarlander{pool}.toml", seed, children=2, cores=1, every=2, scan=True
                ),
            )
            once("peer", seed, lambda seed=seed: peer(seed, *extra))
        elif options.what == "a3c":
            once(
                "a3c",
                seed,
                lambda seed=seed: ours("a3c.toml", seed, children=2, cores=1, every=10, scan=True),
            )
        elif options.what == "thesis":
            once(
                "thesis",
                seed,
                lambda seed=seed: ours(
                    "thesis.toml", seed, children=2, cores=4, every=0, scan=False
                ),
            )
    report(done)


def report(rows: list[Row]) -> None:
    """Prints the passages and final means of all runs, and the ratios of ours to the peer."""
    by = {
        what: {row["seed"]: row for row in rows if row["what"] == what}
        for what in ("lunarlander", "peer", "a3c", "thesis")
    }
    for what in ("lunarlander", "a3c", "thesis"):
        for seed, row in by[what].items():
            reached = {goal: row.get(f"to_{goal}") for goal in (200, 250)}
            passages = ", ".join(
                f"{goal} after {seconds:.1f} s" for goal, seconds in reached.items() if seconds
            )
            (mean, std), (best, spread) = row["final"], row["best"]
            print(
                f"{what} seed {seed}: final {mean:.1f} ± {std:.1f}, "
                f"best {best:.1f} ± {spread:.1f}, {row['seconds']:.0f} s; {passages}"
            )
    ratios = []
    for seed, row in by["peer"].items():
        theirs = row["to_200"]
        print(
            f"Stable-Baselines3 PPO seed {seed}: 200 after {theirs} s, 250 after {row['to_250']} s"
        )
        if seed in by["lunarlander"] and theirs and by["lunarlander"][seed]["to_200"]:
            ratios.append(by["lunarlander"][seed]["to_200"] / theirs)
    if ratios:
        print(
            f"time to 200, ours / peer: median {median(ratios):.3f} (goal 1/3), "
            f"worst {max(ratios):.3f} (goal 1/2), n = {len(ratios)}"
        )


if __name__ == "__main__":
    main()
