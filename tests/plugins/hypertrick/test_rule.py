"""HyperTrick's rule against the paper's numbers, its example, and slow and obvious oracles."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.rule import (
    Decision,
    HyperTrick,
    Mode,
    Verdict,
    expected_runs,
    geometric_phases,
    workers_before_selection,
)

CONTINUE, STOP = Verdict.CONTINUE, Verdict.STOP
NAN = math.nan

SETTINGS: dict[str, Any] = {"workers": 4, "phases": 3, "eviction_rate": 0.25}

rates = st.floats(0.01, 0.99)
# Their square roots are exact or far from putting a quantile between two reports by rounding alone.
plain_rates = st.sampled_from([0.01, 0.04, 0.09, 0.1, 0.2, 0.25, 0.36, 0.49, 0.5, 0.64, 0.75, 0.81])


def selecting_at_once(phases: int = 2, rate: float = 0.25, seed: int = 0) -> HyperTrick:
    """One worker is less than any W^DCM needs, so nobody passes for being early."""
    return HyperTrick(workers=1, phases=phases, eviction_rate=rate, seed=seed)


def run(rule: HyperTrick, metric: Callable[[int], float]) -> None:
    """One trial after another, each until it is stopped or has run all phases."""
    for trial in range(rule.workers):
        for phase in range(rule.phases):
            if rule.report(trial, phase, metric(trial)) is STOP:
                break


# The paper's numbers.


# With these denominators no exact value lies closer below a whole number than 1/16⁷ = 3.7e-9.
@given(
    st.integers(1, 5000),
    st.integers(2, 16).flatmap(lambda b: st.tuples(st.integers(1, b - 1), st.just(b))),
    st.integers(0, 3),
)
@example(25, (4, 5), 0)
@example(10, (9, 10), 0)
@example(100, (1, 10), 0)
def test_workers_before_selection_is_exact_where_the_rate_is_a_square(
    workers: int, root: tuple[int, int], phase: int
) -> None:
    q = Fraction(*root)
    exact = workers * (1 - q) * (1 - q * q) ** phase
    assert workers_before_selection(workers, float(q * q), phase) == math.floor(exact)


def completion_rate(eviction_rate: float, phases: int) -> float:
    """E[α] (eq. 9)."""
    rule = HyperTrick(workers=1, phases=phases, eviction_rate=eviction_rate)
    return rule.expected_completion_rate


def minimum_completion_rate(eviction_rate: float, phases: int) -> float:
    """min[α] = (1−√r)·E[α] (eq. 8), as printed; too low by a phase."""
    return completion_rate(eviction_rate, phases) * (1.0 - math.sqrt(eviction_rate))


@pytest.mark.parametrize(
    ("phases", "minimum", "expected"), [(10, 0.1887, 0.3775), (5, 0.3051, 0.6102)]
)
def test_table_1(phases: int, minimum: float, expected: float) -> None:
    assert completion_rate(0.25, phases) == pytest.approx(expected, abs=5.1e-5)
    assert minimum_completion_rate(0.25, phases) == pytest.approx(minimum, abs=5.1e-5)


def test_the_eviction_rate_that_matches_hyperband_is_not_quite_the_printed_one() -> None:
    assert completion_rate(0.1082, 27) == pytest.approx(0.3268, abs=5e-5)
    assert completion_rate(0.10846, 27) == pytest.approx(0.3261, abs=5e-5)


def test_the_running_example() -> None:
    rule = HyperTrick(workers=16, phases=4, eviction_rate=0.25)
    metrics = [40, 12, 35, 30, 9, 31]
    for phase in (0, 1):
        for trial, metric in enumerate(metrics):
            assert rule.report(trial, phase, metric) is CONTINUE
    third = [rule.decide(trial, 2, metrics[trial]) for trial in range(6)]
    assert [decision.mode for decision in third] == [Mode.COLLECTION] * 4 + [Mode.SELECTION] * 2
    assert third[4].order == 5 and third[4].verdict is STOP  # W4: a low metric
    assert third[5].verdict is CONTINUE  # W5: 31, in the top half
    assert [rule.report(trial, 3, 0) for trial in (0, 1, 2, 3, 5)] == [CONTINUE] * 5
    # W6 is the seventh in each phase. In the first, eight pass; so it is the second that stops it.
    assert rule.decide(6, 0, 8) == Decision(
        6, 0, 8, order=7, worse=0, mode=Mode.COLLECTION, verdict=CONTINUE
    )
    assert rule.decide(6, 1, 8) == Decision(
        6, 1, 8, order=7, worse=0, mode=Mode.SELECTION, verdict=STOP
    )


# Completion rates that a search can reach.


def fewest_phases(workers: int, rate: float, phases: int) -> int:
    """All run the first phase.

    Each later one those at least who passed the one before for being early, and the first is never
    stopped.
    """
    return workers + sum(
        max(1, workers_before_selection(workers, rate, phase)) for phase in range(phases - 1)
    )


@given(st.integers(1, 60), st.integers(1, 8), rates)
def test_the_corrected_bound_is_reached_where_each_is_worse_than_all_before(
    workers: int, phases: int, rate: float
) -> None:
    rule = HyperTrick(workers=workers, phases=phases, eviction_rate=rate)
    run(rule, lambda trial: -trial)
    assert len(rule.decisions) == fewest_phases(workers, rate, phases)


# Ties, failures, repetitions.


@pytest.mark.parametrize("rate", [0.09, 0.25, 0.64])
def test_equal_metrics_stop_the_right_share(rate: float) -> None:
    workers = 2000
    rule = HyperTrick(workers=workers, phases=2, eviction_rate=rate, seed=5)
    stopped = sum(rule.report(trial, 0, 1.0) is STOP for trial in range(workers))
    late = workers - workers_before_selection(workers, rate, 0)
    q = math.sqrt(rate)
    assert abs(stopped - q * late) < 4 * math.sqrt(late * q * (1 - q))


def test_another_seed_orders_equal_metrics_otherwise() -> None:
    outcomes = set()
    for seed in range(4):
        rule = selecting_at_once(seed=seed)
        outcomes.add(tuple(rule.report(trial, 0, 0.0) for trial in range(30)))
    assert len(outcomes) == 4


def test_a_tie_is_broken_anew_in_each_phase() -> None:
    rule = selecting_at_once(phases=3)
    first, second = ([rule.report(trial, phase, 0.0) for trial in range(30)] for phase in (0, 1))
    assert first != second


def test_nan_is_a_failure_worse_than_any_number() -> None:
    rule = HyperTrick(workers=16, phases=4, eviction_rate=0.25)
    assert rule.decide(0, 0, -math.inf).worse == 0
    failed = rule.decide(1, 0, NAN)
    assert (failed.mode, failed.verdict, failed.order, failed.worse) == (Mode.FAILURE, STOP, 2, 0)
    assert rule.decide(2, 0, -math.inf).worse >= 1
    assert rule.decide(3, 3, NAN).verdict is STOP  # in the last phase too


def test_restored_verdicts_are_kept_and_not_judged_again() -> None:
    rule = selecting_at_once()
    rule.restore([Decision(0, 0, 5.0, order=1, worse=0, mode=Mode.SELECTION, verdict=STOP)])
    assert rule.report(0, 0, 5.0) is STOP
    assert rule.decide(1, 0, 6.0).order == 2


def test_numbers_of_numpy_are_numbers() -> None:
    rule, plain = (HyperTrick(workers=4, phases=3, eviction_rate=0.25) for _ in range(2))
    for trial, metric in enumerate([1.5, 0.5, 2.5, 0.25]):
        phase: Any = np.int64(0)
        assert rule.decide(trial, phase, np.float32(metric)) == plain.decide(trial, 0, metric)


# Options.


@given(st.permutations(range(20)), plain_rates, st.integers(1, 30))
def test_a_cohort_is_how_many_collect_data_and_nothing_else(
    order: Sequence[int], rate: float, cohort: int
) -> None:
    rule = HyperTrick(workers=20, phases=3, eviction_rate=rate, cohort=cohort)
    small = HyperTrick(workers=min(cohort, 20), phases=3, eviction_rate=rate)
    for phase in (0, 1, 2):
        for trial in order:
            metric = float(trial * 7 % 20)
            assert rule.decide(trial, phase, metric) == small.decide(trial, phase, metric)


@pytest.mark.parametrize(
    ("phases", "factor", "expected"),
    [
        (27, 3, (0, 2, 8)),
        (28, 3, (0, 2, 8, 26)),
        (1, 3, ()),
        (2, 3, (0,)),
        (8, 2, (0, 1, 3)),
        (3, 3, (0,)),
        (4, 3, (0, 2)),
    ],
)
def test_geometric_phases(phases: int, factor: int, expected: tuple[int, ...]) -> None:
    assert geometric_phases(phases, factor) == expected
    HyperTrick(workers=1, phases=phases, eviction_rate=0.5, decide_after=expected)


# Bad input.

WHOLE: list[Any] = [0, -1, True, 2.0, "3"]
RATES: list[Any] = [0, 1, 0.0, 1.0, -0.1, 1.1, NAN, math.inf, True, None, "0.25"]
PHASES: list[Any] = [(2,), (-1,), (1, 0), (0, 0), (0.5,), (True,), ("0",)]
FAULTS: list[tuple[str, list[Any], Callable[[Any], object]]] = [
    *(
        (name, values, lambda value, name=name: HyperTrick(**SETTINGS | {name: value}))
        for name, values in (
            ("workers", [*WHOLE, None]),
            ("phases", [*WHOLE, None]),
            ("cohort", WHOLE),
            ("eviction_rate", RATES),
            ("decide_after", PHASES),
        )
    ),
    ("factor", [1, 0, True, 2.5], lambda factor: geometric_phases(27, factor)),
]


@pytest.mark.parametrize(("name", "values", "call"), FAULTS)
def test_a_value_out_of_its_range_is_named(
    name: str, values: list[Any], call: Callable[[Any], object]
) -> None:
    for value in values:
        with pytest.raises(ConfigurationError, match=re.escape(f"{name} = {value!r}")):
            call(value)


@pytest.mark.parametrize("metric", [None, "1.5", True, [1.0], 1j, 10**400])
def test_a_metric_that_is_no_number_is_named_and_not_counted(metric: object) -> None:
    rule = HyperTrick(workers=4, phases=3, eviction_rate=0.25)
    with pytest.raises(ConfigurationError, match="trial 2, phase 1: metric = "):
        rule.report(2, 1, metric)  # type: ignore[arg-type]
    assert rule.decisions == []
    assert rule.decide(2, 1, 0.5).order == 1


@pytest.mark.parametrize("phase", [-1, 3, 1.0, True, None])
def test_a_phase_that_does_not_exist_is_named(phase: int) -> None:
    rule = HyperTrick(workers=4, phases=3, eviction_rate=0.25)
    with pytest.raises(ConfigurationError, match=f"trial 0: phase = {phase!r}: expected 0 to 2"):
        rule.report(0, phase, 1.0)


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


@pytest.mark.parametrize(
    ("cohort", "adaptive"), [(None, False), (None, True), (16, False), (16, True)]
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
        run(rule, lambda _: rng.normal())
        late = [
            decision.verdict is STOP
            for decision in rule.decisions
            if decision.phase == rule.decide_after[0] and decision.mode is Mode.SELECTION
        ]
        found.append((len(rule.decisions) / (1000 * 9), np.mean(late)))
    ran, stopped = np.mean(found, axis=0)
    assert ran == pytest.approx(rule.expected_completion_rate, rel=0.05)
    if cohort and not adaptive:
        assert stopped == pytest.approx(math.sqrt(2 / 3), abs=0.02)


def quantile_by_counting(rule: HyperTrick, history: list[Decision], phase: int) -> Fraction:
    """√r, or the law of the controller, from all decisions before the report."""
    if not rule.adaptive:
        return Fraction(math.sqrt(rule.eviction_rate))
    index = rule.decide_after.index(phase)
    keep = 1 - Fraction(rule.eviction_rate)
    here = [decision for decision in history if decision.phase == phase]
    passed = sum(decision.verdict is Verdict.CONTINUE for decision in here)
    before = [
        decision for decision in history if index and decision.phase == rule.decide_after[index - 1]
    ]
    arrivals = max(
        rule.workers * keep**index, sum(decision.verdict is Verdict.CONTINUE for decision in before)
    ) - len(here)
    if arrivals <= 0:
        return Fraction(1)
    return min(
        Fraction(1), max(Fraction(0), 1 - (rule.workers * keep ** (index + 1) - passed) / arrivals)
    )


def judged_by_counting(
    rule: HyperTrick, history: list[Decision], trial: int, phase: int, metric: float
) -> Verdict:
    """The verdict for distinct metrics, quantile and all, in exact numbers."""
    if math.isnan(metric):
        return Verdict.STOP
    if phase not in rule.decide_after:
        return Verdict.CONTINUE
    others = [decision.metric for decision in history if decision.phase == phase]
    if len(others) < workers_before_selection(
        rule.workers, rule.eviction_rate, rule.decide_after.index(phase)
    ):
        return Verdict.CONTINUE
    worse = sum(math.isnan(other) or other < metric for other in others)
    quantile = quantile_by_counting(rule, history, phase)
    return Verdict.STOP if worse < len(others) * quantile - Fraction(1, 10**9) else Verdict.CONTINUE


@given(
    workers=st.integers(1, 24),
    rate=st.sampled_from([1 / 16, 0.25, 0.5, 2 / 3, 0.9]),
    geometric=st.booleans(),
    adaptive=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_every_verdict_is_the_law_s(
    workers: int,
    rate: float,
    geometric: bool,
    adaptive: bool,
    seed: int,
) -> None:
    """Metrics and order come from a seed: hypothesis would draw a few hundred numbers."""
    chance = random.Random(seed)
    failing = chance.choice([0.0, 0.05, 0.3])
    phases = 5
    rule = HyperTrick(
        workers=workers,
        phases=phases,
        eviction_rate=rate,
        decide_after=geometric_phases(phases, 2) if geometric else None,
        adaptive=adaptive,
    )
    running = dict.fromkeys(range(workers), 0)
    history: list[Decision] = []
    while running:
        trial = chance.choice(sorted(running))
        phase = running[trial]
        metric = NAN if chance.random() < failing else chance.uniform(-9.0, 9.0)
        expected = judged_by_counting(rule, history, trial, phase, metric)
        decision = rule.decide(trial, phase, metric)
        assert decision.verdict is expected
        history.append(decision)
        again = chance.choice(history)
        assert rule.decide(again.trial, again.phase, 0.0) is again
        running[trial] += 1
        if decision.verdict is Verdict.STOP or running[trial] == phases:
            del running[trial]
