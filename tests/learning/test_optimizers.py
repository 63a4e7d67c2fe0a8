"""Both sets of optimizers, the cores' and the parent's, beside torch.optim's."""

from __future__ import annotations

import inspect
import math
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.sections import Optimizer as Settings
from genkidama.learning.optimizers import STATE_ROWS, Optimizer, clip_gradient, make_optimizer
from genkidama.protocol.vector import DTYPE
from genkidama.server.rules.gradient import NumpyOptimizer
from genkidama.server.rules.trust_region import BLOCK

#: More than the parent computes at once.
N = BLOCK + 5

#: Our settings, torch's class, and its arguments; None where the paper's formula stands in for it.
TABLE: list[tuple[Settings, Any, dict[str, Any]]] = [
    (Settings(name="sgd"), torch.optim.SGD, {}),
    (Settings(name="sgd", momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    (
        Settings(name="sgd", momentum=0.9, weight_decay=0.1),
        torch.optim.SGD,
        {"momentum": 0.9, "weight_decay": 0.1},
    ),
    (Settings(name="rmsprop"), torch.optim.RMSprop, {}),
    (
        Settings(name="rmsprop", decay=0.9, epsilon=0.1, weight_decay=0.1),
        torch.optim.RMSprop,
        {"alpha": 0.9, "eps": 0.1, "weight_decay": 0.1},
    ),
    (Settings(name="rmsprop", decay=0.9, epsilon=0.1, epsilon_inside=True), None, {}),
    (Settings(name="adagrad", epsilon=1e-10), torch.optim.Adagrad, {}),
    (
        Settings(name="adagrad", weight_decay=0.1),
        torch.optim.Adagrad,
        {"weight_decay": 0.1, "eps": 1e-8},
    ),
    (Settings(name="adam"), torch.optim.Adam, {}),
    (
        Settings(name="adam", betas=(0.5, 0.9), epsilon=1e-3, weight_decay=0.1),
        torch.optim.Adam,
        {"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1},
    ),
]
ALL = pytest.mark.parametrize("settings", [settings for settings, _, _ in TABLE], ids=str)


Step = Callable[[torch.Tensor, float], None]


class PaperRMSprop(torch.optim.Optimizer):
    """Mnih et al. 2016, eq. S2 and S3: ε under the root."""

    def __init__(self, parameters: Any, lr: float, alpha: float = 0.9, eps: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "alpha": alpha, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        (parameter,) = group["params"]
        squares = self.state[parameter].get("squares", 0.0)
        squares = group["alpha"] * squares + (1.0 - group["alpha"]) * parameter.grad**2
        self.state[parameter]["squares"] = squares
        parameter -= group["lr"] * parameter.grad / (squares + group["eps"]).sqrt()


def ours(settings: Settings, weights: Any) -> Optimizer:
    state = np.zeros((STATE_ROWS[settings.name], len(weights)), np.float32)
    given: Any = torch.from_numpy(state) if isinstance(weights, torch.Tensor) else state
    return make_optimizer(settings, weights, given, np.zeros(1))


def on_tensors(settings: Settings, weights: torch.Tensor) -> Step:
    optimizer = ours(settings, weights)
    return lambda gradient, rate: optimizer.step(gradient.clone(), rate)


def on_arrays(settings: Settings, weights: torch.Tensor) -> Step:
    optimizer = ours(settings, weights.numpy())
    return lambda gradient, rate: optimizer.step(gradient.numpy().copy(), rate)


def at_the_parent(
    settings: Settings, weights: torch.Tensor
) -> Callable[[torch.Tensor, float], None]:
    """With gradients of twice the length, and the factor that makes up for it."""
    optimizer = NumpyOptimizer(settings)

    def step(gradient: torch.Tensor, rate: float) -> None:
        doubled = (2.0 * gradient).numpy()
        before = doubled.tobytes()
        optimizer.apply(weights.numpy(), doubled, rate, 0.5, math.inf)
        assert doubled.tobytes() == before

    return step


@cache
def fifty() -> tuple[torch.Tensor, torch.Tensor]:
    """Weights (N,) and gradients (50, N), some of whose numbers are far larger than others."""
    rng = torch.Generator().manual_seed(0)
    weights, gradients = torch.randn(N, generator=rng), torch.randn(50, N, generator=rng)
    return weights, gradients * torch.logspace(-3, 1, N)


@pytest.mark.parametrize(("settings", "kind", "arguments"), TABLE, ids=str)
def test_each_of_fifty_steps_is_torchs(
    settings: Settings, kind: Any, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without its wrappers for `torch.compile`, whose import takes a second.
    base = torch.optim.Optimizer
    monkeypatch.setattr(base, "add_param_group", inspect.unwrap(base.add_param_group))
    begun, gradients = fifty()
    parameter = torch.nn.Parameter(begun.clone())
    theirs = (kind or PaperRMSprop)([parameter], lr=0.01, **arguments)
    ours = []
    for optimizer in (on_arrays, on_tensors, at_the_parent):
        weights = begun.clone()
        ours.append((optimizer.__name__, weights, optimizer(settings, weights)))
    for number, gradient in enumerate(gradients):
        rate = 0.01 * (1.0 - number / 60)  # the schedule's
        parameter.grad = gradient.clone()
        theirs.param_groups[0]["lr"] = rate
        with torch.no_grad():
            inspect.unwrap(type(theirs).step)(theirs)
        for name, weights, step in ours:
            step(gradient, rate)
            assert torch.allclose(weights, parameter, rtol=1e-4, atol=1e-6), (name, number)


# The cores'.


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
    gradients = np.random.default_rng(0).normal(size=(20, 60)).astype(np.float32)
    results = []
    for cores in (1, 2):
        weights, clock = np.ones(60, np.float32), np.zeros(1)
        state = np.zeros((STATE_ROWS[settings.name], 60), np.float32)
        optimizers = [make_optimizer(settings, weights, state, clock) for _ in range(cores)]
        for step, gradient in enumerate(gradients):
            optimizers[step % cores].step(gradient.copy(), 0.01)
        results.append(weights.tobytes())
    assert results[0] == results[1]


def test_adams_step_stays_short_where_a_sibling_has_changed_one_moment_alone() -> None:
    """It is stopped between the two, and this core's gradient says nothing there."""
    weights = np.zeros(60, np.float32)
    state = np.zeros((2, 60), np.float32)
    optimizer = make_optimizer(Settings(name="adam"), weights, state, np.ones(1))
    state[0] = np.logspace(-6, 3, 60)
    optimizer.step(np.zeros(60, np.float32), 1e-3)
    assert (weights < 0.0).all() and np.abs(weights).max() <= 2e-3


@ALL
def test_a_step_writes_in_place_to_its_memory_alone_and_allocates_nothing(
    settings: Settings,
) -> None:
    """A rule that bound a new array would leave the memory that cores share as it was."""
    n = 50_000
    vector = np.ones(n + 5, np.float32)
    state = np.zeros((STATE_ROWS[settings.name], n), np.float32)
    optimizer = make_optimizer(settings, vector[:n], state, np.zeros(1))
    gradient = np.ones(n, np.float32)
    optimizer.step(gradient, 0.01)
    assert (vector[n:] == 1).all() and (vector[:n] != 1).all()
    assert state.any() == (settings.name != "sgd" or settings.momentum > 0.0)
    tracemalloc.start()
    try:
        optimizer.step(gradient, 0.01)
        assert tracemalloc.get_traced_memory()[1] < 4 * n
    finally:
        tracemalloc.stop()


# The parent's.


def drawn(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(size=size).astype(DTYPE), rng.normal(size=(6, size)).astype(DTYPE)


@ALL
def test_no_step_is_longer_than_allowed_and_a_short_one_is_whole(settings: Settings) -> None:
    weights, (gradient, *_) = drawn(50)
    free, short, long = weights.copy(), weights.copy(), weights.copy()
    NumpyOptimizer(settings).apply(free, gradient, 0.05, 1.0, math.inf)
    length = float(np.linalg.norm(free - weights))
    NumpyOptimizer(settings).apply(short, gradient, 0.05, 1.0, length / 2.0)
    np.testing.assert_allclose(short - weights, (free - weights) / 2.0, rtol=1e-3, atol=1e-6)
    NumpyOptimizer(settings).apply(long, gradient, 0.05, 1.0, 2.0 * length)
    assert long.tobytes() == free.tobytes()


# The gradient's length.


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30), st.floats(0.01, 50))
def test_clipping_is_torchs(numbers: list[float], limit: float) -> None:
    gradient, parameter = np.array(numbers, np.float32), torch.nn.Parameter(torch.tensor(numbers))
    parameter.grad = tensor = torch.tensor(numbers)
    norm = torch.nn.utils.clip_grad_norm_([parameter], limit).item()
    again = torch.tensor(numbers)
    for ours in (gradient, again):
        assert clip_gradient(ours, limit) == pytest.approx(norm, rel=1e-5, abs=1e-6)
        np.testing.assert_allclose(ours, tensor, rtol=1e-4, atol=1e-6)
    assert np.linalg.norm(gradient) <= limit * 1.0001


def test_a_short_gradient_stays_exactly_as_it_is() -> None:
    gradient = np.array([3.0, 4.0], np.float32)
    clip_gradient(gradient, 5.0)
    assert gradient.tolist() == [3.0, 4.0]
    clip_gradient(gradient, 2.5)
    assert gradient.tolist() == [1.5, 2.0]
    zero = np.zeros(2, np.float32)
    clip_gradient(zero, 1.0)
    assert zero.tolist() == [0.0, 0.0]
