"""Stable-Baselines3 as a peer, with the settings that its zoo publishes.

`speed`: environment steps a second of A2C with 8 environments in one process while it trains, from
its second rollout on.

`learn`: PPO trains by the clock. At most every `--every` seconds its policy is set aside, when a
rollout begins, which is as soon as its weights exist. The time for this does not count. Training
ends when the mean return of its last 100 episodes reaches `--until-mean`, or at the time limit.
Then the policies are judged in their order by 500 episodes with sampled actions, spread over the
cores.
The result is the clock when the first policies with a mean of at least 200 and 250 existed. A
policy is not judged for a goal if the training mean had not come within `--scan-margin` of it.
`--ours` has it learn with the settings of `examples/lunarlander/lunarlander.toml` instead.
`--task` chooses another environment than LunarLander; its policies are not judged, and the clock
stands for the training mean alone.

The clock starts when training starts; start-up is reported beside it. `render_mode=None` is
explicit: otherwise `make_vec_env` asks for rendering, which makes LunarLander five to eight times
slower. NumPy plays the policies, with the same distribution as their torch modules.

Run with the peers' environment (`make peers`); one JSON object is printed:

    benchmarks/.venv/bin/python benchmarks/peers/sb3.py speed --seconds 20 --pin 0
    benchmarks/.venv/bin/python benchmarks/peers/sb3.py learn --seed 1 --threads 1 --limit 600
    benchmarks/.venv/bin/python benchmarks/peers/sb3.py learn --seed 1 --subprocesses
    benchmarks/.venv/bin/python benchmarks/peers/sb3.py learn --seed 1 --envpool
    benchmarks/.venv/bin/python benchmarks/peers/sb3.py learn --seed 1 --ours --every 0
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before anything that loads a BLAS; torch's own threads are set by --threads.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import gymnasium
import numpy as np
import numpy.typing as npt

ENVIRONMENT = "LunarLander-v3"

_ROOT = Path(__file__).resolve().parents[2]

#: From rl-baselines3-zoo, hyperparams/a2c.yml and ppo.yml. The zoo has LunarLander-v2 alone; v3
#: differs only in mended physics.
A2C_SETTINGS: dict[str, Any] = {"gamma": 0.995, "n_steps": 5, "ent_coef": 1e-5}
A2C_ENVIRONMENTS, A2C_RATE = 8, 0.00083
LUNAR_LANDER: dict[str, Any] = {
    "n_steps": 1024,
    "batch_size": 64,
    "gae_lambda": 0.98,
    "gamma": 0.999,
    "n_epochs": 4,
    "ent_coef": 0.01,
}


@dataclass
class Task:
    """What PPO learns, and how."""

    environment: str
    environments: int
    goals: tuple[int, ...]
    settings: dict[str, Any]
    #: Whether the learning rate and the clip range fall to 0 over so many steps; 0 if they stay.
    falling: int = 0


TASKS = {
    "lunarlander": Task(ENVIRONMENT, 16, (200, 250), LUNAR_LANDER),
    "continuous": Task("LunarLanderContinuous-v3", 16, (200, 250), LUNAR_LANDER),
    "cartpole": Task(
        "CartPole-v1",
        8,
        (475,),
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "learning_rate": 0.001,
            "clip_range": 0.2,
        },
        falling=100_000,
    ),
    "pendulum": Task(
        "Pendulum-v1",
        4,
        (-200,),
        {
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
    ),
}

Array = npt.NDArray[np.float32]


@dataclass
class Policy:
    """The acting half of an actor-critic at one moment of training."""

    seconds: float
    steps: int
    #: Mean return of the last 100 training episodes, as it was known when these weights came to be.
    training_mean: float | None
    #: Weight and bias of each layer, the first to the last.
    layers: list[tuple[Array, Array]]


def age() -> float:
    """Seconds since this process was created."""
    with open("/proc/self/stat", encoding="ascii") as file:
        created = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - created


def our_settings() -> dict[str, Any]:
    """Those of `lunarlander.toml`, as a plan of `benchmarks/peer_settings.py`."""
    sys.path.append(str(_ROOT))
    from benchmarks.peer_settings import our_plan
    from genkidama.config.experiment import Experiment

    return our_plan(Experiment.load(_ROOT / "examples/lunarlander/lunarlander.toml"))


def vector_environment(
    count: int,
    seed: int,
    subprocesses: bool = False,
    environment: str = ENVIRONMENT,
    reward_scale: float = 1.0,
) -> Any:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    kind = SubprocVecEnv if subprocesses else DummyVecEnv
    scaled: dict[str, Any] = {}
    if reward_scale != 1.0:  # around the monitor, which notes returns
        scaled["wrapper_class"] = gymnasium.wrappers.TransformReward
        scaled["wrapper_kwargs"] = {"func": lambda reward: reward * reward_scale}
    return make_vec_env(
        environment,
        n_envs=count,
        seed=seed,
        env_kwargs={"render_mode": None},
        vec_env_cls=kind,
        **scaled,
    )


def pool(count: int, seed: int) -> Any:
    """EnvPool's LunarLander with one thread, as environments of Stable-Baselines3's.

    As in EnvPool's own example, an environment is reset in the step that ends its episode.
    """
    import envpool
    from stable_baselines3.common.vec_env import VecEnvWrapper, VecMonitor

    class Adapter(VecEnvWrapper):  # type: ignore[misc]
        def reset(self) -> Any:
            return self.venv.reset()[0]

        def step_async(self, actions: Any) -> None:
            self.actions = actions

        def step_wait(self) -> Any:
            observations, rewards, terminated, truncated, _ = self.venv.step(self.actions)
            infos: list[dict[str, Any]] = [{} for _ in range(count)]
            ended = np.flatnonzero(terminated | truncated).astype(np.int32)
            if len(ended):
                for lane in ended:
                    infos[lane]["terminal_observation"] = observations[lane].copy()
                    infos[lane]["TimeLimit.truncated"] = bool(truncated[lane])
                observations[ended] = self.venv.reset(ended)[0]
            return observations, rewards, terminated | truncated, infos

        def seed(self, seed: int | None = None) -> list[None]:
            return [None] * count  # it has one since it was made

    environments = envpool.make_gymnasium(
        ENVIRONMENT,
        num_envs=count,
        num_threads=1,
        seed=list(range(seed * count, (seed + 1) * count)),
    )
    return VecMonitor(Adapter(environments))


def measure_speed(seconds: float, seed: int, threads: int) -> dict[str, Any]:
    import stable_baselines3
    import torch
    from stable_baselines3 import A2C
    from stable_baselines3.common.callbacks import BaseCallback

    torch.set_num_threads(threads)

    class Meter(BaseCallback):  # type: ignore[misc]
        rollouts = 0
        begin = 0.0
        steps_before = 0
        rate = 0.0

        def _on_rollout_start(self) -> None:
            self.rollouts += 1
            if self.rollouts == 2:
                self.begin, self.steps_before = time.perf_counter(), self.num_timesteps

        def _on_step(self) -> bool:
            if self.rollouts < 2 or time.perf_counter() - self.begin < seconds:
                return True
            self.rate = (self.num_timesteps - self.steps_before) / (
                time.perf_counter() - self.begin
            )
            return False

    environments = vector_environment(A2C_ENVIRONMENTS, seed)
    model = A2C(
        "MlpPolicy",
        environments,
        learning_rate=lambda left: A2C_RATE * left,
        seed=seed,
        device="cpu",
        verbose=0,
        **A2C_SETTINGS,
    )
    meter = Meter()
    model.learn(10**9, callback=meter)
    environments.close()
    return {
        "peer": "Stable-Baselines3 A2C",
        "version": stable_baselines3.__version__,
        "environments": A2C_ENVIRONMENTS,
        "threads": threads,
        "cores": len(os.sched_getaffinity(0)),
        "seconds": seconds,
        "steps_per_second": meter.rate,
    }


def train(options: argparse.Namespace) -> tuple[list[Policy], dict[str, Any]]:
    """Trains by the clock.

    Returns:
        The policies set aside, the last one included, and figures of the training.
    """
    import stable_baselines3
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    torch.set_num_threads(options.threads)
    task = TASKS[options.task]
    count = options.environments or task.environments
    settings = dict(task.settings)
    if task.falling:
        for name in ("learning_rate", "clip_range"):
            settings[name] = lambda left, first=settings[name]: first * left
    # The zoo has 10⁶ steps for LunarLander. Here the clock ends it; nothing else depends on them.
    steps, scale, falls = task.falling or 10_000_000, 1.0, {}
    if options.ours:
        plan = our_settings()
        count, steps, scale = plan["environments"], plan["steps"], plan["reward_scale"]
        settings = plan["settings"] | {"policy_kwargs": our_network(plan["policy_kwargs"])}
        falls = {name: falling(*fall) for name, fall in plan["falls"].items()}
        settings["learning_rate"] = falls["learning_rate"]

    class Keeper(BaseCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.policies: list[Policy] = []
            self.passed: dict[str, float] = {}
            self.mean: float | None = None
            self.best = -np.inf
            self.begin = 0.0
            self.excluded = 0.0
            self.due = 0.0
            #: When the weights in use came to be.
            self.since = 0.0

        def seconds(self) -> float:
            return time.perf_counter() - self.begin - self.excluded

        def keep(self) -> None:
            begin = time.perf_counter()
            self.policies.append(
                Policy(self.since, self.num_timesteps, self.mean, acting_layers(self.model.policy))
            )
            self.excluded += time.perf_counter() - begin

        def _on_training_start(self) -> None:
            self.begin = time.perf_counter()

        def _on_rollout_start(self) -> None:
            if "ent_coef" in falls:
                self.model.ent_coef = falls["ent_coef"](1.0 - self.num_timesteps / steps)
            # The weights are new now, and stay as they are until the next rollout begins.
            self.since = self.seconds()
            if self.since >= self.due:
                self.keep()
                self.due = (
                    (self.since // options.every + 1) * options.every if options.every else 0.0
                )

        def _on_step(self) -> bool:
            if not self.locals["dones"].any():
                return True
            # The episodes that end with this step are noted only after it. That is one step in
            # sixteen thousand late.
            episodes = self.model.ep_info_buffer
            if len(episodes) == episodes.maxlen:
                self.mean = float(np.mean([episode["r"] for episode in episodes]))
                self.best = max(self.best, self.mean)
                for goal in task.goals:
                    if self.mean >= goal:
                        self.passed.setdefault(str(goal), self.seconds())
            learned = self.mean is not None and self.mean >= options.until_mean
            return not learned and self.seconds() < float(options.limit)

        def _on_rollout_end(self) -> None:
            self.since = np.inf  # the weights are about to change

        def _on_training_end(self) -> None:
            self.ended = self.seconds()
            self.since = min(self.since, self.ended)
            if self.policies[-1].seconds < self.since:
                self.keep()

    if options.envpool:
        environments = pool(count, options.seed)
    else:
        environments = vector_environment(
            count, options.seed, options.subprocesses, task.environment, scale
        )
    model = PPO("MlpPolicy", environments, seed=options.seed, device="cpu", verbose=0, **settings)
    keeper = Keeper()
    if options.told:
        print("ready", flush=True)
        input()
    startup = age()
    model.learn(steps, callback=keeper)
    if options.told:
        print("trained", flush=True)
    environments.close()
    facts = {
        "peer": "Stable-Baselines3 PPO",
        "version": stable_baselines3.__version__,
        "task": options.task,
        "ours": options.ours,
        "envpool": options.envpool,
        "environments": count,
        "processes": count + 1 if options.subprocesses else 1,
        "threads": options.threads,
        "cores": len(os.sched_getaffinity(0)),
        "seed": options.seed,
        "startup_seconds": startup,
        "seconds": keeper.ended,
        "steps": model.num_timesteps,
        "steps_per_second": model.num_timesteps / keeper.ended,
        "excluded_seconds": keeper.excluded,
        "training_mean": keeper.mean,
        "best_training_mean": keeper.best if np.isfinite(keeper.best) else None,
        "training_mean_passed": {str(goal): keeper.passed.get(str(goal)) for goal in task.goals},
        "curve": [
            [round(policy.seconds, 2), policy.steps, policy.training_mean]
            for policy in keeper.policies
        ],
    }
    return keeper.policies, facts


def falling(first: float, last: float, share: float) -> Callable[[float], float]:
    """Of the share of the steps that is left: from `first` to `last` within `share` of them."""
    return lambda left: first + (last - first) * min(1.0, (1.0 - left) / share)


def our_network(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the policy, with tanh, which `play` has, too."""
    assert given["activation"] == "tanh"
    return {name: value for name, value in given.items() if name != "activation"}


