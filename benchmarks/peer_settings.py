"""Settings for Stable-Baselines3 and SBX: the zoo's, and ours as they can be said there. Pure.

A plan for `studies/environments/peers/train.py` is a JSON object:

    algorithm          "PPO", "A2C", "DQN" or "SAC"
    id, options        of the environment
    wrappers           names and options, the innermost first
    frame_skip, frame_stack, reward_scale, clip_rewards
    environments       how many are played at once
    normalize_observations, normalize_rewards
    policy, policy_kwargs, convolutions
    settings           arguments of the algorithm
    falls              by argument: its first and last value, and the share of the run until then
    steps, mean_return ends of the run beside its seconds; 0 and null are none
    left_out           our settings that it cannot have
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from genkidama.config.experiment import Experiment

#: What a plan has where nothing else is said.
_PLAIN: dict[str, Any] = {
    "algorithm": "PPO",
    "options": {},
    "wrappers": [],
    "frame_skip": 1,
    "frame_stack": 1,
    "reward_scale": 1.0,
    "clip_rewards": 0.0,
    "environments": 1,
    "normalize_observations": False,
    "normalize_rewards": False,
    "policy": "MlpPolicy",
    "policy_kwargs": {},
    "convolutions": [],
    "settings": {},
    "falls": {},
    "steps": 0,
    "mean_return": None,
    "left_out": [],
}

ZOO: dict[str, Any] = tomllib.loads(Path(__file__).with_name("zoo.toml").read_text())


def published(environment: str) -> tuple[float, str] | None:
    """The return that the zoo publishes for its PPO, and of which version; None without one."""
    found = ZOO.get(environment, {})
    if "published" not in found:
        return None
    return found["published"], found.get("published_for", environment)


def zoo_plan(environment: str) -> dict[str, Any]:
    """The zoo's settings of PPO; without them the library's defaults."""
    found = dict(ZOO.get(environment, {}))
    for name in ("published", "published_for"):
        found.pop(name, None)
    if found.pop("normalize", False):
        found |= {"normalize_observations": True, "normalize_rewards": True}
    settings = dict(found.get("settings", {}))
    found["falls"] = {name: [settings.pop(name), 0.0, 1.0] for name in found.pop("falling", ())}
    if not found["falls"]:
        found.pop("steps", None)  # how long the zoo trains is no matter here
    return {**_PLAIN, "id": environment, **found, "settings": settings}


def our_plan(experiment: Experiment) -> dict[str, Any]:
    """The settings of one of our experiments, as far as Stable-Baselines3 has them."""
    environment, network = experiment.environment, experiment.network
    optimizer, stop = experiment.optimizer, experiment.stop
    found = {
        **_PLAIN,
        "id": environment.id,
        "options": environment.options,
        "wrappers": [{"name": one.name, "options": one.options} for one in environment.wrappers],
        "reward_scale": environment.reward_scale,
        "clip_rewards": environment.clip_rewards,
        "normalize_observations": environment.normalize_observations,
        "normalize_rewards": environment.normalize_rewards,
        "policy_kwargs": {"net_arch": list(network.hidden), "activation": network.activation},
        "steps": stop.steps or 0,
        "mean_return": stop.mean_return,
        "falls": {},
        "left_out": [],
    }
    if network.name == "convolutional":
        found["convolutions"] = [list(one) for one in network.convolutions] or "auto"
    _learning = {"ppo": _on_policy, "a3c": _on_policy, "dqn": _dqn, "sac": _sac}
    if (learns := _learning.get(experiment.algorithm.name)) is None:
        found["left_out"].append(f"algorithm.name = {experiment.algorithm.name!r}")
        learns = _on_policy
    learns(experiment, found)
    rate = optimizer.learning_rate
    if optimizer.schedule == "linear":
        last, share = optimizer.final_learning_rate, optimizer.schedule_fraction
        found["falls"]["learning_rate"] = [rate, last, share]
    else:
        found["settings"]["learning_rate"] = rate
    for key, value in (
        ("network.shared", network.shared),
        ("optimizer.name", optimizer.name not in ("adam", "rmsprop")),
        ("algorithm.dueling", experiment.algorithm.dueling),
        ("algorithm.layer_norm", experiment.algorithm.layer_norm),
        ("algorithm.critic_dropout", experiment.algorithm.critic_dropout),
        ("algorithm.initial_value", experiment.algorithm.initial_value),
        ("algorithm.vtrace", experiment.algorithm.vtrace),
        ("environment.vectorized", environment.vectorized),
    ):
        if value:
            found["left_out"].append(key)
    return found


def _batch(experiment: Experiment) -> tuple[int, int]:
    """Steps that are learned from together, and environments that they come from."""
    algorithm = experiment.algorithm
    if experiment.child.backend == "ga3c":
        batch = max(experiment.ga3c.training_batch, algorithm.batch_size)
        return batch, batch // algorithm.batch_size
    batch = algorithm.batch_size
    if experiment.sends_experience:
        batch = experiment.parent.rule_options.get("batch", 2048)
    return batch, experiment.environment.lanes


def _on_policy(experiment: Experiment, found: dict[str, Any]) -> None:
    algorithm, network = experiment.algorithm, experiment.network
    batch, found["environments"] = _batch(experiment)
    found["settings"] = settings = {
        "n_steps": max(1, batch // found["environments"]),
        "gamma": algorithm.gamma,
        "gae_lambda": algorithm.gae_lambda,
        "vf_coef": algorithm.value_coefficient,
        "normalize_advantage": algorithm.normalize_advantages,
        "max_grad_norm": algorithm.max_gradient_norm or 1e9,
    }
    if algorithm.entropy_schedule == "linear":
        last, share = algorithm.final_entropy_coefficient, algorithm.entropy_fraction
        found["falls"]["ent_coef"] = [algorithm.entropy_coefficient, last, share]
    else:
        settings["ent_coef"] = algorithm.entropy_coefficient
    found["policy_kwargs"]["ortho_init"] = network.initialization == "orthogonal"
    if network.sde_steps:
        settings |= {"use_sde": True, "sde_sample_freq": network.sde_steps}
    deviation = network.log_deviation
    if deviation == "auto":
        deviation = -2.0 if network.sde_steps else 0.0
    found["policy_kwargs"]["log_std_init"] = deviation
    if algorithm.name == "a3c":
        found["algorithm"] = "A2C"
        settings["use_rms_prop"] = experiment.optimizer.name == "rmsprop"
    else:
        settings |= {
            "n_epochs": algorithm.epochs,
            "batch_size": algorithm.minibatch_size,
            "clip_range": algorithm.clip,
        }
        found["policy_kwargs"]["optimizer_kwargs"] = {"eps": experiment.optimizer.epsilon}


def _dqn(experiment: Experiment, found: dict[str, Any]) -> None:
    algorithm = experiment.algorithm
    lanes = found["environments"] = experiment.environment.lanes
    found["algorithm"] = "DQN"
    found["settings"] = {
        "buffer_size": experiment.replay_steps,
        "learning_starts": algorithm.start_steps,
        "batch_size": algorithm.minibatch_size,
        "gamma": algorithm.gamma,
        "train_freq": max(1, algorithm.batch_size // lanes),
        "gradient_steps": algorithm.batch_updates,
        "n_steps": algorithm.n_steps,
        "target_update_interval": max(
            1, algorithm.target_updates * algorithm.batch_size // algorithm.batch_updates
        ),
        "max_grad_norm": algorithm.max_gradient_norm or 1e9,
    }
    first, last = algorithm.epsilon, algorithm.final_epsilon
    constant = algorithm.epsilon_schedule == "constant"
    share = algorithm.epsilon_fraction
    found["falls"]["exploration"] = [first, first if constant else last, share]
    if algorithm.double:
        found["left_out"].append("algorithm.double")
    if experiment.replay.priority_exponent:
        found["left_out"].append("replay.priority_exponent")


def _sac(experiment: Experiment, found: dict[str, Any]) -> None:
    algorithm = experiment.algorithm
    lanes = found["environments"] = experiment.environment.lanes
    updates = algorithm.updates_per_step
    if updates == "auto":
        updates = (8 if algorithm.layer_norm else 4) if experiment.sends_experience else 1
    found["algorithm"] = "SAC"
    found["settings"] = {
        "buffer_size": experiment.replay_steps,
        "learning_starts": algorithm.start_steps,
        "batch_size": algorithm.minibatch_size,
        "gamma": algorithm.gamma,
        "tau": algorithm.target_rate,
        "train_freq": 1,
        "gradient_steps": max(1, round(updates * lanes)),
        "ent_coef": "auto",
        "target_entropy": algorithm.target_entropy,
    }
