"""Sections of the document: what may explain a difference from the thesis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from benchmarks.differences import NONE, apart, compare, number, verdict
from benchmarks.thesis.cells import (
    AGAIN,
    ALONE,
    BEST,
    CELLS,
    FORMS,
    GRID,
    UPDATES,
    WEIGHTS,
    Row,
)
from benchmarks.thesis.published import FINAL, PATHS
from benchmarks.thesis.statistics import (
    Searching,
    as_often,
    difference,
    enough,
    luck,
    passages,
    searching,
    sooner,
    summary,
)
from benchmarks.thesis.wording import LANDS, Cells, on_the_way, passed, table

__all__ = ["again", "landings", "program", "seeds", "twins", "why"]

#: Cells that learn otherwise than the thesis' program.
_OTHERWISE = {"why-sum", "why-one-core"}
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
#: Moments of a run, in updates.
_WAY = (500, 1_000, 1_500)


def why(cells: Cells) -> Iterator[str]:
    yield "## Why"
    yield ""
    yield "What may explain a difference from the thesis. Most is changed alone, against"
    yield f"{CELLS[BEST].label}; the last lines are compared with A3C on one machine with 4 cores,"
    yield "which takes half the time, and which a child is as well, where β = 0."
    yield ""
    yield f"*{LANDS:.0f} after* is the first of 20 moments with that mean, in updates of the 2,000."
    yield "*Ever above* is how many seeds had a mean above 200 at a checkpoint. A policy stands on"
    yield "the pad with its engines on, at some 130, until it finds out how to land, and jumps to"
    yield "220 and more. When it does is chance, so these counts say more than medians do. In"
    yield "brackets is how likely counts so far apart are if nothing but luck tells the two cells"
    yield "apart (Fisher's exact test). Of 20 such figures one is below 0.05 by luck as well."
    yield ""
    lines = []
    clear: list[str] = []
    for name in (name for name in CELLS if CELLS[name].group == "why"):
        rows, base = cells.get(name, []), cells.get(CELLS[name].base, [])
        line = [CELLS[name].label, f"{len(rows)} and {len(base)}"]
        if rows and base:
            higher = difference(rows, base)
            sooner = compare(passages(base, LANDS), passages(rows, LANDS))
            line += [number(summary(rows).median), apart(higher), verdict(higher)]
            chance = luck([(rows, base)])
            landed = _landed(rows) + (f" ({chance:.3f})" if chance is not None else "")
            line += [landed, passed(rows), apart(sooner), verdict(sooner, "sooner", "later")]
            says = [line[4]] * bool(higher.clear) + [line[-1]] * bool(sooner.clear)
            if chance is not None and chance < 0.05:
                says.append(f"{_landed(rows)} ever above 200")
            if says:
                clear.append(f"{CELLS[name].label} ({', '.join(says)})")
        else:
            line += [NONE] * 7
        lines.append(line)
    for name in (BEST, ALONE):
        if own := cells.get(name):
            line = [f"*{CELLS[name].label}*", str(len(own)), number(summary(own).median), "", ""]
            lines.append([*line, _landed(own), passed(own), "", ""])
    head = ["changed", "seeds", "median", "higher by", "says", "ever above", f"{LANDS:.0f} after"]
    yield from table([*head, "sooner by", "says"], lines)
    if clear:
        yield "Clear differences: " + "; ".join(clear) + "."
        yield "The rest remains open."
    else:
        yield "None of these makes a clear difference so far."
    yield ""
    yield "v2 and v3 differ in three things: v3 has a new Box2D world for every episode, draws"
    yield "the wind's offset anew (the thesis has no wind), and states wider bounds of"
    yield "observations, which the learner does not read. `benchmarks/thesis/lander_v2.py`"
    yield "restores v2's. The momentum is float32 in both programs, so only whose it is can be"
    yield "changed. 278 of 300 episodes go alike in v2 and v3, to the bit (`physics.py`), so what"
    yield "tells runs with v2 from others may well be luck."
    yield ""
    yield "One of the thesis' two Raspberry Pis was slower, as it says, though not by how much."
    yield "With α = 0.9 and β = 0 the parent is nearly the child that has pushed last, and the"
    yield "thesis' path jumps between two children: 201.9, 32.8 and 226.7 after 1,200, 1,300 and"
    yield "1,400 updates. An update counts exchanges of both, so the faster child is ahead of it."
    for times in sorted({cell.slower for cell in CELLS.values()} - {1.0}):
        if uneven := [row for name in cells for row in cells[name] if CELLS[name].slower == times]:
            share = median(map(_faster, uneven))
            yield f"With {times:g} times the CPU time the faster child makes {share:.0%} of them."
    behind = [_behind(row) for name in cells for row in cells[name] if _is_parted(name, row)]
    if behind:
        yield f"At β = 0 the parent ends behind its better child by {number(median(behind))} in the"
        yield f"median, by {number(max(behind))} at most ({len(behind)} runs)."
    yield ""


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
        line = [what, str(len(pairs)), *(_landed(rows) for rows in sides)]
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
    yield ""


def _as_often(theirs: Searching, ours: Searching) -> str:
    return f"{as_often(theirs, ours):.3f}" if ours.updates else NONE


def _paths(cells: Cells, names: Iterable[str]) -> list[list[float]]:
    """The means of each run at its checkpoints."""
    return [[mean for _, mean, _ in row["curve"]] for name in names for row in cells.get(name, [])]


def _is_parted(name: str, row: Row) -> bool:
    """Whether its children never read the parent, and were judged."""
    return CELLS[name].settings.get("child.beta") == 0.0 and bool(row.get("children"))


def _behind(row: Row) -> float:
    """The better child's own mean less the parent's."""
    return _better(row) - float(row["curve"][-1][1])


def _better(row: Row) -> float:
    """The mean of the better child's own weights at the end."""
    return float(max(mean for mean, _ in row["children"].values()))


