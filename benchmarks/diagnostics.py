"""What the diagnostics of learning cost a core.

Claim: at most 1 % of its CPU time, acting and learning together.

Method: one core, in this process, plays and learns as it does in a child. The learning of one batch
is noted, that of the next is not, and so on. CPU time is that of this thread. Neighbours make it
longer, never shorter, so of all batches with as many measured updates the 10 % quantile counts. The
cost is the difference to the batches that are not noted, over what playing and learning take.

    python benchmarks/diagnostics.py [--steps 200000] [EXAMPLE …]
"""

from __future__ import annotations

import time

import numpy as np
import torch
from cores import records, single
from processes import parser_of

from genkidama.config.examples import example
from genkidama.config.experiment import Experiment
from genkidama.protocol.diagnostics import Diagnostics

EXAMPLES = ["lunarlander", "lunarlander/a3c", "cartpole/dqn", "cartpole"]


def cost(name: str, steps: int) -> tuple[float, float]:
    """Its share of all CPU time, and of that for learning."""
    experiment = Experiment.load(example(name))
    experiment = experiment.with_settings(
        # A core that learns itself, though actors and a learner may share that out.
        {"parent.rule": "blend", "parent.rule_options": {}, "child.exchange": "free"}
    )
    with single(experiment) as (core, _, line):
        noting: Diagnostics = core._diagnostics
        due = noting.due
        measured = 0

        def counting(samples: int) -> bool:
            nonlocal measured
            found = due(samples)
            measured += found
            return found

        noting.due = counting  # type: ignore[method-assign]
        played: list[float] = []
        #: Seconds of learning from a batch by how many of its updates were measured; −1: not noted.
        learned: dict[int, list[float]] = {}
        for turn in range(steps // experiment.algorithm.batch_size):
            notes = bool(turn % 2)
            core._diagnostics = noting if notes else None  # type: ignore[assignment]
            began = time.thread_time()
            batch = core.collector.collect()
            played.append((time.thread_time() - began) / batch.steps)
            measured = 0
            began = time.thread_time()
            core.learn(batch)
            seconds = (time.thread_time() - began) / batch.steps
            learned.setdefault(measured if notes else -1, []).append(seconds)
            core.pull()
            records(line)
    without = least(learned.pop(-1))
    count = sum(map(len, learned.values()))
    more = sum((least(found) - without) * len(found) / count for found in learned.values())
    return more / (least(played) + without), more / without


def least(seconds: list[float]) -> float:
    """Their 10 % quantile."""
    return float(np.quantile(seconds, 0.1))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("examples", nargs="*", default=EXAMPLES)
    parser.add_argument("--steps", type=int, default=200_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'example':<20} of all  of learning")
    for name in options.examples:
        of_all, of_learning = cost(name, options.steps)
        print(f"{name:<20} {of_all:6.2%} {of_learning:12.2%}", flush=True)


if __name__ == "__main__":
    main()
