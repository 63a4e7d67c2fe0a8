"""sb3-contrib's RecurrentPPO as a peer, on the tasks of `benchmarks/memory_tasks.py`.

It trains until its last 100 episodes reach the goal, for `--seconds`, or as many steps as the zoo
does with the zoo's settings, and is then judged by sampled episodes. The clock starts when training
starts.

    benchmarks/.venv/bin/python benchmarks/peers/sb3_memory.py --task cartpole --seed 1
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import fmean
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
#: Those of `examples/memory`: its network, with an LSTM, which RecurrentPPO has, for the GRU.
OURS: dict[str, Any] = {
    "n_steps": 64,
    "batch_size": 256,
    "gamma": 0.98,
    "n_epochs": 8,
    "max_grad_norm": 0.5,
    "policy_kwargs": {
        "lstm_hidden_size": 64,
        "shared_lstm": True,
        "enable_critic_lstm": False,
        "net_arch": {"pi": [64], "vf": [64]},
    },
}
#: The zoo has no T-maze: longer rollouts, and the entropy and λ of our example.
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("cartpole", "zoo"): ZOO,
    ("tmaze", "zoo"): ZOO | {"n_steps": 64, "gae_lambda": 0.95, "ent_coef": 0.01},
    ("cartpole", "ours"): OURS | {"gae_lambda": 0.9},
    ("tmaze", "ours"): OURS | {"gae_lambda": 0.95, "ent_coef": 0.01, "learning_rate": 2e-3},
}
GOALS = {"cartpole": 480.0, "tmaze": 0.95}
#: Steps at most and lanes; ours end by the clock alone.
SIZES = {"zoo": (100_000, 8), "ours": (10_000_000, 16)}


def make(task: str, scale: float = 1.0) -> gymnasium.Env[Any, Any]:
    if task == "tmaze":
        from tmaze import TMaze

        return TMaze()
    from positions import Positions

    environment = Positions(gymnasium.make("CartPole-v1"))
    return gymnasium.wrappers.TransformReward(environment, lambda reward: scale * reward)


def main() -> None:
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=GOALS, required=True)
    parser.add_argument("--settings", choices=SIZES, default="zoo")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings, goal = SETTINGS[options.task, options.settings], GOALS[options.task]
    steps, count = SIZES[options.settings]
    scale = 0.05 if options.settings == "ours" and options.task == "cartpole" else 1.0

    def made(scale: float, seed: int) -> Any:
        return make_vec_env(lambda: make(options.task, scale), count, seed=seed)

    lanes, judged = made(scale, options.seed), made(1.0, options.seed + 1000)
    if scale != 1.0:
        lanes = VecNormalize(lanes, norm_reward=False)
        judged = VecNormalize(judged, training=False, norm_reward=False)
        judged.obs_rms = lanes.obs_rms
    began = time.perf_counter()
    if scale != 1.0:
        # As ours, by the clock.
        settings |= {
            "learning_rate": lambda _: (
                2e-3 * max(0.0, 1.0 - (time.perf_counter() - began) / options.seconds)
            )
        }
    model = RecurrentPPO("MlpLstmPolicy", lanes, seed=options.seed, device="cpu", **settings)
    began = time.perf_counter()

    def goes_on(*_: Any) -> bool:
        returns = [episode["r"] / scale for episode in model.ep_info_buffer or ()]
        reached = len(returns) == 100 and fmean(returns) >= goal
        return not reached and time.perf_counter() - began < options.seconds

    model.learn(steps, callback=goes_on)
    seconds = time.perf_counter() - began
    returns, _ = evaluate_policy(
        model, judged, options.episodes, deterministic=False, return_episode_rewards=True
    )
    row = {"mean": float(np.mean(returns)), "steps": model.num_timesteps, "seconds": seconds}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