def acting_layers(policy: Any) -> list[tuple[Array, Array]]:
    """Copies the policy half of SB3's `MlpPolicy`: linear layers with tanh between, then logits."""
    from torch import nn

    linear = [
        module for module in policy.mlp_extractor.policy_net if isinstance(module, nn.Linear)
    ] + [policy.action_net]
    return [
        (layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy())
        for layer in linear
    ]


def logits(layers: list[tuple[Array, Array]], observations: Array) -> Array:
    for weight, bias in layers[:-1]:
        observations = np.tanh(observations @ weight + bias)
    weight, bias = layers[-1]
    return observations @ weight + bias


def play(
    layers: list[tuple[Array, Array]], seeds: list[int], side_by_side: int = 32
) -> list[float]:
    """The undiscounted return of one episode for each seed, with sampled actions.

    Every episode that begins counts, however long it takes. The first ones to end would be mostly
    short.
    """
    rng = np.random.default_rng(seeds[0])
    left = list(seeds)
    found: list[float] = []
    environments = [gymnasium.make(ENVIRONMENT) for _ in range(min(side_by_side, len(seeds)))]
    observations = [environment.reset(seed=left.pop())[0] for environment in environments]
    returns = [0.0] * len(environments)
    while environments:
        values = logits(layers, np.asarray(observations))
        actions = (values + rng.gumbel(size=values.shape)).argmax(1)  # a sample of the softmax
        for index in reversed(range(len(environments))):
            observations[index], reward, terminated, truncated, _ = environments[index].step(
                int(actions[index])
            )
            returns[index] += float(reward)
            if terminated or truncated:
                found.append(returns[index])
                if left:
                    observations[index], returns[index] = (
                        environments[index].reset(seed=left.pop())[0],
                        0.0,
                    )
                else:
                    environments.pop(index).close()
                    observations.pop(index)
                    returns.pop(index)
    return found


