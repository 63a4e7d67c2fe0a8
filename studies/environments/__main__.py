"""The same seconds in a dozen environments, with our files and with Stable-Baselines3's PPO.

Question: what return does a newcomer get in which environment, after how long, and what would he
have got from Stable-Baselines3?

Method: `genkidama train` with the file of the table, or with what `genkidama init` writes for the
environment, stopped after the seconds of the table; the weights that it chooses at its end play 100
sampled episodes. Then Stable-Baselines3's PPO trains for as many seconds with the settings of its
zoo, or its defaults where the zoo has none (MinAtar, FrozenLake), and plays 100 sampled episodes
with its last weights, as its own `learn` leaves them. Each has the whole machine, one after the
other. Start-up does not count.

Every run is a line in the results, and is not repeated once it is there. Stop and go on at will.
It takes `make peers`.

    python -m studies.environments run [--seeds 1 2 3]
    python -m studies.environments report        the table, in docs/results/environments.md
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from genkidama.errors import EnvironmentFailure
from studies import store
from studies.store import Row

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/results/environments.md"
EPISODES = 100


@dataclass(frozen=True)
class Task:
    """An environment, and how long it is trained in."""

    environment: str
    seconds: float
    #: Below `examples/`; empty for the file of `genkidama init`.
    file: str = ""
    #: What differs from that file: `--set`.
    changes: tuple[str, ...] = ()


def _minatar(name: str, game: str) -> Task:
    changes = () if game == "breakout" else (f'environment.options.game="{game}"',)
    return Task(f"MinAtar/{name}-v1", 90.0, "minatar/breakout.toml", changes)


TASKS = (
    Task("CartPole-v1", 10.0, "cartpole/cartpole.toml"),
    Task("Acrobot-v1", 20.0),
    Task("FrozenLake-v1", 20.0),
    Task("MountainCarContinuous-v0", 20.0),
    Task("Pendulum-v1", 15.0, "pendulum/pendulum.toml"),
    Task("LunarLander-v3", 30.0, "lunarlander/lunarlander.toml"),
    Task("LunarLanderContinuous-v3", 60.0, "lunarlander/continuous.toml"),
    Task("BipedalWalker-v3", 120.0),
    _minatar("Breakout", "breakout"),
    _minatar("SpaceInvaders", "space_invaders"),
    _minatar("Asterix", "asterix"),
    _minatar("Freeway", "freeway"),
)
OF = {task.environment: task for task in TASKS}


@dataclass(frozen=True)
class Condition:
    """One run of the plan."""

    environment: str
    contender: str
    seed: int

    def __str__(self) -> str:
        return f"{self.environment}, {self.contender}, seed {self.seed}"


def _called(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise EnvironmentFailure(f"{' '.join(command)}: {done.stderr[-1000:]}")
    return done.stdout


def ours(task: Task, seed: int, folder: Path) -> Row:
    """The mean return of a run by the command line."""
    genkidama = [sys.executable, "-m", "genkidama"]
    file = str(ROOT / "examples" / task.file)
    if not task.file:
        file = "mine.toml"
        _called([*genkidama, "init", file, "--environment", task.environment], folder)
    changes = [f"stop.seconds={task.seconds:g}", *task.changes]
    train = ["train", file, "--out", "run", "--seed", str(seed), "--episodes", str(EPISODES)]
    _called([*genkidama, *train, *(word for one in changes for word in ("--set", one))], folder)
    run = folder / "run"
    found = json.loads((run / "evaluation.json").read_text())
    return {"mean": found["mean"], "std": found["std"]}


def sb3(task: Task, seed: int, folder: Path) -> Row:
    """The mean return of Stable-Baselines3's PPO after the same seconds."""
    python = ROOT / "benchmarks/.venv/bin/python"
    if not python.exists():
        raise EnvironmentFailure("the peers are not installed: make peers")
    options = ["--seed", str(seed), "--seconds", f"{task.seconds:g}", "--episodes", str(EPISODES)]
    script = str(Path(__file__).parent / "peers/sb3.py")
    printed = _called([str(python), script, task.environment, *options], folder)
    row: Row = json.loads(printed.splitlines()[-1])
    return row


CONTENDERS = {"genkidama": ours, "sb3": sb3}


def measure(condition: Condition) -> Row:
    """The row of a run."""
    with tempfile.TemporaryDirectory() as folder:
        learn = CONTENDERS[condition.contender]
        found = learn(OF[condition.environment], condition.seed, Path(folder))
    return {**vars(condition), "date": time.strftime("%F %T"), **found}


def table(rows: list[Row]) -> str:
    """The table of the page: medians over the seeds that both have."""
    lines = [
        "| environment | our file | seconds | return | Stable-Baselines3's | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        means = {
            name: {
                row["seed"]: row["mean"]
                for row in rows
                if (row["environment"], row["contender"]) == (task.environment, name)
            }
            for name in CONTENDERS
        }
        seeds = sorted(set.intersection(*(set(each) for each in means.values())))
        if not seeds:
            continue
        name = f"`{task.file}`" if task.file else "`genkidama init`"
        name += "".join(f", `{change}`" for change in task.changes)
        first, second = (median(each[seed] for seed in seeds) for each in means.values())
        lines.append(
            f"| `{task.environment}` | {name} | {task.seconds:g} | {first:.1f} | {second:.1f} "
            f"| {len(seeds)} |"
        )
    return "\n".join(lines) + "\n"


def filled(page: str, rows: list[Row]) -> str:
    """The page with the table of these rows between its marks."""
    begin, end = "<!-- table -->\n", "<!-- end -->"
    before, _, rest = page.partition(begin)
    return before + begin + table(rows) + end + rest.partition(end)[2]


def main() -> int:
    parser = store.parser("environments", __doc__)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--environments", nargs="+", choices=OF, default=list(OF))
    parser.add_argument("--results", type=Path, default=PAGE.with_suffix(".jsonl"))
    options = parser.parse_args()
    rows = store.read(options.results)
    well = True
    if options.what == "run":
        done = {(row["environment"], row["contender"], row["seed"]) for row in rows}
        wanted = [
            Condition(environment, contender, seed)
            for seed in options.seeds
            for environment in options.environments
            for contender in CONTENDERS
        ]

        def announce(left: Sequence[Condition]) -> str:
            minutes = sum(OF[one.environment].seconds + 15.0 for one in left) / 60.0
            return f"about {minutes:.0f} min left"

        well = store.run(
            wanted,
            [one for one in wanted if tuple(vars(one).values()) not in done],
            rows,
            options.results,
            measure=measure,
            announce=announce,
            outcome=lambda row: f"{row['mean']:.1f} ± {row['std']:.1f}",
        )
    print(table(rows), end="")
    PAGE.write_text(filled(PAGE.read_text(), rows))
    return 0 if well else EnvironmentFailure.exit_code


if __name__ == "__main__":
    sys.exit(main())
