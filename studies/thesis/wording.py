"""How the document writes figures, differences and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from studies.differences import NONE, number, span, verdict
from studies.thesis.cells import CELLS, UPDATES, Row
from studies.thesis.statistics import difference, passages, summary

__all__ = ["LANDS", "Cells", "differing", "landed", "moment_of", "on_the_way", "passed", "table"]

Cells = Mapping[str, Sequence[Row]]

#: Policies that hover, or stand on the pad with engines on, come to this mean, and those that land
#: jump from here to 200 and more.
LANDS = 100.0


def table(head: Sequence[str], lines: Iterable[list[str]]) -> Iterator[str]:
    """The lines of a table in Markdown, and an empty one."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for line in lines:
        yield "| " + " | ".join(line) + " |"
    yield ""


def passed(rows: Sequence[Row]) -> str:
    """When a cell's mean came to `LANDS`, in the median of its seeds."""
    return moment_of(float(median(passages(rows, LANDS)))) if rows else NONE


def landed(rows: Sequence[Row]) -> str:
    """How many of a cell's seeds had a mean above 200 at a checkpoint."""
    found = summary(rows)
    return f"{found.landed} of {found.seeds}"


def on_the_way(rows: Sequence[Row], name: str, updates: int) -> str:
    """The mean after so many updates, in the median of a cell's seeds."""
    found = [
        mean
        for row in rows
        for moment, mean, _ in row["curve"]
        if abs(moment - updates) < CELLS[name].every / 2
    ]
    return number(float(median(found))) if found else NONE


def moment_of(updates: float) -> str:
    """When a run came somewhere, as `passage` says it."""
    return f"{updates:,.0f}" if updates <= UPDATES else "never"


def differing(cells: Cells, name: str, other: str) -> list[str]:
    """How far one cell lies above another: value, interval, seeds and verdict."""
    ours, others = cells.get(name, []), cells.get(other, [])
    if not ours or not others:
        return [NONE, NONE, f"{len(ours)} and {len(others)}", "missing"]
    found = difference(ours, others)
    return [
        number(found.value, sign=True),
        span(found.interval),
        f"{len(ours)} and {len(others)}",
        verdict(found),
    ]
