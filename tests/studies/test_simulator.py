from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.hypertrick.equations import geometric_phases, hyperband_brackets
from genkidama.hypertrick.rule import HyperTrick
from studies.hypertrick.methods import (
    Asha,
    Halving,
    Independent,
    hypertrick,
    random_search,
    rounds_of,
)
from studies.hypertrick.problems import LEARNING_CURVES, Toy, learning_curves, toy_problem
from studies.hypertrick.simulator import (
    Configuration,
    Interval,
    Method,
    Outcome,
    Problem,
    simulate,
)

PHASES, TRIALS = 9, 12

#: One of each method, for 12 trials of 9 phases on 5 nodes.
METHODS: dict[str, Callable[[], Method]] = {
    "hypertrick": lambda: hypertrick(HyperTrick(workers=TRIALS, phases=PHASES, eviction_rate=0.25)),
    "adaptive": lambda: hypertrick(
        HyperTrick(workers=TRIALS, phases=PHASES, eviction_rate=0.25, adaptive=True)
    ),
    "geometric": lambda: hypertrick(
        HyperTrick(
            workers=TRIALS,
            phases=PHASES,
            eviction_rate=2 / 3,
            decide_after=geometric_phases(PHASES),
            cohort=6,
        )
    ),
    "halving": lambda: Halving([rounds_of(TRIALS, PHASES, 0.25)]),
    "static": lambda: Halving([rounds_of(TRIALS, PHASES, 0.25)], nodes=5),
    "hyperband": lambda: Halving([bracket.rounds for bracket in hyperband_brackets(PHASES)]),
    "restarting": lambda: Halving(
        [bracket.rounds for bracket in hyperband_brackets(PHASES)], restart=True
    ),
    "asha": lambda: Asha(PHASES, trials=TRIALS),
    "random": lambda: random_search(PHASES, TRIALS),
}


class Random:
    """A problem with random metrics, some of them NaN, and random durations, some of them equal."""

    phases = PHASES

    def __init__(self, seed: int, *, crashes: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.durations = self.rng.choice([0.5, 1.0, 1.5, 2.25], (200, PHASES))
        self.metrics = self.rng.random((200, PHASES))
        if crashes:
            self.metrics[self.rng.random((200, PHASES)) < 0.1] = math.nan

    def configuration(self, trial: int) -> Configuration:
        return (float(trial),)

    def duration(self, trial: int, configuration: Configuration, phase: int) -> float:
        return float(self.durations[trial, phase])

    def metric(self, trial: int, configuration: Configuration, phase: int) -> float:
        return float(self.metrics[trial, phase])


def check(
    problem: Problem,
    outcome: Outcome,
    speeds: list[float],
    *,
    restarts: bool = False,
    in_order: bool = True,
    until: float = math.inf,
) -> None:
    """What must hold of every search.

    Args:
        in_order: whether trials are started in the order of their numbers, so that a limit leaves
            no gap.
    """
    by_node: dict[int, list[Interval]] = defaultdict(list)
    by_trial: dict[int, list[Interval]] = defaultdict(list)
    for interval in outcome.intervals:
        by_node[interval.node].append(interval)
        by_trial[interval.trial].append(interval)
        configuration = outcome.configurations[interval.trial]
        whole = (
            problem.duration(interval.trial, configuration, interval.phase) / speeds[interval.node]
        )
        if interval.metric is None:
            assert interval.end == outcome.wall_time == until < interval.start + whole
        else:
            assert interval.end == interval.start + whole <= until
            assert np.array_equal(
                interval.metric,
                problem.metric(interval.trial, configuration, interval.phase),
                equal_nan=True,
            )
    for found in [*by_node.values(), *by_trial.values()]:
        assert all(first.end <= second.start for first, second in pairwise(found))
    for found in by_trial.values():
        phases = [interval.phase for interval in found]
        assert all(
            second in ((first + 1, 0) if restarts else (first + 1,))
            for first, second in pairwise(phases)
        )
        assert phases[0] == 0
        assert not any(math.isnan(interval.metric or 0.0) for interval in found[:-1])
    assert set(by_trial) == set(outcome.configurations)
    assert not in_order or set(by_trial) == set(range(len(by_trial)))
    assert outcome.wall_time == max(interval.end for interval in outcome.intervals)
    assert 0 < outcome.occupancy <= 1 + 1e-12


@example(name="static", seed=0, crashes=False, speeds=[0.5] * 5, limit=3.0)
@given(
    name=st.sampled_from(sorted(METHODS)),
    seed=st.integers(0, 10**6),
    crashes=st.booleans(),
    speeds=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=5, max_size=5),
    limit=st.one_of(st.none(), st.floats(2.3, 30)),
)
@settings(max_examples=150, deadline=None)
def test_what_holds_of_every_search(
    name: str, seed: int, crashes: bool, speeds: list[float], limit: float | None
) -> None:
    problem = Random(seed, crashes=crashes)
    outcome = simulate(problem, METHODS[name](), speeds, limit=limit)
    check(
        problem,
        outcome,
        speeds,
        restarts=name == "restarting",
        # A trial that belongs to a slow node begins later than its number says.
        in_order=name != "static" or limit is None,
        until=math.inf if limit is None else limit,
    )
    assert (
        simulate(Random(seed, crashes=crashes), METHODS[name](), speeds, limit=limit) == outcome
        or crashes
    )
    if limit is None:
        assert len(outcome.configurations) == METHODS[name]().trials


