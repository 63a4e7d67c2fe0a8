"""The tables of docs/results/thesis.md, made from the rows. Its prose is written by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from studies.differences import (
    NONE,
    apart,
    compare,
    interval,
    markdown,
    medians,
    number,
    span,
    verdict,
)
from studies.thesis.cells import ALONE, BEST, CELLS, GRID, PAIRS, SIZES, UPDATES, Row
from studies.thesis.published import FINAL, PATHS
from studies.thesis.statistics import (
    better,
    by_cell,
    difference,
    enough,
    luck,
    passages,
    sooner,
    standing,
    summary,
)

Cells = Mapping[str, Sequence[Row]]
#: A head and its lines.
Table = tuple[Sequence[str], Iterable[Sequence[str]]]

#: Policies that hover, or stand on the pad with engines on, come to this mean, and those that land
#: jump from here to 200 and more.
LANDS = 100.0
#: The thesis' A3C on as many cores as two children have together.
A3C = "a3c-8-0.999-120"
#: The thesis' best cell: mean and deviation that our own settings must reach.
GOAL = FINAL[BEST]
#: Moments of a run, in updates.
_WAY = (500, 1_000, 1_500)
#: Runs in virtual time, in which each process has a CPU of its own, by their rows' `cell`.
VIRTUAL = {
    "virtual-child": "`thesis.toml`, in virtual time",
    "virtual-program": "as its program, in virtual time",
}
#: The best cell and what may explain its difference from the thesis, once more, with fresh seeds.
AGAIN = "again-thesis"
_AGAIN = {
    AGAIN: "`thesis.toml`",
    "again-faults": "the program's weights, and both its faults",
    "again-program": "the program's weights, both its faults, and v2, all together",
}
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
    "all three": (("why-program", BEST), ("again-program", AGAIN)),
}


def filled(page: str, found: Sequence[str]) -> str:
    """A page with its tables replaced, in their order."""
    parts = re.split(r"((?:^\|.*\n)+)", page, flags=re.MULTILINE)
    parts[1::2] = found  # raises ValueError if the page has more or fewer
    return "".join(parts)


def tables(
    rows: Sequence[Row], controls: Sequence[Row], virtual: Sequence[Row], small: Sequence[Row]
) -> list[str]:
    """All tables in Markdown, in the page's order."""
    cells = by_cell(rows)
    program: Cells = by_cell(controls)
    in_virtual_time: Cells = by_cell(virtual)
    alone = {"its program": program.get(ALONE, []), "`thesis.toml`": cells.get(ALONE, [])} | {
        f"… {what}": cells.get(f"why-a3c-{name}", [])
        for name, what in {
            "weights": "with its weights",
            "both": "with its faults",
            "program": "with its weights and its faults",
        }.items()
    }
    alone |= {label: in_virtual_time.get(name, []) for name, label in VIRTUAL.items()}
    found: list[Table] = [
        _against_thesis(cells, list(GRID.values()), "cell"),
        _against_thesis(cells, [name for name in CELLS if CELLS[name].group == "a3c"], "run"),
        _batches(cells),
        _against_a3c(cells),
        _ours(cells),
        _again(cells),
        _twins(cells),
        _beside_the_thesis(ALONE, alone),
        _sizes(cells),
        _small_tasks(small),
        _small_differences(small),
        (["", ""], _further(cells, program.get(ALONE, []))),
    ]
    return [markdown(head, lines) for head, lines in found]


def _against_thesis(cells: Cells, names: Sequence[str], what: str) -> Table:
    lines = []
    for name in names:
        mean, deviation = FINAL[name]
        line = [CELLS[name].label, f"{number(mean)} ± {deviation:.1f}"]
        if rows := cells.get(name):
            found = summary(rows)
            less = compare([row["curve"][-1][1] for row in rows], [mean])
            line += [f"**{number(found.median)}** ± {found.deviation:.1f}"]
            line += [span(found.interval), number(less.value, sign=True)]
            line += [f"{found.solved} of {found.seeds}", _landed(rows)]
        lines.append(line)
    head = [what, "thesis", "median ± deviation", "interval", "less the thesis", "above 200"]
    return [*head, "ever above"], _padded(lines, 7)


def _padded(lines: Iterable[list[str]], columns: int) -> Iterator[list[str]]:
    """The lines with a dash for what is missing."""
    for line in lines:
        yield line + [NONE] * (columns - len(line))


