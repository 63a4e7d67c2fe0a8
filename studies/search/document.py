"""docs/results/search.md, made from the rows. What no row tells is said to be missing. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from studies.differences import NONE, apart, compare, number, span
from studies.search.contestants import CONTESTANTS, Row

#: Short names of what is searched.
_SHORT = {
    "optimizer.learning_rate": "learning rate",
    "algorithm.gamma": "γ",
    "algorithm.batch_size": "t_max",
}


def text(rows: Sequence[Row]) -> str:
    """The document."""
    groups = _groups(rows)
    parts = [*_head(rows), *_found(groups), *_medians(groups)]
    return "\n".join(parts) + "\n"


Groups = dict[tuple[str, str], list[Row]]


def _groups(rows: Sequence[Row]) -> Groups:
    """By method and sampler, the rows by seed; of two with the same seed the later one counts."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    order = list(CONTESTANTS)
    for row in sorted(rows, key=lambda row: (order.index(row["method"]), row["sampler"])):
        found.setdefault((row["method"], row["sampler"]), {})[row["seed"]] = row
    return {key: [seeds[seed] for seed in sorted(seeds)] for key, seeds in found.items()}


def _head(rows: Sequence[Row]) -> Iterator[str]:
    yield "# Results: searches beside each other"
    yield ""
    yield "`python -m studies.search report` writes this page from `search.jsonl`."
    yield ""
    yield "The task is LunarLander with A3C over the space of HyperTrick's paper, two nodes of one"
    yield "core each. HyperTrick runs as published, to the end of its trials or to the bound. Each"
    yield "other method gets the same time with the same seed. The best score is the mean training"
    yield "return at the end of the best trial's last phase. That trial then plays 500 episodes"
    yield "with sampled actions (mean ± deviation), since the best of many noisy scores flatters."
    changes = sorted({change for row in rows for change in row["changes"]})
    if changes:
        yield ""
        yield "Changed for all searches: " + ", ".join(f"`{change}`" for change in changes) + "."
    lacking = [name for name in CONTESTANTS if not any(row["method"] == name for row in rows)]
    if lacking:
        yield ""
        labels = ", ".join(CONTESTANTS[name].label for name in lacking)
        yield f"No row yet: {labels}."
    yield ""


def _found(groups: Groups) -> Iterator[str]:
    names = list(
        dict.fromkeys(key for rows in groups.values() for row in rows for key in row["params"])
    )
    head = ["method", "sampler", "seed", "best score", "played", "trials"]
    head += [_SHORT.get(name, name) for name in names]
    yield "## What each search found"
    yield ""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for (name, sampler), rows in groups.items():
        for row in rows:
            values = " | ".join(_short(row["params"].get(key)) for key in names)
            yield (
                f"| {CONTESTANTS[name].label} | {sampler} | {row['seed']} "
                f"| {number(row['score'])} | {number(row['evaluation'])} ± {row['deviation']:.1f} "
                f"| {row['trials']} | {values} |"
            )
    yield ""


def _medians(groups: Groups) -> Iterator[str]:
    yield "## The methods, over their seeds"
    yield ""
    yield (
        "| method | sampler | seeds | played, median (least to most) | against random search "
        "| best score | occupancy | completion rate |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    random = next((rows for (name, _), rows in groups.items() if name == "random"), [])
    for (name, sampler), rows in groups.items():
        played = [row["evaluation"] for row in rows]
        figures = {
            key: median(row[key] for row in rows)
            for key in ("score", "occupancy", "completion_rate")
        }
        yield (
            f"| {CONTESTANTS[name].label} | {sampler} | {len(rows)} "
            f"| {number(median(played))} ({span((min(played), max(played)))}) "
            f"| {_against(played, [row['evaluation'] for row in random], name)} "
            f"| {number(figures['score'])} | {figures['occupancy']:.0%} "
            f"| {figures['completion_rate']:.0%} |"
        )
    yield ""
    yield "Against random search: the difference of the medians, and a bootstrap interval of 95 %"
    yield "over seeds, from three seeds on. An interval with 0 in it tells no difference. With"
    yield "three seeds one is about as wide as the seeds lie apart."


def _against(played: list[float], random: list[float], name: str) -> str:
    if name == "random" or not random:
        return NONE
    return apart(compare(played, random))


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
