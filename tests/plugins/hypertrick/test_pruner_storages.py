"""The pruner with the storages that processes share: SQLite, a journal file, PostgreSQL."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.storages.journal import JournalFileBackend

from genkidama.plugins.hypertrick import HyperTrick, Mode, Verdict, workers_before_selection
from genkidama.plugins.hypertrick.pruner import HyperTrickPruner, decisions
from tests.plugins.hypertrick.postgresql import running_postgresql
from tests.plugins.hypertrick.test_pruner import NAN, Event, replay

PROCESSES = 2
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


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    with running_postgresql() as address:
        yield address


@pytest.fixture(params=["sqlite", "journal", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql"))
    return (
        f"sqlite:///{tmp_path}/study.db"
        if request.param == "sqlite"
        else f"journal:{tmp_path}/study.log"
    )


@pytest.fixture
def storage(address: str) -> Iterator[optuna.storages.BaseStorage]:
    with storage_at(address) as opened:
        yield opened


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("forkserver")  # which has imported this once for all
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(
        PROCESSES, context, _start, (context.Barrier(PROCESSES, timeout=60),)
    ) as processes:
        yield processes


def _start(together: Any) -> None:
    global _together
    _together = together
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def script(seed: int, length: int) -> list[Event]:
    rng = np.random.default_rng(seed)
    actions = ["ask"] * 12 + ["report", "fail", "elsewhere"]
    return [
        Event(
            int(rng.integers(1000)),
            actions[rng.integers(len(actions))],
            float(rng.choice([0.0, 0.5, 1.0, NAN, rng.normal()])),
        )
        for _ in range(length)
    ]


def test_every_verdict_is_the_rules(address: str, storage: optuna.storages.BaseStorage) -> None:
    """In one direction a storage: which one is a matter of the pruner, and tested in memory."""
    direction = "minimize" if address.startswith("journal:") else "maximize"
    study = optuna.create_study(storage=storage, study_name="replay", direction=direction)
    found = replay(
        study,
        script(seed=5, length=30),
        workers=12,
        phases=3,
        eviction_rate=0.4,
        cohort=4,
        adaptive=direction == "minimize",
    )
    assert {d.mode for d in found} == {Mode.COLLECTION, Mode.SELECTION, Mode.FAILURE}
    assert {d.verdict for d in found if d.mode is Mode.SELECTION} == set(Verdict)


def work(address: str, settings: dict[str, Any], trials: int) -> dict[tuple[int, int], bool]:
    """One process: runs trials, and reports phase 0 together with the others.

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


def test_several_processes_decide_everything_once_and_let_the_right_number_pass(
    address: str, storage: optuna.storages.BaseStorage, pool: ProcessPoolExecutor
) -> None:
    settings = {"workers": 12, "phases": 3, "eviction_rate": 0.25}
    study = optuna.create_study(storage=storage, study_name="processes", direction="maximize")
    tasks = [
        pool.submit(work, address, settings, settings["workers"] // PROCESSES)
        for _ in range(PROCESSES)
    ]
    answers: dict[tuple[int, int], bool] = {}
    for task in tasks:
        theirs = task.result(timeout=100)
        assert not answers.keys() & theirs.keys()
        answers |= theirs
    found = decisions(study)
    assert {(d.trial, d.phase): d.verdict is Verdict.STOP for d in found} == {
        place: stop for place, stop in answers.items() if place[1] < 2
    }
    assert {trial for trial, phase in answers if phase == 0} == set(range(12))
    for phase in range(2):
        orders = [d.order for d in found if d.phase == phase]
        for order in range(1, len(orders) + 1):
            assert order <= sum(other <= order for other in orders) <= order + PROCESSES - 1
        passes = sum(d.phase == phase and d.mode is Mode.COLLECTION for d in found)
        least = workers_before_selection(12, 0.25, phase)
        assert least <= passes <= least + PROCESSES - 1
    late = optuna.load_study(
        study_name="processes", storage=storage, pruner=HyperTrickPruner(**settings)
    )
    asked_again = {}
    for frozen in study.trials:
        trial = optuna.Trial(late, frozen._trial_id)
        asked_again[frozen.number, frozen.last_step] = trial.should_prune()
    assert asked_again == {place: answers[place] for place in asked_again}


def test_threads_are_exact(storage: optuna.storages.BaseStorage) -> None:
    settings = {"workers": 16, "phases": 3, "eviction_rate": 0.25}
    study = optuna.create_study(
        storage=storage,
        study_name="threads",
        direction="maximize",
        pruner=HyperTrickPruner(**settings),
    )
    together = threading.Barrier(4, timeout=60)

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        for phase in range(3):
            trial.report(x, phase)
            if phase == 0:
                together.wait()
            if trial.should_prune():
                raise optuna.TrialPruned
        return x

    study.optimize(objective, n_trials=16, n_jobs=4)
    rule = HyperTrick(**settings)
    found = decisions(study)
    assert [rule.decide(d.trial, d.phase, d.metric) for d in found] == found
    assert [d.order for d in found if d.phase == 0] == list(range(1, 17))
