"""HyperTrick over A3C on GA3C in two games of MinAtar's: table 1 of its paper, in small.

Question: does HyperTrick find settings that beat the fixed ones of GA3C's paper (γ = 0.99,
t_max = 5), with the completion rate that equation 9 expects? Does γ change what is learned (§5.3)?

Method: the paper's space (learning rate, γ, t_max), 16 trials of at most 5 phases, r = 25 %, on two
nodes of a core each. The best configuration and the fixed one are then trained for the steps of a
whole trial with two seeds, and play. Last, the best learning rate and t_max with each of `GAMMAS`:
the mean screen of 20 episodes shows where the player and what it shoots are.

Bound: half an hour. What would change our mind: a search is worth it if the means of its best
configuration lie above those of the fixed one. Two seeds tell no more.

Each game is a line of the results, and is not repeated once it is there.

    python -m studies.search.games run [--games breakout]
    python -m studies.search.games report      the table, and docs/results/search-games.svg
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

import genkidama
from benchmarks import store
from benchmarks.processes import command
from benchmarks.store import Row
from genkidama.config.experiment import Experiment
from studies.differences import number
from studies.ga3c import learning
from studies.search.measure import EXAMPLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]

#: By game: what a picture shows of it, in red, green and blue, as channels of the screen.
GAMES = {"breakout": (0, 1, 3), "space_invaders": (0, 4, 1)}
GAMMAS = (0.9, 0.99, 0.999)
TRIALS, PHASES, RATE = 16, 5, 0.25
SEEDS = (101, 102)
EPISODES = 100
SCREENS = 20

#: Of GA3C's paper; the learning rate is the one that `studies.ga3c.learning` found on Breakout.
FIXED = {"optimizer.learning_rate": 1e-3, "algorithm.gamma": 0.99, "algorithm.batch_size": 5}


def experiment(game: str, phase_steps: int, changes: dict[str, Any]) -> Experiment:
    """A plain run of the steps of a whole trial."""
    settings = learning.experiment(learning.Wanted("a3c", 1e-3, 1, PHASES * phase_steps))
    environment = {"game": game, "use_minimal_action_set": True}
    return settings.with_settings(
        {
            "environment.options": environment,
            "ga3c.agents": 1,  # each node has one core
            "ga3c.environments": 32,
            "optimizer.schedule": "constant",
            "stop.window": 50,
            **changes,
        }
    )


def measure(game: str, phase_steps: int, folder: Path) -> Row:
    """Searches, trains again, and looks at γ."""
    from genkidama.plugins.hypertrick.local_search import search
    from genkidama.plugins.hypertrick.rule import minimum_completion_rate
    from genkidama.plugins.hypertrick.study import open_study, read

    space = Experiment.load(EXAMPLES / "search.toml").to_dict()["search"]["space"]
    settings = experiment(game, phase_steps, {}).to_dict()
    del settings["stop"]["steps"]
    settings["search"] = {
        "space": space,
        "trials": TRIALS,
        "phases": PHASES,
        "phase_steps": phase_steps,
        "eviction_rate": RATE,
    }
    searched = folder / "search"
    search(Experiment.from_dict(settings), children=2, cores=1, out=searched)
    found = read(open_study(f"sqlite:///{searched.absolute() / 'study.db'}", searched.name))
    assert found.best is not None
    assert found.observed is not None
    best = found.best.params

    def again(changes: dict[str, Any], name: str) -> genkidama.Run:
        chosen = experiment(game, phase_steps, changes)
        return genkidama.train(chosen, children=1, cores=2, out=folder / name, episodes=0)

    def means(changes: dict[str, Any], name: str) -> list[float]:
        runs = [again({**changes, "seed": seed}, f"{name}-{seed}") for seed in SEEDS]
        return [genkidama.evaluate(run, episodes=EPISODES, best=False).mean for run in runs]

    row: Row = {
        "game": game,
        "phase_steps": phase_steps,
        "trials": TRIALS,
        "phases": PHASES,
        "eviction_rate": RATE,
        "completion_rate": found.completion_rate,
        "expected": found.expected_completion_rate,
        "minimum": minimum_completion_rate(RATE, PHASES),
        "seconds": found.search_time,
        "occupancy": found.occupancy,
        "params": best,
        "score": found.best.score,
        "observed": found.observed[1].score,
        "best": means(best, "best"),
        "fixed": means(FIXED, "fixed"),
        "tried": [[*trial.params.values(), trial.score] for trial in found.ranking],
    }
    row["gammas"] = [
        {
            "gamma": gamma,
            **screen(again({**best, "algorithm.gamma": gamma}, f"gamma-{gamma}"), game),
        }
        for gamma in GAMMAS
    ]
    return row


def screen(run: genkidama.Run, game: str) -> Row:
    """The mean return and the mean screen of some episodes: (3, 10, 10), the share of the steps in
    which each channel of `GAMES` is set."""
    policy = run.policy(best=False)
    total, steps, returns = np.zeros((3, 10, 10)), 0, []
    with closing(policy.make_environment()) as environment:
        for episode in range(SCREENS):
            observation, _ = environment.reset(seed=episode)
            earned, over = 0.0, False
            while not over:
                total += np.moveaxis(np.asarray(observation)[..., list(GAMES[game])], -1, 0)
                steps += 1
                action, _ = policy.predict(observation)
                observation, reward, ended, cut, _ = environment.step(action)
                earned += float(reward)
                over = ended or cut
            returns.append(earned)
    return {
        "mean": round(fmean(returns), 2),
        "steps": steps,
        "screen": np.round(total / steps, 4).tolist(),
    }


def table(rows: Sequence[Row]) -> str:
    """Table 1's columns for each game, and below them each γ's return."""
    lines = [
        "| game | phases of steps | trials, r | completed (least, expected) | s, occupancy "
        "| best: rate, γ, t_max | its score | trained again | fixed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        rate, gamma, t_max = (row["params"][name] for name in FIXED)
        shares = [f"{row[key]:.0%}" for key in ("completion_rate", "minimum", "expected")]
        lines.append(
            f"| {row['game']} | {row['phases']} of {row['phase_steps']:,} "
            f"| {row['trials']}, {row['eviction_rate']:.0%} "
            f"| {shares[0]} ({shares[1]}, {shares[2]}) "
            f"| {row['seconds']:.0f}, {row['occupancy']:.0%} "
            f"| {rate:.2g}, {gamma:g}, {t_max} | {number(row['score'])} "
            f"| {' · '.join(map(number, row['best']))} | {' · '.join(map(number, row['fixed']))} |"
        )
    lines += ["", f"| game | {' | '.join(f'γ = {gamma:g}' for gamma in GAMMAS)} |"]
    lines += [f"|---|{'---|' * len(GAMMAS)}"]
    lines += [
        f"| {row['game']} | {' | '.join(number(each['mean']) for each in row['gammas'])} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def figure(rows: Sequence[Row]) -> Figure:
    """Mean screens: a line of panels for each game, a panel for each γ."""
    import matplotlib
    from matplotlib.figure import Figure

    from genkidama.runs.figure_style import BLUE, GREEN, RED, STYLE

    inks = np.array([matplotlib.colors.to_rgb(colour) for colour in (RED, GREEN, BLUE)])
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        result = Figure(figsize=(8.4, 3.0 * len(rows)), layout="constrained")
        panels = result.subplots(len(rows), len(GAMMAS), squeeze=False)
        for axes, row in zip(panels, rows, strict=True):
            for panel, each in zip(axes, row["gammas"], strict=True):
                shares = np.array(each["screen"])
                strength = np.sqrt(shares / shares.max(axis=(1, 2), keepdims=True).clip(1e-9))
                # Each ink takes away from white, as on paper.
                picture = 1.0 - np.einsum("cxy,cr->xyr", strength, 1.0 - inks)
                panel.imshow(picture.clip(0.0, 1.0), interpolation="nearest")
                panel.set_title(f"{row['game']}, γ = {each['gamma']:g}: {number(each['mean'])}")
                panel.set_xticks([])
                panel.set_yticks([])
    return result


@command
def main(arguments: list[str] | None = None) -> int:
    parser = store.parser("search.games", __doc__)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    parser.add_argument("--phase-steps", type=int, default=15_000, help="length of a phase")
    results = ROOT / "docs/results/search-games.jsonl"
    parser.add_argument("--results", type=Path, default=results)
    options: argparse.Namespace = parser.parse_args(arguments)
    rows = store.read(options.results)
    if options.what == "report":
        print(table(rows), end="")
        figure(rows).savefig(options.results.with_suffix(".svg"), metadata={"Date": None})
        return 0
    done = {row["game"] for row in rows}

    def measured(game: str) -> Row:
        with tempfile.TemporaryDirectory() as folder:
            return measure(game, options.phase_steps, Path(folder))

    well = store.run(
        options.games,
        [game for game in options.games if game not in done],
        rows,
        options.results,
        measure=measured,
        announce=lambda left: f"{len(left)} left",
        outcome=lambda row: f"{fmean(row['best']):.1f}, fixed {fmean(row['fixed']):.1f}",
    )
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