def _landed(rows: Sequence[Row]) -> str:
    found = summary(rows)
    return f"{found.landed} of {found.seeds}"


def _faster(row: Row) -> float:
    """The faster child's share of the exchanges."""
    made = [one["exchanges"] for one in row["exchanges"].values()]
    return float(max(made) / sum(made))


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
            better = [_better(row) for row in rows if row.get("children")]
            line += [number(summary(rows).median), number(median(better)) if better else NONE]
            line += [_landed(rows), passed(rows)]
        else:
            line += [NONE] * 4
        if name != AGAIN and rows and base:
            chance = luck([(rows, base)])
            sooner = compare(passages(base, LANDS), passages(rows, LANDS))
            line += [NONE if chance is None else f"{chance:.3f}", apart(sooner)]
            line += [verdict(sooner, "sooner", "later")]
        else:
            line += [""] * 3
        lines.append(line)
    head = ["", "seeds", "median", "better child", "ever above 200", f"{LANDS:.0f} after"]
    yield from table([*head, "by luck", "sooner by", "says"], lines)


def program(cells: Cells, controls: Sequence[Row], virtual: Cells) -> Iterator[str]:
    yield "## The thesis' own program, here"
    yield ""
    yield "`python -m benchmarks.thesis.program CLONE` runs the A3C of the thesis' repository on"
    yield "this machine, with 4 cores as in Table 5.2. What it learns is judged as ours is. It"
    yield "begins with the same weights in each run, but its environment has no seed. Ours begin"
    yield "with its weights, or have its faults, or both. Figures are means, in the median of runs."
    yield ""
    yield "*In virtual time* (`python -m benchmarks.thesis.virtual`) the processes of a run take"
    yield "turns as if each had a core of its own, which the thesis' machines had. The last line"
    yield "comes as close to its program on its machine as that allows: it has its weights and its"
    yield "faults, processes that do not wait for one another and draw their actions with the same"
    yield "random numbers, and steps that take the longer the more particles the engines have left."
    yield ""
    named = {"its program": list(controls), "`thesis.toml`": cells.get(ALONE, [])} | {
        f"… {what}": cells.get(f"why-a3c-{name}", [])
        for name, what in {
            "weights": "with its weights",
            "both": "with its faults",
            "program": "with its weights and its faults",
        }.items()
    }
    named |= {name: virtual.get(name, []) for name in ("virtual-child", "virtual-program")}
    yield from _beside_the_thesis(ALONE, named)
    if controls:
        ends = [f"{row['curve'][-1][1]:.1f} ± {row['curve'][-1][2]:.1f}" for row in controls]
        yield f"Its runs here ended at {', '.join(ends)}."
        if 0 < summary(controls).landed < len(controls):
            yield "So in that program, too, it is chance whether a run finds out how to land."
        yield ""
    yield "Two children of it, as in Tables 5.3 to 5.5, with α = 0.9 and β = 0. gym 0.23 made a"
    yield "particle for each step with an engine on, and moved all of them until the episode ended."
    yield "So an episode on the pad with engines on took far longer than a landing, and a child"
    yield "that lands exchanges more often than one that does not."
    yield ""
    named = {
        "`thesis.toml`": cells.get(BEST, []),
        "… with its weights and its faults": cells.get("why-weights-both", []),
        "… and v2": cells.get("why-program", []),
        "virtual-two": virtual.get("virtual-two", []),
    }
    yield from _beside_the_thesis(BEST, named)
    better = [_better(row) for row in cells.get("why-program", []) if row.get("children")]
    if better:
        yield "*2,000* is the parent's, which is nearly the child that has pushed last. With all of"
        yield "these, v2 included, the better child of each run ended at"
        yield f"{', '.join(map(number, better))}: {number(median(better))} in the median."
        yield ""
    if two := named["virtual-two"]:
        shares = [max(row["exchanges"]) / sum(row["exchanges"]) for row in two]
        ends = [f"{row['curve'][-1][1]:.1f} ± {row['curve'][-1][2]:.1f}" for row in two]
        yield "In virtual time they ended at"
        yield f"{', '.join(ends)}."
        yield f"The busier child made {median(shares):.0%} of the exchanges in the median, and"
        yield f"{max(shares):.0%} at most."
        yield ""


