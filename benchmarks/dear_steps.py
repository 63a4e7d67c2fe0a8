"""Where steps are dear: how many steps and updates SAC needs, beside Stable-Baselines3's and SBX's.

Claims: `updates`: with two hidden layers of 64 and minibatches of 256 a learner makes at least 900
updates a second on one core; with `--core` the peers have one, too. `rotary`: simulated rotary
pendulums (`examples/rotary/sac.toml` without a clock, one core that acts and learns in turns) need
at most 2,500 steps before the window that solves begins, and `pendulum` at most 3,500 in all to a
mean of -200 over 10 episodes.
`robots-1`, `robots-4` and `robots-8`: so many robots, 50 Hz of the wall clock, with the learner
beside the parent: at most 2,500 steps before the window; four need at most 60 s, and eight at most
a fifth of the time of one. A run ends after 120 s, of one robot after 400 s, whose window alone may
take 200 s. The peers act and learn in turns (`peers/sb3_sac.py`), with one update a step, and
nothing holds a pendulum for which their update takes too long; ours has `safe_action`.
`hopper` and `cheetah`: the mean of ten episodes (`played`) after 100,000 steps of MuJoCo, by
`examples/mujoco/sac.toml`, with the settings of rl-baselines3-zoo, and by the peers with the same;
all of a run on one `--core`, so two may run at once, with a results file each. No claim.
`mountaincar`: no claim.
`stays` and `forgets`: how many of 12,000 steps of `rotary` are lost after the first whole episode,
as 500 less each later one's length, with the example's file, and with SAC's default rate and
critics that begin at 0; on one `--core`, so both may run at once.
`rotary-demonstrations`: `rotary` beside ten episodes of `rotary:balance`, recorded first, and with
fewer `start_steps`: no claim.
`lander-500`: LunarLander-v3 by PPO to a mean of 200, by four children of one core and one lane
behind a clock of 500 Hz, whose learner is idle for most of the time; no claim.
`continuous-lander`: LunarLanderContinuous-v3 by SAC, a core that acts and learns in turns, to a
mean of 200 over 100 episodes; no claim.

"Steps before" are all steps but those of the episodes whose mean solves. Each run is a line in the
results file, and is not repeated once it is there. Nothing else should run meanwhile.

    python -m benchmarks.dear_steps updates
    python -m benchmarks.dear_steps pendulum [--seeds 1 2 3 4 5] [--results FILE] [--alone]
    python -m benchmarks.dear_steps hopper --core 0 --results FILE
    python -m benchmarks.dear_steps report
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

# Before anything that loads a BLAS.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from benchmarks import store
from benchmarks.processes import ROOT, interpreter_of_peers, parser_of, peer, pinned
from benchmarks.store import Row
from genkidama.config.experiment import Experiment
from genkidama.learning.environments import make_environment
from genkidama.plugins.actors.learner import ReplayLearner, row_learner
from genkidama.plugins.actors.learner_process import LearnerLayout, LearnerMemory
from genkidama.plugins.actors.step_replay import replay_parts
from genkidama.runs.run import Run

#: In turns of acting and learning: a core of a child, alone.
IN_TURNS = {
    "parent.rule": "blend",
    "child.cores": 1,
    "child.exchange": "free",
    "child.exchange_seconds": 0.25,
    "parent.alpha": 0.9,
}
UNHURRIED = {
    "environment.period": 0,
    "environment.safe_action": [],
    "environment.safe_seconds": 0,
    "environment.offline_seconds": 0,
    "environment.options.seconds": 0.02,
}
MOUNTAINCAR = {
    "environment.id": "MountainCarContinuous-v0",
    "algorithm.gamma": 0.9999,
    "stop.mean_return": 90,
    "stop.steps": 50_000,
}
LANDER_500 = {
    "environment.period": 0.002,
    "environment.lanes": 1,
    "child.cores": 1,
    "stop.mean_return": 200,
}
#: `rotary` that goes on when it is solved.
STAYS = IN_TURNS | UNHURRIED | {"stop.mean_return": 501, "stop.steps": 12_000}
#: Of the peers where MuJoCo is: the network's width and the steps of the example's file.
MUJOCO = ("--hidden", "256", "--limit", "100000")


class Task(NamedTuple):
    """What our side of a task trains, and what the peers make of it."""

    example: str
    changes: dict[str, Any]
    children: int = 1
    #: Options of the peers' script; None where they have no part.
    peer: tuple[str, ...] | None = None
    #: Whether runs are compared by what they have learned after the same steps.
    returns: bool = False


def timed(seconds: int) -> tuple[str, ...]:
    """The peers' options where they run against the clock."""
    return "--limit-seconds", str(seconds), "--limit", "1000000"


