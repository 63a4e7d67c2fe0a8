"""SAC of Stable-Baselines3, or of SBX (JAX), as a peer: updates a second, and steps to a goal.

    benchmarks/.venv/bin/python benchmarks/peers/sb3_sac.py updates --library sbx --hidden 64
    benchmarks/.venv/bin/python benchmarks/peers/sb3_sac.py steps --task pendulum --seed 1

`updates` counts the gradient steps of `--seconds` over a full replay, after a first round that
compiles. `steps` trains until the mean of the last episodes reaches the task's goal, `--limit`
steps are made, or `--limit-seconds` are over, and reports both that step and the step at which
those episodes began. A task without a goal trains to the limit, and then plays 10 episodes by the
most probable actions. It prints one JSON object; without the library it says so under `missing`.

`robots-N` are N rotary pendulums on the wall clock, of the class that ours are. Their common step
begins 1/50 s after the one before, and later if the library is not back by then: meanwhile each
swings on under its last action. Acting, N updates (one for each new step) and SBX's compiling have
the time between. So they train as a user's program would who calls `learn` on a robot.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

# Before anything that loads a BLAS.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import gymnasium
import numpy as np

ROTARY = Path(__file__).resolve().parents[2] / "examples/rotary"

#: Seconds between two steps of a robot.
PERIOD = 0.02


class Task(NamedTuple):
    """An environment, and what is reached there."""

    environment: str
    #: The mean return of the last episodes that ends the run; None if the steps do.
    goal: float | None
    window: int
    #: The library's settings, and the robots that are played at once.
    settings: dict[str, Any]
    robots: int = 0


TASKS = {
    "rotary": Task("rotary", 400.0, 20, {"gamma": 0.98}),
    "robots-1": Task("rotary", 400.0, 20, {"gamma": 0.98, "gradient_steps": -1}, 1),
    "robots-4": Task("rotary", 400.0, 20, {"gamma": 0.98, "gradient_steps": -1}, 4),
    "pendulum": Task("Pendulum-v1", -200.0, 10, {"gamma": 0.98}),
    # From rl-baselines3-zoo, hyperparams/sac.yml; what is not there is the libraries' default. Of
    # MuJoCo's it has v3 alone.
    "hopper": Task("Hopper-v5", None, 10, {"learning_starts": 10_000}),
    "cheetah": Task("HalfCheetah-v5", None, 10, {"learning_starts": 10_000}),
    "mountaincar": Task(
        "MountainCarContinuous-v0",
        90.0,
        10,
        {
            "gamma": 0.9999,
            "learning_rate": 3e-4,
            "buffer_size": 50_000,
            "batch_size": 512,
            "ent_coef": 0.1,
            "train_freq": 32,
            "gradient_steps": 32,
            "tau": 0.01,
            "use_sde": True,
        },
    ),
}


def environment(name: str, seconds: float = PERIOD) -> Any:
    """The environment; of a rotary pendulum whose steps take so long, 0 for those of the clock."""
    if name != "rotary":
        return gymnasium.make(name, render_mode=None)
    sys.path.insert(0, str(ROTARY))
    from rotary import RotaryPendulum  # type: ignore[import-not-found]

    return RotaryPendulum(seconds=seconds)


def environments(task: Task) -> Any:
    """The task's environments as the library plays them, each with its episodes' returns."""
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    class OnTheClock(DummyVecEnv):  # type: ignore[misc]
        def reset(self) -> Any:
            first = super().reset()
            self.due = time.monotonic() + PERIOD
            return first

        def step_wait(self) -> Any:
            time.sleep(max(0.0, self.due - time.monotonic()))
            self.due = max(self.due, time.monotonic()) + PERIOD
            return super().step_wait()

    if not task.robots:
        return DummyVecEnv([lambda: Monitor(environment(task.environment))])
    return OnTheClock([lambda: Monitor(environment(task.environment, 0.0))] * task.robots)


def model_of(options: argparse.Namespace, env: Any, **settings: Any) -> Any:
    network = {"net_arch": [options.hidden, options.hidden]}
    if options.library == "sbx":
        from sbx import SAC  # type: ignore[import-not-found]
    else:
        import torch
        from stable_baselines3 import SAC  # type: ignore[no-redef]

        torch.set_num_threads(1)
        settings["device"] = "cpu"
    return SAC("MlpPolicy", env, seed=options.seed, policy_kwargs=network, **settings)


def updates(options: argparse.Namespace) -> dict[str, Any]:
    model = model_of(options, environment("Pendulum-v1"), learning_starts=1000, batch_size=256)
    model.learn(1100)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < options.seconds:
        model.train(gradient_steps=50, batch_size=256)
        count += 50
    return {"updates_per_second": count / (time.perf_counter() - began)}


def steps(options: argparse.Namespace) -> dict[str, Any]:
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    task = TASKS[options.task]
    ended: list[dict[str, float]] = []

    def mean() -> float:
        return float(np.mean([episode["r"] for episode in ended[-task.window :]]))

    def solved() -> bool:
        return task.goal is not None and len(ended) >= task.window and mean() >= task.goal

    class Until(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            ended.extend(info["episode"] for info in self.locals["infos"] if "episode" in info)
            in_time = time.perf_counter() - began < options.limit_seconds
            return in_time and not solved()

    model = model_of(options, environments(task), **task.settings)
    began, busy = time.perf_counter(), time.process_time()
    model.learn(options.limit, callback=Until())
    found = {
        "steps": model.num_timesteps,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - busy,
        "mean": mean() if ended else None,
    }
    if task.goal is None:
        played, _ = evaluate_policy(model, environment(task.environment), 10)
        return found | {"played": float(played)}
    lengths = sum(int(episode["l"]) for episode in ended[-task.window :])
    before = model.num_timesteps - lengths if solved() else None
    return found | {"solved": solved(), "before": before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["updates", "steps"])
    parser.add_argument("--library", choices=["sb3", "sbx"], default="sb3")
    parser.add_argument("--task", choices=list(TASKS), default="pendulum")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--limit", type=int, default=20_000)
    parser.add_argument("--limit-seconds", type=float, default=math.inf)
    options = parser.parse_args()
    try:
        found = (updates if options.what == "updates" else steps)(options)
    except ModuleNotFoundError as error:
        found = {"missing": error.name}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
