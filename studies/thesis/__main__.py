"""The thesis' tables, repeated with seeds.

Method: a cell is `examples/lunarlander/thesis.toml` with `--set` alone (our own settings:
`a3c.toml`), trained by `genkidama train` as real processes. 20 checkpoints are set aside, every 100
updates of 2,000, and each is judged by 500 episodes with sampled actions, once training has ended.
Updates and episodes are the result here, seconds are not: the machine need not be quiet.

`--cells` takes names of cells and of groups: `grid` (Tables 5.3 to 5.5), `a3c` (Table 5.2), `ours`
(our own A3C settings), `sizes` (1, 4 and 8 children at equal episodes). Every cell has its first
seed before any has its second.

What may explain a difference from the thesis is answered, as is the table of α and β on cart pole:
their rows are kept, and the code that made them is in the history of the repository.

Each run is a line of `docs/results/thesis.jsonl`, and is not repeated once it is there. Stop it at
any point, also by `kill -9`, and start it again: a training that was cut off begins anew, since a
seed's run should be one run; checkpoints that have been judged are not judged again. Delete a line
to measure it again. Lines of several machines may be put into one file.

    python -m studies.thesis plan                       what is missing, and how long it takes
    python -m studies.thesis run                        everything, in that order
    python -m studies.thesis run --cells grid a3c --seeds 1
    python -m studies.thesis report                     writes docs/results/thesis.md
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks import store
from benchmarks.processes import command
from genkidama.errors import EnvironmentFailure
from studies.thesis import cells
from studies.thesis.cells import CELLS, GROUPS, Condition, Row
from studies.thesis.measure import ROOT, measure

#: Rows that are not made any more: of the thesis' own program, in virtual time, and on cart pole.
OTHERS = [ROOT / f"docs/results/thesis-{name}.jsonl" for name in ("program", "virtual", "small")]

#: Its prose is written by hand; `report` makes its tables.
PAGE = ROOT / "docs/results/thesis.md"

#: What a run takes on two idle cores, until the first row tells.
_GUESS = 360.0


def seconds_left(left: list[Condition], rows: list[Row]) -> float:
    """What the rest takes, by the median of its cell, or of all cells, or a guess."""
    taken: dict[str, list[float]] = {}
    for row in rows:
        taken.setdefault(row["cell"], []).append(row["seconds"] + row["judging"])
    everything = [value for values in taken.values() for value in values]
    usual = median(everything) if everything else _GUESS
    return sum(median(taken.get(one.cell, [usual])) for one in left)


def duration(seconds: float) -> str:
    """As `2 h 05 min` or `7 min`."""
    hours, minutes = divmod(round(seconds / 60.0), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"


def run(wanted: list[Condition], rows: list[Row], options: argparse.Namespace) -> bool:
    """Trains and judges the runs that have no row yet; whether none has failed."""

    def measured(condition: Condition) -> Row:
        began = time.monotonic()

        def say(what: str) -> None:
            print(f"{condition}: {what}, after {time.monotonic() - began:.0f} s", flush=True)

        return measure(condition, options.work, say, options.episodes, keep=options.keep)

    return store.run(
        wanted,
        cells.missing(wanted, rows),
        rows,
        options.results,
        measure=measured,
        announce=lambda left: f"about {duration(seconds_left(list(left), rows))} left",
        outcome=lambda row: "{1:.1f} ± {2:.1f}".format(*row["curve"][-1]),
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = store.parser("thesis", __doc__)
    parser.add_argument("what", choices=("plan", "run", "report"))
    names = ", ".join(GROUPS)
    parser.add_argument(
        "--cells", nargs="+", default=[], metavar="CELL", help=f"names, or {names} (default: all)"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        help="(default: 1 to 5, of Table 5.2 1 to 3, of ours 21 to 25)",
    )
    store.add_places(parser, ROOT / "docs/results/thesis.jsonl", ROOT / "runs/thesis")
    parser.add_argument("--document", type=Path, default=PAGE, help="what report writes")
    parser.add_argument("--keep", action="store_true", help="keep each run's directory in --work")
    parser.add_argument("--episodes", type=int, default=500, help="that judge a checkpoint")
    options = parser.parse_args(arguments)
    try:
        options.cells = cells.selected(options.cells)
    except KeyError as error:
        known = ", ".join(CELLS)
        parser.error(f"--cells {error.args[0]}: is neither of {names} nor one of {known}")
    if any(seed < 0 for seed in options.seeds or []):
        parser.error(f"--seeds {min(options.seeds)}: 0 or more is needed")
    return options


@command
def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    rows = store.read(options.results)
    wanted = cells.plan(options.cells, options.seeds)
    match options.what:
        case "plan":
            left = cells.missing(wanted, rows)
            for condition in left:
                print(f"{condition}: {CELLS[condition.cell].label}")
            time_left = duration(seconds_left(left, rows))
            print(f"{len(left)} of {len(wanted)} runs are left, about {time_left}")
        case "run":
            with store.only_one(options.work):
                well = run(wanted, rows, options)
            return 0 if well else EnvironmentFailure.exit_code
        case "report":
            from studies.thesis.tables import filled, tables

            made = tables(rows, *map(store.read, OTHERS))
            options.document.write_text(filled(PAGE.read_text("utf-8"), made), encoding="utf-8")
            print(options.document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
