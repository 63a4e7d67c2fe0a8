"""One of several processes that prune trials of one study. It imports no more than it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend

from genkidama.plugins.hypertrick.pruner import HyperTrickPruner

#: What waits for the other processes, in each of them.
_together: Any = None


@contextmanager
def storage_at(address: str) -> Iterator[optuna.storages.BaseStorage]:
    """A storage, as each process opens one.

    Its connections are closed in the end, which Optuna leaves to the interpreter.
    """
    if address.startswith("journal:"):
        yield optuna.storages.JournalStorage(JournalFileBackend(address.removeprefix("journal:")))
        return
    storage = optuna.storages.RDBStorage(address)
    try:
        yield optuna.storages.get_storage(storage)
    finally:
        storage.remove_session()
        storage.engine.dispose()


def start(together: Any) -> None:
    """Begins a process."""
    global _together
    _together = together
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def work(address: str, settings: dict[str, Any], trials: int) -> dict[tuple[int, int], bool]:
    """Runs trials, and reports phase 0 together with the other processes.

    Gives, by trial and phase, whether the trial was to be pruned.
    """
    answers: dict[tuple[int, int], bool] = {}

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        for phase in range(settings["phases"]):
            trial.report(x, phase)
            if phase == 0:
                _together.wait()
            answers[trial.number, phase] = trial.should_prune()
            if answers[trial.number, phase]:
                raise optuna.TrialPruned
        return x

    with storage_at(address) as storage:
        study = optuna.load_study(
            study_name="processes", storage=storage, pruner=HyperTrickPruner(**settings)
        )
        study.optimize(objective, n_trials=trials)
    return answers
