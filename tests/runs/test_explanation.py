"""What a policy says of an observation, beside what its head and its network compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from genkidama.config.experiment import Algorithm, Experiment
from genkidama.config.sections import Environment, Network
from genkidama.plugins.gorila.settings import ReplaySettings
from genkidama.runs.policy import Policy
from tests.helpers import untrained


def policy_of(folder: Path, name: str, dqn: bool = False, **settings: Any) -> Policy:
    dueling = settings.pop("dueling", False)
    experiment = Experiment(
        environment=Environment(id=name, **settings),
        network=Network(hidden=(16,), initialization="normal", initial_deviation=0.5),
        algorithm=Algorithm(name="dqn", dueling=dueling) if dqn else Algorithm(name="a3c"),
        replay=ReplaySettings(steps=1000 if dqn else 0),
    )
    return Policy(untrained(folder, experiment).load())


def known(policy: Policy, observation: Any) -> tuple[Any, float]:
    with torch.no_grad():
        outputs, values = policy.module(torch.as_tensor(observation)[None])
    return outputs.numpy(), float(values)


def test_probabilities_are_those_by_which_it_acts(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "CartPole-v1")
    observation = np.array([0.1, -0.2, 0.3, 1.0], np.float32)
    said = policy.explain(observation)
    outputs, value = known(policy, observation)
    pi = np.exp(policy.model.log_probability(outputs.repeat(2, 0), np.arange(2)[:, None]))
    assert said.kind == "probabilities" and said.spread is None
    assert said.actions == pytest.approx(pi, rel=1e-5)
    assert said.value == pytest.approx(value)
    acted = [policy.predict(observation)[0] for _ in range(4000)]
    assert np.mean(acted) == pytest.approx(said.actions[1], abs=0.03)


def test_a_continuous_policy_says_means_and_deviations(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "Pendulum-v1")
    observation = np.array([1.0, 0.0, 0.5], np.float32)
    said = policy.explain(observation)
    acted = np.array([policy.predict(observation)[0] for _ in range(2000)])
    assert said.kind == "means" and said.spread is not None
    low, high = said.actions[0] - said.spread[0], said.actions[0] + said.spread[0]
    assert np.mean((acted > low) & (acted < high)) == pytest.approx(0.68, abs=0.05)


@pytest.mark.parametrize("dueling", [False, True])
def test_dqn_says_q_values(tmp_path: Path, dueling: bool) -> None:
    policy = policy_of(tmp_path, "CartPole-v1", True, dueling=dueling)
    observation = np.array([0.1, -0.2, 0.3, 1.0], np.float32)
    outputs, value = known(policy, observation)
    q = outputs[0]
    if dueling:
        q = q + value - q.mean()
    said = policy.explain(observation)
    assert said.kind == "values"
    assert said.actions == pytest.approx(q)
    assert said.value == pytest.approx(q.max())


def test_values_are_told_in_the_environments_own_rewards(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "CartPole-v1", reward_scale=0.05, normalize_rewards=True)
    moments = policy.model.moments("returns")
    assert moments is not None
    moments.add(np.array([[-3.0], [3.0]] * 50))
    observation = np.ones(4, np.float32)
    _, value = known(policy, observation)
    assert policy.explain(observation).value == pytest.approx(value / 0.05 * 3.0, rel=1e-5)


def test_observations_are_normalized_as_for_acting(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "CartPole-v1", normalize_observations=True)
    moments = policy.model.moments("observations")
    assert moments is not None
    moments.add(np.random.default_rng(0).normal(5.0, 2.0, (500, 4)))
    mean, deviation = moments.mean_and_deviation()
    _, value = known(policy, np.ones(4, np.float32))
    assert policy.explain(mean + deviation).value == pytest.approx(value, rel=1e-4)


def test_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"an observation of shape \(3,\): expected \(4,\)"):
        policy_of(tmp_path, "CartPole-v1").explain(np.zeros(3))
