"""A curve that rises, the faster the better its learning rate; HyperTrick ends the slow ones."""

from __future__ import annotations

import math

import optuna
import optunahub

PHASES = 5


def objective(trial: optuna.Trial) -> float:
    rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
    value = 0.0
    for step in range(PHASES):
        value = (step + 1) / PHASES - abs(math.log10(rate) + 2.0) / 4.0
        trial.report(value, step)
        if trial.should_prune():
            raise optuna.TrialPruned()
    return value


if __name__ == "__main__":
    module = optunahub.load_module(package="pruners/hypertrick")
    pruner = module.HyperTrickPruner(workers=40, phases=PHASES, eviction_rate=0.25)
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    study.optimize(objective, n_trials=40)
    pruned = study.get_trials(states=[optuna.trial.TrialState.PRUNED])
    print(f"{len(pruned)} of 40 trials ended early; best rate {study.best_params['rate']:.3g}")
