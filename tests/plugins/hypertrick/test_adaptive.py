from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from genkidama.plugins.hypertrick.equations import (
    completion_rate,
    eviction_rate_for,
    geometric_phases,
    workers_before_selection,
)
from genkidama.plugins.hypertrick.rule import Decision, HyperTrick, Mode, Verdict
from studies.hypertrick.methods import hypertrick
from studies.hypertrick.problems import learning_curves
from studies.hypertrick.simulator import simulate

NAN = math.nan


def quantile_by_counting(rule: HyperTrick, history: list[Decision], phase: int) -> Fraction | None:
    """The law of the controller for one population, from all decisions before the report.

    None if no arrivals are left.
    """
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
    assert quantile is not None
    return Verdict.STOP if worse < len(others) * quantile - Fraction(1, 10**9) else Verdict.CONTINUE


@given(
    workers=st.integers(1, 24),
    rate=st.sampled_from([1 / 16, 0.25, 0.5, 2 / 3, 0.9]),
    geometric=st.booleans(),
    metrics=st.lists(
        st.one_of(st.just(NAN), st.floats(-9, 9)), min_size=120, max_size=120, unique=True
    ),
    order=st.randoms(use_true_random=False),
)
@settings(phases=(Phase.reuse, Phase.generate))  # shrinking 120 numbers takes minutes
def test_every_verdict_is_the_law_s(
    workers: int, rate: float, geometric: bool, metrics: list[float], order: object
) -> None:
    phases = 5
    rule = HyperTrick(
        workers=workers,
        phases=phases,
        eviction_rate=rate,
        decide_after=geometric_phases(phases, 2) if geometric else None,
        adaptive=True,
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


def test_more_arrivals_than_expected_are_counted() -> None:
    """If 5 instead of 4 passed the first decision, the second has 5 arrivals to choose 2 from."""
    rule = HyperTrick(workers=8, phases=3, eviction_rate=0.5, adaptive=True)
    for trial, metric in enumerate([1, 2, 3, 4, 5, 0, 0.1, 0.2]):
        rule.report(trial, 0, metric)
    assert [
        decision.trial for decision in rule.decisions if decision.verdict is Verdict.CONTINUE
    ] == [0, 1, 2, 3, 4]
    assert rule.decide(0, 1, 2.0).mode is Mode.COLLECTION
    # 1 place for 4 arrivals: 3/4 of one report before it, so it must be better.
    assert rule.report(1, 1, 1.0) is Verdict.STOP
    assert rule.report(2, 1, 3.0) is Verdict.CONTINUE
    # None for 2: only a new best.
    assert rule.report(3, 1, 2.5) is Verdict.STOP
    assert rule.report(4, 1, 4.0) is Verdict.CONTINUE


def test_it_is_off_by_default_and_changes_nothing_before_selection() -> None:
    assert not HyperTrick(workers=16, phases=4, eviction_rate=0.25).adaptive
    plain, adaptive = (
        HyperTrick(workers=16, phases=4, eviction_rate=0.25, adaptive=adaptive)
        for adaptive in (False, True)
    )
    for trial in range(9):
        assert plain.decide(trial, 0, -trial) == adaptive.decide(trial, 0, -trial)


@given(
    stop_at=st.integers(0, 60),
    cohort=st.sampled_from([None, 6]),
    metrics=st.lists(st.floats(0, 1), min_size=60, max_size=60),
)
@settings(max_examples=50)
def test_a_restored_rule_decides_as_the_one_that_never_stopped(
    stop_at: int, cohort: int | None, metrics: list[float]
) -> None:
    def make() -> HyperTrick:
        return HyperTrick(
            workers=15, phases=4, eviction_rate=0.4, cohort=cohort, adaptive=True, seed=3
        )

    def play(rule: HyperTrick, stopped: set[int], first: int, last: int) -> None:
        for number in range(first, last):
            phase, trial = divmod(number, 15)
            if trial not in stopped and rule.report(trial, phase, metrics[number]) is Verdict.STOP:
                stopped.add(trial)

    whole, before, after = make(), make(), make()
    play(whole, set(), 0, 60)
    stopped: set[int] = set()
    play(before, stopped, 0, stop_at)
    after.restore(before.decisions)
    play(after, stopped, stop_at, 60)
    assert after.decisions == whole.decisions


def overshoot(
    *, adaptive: bool, workers: int, phases: int, target: float, name: str, seeds: int
) -> float:
    """Mean points of completion rate above equation 9, searches run to their end on 8 nodes."""
    rate = eviction_rate_for(target, phases)
    found = []
    for seed in range(seeds):
        rule = HyperTrick(
            workers=workers, phases=phases, eviction_rate=rate, adaptive=adaptive, seed=seed
        )
        outcome = simulate(learning_curves(name, seed, phases=phases), hypertrick(rule), [1.0] * 8)
        assert len(outcome.configurations) == workers
        found.append(100 * (outcome.completion_rate - completion_rate(rate, phases)))
    return float(np.mean(found))


@pytest.mark.parametrize(
    ("name", "phases", "target"),
    [("steady", 10, 0.3775), ("crossing", 10, 0.3775), ("steady", 27, 0.3261)],
)
def test_where_ranks_persist_it_keeps_to_equation_9(name: str, phases: int, target: float) -> None:
    plain, adaptive = (
        overshoot(adaptive=adaptive, workers=100, phases=phases, target=target, name=name, seeds=6)
        for adaptive in (False, True)
    )
    assert plain > 8
    assert abs(adaptive) < 2


def test_where_metrics_are_independent_draws_it_keeps_the_published_rate() -> None:
    """The proof's own assumption: the controller has nothing to correct, and must not spoil it."""
    rng = np.random.default_rng(0)
    rates: dict[bool, list[float]] = {False: [], True: []}
    for adaptive, found in rates.items():
        for _ in range(40):
            rule = HyperTrick(workers=100, phases=10, eviction_rate=0.25, adaptive=adaptive)
            done = 0
            for trial in range(100):
                for phase in range(10):
                    done += 1
                    if rule.report(trial, phase, float(rng.random())) is Verdict.STOP:
                        break
            found.append(done / 1000)
    expected = completion_rate(0.25, 10)
    assert abs(np.mean(rates[True]) - expected) < 0.03
    assert np.std(rates[True]) < np.std(rates[False])
