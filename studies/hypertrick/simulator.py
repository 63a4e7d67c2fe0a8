"""A search in virtual time: nodes of unequal speed, phases of unequal length, any method. Pure.

A *method* (`methods.py`) says which phase of which trial a free node runs next; a *problem*
(`problems.py`) says how long that takes and what metric comes out. Nothing here waits or draws
numbers, so the same problem and method always give the same outcome.

Laws of this file:
- A node runs one phase at a time and never breaks it off. Preemption, where a method needs it,
  happens between phases and is free of cost, as HyperTrick's paper assumes for its rivals (§3.2).
- A phase takes the problem's duration divided by the node's speed.
- Reports of the same moment are heard in the order of their nodes, all before any node is given
  work; then free nodes ask in the order of their numbers. A node that gets nothing asks again at
  the next report.
- With a limit, the phases under way at that time are cut, and their metric is lost.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

#: A trial's hyperparameters, in the problem's own terms.
Configuration: TypeAlias = tuple[float, ...]

#: A trial and the phase of it that is run, both from 0.
Task: TypeAlias = tuple[int, int]


class Problem(Protocol):
    """What is searched."""

    @property
    def phases(self) -> int:
        """N_p."""

    def configuration(self, trial: int) -> Configuration:
        """What trial number `trial` tries if no sampler proposes anything else."""

    def duration(self, trial: int, configuration: Configuration, phase: int) -> float:
        """How long the phase takes on a node of speed 1, above 0."""

    def metric(self, trial: int, configuration: Configuration, phase: int) -> float:
        """What the trial reports after the phase; higher is better, NaN if it has crashed."""


class Method(Protocol):
    """Which trial each node runs, and which trials go on."""

    @property
    def trials(self) -> int | None:
        """How many trials are started at most; None if there is no limit."""

    def next_task(self, node: int) -> Task | None:
        """What the free node `node` runs now.

        None if there is nothing for it before the next report.
        """

    def report(self, node: int, task: Task, metric: float) -> bool:
        """Takes in the metric of a phase that `node` has run. False if its trial must be over."""


@dataclass(frozen=True)
class Interval:
    """One phase on one node."""

    node: int
    trial: int
    phase: int
    start: float
    end: float
    #: None if the limit came first.
    metric: float | None


@dataclass(frozen=True)
class Outcome:
    """What happened in a search."""

    phases: int
    #: In the order in which they ended.
    intervals: tuple[Interval, ...]
    #: By trial.
    configurations: dict[int, Configuration]

    @property
    def completion_rate(self) -> float:
        """α: phases that ended, as a share of N_p for every trial that was started."""
        done = sum(interval.metric is not None for interval in self.intervals)
        return done / (len(self.configurations) * self.phases) if self.configurations else 0.0

    @cached_property
    def leader(self) -> Interval | None:
        """The highest of the trials' last reports; of equal ones the earliest.

        When the time is up one would go on with its trial. That need not be the best trial as
        `genkidama/plugins/hypertrick/records.py` defines it, which has completed: methods that
        pause trials, as ASHA does, complete few, and could not be compared by it.
        """
        return max(
            self.last_reports.values(),
            key=lambda found: (found.metric or 0.0, -found.end),
            default=None,
        )

    @cached_property
    def last_reports(self) -> dict[int, Interval]:
        """By trial, its last report that is a number; a trial whose last report is NaN has none."""
        last: dict[int, Interval] = {}
        for interval in self.intervals:
            if interval.metric is not None:
                if math.isnan(interval.metric):
                    last.pop(interval.trial, None)
                else:
                    last[interval.trial] = interval
        return last


def simulate(
    problem: Problem,
    method: Method,
    speeds: Sequence[float],
    *,
    limit: float | None = None,
    propose: Callable[[int], Configuration] | None = None,
    observe: Callable[[int, int, float, bool], None] | None = None,
) -> Outcome:
    """Runs a search.

    Args:
        speeds: one a node, above 0. A phase takes its duration divided by it.
        limit: when all nodes stop, in the problem's unit of time; without one, when the method has
            no more trials.
        propose: gives a new trial its configuration, where a sampler does so. It is asked when the
            trial starts.
        observe: told every report: trial, phase, metric, and whether the trial may go on.
    """
    configurations: dict[int, Configuration] = {}
    intervals: list[Interval] = []
    #: End, node, task, start; the soonest end first.
    running: list[tuple[float, int, Task, float]] = []
    free = list(range(len(speeds)))
    now = 0.0
    while True:
        waiting = []
        for node in free:
            task = method.next_task(node)
            if task is None:
                waiting.append(node)
                continue
            trial, phase = task
            if trial not in configurations:
                configurations[trial] = (
                    problem.configuration(trial) if propose is None else propose(trial)
                )
            duration = problem.duration(trial, configurations[trial], phase)
            heapq.heappush(running, (now + duration / speeds[node], node, task, now))
        free = waiting
        if not running:
            break
        if limit is not None and running[0][0] > limit:
            intervals += [
                Interval(node, trial, phase, start, limit, None)
                for _, node, (trial, phase), start in sorted(running)
            ]
            break
        now = running[0][0]
        while running and running[0][0] == now:
            _, node, task, start = heapq.heappop(running)
            trial, phase = task
            metric = problem.metric(trial, configurations[trial], phase)
            intervals.append(Interval(node, trial, phase, start, now, metric))
            goes_on = method.report(node, task, metric)
            if observe is not None:
                observe(trial, phase, metric, goes_on)
            free.append(node)
        free.sort()
    return Outcome(problem.phases, tuple(intervals), configurations)
