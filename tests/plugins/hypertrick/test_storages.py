"""Storages that several processes share: the pruner in SQLite, a journal and PostgreSQL, a search
in PostgreSQL."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import optuna
import pytest

from genkidama.child.child import Child
from genkidama.plugins.hypertrick.pruner import HyperTrickPruner, decisions
from genkidama.plugins.hypertrick.rule import Mode, Verdict, workers_before_selection
from studies.faults.searches import check, study_at
from tests.helpers import eventually, history, running, url
from tests.plugins.hypertrick import pruner_process
from tests.plugins.hypertrick.postgresql import running_postgresql
from tests.plugins.hypertrick.pruner_process import storage_at, work
from tests.plugins.hypertrick.test_search_run import over, searching

PROCESSES = 2


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    with running_postgresql() as address:
        yield address


@pytest.fixture(params=["sqlite", "journal", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql"))
    return (
        f"sqlite:///{tmp_path}/study.db"
        if request.param == "sqlite"
        else f"journal:{tmp_path}/study.log"
    )


@pytest.fixture
def storage(address: str) -> Iterator[optuna.storages.BaseStorage]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with storage_at(address) as opened:
        yield opened
    optuna.logging.set_verbosity(before)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("forkserver")  # which has imported this once for all
    context.set_forkserver_preload([pruner_process.__name__])
    with ProcessPoolExecutor(
        PROCESSES, context, pruner_process.start, (context.Barrier(PROCESSES, timeout=60),)
    ) as processes:
        yield processes


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


@pytest.mark.usefixtures("impatient")
async def test_a_search_goes_on_in_postgresql(tmp_path: Path, postgresql: str) -> None:
    settings = searching(trials=5, storage=postgresql)
    out = tmp_path / "run"
    async with running(settings, out) as parent:
        location = url(parent.address)
        tasks = [
            asyncio.create_task(Child(location, name=name).serve()) for name in ("slow", "slower")
        ]
        await eventually(lambda: history(out, "trial_end"), "the end of a trial")
    async with running(settings, out, location.removeprefix("ws://")) as parent:
        await over(parent, *tasks)
    with study_at(postgresql, "run") as study:
        check(out, study.trials, settings)
    assert not (out / "study.db").exists()
