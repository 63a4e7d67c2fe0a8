"""A search's study, a real one: whose it is, what it draws, and what is written into it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from wsgiref.util import setup_testing_defaults

import numpy as np
import optuna
import pytest
from optuna.trial import create_trial

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.hypertrick import study as study_module
from genkidama.plugins.hypertrick.records import PhaseRecord, StudySnapshot
from genkidama.plugins.hypertrick.rule import Mode, Verdict
from genkidama.plugins.hypertrick.search import SearchTrial
from genkidama.plugins.hypertrick.study import Importances, Study, importances, open_study, read
from studies.faults.searches import trials_of
from tests.plugins.hypertrick.studies import (
    COMPLETE,
    FAIL,
    PRUNED,
    RUNNING,
    make_study,
    make_tables,
    phase,
    url_of,
    written,
)
from tests.plugins.hypertrick.studies import SPACE as LANDER_SPACE

pytestmark = pytest.mark.usefixtures("ready_tables")

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


def test_a_study_of_another_search_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    wider = {"low": 1e-5, "high": 1.0, "log": True}
    for changes, problem in (
        (
            {"space": SPACE | {"optimizer.learning_rate": wider}},
            "its space had optimizer.learning_rate = {'low': 1e-05, 'high': 0.01, 'log': True}, "
            "and now has {'low': 1e-05, 'high': 1.0, 'log': True}",
        ),
        (
            {"space": {**SPACE, "algorithm.gamma": [0.9]}},
            "its space had algorithm.gamma = None, and now has {'choices': [0.9]}",
        ),
        ({"phases": 5}, "its phases was 3, and now is 5"),
        ({"phase_steps": 40}, "its phase_steps was 20, and now is 40"),
    ):
        text = refused(tmp_path, resumes=True, **changes)
        assert problem in text
        assert text.startswith(f"the study {tmp_path.name!r} in 'sqlite:///")
        assert text.endswith("choose another directory with --out")


def test_a_search_whose_trials_wait_keeps_its_rungs_and_another_may_change_its_rule(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, method="hyperband"):
        pass
    for changes, problem in (
        ({"method": "asha"}, "its method was 'hyperband', and now is 'asha'"),
        ({"reduction_factor": 2}, "its reduction_factor was 3, and now is 2"),
        ({"least_phases": 2}, "its least_phases was 1, and now is 2"),
        ({"restart": True}, "its restart was False, and now is True"),
    ):
        assert problem in refused(tmp_path, resumes=True, **{"method": "hyperband", **changes})
    with opened(tmp_path, resumes=True, method="hyperband", reduction_factor=3, trials=9):
        pass
    other = tmp_path / "other"
    other.mkdir()
    for method in ("hypertrick", "random"):
        with opened(other, resumes=True, method=method):
            pass
    assert "its method was 'random'" in refused(other, True, method="hyperband")


def test_a_study_that_somebody_else_made_is_refused(tmp_path: Path) -> None:
    make_tables(tmp_path / "all.db")
    optuna.create_study(storage=f"sqlite:///{tmp_path}/all.db", study_name="mine").ask()
    text = refused(tmp_path / "mine", resumes=True, storage=f"sqlite:///{tmp_path}/all.db")
    assert "the study 'mine' was not made by Genkidama" in text


@pytest.mark.parametrize(
    ("search", "problem"),
    [
        ({"sampler": "tpe", "sampler_options": {"sed": 1}}, "'tpe' with search.sampler_options = "),
        ({"sampler": "no.such:Sampler"}, "search.sampler = 'no.such:Sampler'"),
        ({"sampler": "collections:Counter"}, "'collections:Counter': is no sampler of Optuna's"),
    ],
)
def test_a_sampler_that_cannot_be_made(
    tmp_path: Path, search: dict[str, Any], problem: str
) -> None:
    assert problem in refused(tmp_path, **search)


@pytest.mark.parametrize("own", [True, False])
async def test_the_seed_gives_the_same_configurations_and_a_restart_others(
    tmp_path: Path, own: bool
) -> None:
    async def drawn(name: str, seed: int, resumes: bool = False) -> list[dict[str, Any]]:
        (tmp_path / name).mkdir(exist_ok=True)
        options = {"sampler_options": {"seed": seed}} if own else {}
        with opened(tmp_path / name, resumes, seed, **options) as study:
            return [(await study.sample())[1] for _ in range(3)]

    first = await drawn("first", 1)
    assert await drawn("second", 1) == first != await drawn("third", 2)
    rates = [each["optimizer.learning_rate"] for each in first + await drawn("first", 1, True)]
    assert len(set(rates)) == 6


async def test_only_a_study_without_trials_may_be_there_before_its_run(tmp_path: Path) -> None:
    for _ in range(2):  # killed before its first trial, it begins
        with opened(tmp_path) as study:
            assert not study.trials()
    with opened(tmp_path) as study:
        await study.sample()
    assert f"holds a study {tmp_path.name!r} of another run" in refused(tmp_path)


async def test_settings_are_drawn_from_the_space_and_come_back(tmp_path: Path) -> None:
    with opened(tmp_path) as study:
        drawn = [await study.sample() for _ in range(6)]
        assert [number for number, _ in drawn] == list(range(6))
        assert [(trial.number, trial.params) for trial in study.trials()] == drawn
        about = study._study.user_attrs["genkidama"]["experiment"]
    assert Experiment.from_dict(about) == searching()
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


async def test_a_trial_that_was_enqueued_with_an_unknown_value_fails_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as study:
        study._study.enqueue_trial({"network.hidden": "[64, 64]"})
        with pytest.raises(EnvironmentFailure, match=r"'\[64, 64\]' not in"):
            await study.sample()
        number, params = await study.sample()
        assert number == 1 and params.keys() == SPACE.keys()


async def test_a_sampler_that_has_proposed_all_there_is_ends_no_search(tmp_path: Path) -> None:
    space = {"network.hidden": [[8], [8, 8]]}
    with opened(tmp_path, sampler="optuna.samplers:BruteForceSampler", space=space) as study:
        for _ in range(2):
            trial: Any = SimpleNamespace(
                number=(await study.sample())[0], phases=[reported(1.0)], state="completed", stop=""
            )
            await study.write([(trial, "")])
        assert [each.state for each in study.trials()] == ["completed"] * 2


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
    found = trials_of(tmp_path)
    assert [trial.state for trial in found] == [COMPLETE, FAIL, RUNNING]
    assert (found[0].value, found[0].intermediate_values) == (5.0, {0: 5.0})
    assert found[0].user_attrs["checkpoint"] == "trials/x"
    assert found[1].user_attrs["reason"] == "no memory"


def test_a_study_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    make_study(tmp_path, trials=1, phases=1)
    with pytest.raises(ConfigurationError, match=r"study 'serch' is not in .*; it holds: search"):
        open_study(url_of(tmp_path), "serch")


def test_reading_a_study_makes_no_file_and_says_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"study 'search': there is no file .*study\.db"):
        open_study(url_of(tmp_path), "search")
    assert not list(tmp_path.iterdir())
    (tmp_path / "study.db").write_bytes(b"no database " * 1000)
    with pytest.raises(EnvironmentFailure, match=r"study 'search' in sqlite.*cannot be read"):
        open_study(url_of(tmp_path), "search")
    empty = Mock(side_effect=optuna.exceptions.StorageInternalError)
    monkeypatch.setattr(optuna.storages, "get_storage", empty)
    with pytest.raises(EnvironmentFailure, match="cannot be read: StorageInternalError"):
        open_study(url_of(tmp_path), "search")


def test_everything_that_a_real_search_wrote_is_read() -> None:
    study = make_study(until=700)
    findings = read(study)
    states = {"completed": COMPLETE, "stopped": PRUNED, "failed": FAIL, "running": RUNNING}
    for trial, frozen in zip(findings.trials, study.trials, strict=True):
        assert (trial.number, states[trial.state]) == (frozen.number, frozen.state)
        assert trial.params == frozen.params
        assert [p.phase for p in trial.phases] == list(frozen.intermediate_values)
        scores = [float(value) for value in frozen.intermediate_values.values()]
        assert str([p.score for p in trial.phases]) == str(scores)
        if trial.state == "completed":
            assert trial.score == frozen.value
        assert math.isnan(trial.score) == (trial.state == "failed" or not trial.phases)
    assert {trial.state for trial in findings.trials} == {*states}
    assert findings.best is not None and findings.best.number == study.best_trial.number
    assert list(findings.space) == list(LANDER_SPACE) and findings.settings.trials == 24


def test_a_metric_that_is_infinite_counts_as_no_number() -> None:
    findings = written((COMPLETE, [phase(0, "a", 0, 1, 2.0), phase(1, "a", 1, 2, math.inf)]))
    assert math.isnan(findings.trials[0].score) and findings.best is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"trials": "many"}, "attribute 'genkidama': trials = 'many': expected int"),
        ({"method": "grid"}, "method = 'grid': expected one of"),
        ({"space": {}}, "space: is empty"),
        ({"space": {"a.b": {"low": 2, "high": 1}}}, "a.b"),
    ],
)
def test_settings_that_cannot_be_read_are_named(settings: dict[str, Any], expected: str) -> None:
    study = make_study(until=-1.0, settings=settings)
    with pytest.raises(ConfigurationError) as error:
        read(study)
    text = str(error.value)
    assert expected in text and "study 'search'" in text and "\n" not in text


def test_phases_that_cannot_be_read_are_named() -> None:
    study = make_study(trials=3, phases=2)
    study.add_trial(create_trial(state=RUNNING, user_attrs={"phases": [{"phase": 0}]}))
    problem = r"study 'search', trial 3, attribute 'phases': .*missing required field"
    with pytest.raises(ConfigurationError, match=problem):
        read(study)


def test_a_study_that_is_no_search_or_minimizes_is_named() -> None:
    with pytest.raises(ConfigurationError, match="study 'mine' has no attribute 'genkidama'"):
        read(optuna.create_study(study_name="mine", direction="maximize"))
    study = optuna.create_study(study_name="down")
    study.set_user_attr("genkidama", {})
    with pytest.raises(ConfigurationError, match=r"study 'down': directions = \['minimize'\]"):
        read(study)


TWO = {"a.matters": {"low": 0.0, "high": 1.0}, "b.idle": {"low": 0.0, "high": 1.0}}


@pytest.fixture(autouse=True)
def small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few trees say the same of problems as plain as these."""
    monkeypatch.setattr(study_module, "_TREES", 8)


