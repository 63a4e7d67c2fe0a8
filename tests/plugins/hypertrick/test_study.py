"""A search's study, a real one: whose it is, what it draws, and what is written into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.hypertrick.records import PhaseRecord
from genkidama.plugins.hypertrick.rule import Mode, Verdict
from genkidama.plugins.hypertrick.search import SearchTrial
from genkidama.plugins.hypertrick.study import Study

SPACE: dict[str, Any] = {
    "optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True},
    "algorithm.batch_size": {"low": 64, "high": 130, "step": 32},
    "network.hidden": [[8], [8, 8]],
}


def searching(seed: int = 0, **search: Any) -> Experiment:
    plan = {"trials": 8, "phases": 3, "phase_steps": 20, "space": SPACE, **search}
    return Experiment.from_dict({"seed": seed, "search": plan})


@contextmanager
def opened(out: Path, resumes: bool = False, seed: int = 0, **search: Any) -> Iterator[Study]:
    study = Study(searching(seed, **search), out, resumes)
    try:
        yield study
    finally:
        study.close()


def refused(out: Path, resumes: bool = False, **search: Any) -> str:
    """Why there is no such study, in one line."""
    with pytest.raises(ConfigurationError) as error, opened(out, resumes, **search):
        pass
    text = str(error.value)
    assert "\n" not in text
    return text


def optunas(out: Path) -> list[optuna.trial.FrozenTrial]:
    """The trials as anybody reads them."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{out}/study.db")
    try:
        return optuna.load_study(storage=storage, study_name=out.name).trials
    finally:
        storage.remove_session()
        storage.engine.dispose()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {
                "space": {
                    **SPACE,
                    "optimizer.learning_rate": {"low": 1e-5, "high": 1.0, "log": True},
                }
            },
            "its space had optimizer.learning_rate = {'low': 1e-05, 'high': 0.01, 'log': True}, "
            "and now has {'low': 1e-05, 'high': 1.0, 'log': True}",
        ),
        (
            {"space": {**SPACE, "algorithm.gamma": [0.9]}},
            "its space had algorithm.gamma = None, and now has {'choices': [0.9]}",
        ),
        ({"phases": 5}, "its phases was 3, and now is 5"),
        ({"phase_steps": 40}, "its phase_length was 20, and now is 40"),
    ],
)
def test_a_study_of_another_search_is_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with opened(tmp_path):
        pass
    text = refused(tmp_path, resumes=True, **changes)
    assert problem in text
    assert text.startswith(f"the study {tmp_path.name!r} in 'sqlite:///")
    assert text.endswith("choose another directory with --out")


def test_a_study_that_somebody_else_made_is_refused(tmp_path: Path) -> None:
    optuna.create_study(storage=f"sqlite:///{tmp_path}/all.db", study_name="mine").ask()
    text = refused(tmp_path / "mine", resumes=True, storage=f"sqlite:///{tmp_path}/all.db")
    assert "the study 'mine' was not made by Genkidama" in text


@pytest.mark.parametrize(
    ("search", "problem"),
    [
        (
            {"sampler": "tpe", "sampler_options": {"sed": 1}},
            "search.sampler = 'tpe' with search.sampler_options = ",
        ),
        ({"sampler": "no.such:Sampler"}, "search.sampler = 'no.such:Sampler'"),
        (
            {"sampler": "collections:Counter"},
            "search.sampler = 'collections:Counter': is no sampler of Optuna's",
        ),
    ],
)
def test_a_sampler_that_cannot_be_made(
    tmp_path: Path, search: dict[str, Any], problem: str
) -> None:
    assert problem in refused(tmp_path, **search)


async def test_the_seed_gives_the_same_configurations_and_a_restart_others(tmp_path: Path) -> None:
    async def drawn(name: str, seed: int, resumes: bool = False) -> list[dict[str, Any]]:
        (tmp_path / name).mkdir(exist_ok=True)
        with opened(tmp_path / name, resumes, seed) as study:
            return [(await study.sample())[1] for _ in range(3)]

    first = await drawn("first", 1)
    assert await drawn("second", 1) == first != await drawn("third", 2)
    rates = [each["optimizer.learning_rate"] for each in first + await drawn("first", 1, True)]
    assert len(set(rates)) == 6


async def test_settings_are_drawn_from_the_space_and_come_back(tmp_path: Path) -> None:
    with opened(tmp_path) as study:
        drawn = [await study.sample() for _ in range(6)]
        assert [number for number, _ in drawn] == list(range(6))
        assert [(trial.number, trial.params) for trial in study.trials()] == drawn
    for _, params in drawn:
        assert 1e-5 <= params["optimizer.learning_rate"] <= 1e-2
        assert params["algorithm.batch_size"] in (64, 96, 128)
        assert params["network.hidden"] in ([8], [8, 8])


class MoodySampler(optuna.samplers.RandomSampler):
    """Fails at the second setting that it is asked for, in its own way."""

    asked = 0

    def sample_independent(self, *arguments: Any, **options: Any) -> Any:
        self.asked += 1
        if self.asked == 2:
            raise ZeroDivisionError("not today\nor tomorrow")
        return super().sample_independent(*arguments, **options)


async def test_a_sampler_that_fails_leaves_no_trial_over(tmp_path: Path) -> None:
    with opened(tmp_path, sampler=f"{__name__}:MoodySampler") as study:
        with pytest.raises(EnvironmentFailure, match=r"in 'sqlite:.*not today$"):
            await study.sample()
        number, params = await study.sample()
        assert (number, params.keys()) == (0, SPACE.keys())
        assert len(study.trials()) == 1


def reported(metric: float | None, verdict: Verdict = Verdict.CONTINUE) -> PhaseRecord:
    mode = Mode.COLLECTION
    return PhaseRecord(
        phase=0, node="a", start=0.0, end=1.0, metric=metric, mode=mode, verdict=verdict
    )


async def test_what_is_written_twice_stands_there_once(tmp_path: Path) -> None:
    with opened(tmp_path, phases=1) as study:
        trials = [SearchTrial(window=1, number=(await study.sample())[0]) for _ in range(3)]
        done, failed, running = trials
        done.phases = [reported(5.0)]
        done.state = "completed"
        failed.phases = [reported(None, Verdict.STOP)]
        failed.state = "failed"
        failed.stop = "no memory"
        running.state = "running"
        for _ in range(2):
            await study.write([(trial, "trials/x") for trial in trials])
        assert [trial.state for trial in study.trials()] == ["completed", "failed", "running"]
    found = optunas(tmp_path)
    assert [trial.state for trial in found] == [
        TrialState.COMPLETE,
        TrialState.FAIL,
        TrialState.RUNNING,
    ]
    assert (found[0].value, found[0].intermediate_values) == (5.0, {0: 5.0})
    assert found[0].user_attrs["checkpoint"] == "trials/x"
    assert found[1].user_attrs["reason"] == "no memory"
