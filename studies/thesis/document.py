"""docs/results/thesis.md, made from the rows. What no row tells is said to be missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from studies.differences import LEAST, NONE, compare, number, span
from studies.thesis import evidence, reasons
from studies.thesis.cells import (
    BEST,
    CELLS,
    EPISODES,
    GRID,
    PAIRS,
    SIZES,
    Row,
    missing,
    plan,
)
from studies.thesis.published import FINAL, PATHS
from studies.thesis.statistics import by_cell, passage, standing, summary
from studies.thesis.wording import LANDS, Cells, differing, moment_of, on_the_way, passed, table

__all__ = ["text", "write"]


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


def write(
    rows: Sequence[Row], path: Path, controls: Sequence[Row] = (), virtual: Sequence[Row] = ()
) -> list[Path]:
    """Writes the document and the figures beside it.

    Args:
        rows: of the results.
        path: of the document.
        controls: runs of the thesis' own program.
        virtual: runs in virtual time.

    Returns:
        The files that were written.
    """
    from studies.thesis.pictures import draw  # needs Matplotlib

    cells = by_cell(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = draw(cells, path.parent)
    names = [file.name for file in pictures]
    path.write_text(text(rows, names, controls, virtual), encoding="utf-8")
    return [path, *pictures]


def text(
    rows: Sequence[Row],
    pictures: Sequence[str] = (),
    controls: Sequence[Row] = (),
    virtual: Sequence[Row] = (),
) -> str:
    """The document.

    Args:
        rows: of the results.
        pictures: the names of the files that lie beside it.
        controls: runs of the thesis' own program.
        virtual: runs in virtual time.
    """
    cells = by_cell(rows)
    parts = [
        *_head(rows),
        *_grid(cells, pictures),
        *_a3c(cells, pictures),
        *_against(cells),
        *_as_a_whole(cells),
        *_ours(cells),
        *reasons.why(cells),
        *evidence.again(cells),
        *evidence.twins(cells),
        *evidence.landings(cells, controls, by_cell(virtual)),
        *reasons.program(cells, controls, by_cell(virtual)),
        *reasons.seeds(cells),
        *_sizes(cells, pictures),
        *_machine(rows),
    ]
    return "\n".join(parts) + "\n"


def _head(rows: Sequence[Row]) -> Iterator[str]:
    wanted = plan(CELLS)
    left = missing(wanted, rows)
    yield "# Results: the thesis' experiment, with seeds"
    yield ""
    yield "<!-- made by `python -m studies.thesis report` -->"
    yield ""
    yield "    python -m studies.thesis run"
    yield "    python -m studies.thesis report"
    yield ""
    if left:
        there = len(wanted) - len(left)
        yield f"**{there} of {len(wanted)} runs are there, and {len(left)} are missing.**"
        if nothing := set(CELLS) - {row["cell"] for row in rows}:
            yield f"{len(nothing)} of {len(CELLS)} cells have no run yet."
        yield f"{NONE} stands for what is missing, and `python -m studies.thesis plan` lists it."
    else:
        yield f"**All {len(wanted)} runs are there.**"
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
    yield from table(
        ["cell", *(f"{moment:,}" for moment in moments), f"{LANDS:.0f} after"],
        (
            [
                CELLS[name].label,
                *(
                    f"{on_the_way(cells.get(name, []), name, one)}"
                    f" ({number(PATHS[name][one // 100 - 1])})"
                    for one in moments
                ),
                f"{passed(cells.get(name, []))} ({moment_of(passage(PATHS[name], LANDS))})",
            ]
            for name in GRID.values()
        ),
    )


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
        line = [CELLS[name].label, f"{number(mean)} ± {deviation:.1f}"]
        if rows := cells.get(name):
            found = summary(rows)
            apart = compare([row["curve"][-1][1] for row in rows], [mean])
            line += [f"**{number(found.median)}** ± {found.deviation:.1f}"]
            line += [span(found.interval), f"{number(found.low)} to {number(found.high)}"]
            line += [number(apart.value, sign=True), _within(found.interval, mean)]
            line += [number(found.best), f"{found.solved} of {found.seeds}"]
            line += [f"{found.landed} of {found.seeds}"]
        else:
            line += [NONE] * 8
        lines.append(line)
    head = [what, "thesis", "median ± deviation", "interval", "seeds", "less the thesis"]
    yield from table([*head, "thesis within", "best", "above 200", "ever above"], lines)


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
                number(thesis, sign=True),
                *differing(cells, BEST, other),
            ]
        )
    yield from table(["", "thesis", "ours", "interval", "seeds", "says"], lines)


def _as_a_whole(cells: Cells) -> Iterator[str]:
    found = standing(cells, {name: mean for name, (mean, _) in FINAL.items()})
    if found is None:
        return
    yield "## All of the thesis' runs beside ours"
    yield ""
    yield f"In {found.above} of {found.cells} cells the thesis' run ended above the median of ours."
    yield "If its run of a cell were one more seed of ours, each place among them would be as"
    yield "likely as any other. Its places would then lie as far from the middle in"
    yield f"{found.chance:.1%} of all cases (van Elteren's test, exact and two-sided)."
    yield ""
    yield "That share is too small: all runs of the thesis begin with the same weights and draw"
    yield "their actions with the same random numbers, so they may be lucky together."
    yield ""


def _ours(cells: Cells) -> Iterator[str]:
    mean, deviation = GOAL
    cell = CELLS["ours"]
    yield "## Our own A3C settings, with as many episodes"
    yield ""
    yield f"The thesis' 2,000 updates of 2 × 4 cores are {EPISODES:,} episodes. `{cell.file}`"
    yield "has as many on as many cores, each of which plays 4 at a time: some 400 exchanges a"
    yield f"child. Asked for: at least {mean} and at most ± {deviation}, in each of {cell.seeds}"
    yield f"seeds. The settings were chosen with seeds below {cell.first_seed}."
    yield ""
    rows = cells.get("ours", [])
    yield from table(
        ["seed", "at the end", "best checkpoint", "reached"],
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
                line += [f"{number(found.median)} ± {found.deviation:.1f}"]
                line += [number(found.high - found.low), between]
            else:
                line += [NONE] * 3
            line += differing(cells, name, one) if children > 1 else ["", "", "", ""]
            lines.append(line)
    head = ["", "children", "median ± deviation", "spread", "apart"]
    yield from table([*head, "less one child", "interval", "seeds", "says"], lines)
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
    yield ""
    part = min(row["episodes"] / _episodes(row["cell"]) for row in rows)
    yield "Exchanges that a child makes before the others have joined count as more of an update."
    yield f"So runs have a little less than all their episodes, {part:.1%} at the least."


def _episodes(name: str) -> int:
    """What a run of the cell has if all children join at once."""
    cell = CELLS[name]
    return EPISODES if name == "ours" else cell.updates * cell.children * cell.cores


def _picture(name: str, pictures: Sequence[str]) -> Iterator[str]:
    if f"{name}.svg" in pictures:
        yield f"![{_PICTURES[name]}]({name}.svg)"
        yield ""