def matters(params: dict[str, Any], phase: int, rng: np.random.Generator) -> float:
    return float(100 * params["a.matters"] + phase + rng.normal())


def of(**options: Any) -> StudySnapshot:
    usual = {"space": TWO, "score": matters, "phases": 4, "trials": 30}
    return read(make_study(**{**usual, "failing": (), "not_a_number": (), **options}))


def found(findings: StudySnapshot) -> Importances:
    result = importances(findings)
    assert result is not None
    return result


def test_the_setting_that_matters_has_all_of_it_and_the_idle_one_nothing() -> None:
    findings = of(trials=40)
    result = found(findings)
    assert result == found(findings)
    assert list(result.shares) == ["a.matters", "b.idle"]
    assert result.shares["a.matters"] > 0.97
    assert math.fsum(result.shares.values()) == pytest.approx(1)
    assert result.trials == 40 and not result.caution


def test_the_stopped_trials_change_the_result() -> None:
    """`gate` decides who is stopped: without those who were, it looks harmless beside `fine`."""

    def gated(params: dict[str, Any], phase: int, rng: np.random.Generator) -> float:
        gate = 0.0 if params["a.gate"] < 0.5 else 100.0
        return gate + 20 * params["b.fine"] + phase + float(rng.normal())

    space = {"a.gate": {"low": 0.0, "high": 1.0}, "b.fine": {"low": 0.0, "high": 1.0}}
    everyone = of(space=space, score=gated, trials=100, phases=5, eviction_rate=0.4)
    good = tuple(t for t in everyone.of_state("completed") if t.score > 60)
    completed = StudySnapshot(everyone.name, everyone.settings, everyone.space, good)
    of_all = found(everyone)
    assert of_all.shares["a.gate"] > 0.8
    assert of_all.trials == len(everyone.ended) > len(everyone.of_state("completed"))
    assert found(completed).shares["a.gate"] < 0.3


