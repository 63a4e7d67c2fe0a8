"""`advantages` against sums written out from the definition, one step at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.sections import Environment
from genkidama.learning.normalization import RunningMeanStd
from genkidama.learning.rollout import advantages, scaled
from tests.learning.stories import GOES_ON, TERMINATED, TRUNCATED, Story, stories


def gae(story: Story, gamma: float, gae_lambda: float) -> np.ndarray:
    return advantages(story.rollout(), *story.known(), gamma, gae_lambda)


fractions = st.floats(0, 1)


@given(stories, fractions, fractions)
def test_advantages_are_the_discounted_sums_of_the_definition(
    story: Story, gamma: float, gae_lambda: float
) -> None:
    expected = [story.gae(t, gamma, gae_lambda) for t in range(len(story.rewards))]
    np.testing.assert_allclose(gae(story, gamma, gae_lambda), expected, rtol=1e-4, atol=1e-3)


@given(stories, fractions)
def test_with_lambda_1_they_are_discounted_returns_minus_values(story: Story, gamma: float) -> None:
    expected = [story.n_step(t, gamma) for t in range(len(story.rewards))]
    np.testing.assert_allclose(gae(story, gamma, 1.0), expected, rtol=1e-4, atol=1e-3)


@given(stories, fractions)
def test_with_lambda_0_they_are_one_step_errors(story: Story, gamma: float) -> None:
    expected = [story.delta(t, gamma) for t in range(len(story.rewards))]
    np.testing.assert_allclose(gae(story, gamma, 0.0), expected, rtol=1e-4, atol=1e-4)


# By hand: γ = λ = ½, V = 1, 2, 3, 4 and 10 in the state that would have followed.
@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        # δ = 2+1−1, 2+1.5−2, 2+2−3, 2+5−4; the batch just ends:
        # A_3 = 3, A_2 = 1+3/4, A_1 = 1.5+1.75/4, A_0 = 2+1.9375/4.
        ([GOES_ON, GOES_ON, GOES_ON, GOES_ON], [2.484375, 1.9375, 1.75, 3.0]),
        # The time limit says the same as the batch's end.
        ([GOES_ON, GOES_ON, GOES_ON, TRUNCATED], [2.484375, 1.9375, 1.75, 3.0]),
        # A termination leaves nothing to come: δ_3 = 2−4;
        # A_2 = 1−2/4, A_1 = 1.5+0.5/4, A_0 = 2+1.625/4.
        ([GOES_ON, GOES_ON, GOES_ON, TERMINATED], [2.40625, 1.625, 0.5, -2.0]),
        # An end in the middle: nothing of the second episode reaches the first; δ_1 = 2−2.
        ([GOES_ON, TERMINATED, GOES_ON, GOES_ON], [2.0, 0.0, 1.75, 3.0]),
        # A cut in the middle: δ_1 = 2+5−2, and still nothing of what came after.
        ([GOES_ON, TRUNCATED, GOES_ON, GOES_ON], [3.25, 5.0, 1.75, 3.0]),
    ],
)
def test_a_worked_example(kinds: list[int], expected: list[float]) -> None:
    story = Story(
        [(2.0, value, kind, 10.0) for value, kind in zip([1.0, 2.0, 3.0, 4.0], kinds, strict=True)]
    )
    assert gae(story, 0.5, 0.5).tolist() == pytest.approx(expected)


def test_a_cut_bootstraps_and_a_termination_does_not() -> None:
    for kind, expected in (
        (TERMINATED, 1.0),
        (TRUNCATED, 1.0 + 0.9 * 50.0),
        (GOES_ON, 1.0 + 0.9 * 50.0),
    ):
        assert gae(Story([(1.0, 0.0, kind, 50.0)]), 0.9, 1.0).tolist() == pytest.approx([expected])


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


# Rewards as they are learned from.


def returns(*numbers: float) -> RunningMeanStd:
    moments = RunningMeanStd(np.zeros(RunningMeanStd.size(1), np.float32))
    moments.add(np.array(numbers)[:, None])
    return moments


@pytest.mark.parametrize(
    ("settings", "statistics", "expected"),
    [
        ({}, None, [-4.0, 0.5, 3.0]),
        ({"reward_scale": 0.5}, None, [-2.0, 0.25, 1.5]),
        ({"clip_rewards": 1.0}, None, [-1.0, 0.5, 1.0]),
        (
            {"reward_scale": 0.5, "clip_rewards": 1.75},
            None,
            [-1.75, 0.25, 1.5],
        ),  # the scaled ones are cut
        ({"reward_scale": 3.0}, (-2.0, 2.0), [-6.0, 0.75, 4.5]),  # deviation 2
        ({"reward_scale": 3.0, "clip_rewards": 5.0}, (-2.0, 2.0), [-5.0, 0.75, 4.5]),
        ({"reward_scale": 3.0}, (7.0,), [-12.0, 1.5, 9.0]),  # no deviation of one number
    ],
)
def test_rewards_are_scaled_divided_by_the_returns_deviation_and_cut(
    settings: dict[str, float], statistics: tuple[float, ...] | None, expected: list[float]
) -> None:
    rewards = np.array([-4.0, 0.5, 3.0], np.float32)
    result = scaled(
        rewards, Environment(**settings), None if statistics is None else returns(*statistics)
    )
    assert result.dtype == np.float32 and result.tolist() == pytest.approx(expected)
    assert rewards.tolist() == [-4.0, 0.5, 3.0]


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20),
    st.floats(0.01, 100.0),
    st.floats(0.01, 100.0),
)
def test_no_reward_is_larger_than_what_it_is_cut_to_and_smaller_ones_stay(
    numbers: list[float], scale: float, limit: float
) -> None:
    rewards = np.array(numbers, np.float32)
    free, cut = (
        scaled(rewards, Environment(reward_scale=scale, clip_rewards=clip), None)
        for clip in (0.0, limit)
    )
    assert (np.abs(cut) <= np.float32(limit)).all()
    within = np.abs(free) < np.float32(limit)
    assert (cut[within] == free[within]).all() and (np.sign(cut) == np.sign(free)).all()
