"""Stable-Baselines3 or SBX for some seconds, by a plan of benchmarks/peer_settings.py; or chance.

It prints a JSON object: the mean return and deviation of sampled episodes with the last weights,
steps, seconds, and the curve: seconds since training began, steps, and the mean return of the last
100 training episodes. It takes the peers' environment:

    benchmarks/.venv/bin/python studies/environments/peers/train.py sb3 plan.json \\
        --seconds 20 --seed 1 --episodes 100
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

#: Threads of torch: small networks are slower with two, convolutions are not.
_THREADS = {False: 1, True: 2}

#: A curve has this many points.
POINTS = 40

#: Packages that make environments once they are imported, by the beginning of an id.
PACKAGES = {"MiniGrid-": "minigrid", "highway-": "highway_env", "MinAtar/": "minatar.gym"}


class FrameSkip(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes each action so many times, and adds up the rewards."""

    def __init__(self, environment: gymnasium.Env[Any, Any], skip: int) -> None:
        super().__init__(environment)
        self.skip = skip

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self.skip):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


def make(plan: dict[str, Any], learns: bool = True) -> gymnasium.Env[Any, Any]:
    """One environment, with Monitor below all that changes rewards."""
    from stable_baselines3.common.monitor import Monitor

    for beginning, package in PACKAGES.items():
        if plan["id"].startswith(beginning):
            module = importlib.import_module(package)
            if package == "minatar.gym" and plan["id"] not in gymnasium.registry:
                module.register_envs()
    if ":" in plan["id"]:
        module_name, _, name = plan["id"].partition(":")
        made = getattr(importlib.import_module(module_name), name, None)
        environment = made(**plan["options"]) if made else gymnasium.make(plan["id"])
    else:
        environment = gymnasium.make(plan["id"], **plan["options"])
    if plan["frame_skip"] > 1:
        environment = FrameSkip(environment, plan["frame_skip"])
    environment = Monitor(environment)
    for wrapper in plan["wrappers"]:
        where, _, name = wrapper["name"].rpartition(":")
        wraps = getattr(importlib.import_module(where or "gymnasium.wrappers"), name)
        options = wrapper.get("options", {}).items()
        given = {key: tuple(each) if isinstance(each, list) else each for key, each in options}
        environment = wraps(environment, **given)
    space, normalized = environment.observation_space, plan["normalize_observations"]
    numbers = isinstance(space, gymnasium.spaces.Box)
    if isinstance(space, gymnasium.spaces.Dict) or (normalized and not numbers):
        from genkidama.learning.observations import Flat  # what our own networks see

        environment = Flat(environment)
    if plan["convolutions"]:
        environment = _channels_first(environment)
    scale, limit = plan["reward_scale"], plan["clip_rewards"] or np.inf
    if learns and (scale != 1.0 or limit < np.inf):
        environment = gymnasium.wrappers.TransformReward(
            environment, lambda reward: float(np.clip(reward * scale, -limit, limit))
        )
    return environment


