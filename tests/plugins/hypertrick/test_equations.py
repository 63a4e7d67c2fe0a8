"""How many trials are expected to run on: the equations beside searches of stationary metrics."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.plugins.hypertrick.equations import completion_rate, expected_runs, expected_workers
from genkidama.plugins.hypertrick.rule import HyperTrick, Mode, Verdict

rates = st.floats(0.01, 0.99)


@given(st.integers(1, 500), st.integers(1, 30), rates)
def test_without_a_cohort_it_is_equations_1_and_9(workers: int, phases: int, rate: float) -> None:
    runs = expected_runs(workers, phases, rate)
    assert runs == pytest.approx([expected_workers(workers, rate, p) for p in range(phases)])
    rule = HyperTrick(workers=workers, phases=phases, eviction_rate=rate)
    assert rule.expected_completion_rate == pytest.approx(completion_rate(rate, phases))


@given(st.integers(1, 500), st.integers(1, 30), rates, st.integers(1, 600))
def test_a_cohort_lets_fewer_run_on_and_one_of_all_changes_nothing(
    workers: int, phases: int, rate: float, cohort: int
) -> None:
    all_of_them = expected_runs(workers, phases, rate)
    runs = expected_runs(workers, phases, rate, collecting=cohort)
    assert all(a <= b + 1e-9 for a, b in zip(runs, all_of_them, strict=True))
    assert all(later <= earlier for earlier, later in pairwise(runs))
    if cohort >= workers:
        assert runs == all_of_them


def test_decisions_after_some_phases_only() -> None:
    assert expected_runs(16, 4, 0.25, [1]) == pytest.approx([16, 16, 12, 12])


def searched(rule: HyperTrick, rng: np.random.Generator) -> tuple[float, float]:
    """The share of phases run, and of late trials stopped at the first decision."""
    done = 0
    for trial in range(rule.workers):
        for phase in range(rule.phases):
            done += 1
            if rule.report(trial, phase, float(rng.normal())) is Verdict.STOP:
                break
    late = [
        decision.verdict is Verdict.STOP
        for decision in rule.decisions
        if decision.phase == rule.decide_after[0] and decision.mode is Mode.SELECTION
    ]
    return done / (rule.workers * rule.phases), float(np.mean(late))


@pytest.mark.parametrize(
    ("cohort", "adaptive"), [(None, False), (16, False), (100, False), (16, True)]
)
def test_what_is_expected_is_what_stationary_metrics_do(cohort: int | None, adaptive: bool) -> None:
    """With a cohort of 16 of 1,000 trials √r = 82 % are stopped at r = 2/3, and not 67 %."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(6):
        rule = HyperTrick(
            workers=1000,
            phases=9,
            eviction_rate=2 / 3,
            decide_after=[0, 2],
            cohort=cohort,
            adaptive=adaptive,
        )
        found.append(searched(rule, rng))
    ran, stopped = np.mean(found, axis=0)
    assert ran == pytest.approx(rule.expected_completion_rate, rel=0.05)
    if cohort and not adaptive:
        assert stopped == pytest.approx(math.sqrt(2 / 3), abs=0.02)
        assert ran < 0.8 * completion_rate_of(rule)


def completion_rate_of(rule: HyperTrick) -> float:
    """What equation 9 says, blind to the cohort."""
    runs = expected_runs(rule.workers, rule.phases, rule.eviction_rate, rule.decide_after)
    return sum(runs) / (rule.workers * rule.phases)
