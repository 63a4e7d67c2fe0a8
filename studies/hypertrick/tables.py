"""The results of `python -m studies.hypertrick`, and their table."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pathlib import Path

from studies.hypertrick.contestants import PHASES, contestants
from studies.hypertrick.problems import LEARNING_CURVES


def compare(seeds: int, budget: float, path: Path | None) -> dict[str, list[float]]:
    """All results, by `method|problem|seed`; kept in `path` after each seed."""
    settings = {
        "budget": budget,
        "phases": PHASES,
        "problems": {name: repr(kind) for name, kind in LEARNING_CURVES.items()},
    }
    results: dict[str, list[float]] = {}
    if path is not None and path.exists():
        kept = json.loads(path.read_text())
        if kept["settings"] != settings:
            raise SystemExit(f"{path}: results of other settings; name another file")
        results = kept["results"]
    began = time.monotonic()
    for seed in range(seeds):
        for contestant in contestants(budget):
            for name in LEARNING_CURVES:
                key = f"{contestant.name}|{name}|{seed}"
                if key not in results:
                    results[key] = contestant.run(name, seed, budget)
        if path is not None:
            path.write_text(json.dumps({"settings": settings, "results": results}))
        print(
            f"seed {seed + 1} of {seeds}, {time.monotonic() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    return results


def mean_and_error(values: list[float]) -> tuple[float, float]:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def table(results: dict[str, list[float]], seeds: int, budget: float) -> str:
    everyone = contestants(budget)
    overall = {
        contestant.name: [
            statistics.fmean(
                results[f"{contestant.name}|{name}|{seed}"][0] for name in LEARNING_CURVES
            )
            for seed in range(seeds)
        ]
        for contestant in everyone
    }
    best = min(
        (contestant.name for contestant in everyone if contestant.ours),
        key=lambda name: statistics.fmean(overall[name]),
    )
    lines = [
        "Regret in percent after the same wall time, mean ± standard error "
        f"over {seeds} seeds; budget {budget:g}.",
        "",
        f"| method | {' | '.join(LEARNING_CURVES)} | all | behind the best of ours | α | trials |",
        f"|---|{'---|' * (len(LEARNING_CURVES) + 4)}",
    ]
    better = []
    for contestant in sorted(
        everyone, key=lambda contestant: statistics.fmean(overall[contestant.name])
    ):
        runs = {
            name: [results[f"{contestant.name}|{name}|{seed}"] for seed in range(seeds)]
            for name in LEARNING_CURVES
        }
        cells = [
            "{:.1f} ± {:.1f}".format(*mean_and_error([run[0] for run in found]))
            for found in runs.values()
        ]
        behind, error = mean_and_error(
            [a - b for a, b in zip(overall[contestant.name], overall[best], strict=True)]
        )
        if not contestant.ours and -behind > error:
            better.append(contestant.name)
        everything = [run for found in runs.values() for run in found]
        bold = "**" * contestant.ours
        lines.append(
            f"| {bold}{contestant.name}{bold} | {' | '.join(cells)} | "
            + "{:.1f} ± {:.1f} | ".format(*mean_and_error(overall[contestant.name]))
            + ("– | " if contestant.name == best else f"{behind:+.1f} ± {error:.1f} | ")
            + f"{statistics.fmean(run[1] for run in everything):.0%} | "
            + f"{statistics.fmean(run[2] for run in everything):.0f} |"
        )
    verdict = f"yes: {', '.join(better)}" if better else "no"
    lines += [
        "",
        f"Best of ours: {best}. Another method better by more than its standard error: {verdict}.",
    ]
    for name in LEARNING_CURVES:
        by_name = {
            c.name: [results[f"{c.name}|{name}|{seed}"][0] for seed in range(seeds)]
            for c in everyone
        }
        first = min(by_name, key=lambda found: statistics.fmean(by_name[found]))
        behind, error = mean_and_error(
            [a - b for a, b in zip(by_name[best], by_name[first], strict=True)]
        )
        lines.append(
            f"Best on `{name}` alone: {first}; "
            f"the best of ours is {behind:.1f} ± {error:.1f} behind it there."
        )
    return "\n".join(lines)
