"""sb3-contrib's RecurrentPPO as a peer, on the tasks of `benchmarks/memory_tasks.py`.

It trains for `--seconds` or as many steps as the zoo does, and is then judged by sampled episodes.
The clock starts when training starts.

    benchmarks/.venv/bin/python benchmarks/peers/sb3_memory.py --task cartpole --seed 1
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples/memory"))

#: From rl-baselines3-zoo, hyperparams/ppo_lstm.yml, CartPoleNoVel-v1.
ZOO: dict[str, Any] = {
    "n_steps": 32,
    "batch_size": 256,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "n_epochs": 20,
    "ent_coef": 0.0,
    "learning_rate": lambda left: 1e-3 * left,
    "clip_range": lambda left: 0.2 * left,
}
#: The zoo has no T-maze: longer rollouts, and the entropy and λ of our example.
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": ZOO,
    "tmaze": ZOO | {"n_steps": 64, "gae_lambda": 0.95, "ent_coef": 0.01},
}
STEPS, LANES = 100_000, 8


def make(task: str) -> gymnasium.Env[Any, Any]:
    if task == "tmaze":
        from tmaze import TMaze

        return TMaze()
    from positions import Positions

    return Positions(gymnasium.make("CartPole-v1"))


def main() -> None:
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lanes = make_vec_env(lambda: make(options.task), LANES, seed=options.seed)
    model = RecurrentPPO(
        "MlpLstmPolicy", lanes, seed=options.seed, device="cpu", **TASKS[options.task]
    )
    began = time.perf_counter()
    model.learn(STEPS, callback=lambda *_: time.perf_counter() - began < options.seconds)
    seconds = time.perf_counter() - began
    judged = make_vec_env(lambda: make(options.task), LANES, seed=options.seed + 1000)
    returns, _ = evaluate_policy(
        model, judged, options.episodes, deterministic=False, return_episode_rewards=True
    )
    row = {"mean": float(np.mean(returns)), "steps": model.num_timesteps, "seconds": seconds}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
