"""`advantages` against sums written out from the definition, one step at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from genkidama.learning.rollout import Rollout, advantages

GOES_ON, TERMINATED, TRUNCATED = range(3)


class Story:
    """Consecutive steps as a person would note them: reward, V(s_t), how the step ended, V of what would have followed."""

    def __init__(self, steps: list[tuple[float, float, int, float]]) -> None:
        self.rewards, self.values, self.kinds, self.follows = (list(column) for column in zip(*steps, strict=True))
        # The batch ends somewhere; if the episode does not, that is a cut.
        self.cuts = [t for t, kind in enumerate(self.kinds) if kind == TRUNCATED or (kind == GOES_ON and t == len(steps) - 1)]

    def rollout(self) -> Rollout:
        n = len(self.rewards)
        ends = np.array([kind != GOES_ON for kind in self.kinds])
        ends[-1] = True
        return Rollout(
            torch.zeros(n, 1),
            torch.zeros(n, 1),
            np.array(self.rewards, np.float32),
            ends,
            np.array(self.cuts, np.intp),
            torch.zeros(len(self.cuts), 1),
        )

    def advantages(self, gamma: float, gae_lambda: float) -> np.ndarray:
        values, cut_values = np.array(self.values, np.float32), np.array([self.follows[t] for t in self.cuts], np.float32)
        return advantages(self.rollout(), values, cut_values, gamma, gae_lambda)

    def last(self, t: int) -> int:
        """The last step of the trajectory that step t belongs to."""
        while self.kinds[t] == GOES_ON and t < len(self.kinds) - 1:
            t += 1
        return t

    def delta(self, t: int, gamma: float) -> float:
        """δ_t = r_t + γV(s_{t+1}) − V(s_t); V is 0 after a termination (Schulman et al. 2016, eq. 10)."""
        if self.kinds[t] == TERMINATED:
            following = 0.0
        elif t in self.cuts:
            following = self.follows[t]
        else:
            following = self.values[t + 1]
        return self.rewards[t] + gamma * following - self.values[t]

    def gae(self, t: int, gamma: float, gae_lambda: float) -> float:
        """A_t = Σ_k (γλ)^k δ_{t+k} (eq. 16), up to the trajectory's end."""
        return sum((gamma * gae_lambda) ** k * self.delta(t + k, gamma) for k in range(self.last(t) - t + 1))

    def n_step(self, t: int, gamma: float) -> float:
        """Σ_k γ^k r_{t+k} + γ^n V(what follows) − V(s_t): no δ, no recurrence (Mnih et al. 2016, algorithm S3)."""
        end = self.last(t)
        rewards = sum(gamma**k * self.rewards[t + k] for k in range(end - t + 1))
        rest = self.follows[end] if end in self.cuts else 0.0
        return rewards + gamma ** (end - t + 1) * rest - self.values[t]


numbers = st.floats(-10, 10, width=32)
stories = st.lists(
    st.tuples(numbers, numbers, st.sampled_from([GOES_ON, GOES_ON, GOES_ON, TERMINATED, TRUNCATED]), numbers), min_size=1, max_size=30
).map(Story)
fractions = st.floats(0, 1)


@given(stories, fractions, fractions)
def test_advantages_are_the_discounted_sums_of_the_definition(story: Story, gamma: float, gae_lambda: float) -> None:
    expected = [story.gae(t, gamma, gae_lambda) for t in range(len(story.rewards))]
    np.testing.assert_allclose(story.advantages(gamma, gae_lambda), expected, rtol=1e-4, atol=1e-3)


@given(stories, fractions)
def test_with_lambda_1_they_are_discounted_returns_minus_values(story: Story, gamma: float) -> None:
    expected = [story.n_step(t, gamma) for t in range(len(story.rewards))]
    np.testing.assert_allclose(story.advantages(gamma, 1.0), expected, rtol=1e-4, atol=1e-3)


@given(stories, fractions)
def test_with_lambda_0_they_are_one_step_errors(story: Story, gamma: float) -> None:
    expected = [story.delta(t, gamma) for t in range(len(story.rewards))]
    np.testing.assert_allclose(story.advantages(gamma, 0.0), expected, rtol=1e-4, atol=1e-4)


# By hand: γ = λ = ½, V = 1, 2, 3, 4 and 10 in the state that would have followed.
@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        # δ = 2+1−1, 2+1.5−2, 2+2−3, 2+5−4; the batch just ends: A_3 = 3, A_2 = 1+3/4, A_1 = 1.5+1.75/4, A_0 = 2+1.9375/4.
        ([GOES_ON, GOES_ON, GOES_ON, GOES_ON], [2.484375, 1.9375, 1.75, 3.0]),
        # The time limit says the same as the batch's end.
        ([GOES_ON, GOES_ON, GOES_ON, TRUNCATED], [2.484375, 1.9375, 1.75, 3.0]),
        # A termination leaves nothing to come: δ_3 = 2−4; A_2 = 1−2/4, A_1 = 1.5+0.5/4, A_0 = 2+1.625/4.
        ([GOES_ON, GOES_ON, GOES_ON, TERMINATED], [2.40625, 1.625, 0.5, -2.0]),
        # An end in the middle: nothing of the second episode reaches the first; δ_1 = 2−2.
        ([GOES_ON, TERMINATED, GOES_ON, GOES_ON], [2.0, 0.0, 1.75, 3.0]),
        # A cut in the middle: δ_1 = 2+5−2, and still nothing of what came after.
        ([GOES_ON, TRUNCATED, GOES_ON, GOES_ON], [3.25, 5.0, 1.75, 3.0]),
    ],
)
def test_a_worked_example(kinds: list[int], expected: list[float]) -> None:
    story = Story([(2.0, value, kind, 10.0) for value, kind in zip([1.0, 2.0, 3.0, 4.0], kinds, strict=True)])
    assert story.advantages(0.5, 0.5).tolist() == pytest.approx(expected)


def test_a_cut_bootstraps_and_a_termination_does_not() -> None:
    for kind, expected in ((TERMINATED, 1.0), (TRUNCATED, 1.0 + 0.9 * 50.0), (GOES_ON, 1.0 + 0.9 * 50.0)):
        assert Story([(1.0, 0.0, kind, 50.0)]).advantages(0.9, 1.0).tolist() == pytest.approx([expected])


def test_the_result_is_float32_and_the_arguments_stay_as_they_are() -> None:
    story = Story([(1.0, 2.0, TERMINATED, 0.0), (3.0, 4.0, GOES_ON, 5.0)])
    rollout, values, cut_values = story.rollout(), np.array(story.values, np.float32), np.array([5.0], np.float32)
    result = advantages(rollout, values, cut_values, 0.9, 0.9)
    assert result.dtype == np.float32 and result.shape == (2,)
    assert values.tolist() == [2.0, 4.0] and cut_values.tolist() == [5.0]
    assert rollout.rewards.tolist() == [1.0, 3.0] and rollout.ends.tolist() == [True, True] and rollout.cuts.tolist() == [1]
