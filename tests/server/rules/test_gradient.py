from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from genkidama.config.sections import Optimizer
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
        {"children_power": 0.5, "max_step": 1.0},
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


def by_the_book(
    settings: Optimizer, weights: np.ndarray, gradients: list[np.ndarray], rate: float
) -> np.ndarray:
    """The weights after these gradients by the papers' formulas, in double precision."""
    first = second = np.zeros(len(weights))
    beta_1, beta_2 = settings.betas
    for number, slope in enumerate(gradients, 1):
        gradient = slope + settings.weight_decay * weights
        match settings.name:
            case "sgd":
                first = settings.momentum * first + gradient
                step = first
            case "adagrad":
                second = second + gradient**2
                step = gradient / (np.sqrt(second) + settings.epsilon)
            case "rmsprop":
                second = settings.decay * second + (1.0 - settings.decay) * gradient**2
                inside = np.sqrt(second + settings.epsilon)
                outside = np.sqrt(second) + settings.epsilon
                step = gradient / (inside if settings.epsilon_inside else outside)
            case "adam":
                first = beta_1 * first + (1.0 - beta_1) * gradient
                second = beta_2 * second + (1.0 - beta_2) * gradient**2
                root = np.sqrt(second / (1.0 - beta_2**number)) + settings.epsilon
                step = first / (1.0 - beta_1**number) / root
        weights = weights - rate * step
    return weights


@pytest.mark.parametrize(
    "settings",
    [
        Optimizer(name="sgd", weight_decay=0.1),
        Optimizer(name="sgd", momentum=0.9),
        Optimizer(name="adagrad", epsilon=0.1),
        Optimizer(name="rmsprop", decay=0.4, epsilon=0.1, epsilon_inside=True),
        Optimizer(name="rmsprop", decay=0.4, epsilon=0.1, epsilon_inside=False),
        Optimizer(name="adam", betas=(0.3, 0.4), epsilon=0.1, weight_decay=0.1),
    ],
    ids=str,
)
def test_its_steps_are_those_of_the_papers(settings: Optimizer) -> None:
    weights, *gradients = np.random.default_rng(0).normal(size=(4, BLOCK + 5)).astype(DTYPE)
    factors = (0.5, 1.0, 2.0)
    scaled = [factor * slope for factor, slope in zip(factors, gradients, strict=True)]
    expected = by_the_book(settings, weights, scaled, 0.1)
    steps = NumpyOptimizer(settings)
    for factor, slope in zip(factors, gradients, strict=True):
        steps.apply(weights, slope, 0.1, factor, math.inf)
    assert np.abs(weights - expected).max() < 1e-5


@pytest.mark.parametrize(("longest", "expected"), [(2.0, [-1.2, -1.6]), (6.0, [-3.0, -4.0])])
def test_a_step_is_cut_to_the_longest_one(longest: float, expected: list[float]) -> None:
    weights = parent()
    NumpyOptimizer(SGD).apply(weights, np.array([6.0, 8.0], DTYPE), 0.5, 1.0, longest)
    assert weights.tolist() == pytest.approx(expected)


def test_the_state_of_another_optimizer_is_refused() -> None:
    rule, other = Gradient(1.0, Optimizer(name="adagrad")), Gradient(1.0, Optimizer(name="adam"))
    rule.apply(parent(), gradient(1.0))
    with pytest.raises(ValueError, match=r"^optimizer\.name = 'adam' needs 'first'$"):
        other.restore(copied(rule.state()))


def test_a_loss_of_0_is_remembered_too() -> None:
    rule = Gradient(1.0, SGD, outlier_sigmas=3.0)
    rule.apply(parent(), gradient(1.0, loss=0.0))
    assert "losses" in rule.state()


@pytest.mark.parametrize(("optimizer", "options"), OPTIONS, ids=str)
def test_one_that_is_put_back_to_its_beginning_has_no_moments(
    optimizer: Optimizer, options: dict[str, Any]
) -> None:
    rule, fresh = (Gradient(1.0, optimizer, **options) for _ in range(2))
    for value in (1.0, 5.0, 2.0):
        rule.apply(parent(), gradient(value))
    rule.restore({})
    ours, theirs = parent(), parent()
    for value in (-2.0, 0.5):
        rule.apply(ours, gradient(value))
        fresh.apply(theirs, gradient(value))
        assert (ours.tobytes(), rule.moved()) == (theirs.tobytes(), fresh.moved())


def test_k_gradients_are_one_step_with_their_mean() -> None:
    weights = parent()
    rule = Gradient(1.0, SGD, buffer=2)
    rule.apply(weights, gradient(1.0))
    assert weights.tolist() == [0.0, 0.0]
    rule.apply(weights, gradient(3.0))
    assert weights.tolist() == [-1.0, -1.0]
    assert rule.moved() == pytest.approx(2.0**0.5)


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
    assert rule.apply(weights, gradient(1.0)) is None


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


def test_the_border_is_so_many_deviations_above_the_mean_of_the_losses() -> None:
    def taught(losses: list[float]) -> Gradient:
        rule = Gradient(1.0, SGD, outlier_sigmas=2.0)
        assert [rule.apply(parent(), gradient(1.0, loss=loss)) for loss in losses] == [None] * 20
        return rule

    # Their mean is 3 and their deviation 1, whatever their signs; by then all weigh the same.
    usual = [2.0, 4.0, -2.0, -4.0] * 5
    assert taught(usual).apply(parent(), gradient(1.0, loss=4.99)) is None
    assert taught(usual).apply(parent(), gradient(1.0, loss=-5.01)) == OUTLIER
    assert taught([5.0] * 20).apply(parent(), gradient(1.0, loss=5.01)) == OUTLIER
    # A restarted parent remembers them, and one at the border counts as the border.
    rule, again = taught(usual), Gradient(1.0, SGD, outlier_sigmas=2.0)
    rule.apply(parent(), gradient(1.0, loss=100.0))
    again.restore(copied(rule.state()))
    assert again.apply(parent(), gradient(1.0, loss=5.22)) is None
    assert rule.apply(parent(), gradient(1.0, loss=5.23)) == OUTLIER
    rule.restore({})
    assert rule.apply(parent(), gradient(1.0, loss=100.0)) is None


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        (Optimizer(name="sgd"), [5, 5]),
        (Optimizer(name="sgd", momentum=0.5), [5, 7.5]),
        (Optimizer(name="sgd", weight_decay=0.1), [math.inf, math.inf]),
        (Optimizer(name="adagrad"), [2, 2]),
        (Optimizer(name="rmsprop", decay=0.36), [2.5, 2.5]),
        (Optimizer(name="adam", betas=(0.3, 0.36)), [2 / 0.48**0.5, 2 / 0.48**0.5]),
        (Optimizer(name="adam", betas=(0.6, 0.36)), [math.inf, math.inf]),
        (Optimizer(name="adam", epsilon=1e-16), [math.inf, math.inf]),
    ],
    ids=str,
)
def test_the_bounds_of_two_steps(settings: Optimizer, most: list[float]) -> None:
    steps = NumpyOptimizer(settings)
    bounds = [steps.bound(4, 0.1, 5.0) for _ in range(2)]
    assert bounds == pytest.approx([0.1 * bound for bound in most], rel=0.011)
    assert all(bound >= 0.1 * least for bound, least in zip(bounds, most, strict=True))


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
