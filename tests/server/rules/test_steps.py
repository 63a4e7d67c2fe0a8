"""The parent's optimizers take the same steps as torch's, and as the cores' own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from genkidama.config.sections import Optimizer
from genkidama.learning.optimizers import STATE_ROWS, make_optimizer
from genkidama.protocol.vector import DTYPE
from genkidama.server.rules.gradient import NumpyOptimizer
from genkidama.server.rules.trust_region import BLOCK
from tests.server.rules import copied

SETTINGS: list[dict[str, Any]] = [
    {"name": "sgd"},
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    {"name": "rmsprop", "decay": 0.9},
    {"name": "rmsprop", "epsilon": 0.1, "epsilon_inside": True},
    {"name": "adagrad"},
    {"name": "adagrad", "weight_decay": 0.1},
    {"name": "adam"},
    {"name": "adam", "betas": (0.5, 0.9), "epsilon": 0.01, "weight_decay": 0.1},
]
RATE = 0.05


def gradients(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    weights = rng.normal(size=size).astype(DTYPE)
    return weights, rng.normal(size=(6, size)).astype(DTYPE)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_same_steps_as_the_cores_take(settings: dict[str, Any]) -> None:
    checked = Optimizer(**settings)
    ours, all_gradients = gradients(BLOCK + 5)
    theirs = torch.from_numpy(ours.copy())
    state = torch.zeros(STATE_ROWS[checked.name], len(ours))
    core = make_optimizer(checked, theirs, state, np.zeros(1))
    steps = NumpyOptimizer(checked)
    for gradient in all_gradients:
        before = gradient.tobytes()
        steps.apply(ours, gradient, RATE, 0.5, math.inf)
        assert gradient.tobytes() == before
        core.step(torch.from_numpy(gradient * DTYPE.type(0.5)), RATE)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-5, atol=1e-6)


def test_adagrad_is_torchs() -> None:
    ours, all_gradients = gradients(7)
    parameter = torch.nn.Parameter(torch.from_numpy(ours.copy()))
    theirs = torch.optim.Adagrad([parameter], lr=RATE, eps=1e-8)
    steps = NumpyOptimizer(Optimizer(name="adagrad"))
    for gradient in all_gradients:
        steps.apply(ours, gradient, RATE, 1.0, math.inf)
        parameter.grad = torch.from_numpy(gradient.copy())
        theirs.step()
    np.testing.assert_allclose(ours, parameter.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_new_one_goes_on_like_the_old_one(settings: dict[str, Any]) -> None:
    checked = Optimizer(**settings)
    weights, all_gradients = gradients(9)
    again = weights.copy()
    whole, first, second = NumpyOptimizer(checked), NumpyOptimizer(checked), NumpyOptimizer(checked)
    for gradient in all_gradients:
        whole.apply(weights, gradient, RATE, 1.0, math.inf)
    for gradient in all_gradients[:3]:
        first.apply(again, gradient, RATE, 1.0, math.inf)
    second.restore(copied(first.state()))
    for gradient in all_gradients[3:]:
        second.apply(again, gradient, RATE, 1.0, math.inf)
    assert again.tobytes() == weights.tobytes()


def test_another_optimizers_state_is_refused() -> None:
    weights, all_gradients = gradients(3)
    old = NumpyOptimizer(Optimizer(name="adagrad"))
    old.apply(weights, all_gradients[0], RATE, 1.0, math.inf)
    with pytest.raises(ValueError, match=r"optimizer.name = 'adam' needs 'first'"):
        NumpyOptimizer(Optimizer(name="adam")).restore(old.state())


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_no_step_is_longer_than_allowed_and_a_short_one_is_whole(settings: dict[str, Any]) -> None:
    weights, (gradient, *_) = gradients(50)
    free, short, long = weights.copy(), weights.copy(), weights.copy()
    NumpyOptimizer(Optimizer(**settings)).apply(free, gradient, RATE, 1.0, math.inf)
    length = float(np.linalg.norm(free - weights))
    NumpyOptimizer(Optimizer(**settings)).apply(short, gradient, RATE, 1.0, length / 2.0)
    np.testing.assert_allclose(short - weights, (free - weights) / 2.0, rtol=1e-3, atol=1e-6)
    NumpyOptimizer(Optimizer(**settings)).apply(long, gradient, RATE, 1.0, 2.0 * length)
    assert long.tobytes() == free.tobytes()
