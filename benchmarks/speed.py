"""How many environment steps a second a child makes while it trains, beside its environment alone.

Claims: a child trains on LunarLander-v3 with two cores, connected to a real parent. With `a3c.toml`
it makes at least 0.75 of the steps of the bare environment loop with random actions on the same two
cores, with `lunarlander.toml`, whose learner runs beside the parent, at least 0.6. With
`lunarlander-envpool.toml` it makes at least 90,000 a second where that loop makes 80,000 (not
reached: docs/results/lunarlander.md). It makes at least 2.5 times the steps per core of
Stable-Baselines3's A2C with 8 environments and `render_mode=None`. EnvPool's environments are
measured if it is installed.

Method: one process tree after another is measured, in turn, for several rounds. A round's ratio
compares neighbours in time, and the median of the rounds counts. The bare loop is two processes,
one per core. Each has an environment made as a core makes it, and actions drawn beforehand, so that
it only steps and resets. A child's steps are the steps that its parent counted, from its history,
after a warm-up of WARM seconds. `--parts` says where the rest goes, on one core, function by
function: with one lane and with several, and learning by hand beside torch's way.

    python benchmarks/speed.py [--rounds 3] [--seconds 15] [--results FILE] [--parts]
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from processes import ROOT, keep, parser_of, peer

WARM = 4.0


def bare_loop(cpu: int, seconds: float, results: Any) -> None:
    """Steps a second of an environment with random actions, on one core."""
    import numpy as np

    from genkidama.config.sections import Environment
    from genkidama.learning.environments import make_environment

    os.sched_setaffinity(0, {cpu})
    environment = make_environment(Environment())
    actions = list(
        np.random.default_rng(cpu).integers(4, size=1_000_000)
    )  # NumPy's integers, which Gymnasium checks sooner
    environment.reset(seed=cpu)
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for action in actions[steps : steps + 1000]:
            _, _, terminated, truncated, _ = environment.step(action)
            if terminated or truncated:
                environment.reset()
        steps += 1000
    results.put(steps / (time.perf_counter() - began))


def bare(seconds: float) -> float:
    """Steps a second of both cores at once, summed."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [
        context.Process(target=bare_loop, args=(cpu, seconds, results))
        for cpu in sorted(os.sched_getaffinity(0))[:2]
    ]
    for process in processes:
        process.start()
    total = sum(results.get() for _ in processes)
    for process in processes:
        process.join()
    return total


def child(file: str, seconds: float, *settings: str) -> float:
    """Steps a second of one child with two cores, as its parent counts them."""
    from genkidama.cli.cluster import train
    from genkidama.config.decoding import parse_settings
    from genkidama.config.experiment import Experiment

    changes = {**parse_settings(list(settings)), "parent.alpha": 0.5, "child.beta": 0.5}
    experiment = Experiment.load(ROOT / "examples/lunarlander" / file)
    experiment = Experiment.from_dict(
        {**experiment.to_dict(), "stop": {"seconds": WARM + seconds}}
    ).with_settings(changes)
    points: list[tuple[float, int]] = []

    def watch(event: dict[str, Any]) -> None:
        if event["event"] in ("join", "exchange"):
            points.append((event["time"], event.get("steps", 0)))

    with tempfile.TemporaryDirectory() as out:
        train(experiment, children=1, cores=2, out=out, episodes=0, watch=watch)
    start = next(point for point in points if point[0] - points[0][0] >= WARM)
    return (points[-1][1] - start[1]) / (points[-1][0] - start[0])


