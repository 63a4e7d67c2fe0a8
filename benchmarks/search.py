"""What a real search finds: HyperTrick, its improved form and random search, in the same time.

Question: which method finds the best configuration in the same time? The task is LunarLander with
A3C, over the space of HyperTrick's paper (learning rate, γ, t_max). Two seeds are too few to rank
the methods.

Method: `examples/lunarlander/search.toml` with real processes, two nodes of one core each. For each
seed, HyperTrick runs as published to the end of its trials. The others then get the same time.
`improved` decides after 1 and 3 of 9 phases, with a cohort of 16 that collects data, and a TPE
sampler. `random` stops nothing. Both begin new trials as long as there is time. HyperTrick and
random draw the same configurations in the same order. A trial's score is its mean training return
over 100 episodes at the end of its last phase. Each search's best trial is the best completed one,
as `docs/hypertrick.md` defines it. It then plays 500 episodes with sampled actions, since the best
of many noisy scores flatters. At last the best configuration of all is trained as a plain run with
two children, beside `lunarlander.toml`, for two minutes each.

A benchmark can be resumed: finished work under --out is not repeated, interrupted work goes on.

    python benchmarks/search.py --out runs/search         two seeds, one and a half hours
    python benchmarks/search.py --out runs/quick --seeds 1 --set search.trials=4 \\
        --set search.phase_steps=5000 --no-training
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import genkidama
from genkidama.local.cluster import search
from genkidama.overrides import parse_settings
from genkidama.tuning.findings import Findings, read
from genkidama.tuning.storage import open_study

EXAMPLES = Path(__file__).parents[1] / "examples" / "lunarlander"

METHODS: dict[str, dict[str, Any]] = {
    "hypertrick": {},
    "improved": {
        "search.decisions": "geometric",
        "search.eviction_rate": 2 / 3,
        "search.cohort": 16,
        "search.sampler": "tpe",
        "search.trials": 1000,
    },
    "random": {"search.method": "random", "search.trials": 1000},
}


def run_search(
    name: str, seed: int, seconds: float | None, changes: dict[str, Any], out: Path
) -> dict[str, Any]:
    """One search, its figures, and an evaluation of its best trial."""
    result = out / "result.json"
    if result.exists():
        return dict(json.loads(result.read_text()))
    settings = {
        **METHODS[name],
        "seed": seed,
        **{key: value for key, value in changes.items() if key not in METHODS[name]},
    }
    if seconds is not None:
        settings["search.seconds"] = seconds
    experiment = genkidama.Experiment.load(EXAMPLES / "search.toml").with_settings(settings)
    begun = (out / "study.db").exists()
    run = search(
        experiment,
        nodes=2,
        cores=1,
        out=None if begun else out,
        resume=out if begun else None,
        progress=True,
    )
    findings = read(open_study(f"sqlite:///{out.absolute() / 'study.db'}", out.name))
    best = findings.best
    if best is None:
        raise SystemExit(f"{out}: no trial has a score; make the search longer")
    evaluation = genkidama.evaluate(run.path / "trials" / f"{best.number:04d}", progress=True)
    found = {
        "method": name,
        "seed": seed,
        "seconds": findings.search_time,
        "trials": len(findings.trials),
        "completed": len(findings.of_state("completed")),
        "stopped": len(findings.of_state("stopped")),
        "phases": sum(len(trial.phases) for trial in findings.trials),
        "occupancy": findings.occupancy,
        "completion_rate": findings.completion_rate,
        "time_to_best": best.phases[-1].end,
        "score": best.score,
        "evaluation": evaluation.mean,
        "deviation": evaluation.std,
        "trial": best.number,
        "params": best.params,
        "best_at": curve(findings),
    }
    result.write_text(json.dumps(found, indent=1))
    return found


def curve(findings: Findings) -> list[tuple[float, float]]:
    """How the best score rose, by search time in seconds."""
    return [(round(step.time, 1), round(step.score, 1)) for step in findings.improvements]


def train(experiment: genkidama.Experiment, out: Path) -> float:
    """A plain run of this experiment; the mean of its evaluation."""
    run = genkidama.Run(out)
    if run.evaluation is None:
        run = genkidama.train(experiment, children=2, cores=1, out=out, progress=True)
    assert run.evaluation is not None
    return float(run.evaluation["mean"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting of all searches",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=120.0,
        help="length of the trainings at the end (default 120)",
    )
    parser.add_argument(
        "--no-training", action="store_true", help="leave out the trainings at the end"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    changes = parse_settings(options.set)
    found: list[dict[str, Any]] = []
    for seed in options.seeds:
        seconds = None
        for name in METHODS:
            result = run_search(name, seed, seconds, changes, options.out / f"{name}-{seed}")
            seconds = seconds or result["seconds"]
            found.append(result)
    show(found)
    if not options.no_training:
        compare_with_ours(found, options)


def show(found: list[dict[str, Any]]) -> None:
    print(
        "\n| method | seed | time s | trials (completed, stopped) | phases | occupancy "
        "| best after s | best score | played |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for each in found:
        print(
            f"| {each['method']} | {each['seed']} | {each['seconds']:.0f} "
            f"| {each['trials']} ({each['completed']}, {each['stopped']}) | {each['phases']} "
            f"| {each['occupancy']:.0%} | {each['time_to_best']:.0f} | {each['score']:.1f} "
            f"| {each['evaluation']:.1f} ± {each['deviation']:.1f} |"
        )
    for name in METHODS:
        mine = [each["evaluation"] for each in found if each["method"] == name]
        print(f"{name}: mean of the played scores {statistics.mean(mine):.1f}")
    for each in found:
        print(f"{each['method']}, seed {each['seed']}: trial {each['trial']}: {each['params']}")


def compare_with_ours(found: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """The best configuration as a plain run, beside our own settings, for the same time."""
    best = max(found, key=lambda each: each["evaluation"])
    plain = {**genkidama.Experiment.load(EXAMPLES / "search.toml").to_dict()}
    del plain["search"]
    time = {"stop.seconds": options.seconds}
    searched = genkidama.Experiment.from_dict(plain).with_settings({**best["params"], **time})
    ours = genkidama.Experiment.load(EXAMPLES / "lunarlander.toml").with_settings(time)
    print(
        f"\nthe best configuration ({best['method']}, seed {best['seed']}) and lunarlander.toml, "
        f"two children for {options.seconds:g} s:"
    )
    for seed in options.seeds:
        for name, experiment in (("searched", searched), ("lunarlander", ours)):
            mean = train(experiment.with_settings({"seed": seed}), options.out / f"{name}-{seed}")
            print(f"{name}, seed {seed}: {mean:.1f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
