"""MinAtar's Breakout by A3C on GA3C: an update a rollout or grouped, with V-trace and without.

Question: does A3C learn a game on GA3C, as documented, with an update from each rollout? What do
grouping and V-trace change, at equal steps, and how far is PPO on the same backend ahead?

Method: network and game of `examples/minatar/breakout.toml`, one predictor, one trainer. A3C had 32
copies of the game, as the document has, 16 in each of two agents, n-step returns with t_max = 5,
and Adam; PPO is the file. Each form's rate was the best of three with seed 0, by the mean over the
whole run; the other seeds count. `lag` is the mean number of updates between acting and learning.

It is answered: the table is made from `docs/results/ga3c-learning.jsonl`, and the code of the runs
is in the history of the repository.

    python -m studies.ga3c.learning
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks import store
from benchmarks.processes import ROOT
from benchmarks.store import Row
from studies.differences import markdown, middle, number

#: What a table calls a form.
FORMS = {
    "a3c": "A3C, an update a rollout",
    "grouped": "A3C, 80 steps an update",
    "vtrace": "with V-trace, an update a rollout",
    "grouped-vtrace": "with V-trace, 80 steps an update",
    "ppo": "PPO, the file",
}


def table(rows: Sequence[Row]) -> str:
    """A line for each form: medians over the seeds, and their intervals; seed 0 does not count."""
    lines = []
    for steps in sorted({row["steps"] for row in rows}):
        for form, label in FORMS.items():
            own = [row for row in rows if (row["form"], row["steps"]) == (form, steps)]
            if not (own := [row for row in own if row["seed"]]):
                continue
            places = (0, 4, -1)
            means = [[row["curve"][place][1] for row in own] for place in places]
            means += [[row[name] for row in own] for name in ("whole", "mean")]
            lag = number(median(row["lag"] for row in own))
            what = [label, f"{own[0]['rate']:g}", f"{steps:,}", str(len(own))]
            lines.append([*what, *map(middle, means), lag])
    head = ["", "rate", "steps", "seeds", "mean after a tenth", "half", "all", "whole"]
    return markdown([*head, "last weights", "lag"], lines)


if __name__ == "__main__":
    print(table(store.read(ROOT / "docs/results/ga3c-learning.jsonl")), end="")
