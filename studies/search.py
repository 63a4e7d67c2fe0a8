"""Real searches beside each other: the tables of three pages, from their rows.

The questions are answered, and their code is in the history of the repository. A search of each
kind is `genkidama search lunarlander/search --set search.method=…`.

- `docs/results/search.md`: which method finds the best configuration of A3C on LunarLander in the
  same time? HyperTrick ran as published to the end of its 24 trials, on two nodes of one core each;
  the others began trials as long as there was any of its time, with the same seed.
- `docs/results/search-work.md`: and at equal expected work (§5.2.4 of HyperTrick's paper), on cart
  pole with two nodes of a core each, and with eight of a fifth of a core?
- `docs/results/hypertrick.md`: does HyperTrick over A3C on GA3C find settings that beat the fixed
  ones in two of MinAtar's games (table 1 of its paper), and does γ change what is learned (§5.3)?

    python -m studies.search        prints the tables
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks import store
from benchmarks.processes import ROOT
from benchmarks.store import Row
from studies.differences import NONE, apart, compare, markdown, number, span

RESULTS = ROOT / "docs/results"

#: What a table calls the methods, by the rows' names, in its order.
LABELS = {
    "hypertrick": "HyperTrick, as published",
    "improved": "HyperTrick, improved",
    "asha": "ASHA, stopping",
    "asynchronous_hyperband": "Hyperband, asynchronous",
    "random": "random search",
}
WORK_LABELS = {
    "hypertrick": "HyperTrick",
    "hyperband-restart": "Hyperband, from scratch",
    "hyperband": "Hyperband, going on",
    "successive-halving": "Successive Halving, going on",
    "asynchronous-hyperband": "Hyperband, asynchronous",
    "asha": "ASHA, stopping",
    "pbt": "PBT",
    "random": "random search",
}

#: What is searched.
_SPACE = ("optimizer.learning_rate", "algorithm.gamma", "algorithm.batch_size")
_SHORT = ("learning rate", "γ", "t_max")


def equal_time(rows: Sequence[Row]) -> list[str]:
    """The tables of search.md."""
    groups = [
        [row for row in rows if row["method"] == name]
        for name in LABELS
        if any(row["method"] == name for row in rows)
    ]
    random = [row["evaluation"] for row in rows if row["method"] == "random"]
    ordered = [row for group in groups for row in group]

    def name(row: Row) -> list[str]:
        return [LABELS[row["method"]], row["sampler"]]

    found = [
        [
            *name(row),
            str(row["seed"]),
            number(row["score"]),
            f"{number(row['evaluation'])} ± {row['deviation']:.1f}",
            str(row["trials"]),
            *(f"{row['params'][key]:.4g}" for key in _SPACE),
        ]
        for row in ordered
    ]
    medians = []
    for group in groups:
        played = [row["evaluation"] for row in group]
        against = NONE if group[0]["method"] == "random" else apart(compare(played, random))
        medians.append(
            [
                *name(group[0]),
                str(len(group)),
                f"{number(median(played))} ({span((min(played), max(played)))})",
                against,
                number(median(row["score"] for row in group)),
                f"{median(row['occupancy'] for row in group):.0%}",
                f"{median(row['completion_rate'] for row in group):.0%}",
            ]
        )
    head = ["method", "sampler", "seed"]
    middle = ["played, median (least to most)", "against random search", "best score", "occupancy"]
    return [
        markdown([*head, "best score", "played", "trials", *_SHORT], found),
        markdown(["method", "sampler", "seeds", *middle, "completion rate"], medians),
    ]


def equal_work(rows: Sequence[Row]) -> str:
    """The table of search-work.md."""

    def lines() -> Iterator[list[str]]:
        for nodes in sorted({row["nodes"] for row in rows}):
            for name, label in WORK_LABELS.items():
                own = [row for row in rows if (row["nodes"], row["method"]) == (nodes, name)]

                def cell(values: list[float]) -> str:
                    return f"{number(median(values))} ({span((min(values), max(values)))})"

                middles = [median(row[key] for row in own) for key in ("phases", "expected")]
                yield [
                    str(nodes),
                    label,
                    str(len(own)),
                    "{:.0f} of {:.0f}".format(*middles),
                    cell([row["seconds"] for row in own]),
                    f"{median(row['occupancy'] for row in own):.0%}",
                    cell([row["score"] for row in own]),
                    cell([value for row in own for value in row["again"]]),
                ]

    head = ["nodes", "method", "seeds", "phases of expected", "seconds", "occupancy"]
    return markdown([*head, "completed", "again"], lines())


def games(rows: Sequence[Row]) -> list[str]:
    """Table 1's columns for each game, and each γ's return, in hypertrick.md."""
    searches, returns = [], []
    for row in rows:
        rate, gamma, t_max = (row["params"][name] for name in _SPACE)
        shares = [f"{row[key]:.0%}" for key in ("completion_rate", "minimum", "expected")]
        searches.append(
            [
                row["game"],
                f"{row['phases']} of {row['phase_steps']:,}",
                f"{row['trials']}, {row['eviction_rate']:.0%}",
                f"{shares[0]} ({shares[1]}, {shares[2]})",
                f"{row['seconds']:.0f}, {row['occupancy']:.0%}",
                f"{rate:.2g}, {gamma:g}, {t_max}",
                number(row["score"]),
                " · ".join(map(number, row["best"])),
                " · ".join(map(number, row["fixed"])),
            ]
        )
        returns.append([row["game"], *(number(each["mean"]) for each in row["gammas"])])
    head = ["game", "phases of steps", "trials, r", "completed (least, expected)", "s, occupancy"]
    head += ["best: rate, γ, t_max", "its score", "trained again", "fixed"]
    gammas = (f"γ = {each['gamma']:g}" for each in rows[0]["gammas"])
    return [markdown(head, searches), markdown(["game", *gammas], returns)]


def tables() -> dict[str, list[str]]:
    """By page, from the rows in the repository."""

    def rows(name: str) -> list[Row]:
        return store.read(RESULTS / f"{name}.jsonl")

    return {
        "search.md": equal_time(rows("search")),
        "search-work.md": [equal_work(rows("search-work"))],
        "hypertrick.md": games(rows("search-games")),
    }


if __name__ == "__main__":
    for page, found in tables().items():
        print(page, *found, sep="\n\n")