@given(
    name=st.sampled_from(["hypertrick", "adaptive", "geometric", "random"]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None)
def test_hypertrick_leaves_no_node_idle_while_trials_are_left_and_moves_none(
    name: str, seed: int
) -> None:
    outcome = simulate(Random(seed, crashes=True), METHODS[name](), [1.0, 2.0, 0.5])
    nodes = defaultdict(set)
    for interval in outcome.intervals:
        nodes[interval.trial].add(interval.node)
    assert all(len(found) == 1 for found in nodes.values())
    last_start = max(interval.start for interval in outcome.intervals if interval.phase == 0)
    for node in range(3):
        here = [
            interval
            for interval in outcome.intervals
            if interval.node == node and interval.start <= last_start
        ]
        assert here[0].start == 0
        assert all(first.end == second.start for first, second in pairwise(here))


def test_the_rule_hears_all_reports_in_the_order_of_time() -> None:
    """The simulated verdicts are those of a rule that is told the intervals one by one."""
    outcome = simulate(Random(5, crashes=True), METHODS["hypertrick"](), [1.0, 2.0, 0.5])
    rule = HyperTrick(workers=TRIALS, phases=PHASES, eviction_rate=0.25)
    last = {interval.trial: interval for interval in outcome.intervals}
    assert any(math.isnan(interval.metric or 0.0) for interval in outcome.intervals)
    for interval in outcome.intervals:
        goes_on = (
            rule.report(interval.trial, interval.phase, float(interval.metric or 0.0)).value
            == "continue"
        )
        assert (last[interval.trial] is not interval) == (goes_on and interval.phase < PHASES - 1)


def table(durations: list[list[float]], metrics: list[list[float]]) -> Toy:
    return Toy(np.array(durations), np.array(metrics))


def test_halving_by_hand() -> None:
    """4 trials, 2 nodes.

    The two best of round 1 go on: dynamically on any node, statically where they began.
    """
    problem = table([[1, 1], [1, 1], [2, 1], [1, 3]], [[5, 5], [1, 1], [4, 9], [3, 3]])
    dynamic = simulate(problem, Halving([[(4, 1), (2, 2)]]), [1.0, 1.0])
    assert dynamic.intervals == (
        Interval(0, 0, 0, 0.0, 1.0, 5.0),
        Interval(1, 1, 0, 0.0, 1.0, 1.0),
        Interval(1, 3, 0, 1.0, 2.0, 3.0),
        Interval(0, 2, 0, 1.0, 3.0, 4.0),
        Interval(0, 0, 1, 3.0, 4.0, 5.0),
        Interval(1, 2, 1, 3.0, 4.0, 9.0),
    )
    assert (dynamic.wall_time, dynamic.occupancy, dynamic.completion_rate) == (4.0, 7 / 8, 6 / 8)
    assert (dynamic.leading_score, dynamic.time_to_lead) == (9.0, 4.0)
    static = simulate(problem, Halving([[(4, 1), (2, 2)]], nodes=2), [1.0, 1.0])
    assert [(interval.node, interval.trial) for interval in static.intervals[-2:]] == [
        (0, 0),
        (0, 2),
    ]
    assert static.wall_time == 5.0


def test_restarting_rounds_trains_again_from_the_first_phase() -> None:
    problem = table([[1, 1]] * 2, [[1, 1], [2, 2]])
    outcome = simulate(problem, Halving([[(2, 1), (1, 2)]], restart=True), [1.0])
    assert [(interval.trial, interval.phase) for interval in outcome.intervals] == [
        (0, 0),
        (1, 0),
        (1, 0),
        (1, 1),
    ]


def test_hyperband_runs_what_its_table_says() -> None:
    """Without restarts, a bracket's rounds run n_i·(r_i − r_(i−1)) phases.

    With them, n_i·r_i: 32.61 % in all for R = 27.
    """
    problem = learning_curves("steady", 0)
    brackets = hyperband_brackets(27)
    outcome = simulate(problem, Halving([bracket.rounds for bracket in brackets]), [1.0] * 8)
    phases = sum(
        n * (r - (bracket.rounds[i - 1][1] if i else 0))
        for bracket in brackets
        for i, (n, r) in enumerate(bracket.rounds)
    )
    assert (len(outcome.configurations), len(outcome.intervals)) == (46, phases)
    restarted = simulate(
        problem, Halving([bracket.rounds for bracket in brackets], restart=True), [1.0] * 8
    )
    assert restarted.completion_rate == pytest.approx(0.3261, abs=5e-5)


def test_hyperband_begins_again_when_a_node_would_be_idle() -> None:
    outcome = simulate(
        learning_curves("steady", 0),
        Halving([bracket.rounds for bracket in hyperband_brackets(27)], repeat=True),
        [1.0] * 8,
        limit=80,
    )
    assert outcome.occupancy == pytest.approx(1.0)
    assert len(outcome.configurations) > 46


def test_asha_by_hand() -> None:
    """One node, rungs after 1 and 3 of 9 phases, η = 3: the third report promotes one."""
    metrics = [[value] * 9 for value in (2, 3, 1, 9, 8, 7)]
    outcome = simulate(table([[1] * 9] * 6, metrics), Asha(9, trials=6), [1.0])
    assert [(interval.trial, interval.phase) for interval in outcome.intervals] == [
        *[(0, 0), (1, 0), (2, 0)],
        *[(1, 1), (1, 2)],  # the best of three
        *[(3, 0), (3, 1), (3, 2)],  # the best of four
        *[(4, 0), (5, 0), (4, 1), (4, 2)],  # two of six
        *[(3, phase) for phase in range(3, 9)],  # the best of the three on the second rung
    ]


def test_reports_of_one_moment_are_all_heard_before_any_node_is_given_work() -> None:
    outcome = simulate(
        table([[1, 1, 1]] * 5, [[value] * 3 for value in (1, 3, 2, 0, 0)]),
        Asha(3, trials=5),
        [1.0] * 3,
    )
    second = [
        (interval.node, interval.trial, interval.phase)
        for interval in outcome.intervals
        if interval.start == 1.0
    ]
    assert second == [(0, 1, 1), (1, 3, 0), (2, 4, 0)]


def test_asha_promotes_from_the_highest_rung_first() -> None:
    """η = 2, at t = 3: trial 2 is the better of two on the second rung.

    Trial 3 is among the two best of four on the first.
    """
    metrics = [[value] * 4 for value in (5, 4, 6, 5.5, 0, 0, 0, 0)]
    outcome = simulate(
        table([[1] * 4] * 8, metrics), Asha(4, factor=2, trials=8), [1.0, 1.0], limit=4.0
    )
    assert [
        (interval.trial, interval.phase) for interval in outcome.intervals if interval.start == 3.0
    ] == [(2, 2), (3, 1)]


def test_rounds_of_the_paper_s_variant() -> None:
    assert rounds_of(16, 4, 0.25) == ((16, 1), (12, 2), (9, 3), (7, 4))
    assert rounds_of(2, 4, 0.9) == ((2, 1), (1, 2), (1, 3), (1, 4))


def test_a_limit_cuts_what_is_under_way() -> None:
    outcome = simulate(table([[2, 2]] * 3, [[1, 1]] * 3), random_search(2), [1.0, 2.0], limit=3.5)
    assert outcome.wall_time == 3.5
    assert [
        (interval.trial, interval.start, interval.end, interval.metric)
        for interval in outcome.intervals
    ] == [
        *[(1, 0.0, 1.0, 1.0), (0, 0.0, 2.0, 1.0), (1, 1.0, 2.0, 1.0), (2, 2.0, 3.0, 1.0)],
        *[(0, 2.0, 3.5, None), (2, 3.0, 3.5, None)],
    ]
    assert outcome.occupancy == 1.0
    assert outcome.completion_rate == 4 / 6


def test_an_end_at_the_limit_itself_counts() -> None:
    outcome = simulate(table([[1, 1]], [[1, 2]]), random_search(2, 1), [1.0], limit=2.0)
    assert outcome.leading_score == 2.0


def test_samplers_propose_and_are_told() -> None:
    told: list[tuple[int, int, float, bool]] = []
    asked: list[int] = []

    def propose(trial: int) -> Configuration:
        asked.append(trial)
        return (0.5, 0.5, 0.5)

    outcome = simulate(
        learning_curves("steady", 0, phases=3),
        random_search(3, 2),
        [1.0],
        propose=propose,
        observe=lambda trial, phase, metric, goes_on: told.append((trial, phase, metric, goes_on)),
    )
    assert asked == [0, 1]
    assert outcome.configurations == {0: (0.5, 0.5, 0.5), 1: (0.5, 0.5, 0.5)}
    assert told == [
        (interval.trial, interval.phase, interval.metric, interval.phase < 2)
        for interval in outcome.intervals
    ]


def test_a_search_of_crashes_has_no_leader() -> None:
    outcome = simulate(table([[1.0]] * 2, [[math.nan]] * 2), Halving([[(2, 1)]]), [1.0])
    assert (
        outcome.leader is None
        and math.isnan(outcome.leading_score)
        and outcome.time_to_lead == math.inf
    )
    assert learning_curves("steady", 0).regret_of(outcome) == 1.0


def test_the_leader_is_by_last_reports_and_the_earlier_of_equals() -> None:
    problem = table([[1, 1]] * 4, [[9, 1], [2, 3], [2, 3], [8, math.nan]])
    outcome = simulate(problem, random_search(2, 4), [1.0])
    assert outcome.leader is not None and (
        outcome.leader.trial,
        outcome.leading_score,
        outcome.time_to_lead,
    ) == (1, 3.0, 4.0)


def short() -> Toy:
    return table([[1, 1]] * 2, [[1, 1]] * 2)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda: simulate(short(), random_search(2, 2), []), "nodes = 0: at least 1 is needed"),
        (
            lambda: simulate(short(), random_search(2, 2), [1.0, 0.0]),
            "speed of node 1 = 0.0: a number above 0 is needed",
        ),
        (
            lambda: simulate(short(), random_search(2, 2), [math.nan]),
            "speed of node 0 = nan: a number above 0 is needed",
        ),
        (
            lambda: simulate(short(), random_search(2, 2), [1.0], limit=-1.0),
            "limit = -1.0: a number above 0 is needed",
        ),
        (
            lambda: simulate(short(), random_search(2), [1.0]),
            "limit = None: a method that always starts new trials needs a limit of time",
        ),
        (
            lambda: simulate(table([[0]], [[1]]), random_search(1, 1), [1.0]),
            "duration of trial 0, phase 0 = 0.0: a number above 0 is needed",
        ),
        (lambda: random_search(0, 1), "phases = 0: a whole number of at least 1 is needed"),
        (lambda: random_search(2, 0), "trials = 0: a whole number of at least 1 is needed"),
        (lambda: Asha(27, factor=1), "factor = 1: at least 2 is needed"),
        (lambda: Halving([]), "brackets = []: at least one with one round is needed"),
        (
            lambda: Halving([[(3, 1), (4, 2)]]),
            "rounds = ((3, 1), (4, 2)): "
            "the numbers of trials must fall and those of phases rise, from 1",
        ),
        (lambda: Halving([[(3, 1)]], nodes=0), "nodes = 0: a whole number of at least 1 is needed"),
        (lambda: rounds_of(0, 4, 0.25), "workers = 0: a whole number of at least 1 is needed"),
        (
            lambda: learning_curves("flat", 0),
            "problem = 'flat': there are steady, crossing, costly, unstable",
        ),
    ],
)
def test_what_cannot_be_is_refused(broken: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        broken()
    assert str(caught.value) == message


def test_the_toy_problem_is_the_paper_s_kind() -> None:
    problem = toy_problem(0)
    assert problem.metrics.shape == problem.durations.shape == (16, 4)
    assert np.ptp(np.diff(problem.metrics, axis=1), axis=1).max() == 0
    assert (problem.durations > 0).all()
    assert np.array_equal(toy_problem(0).durations, problem.durations) and not np.array_equal(
        toy_problem(1).durations, problem.durations
    )


@pytest.mark.parametrize("name", LEARNING_CURVES)
def test_learning_curves_are_the_same_for_every_method(name: str) -> None:
    first, second = (learning_curves(name, 7) for _ in range(2))
    configuration = first.configuration(3)
    assert configuration == second.configuration(3) and len(configuration) == 3
    backwards = [first.metric(3, configuration, phase) for phase in reversed(range(27))][::-1]
    forwards = [second.metric(3, configuration, phase) for phase in range(27)]
    assert np.array_equal(backwards, forwards, equal_nan=True)
    assert all(
        first.duration(3, configuration, phase) == second.duration(3, configuration, phase) > 0
        for phase in range(27)
    )


@pytest.mark.parametrize("name", LEARNING_CURVES)
def test_what_is_tried_at_random_knows_nothing_of_the_hills(name: str) -> None:
    """NumPy pads seeds with zeros, so two of them can be the same stream."""
    problems = [learning_curves(name, seed) for seed in range(300)]
    centres = np.array([problem.hills[0][0][:2] for problem in problems])
    for trial in range(6):
        tried = np.array([problem.configuration(trial)[:2] for problem in problems])
        assert all(
            abs(np.corrcoef(tried[:, axis], centres[:, axis])[0, 1]) < 0.25 for axis in range(2)
        )


@pytest.mark.parametrize("name", LEARNING_CURVES)
@pytest.mark.parametrize("seed", range(3))
def test_regret_is_between_the_best_and_the_worst_there_is(name: str, seed: int) -> None:
    problem = learning_curves(name, seed)
    low, high = problem.range
    draws = np.random.default_rng(seed).random((20_000, 3))
    values = problem.value(draws)
    assert high >= values.max() and low <= values.min() + 1e-3
    best = draws[int(values.argmax())]
    assert 0 <= problem.regret(tuple(best.tolist())) < 0.05
    corners = np.array(list(product((0.0, 1.0), repeat=3)))
    assert max(problem.regret(tuple(corner)) for corner in corners.tolist()) == pytest.approx(
        1.0, abs=1e-3
    )
    assert problem.regret(None) == 1.0


def test_crossing_curves_cross_and_costs_cost() -> None:
    """What is best after one phase is not what is best after all."""
    problem = learning_curves("crossing", 0)
    slow, fast = (np.array([centre]) for centre, _, _ in problem.hills)
    curves = [[problem.curve(hill, done)[0] for hill in (slow, fast)] for done in (1, 3, 9, 27)]
    assert [bool(high > low) for high, low in curves] == [False, False, False, True]
    costly = learning_curves("costly", 0)
    assert costly.duration(0, (0.5, 1.0, 0.5), 0) == pytest.approx(
        2.4 / 0.3 * costly.duration(0, (0.5, 0.0, 0.5), 0)
    )


def test_independent_stops_where_it_is_told_to() -> None:
    asked: list[tuple[int, int, float]] = []

    def stop(trial: int, phase: int, metric: float) -> bool:
        asked.append((trial, phase, metric))
        return phase == 1

    outcome = simulate(table([[1, 1, 1]] * 2, [[1, 2, 3]] * 2), Independent(3, stop, 2), [1.0])
    assert asked == [(0, 0, 1.0), (0, 1, 2.0), (1, 0, 1.0), (1, 1, 2.0)]
    assert outcome.wall_time == 4.0
