"""Sections of the document: what may explain a difference from the thesis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.differences import NONE, apart, compare, number, verdict
from benchmarks.thesis.cells import BEST, CELLS, FAULTS, GRID, SUMS, Row
from benchmarks.thesis.published import PATHS
from benchmarks.thesis.statistics import difference, distance, passage, passages, summary
from benchmarks.thesis.wording import LANDS, Cells, moment_of, passed, table

__all__ = ["readings", "seeds", "why"]


def why(cells: Cells) -> Iterator[str]:
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
            line += [number(summary(rows).median), apart(higher), verdict(higher)]
            line += [passed(rows), apart(sooner), verdict(sooner, "sooner", "later")]
            if higher.clear or sooner.clear:
                clear.append(f"{CELLS[name].label} ({line[4]}, {line[7]})")
        else:
            line += [NONE] * 6
        lines.append(line)
    head = ["changed", "seeds", "median", "higher by", "says"]
    yield from table([*head, f"{LANDS:.0f} after", "sooner by", "says"], lines)
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
    yield "One of the thesis' two Raspberry Pis was slower, as it says, though not by how much."
    yield "With α = 0.9 and β = 0 the parent is nearly the child that has pushed last, and the"
    yield "thesis' path jumps between two children: 201.9, 32.8 and 226.7 after 1,200, 1,300 and"
    yield "1,400 updates. An update counts exchanges of both, so the faster child is ahead of it."
    uneven = [row for name in cells for row in cells[name] if CELLS[name].slower != 1.0]
    if uneven:
        share = median(map(_faster, uneven))
        yield "Where we give one child half the CPU time of the other, the faster one makes"
        yield f"{share:.0%} of the exchanges."
    yield ""


def _faster(row: Row) -> float:
    """The faster child's share of the exchanges."""
    made = [one["exchanges"] for one in row["exchanges"].values()]
    return float(max(made) / sum(made))


def readings(cells: Cells) -> Iterator[str]:
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
    all_three = {"thesis.toml": GRID, "its program's faults": FAULTS, "sums": SUMS}
    lines = []
    for pair, name in GRID.items():
        path = PATHS[name]
        line = [CELLS[name].label, moment_of(passage(path, LANDS))]
        of_readings = [cells.get(keys[pair], []) for keys in all_three.values()]
        line += [*map(passed, of_readings), *(_distance(rows, path) for rows in of_readings)]
        lines.append(line)
    head = ["cell", f"{level} after: thesis", *all_three]
    first, *others = all_three
    yield from table([*head, f"distance: {first}", *others], lines)


def _distance(rows: Sequence[Row], path: Sequence[float]) -> str:
    found = [distance([mean for _, mean, _ in row["curve"]], path, LANDS) for row in rows]
    return f"{median(found):.0f} ({len(rows)})" if found else NONE


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
        if len(cells.get(name, [])) > 1 and name != "ours" and CELLS[name].fixed_seed is None
    }
    known = sorted({seed for found in shown.values() for seed in found})
    lines = [
        [CELLS[name].label, *(found.get(seed, NONE) for seed in known)]
        for name, found in shown.items()
    ]
    yield from table(["cell", *map(str, known)], lines)