def _beside_the_thesis(cell: str, named: Cells) -> Iterator[str]:
    """A table of one cell of the thesis, and of what was done like it."""
    mean, deviation = FINAL[cell]
    path = dict(zip(range(100, UPDATES + 1, 100), PATHS.get(cell, ()), strict=False))
    way = [number(path[moment]) if moment in path else NONE for moment in _WAY]
    lines = [["the thesis", "1", *way, f"{number(mean)} ± {deviation:.1f}", NONE, NONE]]
    for name, rows in named.items():
        line = [FORMS[name].label if name in FORMS else name, str(len(rows))]
        if rows:
            found = summary(rows)
            line += [on_the_way(rows, cell, moment) for moment in _WAY]
            line += [f"{number(found.median)} ± {found.deviation:.1f}", _landed(rows), passed(rows)]
        else:
            line += [NONE] * 6
        lines.append(line)
    way = [f"{moment:,}" for moment in (*_WAY, UPDATES)]
    yield from table(["", "runs", *way, "ever above 200", f"{LANDS:.0f} after"], lines)


def seeds(cells: Cells) -> Iterator[str]:
    yield "## Each seed"
    yield ""
    yield "Runs of a seed begin with the same weights, in every cell; in the thesis all runs do. If"
    yield "the columns differed more than the lines, the weights at the start would decide. These"
    yield "are the cells with more than one seed."
    yield ""
    shown = {
        name: {row["seed"]: number(row["curve"][-1][1]) for row in cells[name]}
        for name in CELLS
        if len(cells.get(name, [])) > 1
        and CELLS[name].first_seed == 1
        and WEIGHTS not in CELLS[name].settings
    }
    known = sorted({seed for found in shown.values() for seed in found})
    lines = [
        [CELLS[name].label, *(found.get(seed, NONE) for seed in known)]
        for name, found in shown.items()
    ]
    yield from table(["cell", *map(str, known)], lines)