def _moments() -> list[str]:
    return [f"{moment:,}" for moment in (*_WAY, UPDATES)]


def _batches(cells: Cells) -> Table:
    """Steps a second of A3C on 8 cores, by batch size."""
    lines = []
    for batch in (30, 60, 120):
        speeds = [row["steps"] / row["seconds"] for row in cells.get(f"a3c-8-0.99-{batch}", [])]
        line = [f"{round(speed):,}" for speed in (min(speeds), median(speeds), max(speeds))]
        lines.append([str(batch), line[1], f"{line[0]} to {line[2]}", str(len(speeds))])
    return ["batch", "steps a second, median", "seeds", "n"], lines


def _against_a3c(cells: Cells) -> Table:
    lines = [
        [
            f"2 × 4 cores less A3C with {CELLS[other].cores} cores",
            number(FINAL[BEST][0] - FINAL[other][0], sign=True),
            *_differing(cells, BEST, other),
        ]
        for other in (A3C, ALONE)
    ]
    return ["", "thesis", "ours", "interval", "seeds", "says"], lines


def _ours(cells: Cells) -> Table:
    lines = []
    for row in cells.get("ours", []):
        _, mean, deviation = row["curve"][-1]
        best = max(row["curve"], key=lambda point: point[1])
        reached = mean >= GOAL[0] and deviation <= GOAL[1]
        ends = [f"{mean:.1f} ± {deviation:.1f}", f"{best[1]:.1f} ± {best[2]:.1f}"]
        lines.append([str(row["seed"]), *ends, "yes" if reached else "no"])
    return ["seed", "at the end", "best checkpoint", "reached"], lines


def _again(cells: Cells) -> Table:
    lines = []
    base = cells.get(AGAIN, [])
    for name, label in _AGAIN.items():
        rows = cells.get(name, [])
        line = [label, str(len(rows))]
        if rows:
            ends = [better(row) for row in rows if row.get("children")]
            line += [number(summary(rows).median), number(median(ends)) if ends else NONE]
            line += [_landed(rows), _passed(rows)]
        if name == AGAIN:
            line += [""] * 3
        elif rows and base:
            chance = luck([(rows, base)])
            earlier = compare(passages(base, LANDS), passages(rows, LANDS))
            line += [NONE if chance is None else f"{chance:.3f}", apart(earlier)]
            line += [verdict(earlier, "sooner", "later")]
        lines.append(line)
    head = ["", "seeds", "median", "better child", "ever above 200", f"{LANDS:.0f} after"]
    return [*head, "by luck", "sooner by", "says"], _padded(lines, 9)


def _twins(cells: Cells) -> Table:
    lines = []
    for what, names in _TWINS.items():
        pairs = enough((cells.get(ours, []), cells.get(others, [])) for ours, others in names)
        line = [what]
        if (found := sooner(pairs, LANDS)) is not None:
            sides = [[row for rows in side for row in rows] for side in zip(*pairs, strict=True)]
            line += [str(len(pairs)), *map(_landed, sides), f"{luck(pairs):.3f}"]
            line += [apart(found), verdict(found, "sooner", "later")]
        lines.append(line)
    head = ["", "pairs", "ever above 200: with", "without", "by luck"]
    return [*head, f"{LANDS:.0f} sooner by", "says"], _padded(lines, 7)


def _beside_the_thesis(cell: str, named: Cells) -> Table:
    """One cell of the thesis, and what was done like it."""
    mean, deviation = FINAL[cell]
    path = dict(zip(range(100, UPDATES + 1, 100), PATHS.get(cell, ()), strict=False))
    way = [number(path[moment]) if moment in path else NONE for moment in _WAY]
    lines = [["the thesis", "1", *way, f"{number(mean)} ± {deviation:.1f}"]]
    for name, rows in named.items():
        line = [name, str(len(rows))]
        if rows:
            found = summary(rows)
            line += [_mean_after(rows, cell, moment) for moment in _WAY]
            line += [f"{number(found.median)} ± {found.deviation:.1f}"]
            line += [_landed(rows), _passed(rows)]
        lines.append(line)
    head = ["", "runs", *_moments(), "ever above 200", f"{LANDS:.0f} after"]
    return head, _padded(lines, 8)


