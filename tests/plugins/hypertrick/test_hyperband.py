"""ASHA's and Hyperband's rule against Optuna's pruners, by values, and against pure chance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.pruners import BasePruner, HyperbandPruner, SuccessiveHalvingPruner

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.hyperband import Halving, bracket_sizes
from genkidama.plugins.hypertrick.rule import Mode, Verdict

CONTINUE = Verdict.CONTINUE
STOP = Verdict.STOP


class InTurns(HyperbandPruner):
    """Optuna's, but for the bracket of a trial, which it draws by a hash."""

    def __init__(self, rule: Halving, **options: Any) -> None:
        super().__init__(**options)
        self.rule = rule

    def _get_bracket_id(self, study: Any, trial: Any) -> int:
        return self.rule.peers(trial.number)


def reports(trials: int, phases: int, rng: np.random.Generator, rule: Halving) -> list[Any]:
    """A search with up to four trials at once: (trial, phase, metric), as the rule lets them."""
    found = []
    ran = [0] * trials
    begun = min(4, trials)
    running = list(range(begun))
    while running:
        trial = running[int(rng.integers(len(running)))]
        metric = float(rng.integers(12))  # some are equal
        found.append((trial, ran[trial], metric))
        ran[trial] += 1
        if rule.report(*found[-1]) is STOP or ran[trial] == phases:
            running.remove(trial)
            if begun < trials:
                running.append(begun)
                begun += 1
    return found


@given(
    trials=st.integers(1, 40),
    phases=st.integers(1, 30),
    factor=st.integers(2, 5),
    least=st.integers(1, 4),
    brackets=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_verdicts_are_those_of_optunas_pruners(
    trials: int, phases: int, factor: int, least: int, brackets: bool, seed: int
) -> None:
    least = min(least, phases)
    rule = Halving(workers=trials, phases=phases, factor=factor, least=least, brackets=brackets)
    optunas: BasePruner = (
        InTurns(rule, min_resource=least, max_resource=phases, reduction_factor=factor)
        if brackets
        else SuccessiveHalvingPruner(min_resource=least, reduction_factor=factor)
    )
    study = optuna.create_study(direction="maximize", pruner=optunas)
    theirs = [study.ask() for _ in range(trials)]
    for trial, phase, metric in reports(trials, phases, np.random.default_rng(seed), rule):
        # Optuna counts steps from 1. Nothing is to be stopped after the last.
        theirs[trial].report(metric, phase + 1)
        stops = phase < phases - 1 and theirs[trial].should_prune()
        assert rule.report(trial, phase, metric) is (STOP if stops else CONTINUE)


@given(st.integers(1, 250), st.integers(2, 6), st.integers(1, 9))
def test_brackets_are_as_large_as_optunas(phases: int, factor: int, least: int) -> None:
    sizes = bracket_sizes(phases, factor, least)
    theirs = HyperbandPruner(min_resource=least, max_resource=phases, reduction_factor=factor)
    theirs._n_brackets = len(sizes)  # they take it from a logarithm, which is wrong for 243 and 3
    theirs._try_initialization(optuna.create_study())
    assert list(sizes) == theirs._trial_allocation_budgets
    assert least * factor ** (len(sizes) - 1) <= max(phases, least) < least * factor ** len(sizes)


def test_trials_fill_the_brackets_in_turn() -> None:
    rule = Halving(workers=100, phases=27, factor=3, brackets=True)
    brackets = [rule.peers(trial) for trial in range(98)]
    assert brackets[:49] == [0] * 27 + [1] * 12 + [2] * 6 + [3] * 4 == brackets[49:]
    modes = {
        bracket: [rule.decide(trial, p, 1.0).mode for p in range(27)]
        for bracket, trial in ((0, 0), (1, 27), (2, 39), (3, 45))
    }
    for bracket, found in modes.items():
        rungs = {0: (0, 2, 8), 1: (2, 8), 2: (8,), 3: ()}[bracket]
        assert tuple(p for p in range(27) if found[p] is Mode.SELECTION) == rungs


def test_one_of_four_goes_on_by_values() -> None:
    rule = Halving(workers=9, phases=4, factor=4)
    said = [
        rule.decide(trial, 0, metric) for trial, metric in enumerate([3, 2, 4, 1, 3.5, 9, 4, 4])
    ]
    assert [each.verdict for each in said] == [
        *(CONTINUE, STOP, CONTINUE, STOP),
        *(STOP, CONTINUE),
        *(STOP, CONTINUE),  # the first two of eight; equal ones pass together
    ]
    assert [(each.order, each.worse) for each in said[:4]] == [(1, 0), (2, 0), (3, 2), (4, 0)]
    assert rule.decide(0, 3, 1.0).mode is Mode.NONE


def test_nan_stops_at_once_and_counts_as_the_worst() -> None:
    rule = Halving(workers=9, phases=9, factor=2, least=2)
    assert rule.decide(0, 0, math.nan).mode is Mode.FAILURE
    for trial in (1, 2):
        assert rule.decide(trial, 1, math.nan).verdict is STOP
    assert rule.decide(3, 1, 5.0).worse == 2
    assert rule.decide(4, 1, 5.0).verdict is CONTINUE
    assert rule.decide(4, 1, 0.0).metric == 5.0  # answered again, counted once
    assert len(rule.decisions) == 5


@pytest.mark.parametrize("brackets", [False, True])
def test_after_a_restart_it_goes_on_as_if_nothing_had_happened(brackets: bool) -> None:
    def make() -> Halving:
        return Halving(workers=40, phases=9, factor=3, brackets=brackets)

    told = reports(40, 9, np.random.default_rng(5), make())
    for cut in (0, 7, len(told) // 2):
        whole = make()
        for each in told[:cut]:
            whole.decide(*each)
        restored = make()
        restored.restore(whole.decisions)
        assert [whole.decide(*each) for each in told[cut:]] == [
            restored.decide(*each) for each in told[cut:]
        ]
        assert restored.decisions == whole.decisions


@pytest.mark.parametrize(
    ("workers", "brackets"), [(30, False), (49, True), (120, True), (3, True), (1, False)]
)
def test_as_many_phases_are_run_as_expected_of_pure_chance(workers: int, brackets: bool) -> None:
    ran = 0
    for seed in range(60):
        rule = Halving(workers=workers, phases=27, factor=3, brackets=brackets)
        rng = np.random.default_rng(seed)
        for trial in range(workers):
            phase = 0
            while phase < 27 and rule.report(trial, phase, rng.random()) is CONTINUE:
                phase += 1
            ran += min(phase + 1, 27)
    expected = Halving(
        workers=workers, phases=27, factor=3, brackets=brackets
    ).expected_completion_rate
    assert ran / (60 * workers * 27) == pytest.approx(expected, rel=0.1)


def test_what_is_no_rule_is_refused() -> None:
    for faults in ({"workers": 0}, {"phases": 0}, {"factor": 1}, {"least": 0}):
        with pytest.raises(ConfigurationError, match=rf"{next(iter(faults))} = \d: a whole number"):
            Halving(**{"workers": 4, "phases": 9, "factor": 3, **faults})
