"""Stable-Baselines3's PPO for a number of seconds, with the settings of its zoo (ppo.yml).

Run with the peers' environment; one JSON object is printed:

    benchmarks/.venv/bin/python studies/environments/peers/sb3.py Acrobot-v1 --seconds 20
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize

sys.path.append(str(Path(__file__).resolve().parents[3]))

from benchmarks.peers.sb3 import TASKS

#: Of each environment: how many are played at once, whether VecNormalize is around them, and
#: settings. Rates and clip ranges that fall in the zoo fall with `FALLING` steps here.
ZOO: dict[str, tuple[int, bool, dict[str, Any]]] = {
    **{each.environment: (each.environments, False, each.settings) for each in TASKS.values()},
    "Acrobot-v1": (
        16,
        True,
        {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
    ),
    "MountainCarContinuous-v0": (
        1,
        True,
        {
            "batch_size": 256,
            "n_steps": 8,
            "gamma": 0.9999,
            "learning_rate": 7.77e-05,
            "ent_coef": 0.00429,
            "clip_range": 0.1,
            "n_epochs": 10,
            "gae_lambda": 0.9,
            "max_grad_norm": 5,
            "vf_coef": 0.19,
            "use_sde": True,
            "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
        },
    ),
    "BipedalWalker-v3": (
        32,
        True,
        {
            "n_steps": 2048,
            "batch_size": 64,
            "gae_lambda": 0.95,
            "gamma": 0.999,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 3e-4,
            "clip_range": 0.18,
        },
    ),
}
#: Where the zoo has none: the defaults, in so many environments.
DEFAULT: tuple[int, bool, dict[str, Any]] = (8, False, {})
#: Steps in which the zoo's rate and clip range fall to 0.
FALLING = {each.environment: each.falling for each in TASKS.values() if each.falling}


class Clock(BaseCallback):
    """Ends training after some seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.end = time.monotonic() + seconds

    def _on_step(self) -> bool:
        return time.monotonic() < self.end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=100)
    options = parser.parse_args()
    count, normalized, settings = ZOO.get(options.environment, DEFAULT)
    if options.environment.startswith("MinAtar/"):
        import minatar.gym

        minatar.gym.register_envs()
    steps = FALLING.get(options.environment, 10**9)
    if options.environment in FALLING:
        settings = settings | {
            key: (lambda left, value=settings[key]: left * value)
            for key in ("learning_rate", "clip_range")
        }
    kind = {"render_mode": None}
    environments: Any = make_vec_env(
        options.environment, n_envs=count, seed=options.seed, env_kwargs=kind
    )
    if normalized:
        environments = VecNormalize(environments, gamma=settings["gamma"])
    model = PPO("MlpPolicy", environments, seed=options.seed, device="cpu", **settings)
    model.learn(steps, callback=Clock(options.seconds))
    judged: Any = make_vec_env(
        options.environment,
        n_envs=1,
        seed=options.seed + 1000,
        wrapper_class=Monitor,
        env_kwargs=kind,
    )
    if normalized:
        judged = VecNormalize(judged, training=False, norm_reward=False)
        judged.obs_rms = environments.obs_rms
    mean, std = evaluate_policy(
        model, judged, n_eval_episodes=options.episodes, deterministic=False
    )
    found = {"mean": float(mean), "std": float(std), "steps": model.num_timesteps}
    print(json.dumps(found | {"gymnasium": gymnasium.__version__}))


if __name__ == "__main__":
    main()
