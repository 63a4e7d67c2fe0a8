"""What `python -m studies.hypertrick` prints: regret, completion rates, bounds."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pathlib import Path

from genkidama.plugins.hypertrick.rule import (
    HyperTrick,
    completion_rate,
    eviction_rate_for,
    minimum_completion_rate,
    workers_before_selection,
)
from studies.hypertrick.contestants import COMPLETION, EQUAL, PHASES, SPEEDS, contestants
from studies.hypertrick.methods import Independent, hypertrick
from studies.hypertrick.problems import LEARNING_CURVES, learning_curves
from studies.hypertrick.simulator import simulate

__all__ = ["compare", "lower_bounds", "overshoot", "table"]


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


def overshoot(seeds: int) -> str:
    """Completion rates of whole searches, with and without the controller."""
    lines = [
        "Completion rate of 100 workers on 8 nodes, all run to their end, "
        f"mean ± standard error over {seeds} seeds.",
        "",
        "| phases | r | problem | expected (eq. 9) | published | adaptive | points over |",
        "|---|---|---|---|---|---|---|",
    ]
    for phases, rate in ((10, 0.25), (PHASES, eviction_rate_for(COMPLETION, PHASES))):
        expected = completion_rate(rate, phases)
        for name in LEARNING_CURVES:
            reached: dict[bool, list[float]] = {False: [], True: []}
            for adaptive, found in reached.items():
                for seed in range(seeds):
                    rule = HyperTrick(
                        workers=100, phases=phases, eviction_rate=rate, adaptive=adaptive, seed=seed
                    )
                    outcome = simulate(
                        learning_curves(name, seed, phases=phases), hypertrick(rule), SPEEDS[name]
                    )
                    found.append(100 * outcome.completion_rate)
            cells = [
                "{:.1f} ± {:.1f} %".format(*mean_and_error(found)) for found in reached.values()
            ]
            points = [statistics.fmean(found) - 100 * expected for found in reached.values()]
            lines.append(
                f"| {phases} | {rate:.2%} | {name} | {expected:.2%} | {' | '.join(cells)} "
                f"| {points[0]:+.1f} → {points[1]:+.1f} |"
            )
    return "\n".join(lines)


def lower_bounds() -> str:
    """Equation 8 and its correction in the worst case: each report is below all earlier ones."""
    lines = [
        "The least that can be run: every report is below all before it, "
        "so a trial that data collection does not let through is stopped.",
        "",
        "| workers | phases | r | equation 8 | corrected | reached |",
        "|---|---|---|---|---|---|",
    ]
    for workers, phases, rate in (
        (16, 4, 0.25),
        (100, 10, 0.25),
        (100, 5, 0.25),
        (100, PHASES, eviction_rate_for(COMPLETION, PHASES)),
    ):
        rule = HyperTrick(workers=workers, phases=phases, eviction_rate=rate)
        reports = 0

        def stop(trial: int, phase: int, metric: float, rule: HyperTrick = rule) -> bool:
            nonlocal reports
            reports += 1
            return rule.report(trial, phase, -float(reports)).value == "stop"

        outcome = simulate(
            learning_curves("steady", 0, phases=phases), Independent(phases, stop, workers), EQUAL
        )
        printed = minimum_completion_rate(rate, phases)
        corrected = (
            1
            + sum(workers_before_selection(workers, rate, phase) for phase in range(phases - 1))
            / workers
        ) / phases
        assert outcome.completion_rate >= corrected - 1e-12 > printed - 1e-12
        lines.append(
            f"| {workers} | {phases} | {rate:.2%} | {printed:.2%} | {corrected:.2%} "
            f"| {outcome.completion_rate:.2%} |"
        )
    return "\n".join(lines)
