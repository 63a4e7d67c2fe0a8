"""SAC of Stable-Baselines3, or of SBX (JAX), as a peer: updates a second, and steps to a goal.

    benchmarks/.venv/bin/python benchmarks/peers/sb3_sac.py updates --library sbx --hidden 64
    benchmarks/.venv/bin/python benchmarks/peers/sb3_sac.py steps --task pendulum --seed 1

`updates` counts the gradient steps of `--seconds` over a full replay, after a first round that
compiles. `steps` trains until the mean of the last episodes reaches the task's goal, or `--limit`
steps are made, and reports both that step and the step at which those episodes began. It prints one
JSON object; without the library it says so under `missing`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# Before anything that loads a BLAS.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import gymnasium
import numpy as np

ROTARY = Path(__file__).resolve().parents[2] / "examples/rotary"

#: Environment, goal, episodes of its mean, γ and the episodes' usual settings.
TASKS: dict[str, tuple[str, float, int, dict[str, Any]]] = {
    "rotary": ("rotary", 400.0, 20, {"gamma": 0.98}),
    "pendulum": ("Pendulum-v1", -200.0, 10, {"gamma": 0.98}),
    # From rl-baselines3-zoo, hyperparams/sac.yml.
    "mountaincar": (
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


def environment(name: str) -> Any:
    if name != "rotary":
        return gymnasium.make(name, render_mode=None)
    sys.path.insert(0, str(ROTARY))
    from rotary import RotaryPendulum  # type: ignore[import-not-found]

    return RotaryPendulum(seconds=0.02)


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
    from stable_baselines3.common.monitor import Monitor

    name, goal, window, settings = TASKS[options.task]

    class Until(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            lengths = monitor.get_episode_lengths()
            returns = monitor.get_episode_rewards()
            return len(lengths) < window or float(np.mean(returns[-window:])) < goal

    monitor = Monitor(environment(name))
    model = model_of(options, monitor, **settings)
    began = time.perf_counter()
    model.learn(options.limit, callback=Until())
    returns, lengths = monitor.get_episode_rewards(), monitor.get_episode_lengths()
    solved = len(returns) >= window and float(np.mean(returns[-window:])) >= goal
    return {
        "solved": solved,
        "steps": sum(lengths),
        "before": sum(lengths[:-window]) if solved else None,
        "seconds": time.perf_counter() - began,
        "mean": float(np.mean(returns[-window:])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["updates", "steps"])
    parser.add_argument("--library", choices=["sb3", "sbx"], default="sb3")
    parser.add_argument("--task", choices=list(TASKS), default="pendulum")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--limit", type=int, default=20_000)
    options = parser.parse_args()
    try:
        found = (updates if options.what == "updates" else steps)(options)
    except ModuleNotFoundError as error:
        found = {"missing": error.name}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
