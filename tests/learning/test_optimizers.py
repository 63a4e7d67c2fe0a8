"""Each rule beside torch.optim's of the same name, step for step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.sections import Optimizer as Settings
from genkidama.learning.optimizers import STATE_ROWS, Optimizer, clip_gradient, make_optimizer

N = 60


def ours(settings: Settings, weights: torch.Tensor) -> Optimizer:
    return make_optimizer(
        settings, weights, torch.zeros(STATE_ROWS[settings.name], len(weights)), np.zeros(1)
    )


@pytest.mark.parametrize(
    ("settings", "kind", "arguments"),
    [
        (Settings(name="sgd"), torch.optim.SGD, {}),
        (Settings(name="sgd", momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
        (Settings(name="sgd", weight_decay=0.1), torch.optim.SGD, {"weight_decay": 0.1}),
        (
            Settings(name="sgd", momentum=0.9, weight_decay=1e-3),
            torch.optim.SGD,
            {"momentum": 0.9, "weight_decay": 1e-3},
        ),
        (Settings(name="rmsprop"), torch.optim.RMSprop, {}),
        (
            Settings(name="rmsprop", decay=0.9, epsilon=0.1, weight_decay=0.1),
            torch.optim.RMSprop,
            {"alpha": 0.9, "eps": 0.1, "weight_decay": 0.1},
        ),
        (Settings(name="adagrad", epsilon=1e-10), torch.optim.Adagrad, {}),
        (Settings(name="adam"), torch.optim.Adam, {}),
        (
            Settings(name="adam", betas=(0.5, 0.9), epsilon=1e-3),
            torch.optim.Adam,
            {"betas": (0.5, 0.9), "eps": 1e-3},
        ),
        (Settings(name="adam", weight_decay=0.1), torch.optim.Adam, {"weight_decay": 0.1}),
    ],
    ids=[
        "sgd",
        "sgd-momentum",
        "sgd-decay",
        "sgd-thesis",
        "rmsprop",
        "rmsprop-settings",
        "adagrad",
        "adam",
        "adam-settings",
        "adam-decay",
    ],
)
def test_each_of_fifty_steps_is_torchs(
    settings: Settings, kind: Any, arguments: dict[str, Any]
) -> None:
    rng = torch.Generator().manual_seed(0)
    weights = torch.randn(N, generator=rng)
    parameter = torch.nn.Parameter(weights.clone())
    optimizer, theirs = ours(settings, weights), kind([parameter], lr=0.01, **arguments)
    for step in range(50):
        rate = 0.01 * (1.0 - step / 60)  # the schedule's
        gradient = torch.randn(N, generator=rng) * torch.logspace(-3, 1, N)
        parameter.grad = gradient.clone()
        theirs.param_groups[0]["lr"] = rate
        theirs.step()
        optimizer.step(gradient, rate)
        torch.testing.assert_close(weights, parameter.detach(), rtol=1e-4, atol=1e-6)


def test_rmsprop_with_epsilon_under_the_root_is_the_papers_formula() -> None:
    """Mnih et al. 2016, eq. S2 and S3, in float64."""
    rng = torch.Generator().manual_seed(0)
    weights = torch.randn(N, generator=rng)
    theta, squares = weights.double(), torch.zeros(N, dtype=torch.float64)
    optimizer = ours(Settings(name="rmsprop", decay=0.9, epsilon=0.1, epsilon_inside=True), weights)
    for step in range(50):
        rate = 0.01 * (1.0 - step / 60)
        gradient = torch.randn(N, generator=rng) * torch.logspace(-3, 1, N)
        squares = 0.9 * squares + 0.1 * gradient.double() ** 2
        theta = theta - rate * gradient.double() / (squares + 0.1).sqrt()
        optimizer.step(gradient, rate)
        torch.testing.assert_close(weights.double(), theta, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("inside", "denominator"), [(True, 0.0101**0.5), (False, 0.01 + 0.01)])
def test_a_worked_example_of_epsilon_under_the_root_and_beside_it(
    inside: bool, denominator: float
) -> None:
    weights = torch.zeros(1)
    optimizer = ours(
        Settings(name="rmsprop", decay=0.99, epsilon=0.01, epsilon_inside=inside), weights
    )
    optimizer.step(torch.tensor([0.1]), 0.5)  # s = 0.01·0.1² = 0.01²
    assert weights.item() == pytest.approx(-0.5 * 0.1 / denominator)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(name="sgd", momentum=0.9, weight_decay=1e-3),
        Settings(name="rmsprop"),
        Settings(name="rmsprop", epsilon_inside=True),
        Settings(name="adam"),
    ],
    ids=["sgd", "rmsprop", "rmsprop-inside", "adam"],
)
def test_cores_that_share_state_go_one_way_together(settings: Settings) -> None:
    """Two optimizers over the same memory that take turns are one optimizer."""
    gradients = torch.randn(20, N, generator=torch.Generator().manual_seed(0))
    results = []
    for cores in (1, 2):
        weights, state, clock = (
            torch.ones(N),
            torch.zeros(STATE_ROWS[settings.name], N),
            np.zeros(1),
        )
        optimizers = [make_optimizer(settings, weights, state, clock) for _ in range(cores)]
        for step, gradient in enumerate(gradients):
            optimizers[step % cores].step(gradient.clone(), 0.01)
        results.append(weights)
    assert torch.equal(*results)


def test_adams_step_stays_short_where_a_sibling_has_changed_one_moment_alone() -> None:
    """It is stopped between the two, and this core's gradient says nothing there."""
    weights = torch.zeros(N)
    state = torch.zeros(2, N)
    optimizer = make_optimizer(Settings(name="adam"), weights, state, np.ones(1))
    state[0] = torch.logspace(-6, 3, N)
    optimizer.step(torch.zeros(N), 1e-3)
    assert (weights < 0.0).all() and weights.abs().max() <= 2e-3


def test_only_the_trainable_part_is_touched() -> None:
    vector = torch.ones(N + 5)
    for name in STATE_ROWS:
        optimizer = ours(Settings(name=name, weight_decay=0.1), vector[:N])  # type: ignore[arg-type]
        optimizer.step(torch.ones(N), 0.01)
    assert (vector[N:] == 1).all() and (vector[:N] != 1).all()


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30), st.floats(0.01, 50))
def test_clipping_is_torchs(numbers: list[float], limit: float) -> None:
    gradient, parameter = torch.tensor(numbers), torch.nn.Parameter(torch.zeros(len(numbers)))
    parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([parameter], limit)
    clip_gradient(gradient, limit)
    torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)
    assert torch.linalg.vector_norm(gradient).item() <= limit * 1.0001


def test_a_short_gradient_stays_exactly_as_it_is() -> None:
    gradient = torch.tensor([3.0, 4.0])
    clip_gradient(gradient, 5.0)
    assert gradient.tolist() == [3.0, 4.0]
    clip_gradient(gradient, 2.5)
    assert gradient.tolist() == [1.5, 2.0]
    zero = torch.zeros(2)
    clip_gradient(zero, 1.0)
    assert zero.tolist() == [0.0, 0.0]
