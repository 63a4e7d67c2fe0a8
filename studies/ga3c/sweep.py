"""GA3C's speed against N_P, N_T and N_A, and whether PPS is TPS · t_max.

Claim, of the document (§4.2): each setting of predictors, trainers and agents makes another number
of trainings a second (TPS), and predictions a second (PPS) follow it, PPS ≈ TPS · t_max: what is
predicted is trained on. PPS is a little lower where episodes end, since rollouts there are shorter.
It is higher while a rollout is under way that the window cuts off.

Method: every setting of the grid in a window of its own, after a warm-up, with the document's Atari
network, no exchange and no dynamic adjustment. Rounds repeat the grid, so that a machine that
drifts does so for all settings alike. Medians of the rounds count.

Each window is a line of the results, and is not repeated once it is there.

    python -m studies.ga3c.sweep run                     27 settings, two rounds, 20 minutes
    python -m studies.ga3c.sweep run --agents 8 --trainers 1 --seconds 2 --rounds 1
    python -m studies.ga3c.sweep report                  prints the table
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.processes import command
from studies import store
from studies.ga3c.__main__ import WARM, drive, experiment

ROOT = Path(__file__).resolve().parents[2]

#: What makes one window another than the next, beside the round.
SETTING = ("example", "width", "device", "training_batch", "predictors", "trainers", "agents")

#: What a window takes beside its seconds: processes start, and warm up.
_AROUND = WARM + 6.0


def wanted(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The windows in their order, a round after the other."""
    common = {key: getattr(options, key) for key in SETTING[:4]}
    grid = itertools.product(options.predictors, options.trainers, options.agents)
    settings = [{**common, **dict(zip(SETTING[4:], each, strict=True))} for each in grid]
    return [{**each, "round": number} for number in range(options.rounds) for each in settings]


def missing(windows: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that have no row yet."""
    done = [{key: row[key] for key in (*SETTING, "round")} for row in rows]
    return [window for window in windows if window not in done]


def measure(window: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """One window: its setting, and what the backend measured."""
    options.wide = window["width"]
    settings = experiment(
        options,
        ga3c__predictors=window["predictors"],
        ga3c__trainers=window["trainers"],
        ga3c__agents=window["agents"],
        ga3c__max_agents=max(64, window["agents"]),
        ga3c__training_batch=window["training_batch"],
    )
    measured = drive(settings, options.seconds)
    t_max = settings.algorithm.batch_size
    return {**measured, **window, "t_max": t_max, "seconds": options.seconds}


def table(rows: list[dict[str, Any]]) -> str:
    """The settings by their TPS, the best first, medians of the rounds."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in SETTING), []).append(row)
    lines = [
        "| N_P | N_T | N_A | windows | TPS | PPS | PPS ÷ (TPS · t_max) | prediction batch | lag |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for windows in sorted(found.values(), key=lambda each: -median(row["tps"] for row in each)):
        first = windows[0]
        figures = {
            key: median(row[key] for row in windows)
            for key in ("tps", "pps", "prediction_batch", "lag")
        }
        share = median(row["pps"] / (row["tps"] * row["t_max"]) for row in windows)
        lines.append(
            f"| {first['predictors']} | {first['trainers']} | {first['agents']} | {len(windows)} "
            f"| {figures['tps']:.0f} | {figures['pps']:.0f} | {share:.2f} "
            f"| {figures['prediction_batch']:.1f} | {figures['lag']:.1f} |"
        )
    shares = [row["pps"] / (row["tps"] * row["t_max"]) for row in rows]
    if shares:
        span = f"between {min(shares):.2f} and {max(shares):.2f} in {len(rows)} windows"
        lines += ["", f"PPS ÷ (TPS · t_max) lies {span}."]
    return "\n".join(lines)


@command
def main(arguments: list[str] | None = None) -> int:
    parser = store.parser("ga3c.sweep", __doc__)
    parser.add_argument("what", choices=("run", "report"))
    for name, short, values in (
        ("predictors", "N_P", [1, 2, 4]),
        ("trainers", "N_T", [1, 2, 4]),
        ("agents", "N_A", [8, 16, 32]),
    ):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=values, help=short)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a window (default 10)")
    parser.add_argument("--training-batch", type=int, default=80)
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--example", default="pong", help="which of examples/atari")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=ROOT / "docs/results/ga3c-sweep.jsonl")
    options = parser.parse_args(arguments)
    rows = store.read(options.results)
    if options.what == "report":
        print(table(rows))
        return 0
    left = missing(wanted(options), rows)
    for number, window in enumerate(left):
        minutes = (len(left) - number) * (options.seconds + _AROUND) / 60.0
        row = measure(window, options)
        store.append(options.results, row)
        print(
            f"N_P {row['predictors']}, N_T {row['trainers']}, N_A {row['agents']:2}: "
            f"{row['tps']:.0f} TPS, {row['pps']:.0f} PPS; about {minutes:.0f} min left",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
