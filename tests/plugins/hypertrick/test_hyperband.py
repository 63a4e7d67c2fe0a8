"""Halving: by values, the asynchronous form against Optuna's pruners, the other by its laws."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.pruners import BasePruner, HyperbandPruner, SuccessiveHalvingPruner

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.hyperband import Halving, SynchronousHalving, bracket_sizes
from genkidama.plugins.hypertrick.rule import Mode, Verdict

CONTINUE = Verdict.CONTINUE
STOP = Verdict.STOP
PAUSE = Verdict.PAUSE


class InTurns(HyperbandPruner):
    """Optuna's, but for the bracket of a trial, which it draws by a hash."""

    def __init__(self, rule: Halving, **options: Any) -> None:
        super().__init__(**options)
        self.rule = rule

    def _get_bracket_id(self, study: Any, trial: Any) -> int:
        return self.rule.bracket(trial.number)


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
    brackets = [rule.bracket(trial) for trial in range(98)]
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


@pytest.mark.parametrize(
    ("workers", "brackets"), [(30, False), (49, True), (120, True), (3, True), (1, False)]
)
def test_as_many_phases_are_run_as_expected_of_pure_chance(workers: int, brackets: bool) -> None:
    ran = 0
    searches = max(15, min(60, 2000 // workers))
    for seed in range(searches):
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
    assert ran / (searches * workers * 27) == pytest.approx(expected, rel=0.1)


def test_what_is_no_rule_is_refused() -> None:
    for faults in ({"workers": 0}, {"phases": 0}, {"factor": 1}, {"least": 0}):
        with pytest.raises(ConfigurationError, match=rf"{next(iter(faults))} = \d: a whole number"):
            Halving(**{"workers": 4, "phases": 9, "factor": 3, **faults})


# With waiting.


def test_a_rung_waits_for_all_its_trials_by_values() -> None:
    rule = SynchronousHalving(workers=7, phases=9, factor=3)
    for trial, metric in enumerate([3.0, 9.0, 4.0, 9.0, 1.0, math.nan]):
        verdict = STOP if math.isnan(metric) else PAUSE
        assert rule.report(trial, 0, metric) is verdict
        assert rule.settle() == []
    last = rule.decide(6, 0, 5.0)
    assert (last.mode, last.verdict, last.order, last.worse) == (Mode.SELECTION, PAUSE, 7, 4)
    # Two of seven continue, the failed one counted: of equal ones the first.
    assert [(each.trial, each.verdict) for each in rule.settle()] == [
        *((1, CONTINUE), (3, CONTINUE)),
        *((6, STOP), (2, STOP), (0, STOP), (4, STOP)),
    ]
    assert rule.settle() == []
    assert rule.decide(1, 1, 7.0).mode is Mode.NONE
    assert rule.report(1, 2, 7.0) is PAUSE
    assert rule.report(3, 1, math.nan) is STOP  # it fails on its way to the rung, and holds none up
    assert [(each.trial, each.verdict) for each in rule.settle()] == [(1, CONTINUE)]
    assert rule.report(1, 8, 0.0) is CONTINUE


def test_the_brackets_are_those_of_both_papers_tables() -> None:
    assert bracket_sizes(81, 3, as_in_tables=True) == (81, 27, 9, 6, 5)  # Li et al. 2016, table 1
    sizes = bracket_sizes(27, 3, as_in_tables=True)
    assert sizes == (27, 9, 6, 4)  # Heinrich and Frosio, table 2
    budgets = []
    for first, size in zip((0, 27, 36, 42), sizes, strict=True):
        search = Waiting(SynchronousHalving(**TABLE_2, restart=True))
        search.run(range(first, first + size))
        budgets.append(search.phases)
    # n_i · r_i, summed over the rounds of each bracket.
    assert budgets == [
        27 * 1 + 9 * 3 + 3 * 9 + 1 * 27,
        9 * 3 + 3 * 9 + 1 * 27,
        6 * 9 + 2 * 27,
        4 * 27,
    ]


TABLE_2: dict[str, Any] = {"workers": 46, "phases": 27, "factor": 3, "brackets": True}


def test_with_restarts_each_rung_begins_anew() -> None:
    rule = SynchronousHalving(workers=9, phases=9, factor=3, restart=True)
    assert rule.length(0) == 1 + 3 + 9
    assert [rule.began(0, phase) for phase in range(13)] == [0, 1, 1, 1] + [4] * 9
    plain = SynchronousHalving(workers=9, phases=9, factor=3)
    assert plain.length(0) == 9 and {plain.began(0, phase) for phase in range(9)} == {0}


class Waiting:
    """Trials that are run as the rule lets them, in any order, with a metric of each own."""

    def __init__(self, rule: SynchronousHalving, seed: int = 0, failing: float = 0.0) -> None:
        self.rule = rule
        self.chance = random.Random(seed)
        self.failing = failing
        self.phases = 0
        self.ran: Counter[int] = Counter()
        self.states: dict[int, Verdict] = {}
        #: By trial, the phases after which it was chosen.
        self.chosen: dict[int, list[int]] = {}

    def run(self, trials: range) -> None:
        ready = [*trials]
        while ready:
            trial = ready.pop(self.chance.randrange(len(ready)))
            own = random.Random(f"{trial} {self.ran[trial]}")
            metric = math.nan if own.random() < self.failing else float(own.randrange(5))
            verdict = self.rule.report(trial, self.ran[trial], metric)
            self.ran[trial] += 1
            self.phases += 1
            self.states[trial] = verdict
            if verdict is CONTINUE and self.ran[trial] < self.rule.length(trial):
                ready.append(trial)
            for each in self.rule.settle():
                assert self.states[each.trial] is PAUSE
                self.states[each.trial] = each.verdict
                if each.verdict is CONTINUE:
                    self.chosen.setdefault(each.trial, []).append(each.phase)
                    ready.append(each.trial)


@given(
    trials=st.integers(1, 40),
    phases=st.integers(1, 30),
    factor=st.integers(2, 5),
    brackets=st.booleans(),
    restart=st.booleans(),
    failing=st.sampled_from([0.0, 0.1, 0.9]),
    seed=st.integers(0, 2**32),
)
def test_no_trial_waits_for_ever_or_is_chosen_twice_whatever_the_order(
    trials: int,
    phases: int,
    factor: int,
    brackets: bool,
    restart: bool,
    failing: float,
    seed: int,
) -> None:
    def make() -> SynchronousHalving:
        return SynchronousHalving(
            workers=trials, phases=phases, factor=factor, brackets=brackets, restart=restart
        )

    search, other = Waiting(make(), seed, failing), Waiting(make(), seed + 1, failing)
    search.run(range(trials))
    other.run(range(trials))
    assert set(search.states) == set(range(trials))
    assert PAUSE not in search.states.values()
    for phase_ends in search.chosen.values():
        assert len(phase_ends) == len(set(phase_ends))
    assert (search.states, search.chosen) == (other.states, other.chosen)
    if not failing:
        assert search.rule.expected_completion_rate == search.phases / (trials * phases)
    # What is restored from the reports, before anything was settled, decides the same.
    restored = make()
    restored.restore(
        msgspec.structs.replace(each, verdict=PAUSE) if each.mode is Mode.SELECTION else each
        for each in search.rule.decisions
    )
    restored.settle()
    assert restored.decisions == search.rule.decisions


def test_more_trials_than_before_open_a_rung_again() -> None:
    first = SynchronousHalving(workers=4, phases=2, factor=2)
    for trial in range(4):
        first.report(trial, 0, float(trial))
    assert [each.trial for each in first.settle() if each.verdict is CONTINUE] == [3, 2]
    more = SynchronousHalving(workers=6, phases=2, factor=2)
    more.restore(first.decisions)
    assert more.settle() == []
    more.report(4, 0, 9.0)
    more.report(5, 0, 0.0)
    assert [(each.trial, each.verdict) for each in more.settle()] == [(4, CONTINUE), (5, STOP)]
