"""`advantages` and `vtrace` against sums written out from the definitions, a step at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.learning.rollout import advantages, vtrace
from tests.learning.stories import GOES_ON, TERMINATED, Story, stories


def gae(story: Story, gamma: float, gae_lambda: float) -> np.ndarray:
    return advantages(story.rollout(), *story.known(), gamma, gae_lambda)


fractions = st.floats(0, 1)


@given(stories, fractions, fractions)
def test_advantages_are_the_discounted_sums_of_the_definition(
    story: Story, gamma: float, gae_lambda: float
) -> None:
    steps = range(len(story.rewards))
    expected = [story.gae(t, gamma, gae_lambda) for t in steps]
    np.testing.assert_allclose(gae(story, gamma, gae_lambda), expected, rtol=1e-4, atol=1e-3)
    # With λ = 1 they are discounted returns minus values, with λ = 0 one-step errors.
    expected = [story.n_step(t, gamma) for t in steps]
    np.testing.assert_allclose(gae(story, gamma, 1.0), expected, rtol=1e-4, atol=1e-3)
    expected = [story.delta(t, gamma) for t in steps]
    np.testing.assert_allclose(gae(story, gamma, 0.0), expected, rtol=1e-4, atol=1e-4)


def test_the_result_is_float32_and_the_arguments_stay_as_they_are() -> None:
    story = Story([(1.0, 2.0, TERMINATED, 0.0), (3.0, 4.0, GOES_ON, 5.0)])
    rollout, (values, cut_values) = story.rollout(), story.known()
    result = advantages(rollout, values, cut_values, 0.9, 0.9)
    assert result.dtype == np.float32 and result.shape == (2,)
    assert values.tolist() == [2.0, 4.0] and cut_values.tolist() == [5.0]
    assert (
        rollout.rewards.tolist() == [1.0, 3.0]
        and rollout.ends.tolist() == [True, True]
        and rollout.cuts.tolist() == [1]
    )


def found(
    story: Story, ratios: list[float], gamma: float, gae_lambda: float, rho_bar: float, c_bar: float
) -> tuple[np.ndarray, np.ndarray]:
    log_ratio = np.log(np.array(ratios)).astype(np.float32)
    return vtrace(story.rollout(), *story.known(), gamma, gae_lambda, log_ratio, rho_bar, c_bar)


def target(
    story: Story,
    ratios: list[float],
    t: int,
    gamma: float,
    gae_lambda: float,
    rho_bar: float,
    c_bar: float,
) -> float:
    """v_s = V(x_s) + Σ_t γ^{t−s} · (Π_{i=s}^{t−1} c_i) · ρ_t · δ_t, up to the trajectory's end.

    Espeholt et al. 2018, eq. 1.
    """
    total = story.values[t]
    for later in range(t, story.last(t) + 1):
        product = 1.0
        for i in range(t, later):
            product *= gae_lambda * min(c_bar, ratios[i])
        total += (
            gamma ** (later - t) * product * min(rho_bar, ratios[later]) * story.delta(later, gamma)
        )
    return total


def advantage(
    story: Story,
    ratios: list[float],
    t: int,
    gamma: float,
    gae_lambda: float,
    rho_bar: float,
    c_bar: float,
) -> float:
    """ρ_s · (r_s + γ·v_{s+1} − V(x_s)) (§4.2).

    Behind a trajectory's end there is V of what followed, or nothing.
    """
    if story.kinds[t] == TERMINATED:
        following = 0.0
    elif t in story.cuts:
        following = story.follows[t]
    else:
        following = target(story, ratios, t + 1, gamma, gae_lambda, rho_bar, c_bar)
    return min(rho_bar, ratios[t]) * (story.rewards[t] + gamma * following - story.values[t])


def with_ratios(story: Story) -> st.SearchStrategy[tuple[Story, list[float]]]:
    n = len(story.rewards)
    return st.tuples(st.just(story), st.lists(st.floats(0.01, 10.0), min_size=n, max_size=n))


limits = st.floats(0.1, 3.0)


@given(stories.flatmap(with_ratios), fractions, fractions, limits, limits)
def test_targets_and_advantages_are_those_of_the_definition(
    story_and_ratios: tuple[Story, list[float]],
    gamma: float,
    gae_lambda: float,
    rho_bar: float,
    c_bar: float,
) -> None:
    story, ratios = story_and_ratios
    settings = (gamma, gae_lambda, rho_bar, c_bar)
    targets, weights = found(story, ratios, *settings)
    steps = range(len(ratios))
    expected = np.array([target(story, ratios, t, *settings) for t in steps])
    # With c̄ above 1 the products grow as long as the trajectory goes on, and float32 with them.
    tolerance = {"rtol": 1e-3, "atol": 1e-3 * (1.0 + np.abs(expected).max())}
    np.testing.assert_allclose(targets, expected, **tolerance)
    np.testing.assert_allclose(
        weights, [advantage(story, ratios, t, *settings) for t in steps], **tolerance
    )


@given(stories, fractions)
def test_on_policy_they_are_n_step_returns_exactly(story: Story, gamma: float) -> None:
    targets, weights = found(story, [1.0] * len(story.rewards), gamma, 1.0, 1.0, 1.0)
    values, cut_values = story.known()
    plain = advantages(story.rollout(), values, cut_values, gamma, 1.0)
    assert np.array_equal(weights, plain) and np.array_equal(targets, values + plain)
    np.testing.assert_allclose(
        weights, [story.n_step(t, gamma) for t in range(len(plain))], rtol=1e-4, atol=1e-3
    )


def test_the_all_but_impossible_weighs_next_to_nothing_and_nothing_more_than_the_limits() -> None:
    story = Story([(1.0, 0.0, GOES_ON, 0.0), (1.0, 0.0, TERMINATED, 0.0)])
    for log_ratio, rho, c in (
        (-math.inf, 0.0, 0.0),
        (-200.0, 0.0, 0.0),
        (200.0, 3.0, 2.0),
        (math.inf, 3.0, 2.0),
    ):
        targets, weights = vtrace(
            story.rollout(), *story.known(), 1.0, 1.0, np.full(2, log_ratio, np.float32), 3.0, 2.0
        )
        assert targets.tolist() == pytest.approx([rho + c * rho, rho])
        assert weights.tolist() == pytest.approx([rho * (1.0 + rho), rho])


def test_the_results_are_float32_and_the_arguments_stay_as_they_are() -> None:
    story = Story([(1.0, 2.0, TERMINATED, 0.0), (3.0, 4.0, GOES_ON, 5.0)])
    rollout, (values, cut_values), log_ratio = (
        story.rollout(),
        story.known(),
        np.array([0.5, -0.5], np.float32),
    )
    result = vtrace(rollout, values, cut_values, 0.9, 0.9, log_ratio, 1.0, 1.0)
    assert [(array.dtype, array.shape) for array in result] == [(np.float32, (2,))] * 2
    assert (
        values.tolist() == [2.0, 4.0]
        and cut_values.tolist() == [5.0]
        and log_ratio.tolist() == [0.5, -0.5]
    )
    assert (
        rollout.rewards.tolist() == [1.0, 3.0]
        and rollout.ends.tolist() == [True, True]
        and rollout.cuts.tolist() == [1]
    )
