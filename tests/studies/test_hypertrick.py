from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.plugins.hypertrick.rule import HyperTrick
from studies.hypertrick.contestants import contestants
from studies.hypertrick.methods import (
    Asha,
    Halving,
    hyperband_rounds,
    hypertrick,
    random_search,
)
from studies.hypertrick.simulator import (
    Configuration,
    Interval,
    Method,
    Outcome,
    Problem,
    simulate,
)

PHASES, TRIALS = 9, 12
ROUNDS = ((12, 1), (9, 3), (4, 5), (1, 9))

#: One of each method, for 12 trials of 9 phases on 5 nodes.
METHODS: dict[str, Callable[[], Method]] = {
    "hypertrick": lambda: hypertrick(HyperTrick(workers=TRIALS, phases=PHASES, eviction_rate=0.25)),
    "halving": lambda: Halving([ROUNDS]),
    "hyperband": lambda: Halving(hyperband_rounds(PHASES)),
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
    until: float,
) -> None:
    """What must hold of every search that ends at `until` at the latest."""
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
            assert interval.end == until < interval.start + whole
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
        assert all(second == first + 1 for first, second in pairwise(phases))
        assert phases[0] == 0
        assert not any(math.isnan(interval.metric or 0.0) for interval in found[:-1])
    assert set(by_trial) == set(outcome.configurations)
    assert set(by_trial) == set(range(len(by_trial)))


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
    check(problem, outcome, speeds, math.inf if limit is None else limit)
    assert (
        simulate(Random(seed, crashes=crashes), METHODS[name](), speeds, limit=limit) == outcome
        or crashes
    )
    if limit is None:
        assert len(outcome.configurations) == METHODS[name]().trials


def test_the_rounds_of_hyperband_are_those_of_the_papers() -> None:
    table_2 = [
        ((27, 1), (9, 3), (3, 9), (1, 27)),
        ((9, 3), (3, 9), (1, 27)),
        ((6, 9), (2, 27)),
        ((4, 27),),
    ]
    assert hyperband_rounds(27) == table_2
    spent = sum(n * r for rounds in table_2 for n, r in rounds)
    assert round(100 * spent / (46 * 27), 2) == 32.61


def test_a_search_with_optunas_hyperband_is_the_same_again() -> None:
    (found,) = (each for each in contestants(0.25) if each.name == "Optuna HyperbandPruner")
    assert len({tuple(found.run("costly", 1, 0.25)) for _ in range(4)}) == 1
