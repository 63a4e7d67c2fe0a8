"""The PPO loss against a loop over steps in float64.

Which samples carry a gradient, and how often a batch is used.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm, Environment, Network
from genkidama.learning.a3c import A3C
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.learning.ppo import PPO, ppo_loss
from genkidama.learning.rollout import Rollout, advantages

Step = tuple[float, float, float, float, float, float]


def oracle(steps: list[Step], clip: float, c_v: float, c_e: float) -> float:
    """The mean of the losses, a step at a time (Schulman et al. 2017, eq. 7 and 9).

    A step: log π, log π_old, H, V, A, R.
    """
    total = 0.0
    for log_pi, old_log_pi, entropy, value, advantage, return_ in steps:
        ratio = math.exp(log_pi) / math.exp(old_log_pi)
        if advantage > 0:  # figure 1 of the paper
            surrogate = min(ratio, 1 + clip) * advantage
        else:
            surrogate = max(ratio, 1 - clip) * advantage
        total += -surrogate + c_v * (value - return_) ** 2 - c_e * entropy
    return total / len(steps)


numbers = st.floats(-10, 10)
steps = st.lists(
    st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.floats(0, 2), numbers, numbers, numbers),
    min_size=1,
    max_size=20,
)


@given(
    steps, st.floats(0.01, 0.9), st.floats(0, 2), st.floats(0, 1), st.sampled_from(["mean", "sum"])
)
def test_the_loss_is_the_mean_or_the_sum_over_the_steps(
    steps: list[Step], clip: float, c_v: float, c_e: float, reduction: Any
) -> None:
    algorithm = Algorithm(clip=clip, value_coefficient=c_v, reduction=reduction)
    loss = ppo_loss(
        *[torch.tensor(column, dtype=torch.float64) for column in zip(*steps, strict=True)],
        c_e,
        algorithm,
    )
    assert loss.shape == ()
    expected = oracle(steps, clip, c_v, c_e) * (1 if reduction == "mean" else len(steps))
    assert loss.item() == pytest.approx(expected, rel=1e-6, abs=1e-9)


def gradient(ratio: float, advantage: float) -> float:
    """Of the policy's part of the loss, at one step with ε = 0.2."""
    log_pi, zero = torch.tensor([math.log(ratio)], requires_grad=True), torch.zeros(1)
    ppo_loss(
        log_pi,
        zero,
        zero,
        zero,
        torch.tensor([advantage]),
        zero,
        0.0,
        Algorithm(value_coefficient=0.0, clip=0.2),
    ).backward()
    assert log_pi.grad is not None
    return log_pi.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        # A good action, already much more probable: enough. Still too improbable: go on.
        (1.3, 2.0, False),
        (1.1, 2.0, True),
        (0.5, 2.0, True),
        # A bad action, already much less probable: enough. Still too probable: go on.
        (0.7, -2.0, False),
        (0.9, -2.0, True),
        (1.5, -2.0, True),
    ],
)
def test_only_what_has_gone_far_enough_in_the_right_direction_has_no_gradient(
    ratio: float, advantage: float, moves: bool
) -> None:
    # ∂ρ/∂log π = ρ.
    assert gradient(ratio, advantage) == pytest.approx(-ratio * advantage if moves else 0.0)


# The learner.


def learner(kind: type[PPO] | type[A3C] = PPO, **algorithm: object) -> tuple[Model, PPO | A3C]:
    settings = {
        "gamma": 0.9,
        "gae_lambda": 0.8,
        "value_coefficient": 0.4,
        "entropy_coefficient": 0.05,
    } | algorithm
    experiment = Experiment(
        environment=Environment(id="CartPole-v1"),
        network=Network(hidden=(5,), initialization="normal", initial_deviation=0.7),
        algorithm=Algorithm(**settings),  # type: ignore[arg-type]
    )
    environment = make_environment(experiment.environment)
    model = Model(experiment, environment)
    environment.close()
    return model, kind(experiment.algorithm, model)


def rollout(n: int) -> Rollout:
    rng = np.random.default_rng(2)
    ends = rng.random(n) < 0.2
    ends[-1] = True
    return Rollout(
        rng.normal(size=(n, 4)).astype(np.float32),
        rng.integers(2, size=(n, 1)),
        rng.normal(size=n).astype(np.float32),
        ends,
        np.array([n - 1]),
        rng.normal(size=(1, 4)).astype(np.float32),
    )


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("older", [False, True])
def test_every_loss_is_that_of_its_shuffled_minibatch_at_the_newest_weights(
    normalize: bool, older: bool
) -> None:
    """The whole of PPO once more, in the open, while the weights move under it after every loss.

    If an older policy μ has acted, a step counts min(1, π_old/μ).
    """
    n, epochs, minibatch = 12, 3, 5
    model, ppo = learner(
        epochs=epochs, minibatch_size=minibatch, normalize_advantages=normalize, clip=0.05
    )
    data = rollout(n)
    outputs, values = model.evaluate(model.joined(data))
    old_log_pi = model.log_probability(outputs[:n], data.actions)
    advantage = advantages(data, values[:n], values[n:], 0.9, 0.8)
    returns = advantage + values[:n]
    if normalize:  # over the whole batch, once
        advantage = (advantage - advantage.mean()) / advantage.std(ddof=1)
    if older:
        mu = np.random.default_rng(9).uniform(0.2, 0.9, n).astype(np.float32)
        data.log_mu = np.log(mu)
        weights = [min(1.0, math.exp(old) / one) for old, one in zip(old_log_pi, mu, strict=True)]
        assert min(weights) < 0.9 and max(weights) == 1.0
        advantage = advantage * weights

    order, expected = model.generator(7), []
    parts = [
        drawn[first : first + minibatch]
        for drawn in (order.permutation(n) for _ in range(epochs))
        for first in range(0, n, minibatch)
    ]
    assert any(part.tolist() != sorted(part.tolist()) for part in parts)
    noise = np.random.default_rng(8)
    found = []
    for part, loss in zip(parts, model.gradients(ppo, data, model.generator(7)), strict=True):
        found.append(loss())
        outputs, value = model.evaluate(data.observations[part])
        log_pi = outputs - np.log(np.exp(outputs).sum(1, keepdims=True))
        steps = zip(
            model.log_probability(outputs, data.actions[part]).tolist(),
            old_log_pi[part].tolist(),
            (-(np.exp(log_pi) * log_pi).sum(1)).tolist(),
            value.tolist(),
            advantage[part].tolist(),
            returns[part].tolist(),
            strict=True,
        )
        expected.append(oracle(list(steps), 0.05, 0.4, 0.05))
        # What other cores do to θ_O meanwhile, and this one's own step and pull.
        model.vector += 0.1 * noise.normal(size=len(model.vector)).astype(np.float32)
    assert found == pytest.approx(expected, rel=1e-4)