def _sizes(cells: Cells) -> Table:
    lines = []
    for alpha, beta in PAIRS:
        for children in SIZES:
            name = GRID[alpha, beta] if children == 2 else f"size-{children}-{alpha}-{beta}"
            line = [f"α = {alpha}, β = {beta}", str(children)]
            if rows := cells.get(name):
                found = summary(rows)
                line += [f"{number(found.median)} ± {found.deviation:.1f}"]
            else:
                line += [NONE]
            one = f"size-1-{alpha}-{beta}"
            lines.append(line + (_differing(cells, name, one)[:2] if children > 1 else [""] * 2))
    return ["", "children", "median ± deviation", "less one child", "interval"], lines


#: Cells of cart pole with the older-parent form as well.
_OLDER = ((0.1, 0.9), (0.5, 0.5), (0.9, 0.9))


def _small_ends(rows: Sequence[Row], alpha: float, beta: float, form: str) -> list[float]:
    """Each seed's mean return after the last step."""
    return [
        row["curve"][-1][1]
        for row in sorted(rows, key=lambda row: row["seed"])
        if (row["alpha"], row["beta"], row["form"]) == (alpha, beta, form)
    ]


def _small_tasks(rows: Sequence[Row]) -> Table:
    levels = sorted({row["alpha"] for row in rows})
    lines = []
    for alpha in levels:
        line = [f"**α = {alpha}**"]
        for beta in levels:
            means = _small_ends(rows, alpha, beta, "after")
            line.append(f"{number(median(means))} ({span(interval([means], medians))})")
        lines.append(line)
    return ["cartpole", *(f"β = {beta}" for beta in levels)], lines


def _small_differences(rows: Sequence[Row]) -> Table:
    pairs = [
        ("β = 0.9 less β = 0.1, at α = 0.1", (0.1, 0.9, "after"), (0.1, 0.1, "after")),
        ("β = 0.9 less β = 0.1, at α = 0.9", (0.9, 0.9, "after"), (0.9, 0.1, "after")),
        ("α = 0.9 less α = 0.1, at β = 0.1", (0.9, 0.1, "after"), (0.1, 0.1, "after")),
        ("α = 0.9 less α = 0.1, at β = 0.9", (0.9, 0.9, "after"), (0.1, 0.9, "after")),
    ]
    for cell in _OLDER:
        what = "θ_P of before less of after, α = {}, β = {}".format(*cell)
        pairs.append((what, (*cell, "before"), (*cell, "after")))
    lines = []
    for what, one, other in pairs:
        ours, others = _small_ends(rows, *one), _small_ends(rows, *other)
        less = compare(ours, others)
        lines.append([what, number(less.value, sign=True), span(less.interval)])
    return ["", "difference", "interval"], lines


def _further(cells: Cells, controls: Sequence[Row]) -> Iterator[list[str]]:
    """Figures of the prose."""
    if found := standing(cells, {name: mean for name, (mean, _) in FINAL.items()}):
        yield [
            "cells whose run in the thesis is above our median",
            f"{found.above} of {found.cells}",
        ]
        yield ["places so far from the middle, by luck", f"{found.chance:.1%}"]
    ends = [f"{row['curve'][-1][1]:.1f} ± {row['curve'][-1][2]:.1f}" for row in controls]
    yield ["the program's runs", ", ".join(ends) or NONE]


def _passed(rows: Sequence[Row]) -> str:
    """When a cell's mean came to `LANDS`, in the median of its seeds."""
    return _moment(float(median(passages(rows, LANDS)))) if rows else NONE


def _landed(rows: Sequence[Row]) -> str:
    """How many of a cell's seeds had a mean above 200 at a checkpoint."""
    found = summary(rows)
    return f"{found.landed} of {found.seeds}"


def _mean_after(rows: Sequence[Row], name: str, updates: int) -> str:
    """The mean after some updates, in the median of a cell's seeds."""
    found = [
        mean
        for row in rows
        for moment, mean, _ in row["curve"]
        if abs(moment - updates) < CELLS[name].every / 2
    ]
    return number(float(median(found))) if found else NONE


def _moment(updates: float) -> str:
    """When a run came somewhere, as `passage` says it."""
    return f"{updates:,.0f}" if updates <= UPDATES else "never"


def _differing(cells: Cells, name: str, other: str) -> list[str]:
    """How far one cell lies above another: value, interval, seeds and verdict."""
    ours, others = cells.get(name, []), cells.get(other, [])
    seeds = f"{len(ours)} and {len(others)}"
    if not ours or not others:
        return [NONE, NONE, seeds, "missing"]
    found = difference(ours, others)
    return [number(found.value, sign=True), span(found.interval), seeds, verdict(found)]
