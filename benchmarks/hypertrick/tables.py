"""HyperTrick and its improved forms against other methods, simulated at equal wall time on 8 nodes.

Claims: no method finds better configurations in the same time than the best form of HyperTrick here, by
more than the standard error of the difference; with the adaptive controller the completion rate stays near equation 9
where the published rule overshoots; equation 8's minimum cannot be reached, the corrected one is a lower bound.

Method: four kinds of learning curves (`benchmarks/hypertrick/problems.py`), 27 phases, each seed another draw of
all four; in `costly` and `unstable` the nodes' speeds differ by up to 2.2. All methods get the same draws and the same time:
that in which the 8 nodes could run what the paper's Hyperband runs, 46 configurations to 32.61 % (times `--budget`).
Phases under way at its end are lost. Regret is (f* − f(c)) / (f* − f_worst) in percent, f the true final value
and c the configuration whose trial's last report is the highest, the same rule for all. `all` is the mean over the
four problems, ± its standard error over the seeds; `behind` the paired difference to the best form of HyperTrick.

What the methods are:
- published: the paper's rule, W₀ = 46, r from equation 9. adaptive: with the controller.
- geometric: decisions after 1, 3, 9 phases, r = 2/3, trials as long as there is time. cohort: a cohort of 16 collects data, and
  all later trials are compared with all before them. cohorts anew: each 16 trials are a population of their own.
  halves: decisions after 1, 2, 4, 8, 16 phases and r = 1/2. Adaptive with a cohort and no end of trials has nothing to plan for.
- Hyperband: its brackets side by side, rounds go on where they stopped, begun again whenever a node would be idle. ASHA with promotions.
  Both may move trials between nodes at no cost, which HyperTrick never does.
- Optuna's pruners in an in-memory study that is asked in the order of virtual time: SuccessiveHalving from the
  first phase on with factors 3 and 2, Hyperband with the resource set to the 27 phases and its factor of 3, Median
  and Wilcoxon as they come. As Wilcoxon's documentation asks, its trials are told the average of their reports,
  stopped or not.
- TPE: Optuna's TPESampler as it comes (multivariate) proposes new trials; it is told stopped trials as pruned. For
  ASHA and Hyperband, whose trials wait rather than end, it is told each rung. 1/4 random: every fourth trial is
  drawn at random, which keeps TPE from settling too soon.

    python benchmarks/hypertrick.py                            about 12 minutes on one core
    python benchmarks/hypertrick.py --quick                    seconds, to see that it runs
    python benchmarks/hypertrick.py --results results.json     goes on where it was stopped
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.pruners import (
    BasePruner,
    HyperbandPruner,
    MedianPruner,
    SuccessiveHalvingPruner,
    WilcoxonPruner,
)
from optuna.trial import Trial, TrialState, create_trial

from benchmarks.hypertrick.methods import Asha, Halving, Independent, hypertrick, random_search
from benchmarks.hypertrick.problems import LEARNING_CURVES, LearningCurves, learning_curves
from benchmarks.hypertrick.simulator import Configuration, Method, simulate
from genkidama.hypertrick.equations import (
    completion_rate,
    eviction_rate_for,
    geometric_phases,
    hyperband_brackets,
    minimum_completion_rate,
    workers_before_selection,
)
from genkidama.hypertrick.rule import HyperTrick, Verdict

PHASES, CONFIGURATIONS, COMPLETION, COHORT = 27, 46, 0.3261, 16
EQUAL, UNEQUAL = (1.0,) * 8, (1.3, 1.3, 1.2, 1.2, 0.9, 0.9, 0.6, 0.6)
SPEEDS = {"steady": EQUAL, "crossing": EQUAL, "costly": UNEQUAL, "unstable": UNEQUAL}
SPACE: dict[str, BaseDistribution] = {f"x{i}": FloatDistribution(0.0, 1.0) for i in range(3)}


class Study:
    """An Optuna study in virtual time: proposes, and decides if it has a pruner.

    Args:
        tpe: whether TPE proposes; the problem's own random configurations otherwise.
        random_share: with TPE, every so many-th trial is random all the same; 0 for none.
        rungs: after so many phases a report is told as a trial of its own, for methods whose trials wait.
        average: tell the average of the reports as the value, for Wilcoxon.
    """

    def __init__(
        self,
        problem: LearningCurves,
        *,
        tpe: bool,
        pruner: BasePruner | None = None,
        random_share: int = 0,
        rungs: tuple[int, ...] = (),
        average: bool = False,
    ) -> None:
        sampler = (
            optuna.samplers.TPESampler(multivariate=True, seed=problem.seed)
            if tpe
            else optuna.samplers.RandomSampler(seed=problem.seed)
        )
        self.study = optuna.create_study(
            direction="maximize", sampler=sampler, pruner=pruner or optuna.pruners.NopPruner()
        )
        self.problem, self.tpe, self.random_share, self.rungs, self.average = (
            problem,
            tpe,
            random_share,
            rungs,
            average,
        )
        self.decides = pruner is not None
        self.trials: dict[int, Trial] = {}
        self.reports: dict[int, list[float]] = {}

    def propose(self, number: int) -> Configuration:
        if not self.tpe or (self.random_share and number % self.random_share == 0):
            self.study.enqueue_trial(
                dict(zip(SPACE, self.problem.configuration(number), strict=True))
            )
        trial = self.trials[number] = self.study.ask(SPACE)
        self.reports[number] = []
        return tuple(trial.params[name] for name in SPACE)

    def stop(self, number: int, phase: int, metric: float) -> bool:
        """What the pruner says; it hears the metric first."""
        if math.isnan(metric):
            return True
        self.trials[number].report(metric, phase)
        return phase < PHASES - 1 and self.trials[number].should_prune()

    def observe(self, number: int, phase: int, metric: float, goes_on: bool) -> None:
        trial = self.trials[number]
        if not math.isnan(metric):
            self.reports[number].append(metric)
            if not self.decides:
                trial.report(metric, phase)
        if self.rungs:
            if not math.isnan(metric) and phase + 1 in self.rungs:
                done = phase == PHASES - 1
                self.study.add_trial(
                    create_trial(
                        state=TrialState.COMPLETE if done else TrialState.PRUNED,
                        value=metric if done else None,
                        params=trial.params,
                        distributions=SPACE,
                        intermediate_values={phase: metric},
                    )
                )
            if not goes_on:
                self.study.tell(trial, state=TrialState.FAIL)  # what it was is in its rungs
        elif goes_on:
            return
        elif math.isnan(metric):
            self.study.tell(trial, state=TrialState.FAIL)
        elif self.average:
            self.study.tell(trial, statistics.fmean(self.reports[number]))
        elif phase == PHASES - 1:
            self.study.tell(trial, metric)
        else:
            self.study.tell(trial, state=TrialState.PRUNED)


@dataclass(frozen=True)
class Contestant:
    """A method; `pruner` is set instead of `method` where Optuna decides."""

    name: str
    ours: bool
    method: Callable[[int], Method] | None = None
    pruner: Callable[[], BasePruner] | None = None
    tpe: bool = False
    random_share: int = 0
    rungs: tuple[int, ...] = ()

    def run(self, name: str, seed: int, budget: float) -> list[float]:
        """Regret in percent, completion rate, number of trials, time to the best."""
        problem = learning_curves(name, seed, phases=PHASES)
        limit = budget * CONFIGURATIONS * COMPLETION * PHASES / 8
        study = Study(
            problem,
            tpe=self.tpe,
            pruner=self.pruner() if self.pruner else None,
            random_share=self.random_share,
            rungs=self.rungs,
            average="Wilcoxon" in self.name,
        )
        method = Independent(PHASES, study.stop) if self.method is None else self.method(seed)
        if self.tpe or self.pruner:
            outcome = simulate(
                problem,
                method,
                SPEEDS[name],
                limit=limit,
                propose=study.propose,
                observe=study.observe,
            )
        else:
            outcome = simulate(problem, method, SPEEDS[name], limit=limit)
        return [
            100 * problem.regret_of(outcome),
            outcome.completion_rate,
            len(outcome.configurations),
            outcome.time_to_best,
        ]


def _rule(seed: int, *, budget: float = 1.0, adaptive: bool = False) -> Method:
    """The published rule, W₀ fitted to the time."""
    workers = round(budget * CONFIGURATIONS)
    rate = eviction_rate_for(COMPLETION, PHASES)
    return hypertrick(
        HyperTrick(workers=workers, phases=PHASES, eviction_rate=rate, adaptive=adaptive, seed=seed)
    )


def _geometric(seed: int, *, factor: int = 3, anew: bool = False, adaptive: bool = False) -> Method:
    """Decisions at geometric phases, a cohort of 16 that collects data; with `anew`, each 16 trials are a population of their own."""

    def rule(workers: int) -> HyperTrick:
        return HyperTrick(
            workers=workers,
            phases=PHASES,
            eviction_rate=1 - 1 / factor,
            decide_after=geometric_phases(PHASES, factor),
            cohort=COHORT,
            adaptive=adaptive,
            seed=seed,
        )

    if not anew:
        return hypertrick(rule(1_000_000), endless=True)
    rules: dict[int, HyperTrick] = {}

    def stop(trial: int, phase: int, metric: float) -> bool:
        return (
            rules.setdefault(trial // COHORT, rule(COHORT)).report(trial, phase, metric)
            is Verdict.STOP
        )

    return Independent(PHASES, stop)


def contestants(budget: float) -> list[Contestant]:
    hyperband = [bracket.rounds for bracket in hyperband_brackets(PHASES)]
    thirds, halves = (1, 3, 9, 27), (1, 2, 4, 8, 16, 27)

    def halving_pruner(factor: int) -> Callable[[], BasePruner]:
        return lambda: SuccessiveHalvingPruner(min_resource=1, reduction_factor=factor)

    ours = [
        Contestant("HyperTrick, published", True, lambda seed: _rule(seed, budget=budget)),
        Contestant(
            "HyperTrick, adaptive", True, lambda seed: _rule(seed, budget=budget, adaptive=True)
        ),
        Contestant(
            "HyperTrick, geometric + cohorts anew", True, lambda seed: _geometric(seed, anew=True)
        ),
        Contestant(
            "HyperTrick, geometric + cohorts anew + adaptive",
            True,
            lambda seed: _geometric(seed, anew=True, adaptive=True),
        ),
        Contestant("HyperTrick, geometric + cohort", True, _geometric),
        Contestant("HyperTrick, halves + cohort", True, lambda seed: _geometric(seed, factor=2)),
    ]
    others = [
        Contestant("random search", False, lambda seed: random_search(PHASES)),
        Contestant("Hyperband", False, lambda seed: Halving(hyperband, repeat=True), rungs=thirds),
        Contestant("ASHA, η = 3", False, lambda seed: Asha(PHASES), rungs=thirds),
        Contestant("ASHA, η = 2", False, lambda seed: Asha(PHASES, factor=2), rungs=halves),
        Contestant("Optuna SuccessiveHalvingPruner, η = 3", False, pruner=halving_pruner(3)),
        Contestant("Optuna SuccessiveHalvingPruner, η = 2", False, pruner=halving_pruner(2)),
        Contestant(
            "Optuna HyperbandPruner",
            False,
            pruner=lambda: HyperbandPruner(min_resource=1, max_resource=PHASES),
        ),
        Contestant("Optuna MedianPruner", False, pruner=MedianPruner),
        Contestant("Optuna WilcoxonPruner", False, pruner=WilcoxonPruner),
    ]
    sampled = [replace(found, name=f"{found.name} + TPE", tpe=True) for found in [*ours, *others]]
    mixed = ("+ cohort +", "Hyperband", "ASHA", "SuccessiveHalving")
    return [
        *[*ours, *others, *sampled],
        *[
            replace(found, name=f"{found.name}, 1/4 random", random_share=4)
            for found in sampled
            if any(word in found.name for word in mixed)
        ],
    ]


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
        f"Regret in percent after the same wall time, mean ± standard error over {seeds} seeds; budget {budget:g}.",
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
        lines.append(
            f"| {'**' * contestant.ours}{contestant.name}{'**' * contestant.ours} | {' | '.join(cells)} | "
            + "{:.1f} ± {:.1f} | ".format(*mean_and_error(overall[contestant.name]))
            + ("– | " if contestant.name == best else f"{behind:+.1f} ± {error:.1f} | ")
            + f"{statistics.fmean(run[1] for run in everything):.0%} | {statistics.fmean(run[2] for run in everything):.0f} |"
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
            f"Best on `{name}` alone: {first}; the best of ours is {behind:.1f} ± {error:.1f} behind it there."
        )
    return "\n".join(lines)


def overshoot(seeds: int) -> str:
    """Completion rates of whole searches, with and without the controller."""
    lines = [
        f"Completion rate of 100 workers on 8 nodes, all run to their end, mean ± standard error over {seeds} seeds.",
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
                f"| {phases} | {rate:.2%} | {name} | {expected:.2%} | {' | '.join(cells)} | {points[0]:+.1f} → {points[1]:+.1f} |"
            )
    return "\n".join(lines)


def lower_bounds() -> str:
    """Equation 8 and its correction against the worst that can be reported: each report below all before it."""
    lines = [
        "The least that can be run: every report is below all before it, so whoever is not let through by data collection is stopped.",
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
            f"| {workers} | {phases} | {rate:.2%} | {printed:.2%} | {corrected:.2%} | {outcome.completion_rate:.2%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument(
        "--budget", type=float, default=1.0, help="of time, in units of the paper's Hyperband"
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="a JSON file that keeps results, so that the run can be stopped and go on",
    )
    parser.add_argument("--quick", action="store_true", help="two seeds and a quarter of the time")
    arguments = parser.parse_args()
    seeds, budget = (2, 0.25) if arguments.quick else (arguments.seeds, arguments.budget)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    results = compare(seeds, budget, arguments.results)
    print(table(results, seeds, budget), overshoot(min(seeds, 20)), lower_bounds(), sep="\n\n")


if __name__ == "__main__":
    main()