def judge(policies: list[Policy], options: argparse.Namespace) -> dict[str, Any]:
    """The first policies that reach the goals, and the last one.

    Each is judged by `--episodes` sampled episodes.
    """
    cores = len(os.sched_getaffinity(0))
    known: dict[int, tuple[float, float]] = {}
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:

        def evaluate(index: int) -> tuple[float, float]:
            if index not in known:
                seeds = [
                    1_000_000 + options.seed * options.episodes + episode
                    for episode in range(options.episodes)
                ]
                shares = pool.map(
                    play,
                    [policies[index].layers] * cores,
                    [seeds[core::cores] for core in range(cores)],
                )
                returns = np.concatenate(list(shares))
                assert len(returns) == options.episodes
                known[index] = float(returns.mean()), float(returns.std())
            return known[index]

        firsts = {
            str(goal): first(policies, goal, options.scan_margin, evaluate)
            for goal in TASKS[options.task].goals
        }
        mean, std = evaluate(len(policies) - 1)
    return {
        "episodes": options.episodes,
        "reached": firsts,
        "final": {"seconds": policies[-1].seconds, "mean": mean, "std": std},
        "judged": [
            {"seconds": policies[index].seconds, "mean": mean, "std": std}
            for index, (mean, std) in sorted(known.items())
        ],
    }


