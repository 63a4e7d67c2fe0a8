from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest

from genkidama.plugins.hypertrick import importance
from genkidama.plugins.hypertrick.findings import StudySnapshot, read
from genkidama.plugins.hypertrick.importance import Importances, importances
from tests.plugins.hypertrick.studies import make_study

TWO = {"a.matters": {"low": 0.0, "high": 1.0}, "b.idle": {"low": 0.0, "high": 1.0}}


@pytest.fixture(autouse=True)
def small_forests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few trees say the same of problems as plain as these."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(importance, "_TREES", 8)


def matters(params: dict[str, Any], phase: int, rng: np.random.Generator) -> float:
    return float(100 * params["a.matters"] + phase + rng.normal())


def of(**options: Any) -> StudySnapshot:
    return read(
        make_study(
            **{
                "space": TWO,
                "score": matters,
                "failing": (),
                "not_a_number": (),
                "phases": 4,
                "trials": 30,
                **options,
            }
        )
    )


def found(findings: StudySnapshot, **options: Any) -> Importances:
    result = importances(findings, **options)
    assert result is not None
    return result


def test_the_setting_that_matters_has_all_of_it_and_the_idle_one_nothing() -> None:
    result = found(of(trials=40))
    assert list(result.shares) == ["a.matters", "b.idle"]
    assert result.shares["a.matters"] > 0.97
    assert math.fsum(result.shares.values()) == pytest.approx(1)
    assert result.trials == 40 and not result.caution


def test_noise_gives_the_idle_setting_no_share() -> None:
    result = found(
        of(
            trials=60,
            method="random",
            score=lambda p, _, rng: 100 * p["a.matters"] + rng.normal(0, 30),
        )
    )
    assert result.shares["b.idle"] < 0.1


def test_a_tie_of_two_settings_is_shared() -> None:
    result = found(
        of(
            trials=60,
            method="random",
            score=lambda p, _, rng: 50 * (p["a.matters"] + p["b.idle"]) + rng.normal(),
        )
    )
    assert result.shares["a.matters"] == pytest.approx(0.5, abs=0.15)


def test_a_choice_of_texts_may_matter_most() -> None:
    space = {
        "optimizer.name": {"choices": ["adam", "sgd", "rmsprop", "lion"]},
        "x.y": {"low": 1, "high": 9},
    }
    good = {"adam": 0.0, "sgd": 80.0, "rmsprop": 5.0, "lion": 60.0}
    result = found(
        of(
            space=space,
            score=lambda p, phase, rng: good[p["optimizer.name"]] + phase + rng.normal(),
        )
    )
    assert result.shares["optimizer.name"] > 0.95


def test_the_same_seed_gives_the_same_shares() -> None:
    findings = of(trials=12)
    first = found(findings, seed=3)
    assert found(findings, seed=3) == first
    assert found(findings, seed=4) != first


def test_the_stopped_trials_change_the_result() -> None:
    """`gate` decides who is stopped: without those who were, it looks harmless beside `fine`."""

    def gated(params: dict[str, Any], phase: int, rng: np.random.Generator) -> float:
        return (
            (0.0 if params["a.gate"] < 0.5 else 100.0)
            + 20 * params["b.fine"]
            + phase
            + float(rng.normal())
        )

    space = {"a.gate": {"low": 0.0, "high": 1.0}, "b.fine": {"low": 0.0, "high": 1.0}}
    study = make_study(
        space=space,
        score=gated,
        trials=100,
        phases=5,
        eviction_rate=0.4,
        failing=(),
        not_a_number=(),
    )
    everyone = read(study)
    completed = StudySnapshot(
        everyone.name,
        everyone.settings,
        everyone.space,
        tuple(t for t in everyone.of_state("completed") if t.score > 60),
    )
    assert found(everyone).shares["a.gate"] > 0.8
    assert found(everyone).trials == len(everyone.ended) > len(everyone.of_state("completed"))
    assert found(completed).shares["a.gate"] < 0.3


def test_failed_trials_count_with_the_worst_score_there_is() -> None:
    """Every trial above one half crashes: the forest must know that from them alone."""
    study = make_study(
        space=TWO,
        score=lambda p, phase, rng: 900 + 50 * phase + rng.normal(),
        trials=40,
        method="random",
        failing=(),
        not_a_number=(),
    )
    findings = read(study)
    trials = []
    for trial in findings.trials:
        crashed = trial.params["a.matters"] > 0.5
        trials.append(
            type(trial)(
                trial.number,
                "failed" if crashed else trial.state,
                trial.params,
                trial.phases,
                "",
                "",
            )
        )
    findings = StudySnapshot("x", findings.settings, findings.space, tuple(trials))
    worst = min(phase.score for trial in trials for phase in trial.phases)
    values = [trial.value for trial in importance.ended_study(findings).trials]
    assert {
        value for value, trial in zip(values, trials, strict=True) if trial.state == "failed"
    } == {worst}
    assert found(findings).shares["a.matters"] > 0.9


def test_few_trials_say_that_they_mean_little() -> None:
    few = found(of(trials=6))
    assert "only 6 trials" in few.caution


def test_too_few_trials_give_nothing_and_a_constant_score_zeros() -> None:
    assert importances(of(trials=3)) is None
    assert importances(of(trials=8, until=1.0)) is None
    constant = found(of(score=lambda p, phase, rng: 7.0))
    assert set(constant.shares.values()) == {0.0} and "equal" in constant.caution
    assert importances(of(trials=10, score=lambda p, phase, rng: math.nan)) is None


def test_one_setting_has_everything() -> None:
    assert found(of(space={"a.matters": TWO["a.matters"]})).shares == {"a.matters": 1.0}


@pytest.mark.slow
def test_a_hundred_trials_take_less_than_five_seconds_of_one_core() -> None:
    findings = read(make_study(trials=100, nodes=8))
    found(of(trials=10))  # scikit-learn is imported
    before = time.process_time()
    found(findings)
    assert time.process_time() - before < 5.0
