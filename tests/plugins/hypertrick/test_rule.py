"""HyperTrick's rule against the paper's numbers, its example, and slow and obvious oracles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick import (
    Decision,
    HyperTrick,
    Mode,
    Verdict,
    completion_rate,
    eviction_rate_for,
    expected_workers,
    geometric_phases,
    hyperband_brackets,
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


@given(st.integers(1, 5000), rates, st.integers(0, 40))
def test_workers_before_selection_is_rounded_down_at_any_rate(
    workers: int, rate: float, phase: int
) -> None:
    with localcontext(prec=60):
        exact = workers * (1 - Decimal(rate).sqrt()) * (1 - Decimal(rate)) ** phase
        assume(math.ceil(exact) - exact > Decimal("3e-9"))
        assert workers_before_selection(workers, rate, phase) == math.floor(exact)


@pytest.mark.parametrize(("phase", "expected"), [(0, 16), (1, 12), (2, 9), (3, 6.75)])
def test_expected_workers_of_the_running_example(phase: int, expected: float) -> None:
    assert expected_workers(16, 0.25, phase) == expected


@given(st.integers(1, 1000), rates, st.integers(0, 30))
def test_of_those_who_come_late_the_share_root_r_is_a_share_r_of_all(
    workers: int, rate: float, phase: int
) -> None:
    """Equations 3 to 5, with the W_p^DCM that is not rounded."""
    expected = expected_workers(workers, rate, phase)
    late = expected - workers * (1 - math.sqrt(rate)) * (1 - rate) ** phase
    assert expected - math.sqrt(rate) * late == pytest.approx(
        expected_workers(workers, rate, phase + 1)
    )


@pytest.mark.parametrize(
    ("phases", "minimum", "expected"), [(10, 0.1887, 0.3775), (5, 0.3051, 0.6102)]
)
def test_table_1(phases: int, minimum: float, expected: float) -> None:
    assert completion_rate(0.25, phases) == pytest.approx(expected, abs=5.1e-5)
    assert minimum_completion_rate(0.25, phases) == pytest.approx(minimum, abs=5.1e-5)


@given(rates, st.integers(1, 40))
def test_the_completion_rates_are_the_sums_they_come_from(rate: float, phases: int) -> None:
    expected = sum(expected_workers(1, rate, phase) for phase in range(phases)) / phases
    assert completion_rate(rate, phases) == pytest.approx(expected)
    assert minimum_completion_rate(rate, phases) == pytest.approx((1 - math.sqrt(rate)) * expected)


def test_the_eviction_rate_that_matches_hyperband_is_not_quite_the_printed_one() -> None:
    assert eviction_rate_for(0.3261, 27) == pytest.approx(0.10846, abs=5e-6)
    assert completion_rate(0.1082, 27) == pytest.approx(0.3268, abs=5e-5)
    assert completion_rate(0.10846, 27) == pytest.approx(0.3261, abs=5e-5)


@given(st.floats(0.001, 0.999), st.integers(2, 100))
def test_eviction_rate_for_is_the_inverse_of_completion_rate(rate: float, phases: int) -> None:
    assert eviction_rate_for(completion_rate(rate, phases), phases) == pytest.approx(rate, abs=1e-9)


def test_table_2() -> None:
    brackets = hyperband_brackets(27)
    assert [bracket.s for bracket in brackets] == [3, 2, 1, 0]
    assert [bracket.rounds for bracket in brackets] == [
        ((27, 1), (9, 3), (3, 9), (1, 27)),
        ((9, 3), (3, 9), (1, 27)),
        ((6, 9), (2, 27)),
        ((4, 27),),
    ]
    assert [round(100 * bracket.completion_rate, 2) for bracket in brackets] == [
        14.81,
        33.33,
        66.67,
        100.0,
    ]
    started = sum(bracket.rounds[0][0] for bracket in brackets)
    spent = sum(n * r for bracket in brackets for n, r in bracket.rounds)
    assert started == 46
    assert round(100 * spent / (started * 27), 2) == 32.61


def test_hyperbands_own_table() -> None:
    """Li et al. 2016, table 1: R = 81, η = 3."""
    brackets = hyperband_brackets(81)
    assert [bracket.rounds[0] for bracket in brackets] == [
        (81, 1),
        (27, 3),
        (9, 9),
        (6, 27),
        (5, 81),
    ]
    assert brackets[0].rounds == ((81, 1), (27, 3), (9, 9), (3, 27), (1, 81))


@given(st.integers(1, 300), st.integers(2, 5))
def test_each_bracket_ends_at_the_whole_resource(resource: int, factor: int) -> None:
    for bracket in hyperband_brackets(resource, factor):
        assert bracket.rounds[-1][1] == resource
        assert len(bracket.rounds) == bracket.s + 1
        assert all(
            later[0] == earlier[0] // factor and later[1] > earlier[1]
            for earlier, later in pairwise(bracket.rounds)
        )


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


# The readings.


@given(st.integers(1, 40), plain_rates, st.integers(0, 2), st.data())
def test_the_first_pass_whatever_they_report_and_no_more(
    workers: int, rate: float, phase: int, data: st.DataObject
) -> None:
    rule = HyperTrick(workers=workers, phases=4, eviction_rate=rate)
    early = workers_before_selection(workers, rate, phase)
    metrics = data.draw(st.lists(st.floats(-1e9, 1e9), min_size=early + 1, max_size=early + 1))
    decisions = [rule.decide(trial, phase, metric) for trial, metric in enumerate(metrics)]
    assert [decision.order for decision in decisions] == list(range(1, early + 2))
    assert all(
        decision.mode is Mode.COLLECTION and decision.verdict is CONTINUE
        for decision in decisions[:early]
    )
    assert decisions[early].mode is Mode.SELECTION


@given(st.lists(st.integers(-1000, 1000), unique=True, max_size=40), plain_rates)
def test_late_reporters_are_stopped_strictly_below_the_quantile_of_all_reports_and_their_own(
    metrics: list[int], rate: float
) -> None:
    rule = selecting_at_once(rate=rate)
    for n, metric in enumerate(metrics):
        quantile = np.quantile(metrics[: n + 1], math.sqrt(rate))
        expected = STOP if metric < quantile - 1e-6 else CONTINUE
        assert rule.report(n, 0, metric) is expected


def test_a_metric_that_is_the_quantile_itself_passes() -> None:
    rule = selecting_at_once()
    assert [rule.report(trial, 0, metric) for trial, metric in enumerate([1, 3, 2])] == [
        CONTINUE
    ] * 3
    assert rule.report(3, 0, 1.5) is STOP


def test_phases_do_not_see_each_other() -> None:
    rule = selecting_at_once(phases=3)
    for trial in range(10):
        rule.report(trial, 0, 100 + trial)
    assert rule.decide(10, 1, -5) == Decision(
        10, 1, -5, order=1, worse=0, mode=Mode.SELECTION, verdict=CONTINUE
    )


@given(st.integers(1, 20), st.lists(st.floats(allow_nan=False), max_size=20))
def test_nothing_is_decided_after_the_last_phase(phases: int, metrics: list[float]) -> None:
    rule = selecting_at_once(phases)
    for trial, metric in enumerate(metrics):
        decision = rule.decide(trial, phases - 1, metric)
        assert (decision.mode, decision.verdict) == (Mode.NONE, CONTINUE)


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


@given(st.integers(1, 60), st.integers(1, 8), rates)
def test_equation_8_is_too_low_to_be_reached_but_for_rounding_down(
    workers: int, phases: int, rate: float
) -> None:
    equation = minimum_completion_rate(rate, phases) * workers * phases
    lost = sum(
        (workers * (1 - math.sqrt(rate)) * (1 - rate) ** phase) % 1 for phase in range(phases - 1)
    )
    assert fewest_phases(workers, rate, phases) + lost > equation


def test_the_worst_case_of_the_running_example() -> None:
    assert fewest_phases(16, 0.25, 4) == 16 + 8 + 6 + 4
    assert minimum_completion_rate(0.25, 4) * 16 * 4 == pytest.approx(8 + 6 + 4.5 + 3.375)
    # Rounding down may take more than the missing phase gives: of two workers over 100 phases one
    # may run them all.
    assert fewest_phases(2, 0.01, 100) == 101 < minimum_completion_rate(0.01, 100) * 200


def test_the_expected_number_of_workers_where_metrics_are_stationary() -> None:
    """Equation 1, under the assumption of its proof: a metric says nothing about the next."""
    workers, phases, rate, searches = 200, 5, 0.25, 60
    rng = np.random.default_rng(7)
    reached = np.empty((searches, phases))
    for n in range(searches):
        rule = HyperTrick(workers=workers, phases=phases, eviction_rate=rate)
        ran = np.array(search(rule, rng, 16, lambda trial, phase: rng.normal()))
        reached[n] = [(ran > phase).sum() for phase in range(phases)]
    assert (reached[:, 0] == workers).all()
    expected = np.array([expected_workers(workers, rate, phase) for phase in range(1, phases)])
    error = reached[:, 1:].std(axis=0, ddof=1) / math.sqrt(searches)
    # Whole trials cannot be cut at √r: rounding W^DCM, and n·√r of a few reports, cost up to one
    # trial a phase.
    assert (np.abs(reached[:, 1:].mean(axis=0) - expected) < 4 * error + 1).all()


# Ties, failures, repetitions.


@pytest.mark.parametrize("rate", [0.09, 0.25, 0.64])
def test_equal_metrics_stop_the_right_share(rate: float) -> None:
    workers = 2000
    rule = HyperTrick(workers=workers, phases=2, eviction_rate=rate, seed=5)
    stopped = sum(rule.report(trial, 0, 1.0) is STOP for trial in range(workers))
    late = workers - workers_before_selection(workers, rate, 0)
    q = math.sqrt(rate)
    assert abs(stopped - q * late) < 4 * math.sqrt(late * q * (1 - q))


@given(histories(), st.integers(0, 3))
def test_the_same_reports_give_the_same_verdicts(
    history: list[tuple[int, int, float]], seed: int
) -> None:
    first, second = (
        HyperTrick(workers=3, phases=4, eviction_rate=0.25, seed=seed) for _ in range(2)
    )
    assert [first.report(*report) for report in history] == [
        second.report(*report) for report in history
    ]


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


def test_failures_count_as_reports() -> None:
    rule = HyperTrick(workers=4, phases=2, eviction_rate=0.25)  # two pass
    assert [rule.report(trial, 0, NAN) for trial in range(2)] == [STOP, STOP]
    assert rule.decide(2, 0, -1.0) == Decision(
        2, 0, -1.0, order=3, worse=2, mode=Mode.SELECTION, verdict=CONTINUE
    )
    assert rule.report(3, 0, -2.0) is CONTINUE  # two of four are worse
    assert rule.report(4, 0, -3.0) is CONTINUE  # two of five: the median itself


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


@given(histories(), st.integers(0, 40), st.sampled_from([None, 5]), st.sampled_from([None, (1,)]))
def test_a_restored_rule_goes_on_as_if_nothing_had_happened(
    history: list[tuple[int, int, float]],
    cut: int,
    cohort: int | None,
    decide_after: tuple[int, ...] | None,
) -> None:
    whole, before, after = (
        HyperTrick(
            workers=12,
            phases=4,
            eviction_rate=0.25,
            cohort=cohort,
            decide_after=decide_after,
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


@given(st.permutations(range(12)), plain_rates, st.sets(st.integers(0, 5), max_size=6).map(sorted))
def test_the_exponent_counts_decisions_where_only_some_phases_have_one(
    order: Sequence[int], rate: float, chosen: list[int]
) -> None:
    rule = HyperTrick(workers=12, phases=7, eviction_rate=rate, decide_after=chosen)
    dense = HyperTrick(workers=12, phases=len(chosen) + 1, eviction_rate=rate)
    for phase in range(7):
        for trial in order:
            metric = float(trial * 5 % 12)
            decision = rule.decide(trial, phase, metric)
            if phase in chosen:
                oracle = dense.decide(trial, chosen.index(phase), metric)
                assert (decision.order, decision.worse, decision.mode, decision.verdict) == (
                    oracle.order,
                    oracle.worse,
                    oracle.mode,
                    oracle.verdict,
                )
            else:
                assert (decision.mode, decision.verdict) == (Mode.NONE, CONTINUE)


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
    with pytest.raises(ConfigurationError, match=f"factor = {factor!r}"):
        hyperband_brackets(27, factor)