def first(
    policies: list[Policy],
    goal: float,
    margin: float,
    evaluate: Callable[[int], tuple[float, float]],
) -> dict[str, float] | None:
    candidate = False
    for index, policy in enumerate(policies):
        candidate = candidate or (
            policy.training_mean is not None and policy.training_mean >= goal - margin
        )
        if candidate:
            mean, std = evaluate(index)
            if mean >= goal:
                return {"seconds": policy.seconds, "steps": policy.steps, "mean": mean, "std": std}
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = parser.add_subparsers(dest="mode", required=True)
    speed = modes.add_parser("speed", help="steps a second of A2C")
    speed.add_argument("--seconds", type=float, default=20.0)
    learn = modes.add_parser("learn", help="seconds until PPO has learned")
    learn.add_argument("--task", choices=TASKS, default="lunarlander")
    learn.add_argument(
        "--environments", type=int, default=0, help="side by side (default: as in the zoo)"
    )
    learn.add_argument(
        "--told", action="store_true", help='say "ready", wait for a line, say "trained"'
    )
    learn.add_argument(
        "--ours", action="store_true", help="with the settings of our lunarlander.toml"
    )
    learn.add_argument("--subprocesses", action="store_true", help="a process for each environment")
    learn.add_argument(
        "--envpool",
        action="store_true",
        help="train in EnvPool's LunarLander (pip install envpool); judged in Gymnasium's",
    )
    learn.add_argument(
        "--limit", type=float, default=600.0, help="seconds of training at most (default 600)"
    )
    learn.add_argument(
        "--until-mean", type=float, default=230.0, help="training mean that ends it (default 230)"
    )
    learn.add_argument(
        "--every",
        type=float,
        default=5.0,
        help="seconds between two policies set aside; 0 for one of each rollout (default 5)",
    )
    learn.add_argument(
        "--episodes", type=int, default=500, help="episodes that judge a policy (default 500)"
    )
    learn.add_argument(
        "--scan-margin",
        type=float,
        default=50.0,
        help="judge from where the training mean is this close to the goal (default 50)",
    )
    for mode in (speed, learn):
        mode.add_argument("--seed", type=int, default=0)
        mode.add_argument("--threads", type=int, default=1, help="torch's threads (default 1)")
        mode.add_argument("--pin", default="", metavar="CPU[,CPU]", help="cores to stay on")
    options = parser.parse_args()
    if options.pin:
        os.sched_setaffinity(0, {int(cpu) for cpu in options.pin.split(",")})
    if options.mode == "speed":
        print(json.dumps(measure_speed(options.seconds, options.seed, options.threads)))
        return
    policies, facts = train(options)
    # Only a softmax is played without torch.
    judged = judge(policies, options) if options.task == "lunarlander" else {}
    print(json.dumps(facts | judged))


if __name__ == "__main__":
    main()