TASKS = {
    "rotary": Task("rotary/sac.toml", IN_TURNS | UNHURRIED, peer=()),
    "pendulum": Task("pendulum/sac.toml", {}, peer=()),
    "mountaincar": Task("pendulum/sac.toml", MOUNTAINCAR, peer=()),
    "robots-1": Task("rotary/sac.toml", {"stop.seconds": 400}, peer=timed(400)),
    "robots-4": Task("rotary/sac.toml", {"stop.seconds": 120}, 4, timed(120)),
    "robots-8": Task("rotary/sac.toml", {"stop.seconds": 120}, 8),
    "hopper": Task("mujoco/sac.toml", {}, peer=MUJOCO, returns=True),
    "cheetah": Task(
        "mujoco/sac.toml", {"environment.id": "HalfCheetah-v5"}, peer=MUJOCO, returns=True
    ),
    "stays": Task("rotary/sac.toml", STAYS),
    "forgets": Task(
        "rotary/sac.toml",
        STAYS | {"algorithm.initial_value": 0, "optimizer.learning_rate": 7e-4},
    ),
    "rotary-demonstrations": Task(
        "rotary/sac.toml", IN_TURNS | UNHURRIED | {"algorithm.start_steps": 100}
    ),
    "continuous-lander": Task("lunarlander/sac.toml", {}),
    "lander-500": Task("lunarlander/lunarlander.toml", LANDER_500, 4),
}
#: The controller of each task that learns from demonstrations, too, and its episodes.
DEMONSTRATED = {"rotary-demonstrations": ("rotary:balance", 10)}
#: What is reported of each group of rows, where it is there.
MEASURES = (
    *("updates_per_second", "updates_per_cpu_second"),
    *("before", "steps", "seconds", "cpu_seconds", "played", "lost"),
)
PEERS = ("sb3", "sbx")


def updates(hidden: int, seconds: float = 10.0) -> Row:
    """Updates a second of the learner beside a parent, over a full replay, draws included."""
    experiment = Experiment.load(ROOT / "examples/pendulum/sac.toml").with_settings(
        {
            "parent.rule": "experience",
            "network.hidden": [hidden, hidden],
            "algorithm.updates_per_step": 1e9,
        }
    )
    environment = make_environment(experiment.environment)
    learner = row_learner(experiment, environment)
    assert isinstance(learner, ReplayLearner)
    replay = replay_parts(learner.columns, experiment.replay.steps, False)
    layout = LearnerLayout(
        learner.signature.size, learner.state.shape[1], 1, 1, learner.columns.count, replay
    )
    memory = LearnerMemory(layout)
    memory.weights[:] = learner.weights
    rng = np.random.default_rng(1)
    memory.replay[:] = rng.normal(size=memory.replay.shape)
    memory.replay[:, -1] = 0.0
    memory.added[0] = len(memory.replay)
    learner.load(memory)
    columns = learner.columns
    rows = np.zeros((2, columns.count), np.float32)
    rows[0, columns.following] = 1.0
    made, began, busy = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        made += sum(1 for _ in learner.learn(rows, 0.0))
    return {
        "updates_per_second": made / (time.perf_counter() - began),
        # As many on a core of its own, if others are at work.
        "updates_per_cpu_second": made / (time.process_time() - busy),
    }


