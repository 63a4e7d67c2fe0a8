"""What bundles learn from a step, in virtual time: why do eight learn less from each than one?

Question: 1, 2, 4 and 8 bundles train cart pole by DQN, with Adam and with AdaGrad as in the source
(Nair et al. 2015), and make one update for each step of all together. What return do they reach
after 10,000 steps? If eight reach less than one, is it their rate, the staleness of their
gradients, or that each samples its own steps alone? One of these is changed at a time, with eight
bundles, and then what helps together. Last, DQN by averaging over 1, 2 and 4 children.

Method: the bundles took turns in one process, a gradient each, in the order of their numbers, with
the cores, sessions and the parent of a run. Every 1,000 steps of all, θ_P was judged by 20 episodes
without ε. `whole` is the mean of these ten returns; `to 475` are the steps of the first with a mean
of at least that.

It is answered: the table is made from `docs/results/gorila-turns.jsonl`, whose rows have the
settings, and the code of the runs is in the history of the repository.

    python -m studies.gorila.turns
"""

from __future__ import annotations

from statistics import fmean, median

from benchmarks import store
from benchmarks.processes import ROOT
from benchmarks.store import Row
from studies.differences import NONE, markdown, middle

GOAL = 475.0

#: What a table calls the rows' cells, in its order.
LABELS = {
    "adam": "Adam",
    "fresh": "no gradient is stale",
    "together": "all sample the steps of all",
    "rate-root": "rate by √n",
    "rate": "rate by n",
    "both": "none is stale, all sample all",
    "discards": "older than 3 versions left out",
    "adagrad": "AdaGrad",
    "adam-more": "Adam",
    "adagrad-more": "AdaGrad",
    "blend": "averaging, a blend",
    "difference": "averaging, differences",
}


def table(rows: list[Row]) -> str:
    """A line for each cell and number of bundles: medians, and their intervals."""
    lines = []
    labels = list(dict.fromkeys(LABELS.values()))
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((LABELS[row["cell"]], row["bundles"]), []).append(row)
    for (label, bundles), these in sorted(
        groups.items(), key=lambda item: (labels.index(item[0][0]), item[0][1])
    ):
        curves = [[mean for _, mean in row["curve"]] for row in these]
        reached = [next((at for at, mean in row["curve"] if mean >= GOAL), None) for row in these]
        known = [at for at in reached if at is not None]
        out = sum(sum(row["left_out"].values()) for row in these)
        cells = [
            label,
            str(bundles),
            str(len(these)),
            middle([curve[-1] for curve in curves]),
            middle([fmean(curve) for curve in curves]),
            f"{median(known):,.0f} ({len(known)} of {len(these)})" if known else NONE,
            f"{median(row['staleness'] for row in these):.1f}",
            f"{out / (out + sum(row['version'] for row in these)):.0%}",
        ]
        lines.append(cells)
    head = ["", "n", "seeds", "after 10,000", "whole", "to 475", "staleness", "left out"]
    return markdown(head, lines)


if __name__ == "__main__":
    print(table(store.read(ROOT / "docs/results/gorila-turns.jsonl")), end="")
