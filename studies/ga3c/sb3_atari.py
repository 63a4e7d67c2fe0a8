"""Stable-Baselines3's A2C on Atari as a peer: environment steps a second while it trains.

The settings are the zoo's for Atari (hyperparams/a2c.yml: 16 environments, 5 steps, entropy 0.01,
value 0.25, RMSprop as TensorFlow's). The network is GA3C's, `--width` times as wide. Gymnasium's
preprocessing runs in `SubprocVecEnv`, a process for each environment.

Run it with the peers' environment (`make peers`). It prints one JSON object:

    benchmarks/.venv/bin/python studies/ga3c/sb3_atari.py --game Pong --seconds 20 --threads 1
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

# Before anything that loads a BLAS; torch's own threads are set by --threads.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import gymnasium
import torch
from torch import nn


def make_environment(game: str) -> gymnasium.Env[Any, Any]:
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)
    environment = gymnasium.make(
        f"ALE/{game}-v5",
        frameskip=1,
        repeat_action_probability=0.0,
        disable_env_checker=True,
        render_mode=None,
    )
    environment = gymnasium.wrappers.AtariPreprocessing(environment)
    return gymnasium.wrappers.FrameStackObservation(environment, 4)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--environments", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default 1)")
    options = parser.parse_args()

    import stable_baselines3
    from stable_baselines3 import A2C
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import SubprocVecEnv

    torch.set_num_threads(options.threads)

    class Document(BaseFeaturesExtractor):  # type: ignore[misc]
        """The trunk of GA3C's network; SB3 scales images to [0, 1] before it."""

        def __init__(self, space: gymnasium.spaces.Box, width: int) -> None:
            super().__init__(space, 256 * width)
            self.layers = nn.Sequential(
                nn.Conv2d(4, 16 * width, 8, 4, padding=2),
                nn.ReLU(),
                nn.ZeroPad2d((1, 2, 1, 2)),
                nn.Conv2d(16 * width, 32 * width, 4, 2),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(32 * width * 121, 256 * width),
                nn.ReLU(),
            )

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return self.layers(observations)

    class Meter(BaseCallback):  # type: ignore[misc]
        rollouts = steps_before = 0
        begin = rate = 0.0

        def _on_rollout_start(self) -> None:
            self.rollouts += 1
            if self.rollouts == 4:
                self.begin, self.steps_before = time.perf_counter(), self.num_timesteps

        def _on_step(self) -> bool:
            if self.rollouts < 4 or time.perf_counter() - self.begin < options.seconds:
                return True
            self.rate = (self.num_timesteps - self.steps_before) / (
                time.perf_counter() - self.begin
            )
            return False

    environments = SubprocVecEnv(
        [lambda: make_environment(options.game)] * options.environments, start_method="forkserver"
    )
    model = A2C(
        "CnnPolicy",
        environments,
        n_steps=5,
        ent_coef=0.01,
        vf_coef=0.25,
        learning_rate=7e-4,
        device="cpu",
        policy_kwargs={
            "features_extractor_class": Document,
            "features_extractor_kwargs": {"width": options.width},
            "net_arch": [],
            "optimizer_class": RMSpropTFLike,
            "optimizer_kwargs": {"eps": 1e-5},
            "ortho_init": options.width < 16,  # minutes for the largest, and of no consequence here
        },
    )
    meter = Meter()
    model.learn(10**9, callback=meter)
    environments.close()
    result = {
        "peer": "Stable-Baselines3 A2C",
        "version": stable_baselines3.__version__,
        "environments": options.environments,
        "threads": options.threads,
        "parameters": sum(parameter.numel() for parameter in model.policy.parameters()),
        "steps_per_second": meter.rate,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
