from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment, Network
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.runs.evaluation_worker import play
from tests.environments import BANDIT_BEST

#: Sampled and greedy play differ, and so do episodes: the weights are random, not small.
SETTINGS = Network(hidden=(16,), initialization="normal", initial_deviation=0.5)


def returns(name: str, episodes: list[int], seed: int = 5, greedy: bool = False) -> list[float]:
    """With a model and an environment of their own, as another process has them."""
    experiment = Experiment(environment=Environment(id=name), network=SETTINGS)
    environment = make_environment(experiment.environment)
    try:
        return play(Model(experiment, environment), environment, episodes, seed, greedy)
    finally:
        environment.close()


@pytest.mark.parametrize("name", ["LunarLander-v3", "CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("greedy", [False, True])
def test_an_episode_depends_on_the_seed_and_its_number_alone(name: str, greedy: bool) -> None:
    together = returns(name, [0, 1, 2, 3], greedy=greedy)
    assert returns(name, [3, 1], greedy=greedy) == [together[3], together[1]]
    assert returns(name, [2], greedy=greedy) == [together[2]]
    assert len(set(together)) > 1
    assert returns(name, [0, 1, 2, 3], seed=6, greedy=greedy) != together


def bandit(certainty: float, **settings: Any) -> tuple[Model, gymnasium.Env[Any, Any]]:
    """A model that gives the best action e^certainty times the probability of each other one."""
    experiment = Experiment(
        environment=Environment(id="tests.environments:Bandit", **settings),
        network=Network(hidden=(3,), activation="relu"),
    )
    environment = make_environment(experiment.environment)
    model = Model(experiment, environment)
    slices = model.signature.slices
    model.numbers[:] = 0.0
    model.numbers[slices["policy.0.weight"]] = np.eye(3).reshape(-1)
    preferences = np.zeros((3, 3))
    for context, action in enumerate(BANDIT_BEST):
        preferences[action, context] = certainty
    model.numbers[slices["policy.2.weight"]] = preferences.reshape(-1)
    return model, environment


@pytest.mark.parametrize("start", [0, 7])
def test_greedy_play_takes_the_most_probable_action_every_time(start: int) -> None:
    model, environment = bandit(0.01, options={"start": start})
    assert play(model, environment, range(50), 0, True) == [1.0] * 50


def test_sampled_play_draws_from_the_policy() -> None:
    model, environment = bandit(1.0)
    probability = np.e / (np.e + 2)
    mean = np.mean(play(model, environment, range(1000), 0, False))
    assert mean == pytest.approx(
        probability, abs=5 * (probability * (1 - probability) / 1000) ** 0.5
    )


def test_epsilon_and_the_scale_of_rewards_are_for_training_only() -> None:
    experiment = Experiment.from_dict(
        {
            "environment": {"id": "tests.environments:Bandit", "reward_scale": 0.1},
            "algorithm": {"epsilon": 1.0},
            "network": {"hidden": [3], "activation": "relu"},
        }
    )
    certain, environment = bandit(50.0)
    model = Model(experiment, environment)
    model.numbers[:] = certain.numbers
    assert play(model, environment, range(20), 0, False) == [1.0] * 20


def test_a_return_is_the_plain_sum_of_the_episodes_rewards() -> None:
    experiment = Experiment(
        environment=Environment(id="tests.environments:Endless", options={"limit": 9}),
        network=Network(hidden=(2,)),
    )
    environment = make_environment(experiment.environment)
    assert play(Model(experiment, environment), environment, [0], 0, False) == [9.0]


def test_observations_are_normalized_as_they_were_in_training() -> None:
    """The statistics travel in the vector: turned round, they change what the weights choose."""
    model, environment = bandit(50.0, normalize_observations=True)
    statistics = model.signature.slices["statistics.observations"]
    model.numbers[statistics] = [4.0, 0.0, 0.0, 0.0, 4.0, 4.0, 4.0]  # mean 0, deviation 1
    assert play(model, environment, range(20), 0, True) == [1.0] * 20
    model.numbers[statistics] = [
        4.0,
        8.0,
        0.0,
        0.0,
        20.0,
        4.0,
        4.0,
    ]  # mean (2, 0, 0): context 0 can no longer be seen
    contexts = len(
        [total for total in play(model, environment, range(60), 0, True) if total == 1.0]
    )
    assert 20 < contexts < 60


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_environment_may_give_observations_of_another_precision(dtype: str) -> None:
    model, environment = bandit(50.0, options={"dtype": dtype})
    assert play(model, environment, range(20), 0, True) == [1.0] * 20
