"""Sections of the document: what may explain a difference from the thesis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from studies.differences import NONE, apart, compare, number, verdict
from studies.thesis.cells import ALONE, BEST, CELLS, FORMS, UPDATES, WEIGHTS, Row
from studies.thesis.published import FINAL, PATHS
from studies.thesis.statistics import better, difference, luck, passages, summary
from studies.thesis.wording import LANDS, Cells, landed, on_the_way, passed, table

__all__ = ["program", "seeds", "why"]

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
            often = landed(rows) + (f" ({chance:.3f})" if chance is not None else "")
            line += [often, passed(rows), apart(sooner), verdict(sooner, "sooner", "later")]
            says = [line[4]] * bool(higher.clear) + [line[-1]] * bool(sooner.clear)
            if chance is not None and chance < 0.05:
                says.append(f"{landed(rows)} ever above 200")
            if says:
                clear.append(f"{CELLS[name].label} ({', '.join(says)})")
        else:
            line += [NONE] * 7
        lines.append(line)
    for name in (BEST, ALONE):
        if own := cells.get(name):
            line = [f"*{CELLS[name].label}*", str(len(own)), number(summary(own).median), "", ""]
            lines.append([*line, landed(own), passed(own), "", ""])
    head = ["changed", "seeds", "median", "higher by", "says", "ever above", f"{LANDS:.0f} after"]
    yield from table([*head, "sooner by", "says"], lines)
    if clear:
        yield "Clear differences: " + "; ".join(clear) + "."
    else:
        yield "None of these makes a clear difference so far."
    yield "With so many lines some are clear by luck: what follows this section tells more."
    yield ""
    yield "v2 and v3 differ in three things: v3 has a new Box2D world for every episode, draws"
    yield "the wind's offset anew (the thesis has no wind), and states wider bounds of"
    yield "observations, which the learner does not read. `studies/thesis/lander_v2.py`"
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


def _is_parted(name: str, row: Row) -> bool:
    """Whether its children never read the parent, and were judged."""
    return CELLS[name].settings.get("child.beta") == 0.0 and bool(row.get("children"))


def _behind(row: Row) -> float:
    """The better child's own mean less the parent's."""
    return better(row) - float(row["curve"][-1][1])


def _faster(row: Row) -> float:
    """The faster child's share of the exchanges."""
    made = [one["exchanges"] for one in row["exchanges"].values()]
    return float(max(made) / sum(made))


def program(cells: Cells, controls: Sequence[Row], virtual: Cells) -> Iterator[str]:
    yield "## The thesis' own program, here"
    yield ""
    yield "`python -m studies.thesis.program CLONE` runs the A3C of the thesis' repository on"
    yield "this machine, with 4 cores as in Table 5.2. What it learns is judged as ours is. It"
    yield "begins with the same weights in each run, but its environment has no seed. Ours begin"
    yield "with its weights, or have its faults, or both. Figures are means, in the median of runs."
    yield ""
    yield "*In virtual time* (`python -m studies.thesis.virtual`) the processes of a run take"
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
    own = [better(row) for row in cells.get("why-program", []) if row.get("children")]
    if own:
        yield "*2,000* is the parent's, which is nearly the child that has pushed last. With all of"
        yield "these, v2 included, the better child of each run ended at"
        yield f"{', '.join(map(number, own))}: {number(median(own))} in the median."
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
            line += [f"{number(found.median)} ± {found.deviation:.1f}", landed(rows), passed(rows)]
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
