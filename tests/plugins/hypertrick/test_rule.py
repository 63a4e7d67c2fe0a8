"""HyperTrick's rule against the paper's numbers, its example, and slow and obvious oracles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.rule import (
    Decision,
    HyperTrick,
    Mode,
    Verdict,
    completion_rate,
    eviction_rate_for,
    expected_runs,
    expected_workers,
    geometric_phases,
    minimum_completion_rate,
    workers_before_selection,
)

CONTINUE, STOP = Verdict.CONTINUE, Verdict.STOP
NAN = math.nan

rates = st.floats(0.01, 0.99)
# Their square roots are exact or far from putting a quantile between two reports by rounding alone.
plain_rates = st.sampled_from([0.01, 0.04, 0.09, 0.1, 0.2, 0.25, 0.36, 0.49, 0.5, 0.64, 0.75, 0.81])


def selecting_at_once(phases: int = 2, rate: float = 0.25, seed: int = 0) -> HyperTrick:
    """One worker is less than any W^DCM needs, so nobody passes for being early."""
    return HyperTrick(workers=1, phases=phases, eviction_rate=rate, seed=seed)


def search(
    rule: HyperTrick, rng: np.random.Generator, nodes: int, metric: Callable[[int, int], float]
) -> list[int]:
    """A whole search: on each node a trial, whose next phase ends in a random order.

    The phases that each trial ran.
    """
    ran = [0] * rule.workers
    started = min(nodes, rule.workers)
    running = list(range(started))
    while running:
        place = int(rng.integers(len(running)))
        trial = running[place]
        verdict = rule.report(trial, ran[trial], metric(trial, ran[trial]))
        ran[trial] += 1
        if verdict is STOP or ran[trial] == rule.phases:
            if started < rule.workers:
                running[place] = started
                started += 1
            else:
                del running[place]
    return ran


@st.composite
def histories(draw: st.DrawFn, trials: int = 12, phases: int = 4) -> list[tuple[int, int, float]]:
    """Reports (trial, phase, metric) in which each trial's phases follow one another.

    Some metrics are equal, some NaN.
    """
    order = draw(st.lists(st.integers(0, trials - 1), max_size=40))
    done = [0] * trials
    history = []
    for trial in order:
        if done[trial] < phases:
            history.append(
                (trial, done[trial], draw(st.sampled_from([NAN, -1.0, 0.0, 1.0, 2.0, 3.5, 7.0])))
            )
            done[trial] += 1
    return history


# The paper's numbers.


@pytest.mark.parametrize(("phase", "workers"), [(0, 8), (1, 6), (2, 4)])
def test_workers_before_selection_as_in_the_running_example(phase: int, workers: int) -> None:
    assert workers_before_selection(16, 0.25, phase) == workers


@pytest.mark.parametrize(
    ("workers", "rate", "phase", "expected"),
    [(25, 0.64, 0, 5), (10, 0.81, 0, 1), (100, 0.01, 0, 90), (1, 0.25, 0, 0)],
)
def test_a_whole_number_is_not_lost_to_rounding(
    workers: int, rate: float, phase: int, expected: int
) -> None:
    assert workers_before_selection(workers, rate, phase) == expected


# With these denominators no exact value lies closer below a whole number than 1/16⁷ = 3.7e-9.
@given(
    st.integers(1, 5000),
    st.integers(2, 16).flatmap(lambda b: st.tuples(st.integers(1, b - 1), st.just(b))),
    st.integers(0, 3),
)
def test_workers_before_selection_is_exact_where_the_rate_is_a_square(
    workers: int, root: tuple[int, int], phase: int
) -> None:
    q = Fraction(*root)
    exact = workers * (1 - q) * (1 - q * q) ** phase
    assert workers_before_selection(workers, float(q * q), phase) == math.floor(exact)


@pytest.mark.parametrize(
    ("phases", "minimum", "expected"), [(10, 0.1887, 0.3775), (5, 0.3051, 0.6102)]
)
def test_table_1(phases: int, minimum: float, expected: float) -> None:
    assert completion_rate(0.25, phases) == pytest.approx(expected, abs=5.1e-5)
    assert minimum_completion_rate(0.25, phases) == pytest.approx(minimum, abs=5.1e-5)


def test_the_eviction_rate_that_matches_hyperband_is_not_quite_the_printed_one() -> None:
    assert eviction_rate_for(0.3261, 27) == pytest.approx(0.10846, abs=5e-6)
    assert completion_rate(0.1082, 27) == pytest.approx(0.3268, abs=5e-5)
    assert completion_rate(0.10846, 27) == pytest.approx(0.3261, abs=5e-5)


@given(st.floats(0.001, 0.999), st.integers(2, 100))
def test_eviction_rate_for_is_the_inverse_of_completion_rate(rate: float, phases: int) -> None:
    assert eviction_rate_for(completion_rate(rate, phases), phases) == pytest.approx(rate, abs=1e-9)


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


@given(st.integers(1, 60), st.integers(1, 8), rates, st.integers(1, 60), st.integers(0, 2**32))
def test_no_search_runs_fewer_phases_than_the_corrected_bound(
    workers: int, phases: int, rate: float, nodes: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    ran = search(
        HyperTrick(workers=workers, phases=phases, eviction_rate=rate),
        rng,
        nodes,
        lambda trial, phase: rng.normal(),
    )
    assert all(1 <= n <= phases for n in ran)
    assert sum(ran) >= fewest_phases(workers, rate, phases)


@given(st.integers(1, 60), st.integers(1, 8), rates)
def test_the_corrected_bound_is_reached_where_each_is_worse_than_all_before(
    workers: int, phases: int, rate: float
) -> None:
    rule = HyperTrick(workers=workers, phases=phases, eviction_rate=rate)
    ran = search(rule, np.random.default_rng(0), 1, lambda trial, phase: -trial)
    assert sum(ran) == fewest_phases(workers, rate, phases)


def test_the_worst_case_of_the_running_example() -> None:
    assert fewest_phases(16, 0.25, 4) == 16 + 8 + 6 + 4
    assert minimum_completion_rate(0.25, 4) * 16 * 4 == pytest.approx(8 + 6 + 4.5 + 3.375)
    # Rounding down may take more than the missing phase gives: of two workers over 100 phases one
    # may run them all.
    assert fewest_phases(2, 0.01, 100) == 101 < minimum_completion_rate(0.01, 100) * 200


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


@given(histories(), st.data())
def test_a_repeated_report_counts_once_and_gets_the_same_answer(
    history: list[tuple[int, int, float]], data: st.DataObject
) -> None:
    once, twice = (HyperTrick(workers=5, phases=4, eviction_rate=0.25) for _ in range(2))
    for n, (trial, phase, metric) in enumerate(history):
        decision = once.decide(trial, phase, metric)
        assert repr(twice.decide(trial, phase, metric)) == repr(decision)
        again = data.draw(st.sampled_from(history[: n + 1]))
        other = data.draw(st.floats())
        assert twice.decide(again[0], again[1], other) is twice.decide(*again)
    assert len(twice.decisions) == len(history)


@given(
    histories(),
    st.integers(0, 40),
    st.sampled_from([None, 5]),
    st.sampled_from([None, (1,)]),
    st.booleans(),
)
def test_a_restored_rule_goes_on_as_if_nothing_had_happened(
    history: list[tuple[int, int, float]],
    cut: int,
    cohort: int | None,
    decide_after: tuple[int, ...] | None,
    adaptive: bool,
) -> None:
    whole, before, after = (
        HyperTrick(
            workers=12,
            phases=4,
            eviction_rate=0.25,
            cohort=cohort,
            decide_after=decide_after,
            adaptive=adaptive,
            seed=3,
        )
        for _ in range(3)
    )
    expected = [whole.decide(*report) for report in history]
    for report in history[:cut]:
        before.decide(*report)
    after.restore(before.decisions)
    # By their text, since NaN does not equal itself.
    assert repr([after.decide(*report) for report in history[cut:]]) == repr(expected[cut:])
    assert repr(after.decisions) == repr(whole.decisions)
    assert repr([after.decide(*report) for report in history]) == repr(expected)


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


@pytest.mark.parametrize("value", [0, -1, True, 2.0, None, "3"])
@pytest.mark.parametrize("name", ["workers", "phases", "cohort"])
def test_a_number_of_workers_or_phases_that_is_none_is_named(name: str, value: object) -> None:
    if (name, value) == ("cohort", None):
        return
    settings: dict[str, object] = {"workers": 4, "phases": 3, "eviction_rate": 0.25, name: value}
    with pytest.raises(ConfigurationError, match=f"{name} = {value!r}"):
        HyperTrick(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [0, 1, 0.0, 1.0, -0.1, 1.1, NAN, math.inf, True, None, "0.25"])
def test_an_eviction_rate_out_of_range_is_named(rate: float) -> None:
    calls: list[Callable[[], object]] = [
        lambda: HyperTrick(workers=4, phases=3, eviction_rate=rate),
        lambda: workers_before_selection(4, rate, 0),
        lambda: expected_workers(4, rate, 0),
        lambda: completion_rate(rate, 3),
        lambda: minimum_completion_rate(rate, 3),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match=f"eviction_rate = {rate!r}"):
            call()


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


@pytest.mark.parametrize("decide_after", [(2,), (-1,), (1, 0), (0, 0), (0.5,), (True,), ("0",)])
def test_decisions_after_no_phase_are_named(decide_after: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="decide_after = "):
        HyperTrick(workers=4, phases=3, eviction_rate=0.25, decide_after=decide_after)


@pytest.mark.parametrize("target", [0.2, 0.1, 1.0, 0.0, 2.0, NAN])
def test_a_completion_rate_that_cannot_be_reached_is_named(target: float) -> None:
    with pytest.raises(ConfigurationError, match=f"completion rate = {target!r}"):
        eviction_rate_for(target, 5)


@pytest.mark.parametrize("factor", [1, 0, True, 2.5])
def test_a_factor_below_two_is_named(factor: int) -> None:
    with pytest.raises(ConfigurationError, match=f"factor = {factor!r}"):
        geometric_phases(27, factor)


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
        found.append(searched(rule, rng))
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
    metrics=st.lists(
        st.one_of(st.just(NAN), st.floats(-9, 9)), min_size=120, max_size=120, unique=True
    ),
    order=st.randoms(use_true_random=False),
)
@settings(phases=(Phase.reuse, Phase.generate))  # shrinking 120 numbers takes minutes
def test_every_verdict_is_the_law_s(
    workers: int,
    rate: float,
    geometric: bool,
    adaptive: bool,
    metrics: list[float],
    order: object,
) -> None:
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
        trial = order.choice(sorted(running))  # type: ignore[attr-defined]
        phase, metric = running[trial], metrics[trial * phases + running[trial]]
        expected = judged_by_counting(rule, history, trial, phase, metric)
        decision = rule.decide(trial, phase, metric)
        assert decision.verdict is expected
        assert rule.decide(trial, phase, 0.0) == decision or math.isnan(metric)
        history.append(decision)
        running[trial] += 1
        if decision.verdict is Verdict.STOP or running[trial] == phases:
            del running[trial]


def test_values_of_the_quantile() -> None:
    """16 workers, r = 25 %: 8 pass, then half of the rest must be stopped.

    Each that passes too many raises the bar.
    """
    rule = HyperTrick(workers=16, phases=4, eviction_rate=0.25, adaptive=True)
    for trial in range(8):
        assert rule.decide(trial, 0, trial).mode is Mode.COLLECTION
    # 12 shall pass and 8 have; 8 are left: quantile 1 − 4/8, so at least 4 of the 8 before it must
    # be worse.
    assert rule.report(8, 0, 3.5) is Verdict.CONTINUE
    # 3 places for 7: at least ⌈9·4/7⌉ = 6 of 9.
    assert rule.report(9, 0, 4.6) is Verdict.CONTINUE
    # 2 for 6: at least ⌈10·4/6⌉ = 7 of 10.
    assert rule.report(10, 0, 4.7) is Verdict.CONTINUE
    # 1 for 5: at least ⌈11·4/5⌉ = 9 of 11.
    assert rule.report(11, 0, 4.9) is Verdict.STOP
    # 1 for 4: at least 9 of 12.
    assert rule.report(12, 0, 5.6) is Verdict.CONTINUE
    # No place is left: only what is better than all.
    assert rule.report(13, 0, 6.9) is Verdict.STOP
    assert rule.report(14, 0, 7.1) is Verdict.CONTINUE
    assert rule.report(15, 0, NAN) is Verdict.STOP
