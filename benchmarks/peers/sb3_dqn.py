"""Stable-Baselines3's DQN as a peer, with the settings that its zoo publishes.

It trains as many steps as the zoo does. At most every `--every` seconds its network is set aside;
the time for this does not count. Afterwards these are judged in their order by greedy episodes: 20
each, and `--episodes` where these come near the goal. The result is the clock when the first
network with a mean of at least the goal existed, and the means of the last and of the best one.

The clock starts when training starts; start-up is reported beside it. `render_mode=None` is
explicit: otherwise LunarLander is five to eight times slower.

    benchmarks/.venv/bin/python benchmarks/peers/sb3_dqn.py learn --task lunarlander --seed 1
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

# Before anything that loads a BLAS; torch's own threads are set by --threads.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import gymnasium
import numpy as np
import numpy.typing as npt
from sb3 import age

Array = npt.NDArray[np.float32]

#: From rl-baselines3-zoo, hyperparams/dqn.yml: environment, steps, goal and settings. The zoo has
#: LunarLander-v2 alone; v3 differs only in mended physics.
TASKS: dict[str, tuple[str, int, float, dict[str, Any]]] = {
    "lunarlander": (
        "LunarLander-v3",
        100_000,
        200.0,
        {
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "gamma": 0.99,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_fraction": 0.12,
            "exploration_final_eps": 0.1,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    "cartpole": (
        "CartPole-v1",
        50_000,
        475.0,
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
}

#: A network comes near the goal within so much, by a short look.
NEAR = 30.0


def train(options: argparse.Namespace) -> tuple[list[tuple[float, int, Any]], dict[str, Any]]:
    """The networks set aside, each with its time and its steps, and figures of the training."""
    import stable_baselines3
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback

    torch.set_num_threads(options.threads)
    name, steps, _, settings = TASKS[options.task]
    kept: list[tuple[float, int, Any]] = []

    class Keeper(BaseCallback):  # type: ignore[misc]
        begin = 0.0
        excluded = 0.0
        due = 0.0

        def seconds(self) -> float:
            return time.perf_counter() - self.begin - self.excluded

        def keep(self) -> None:
            begin = time.perf_counter()
            layers = [layer for layer in self.model.q_net.q_net if hasattr(layer, "weight")]
            copies = [
                (layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy())
                for layer in layers
            ]
            kept.append((self.seconds(), self.num_timesteps, copies))
            self.excluded += time.perf_counter() - begin

        def _on_training_start(self) -> None:
            self.begin = time.perf_counter()

        def _on_step(self) -> bool:
            if self.seconds() >= self.due:
                self.keep()
                self.due = self.seconds() + options.every
            return self.seconds() < float(options.limit)

    environment = gymnasium.make(name, render_mode=None)
    model = DQN("MlpPolicy", environment, seed=options.seed, device="cpu", verbose=0, **settings)
    keeper = Keeper()
    start_up = age()
    model.learn(steps, callback=keeper)
    keeper.keep()
    environment.close()
    return kept, {
        "peer": "Stable-Baselines3 DQN",
        "version": stable_baselines3.__version__,
        "task": options.task,
        "threads": options.threads,
        "seed": options.seed,
        "startup_seconds": start_up,
        "seconds": kept[-1][0],
        "steps": kept[-1][1],
    }


def play(name: str, layers: list[tuple[Array, Array]], seeds: list[int]) -> list[float]:
    """The undiscounted return of one greedy episode for each seed."""
    environment = gymnasium.make(name, render_mode=None)
    found = []
    for seed in seeds:
        values, _ = environment.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            for weight, bias in layers[:-1]:
                values = np.maximum(values @ weight + bias, 0.0)
            action = int((values @ layers[-1][0] + layers[-1][1]).argmax())
            values, reward, terminated, truncated, _ = environment.step(action)
            total += float(reward)
            over = terminated or truncated
        found.append(total)
    environment.close()
    return found


def judge(kept: list[tuple[float, int, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """The first network that reaches the goal, the last one, and the best of all."""
    name, _, goal, _ = TASKS[options.task]
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:

        def mean(layers: Any, first: int, episodes: int) -> tuple[float, float]:
            seeds = [first + options.seed * 10_000 + episode for episode in range(episodes)]
            shares = [seeds[core::cores] for core in range(cores)]
            returns = np.concatenate(list(pool.map(play, [name] * cores, [layers] * cores, shares)))
            return float(returns.mean()), float(returns.std())

        short = [mean(layers, 2_000_000, 20)[0] for _, _, layers in kept]
        reached = None
        for (seconds, steps, layers), look in zip(kept, short, strict=True):
            if look >= goal - NEAR:
                found, std = mean(layers, 1_000_000, options.episodes)
                if found >= goal:
                    reached = {"seconds": seconds, "steps": steps, "mean": found, "std": std}
                    break
        best = kept[int(np.argmax(short))]
        return {
            "episodes": options.episodes,
            "reached": {str(round(goal)): reached},
            "final": mean(kept[-1][2], 1_000_000, options.episodes),
            "best": mean(best[2], 1_000_000, options.episodes),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = parser.add_subparsers(dest="mode", required=True)
    learn = modes.add_parser("learn", help="seconds until DQN has learned")
    learn.add_argument("--task", choices=TASKS, default="lunarlander")
    learn.add_argument("--limit", type=float, default=600.0, help="seconds of training at most")
    learn.add_argument("--every", type=float, default=2.0, help="seconds between two networks")
    learn.add_argument("--episodes", type=int, default=500, help="episodes that judge a network")
    learn.add_argument("--seed", type=int, default=0)
    learn.add_argument("--threads", type=int, default=2, help="torch's threads (default 2)")
    options = parser.parse_args()
    kept, facts = train(options)
    print(json.dumps(facts | judge(kept, options)))


if __name__ == "__main__":
    main()
