"""The methods of a search, each with its rule and with what a report says of it. Pure.

A method is one entry of `METHODS`, under its name in `search.method`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from genkidama.config.formatting import percent
from genkidama.plugins.hypertrick.halving import Halving
from genkidama.plugins.hypertrick.rule import Decision, HyperTrick

if TYPE_CHECKING:
    from genkidama.plugins.hypertrick.records import SearchRecord

__all__ = ["METHODS", "Method", "SearchRule"]


class SearchRule(Protocol):
    """What decides in a search, with its memory of all reports; `HyperTrick` explains the names."""

    workers: int
    phases: int

    @property
    def decide_after(self) -> tuple[int, ...]: ...
    @property
    def decisions(self) -> list[Decision]: ...
    @property
    def expected_completion_rate(self) -> float: ...
    def decide(self, trial: int, phase: int, metric: float) -> Decision: ...
    def restore(self, decisions: Iterable[Decision]) -> None: ...


@dataclass(frozen=True)
class Method:
    """A method of a search."""

    title: str
    #: Makes the rule; of the record, how many trials are started in all, and a seed.
    rule: Callable[[SearchRecord, int, int], SearchRule]
    #: Its settings, for a report's headline.
    options: Callable[[SearchRecord], list[str]]
    #: What the expected completion rate rests on, given that rate; empty if that is 1 anyway.
    expectation: Callable[[SearchRecord, float], str]
    #: The columns of the report's table of phases.
    columns: str = ""


def _hypertrick(record: SearchRecord, workers: int, seed: int) -> HyperTrick:
    return _with_decisions(record, workers, seed, record.decide_after)


def _random(record: SearchRecord, workers: int, seed: int) -> HyperTrick:
    return _with_decisions(record, workers, seed, [])


def _with_decisions(
    record: SearchRecord, workers: int, seed: int, decide_after: list[int]
) -> HyperTrick:
    return HyperTrick(
        workers=workers,
        phases=record.phases,
        eviction_rate=record.eviction_rate,
        decide_after=decide_after,
        cohort=record.cohort,
        adaptive=record.adaptive,
        seed=seed,
    )


def _halving(brackets: bool, factor: int) -> Callable[[SearchRecord, int, int], Halving]:
    """`Halving` with this factor where the settings have none."""

    def rule(record: SearchRecord, workers: int, seed: int) -> Halving:
        return Halving(
            workers=workers,
            phases=record.phases,
            factor=record.reduction_factor or factor,
            least=record.least_phases,
            brackets=brackets,
        )

    return rule


def _hypertrick_options(record: SearchRecord) -> list[str]:
    options = [f"eviction rate {record.eviction_rate:.4g}"]
    if record.cohort is not None:
        options.append(f"a cohort of {record.cohort} collects data")
    if record.adaptive:
        options.append("adaptive")
    return options


def _hypertrick_expectation(record: SearchRecord, expected: float) -> str:
    root = math.sqrt(record.eviction_rate)
    if record.cohort is not None and not record.adaptive:
        return (
            f"expected {percent(expected)}: after the data collection of a cohort of "
            f"{record.cohort}, √r = {percent(root, 0)} are stopped"
        )
    least = percent((1.0 - root) * expected)
    return f"expected {percent(expected)}, minimum {least} (eqs. 9 and 8 of HyperTrick's paper)"


def _halving_method(title: str, brackets: bool, factor: int) -> Method:
    def options(record: SearchRecord) -> list[str]:
        return [f"reduction factor {record.reduction_factor or factor}"] + (
            [f"at least {record.least_phases} phases"] if record.least_phases > 1 else []
        )

    def expectation(record: SearchRecord, expected: float) -> str:
        share = f"1/{record.reduction_factor or factor}"
        return f"expected {percent(expected)}, if about {share} go on at each decision"

    return Method(
        title,
        _halving(brackets, factor),
        options,
        expectation,
        "Selected: compared with the reports before it, and good enough. Undecided: nothing is "
        "decided after that phase.",
    )


METHODS: dict[str, Method] = {
    "hypertrick": Method(
        "HyperTrick",
        _hypertrick,
        _hypertrick_options,
        _hypertrick_expectation,
        "Early: passed in data collection, whatever the score. Selected: compared with the "
        "reports before it, and good enough. Undecided: nothing is decided after that phase.",
    ),
    "hyperband": _halving_method("Hyperband", brackets=True, factor=3),
    "asha": _halving_method("ASHA", brackets=False, factor=4),
    "random": Method("random search", _random, lambda _: [], lambda *_: ""),
}
