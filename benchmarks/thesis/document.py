"""docs/results/thesis.md, made from the rows. What no row tells is said to be missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.thesis.cells import (
    BEST,
    CELLS,
    EPISODES,
    FAULTS,
    GRID,
    PAIRS,
    SIZES,
    SUMS,
    UPDATES,
    Row,
    missing,
    plan,
)
from benchmarks.thesis.published import FINAL, PATHS
from benchmarks.thesis.statistics import (
    LEAST,
    Difference,
    by_cell,
    compare,
    difference,
    distance,
    passage,
    passages,
    summary,
)

__all__ = ["text", "write"]

Cells = Mapping[str, Sequence[Row]]

NONE = "–"
#: Policies that hover, or stand on the pad with engines on, come to this mean, and those that land
#: jump from here to 200 and more.
LANDS = 100.0
#: The thesis' A3C on as many cores as two children have together.
A3C = "a3c-8-0.999-120"
#: The thesis' best cell: mean and deviation that our own settings must reach.
GOAL = FINAL[BEST]

_PICTURES = {
    "thesis-grid": "Learning curves for each α and β",
    "thesis-returns": "Returns of the evaluated episodes for each α and β",
    "thesis-a3c": "Returns of the evaluated episodes of A3C",
    "thesis-sizes": "Mean return by the number of children",
    "thesis-staleness": "Staleness, and how far children end apart",
}


def write(rows: Sequence[Row], path: Path) -> list[Path]:
    """Writes the document and the figures beside it.

    Returns:
        The files that were written.
    """
    from benchmarks.thesis.pictures import draw  # needs Matplotlib

    cells = by_cell(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = draw(cells, path.parent)
    path.write_text(text(rows, [file.name for file in pictures]), encoding="utf-8")
    return [path, *pictures]


def text(rows: Sequence[Row], pictures: Sequence[str] = ()) -> str:
    """The document.

    Args:
        rows: of the results.
        pictures: the names of the files that lie beside it.
    """
    cells = by_cell(rows)
    parts = [
        *_head(rows),
        *_grid(cells, pictures),
        *_a3c(cells, pictures),
        *_against(cells),
        *_ours(cells),
        *_why(cells),
        *_readings(cells),
        *_seeds(cells),
        *_sizes(cells, pictures),
        *_machine(rows),
    ]
    return "\n".join(parts) + "\n"


def _head(rows: Sequence[Row]) -> Iterator[str]:
    wanted = plan(CELLS)
    left = missing(wanted, rows)
    yield "# Results: the thesis' experiment, with seeds"
    yield ""
    yield "<!-- made by `python -m benchmarks.thesis report` -->"
    yield ""
    yield "    python -m benchmarks.thesis run"
    yield "    python -m benchmarks.thesis report"
    yield ""
    there = f"{len(wanted) - len(left)} of {len(wanted)} runs are there"
    if left:
        nothing = set(CELLS) - {row["cell"] for row in rows}
        yield f"**{there}, and {len(left)} are missing.** {len(nothing)} of {len(CELLS)} cells"
        yield f"have no run yet. {NONE} stands for what is missing, and"
        yield "`python -m benchmarks.thesis plan` lists it."
    else:
        yield f"**{there}.**"
    yield ""
    yield "The thesis has one run a cell, on LunarLander-v2. Ours is `thesis.toml` on"
    yield "LunarLander-v3. *Median* is that of the seeds' means, each over 500 episodes with"
    yield "sampled actions; *deviation* is that of a seed's episodes, in the median. Intervals"
    yield f"are percentile bootstraps over seeds (95 %); with fewer than {LEAST} seeds there is"
    yield "none, and with five one is about as wide as the seeds lie apart. *Best* is the best"
    yield "of 20 checkpoints, in the median: chosen by what it is judged by, so it is a little"
    yield "too good. *Above 200* is how many seeds ended so, *ever above* how many were at a"
    yield "checkpoint."
    yield ""


def _grid(cells: Cells, pictures: Sequence[str]) -> Iterator[str]:
    yield "## Tables 5.3 to 5.5: α and β"
    yield ""
    yield "2 children of 4 cores each, after 2,000 updates."
    yield ""
    yield from _against_thesis(cells, list(GRID.values()), "cell")
    if rows := cells.get(BEST):
        mean, deviation = FINAL[BEST]
        lies = "lies" if abs(summary(rows).median - mean) <= deviation else "does not lie"
        yield f"The median of the thesis' best cell {lies} within {mean} ± {deviation}, the thesis'"
        yield f"own spread of episodes (seeds: {len(rows)})."
        yield ""
    yield from _picture("thesis-grid", pictures)
    yield from _picture("thesis-returns", pictures)
    yield "On the way: our median, and in brackets the thesis' mean. The last column has the first"
    yield f"of 20 moments with a mean of {LANDS:.0f}, also in the median. A policy is then about to"
    yield "find out how to land."
    yield ""
    moments = (500, 1_000, 1_500, 2_000)
    yield from _table(
        ["cell", *(f"{moment:,}" for moment in moments), f"{LANDS:.0f} after"],
        (
            [
                CELLS[name].label,
                *(_on_the_way(cells.get(name, []), name, one) for one in moments),
                f"{_passed(cells.get(name, []))} ({_moment(passage(PATHS[name], LANDS))})",
            ]
            for name in GRID.values()
        ),
    )


def _passed(rows: Sequence[Row]) -> str:
    return _moment(float(median(passages(rows, LANDS)))) if rows else NONE


def _moment(updates: float) -> str:
    return f"{updates:,.0f}" if updates <= UPDATES else "never"


def _on_the_way(rows: Sequence[Row], name: str, updates: int) -> str:
    published = PATHS[name][updates // 100 - 1]
    found = [
        mean
        for row in rows
        for moment, mean, _ in row["curve"]
        if abs(moment - updates) < CELLS[name].every / 2
    ]
    return f"{_number(compare(found, [0.0]).value) if found else NONE} ({_number(published)})"


def _a3c(cells: Cells, pictures: Sequence[str]) -> Iterator[str]:
    yield "## Table 5.2: A3C on one machine"
    yield ""
    yield "A cluster of one child with α = 1 and β = 0, after 2,000 updates."
    yield ""
    yield from _against_thesis(cells, [name for name in CELLS if CELLS[name].group == "a3c"], "run")
    yield from _picture("thesis-a3c", pictures)


def _against_thesis(cells: Cells, names: Sequence[str], what: str) -> Iterator[str]:
    lines = []
    for name in names:
        mean, deviation = FINAL[name]
        line = [CELLS[name].label, f"{_number(mean)} ± {deviation:.1f}"]
        if rows := cells.get(name):
            found = summary(rows)
            apart = compare([row["curve"][-1][1] for row in rows], [mean])
            line += [f"**{_number(found.median)}** ± {found.deviation:.1f}"]
            line += [_range(found.interval), f"{_number(found.low)} to {_number(found.high)}"]
            line += [_number(apart.value, sign=True), _within(found.interval, mean)]
            line += [_number(found.best), f"{found.solved} of {found.seeds}"]
            line += [f"{found.landed} of {found.seeds}"]
        else:
            line += [NONE] * 8
        lines.append(line)
    head = [what, "thesis", "median ± deviation", "interval", "seeds", "less the thesis"]
    yield from _table([*head, "thesis within", "best", "above 200", "ever above"], lines)


def _within(interval: tuple[float, float] | None, value: float) -> str:
    if interval is None:
        return NONE
    return "yes" if interval[0] <= value <= interval[1] else "no"


def _against(cells: Cells) -> Iterator[str]:
    yield "## Table 5.6: Genkidama against A3C"
    yield ""
    yield f"Both have {EPISODES:,} episodes. The thesis calls them comparable: 257.2 ± 39.9 and"
    yield "255.9 ± 36.9. With 4 cores A3C has half the episodes (230.0 ± 87.1)."
    yield ""
    lines = []
    for other in (A3C, "a3c-4-0.999-120"):
        thesis = FINAL[BEST][0] - FINAL[other][0]
        lines.append(
            [
                f"2 × 4 cores less A3C with {CELLS[other].cores} cores",
                _number(thesis, sign=True),
                *_difference(cells, BEST, other),
            ]
        )
    yield from _table(["", "thesis", "ours", "interval", "seeds", "says"], lines)


def _difference(cells: Cells, name: str, other: str) -> list[str]:
    ours, others = cells.get(name, []), cells.get(other, [])
    if not ours or not others:
        return [NONE, NONE, f"{len(ours)} and {len(others)}", "missing"]
    found = difference(ours, others)
    return [
        _number(found.value, sign=True),
        _range(found.interval),
        f"{len(ours)} and {len(others)}",
        verdict(found),
    ]


def verdict(found: Difference, more: str = "higher", less: str = "lower") -> str:
    """What a difference says, in a word or two."""
    match found.clear:
        case None:
            return "too few seeds"
        case False:
            return "no clear difference"
        case True:
            return more if found.value > 0.0 else less


def _apart(found: Difference) -> str:
    """A difference, with its interval."""
    value = _number(found.value, sign=True)
    return value if found.interval is None else f"{value} ({_range(found.interval)})"


def _ours(cells: Cells) -> Iterator[str]:
    mean, deviation = GOAL
    cell = CELLS["ours"]
    yield "## Our own A3C settings at the same 2,000 updates"
    yield ""
    yield f"`{cell.file}` with 2 × 4 cores. Asked for: at least {mean} and at most ± {deviation},"
    yield f"in each of {cell.seeds} seeds. The settings were chosen with seeds below"
    yield f"{cell.first_seed}."
    yield ""
    rows = cells.get("ours", [])
    yield from _table(
        ["seed", "after 2,000 updates", "best checkpoint", "reached"],
        (
            [
                str(row["seed"]),
                f"{row['curve'][-1][1]:.1f} ± {row['curve'][-1][2]:.1f}",
                "{:.1f} ± {:.1f}".format(*max(row["curve"], key=lambda point: point[1])[1:]),
                "yes" if reached(row) else "no",
            ]
            for row in rows
        ),
    )
    if len(rows) < cell.seeds:
        yield f"{cell.seeds - len(rows)} of {cell.seeds} seeds are missing."
        yield ""


def reached(row: Row) -> bool:
    """Whether a run ends at least as well as the thesis' best."""
    _, mean, deviation = row["curve"][-1]
    return bool(mean >= GOAL[0] and deviation <= GOAL[1])


