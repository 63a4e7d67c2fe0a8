"""What is kept of a search: the same bytes as ever, and one definition of the best trial."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.plugins.hypertrick.records import (
    PhaseRecord,
    best_trial,
)
from genkidama.plugins.hypertrick.rule import Mode, Verdict
from tests.plugins.hypertrick.studies import COMPLETE, FAIL, RUNNING, by_hand, phase, written

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


def test_a_phase_is_written_as_it_was_read() -> None:
    record = msgspec.convert(PHASE, PhaseRecord)
    assert record.mode is Mode.SELECTION and record.verdict is Verdict.STOP
    assert math.isnan(record.score)
    assert json.dumps(msgspec.to_builtins(record)) == json.dumps(PHASE)


@given(
    st.dictionaries(st.integers(0, 9), st.floats() | st.sampled_from([math.nan, 1.0, 2.0])),
    st.sets(st.integers(0, 9)),
)
def test_the_best_trial_is_the_first_with_the_highest_score_of_those_that_completed(
    scores: dict[int, float], completed: set[int]
) -> None:
    best = best_trial(scores, completed)
    known = {trial for trial, score in scores.items() if not math.isnan(score)}
    assert (best is None) == (not known)
    if best is not None:
        rivals = known & completed or known
        assert best in rivals
        highest = max(scores[rival] for rival in rivals)
        assert best == min(rival for rival in rivals if scores[rival] == highest)


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
    # The failed phase does not count as run.
    assert findings.completion_rate == pytest.approx(3 / 6)
    # Trial 3 has a better score and trial 0 had a worse one, but only completed trials are
    # compared.
    assert [trial.number for trial in findings.improvements] == [0]
    assert [trial.number for trial in findings.ranking] == [3, 0, 1]
    assert findings.best is not None and findings.best.number == 0


def test_a_trial_that_no_node_could_begin_is_on_no_nodes_line() -> None:
    findings = written((COMPLETE, [phase(0, "a", 0, 10, 1.0)]), (FAIL, [phase(0, "", 5, 5, None)]))
    assert list(findings.timeline) == ["a"] and findings.occupancy == 1.0


def test_occupancy_counts_overlapping_phases_once() -> None:
    findings = written(
        (COMPLETE, [phase(0, "a", 0, 10, 1.0), phase(1, "a", 5, 12, 2.0)]),
        (RUNNING, [phase(0, "a", 6, 8, 2.0)]),
    )
    assert findings.occupancy == 1.0