def _channels_first(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Images of floats in [0, 1], as (channels, height, width)."""
    space: Any = environment.observation_space
    order = (2, 0, 1) if space.shape[-1] == min(space.shape) else (0, 1, 2)
    most = 255.0 if space.dtype == np.uint8 else 1.0
    shape = tuple(space.shape[axis] for axis in order)
    return gymnasium.wrappers.TransformObservation(
        environment,
        lambda image: np.transpose(np.asarray(image, np.float32) / np.float32(most), order),
        gymnasium.spaces.Box(0.0, 1.0, shape, np.float32),
    )


def extractor(convolutions: Any) -> Any:
    """Our convolutions as Stable-Baselines3's features: each with ReLU, then flat."""
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Convolutions(BaseFeaturesExtractor):  # type: ignore[misc]
        def __init__(self, space: Any) -> None:
            given = convolutions
            if given == "auto":
                given = [[16, 3, 1]] if min(space.shape[1:]) < 36 else [[16, 8, 4], [32, 4, 2]]
            layers: list[Any] = []
            before = space.shape[0]
            for channels, kernel, stride in given:
                layers += [torch.nn.Conv2d(before, channels, kernel, stride), torch.nn.ReLU()]
                before = channels
            body = torch.nn.Sequential(*layers, torch.nn.Flatten())
            with torch.no_grad():
                size = body(torch.zeros(1, *space.shape)).shape[1]
            super().__init__(space, size)
            self.body = body

        def forward(self, images: Any) -> Any:
            return self.body(images)

    return Convolutions


def policy_kwargs(plan: dict[str, Any], jax: bool) -> dict[str, Any]:
    given = dict(plan["policy_kwargs"])
    if (name := given.pop("activation", None)) is not None:
        functions: Any = importlib.import_module("flax.linen" if jax else "torch.nn")
        names = {"relu": "ReLU", "gelu": "GELU", "tanh": "Tanh", "elu": "ELU", "silu": "SiLU"}
        given["activation_fn"] = getattr(functions, name if jax else names[name])
    if plan["convolutions"]:
        given["features_extractor_class"] = extractor(plan["convolutions"])
        given["normalize_images"] = False
    return given


def _accepted(function: Any, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Arguments that it takes, and the names of those that it does not."""
    import inspect

    names = inspect.signature(function.__init__).parameters
    return {k: v for k, v in given.items() if k in names}, [k for k in given if k not in names]


def train(program: str, plan: dict[str, Any], seconds: float, seed: int) -> Any:
    """A model that has learned, its environments, and figures of the training."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

    jax = program == "sbx"
    torch.set_num_threads(_THREADS[plan["policy"] == "CnnPolicy" or bool(plan["convolutions"])])
    environments: Any = DummyVecEnv([lambda: make(plan)] * plan["environments"])
    environments.seed(seed)
    if plan["frame_stack"] > 1:
        environments = VecFrameStack(environments, plan["frame_stack"])
    observations, rewards = plan["normalize_observations"], plan["normalize_rewards"]
    settings = dict(plan["settings"])
    if observations or rewards:
        environments = VecNormalize(
            environments,
            norm_obs=observations,
            norm_reward=rewards,
            gamma=settings.get("gamma", 0.99),
        )

    begin = time.monotonic()

    def done() -> float:
        """The share of the run that has passed."""
        by_time = (time.monotonic() - begin) / seconds
        return min(1.0, max(by_time, clock.num_timesteps / (plan["steps"] or np.inf)))

    def falling(first: float, last: float, share: float) -> Callable[[float], float]:
        return lambda _: first + (last - first) * min(1.0, done() / share)

    class Clock(BaseCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.curve: list[tuple[float, int, float]] = []
            self.next = 0.0

        def _on_rollout_start(self) -> None:
            if (fall := plan["falls"].get("ent_coef")) is not None:
                self.model.ent_coef = falling(*fall)(0.0)

        def _on_step(self) -> bool:
            passed = time.monotonic() - begin
            returns = [episode["r"] for episode in self.model.ep_info_buffer]
            mean = float(np.mean(returns)) if returns else None
            if passed >= self.next and mean is not None:
                self.next = passed + seconds / POINTS
                steps = self.num_timesteps * plan["frame_skip"]
                self.curve.append((round(passed, 2), steps, round(mean, 3)))
            goal = plan["mean_return"]
            solved = goal is not None and len(returns) == 100 and mean >= goal
            return bool(done() < 1.0 and not solved)

    clock = Clock()
    for name in ("learning_rate", "clip_range"):
        if (fall := plan["falls"].get(name)) is not None:
            settings[name] = falling(*fall)
    module = importlib.import_module("sbx" if jax else "stable_baselines3")
    algorithm = getattr(module, plan["algorithm"])
    settings, left_out = _accepted(algorithm, settings)
    kwargs = policy_kwargs(plan, jax)
    if jax:
        policy = algorithm.policy_aliases["MlpPolicy"]
        kwargs, more = _accepted(policy, kwargs)
        left_out += more
    else:
        settings["device"] = "cpu"
    model = algorithm(plan["policy"], environments, seed=seed, policy_kwargs=kwargs, **settings)
    if (fall := plan["falls"].get("exploration")) is not None:
        model.exploration_schedule = falling(*fall)
    begin = time.monotonic()
    model.learn(10**9, callback=clock)
    found = {
        "seconds": round(time.monotonic() - begin, 2),
        "steps": model.num_timesteps * plan["frame_skip"],
        "curve": clock.curve,
        "left_out": [*plan["left_out"], *left_out],
    }
    return model, environments, found


def judge(
    model: Any, plan: dict[str, Any], trained: Any, seed: int, episodes: int
) -> dict[str, float]:
    """Mean and deviation of the returns of sampled episodes; of the best actions with DQN, as of
    ours."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

    count = min(10, episodes)
    environments: Any = DummyVecEnv([lambda: make(plan, learns=False)] * count)
    environments.seed(seed)
    if plan["frame_stack"] > 1:
        environments = VecFrameStack(environments, plan["frame_stack"])
    if plan["normalize_observations"]:
        environments = VecNormalize(environments, training=False, norm_reward=False)
        environments.obs_rms = trained.obs_rms

    def predict(*given: Any, **named: Any) -> Any:
        if getattr(model, "use_sde", False):  # else all episodes have the noise of the last update
            model.policy.reset_noise(count)
        return model.predict(*given, **named)

    player: Any = SimpleNamespace(predict=predict)
    greedy = plan["algorithm"] == "DQN"
    mean, std = evaluate_policy(player, environments, episodes, deterministic=greedy)
    return {"mean": float(mean), "std": float(std)}


def chance(plan: dict[str, Any], seed: int, episodes: int) -> dict[str, float]:
    """The same of uniformly random actions."""
    environment = make(plan, learns=False)
    environment.action_space.seed(seed)
    returns = []
    for number in range(episodes):
        environment.reset(seed=seed if number == 0 else None)
        total, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, _ = environment.step(
                environment.action_space.sample()
            )
            total += float(reward)
            ended = terminated or truncated
        returns.append(total)
    return {"mean": float(np.mean(returns)), "std": float(np.std(returns))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=("sb3", "sbx", "random"))
    parser.add_argument("plan", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=100)
    options = parser.parse_args()
    plan = json.loads(options.plan.read_text())
    if options.program == "random":
        found: dict[str, Any] = chance(plan, options.seed + 1000, options.episodes)
    else:
        model, environments, found = train(options.program, plan, options.seconds, options.seed)
        found |= judge(model, plan, environments, options.seed + 1000, options.episodes)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