def _why(cells: Cells) -> Iterator[str]:
    yield "## Why"
    yield ""
    yield "What may explain a difference from the thesis, one at a time, against"
    yield f"{CELLS[BEST].label}."
    yield ""
    yield f"*{LANDS:.0f} after* is the first of 20 moments with that mean, in updates of the 2,000."
    yield ""
    lines = []
    clear: list[str] = []
    base = cells.get(BEST, [])
    for name in (name for name in CELLS if CELLS[name].group == "why"):
        rows = cells.get(name, [])
        line = [CELLS[name].label, f"{len(rows)} and {len(base)}"]
        if rows and base:
            higher = difference(rows, base)
            sooner = compare(passages(base, LANDS), passages(rows, LANDS))
            line += [_number(summary(rows).median), _apart(higher), verdict(higher)]
            line += [_passed(rows), _apart(sooner), verdict(sooner, "sooner", "later")]
            if higher.clear or sooner.clear:
                clear.append(f"{CELLS[name].label} ({line[4]}, {line[7]})")
        else:
            line += [NONE] * 6
        lines.append(line)
    head = ["changed", "seeds", "median", "higher by", "says"]
    yield from _table([*head, f"{LANDS:.0f} after", "sooner by", "says"], lines)
    if clear:
        yield "Clear differences: " + "; ".join(clear) + ". The rest remains open."
    else:
        yield "None of these makes a clear difference so far."
    yield ""
    yield "v2 and v3 differ in three things: v3 has a new Box2D world for every episode, draws"
    yield "the wind's offset anew (the thesis has no wind), and states wider bounds of"
    yield "observations, which the learner does not read. `benchmarks/thesis/lander_v2.py`"
    yield "restores v2's. The momentum is float32 in both programs, so only whose it is can be"
    yield "changed. All networks of the thesis' program are made with torch's seed 0; with seed 0"
    yield "`thesis.toml` begins with the same weights, if that program makes the policy's layers"
    yield "before the value's."
    yield ""


