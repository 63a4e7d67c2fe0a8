"""What follows from a study, and what is no study of a search."""

from __future__ import annotations

import math
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import create_trial

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.equations import completion_rate
from genkidama.plugins.hypertrick.findings import Improvement, StudySnapshot, read
from tests.plugins.hypertrick.studies import (
    COMPLETE,
    FAIL,
    PRUNED,
    RUNNING,
    SPACE,
    by_hand,
    make_study,
    phase,
    written,
)


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


def test_everything_that_a_real_search_wrote_is_read() -> None:
    study = make_study(until=700)
    findings = read(study)
    states = {"completed": COMPLETE, "stopped": PRUNED, "failed": FAIL, "running": RUNNING}
    for trial, frozen in zip(findings.trials, study.trials, strict=True):
        assert (trial.number, trial.params, states[trial.state]) == (
            frozen.number,
            frozen.params,
            frozen.state,
        )
        assert [p.phase for p in trial.phases] == list(frozen.intermediate_values)
        assert str([p.score for p in trial.phases]) == str(
            [float(v) for v in frozen.intermediate_values.values()]
        )
        if trial.state == "completed":
            assert trial.score == frozen.value
        assert math.isnan(trial.score) == (trial.state == "failed" or not trial.phases)
    assert {trial.state for trial in findings.trials} == {*states}
    assert findings.best is not None and findings.best.number == study.best_trial.number
    assert list(findings.space) == list(SPACE) and findings.settings.workers == 24


def test_a_metric_that_is_infinite_counts_as_no_number() -> None:
    findings = written((COMPLETE, [phase(0, "a", 0, 1, 2.0), phase(1, "a", 1, 2, math.inf)]))
    assert math.isnan(findings.trials[0].score) and findings.best is None


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


def test_the_expected_rate_with_fewer_decisions() -> None:
    findings = read(make_study(phases=4, until=-1.0, settings={"decide_after": [1]}))
    assert findings.expected_completion_rate == pytest.approx((1 + 1 + 0.75 + 0.75) / 4)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"workers": "many"}, "attribute 'genkidama': Expected int, got str - at $.workers"),
        ({"method": "grid"}, "Invalid enum value 'grid' - at $.method"),
        ({"eviction_rate": 1.5}, "eviction_rate = 1.5"),
        ({"phases": 0}, "phases = 0"),
        ({"space": {}}, "space: is empty"),
        ({"space": {"a.b": {"low": 2, "high": 1}}}, "a.b"),
    ],
)
def test_settings_that_cannot_be_read_are_named(settings: dict[str, Any], expected: str) -> None:
    study = make_study(until=-1.0, settings=settings)
    with pytest.raises(ConfigurationError) as error:
        read(study)
    assert (
        expected in str(error.value)
        and "study 'search'" in str(error.value)
        and "\n" not in str(error.value)
    )


def test_phases_that_cannot_be_read_are_named() -> None:
    study = make_study(trials=3, phases=2)
    study.add_trial(create_trial(state=RUNNING, user_attrs={"phases": [{"phase": 0}]}))
    with pytest.raises(
        ConfigurationError,
        match=r"study 'search', trial 3, attribute 'phases': .*missing required field",
    ):
        read(study)


def test_a_study_that_is_no_search_or_minimizes_is_named() -> None:
    with pytest.raises(ConfigurationError, match="study 'mine' has no attribute 'genkidama'"):
        read(optuna.create_study(study_name="mine", direction="maximize"))
    study = optuna.create_study(study_name="down")
    study.set_user_attr("genkidama", {})
    with pytest.raises(ConfigurationError, match=r"study 'down': directions = \['minimize'\]"):
        read(study)
