"""Decisions a second of HyperTrickPruner among 10,000 finished trials, beside Optuna's own pruners.

Claim: no decision reads the whole study. With 10,000 finished trials in memory HyperTrickPruner
makes at least 10 times the decisions of SuccessiveHalvingPruner and of MedianPruner, which go
through all trials. In an SQLite file it makes at least 0.7 of the decisions that the storage allows
(see `storage alone`). There the others may be as fast: HyperTrick commits every decision, while
Successive Halving writes only at its rungs, and Median never.

Method: one study has TRIALS trials. They have reported PHASES values and carry the attributes that
HyperTrick and Successive Halving leave. Each pruner has its own copy (in memory, or an SQLite
file). Eight trials run at a time and report in turn. A pruned or completed trial makes room for a
new one. Only `should_prune` is timed; in it HyperTrick and Successive Halving also write their
attributes. The pruners take turns of `--decisions` decisions, for `--rounds` rounds. A figure is
the median of the rounds, with the least and the most. A multiple is the median of the rounds'
multiples, which compare neighbours in time. `first` is a pruner's very first decision, in which
HyperTrick reads the whole study. `storage alone` lists the trials, as all pruners do, and writes
one attribute to a running trial.

    python benchmarks/pruner.py [--trials 10000] [--phases 10] [--rounds 15] [--decisions 40]
    [--storages memory sqlite]
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
from optuna.pruners import MedianPruner, SuccessiveHalvingPruner
from optuna.trial import FrozenTrial, TrialState
from processes import parser_of

from genkidama.plugins.hypertrick.pruner import HyperTrickPruner
from genkidama.plugins.hypertrick.rule import HyperTrick

NODES = 8
RATE = 0.25


def finished_trials(count: int, phases: int, rng: np.random.Generator) -> list[FrozenTrial]:
    """Trials with the values and attributes that a search of `count` leaves if it stops none."""
    rule = HyperTrick(workers=count, phases=phases, eviction_rate=RATE)
    trials = []
    for number in range(count):
        values = (rng.normal() + 0.3 * rng.normal(size=phases)).tolist()
        attributes: dict[str, object] = {}
        for phase in rule.decide_after:
            decision = rule.decide(number, phase, values[phase])
            attributes[f"hypertrick:{phase}"] = {
                "trial": number,
                "step": phase,
                "order": decision.order,
                "worse": decision.worse,
                "mode": decision.mode.value,
                "verdict": decision.verdict.value,
            }
        rung = 0
        while 4**rung < phases:  # Successive Halving's default reduction factor
            attributes[f"completed_rung_{rung}"] = values[4**rung]
            rung += 1
        trials.append(
            optuna.create_trial(
                value=values[-1],
                intermediate_values=dict(enumerate(values)),
                system_attrs=attributes,
            )
        )
    return trials


def fill(file: Path, trials: list[FrozenTrial]) -> None:
    """An SQLite study with these trials, written straight to Optuna's tables.

    `add_trials` takes a quarter of an hour.
    """
    optuna.create_study(storage=f"sqlite:///{file}", study_name="study", direction="maximize")
    with sqlite3.connect(file) as base:
        for number, trial in enumerate(trials):
            key = number + 1
            times = [str(trial.datetime_start), str(trial.datetime_complete)]
            base.execute(
                "INSERT INTO trials VALUES (?, ?, 1, 'COMPLETE', ?, ?)", (key, number, *times)
            )
            base.execute(
                "INSERT INTO trial_values VALUES (NULL, ?, 0, ?, 'FINITE')", (key, trial.value)
            )
            rows = [(key, name, json.dumps(value)) for name, value in trial.system_attrs.items()]
            base.executemany("INSERT INTO trial_system_attributes VALUES (NULL, ?, ?, ?)", rows)
            base.executemany(
                "INSERT INTO trial_intermediate_values VALUES (NULL, ?, ?, ?, 'FINITE')",
                [(key, step, value) for step, value in trial.intermediate_values.items()],
            )
    base.close()


class Search:
    """A study under one pruner, with its running trials."""

    def __init__(self, study: optuna.Study, phases: int) -> None:
        self.study = study
        self.phases = phases
        self.rng = np.random.default_rng(1)
        self.running = [study.ask() for _ in range(NODES)]
        self.done = [0] * NODES

    def decide(self, count: int) -> float:
        """Makes `count` decisions, and returns their rate a second."""
        spent = 0.0
        for n in range(count):
            node = n % NODES
            trial, phase = self.running[node], self.done[node]
            trial.report(self.rng.normal(), phase)
            began = time.perf_counter()
            prune = trial.should_prune()
            spent += time.perf_counter() - began
            self.done[node] += 1
            if (
                prune or self.done[node] == self.phases - 1
            ):  # after the last phase HyperTrick decides nothing
                self.study.tell(trial, state=TrialState.PRUNED)
                self.running[node], self.done[node] = self.study.ask(), 0
        return count / spent

    def storage_alone(self, count: int) -> float:
        """Lists the trials and writes an attribute, `count` times; returns the rate a second."""
        record = {
            "trial": 0,
            "step": 0,
            "order": 10_000,
            "worse": 5_000,
            "mode": "selection",
            "verdict": "continue",
        }
        began = time.perf_counter()
        for n in range(count):
            self.study.get_trials(deepcopy=False)
            self.study._storage.set_trial_system_attr(
                self.running[n % NODES]._trial_id, "benchmark", record
            )
        return count / (time.perf_counter() - began)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--phases", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--decisions", type=int, default=40)
    parser.add_argument(
        "--storages", nargs="+", choices=["memory", "sqlite"], default=["memory", "sqlite"]
    )
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
        "HyperTrickPruner": lambda: HyperTrickPruner(
            workers=options.trials + 1000, phases=options.phases, eviction_rate=RATE
        ),
        "SuccessiveHalvingPruner": lambda: SuccessiveHalvingPruner(min_resource=1),
        "MedianPruner": MedianPruner,
    }
    trials = finished_trials(options.trials, options.phases, np.random.default_rng(0))
    print(
        f"{options.trials:,} finished trials of {options.phases} phases, "
        f"optuna {optuna.__version__}; median of {options.rounds} rounds\n"
    )
    print(
        "| storage | pruner | decisions a second | least–most "
        "| HyperTrick's multiple of it | first, ms |"
    )
    print("|---|---|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="pruner-") as folder:
        for kind in options.storages:
            searches = {}
            filled = Path(folder, "filled.db")
            if kind == "sqlite":
                fill(filled, trials)
            for name, make in pruners.items():
                if kind == "sqlite":
                    shutil.copy(filled, Path(folder, f"{name}.db"))
                    study = optuna.load_study(
                        study_name="study", storage=f"sqlite:///{folder}/{name}.db", pruner=make()
                    )
                else:
                    study = optuna.create_study(direction="maximize", pruner=make())
                    study.add_trials(trials)
                searches[name] = Search(study, options.phases)
            first = {name: 1e3 / search.decide(1) for name, search in searches.items()}
            rates: dict[str, list[float]] = {name: [] for name in [*searches, "(storage alone)"]}
            for _ in range(options.rounds):
                rates["(storage alone)"].append(
                    searches["HyperTrickPruner"].storage_alone(options.decisions)
                )
                for name, search in searches.items():
                    rates[name].append(search.decide(options.decisions))
            for name, found in rates.items():
                rate = statistics.median(found)
                multiple = statistics.median(
                    ours / theirs
                    for ours, theirs in zip(rates["HyperTrickPruner"], found, strict=True)
                )
                begun = f"{first[name]:,.0f}" if name in first else ""
                print(
                    f"| {kind} | {name} | {rate:,.0f} | {min(found):,.0f}–{max(found):,.0f} "
                    f"| {multiple:.2f} | {begun} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