def _readings(cells: Cells) -> Iterator[str]:
    yield "## Three readings"
    yield ""
    yield "`thesis.toml` is right where the thesis' program is wrong: that takes the value of the"
    yield "last stored state instead of the following one, and a time limit for an end. Algorithm"
    yield "1 of the thesis resets gradients before an episode begins (line 4), and nowhere else:"
    yield "to the letter, each batch then steps along the sum of its episode's gradients so far."
    yield "Where children read the parent (β > 0), paths are smooth, and tell these readings"
    yield "apart."
    yield ""
    level = f"{LANDS:.0f}"
    yield f"*{level} after* is as above. *Distance* is the root mean square of how far checkpoints"
    yield f"are from the thesis', before one of the two is at {level}. What comes after is whether"
    yield "a policy finds out how to land. Both are medians of the seeds (in brackets: how many)."
    yield ""
    readings = {"thesis.toml": GRID, "its program's faults": FAULTS, "sums": SUMS}
    lines = []
    for pair, name in GRID.items():
        path = PATHS[name]
        line = [CELLS[name].label, _moment(passage(path, LANDS))]
        of_readings = [cells.get(keys[pair], []) for keys in readings.values()]
        line += [*map(_passed, of_readings), *(_distance(rows, path) for rows in of_readings)]
        lines.append(line)
    head = ["cell", f"{level} after: thesis", *readings]
    first, *others = readings
    yield from _table([*head, f"distance: {first}", *others], lines)