def ours(task: str, seed: int, core: int | None, steps: int | None = None) -> Row:
    """One run of an example through `genkidama train`, of so many steps if they are given."""
    file, changes, children, _, returns = TASKS[task]
    example = ROOT / "examples" / file
    # MuJoCo is where the peers are.
    python = interpreter_of_peers() if returns else sys.executable
    if steps is not None:
        changes = changes | {"stop.steps": steps}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [python, "-m", "genkidama", "train", example.name]
        command += ["--children", str(children), "--seed", str(seed), "--out", str(out)]
        command += ["--episodes", "0"]
        for key, value in changes.items():
            command += ["--set", f"{key}={json.dumps(value)}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if task in DEMONSTRATED:
            command += ["--demonstrations", str(_recorded(task, Path(folder), environment))]
        began, busy = time.time(), _cpu_seconds()
        subprocess.run(
            [*pinned(core), *command],
            check=True,
            stderr=subprocess.DEVNULL,
            cwd=example.parent,
            env=environment,
        )
        took, busy = time.time() - began, _cpu_seconds() - busy
        run = Run.open(out, allow=["rotary"])
        window, goal = run.experiment.stop.window, run.experiment.stop.mean_return
        last = run.snapshot
        mean = last.mean_return
        found = {
            "steps": last.steps,
            "seconds": took,
            "cpu_seconds": busy,
            "mean": mean,
        }
        if returns:
            asked = [python, "-m", "genkidama", "evaluate", str(out), "--newest", "--json"]
            asked += ["--deterministic", "--episodes", "10"]
            played = subprocess.run(
                [*pinned(core), *asked], check=True, capture_output=True, env=environment
            )
            return found | {"played": json.loads(played.stdout)["mean"]}
        if task in ("stays", "forgets"):
            return found | {"lost": _lost(run)}
        return found | {
            "solved": mean is not None and goal is not None and mean >= goal,
            "before": last.steps - round(window * _newest_lengths(run, window)),
        }


def _cpu_seconds() -> float:
    """The CPU seconds of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _recorded(task: str, folder: Path, environment: dict[str, str]) -> Path:
    """The file of a task's demonstrations, recorded without a clock."""
    controller, episodes = DEMONSTRATED[task]
    example, path = ROOT / "examples" / TASKS[task].example, folder / "recorded.steps"
    command = [sys.executable, "-m", "genkidama", "play", example.name, "--controller", controller]
    command += ["--record", str(path), "--episodes", str(episodes)]
    for key, value in UNHURRIED.items():
        command += ["--set", f"{key}={json.dumps(value)}"]
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, cwd=example.parent, env=environment
    )
    return path


def _lengths(run: Run) -> list[tuple[float, float]]:
    """The mean lengths of episodes that ended together, and how many these were."""
    return [
        (event["episode_length"], event["episodes_ended"])
        for event in run.history()
        if event["event"] == "measures" and "episode_length" in event
    ]


def _lost(run: Run) -> float | None:
    """500 less the length of each episode after the first whole one; None without one."""
    lengths = _lengths(run)
    whole = next((number for number, (length, _) in enumerate(lengths) if length >= 500), None)
    if whole is None:
        return None
    return sum((500.0 - length) * count for length, count in lengths[whole:])


def _newest_lengths(run: Run, window: int) -> float:
    """The mean length of the last episodes."""
    left, total = float(window), 0.0
    for length, count in reversed(_lengths(run)):
        taken = min(left, count)
        total += taken * length
        left -= taken
        if not left:
            break
    return total / (window - left) if left < window else 0.0


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("what", choices=["updates", *TASKS, "report"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--core", type=int, help="the only core that runs may have")
    parser.add_argument("--steps", type=int, help="end each run then; to try a task out")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "build/dear_steps.jsonl", help="JSON lines"
    )
    options = parser.parse_args()
    done = store.read(options.results)
    once = partial(store.once, options.results, done)
    peers = () if options.alone else PEERS
    if options.what == "updates":
        pinned = options.core is not None
        if pinned:
            os.sched_setaffinity(0, [options.core])
        for hidden in (64, 256):
            key = {"what": "updates-on-one-core" if pinned else "updates", "hidden": hidden}
            once(key | {"by": "genkidama"}, lambda hidden=hidden: updates(hidden))
            for library in peers:
                given = ("updates", "--library", library, "--hidden", str(hidden))
                once(key | {"by": library}, lambda given=given: peer("sb3_sac.py", *given))
    elif options.what != "report":
        task, core, steps = TASKS[options.what], options.core, options.steps
        for seed in options.seeds:
            key = {"what": options.what, "seed": seed}
            once(
                key | {"by": "genkidama"},
                lambda seed=seed: ours(options.what, seed, core, steps),
            )
            for library in peers if task.peer is not None else ():
                asked = ["steps", "--library", library, "--task", options.what]
                asked += ["--seed", str(seed), *task.peer]
                asked += [] if steps is None else ["--limit", str(steps)]
                once(
                    key | {"by": library},
                    lambda asked=asked: peer("sb3_sac.py", *asked, core=core),
                )
    report(done)


def report(rows: list[Row]) -> None:
    """Prints medians, and the least and the most."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if "missing" not in row:
            groups.setdefault((row["what"], row.get("hidden", ""), row["by"]), []).append(row)
    for (what, hidden, by), found in sorted(groups.items(), key=str):
        for key in MEASURES:
            numbers = [row[key] for row in found if row.get(key) is not None]
            if numbers:
                spread = f"{min(numbers):,.0f} to {max(numbers):,.0f}, n = {len(numbers)}"
                print(f"{what} {hidden} {by}: {key} {median(numbers):,.0f} ({spread})")
        if "solved" in found[0]:
            print(f"{what} {by}: {sum(row['solved'] for row in found)} of {len(found)} solved")


if __name__ == "__main__":
    main()
