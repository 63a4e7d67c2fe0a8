"""The A3C loss against a loop in float64, its gradient against that loop's finite differences."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm, Environment, Network
from genkidama.learning.a3c import A3C
from genkidama.learning.environments import make_environment
from genkidama.learning.learners import normalized
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout, advantages, vtrace


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=50).filter(
        lambda numbers: np.ptp(numbers) > 0.1
    )
)
def test_normalized_advantages_have_mean_0_and_deviation_1(numbers: list[float]) -> None:
    result = normalized(np.array(numbers))
    assert result.mean() == pytest.approx(0.0, abs=1e-6)
    assert result.std(ddof=1) == pytest.approx(1.0, rel=1e-5)


def test_one_advantage_or_equal_ones_stay_finite() -> None:
    assert normalized(np.array([3.0])).tolist() == [3.0]
    assert normalized(np.array([3.0, 3.0])).tolist() == [0.0, 0.0]


# The learner, on a network small enough to differentiate by hand.


def tiny(**algorithm: object) -> tuple[Model, A3C]:
    experiment = Experiment(
        environment=Environment(id="CartPole-v1"),
        network=Network(hidden=(3,), initialization="normal", initial_deviation=0.7),
        algorithm=Algorithm(name="a3c", gamma=0.9, **algorithm),  # type: ignore[arg-type]
    )
    environment = make_environment(experiment.environment)
    model = Model(experiment, environment)
    environment.close()
    return model, A3C(experiment.algorithm, model)


def rollout(n: int = 6) -> Rollout:
    """Steps 0-2 end in a termination, 3 is cut by a time limit, the last goes on past the batch."""
    rng = np.random.default_rng(1)
    ends = np.zeros(n, np.bool_)
    ends[[2, 3, n - 1]] = True
    return Rollout(
        rng.normal(size=(n, 4)).astype(np.float32),
        rng.integers(2, size=(n, 1)),
        rng.normal(size=n).astype(np.float32),
        ends,
        np.array([3, n - 1]),
        rng.normal(size=(2, 4)).astype(np.float32),
    )


def forward(model: Model, numbers: np.ndarray, observation: np.ndarray) -> tuple[np.ndarray, float]:
    """π(·|s) and V(s), written down once more in float64."""
    part = {
        name: numbers[model.signature.slices[name]].reshape(shape)
        for name, shape in model.signature.entries
    }
    outputs = (
        part["policy.2.weight"]
        @ np.tanh(part["policy.0.weight"] @ observation + part["policy.0.bias"])
        + part["policy.2.bias"]
    )
    value = (
        part["value.2.weight"]
        @ np.tanh(part["value.0.weight"] @ observation + part["value.0.bias"])
        + part["value.2.bias"]
    )
    powers = np.exp(outputs - outputs.max())
    return powers / powers.sum(), float(value[0])


@pytest.mark.parametrize("entropy_coefficient", [0.0, 0.3])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_gradient_in_the_flat_vector_is_the_losses_slope_at_every_parameter(
    entropy_coefficient: float, normalize: bool
) -> None:
    model, learner = tiny(
        value_coefficient=0.4,
        entropy_coefficient=entropy_coefficient,
        normalize_advantages=normalize,
        gae_lambda=0.8,
    )
    data = rollout()
    loss = next(model.gradients(learner, data, None))
    observations, actions = data.observations.astype(np.float64), data.actions[:, 0]
    start = model.numbers.astype(np.float64)
    values = np.array([forward(model, start, s)[1] for s in observations])
    cut_values = np.array(
        [forward(model, start, s)[1] for s in data.cut_observations.astype(np.float64)]
    )
    # Constants, from here on.
    known = advantages(data, values, cut_values, 0.9, 0.8).astype(np.float64)
    weights = (known - known.mean()) / (known.std(ddof=1) + 1e-8) if normalize else known

    def slow(numbers: np.ndarray) -> float:
        total = 0.0
        for t, (s, a) in enumerate(zip(observations, actions, strict=True)):
            pi, value = forward(model, numbers, s)
            entropy = -sum(p * math.log(p) for p in pi)
            total += (
                -math.log(pi[a]) * weights[t]
                + 0.4 * (known[t] + values[t] - value) ** 2
                - entropy_coefficient * entropy
            )
        return total / len(actions)

    assert loss() == pytest.approx(slow(start), rel=1e-5)
    slopes = []
    for i in range(len(start)):
        step = np.zeros_like(start)
        step[i] = 1e-5
        slopes.append((slow(start + step) - slow(start - step)) / 2e-5)
    np.testing.assert_allclose(model.gradient, slopes, rtol=1e-3, atol=1e-5)


def gradient(model: Model, learner: A3C, data: Rollout) -> np.ndarray:
    next(model.gradients(learner, data, None))
    return model.gradient.copy()


def log_probabilities(model: Model, data: Rollout) -> np.ndarray:
    outputs, _ = model.evaluate(data.observations)
    return model.log_probability(outputs, data.actions)


def test_by_v_trace_the_policy_is_weighted_and_the_values_go_to_its_targets() -> None:
    model, learner = tiny(
        vtrace=True, vtrace_rho=0.9, vtrace_c=0.7, gae_lambda=0.8, value_coefficient=0.4
    )
    data = rollout()
    log_mu = np.log(np.random.default_rng(3).uniform(0.1, 0.9, 6)).astype(np.float32)
    loss = next(model.gradients(learner, replace(data, log_mu=log_mu), None))
    log_pi = log_probabilities(model, data)
    _, known = model.evaluate(model.joined(data))
    values, cut_values = known[:6], known[6:]
    targets, weights = vtrace(data, values, cut_values, 0.9, 0.8, log_pi - log_mu, 0.9, 0.7)
    assert loss() == pytest.approx(
        np.mean(-log_pi * weights + 0.4 * (targets - values) ** 2), rel=1e-5
    )
    # Neither the targets nor the weights carry a gradient: at the last biases it is that of the
    # formula.
    slope = model.gradient[model.signature.slices["value.2.bias"]].item()
    assert slope == pytest.approx(0.4 * 2.0 * np.mean(values - targets), rel=1e-4)


@pytest.mark.parametrize("known", [False, True])
def test_what_the_learning_policy_itself_has_done_v_trace_leaves_as_it_is(known: bool) -> None:
    model, learner = tiny(vtrace=True)
    data = rollout()
    plain = gradient(*tiny(), data)
    data = replace(data, log_mu=log_probabilities(model, data)) if known else data
    np.testing.assert_allclose(gradient(model, learner, data), plain, rtol=1e-4, atol=1e-6)


def test_without_v_trace_nobody_asks_who_acted() -> None:
    data = replace(rollout(), log_mu=np.full(6, -0.01, np.float32))
    assert np.array_equal(gradient(*tiny(), data), gradient(*tiny(), rollout()))
