"""The numbers of HyperTrick's paper: its equations, and the table of its rival Hyperband. Pure.

Heinrich and Frosio (arXiv 1902.02725), §3.2 and §5; Li et al. 2016, algorithm 1. Phases count from
0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from genkidama.errors import ConfigurationError

__all__ = [
    "Bracket",
    "check_natural",
    "check_rate",
    "completion_rate",
    "eviction_rate_for",
    "expected_runs",
    "expected_workers",
    "geometric_phases",
    "hyperband_brackets",
    "is_number",
    "is_whole",
    "minimum_completion_rate",
    "workers_before_selection",
]

#: What floats may be off by where a whole number is meant.
ROUNDING = 1e-9


def workers_before_selection(workers: int, eviction_rate: float, phase: int) -> int:
    """W_p^DCM = W₀(1−√r)(1−r)^p, rounded down (eq. 2): so many pass phase `phase` in any case."""
    check_natural("workers", workers)
    check_rate(eviction_rate)
    return math.floor(
        workers * (1 - math.sqrt(eviction_rate)) * (1 - eviction_rate) ** phase + ROUNDING
    )


def expected_workers(workers: int, eviction_rate: float, phase: int) -> float:
    """E[W_p] = W₀(1−r)^p (eq. 1): so many are expected to run phase `phase`, counted from 0."""
    check_natural("workers", workers)
    check_rate(eviction_rate)
    return workers * (1.0 - eviction_rate) ** phase


def completion_rate(eviction_rate: float, phases: int) -> float:
    """E[α] = (1−(1−r)^N_p)/(r·N_p) (eq. 9): the expected share of all W₀·N_p phases to be run."""
    check_rate(eviction_rate)
    check_natural("phases", phases)
    return (1.0 - (1.0 - eviction_rate) ** phases) / (eviction_rate * phases)


def minimum_completion_rate(eviction_rate: float, phases: int) -> float:
    """min[α] = (1−√r)·E[α] (eq. 8), as printed; too low by a phase, see the laws of `rule.py`."""
    return completion_rate(eviction_rate, phases) * (1.0 - math.sqrt(eviction_rate))


def expected_runs(
    workers: int,
    phases: int,
    eviction_rate: float,
    decide_after: Sequence[int] | None = None,
    collecting: int | None = None,
) -> list[float]:
    """By phase, how many workers are expected to run it, if metrics say nothing about the next.

    Of the workers that come to a decision, as many pass early as eq. 2 says, and 1−√r of the rest.
    With all W₀ in eq. 2 that is eq. 1, and the mean of the result ÷ W₀ is eq. 9. With fewer (a
    cohort), nearly √r are stopped instead of r.

    Args:
        workers: W₀.
        phases: N_p.
        eviction_rate: r.
        decide_after: the phases after which anything is decided, ascending; all but the last if
            absent.
        collecting: W₀ of eq. 2, if it is smaller.
    """
    check_natural("workers", workers)
    check_natural("phases", phases)
    check_rate(eviction_rate)
    chosen = list(range(phases - 1) if decide_after is None else decide_after)
    stays = 1.0 - math.sqrt(eviction_rate)
    first = min(workers, collecting or workers)
    running, runs = float(workers), []
    for phase in range(phases):
        runs.append(running)
        if phase in chosen:
            early = first * stays * (1.0 - eviction_rate) ** chosen.index(phase)
            running = early + stays * (running - early) if early < running else running
    return runs


def eviction_rate_for(target: float, phases: int) -> float:
    """The r that gives a completion rate of `target`: eq. 9 solved by bisection.

    For 32.61 % over 27 phases it is 0.10846; the paper prints 10.82 %, which gives 32.68 %.

    Args:
        target: within (1/phases, 1), the open range that eq. 9 reaches.

    Raises:
        ConfigurationError: out of that range.
    """
    check_natural("phases", phases)
    if not 1 / phases < target < 1:
        raise ConfigurationError(
            f"completion rate = {target!r}: with {phases} phases it lies between "
            f"{1 / phases:.4g} and 1, exclusively"
        )
    low, high = 1e-12, 1.0 - 1e-12
    while high - low > 1e-15:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if completion_rate(middle, phases) > target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def geometric_phases(phases: int, factor: int = 3, first: int = 1) -> tuple[int, ...]:
    """The phases after which 1, `factor`, `factor`², … times `first` phases are done.

    The last phase is none of them. `geometric_phases(27)` is `(0, 2, 8)`: decisions after 1, 3 and
    9 phases of 27.
    """
    check_natural("phases", phases)
    check_natural("factor", factor, least=2)
    check_natural("first", first)
    done, chosen = first, []
    while done < phases:
        chosen.append(done - 1)
        done *= factor
    return tuple(chosen)


@dataclass(frozen=True)
class Bracket:
    """One of Hyperband's brackets: an instance of Successive Halving."""

    #: The paper's index, from s_max down to 0.
    s: int
    #: (n_i, r_i) of each round: how many configurations, and the resource of each by its end.
    rounds: tuple[tuple[int, int], ...]

    @property
    def completion_rate(self) -> float:
        """Σ n_i·r_i / (n_0·R): the share of the resource that running all to the end would take.

        As in HyperTrick's paper (Table 2) each round starts anew, so its rounds' resources add up.
        """
        return sum(n * r for n, r in self.rounds) / (self.rounds[0][0] * self.rounds[-1][1])


def hyperband_brackets(resource: int, factor: int = 3) -> tuple[Bracket, ...]:
    """Hyperband's table (Li et al. 2016, algorithm 1) for R = `resource` and η = `factor`.

    Bracket s begins with n configurations of R·η^−s units, and ⌊n·η^−i⌋ of them see round i. The
    algorithm says n = ⌈(s_max+1)/(s+1)·η^s⌉. HyperTrick's paper prints 27, 9, 6, 4 for R = 27, η =
    3, where that gives 12 for s = 2. n = ⌊(s_max+1)/(s+1)⌋·η^s gives the printed numbers, and is
    what is computed here.
    """
    check_natural("resource", resource)
    check_natural("factor", factor, least=2)
    highest = 0
    while factor ** (highest + 1) <= resource:
        highest += 1
    brackets = []
    for s in range(highest, -1, -1):
        n = (highest + 1) // (s + 1) * factor**s
        brackets.append(
            Bracket(s, tuple((n // factor**i, resource // factor ** (s - i)) for i in range(s + 1)))
        )
    return tuple(brackets)


def is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """NumPy's numbers too; not a whole number that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return not isinstance(value, Integral) or abs(int(value)) < 2**1023


def check_natural(name: str, value: int, least: int = 1) -> None:
    if not is_whole(value) or value < least:
        raise ConfigurationError(
            f"{name} = {value!r}: a whole number of at least {least} is needed"
        )


def check_rate(value: float) -> None:
    if not is_number(value) or not 0.0 < value < 1.0:
        raise ConfigurationError(
            f"eviction_rate = {value!r}: a number between 0 and 1, exclusively, is needed"
        )
