"""Sections of the document: what fresh seeds, pairs of cells and all runs together tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from studies.differences import NONE, apart, compare, number, verdict
from studies.thesis.cells import AGAIN, ALONE, BEST, CELLS, GRID, WEIGHTS, Row
from studies.thesis.published import FINAL, PATHS
from studies.thesis.statistics import (
    Searching,
    as_often,
    better,
    enough,
    luck,
    passages,
    searching,
    sooner,
    summary,
)
from studies.thesis.wording import LANDS, Cells, landed, passed, table

__all__ = ["again", "landings", "twins"]

#: Cells that learn otherwise than the thesis' program.
_OTHERWISE = {"why-sum", "why-one-core"}
#: When somebody noticed that runs with a seed's own weights seldom land: just before this one.
_NOTICED = "2026-11-24 10:46:42"
#: Cells that differ in one thing alone, or in two: with it, and without.
_TWINS = {
    "both faults": (
        ("why-both", BEST),
        ("why-weights-both", "why-weights"),
        ("why-a3c-both", ALONE),
        ("why-a3c-program", "why-a3c-weights"),
    ),
    "the program's weights": (
        ("why-weights", BEST),
        ("why-weights-both", "why-both"),
        ("why-a3c-weights", ALONE),
        ("why-a3c-program", "why-a3c-both"),
    ),
    "v2": (
        ("why-v2", BEST),
        ("why-program", "why-weights-both"),
        ("again-program", "again-faults"),
    ),
    "both faults and the program's weights": (
        ("why-weights-both", BEST),
        ("again-faults", AGAIN),
        ("why-a3c-program", ALONE),
    ),
    "all three": (
        ("why-program", BEST),
        ("again-program", AGAIN),
    ),
}


def again(cells: Cells) -> Iterator[str]:
    mean, deviation = FINAL[BEST]
    yield "## Once more, with fresh seeds"
    yield ""
    yield "What seems to tell above was found among many cells. So three of them are run once more,"
    yield "with seeds from 31 on. Three questions were asked before the first of these runs:"
    yield ""
    yield "1. With all that is known of the thesis' program, are more runs ever above 200?"
    yield "2. Is v2 needed for that?"
    yield f"3. Does its better child end within {mean} ± {deviation}, in the median?"
    yield ""
    lines = []
    base = cells.get(AGAIN, [])
    for name in (name for name in CELLS if CELLS[name].group == "again"):
        rows = cells.get(name, [])
        line = ["`thesis.toml`" if name == AGAIN else CELLS[name].label, str(len(rows))]
        if rows:
            ends = [better(row) for row in rows if row.get("children")]
            line += [number(summary(rows).median), number(median(ends)) if ends else NONE]
            line += [landed(rows), passed(rows)]
        else:
            line += [NONE] * 4
        if name != AGAIN and rows and base:
            chance = luck([(rows, base)])
            earlier = compare(passages(base, LANDS), passages(rows, LANDS))
            line += [NONE if chance is None else f"{chance:.3f}", apart(earlier)]
            line += [verdict(earlier, "sooner", "later")]
        else:
            line += [""] * 3
        lines.append(line)
    head = ["", "seeds", "median", "better child", "ever above 200", f"{LANDS:.0f} after"]
    yield from table([*head, "by luck", "sooner by", "says"], lines)
    yield from _answers(cells)


def _answers(cells: Cells) -> Iterator[str]:
    """To the three questions, once they have their seeds."""
    program, faults, base = (
        cells.get(f"again-{name}", []) for name in ("program", "faults", "thesis")
    )
    more, needed = luck([(program, base)]), luck([(program, faults)])
    ends = [better(row) for row in program if row.get("children")]
    if more is None or needed is None or not ends:
        return
    mean, deviation = FINAL[BEST]
    within = abs(median(ends) - mean) <= deviation
    yield "The answers:"
    yield ""
    yield f"1. {_shown(more)}: {landed(program)}, and {landed(base)} with `thesis.toml`."
    yield f"2. {_shown(needed)}: {landed(program)} with v2, and {landed(faults)} without."
    yield f"3. {'Yes' if within else 'No'}: at {number(median(ends))}."
    yield ""


def _shown(chance: float) -> str:
    return f"These runs show {'a' if chance < 0.05 else 'no'} difference ({chance:.3f} by luck)"


def twins(cells: Cells) -> Iterator[str]:
    yield "## With and without"
    yield ""
    yield "Many of these cells differ in one thing alone, so each thing can be judged by several"
    yield "pairs of cells together: those with three seeds or more, with fresh seeds, too. *Sooner*"
    yield "is the mean of the pairs' differences. The counts are compared within pairs."
    yield ""
    lines = []
    for what, names in _TWINS.items():
        pairs = enough((cells.get(ours, []), cells.get(others, [])) for ours, others in names)
        found = sooner(pairs, LANDS)
        if found is None:
            lines.append([what, *[NONE] * 6])
            continue
        sides = [[row for rows in side for row in rows] for side in zip(*pairs, strict=True)]
        line = [what, str(len(pairs)), *(landed(rows) for rows in sides)]
        chance = luck(pairs)
        assert chance is not None  # there is a pair
        lines.append([*line, f"{chance:.3f}", apart(found), verdict(found, "sooner", "later")])
    head = ["", "pairs", "ever above 200: with", "without", "by luck"]
    yield from table([*head, f"{LANDS:.0f} sooner by", "says"], lines)


def landings(cells: Cells, controls: Sequence[Row], virtual: Cells) -> Iterator[str]:
    """How often a way to land is found, once runs look for it."""
    alike: dict[bool, list[str]] = {False: [], True: []}  # by whether it has the program's weights
    for name, cell in CELLS.items():
        if cell.group in ("why", "again") and cell.children == 2 and name not in _OTHERWISE:
            alike[WEIGHTS in cell.settings].append(name)
    alike[False].append(BEST)
    groups: dict[str, Sequence[Sequence[float]]] = {
        "the thesis, Tables 5.3 to 5.5": list(PATHS.values()),
        "`thesis.toml`, the same cells": _paths(cells, GRID.values()),
        f"{CELLS[BEST].label}, a seed's own weights": _paths(cells, alike[False]),
        f"{CELLS[BEST].label}, the program's weights": _paths(cells, alike[True]),
        "its program here, and as its program in virtual time": [
            *_paths({"": controls}, [""]),
            *_paths(virtual, ["virtual-program", "virtual-two"]),
        ],
    }
    found = {what: searching(paths, LANDS) for what, paths in groups.items()}
    yield "## How often a way to land is found"
    yield ""
    yield f"A run that has come to a mean of {LANDS:.0f} looks for a way to land. *Landed* had a"
    yield "mean above 200 afterwards. *Updates* are what all runs together had from then until they"
    yield "landed or ended. *By luck* is how likely a rate so far from the thesis' is if all"
    yield "updates are equally likely to bring a landing (the exact test of two rates)."
    yield ""
    theirs, _, own, given, _ = found.values()
    lines = []
    for what, one in found.items():
        line = [what, str(len(groups[what])), str(one.runs), str(one.landed), f"{one.updates:,.0f}"]
        rate = number(1_000.0 * one.landed / one.updates) if one.updates else NONE
        lines.append([*line, rate, "" if one is theirs else _as_often(theirs, one)])
    head = ["", "runs", f"came to {LANDS:.0f}", "landed", "updates", "in 1,000 of them", "by luck"]
    yield from table(head, lines)
    yield "The third and the fourth line have all cells of *why* with two children, and those with"
    yield "fresh seeds, whatever else is changed but the gradients and the cores."
    if own.updates and given.updates:
        yield f"Luck tells these two apart with a probability of {as_often(own, given):.3f}."
    paths = _paths(cells, alike[False], since=_NOTICED)
    fresh = searching(paths, LANDS)
    if fresh.updates and given.updates:
        yield ""
        rate = number(1_000.0 * fresh.landed / fresh.updates)
        chance = as_often(fresh, given)
        yield "It was noticed when the third line had some of its runs: they say too much. Of the"
        yield f"{len(paths)} that came afterwards, {fresh.landed} landed: {rate} in 1,000 updates."
        yield f"Luck tells these and the fourth line apart with a probability of {chance:.3f}."
    yield ""


def _as_often(theirs: Searching, ours: Searching) -> str:
    return f"{as_often(theirs, ours):.3f}" if ours.updates else NONE


def _paths(cells: Cells, names: Iterable[str], since: str = "") -> list[list[float]]:
    """The means of each run at its checkpoints, of those that ended at that date or later."""
    return [
        [mean for _, mean, _ in row["curve"]]
        for name in names
        for row in cells.get(name, [])
        if row["date"] >= since
    ]