def _distance(rows: Sequence[Row], path: Sequence[float]) -> str:
    found = [distance([mean for _, mean, _ in row["curve"]], path, LANDS) for row in rows]
    return f"{median(found):.0f} ({len(rows)})" if found else NONE


def _seeds(cells: Cells) -> Iterator[str]:
    yield "## Each seed"
    yield ""
    yield "Runs of a seed begin with the same weights, in every cell; in the thesis all runs do. If"
    yield "the columns differed more than the lines, the weights at the start would decide. These"
    yield "are the cells with more than one seed."
    yield ""
    shown = {
        name: {row["seed"]: _number(row["curve"][-1][1]) for row in cells[name]}
        for name in CELLS
        if len(cells.get(name, [])) > 1 and name != "ours" and CELLS[name].fixed_seed is None
    }
    seeds = sorted({seed for found in shown.values() for seed in found})
    lines = [
        [CELLS[name].label, *(found.get(seed, NONE) for seed in seeds)]
        for name, found in shown.items()
    ]
    yield from _table(["cell", *map(str, seeds)], lines)


def _sizes(cells: Cells, pictures: Sequence[str]) -> Iterator[str]:
    yield "## 1, 2, 4, 8 children"
    yield ""
    yield f"Each has 4 cores, and all together {EPISODES:,} episodes: 4,000 updates of one child,"
    yield "500 of eight. *Spread* is from the worst seed to the best."
    yield ""
    lines = []
    for alpha, beta in PAIRS:
        one = f"size-1-{alpha}-{beta}"
        for children in SIZES:
            name = GRID[alpha, beta] if children == 2 else f"size-{children}-{alpha}-{beta}"
            line = [f"α = {alpha}, β = {beta}", str(children)]
            if rows := cells.get(name):
                found = summary(rows)
                between = NONE if found.between is None else f"{found.between:.2f}"
                line += [f"{_number(found.median)} ± {found.deviation:.1f}"]
                line += [_number(found.high - found.low), between]
            else:
                line += [NONE] * 3
            line += _difference(cells, name, one) if children > 1 else ["", "", "", ""]
            lines.append(line)
    head = ["", "children", "median ± deviation", "spread", "apart"]
    yield from _table([*head, "less one child", "interval", "seeds", "says"], lines)
    yield "*Apart* is how far the children's weights end from one another, by |θ_P|, in the median."
    yield ""
    yield from _picture("thesis-sizes", pictures)
    yield from _picture("thesis-staleness", pictures)


def _machine(rows: Sequence[Row]) -> Iterator[str]:
    yield "## The machine"
    yield ""
    if not rows:
        yield "No run is there yet."
        return
    loads = [load for row in rows for load in row["load"]]
    cores = " or ".join(map(str, sorted({row["machine_cores"] for row in rows})))
    yield f"The runs had {cores} CPU cores. The load of the machine was between {min(loads):.1f}"
    yield f"and {max(loads):.1f} as trainings began and ended: where it is far above the number"
    yield "of processes of a run, the machine was shared. Seconds are therefore no result."
    yield "Staleness within a child may depend on how the cores were shared, and through it the"
    yield f"learning. Dates: {min(row['date'] for row in rows)} to"
    yield f"{max(row['date'] for row in rows)}."


def _picture(name: str, pictures: Sequence[str]) -> Iterator[str]:
    if f"{name}.svg" in pictures:
        yield f"![{_PICTURES[name]}]({name}.svg)"
        yield ""


def _table(head: Sequence[str], lines: Iterator[list[str]] | Sequence[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for line in lines:
        yield "| " + " | ".join(line) + " |"
    yield ""


def _number(value: float, sign: bool = False) -> str:
    """With a real minus sign."""
    return f"{value:{'+' if sign else ''}.1f}".replace("-", "−")


def _range(interval: tuple[float, float] | None) -> str:
    return NONE if interval is None else f"{_number(interval[0])} to {_number(interval[1])}"
