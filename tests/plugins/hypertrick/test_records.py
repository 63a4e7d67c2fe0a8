"""What is kept of a search: the same bytes as ever, and one definition of the best trial."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import genkidama
from genkidama.config.experiment import Experiment
from genkidama.plugins.hypertrick.records import PhaseRecord, SearchRecord, TrialRecord, best_trial
from genkidama.plugins.hypertrick.rule import Mode, Verdict

#: As a study of version 0.1.0 has it.
PHASE: dict[str, Any] = {
    "phase": 1,
    "node": "pi-3",
    "start": 12.5,
    "end": 30.25,
    "metric": None,
    "order": 4,
    "worse": 2,
    "mode": "selection",
    "verdict": "stop",
    "steps": 100,
    "episodes": 7,
    "report": 9,
}

SEARCH: dict[str, Any] = {
    "phases": 9,
    "phase_steps": 50,
    "trials": 24,
    "decisions": "geometric",
    "eviction_rate": 0.5,
    "cohort": 16,
    "sampler": "tpe",
    "space": {"optimizer": {"learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}}},
}


def test_a_phase_is_written_as_it_was_read() -> None:
    record = msgspec.convert(PHASE, PhaseRecord)
    assert record.mode is Mode.SELECTION and record.verdict is Verdict.STOP
    assert math.isnan(record.score)
    assert json.dumps(msgspec.to_builtins(record)) == json.dumps(PHASE)


def test_the_settings_of_a_search_are_written_as_ever() -> None:
    experiment = Experiment.from_dict({"search": SEARCH})
    plain = {key: value for key, value in experiment.to_dict().items() if key != "search"}
    expected = {
        "version": genkidama.__version__,
        "method": "hypertrick",
        "workers": 24,
        "phases": 9,
        "eviction_rate": 0.5,
        "decide_after": [0, 2],
        "cohort": 16,
        "adaptive": False,
        "reduction_factor": None,
        "least_phases": 1,
        "sampler": "tpe",
        "phase_unit": "steps",
        "phase_length": 50,
        "space": {"optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}},
        "experiment": plain,
    }
    record = SearchRecord.of(experiment)
    assert json.dumps(msgspec.to_builtins(record)) == json.dumps(expected)
    assert msgspec.convert(expected, SearchRecord) == record


def test_random_search_has_a_rule_that_decides_nothing() -> None:
    record = SearchRecord.of(Experiment.from_dict({"search": {**SEARCH, "method": "random"}}))
    assert record.decide_after == [0, 2] and record.rule().decide_after == ()
    assert record.rule().expected_completion_rate == 1.0


@pytest.mark.parametrize(
    ("scores", "completed", "best"),
    [
        ({}, set(), None),
        ({0: math.nan}, {0}, None),
        ({0: 1.0, 1: 9.0, 2: 3.0}, {0, 2}, 2),  # trial 1 reported more, and did not complete
        ({0: 1.0, 1: 9.0, 2: 3.0}, set(), 1),
        ({0: 1.0, 1: 9.0, 2: math.nan}, {2}, 1),
        ({5: 2.0, 3: 2.0}, {3, 5}, 3),
    ],
)
def test_the_best_trial(scores: dict[int, float], completed: set[int], best: int | None) -> None:
    assert best_trial(scores, completed) == best


@given(st.dictionaries(st.integers(0, 9), st.floats()), st.sets(st.integers(0, 9)))
def test_the_best_trial_has_a_score_and_none_that_completed_a_better_one(
    scores: dict[int, float], completed: set[int]
) -> None:
    best = best_trial(scores, completed)
    known = {trial for trial, score in scores.items() if not math.isnan(score)}
    assert (best is None) == (not known)
    if best is not None:
        rivals = known & completed or known
        assert best in rivals
        assert all(scores[rival] <= scores[best] for rival in rivals)


def test_a_trials_score_is_its_last_and_a_failed_one_has_none() -> None:
    first = msgspec.convert({**PHASE, "metric": 3.0}, PhaseRecord)
    last = msgspec.convert({**PHASE, "metric": 2.0, "mode": "none"}, PhaseRecord)
    assert TrialRecord(0, "completed", {}, [first, last]).score == 2.0
    assert math.isnan(TrialRecord(0, "failed", {}, [first, last]).score)
    assert math.isnan(TrialRecord(0, "running", {}).score)
