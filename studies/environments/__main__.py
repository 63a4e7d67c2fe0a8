"""The same seconds in 23 environments: what `genkidama init` writes, Stable-Baselines3, and SBX.

Question: what return does a newcomer get in which environment after how long, and what would he
have got from other programs in the same time, and with the same steps?

Method: five programs of training. `genkidama`: the file of `genkidama init --environment ID`, and
the command that it prints. `sb3-zoo`: Stable-Baselines3's PPO with the settings of its zoo, or its
defaults where that has none. `sb3-ours`: Stable-Baselines3 with the settings of our file, as far as
it has them. `sbx-zoo`: SBX, the same in JAX, with the zoo's, in ten environments. Each trains for
the seconds of the environment and has the whole machine, one after the other; start-up does not
count. Then the last weights of each play 100 sampled episodes (fewer where they are slow), and
`random` plays as many. Along each run the mean return of the last 100 training episodes is noted,
with seconds and steps. Steps are the environment's own.

At equal wall clock the returns of the last weights are compared, at equal steps the training means
where the shorter run ends. A win or loss is a difference of the seeds' medians whose 95 % interval
leaves 0 out; all else is a tie.

Every run is a line in the results, and is not repeated once it is there. Stop it in any way, and go
on with the same command. It takes `make peers`, and the machine for itself.

    python -m studies.environments plan          how long it takes
    python -m studies.environments run [--seeds 1 2 3]
    python -m studies.environments run --smoke   5 s of each, into build/environments
    python -m studies.environments report        the tables, in docs/results/environments.md
    python -m studies.environments publish       the best weights, to examples/zoo
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import store
from benchmarks.peer_settings import our_plan, zoo_plan
from benchmarks.store import Row
from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure
from genkidama.runtime.machine import end_with_parent
from studies.environments import gallery, tables
from studies.environments.tasks import OF, PROGRAMS, RANDOM, SEEDS, Condition, Task, plan

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/results/environments.md"
ZOO, ZOO_PAGE = ROOT / "examples/zoo", ROOT / "docs/notes/zoo.md"
WORK = ROOT / "build/environments"
PYTHON = ROOT / "benchmarks/.venv/bin/python"
PEER = Path(__file__).parent / "peers/train.py"
#: Of a smoke: seconds, and episodes.
SMOKE = 5.0, 1


class Runs:
    """The ways to the row of a run.

    Args:
        python: has Genkidama's dependencies, those of its peers, and the environments.
        work: weights of ours are kept there, for `publish`.
        smoke: trains and judges briefly.
    """

    def __init__(self, python: Path, work: Path, smoke: bool = False) -> None:
        self.python, self.work, self.smoke = python, work, smoke

    def measure(self, condition: Condition) -> Row:
        """The row of a run."""
        task = OF[condition.environment]
        if self.smoke:
            task = dataclasses.replace(task, seconds=SMOKE[0], episodes=SMOKE[1])
        learn: dict[str, Callable[[Task, int, Path], Row]] = {
            "genkidama": self._ours,
            "sb3-zoo": self._zoo("sb3"),
            "sb3-ours": self._with_ours,
            "sbx-zoo": self._zoo("sbx"),
            RANDOM: self._zoo("random"),
        }
        with tempfile.TemporaryDirectory() as folder:
            found = learn[condition.contender](task, condition.seed, Path(folder))
        return {**vars(condition), "planned": task.seconds, **found}

    def _ours(self, task: Task, seed: int, folder: Path) -> Row:
        """A run by the command line."""
        command = self._initialize(task, folder)
        # It goes on when it is solved, as the peers do.
        changes = ["--set", f"stop.seconds={task.seconds:g}", "--set", "stop.mean_return=1e9"]
        changes += ["--seed", str(seed)]
        self._genkidama([*command, "--out", "run", *changes, "--episodes", "0"], task, folder)
        run = folder / "run"
        judging = ["--newest", "--episodes", str(task.episodes), "--seed", str(seed + 1000)]
        self._genkidama(["evaluate", "run", *judging], task, folder)
        found = json.loads((run / "evaluation.json").read_text())
        points = gallery.curve(run)
        gallery.keep(run, gallery.place(self.work, task.environment, seed))
        last = points[-1] if points else (0.0, 0, 0.0)
        return {
            "mean": found["mean"],
            "std": found["std"],
            "seconds": last[0],
            "steps": last[1],
            "curve": gallery.thinned(points),
        }

    def _zoo(self, program: str) -> Callable[[Task, int, Path], Row]:
        def learn(task: Task, seed: int, folder: Path) -> Row:
            return self._peer(program, zoo_plan(task.environment), task, seed, folder)

        return learn

    def _with_ours(self, task: Task, seed: int, folder: Path) -> Row:
        self._initialize(task, folder)
        settings = our_plan(Experiment.load(folder / "mine.toml"))
        settings["mean_return"] = None  # it goes on when it is solved, as ours does
        return self._peer("sb3", settings, task, seed, folder)

    def _initialize(self, task: Task, folder: Path) -> list[str]:
        """Writes mine.toml, and returns the words of the command that trains it."""
        words = ["init", "mine.toml", "--environment", task.environment]
        said = self._genkidama(words, task, folder)
        return training_command(said)

    def _genkidama(self, words: list[str], task: Task, folder: Path) -> str:
        return self._called(["-m", "genkidama", *words], task, folder)

    def _peer(
        self, program: str, settings: dict[str, Any], task: Task, seed: int, folder: Path
    ) -> Row:
        file = folder / "plan.json"
        file.write_text(json.dumps(settings))
        options = ["--seconds", f"{task.seconds:g}", "--seed", str(seed)]
        options += ["--episodes", str(task.episodes)]
        printed = self._called([str(PEER), program, str(file), *options], task, folder)
        row: Row = json.loads(printed.splitlines()[-1])
        return row

    def _called(self, words: list[str], task: Task, folder: Path) -> str:
        """What a command of the environment with the peers prints."""
        limit = 3.0 * task.seconds + 20.0 * task.judging + 300.0
        try:
            done = subprocess.run(
                [str(self.python), *words],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=limit,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                preexec_fn=end_with_parent,
            )
        except subprocess.TimeoutExpired:
            raise EnvironmentFailure(f"{shlex.join(words)}: not done after {limit:.0f} s") from None
        if done.returncode:
            raise EnvironmentFailure(f"{shlex.join(words)}: {done.stderr[-1000:]}")
        return done.stdout


def training_command(said: str) -> list[str]:
    """The words behind `genkidama` of the command that `genkidama init` prints.

    Raises:
        EnvironmentFailure: it prints none.
    """
    found = re.search(r"genkidama (train .*)", said)
    if found is None:
        raise EnvironmentFailure(f"genkidama init names no command: {said!r}")
    return shlex.split(found[1])


def filled(page: str, table: str) -> str:
    """The page with this between its marks."""
    begin, end = "<!-- table -->\n", "<!-- end -->"
    before, _, rest = page.partition(begin)
    return before + begin + table + end + rest.partition(end)[2]


def timetable(left: Sequence[Condition]) -> str:
    """The sum of what these runs take."""
    return f"about {sum(one.seconds for one in left) / 3600.0:.1f} h left"


def _parsed() -> argparse.Namespace:
    parser = store.parser("environments", __doc__)
    parser.add_argument("what", choices=("plan", "run", "report", "publish"))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--environments", nargs="+", choices=OF, default=list(OF))
    programs = (RANDOM, *PROGRAMS)
    parser.add_argument("--programs", nargs="+", choices=programs, default=programs)
    parser.add_argument("--python", type=Path, default=PYTHON, help="that of `make peers`")
    parser.add_argument("--smoke", action="store_true", help="5 s of each, below --work")
    store.add_places(parser, PAGE.with_suffix(".jsonl"), WORK)
    options = parser.parse_args()
    if options.smoke:
        options.work = options.work / "smoke"
        options.results = options.work / "smoke.jsonl"
        options.seeds = options.seeds[:1]
    return options


def main() -> int:
    options = _parsed()
    rows = store.read(options.results)
    wanted = plan(options.environments, options.seeds, options.programs)
    done = {(row["environment"], row["contender"], row["seed"]) for row in rows}
    missing = [one for one in wanted if (one.environment, one.contender, one.seed) not in done]
    if options.what == "plan":
        print(tables.timetable(wanted, missing), end="")
        return 0
    if options.what == "publish":
        for line in gallery.publish(rows, options.work, ZOO):
            print(line)
        ZOO_PAGE.write_text(filled(ZOO_PAGE.read_text(), gallery.table(ZOO)))
        return 0
    well = True
    if options.what == "run":
        if not options.python.exists():
            raise EnvironmentFailure(f"{options.python}: is not there; make peers")
        with store.only_one(options.work):
            well = store.run(
                wanted,
                missing,
                rows,
                options.results,
                measure=Runs(options.python, options.work, options.smoke).measure,
                announce=timetable,
                outcome=lambda row: f"{row['mean']:.1f} ± {row['std']:.1f}",
            )
    print(tables.document(rows), end="")
    if options.results == PAGE.with_suffix(".jsonl"):
        PAGE.write_text(filled(PAGE.read_text(), tables.document(rows)))
    return 0 if well else EnvironmentFailure.exit_code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EnvironmentFailure as error:
        sys.exit(f"error: {error}")
