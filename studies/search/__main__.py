"""What real searches find: HyperTrick and its rivals, at equal wall-clock.

Question: which method finds the best configuration in the same time? The task is LunarLander with
A3C, over the space of HyperTrick's paper (learning rate, γ, t_max).

Method: `examples/lunarlander/search.toml` with real processes, two nodes of one core each. For each
seed, HyperTrick runs as published to the end of its trials, or for `--minutes`. The others then get
the same time, and begin trials as long as there is any. `improved` decides after 1 and 3 of 9
phases, with a cohort of 16 that collects data. `improved` and `asha` have a TPE sampler, the others
draw at random, and the same configurations in the same order. `--sampler` gives all the same one.
A search's best trial is the best completed one, as `docs/notes/hypertrick.md` defines it. It then
plays 500 episodes with sampled actions.

Each search is a line of `docs/results/search.jsonl`, and is not repeated once it is there. Stop it
at any point, also by `kill -9`, and start it again: a search that was cut off goes on. Delete a
line to measure it again.

    python -m studies.search plan                       what is missing, and how long it takes
    python -m studies.search run                        five methods, three seeds, under 3 hours
    python -m studies.search run --sampler tpe          the same with one sampler for all
    python -m studies.search run --methods asha random --seeds 1 --minutes 1 \\
        --results /tmp/search.jsonl --set search.phase_steps=2000 --episodes 5
    python -m studies.search report                     writes docs/results/search.md, of the
                                                           searches with the same --set
    python -m studies.search train                      the best configuration as a plain run
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import store
from benchmarks.processes import command
from genkidama.errors import EnvironmentFailure
from studies.search.contestants import CONTESTANTS, Row, Wanted, bound, missing, plan

ROOT = Path(__file__).resolve().parents[2]

#: What it takes to start a search, and to play 500 episodes with its best trial.
_AROUND = 60.0


def run(wanted: list[Wanted], rows: list[Row], options: argparse.Namespace) -> bool:
    """Runs the searches that have no row yet; whether none has failed."""
    from studies.search.measure import measure  # Optuna

    def seconds(one: Wanted) -> float:
        return bound(one, rows, 60.0 * options.minutes)

    return store.run(
        wanted,
        missing(wanted, rows),
        rows,
        options.results,
        measure=lambda one: measure(one, seconds(one), options.work, options.episodes),
        announce=lambda left: (
            f"at most {seconds(left[0]):.0f} s; all: about "
            f"{seconds_left(list(left), rows, options) / 60:.0f} min left"
        ),
        outcome=lambda row: f"{row['evaluation']:.1f} ± {row['deviation']:.1f}",
    )


def seconds_left(left: list[Wanted], rows: list[Row], options: argparse.Namespace) -> float:
    """What these searches take at most."""
    return sum(bound(one, rows, 60.0 * options.minutes) + _AROUND for one in left)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = store.parser("search", __doc__)
    parser.add_argument("what", choices=("plan", "run", "report", "train"))
    parser.add_argument("--methods", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="the most that a search takes (default 10)"
    )
    parser.add_argument("--sampler", choices=("random", "tpe"), help="of all methods")
    parser.add_argument("--episodes", type=int, default=500, help="that the best trial plays")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting of all searches; a contestant's own settings stay",
    )
    store.add_places(parser, ROOT / "docs/results/search.jsonl", ROOT / "runs/search")
    parser.add_argument(
        "--document", type=Path, default=ROOT / "docs/results/search.md", help="what report writes"
    )
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="length of each training (default 120)"
    )
    options = parser.parse_args(arguments)
    for name in ("minutes", "episodes", "seconds"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name} {getattr(options, name):g}: more than 0 is needed")
    return options


@command
def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    rows = store.read(options.results)
    wanted = plan(options.methods, options.seeds, options.sampler, options.set)
    match options.what:
        case "plan":
            left = missing(wanted, rows)
            for one in left:
                print(f"{one}: at most {bound(one, rows, 60.0 * options.minutes):.0f} s")
            minutes = seconds_left(left, rows, options) / 60.0
            print(f"{len(left)} of {len(wanted)} are left, at most about {minutes:.0f} min")
        case "run":
            with store.only_one(options.work):
                return 0 if run(wanted, rows, options) else EnvironmentFailure.exit_code
        case "report":
            from studies.search.document import text

            alike = [row for row in rows if row["changes"] == sorted(options.set)]
            options.document.write_text(text(alike), encoding="utf-8")
            print(options.document)
        case "train":
            from studies.search.measure import train

            if not rows:
                print(f"error: {options.results}: no search is done yet", file=sys.stderr)
                return 2
            train(rows, options.seeds, options.seconds, options.work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
