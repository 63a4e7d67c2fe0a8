"""Every method that a search may have: its rule, and what a report says of it."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from genkidama.config.experiment import Experiment
from genkidama.plugins.hypertrick.halving import Halving
from genkidama.plugins.hypertrick.methods import METHODS
from genkidama.plugins.hypertrick.records import SearchRecord
from genkidama.plugins.hypertrick.settings import SearchSettings
from tests.plugins.hypertrick.studies import rule_of


def record_of(method: str, **settings: Any) -> tuple[SearchRecord, SearchSettings]:
    space = {"optimizer": {"learning_rate": {"low": 1e-4, "high": 1e-2}}}
    plan = {"method": method, "trials": 50, "phases": 27, "phase_steps": 9, "space": space}
    experiment = Experiment.from_dict({"search": {**plan, **settings}})
    assert experiment.search is not None
    return SearchRecord.of(experiment), experiment.search


def test_every_method_of_the_settings_is_one_of_the_searchs() -> None:
    for kind in (SearchSettings, SearchRecord):
        (field,) = [each for each in msgspec.structs.fields(kind) if each.name == "method"]
        assert set(get_args(field.type)) == METHODS.keys()


@pytest.mark.parametrize("method", METHODS)
def test_a_search_has_the_rule_of_its_method(method: str) -> None:
    own = {"reduction_factor": 2, "least_phases": 3} if method in ("asha", "hyperband") else {}
    for settings in ({}, own):
        record, plan = record_of(method, **settings)
        found, made = record.rule(seed=3), rule_of(plan, seed=3)
        assert type(found) is type(made) and found.decide_after == made.decide_after
        for trial in range(40):
            for phase in range(4):
                metric = float(trial * 17 % 13)
                assert found.decide(trial, phase, metric) == made.decide(trial, phase, metric)
        assert found.expected_completion_rate == made.expected_completion_rate


def test_the_papers_factors_by_values() -> None:
    rungs = {name: record_of(name)[0].rule().decide_after for name in METHODS}
    assert rungs == {
        "hypertrick": tuple(range(26)),
        "hyperband": (0, 2, 8),
        "asha": (0, 3, 15),
        "random": (),
    }
    assert isinstance(record_of("asha")[0].rule(), Halving)


def test_a_report_says_what_the_expected_rate_rests_on() -> None:
    said = {name: METHODS[name].expectation(record_of(name)[0], 0.5) for name in METHODS}
    assert said == {
        "hypertrick": "expected 50.0 %, minimum 25.0 % (eqs. 9 and 8 of HyperTrick's paper)",
        "hyperband": "expected 50.0 %, if about 1/3 go on at each decision",
        "asha": "expected 50.0 %, if about 1/4 go on at each decision",
        "random": "",
    }