def stable_baselines(seconds: float) -> float:
    """Steps a second of two A2C processes, one per core, summed."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    with ThreadPoolExecutor(len(cores)) as threads:
        rows = threads.map(
            lambda cpu: peer("sb3.py", "speed", "--seconds", str(seconds), "--pin", str(cpu)), cores
        )
        return float(sum(row["steps_per_second"] for row in rows))


#: Lanes in `--parts`.
LANES = 16


def parts() -> None:
    """Microseconds a step of each part of a core's work, one after another on one core."""
    from dataclasses import replace

    import numpy as np
    import torch

    from genkidama.config.experiment import Experiment
    from genkidama.learning.environments import make_environment
    from genkidama.learning.heads import samples_of_lanes
    from genkidama.learning.learners import make_learner, updates
    from genkidama.learning.model import Model
    from genkidama.learning.optimizers import STATE_ROWS, make_optimizer
    from genkidama.learning.rollout import Rollout
    from genkidama.learning.tensors.tensor_model import TensorModel

    torch.set_num_threads(1)
    for file in ("a3c.toml", "lunarlander.toml"):
        experiment = Experiment.load(ROOT / "examples/lunarlander" / file)
        environment = make_environment(experiment.environment)
        model = Model(experiment, environment)
        rng = np.random.default_rng(0)
        outputs, sample = (
            model.network.acting(),
            model.head.sampler(rng, experiment.algorithm.epsilon),
        )
        n = experiment.algorithm.batch_size
        observation, _ = environment.reset(seed=0)
        timing: dict[str, float] = dict.fromkeys(("act", "step", "reset"), 0.0)
        seen, taken = [], []
        clock, resets = time.perf_counter, 0
        for _ in range(20_000):
            start = clock()
            action = sample(outputs(observation))
            acted = clock()
            following, _, terminated, truncated, _ = environment.step(action)
            timing["step"] += clock() - acted
            timing["act"] += acted - start
            seen.append(observation)
            taken.append(action)
            observation = following
            if terminated or truncated:
                start = clock()
                observation, _ = environment.reset()
                timing["reset"] += clock() - start
                resets += 1
        result = {name: total / 20_000 * 1e6 for name, total in timing.items()}
        optimizer = make_optimizer(
            experiment.optimizer,
            model.vector[: model.trainable],
            np.zeros((STATE_ROWS[experiment.optimizer.name], model.trainable), np.float32),
            np.zeros(1),
        )
        together, samples = (
            model.network.acting_together(),
            samples_of_lanes(model.head, rng, 0.0, LANES),
        )
        rows = np.array(seen[:LANES])
        clock = time.process_time  # another process may be busy, too
        start = clock()
        for _ in range(2_000):
            samples(together(rows))
        result[f"act in {LANES} lanes"] = (clock() - start) / 2_000 / LANES * 1e6
        rollout = Rollout(
            np.array(seen[:n]),
            np.array(taken[:n], model.head.dtype)[:, None],
            rng.normal(size=n).astype(np.float32),
            np.arange(n) == n - 1,
            np.array([n - 1]),
            np.array(seen[n - 1 : n]),
        )
        other = TensorModel(experiment, environment, vector=model.numbers)
        names = ("observations", "actions", "cut_observations")
        tensors = {name: torch.from_numpy(getattr(rollout, name)) for name in names}
        measured: dict[str, list[float]] = {"learn": [], "learn by torch": []}
        for _ in range(max(5, 10_000 // n)):
            for name, each, data in zip(
                measured, (model, other), (rollout, replace(rollout, **tensors)), strict=True
            ):
                learner = make_learner(experiment.algorithm, each)
                start = clock()
                found = each.gradients(learner, data, each.generator(0))
                for _ in updates(found, each, optimizer, 0.0):
                    pass
                measured[name].append((clock() - start) / n * 1e6)
        result |= {name: median(values) for name, values in measured.items()}
        costs = ", ".join(f"{name} {value:.1f} µs" for name, value in result.items())
        print(f"{file}: {costs} a step, episodes of {20_000 / resets:.0f} steps")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--results", type=Path, help="file to which rows are appended")
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    if options.parts:
        parts()
        return
    rows: list[dict[str, float]] = []
    for number in range(options.rounds):
        row = {
            "bare": bare(options.seconds / 2),
            "a3c, free": child("a3c.toml", options.seconds, "child.exchange=free"),
            "bare again": bare(options.seconds / 2),
            "lunarlander": child("lunarlander.toml", options.seconds),
            "a3c, episode": child("a3c.toml", options.seconds, "child.exchange=episode"),
            "Stable-Baselines3 A2C": stable_baselines(options.seconds),
        }
        if importlib.util.find_spec("envpool"):
            row["envpool"] = child("lunarlander-envpool.toml", options.seconds)
        rows.append(row)
        keep(options.results, row)
        print(
            f"round {number + 1}: "
            + ", ".join(f"{name} {value:,.0f}/s" for name, value in row.items()),
            flush=True,
        )

    def ratio(over: str, under: str) -> float:
        return median(row[over] / row[under] for row in rows)

    for row in rows:
        row["bare mean"] = (row["bare"] + row["bare again"]) / 2
    results = {
        "a3c free / bare (goal 0.75)": ratio("a3c, free", "bare mean"),
        "lunarlander / bare (goal 0.6)": ratio("lunarlander", "bare mean"),
        "a3c free / Stable-Baselines3 A2C, a core (goal 2.5)": ratio(
            "a3c, free", "Stable-Baselines3 A2C"
        ),
        "a3c episode / a3c free": ratio("a3c, episode", "a3c, free"),
    }
    if "envpool" in rows[0]:
        results["envpool / bare (goal 1.13)"] = ratio("envpool", "bare mean")
    for name, value in results.items():
        print(f"{value:6.2f}  {name}")


if __name__ == "__main__":
    main()
