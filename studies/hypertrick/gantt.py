"""Gantt charts of simulated searches as text: the paper's toy problem (Figs. 2, 3, 8 and 9)."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.rule import HyperTrick
from studies.hypertrick.methods import Halving, hypertrick, random_search, rounds_of
from studies.hypertrick.problems import toy_problem
from studies.hypertrick.simulator import Interval, Method, Outcome, simulate

__all__ = ["DEFAULT_SEED", "gantt_text", "simulate_report"]

#: The draw of the toy problem that comes nearest to the paper's four times, of the first 6,000.
DEFAULT_SEED = 2772

#: Over so many draws are means taken: seeds 0, 1, ….
DRAWS = 500

_WORKERS = 16
_PHASES = 4
_NODES = 6
_RATE = 0.25

#: The paper's four charts: figure, title, time in the paper, and the method for a draw.
_CHARTS: tuple[tuple[int, str, float | None, Callable[[int], Method]], ...] = (
    (2, "HyperTrick", 10.0, lambda seed: hypertrick(_rule(seed))),
    (
        3,
        "Successive Halving, dynamic",
        12.1,
        lambda seed: Halving([rounds_of(_WORKERS, _PHASES, _RATE)]),
    ),
    (
        8,
        "Successive Halving, static",
        15.3,
        lambda seed: Halving([rounds_of(_WORKERS, _PHASES, _RATE)], nodes=_NODES),
    ),
    (9, "Grid search", 15.6, lambda seed: random_search(_PHASES, _WORKERS)),
)


def gantt_text(outcome: Outcome, *, width: int = 96) -> str:
    """The chart for a terminal: a line a node, `width` columns for the whole time.

    A phase shows its trial's number and is filled by how far its trial is, from ░ in the first
    phases to █ in the last. Its last column is × if the trial ended there without having run all
    phases, ┃ if with all of them.
    """
    if width < 20:
        raise ConfigurationError(f"width = {width!r}: at least 20 columns are needed")
    scale = width / outcome.wall_time if outcome.wall_time else 0.0
    last = _last_intervals(outcome)
    rows = [[" "] * width for _ in range(outcome.nodes)]
    for interval in outcome.intervals:
        start, end = round(interval.start * scale), round(interval.end * scale)
        cells = list(
            f"{interval.trial}".ljust(end - start, "░▒▓█"[interval.phase * 4 // outcome.phases])[
                : end - start
            ]
        )
        if cells and last[interval.trial] is interval:
            cells[-1] = "┃" if interval.phase == outcome.phases - 1 else "×"
        rows[interval.node][start:end] = cells
    label = len(f"N{outcome.nodes - 1}")
    lines = [f"{f'N{node}':<{label}} {''.join(row)}".rstrip() for node, row in enumerate(rows)]
    end_of_axis = f"{outcome.wall_time:.4g}"
    return "\n".join([*lines, " " * label + " 0" + end_of_axis.rjust(width - 1)])


def simulate_report(seed: int | None = None) -> str:
    """The paper's toy problem: four charts (Figs. 2, 3, 8, 9) and times beside the paper's.

    Args:
        seed: of the draw that the charts show; `DEFAULT_SEED` if absent. The paper's own draw is
            not known.

    Raises:
        ConfigurationError: a negative seed.
    """
    chosen = DEFAULT_SEED if seed is None else seed
    if chosen < 0:
        raise ConfigurationError(f"seed = {chosen!r}: a whole number of at least 0 is needed")
    near = ", chosen because its times come near to the paper’s"
    why = near if chosen == DEFAULT_SEED else ""
    text = [
        f"The toy problem of HyperTrick's paper: {_WORKERS} workers, {_PHASES} phases, "
        f"{_NODES} nodes, r = {_RATE:.0%}. Seed {chosen}{why}.",
        "A number is a worker, the shade its phase; × is stopped, ┃ is complete.",
    ]
    shown = [_run(chosen, method) for *_, method in _CHARTS]
    longest = max(outcome.wall_time for outcome in shown)
    for (number, title, _, _), outcome in zip(_CHARTS, shown, strict=True):
        heading = (
            f"Figure {number}. {title}: {outcome.wall_time:.1f} units of time, "
            f"nodes busy {outcome.occupancy:.0%}"
        )
        text += [
            "",
            f"{heading}, {outcome.completion_rate:.0%} of all phases run",
            gantt_text(outcome, width=round(110 * outcome.wall_time / longest)),
        ]
    draws = [[_run(draw, method) for draw in range(DRAWS)] for *_, method in _CHARTS]
    adaptive = [_run(draw, _adaptive) for draw in range(DRAWS)]
    unit = float(np.mean([outcome.wall_time for outcome in draws[-1]])) / 15.6
    text += [
        "",
        f"Times, busy nodes and phases run: means over {DRAWS} draws, with the standard error of "
        "the times. Mean times are divided by",
        f"{unit:.3f}, so that grid search, in which metrics have no part, takes 15.6 units "
        "as in the paper.",
        "",
        f"{'':<28}  {'paper':>5}  {'this draw':>9}  {'mean':>12}  {'busy':>5}  {'phases':>6}",
    ]
    rows = [
        (title, paper, outcome, runs)
        for (_, title, paper, _), outcome, runs in zip(_CHARTS, shown, draws, strict=True)
    ]
    for title, paper, outcome, runs in [
        *rows,
        ("HyperTrick, adaptive (ours)", None, _run(chosen, _adaptive), adaptive),
    ]:
        times = np.array([run.wall_time for run in runs]) / unit
        printed = "" if paper is None else f"{paper:.1f}"
        text.append(
            f"{title:<28}  {printed:>5}  {outcome.wall_time:>9.1f}  "
            f"{f'{times.mean():.2f} ± {times.std(ddof=1) / math.sqrt(len(times)):.2f}':>12}  "
            f"{np.mean([run.occupancy for run in runs]):>5.0%}  "
            f"{np.mean([run.completion_rate for run in runs]):>6.0%}"
        )
    sooner = np.mean(
        [ours.wall_time < theirs.wall_time for ours, theirs in zip(draws[0], draws[1], strict=True)]
    )
    sooner_adaptive = np.mean(
        [ours.wall_time < theirs.wall_time for ours, theirs in zip(adaptive, draws[1], strict=True)]
    )
    text += [
        "",
        f"HyperTrick ends before dynamic Successive Halving in {sooner:.0%} of the draws, "
        f"with adaptive r in {sooner_adaptive:.0%}.",
        "It keeps the nodes busier, but lets more workers go on than r says, "
        "because ranks persist in this problem.",
    ]
    return "\n".join(text)


def _adaptive(seed: int) -> Method:
    return hypertrick(_rule(seed, adaptive=True))


def _rule(seed: int, *, adaptive: bool = False) -> HyperTrick:
    return HyperTrick(
        workers=_WORKERS, phases=_PHASES, eviction_rate=_RATE, adaptive=adaptive, seed=seed
    )


def _run(seed: int, method: Callable[[int], Method]) -> Outcome:
    return simulate(toy_problem(seed), method(seed), [1.0] * _NODES)


def _last_intervals(outcome: Outcome) -> dict[int, Interval]:
    """By trial, the last phase that it ran."""
    return {
        interval.trial: interval
        for interval in sorted(outcome.intervals, key=lambda found: found.end)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="of the draw that the charts show")
    options = parser.parse_args()
    print(simulate_report(options.seed))


if __name__ == "__main__":
    main()
