"""What is kept of a search: the same bytes as ever, and one definition of the best trial."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import genkidama
from genkidama.config.experiment import Experiment
from genkidama.plugins.hypertrick.hyperband import Halving
from genkidama.plugins.hypertrick.records import (
    TITLES,
    Improvement,
    PhaseRecord,
    SearchRecord,
    StudySnapshot,
    TrialRecord,
    best_trial,
)
from genkidama.plugins.hypertrick.rule import Mode, Verdict, completion_rate
from genkidama.plugins.hypertrick.settings import SearchSettings
from tests.plugins.hypertrick.studies import COMPLETE, RUNNING, by_hand, phase, rule_of, written

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


def record_of(method: str, **settings: Any) -> tuple[SearchRecord, SearchSettings]:
    space = {"optimizer": {"learning_rate": {"low": 1e-4, "high": 1e-2}}}
    plan = {"method": method, "trials": 50, "phases": 27, "phase_steps": 9, "space": space}
    experiment = Experiment.from_dict({"search": {**plan, **settings}})
    assert experiment.search is not None
    return SearchRecord.of(experiment), experiment.search


def test_every_method_of_the_settings_is_one_of_the_searchs() -> None:
    for kind in (SearchSettings, SearchRecord):
        (field,) = [each for each in msgspec.structs.fields(kind) if each.name == "method"]
        assert set(get_args(field.type)) == TITLES.keys()


@pytest.mark.parametrize("method", TITLES)
def test_a_search_has_the_rule_of_its_method(method: str) -> None:
    own = {"reduction_factor": 2, "least_phases": 3} if method in ("asha", "hyperband") else {}
    for settings in ({}, own):
        record, plan = record_of(method, **settings)
        found, made = record.rule(seed=3), rule_of(plan, seed=3)
        assert type(found) is type(made) and found.decide_after == made.decide_after
        for trial in range(40):
            for n in range(4):
                metric = float(trial * 17 % 13)
                assert found.decide(trial, n, metric) == made.decide(trial, n, metric)
        assert found.expected_completion_rate == made.expected_completion_rate


def test_the_papers_factors_by_values() -> None:
    rungs = {name: record_of(name)[0].rule().decide_after for name in TITLES}
    assert rungs == {
        "hypertrick": tuple(range(26)),
        "hyperband": (0, 2, 8),
        "asha": (0, 3, 15),
        "random": (),
    }
    assert isinstance(record_of("asha")[0].rule(), Halving)


def test_the_values_of_a_search_written_by_hand() -> None:
    findings = by_hand()
    assert findings.search_time == 24
    assert {
        node: [(span.trial, span.ending) for span in spans]
        for node, spans in findings.timeline.items()
    } == {
        "a": [(0, ""), (0, "completed")],
        "b": [(1, "stopped"), (2, "failed"), (3, "")],
    }
    assert findings.occupancy == pytest.approx((20 + 5 + 2 + 10) / (24 + 19))
    assert findings.completion_rate == pytest.approx(
        3 / 6
    )  # the failed phase does not count as run
    # Trial 3 has a better score and trial 0 had a worse one, but only completed trials are
    # compared.
    assert findings.improvements == [Improvement(20, 4.0, 0)]
    assert [trial.number for trial in findings.ranking] == [3, 0, 1]
    assert findings.best is not None and findings.best.number == 0


def test_occupancy_counts_overlapping_phases_once() -> None:
    findings = written(
        (COMPLETE, [phase(0, "a", 0, 10, 1.0), phase(1, "a", 5, 12, 2.0)]),
        (RUNNING, [phase(0, "a", 6, 8, 2.0)]),
    )
    assert findings.occupancy == 1.0


@given(st.floats(0.01, 0.99), st.integers(1, 30))
def test_the_expected_rates_are_the_papers_if_every_phase_decides(rate: float, phases: int) -> None:
    findings = by_hand()
    settings = type(findings.settings)(
        method="hypertrick",
        workers=9,
        phases=phases,
        eviction_rate=rate,
        decide_after=list(range(phases - 1)),
        space={},
    )
    findings = StudySnapshot("x", settings, {}, ())
    assert findings.expected_completion_rate == pytest.approx(completion_rate(rate, phases))