def test_failed_trials_count_with_the_worst_score_there_is() -> None:
    """Every trial above one half crashes: the forest must know that from them alone."""
    findings = of(
        score=lambda p, phase, rng: 900 + 50 * phase + rng.normal(), trials=40, method="random"
    )
    trials = []
    for trial in findings.trials:
        state = "failed" if trial.params["a.matters"] > 0.5 else trial.state
        trials.append(type(trial)(trial.number, state, trial.params, trial.phases))
    findings = StudySnapshot("x", findings.settings, findings.space, tuple(trials))
    worst = min(phase.score for trial in trials for phase in trial.phases)
    values = [trial.value for trial in study_module.ended_study(findings).trials]
    failed = {v for v, trial in zip(values, trials, strict=True) if trial.state == "failed"}
    assert failed == {worst}
    assert found(findings).shares["a.matters"] > 0.9


def test_few_trials_say_that_they_mean_little() -> None:
    few = found(of(trials=6))
    assert "only 6 trials" in few.caution


def test_trials_that_all_have_the_same_settings_tell_nothing_of_them() -> None:
    findings = of(trials=4)
    same = [replace(trial, params=findings.trials[0].params) for trial in findings.trials]
    assert len({trial.score for trial in same}) == 4
    assert importances(replace(findings, trials=tuple(same))) is None


def test_too_few_trials_give_nothing_and_a_constant_score_zeros() -> None:
    assert importances(of(trials=3)) is None
    assert importances(of(trials=8, until=1.0)) is None
    constant = found(of(score=lambda p, phase, rng: 7.0))
    assert set(constant.shares.values()) == {0.0} and "equal" in constant.caution
    assert importances(of(trials=10, score=lambda p, phase, rng: math.nan)) is None


def test_optunas_dashboard_shows_the_study(tmp_path: Path) -> None:
    import optuna_dashboard  # and scikit-learn, which takes seconds

    study = make_study(tmp_path, trials=3, phases=2)
    request: dict[str, Any] = {"PATH_INFO": "/api/studies"}
    setup_testing_defaults(request)
    answer = optuna_dashboard.wsgi(study._storage)(request, lambda *_: None)
    (listed,) = json.loads(b"".join(answer))["study_summaries"]
    assert (listed["study_name"], listed["directions"]) == ("search", ["maximize"])
