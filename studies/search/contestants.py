"""The methods that are compared, and the searches that are wanted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

#: A search that is done: a line of the results.
Row: TypeAlias = dict[str, Any]

#: More trials than there is time for.
_ENDLESS = 1000


@dataclass(frozen=True)
class Contestant:
    """A method with its settings."""

    label: str
    #: Settings of `search`, over those of `examples/lunarlander/search.toml`.
    settings: dict[str, Any]

    @property
    def sampler(self) -> str:
        return str(self.settings.get("sampler", "random"))


#: The first is the measure of time for the others.
CONTESTANTS: dict[str, Contestant] = {
    "hypertrick": Contestant("HyperTrick, as published", {}),
    "improved": Contestant(
        "HyperTrick, improved",
        {
            "decisions": "geometric",
            "eviction_rate": 2 / 3,
            "cohort": 16,
            "sampler": "tpe",
            "trials": _ENDLESS,
        },
    ),
    "asha": Contestant("ASHA, stopping", {"method": "asha", "sampler": "tpe", "trials": _ENDLESS}),
    "asynchronous_hyperband": Contestant(
        "Hyperband, asynchronous", {"method": "asynchronous_hyperband", "trials": _ENDLESS}
    ),
    "random": Contestant("random search", {"method": "random", "trials": _ENDLESS}),
}


@dataclass(frozen=True)
class Wanted:
    """One search."""

    name: str
    sampler: str
    seed: int
    #: Settings of all searches, as `--set` has them.
    changes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{CONTESTANTS[self.name].label} ({self.sampler}), seed {self.seed}"

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.sampler}-{self.seed}"

    def is_of(self, row: Row) -> bool:
        return self == Wanted(row["method"], row["sampler"], row["seed"], tuple(row["changes"]))


def plan(
    names: Sequence[str], seeds: Sequence[int], sampler: str | None, changes: Iterable[str] = ()
) -> list[Wanted]:
    """The searches in their order: every contestant has its first seed before any its second.

    Args:
        names: of contestants.
        seeds: of each.
        sampler: of all of them; each has its own if absent.
        changes: settings of all searches.
    """
    return [
        Wanted(name, sampler or CONTESTANTS[name].sampler, seed, tuple(sorted(changes)))
        for seed in seeds
        for name in CONTESTANTS
        if name in names
    ]


def missing(wanted: Iterable[Wanted], rows: Sequence[Row]) -> list[Wanted]:
    """Those that have no row yet."""
    return [one for one in wanted if not any(map(one.is_of, rows))]


def bound(one: Wanted, rows: Iterable[Row], most: float) -> float:
    """How many seconds a search may take: as many as HyperTrick took with the same seed.

    Args:
        one: the search.
        rows: of the searches that are done.
        most: seconds, if HyperTrick has no row with this seed and these changes.
    """
    first = next(iter(CONTESTANTS))
    taken = [
        float(row["seconds"])
        for row in rows
        if (row["method"], row["seed"], tuple(row["changes"])) == (first, one.seed, one.changes)
    ]
    return most if one.name == first or not taken else min(most, taken[-1])
