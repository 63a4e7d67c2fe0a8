from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from genkidama.config.sections import Optimizer
from genkidama.learning.optimizers import STATE_ROWS, make_optimizer
from genkidama.protocol.vector import DTYPE, Vector
from genkidama.server.rules.gradient import OUTLIER, STALE, Gradient, NumpyOptimizer
from genkidama.server.rules.trust_region import BLOCK
from tests.server.rules import check_rule, contribution, copied

SGD = Optimizer(name="sgd", learning_rate=0.5)
OPTIONS: list[tuple[Optimizer, dict[str, Any]]] = [
    (Optimizer(), {"staleness": "polynomial", "max_staleness": 3}),
    (Optimizer(name="adagrad", learning_rate=0.01), {"outlier_sigmas": 1.0, "buffer": 2}),
    (Optimizer(name="rmsprop"), {"buffer": "children", "milliseconds": 300, "by": "steps"}),
    (Optimizer(name="sgd", momentum=0.999, learning_rate=1e9), {}),
    (
        Optimizer(name="sgd", momentum=0.9, learning_rate=1e-3),
        {"children_power": 0.5, "warm_up": 3, "max_step": 1.0},
    ),
]


@pytest.mark.parametrize(("optimizer", "options"), OPTIONS, ids=str)
def test_it_keeps_the_promises(optimizer: Optimizer, options: dict[str, Any]) -> None:
    check_rule(lambda alpha: Gradient(alpha, optimizer, **options), alphas=[1.0])


def gradient(value: float, **more: Any) -> Any:
    return contribution(np.full(2, value, DTYPE), **more)


def parent() -> Vector:
    return np.zeros(2, DTYPE)


def test_each_gradient_is_a_step_of_the_optimizer() -> None:
    settings = Optimizer(name="adam", learning_rate=0.1)
    ours, theirs = parent(), parent()
    rule, steps = Gradient(0.5, settings), NumpyOptimizer(settings)
    for value in (1.0, -2.0, 0.5):
        assert rule.apply(ours, gradient(value)) is None
        steps.apply(theirs, np.full(2, value, DTYPE), 0.1, 1.0, math.inf)
    assert ours.tobytes() == theirs.tobytes()


def test_k_gradients_are_one_step_with_their_mean() -> None:
    weights = parent()
    rule = Gradient(1.0, SGD, buffer=2)
    rule.apply(weights, gradient(1.0))
    assert weights.tolist() == [0.0, 0.0]
    rule.apply(weights, gradient(3.0))
    assert weights.tolist() == [-1.0, -1.0]


def test_the_learning_rate_follows_the_progress_and_the_children() -> None:
    settings = Optimizer(name="sgd", learning_rate=1.0, schedule="linear")
    weights = parent()
    rule = Gradient(1.0, settings, children_power=0.5)
    rule.apply(weights, gradient(1.0, progress=0.5, children=4))
    assert weights.tolist() == [-1.0, -1.0]


def test_gradients_that_are_too_old_are_left_out() -> None:
    weights = parent()
    rule = Gradient(1.0, SGD, max_staleness=2)
    assert rule.apply(weights, gradient(1.0, staleness=3)) == STALE
    assert weights.tolist() == [0.0, 0.0]
    assert rule.state() == {}
    assert rule.apply(weights, gradient(1.0, staleness=2)) is None
    assert weights.tolist() == [-0.5, -0.5]


def test_a_gradient_whose_loss_is_far_off_is_left_out() -> None:
    weights = parent()
    rule = Gradient(1.0, SGD, outlier_sigmas=3.0)
    losses = np.random.default_rng(0).normal(10.0, 1.0, 200)
    left_out = [rule.apply(weights, gradient(1.0, loss=loss)) for loss in losses]
    assert left_out.count(OUTLIER) < 5
    before = weights.copy()
    assert rule.apply(weights, gradient(1.0, loss=20.0)) == OUTLIER
    assert rule.apply(weights, gradient(1.0, loss=-20.0)) == OUTLIER
    assert weights.tobytes() == before.tobytes()
    assert rule.apply(weights, gradient(1.0, loss=11.0)) is None
    assert rule.apply(weights, gradient(1.0)) is None  # it has measured none


def test_a_loss_that_has_grown_for_good_becomes_usual() -> None:
    rule = Gradient(1.0, SGD, outlier_sigmas=3.0)
    rng = np.random.default_rng(0)
    for loss in rng.normal(1.0, 0.1, 100):
        rule.apply(parent(), gradient(0.0, loss=loss))
    later = [rule.apply(parent(), gradient(0.0, loss=loss)) for loss in rng.normal(5.0, 0.1, 500)]
    assert later[0] == OUTLIER
    assert OUTLIER not in later[-50:]


def test_a_gradient_is_cut_to_the_length_that_children_keep_to() -> None:
    weights = parent()
    rule = Gradient(1.0, SGD, 5.0)
    rule.apply(weights, contribution(np.array([3.0, 4.0], DTYPE)))
    assert weights.tolist() == [-1.5, -2.0], "its length is 5"
    rule.apply(weights, contribution(np.array([3e14, 4e14], DTYPE)))
    assert weights.tolist() == [-3.0, -4.0]


def test_statistics_are_the_childs_own_and_no_gradient() -> None:
    weights = np.array([1, 10], DTYPE)
    push = contribution(np.array([4, 20], DTYPE), statistics=1, children=2)
    Gradient(1.0, SGD).apply(weights, push)
    assert weights.tolist() == [-1.0, 15.0]


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
