from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from genkidama.learning.heads import Categorical, Gaussian, head_for
from tests.learning.devices import NEEDS_A_GPU

seeds = st.integers(0, 2**32 - 1)


# Discrete actions.


@given(st.integers(1, 9), st.integers(1, 9), seeds)
def test_a_categorical_is_torchs(actions: int, batch: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs = torch.from_numpy(rng.normal(scale=4.0, size=(batch, actions)).astype(np.float32))
    chosen = rng.integers(actions, size=(batch, 1))
    head, theirs = Categorical(Discrete(actions)), torch.distributions.Categorical(logits=outputs)
    log_pi = head.log_probability(outputs, torch.from_numpy(chosen.astype(np.float32)))
    assert log_pi.shape == head.entropy(outputs).shape == (batch,)
    np.testing.assert_allclose(
        log_pi, theirs.log_prob(torch.from_numpy(chosen[:, 0])), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(head.entropy(outputs), theirs.entropy(), rtol=1e-4, atol=1e-5)
    slopes = head.slopes(outputs.numpy(), chosen)
    np.testing.assert_allclose(slopes.log_pi, log_pi, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(slopes.entropy(), theirs.entropy(), rtol=1e-4, atol=1e-5)


def test_extreme_outputs_stay_finite() -> None:
    head = Categorical(Discrete(3))
    outputs = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    log_pi, entropy = head.log_probability(outputs, torch.zeros(1, 1)), head.entropy(outputs)
    assert log_pi.item() == 0.0 and entropy.item() == 0.0
    (log_pi + entropy).sum().backward()
    assert outputs.grad is not None and torch.isfinite(outputs.grad).all()


def frequencies(
    head: Categorical, outputs: np.ndarray, epsilon: float, count: int = 20_000
) -> np.ndarray:
    sample = head.sampler(np.random.default_rng(0), epsilon)
    return np.bincount([sample(outputs) for _ in range(count)], minlength=head.outputs)


def assert_distributed(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Pearson's χ². Six of its standard deviations beyond its mean: another distribution."""
    expected = counts.sum() * probabilities
    statistic, freedom = ((counts - expected) ** 2 / expected).sum(), len(counts) - 1
    assert statistic < freedom + 6.0 * (2.0 * freedom) ** 0.5, (counts, expected)


@pytest.mark.parametrize("outputs", [[0.0, 0.0], [1.0, -1.0, 0.5, 2.0], [103.0, 101.0, 100.0]])
def test_gumbel_max_draws_from_the_softmax(outputs: list[float]) -> None:
    array = np.array(outputs, np.float32)
    softmax = np.exp(array - array.max()) / np.exp(array - array.max()).sum()
    assert_distributed(frequencies(Categorical(Discrete(len(array))), array, 0.0), softmax)


def test_what_is_sampled_can_be_told_from_a_slightly_different_policy() -> None:
    counts = frequencies(Categorical(Discrete(2)), np.array([0.0, 0.0], np.float32), 0.0)
    with pytest.raises(AssertionError):
        assert_distributed(counts, np.array([0.52, 0.48]))


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0])
def test_with_probability_epsilon_the_action_is_uniform(epsilon: float) -> None:
    outputs = np.array([1.0, 0.0, -2.0], np.float32)
    softmax = np.exp(outputs) / np.exp(outputs).sum()
    assert_distributed(
        frequencies(Categorical(Discrete(3)), outputs, epsilon),
        (1 - epsilon) * softmax + epsilon / 3,
    )


def test_a_sampler_follows_outputs_that_change() -> None:
    sample = Categorical(Discrete(3)).sampler(np.random.default_rng(0), 0.0)
    for i in range(300):
        outputs = np.full(3, -1e4, np.float32)
        outputs[i % 3] = 0.0
        assert sample(outputs) == i % 3


def test_equal_seeds_draw_equal_actions_and_others_do_not() -> None:
    head, outputs = Categorical(Discrete(4)), np.zeros(4, np.float32)
    runs = [
        [sample(outputs) for _ in range(3000)]
        for sample in (head.sampler(np.random.default_rng(seed), 0.1) for seed in (1, 1, 2))
    ]
    assert runs[0] == runs[1] != runs[2]


# Continuous actions.


@given(st.integers(1, 5), st.integers(1, 9), seeds)
def test_a_gaussian_is_torchs(columns: int, batch: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mean, log_deviation = (
        torch.from_numpy(rng.normal(size=(batch, columns)).astype(np.float32)) for _ in range(2)
    )
    actions = torch.from_numpy(rng.normal(scale=2.0, size=(batch, columns)).astype(np.float32))
    head = Gaussian(Box(-1.0, 1.0, (columns,)))
    theirs = torch.distributions.Independent(
        torch.distributions.Normal(mean, log_deviation.exp()), 1
    )
    outputs = torch.cat((mean, log_deviation), 1)
    assert (head.outputs, head.columns) == (2 * columns, columns)
    np.testing.assert_allclose(
        head.log_probability(outputs, actions), theirs.log_prob(actions), rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(head.entropy(outputs), theirs.entropy(), rtol=1e-4, atol=1e-5)
    slopes = head.slopes(outputs.numpy(), actions.numpy())
    np.testing.assert_allclose(slopes.log_pi, theirs.log_prob(actions), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(slopes.entropy(), theirs.entropy(), rtol=1e-4, atol=1e-5)


def test_gaussian_samples_have_the_outputs_mean_and_deviation() -> None:
    sample = Gaussian(Box(-1.0, 1.0, (2,))).sampler(np.random.default_rng(0), 0.0)
    outputs = np.array([3.0, -1.0, np.log(0.5), np.log(2.0)], np.float32)
    actions = np.array([sample(outputs) for _ in range(20_000)])
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions.mean(0), [3.0, -1.0], atol=6 * 2.0 / 20_000**0.5)
    np.testing.assert_allclose(actions.std(0), [0.5, 2.0], rtol=0.03)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.05
    assert len(np.unique(actions[:, 0])) > 19_900  # a new draw each time


def test_a_random_continuous_action_is_uniform_within_the_bounds() -> None:
    # No distribution is uniform between infinities: there it is [−1, 1], or 2 from the only bound.
    least = np.array([-3.0, 0.0, -np.inf, 5.0, -np.inf], np.float32)
    most = np.array([1.0, 2.0, np.inf, np.inf, -5.0], np.float32)
    ranges = [(-3.0, 1.0), (0.0, 2.0), (-1.0, 1.0), (5.0, 7.0), (-7.0, -5.0)]
    sample = Gaussian(Box(least, most)).sampler(np.random.default_rng(0), 1.0)
    actions = np.array([sample(np.full(10, 9.0, np.float32)) for _ in range(20_000)])
    assert actions.dtype == np.float32
    for column, (low, high) in zip(actions.T, ranges, strict=True):
        counts, _ = np.histogram(column, bins=8, range=(low, high))
        assert counts.sum() == 20_000
        assert_distributed(counts, np.full(8, 1 / 8))


def test_epsilon_mixes_the_two() -> None:
    sample = Gaussian(Box(-1.0, 1.0, (1,))).sampler(np.random.default_rng(0), 0.25)
    actions = np.array([sample(np.array([50.0, 0.0], np.float32)) for _ in range(20_000)])
    assert np.mean(np.abs(actions) <= 1.0) == pytest.approx(
        0.25, abs=6 * (0.25 * 0.75 / 20_000) ** 0.5
    )


class Halved(Gaussian):
    """A head of a user's, whose actions arrive as half of them."""

    def __init__(self, space: Box) -> None:
        super().__init__(space)
        self.to_environment = lambda action: action / 2


@pytest.mark.parametrize("kind", [Gaussian, Halved])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lanes_get_what_each_would_get_by_itself(kind: type[Gaussian], dtype: Any) -> None:
    low, high = np.array([[-1.0, 0.0]], dtype), np.array([[0.5, np.inf]], dtype)
    head = kind(Box(low, high, dtype=dtype))
    outputs = np.tile(np.array([0.0, 0.0, 1.0, 1.0], np.float32), (200, 1))
    stored, given = head.together(np.random.default_rng(1), 0.1, 200)(outputs)
    alone = [head.to_environment(action) for action in stored]
    assert len(given) == 200 and {one.dtype for one in given} == {one.dtype for one in alone}
    np.testing.assert_array_equal(given, alone)
    assert kind is Halved or (stored != np.reshape(given, stored.shape)).any()


def test_the_mode_of_a_gaussian_is_its_mean_and_no_view() -> None:
    outputs = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    mode = Gaussian(Box(-1.0, 1.0, (2,))).mode(outputs)
    outputs[:] = 0.0
    assert mode.tolist() == [1.0, 2.0]


# Many at once.


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.3, 1.0])
def test_a_batch_is_drawn_from_each_rows_softmax(epsilon: float) -> None:
    rows = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, -1.0, 0.5, 2.0], [103.0, 101.0, 100.0, 99.0]])
    actions = Categorical(Discrete(4)).sample(rows.repeat(20_000, 1), epsilon, generator())
    assert actions.dtype == torch.int64 and actions.shape == (60_000, 1)
    for row, chosen in zip(rows, actions.reshape(-1, 3).T, strict=True):
        counts = np.bincount(chosen.numpy(), minlength=4)
        assert_distributed(
            counts, (1 - epsilon) * torch.softmax(row, 0).double().numpy() + epsilon / 4
        )


def test_the_actions_of_a_batch_do_not_depend_on_each_other() -> None:
    actions = (
        Categorical(Discrete(2)).sample(torch.zeros(40_000, 2), 0.5, generator())[:, 0].numpy()
    )
    assert_distributed(np.bincount(2 * actions[::2] + actions[1::2], minlength=4), np.full(4, 0.25))


def test_a_batch_of_gaussians_has_each_rows_mean_and_deviation() -> None:
    outputs = torch.tensor([[3.0, -1.0, -0.7, 0.7], [0.0, 50.0, 0.0, -3.0]])
    actions = Gaussian(Box(-1.0, 1.0, (2,))).sample(outputs.repeat(20_000, 1), 0.0, generator())
    assert actions.dtype == torch.float32 and actions.shape == (40_000, 2)
    for row, chosen in zip(
        outputs.numpy(), actions.numpy().reshape(-1, 2, 2).swapaxes(0, 1), strict=True
    ):
        deviation = np.exp(row[2:])
        assert (np.abs(chosen.mean(0) - row[:2]) < 6 * deviation / 20_000**0.5).all()
        np.testing.assert_allclose(chosen.std(0), deviation, rtol=0.03)
        assert abs(np.corrcoef(chosen.T)[0, 1]) < 0.05


def test_a_random_continuous_action_in_a_batch_is_uniform_within_the_bounds() -> None:
    space = Box(
        np.array([-3.0, 0.0, -np.inf], np.float32), np.array([1.0, 2.0, np.inf], np.float32)
    )
    actions = Gaussian(space).sample(torch.full((20_000, 6), 9.0), 1.0, generator())
    assert actions.dtype == torch.float32
    for column, (low, high) in zip(
        actions.T.numpy(), [(-3.0, 1.0), (0.0, 2.0), (-1.0, 1.0)], strict=True
    ):
        counts, _ = np.histogram(column, bins=8, range=(low, high))
        assert counts.sum() == 20_000
        assert_distributed(counts, np.full(8, 1 / 8))


def test_epsilon_mixes_whole_actions_of_a_batch() -> None:
    outputs = torch.tensor([[50.0, 50.0, 0.0, 0.0]]).expand(20_000, 4)
    random = Gaussian(Box(-1.0, 1.0, (2,))).sample(outputs, 0.25, generator()).abs() <= 1.0
    assert torch.equal(random[:, 0], random[:, 1])
    assert random[:, 0].double().mean().item() == pytest.approx(
        0.25, abs=6 * (0.25 * 0.75 / 20_000) ** 0.5
    )


@pytest.mark.parametrize(
    "space", [Discrete(4), Box(-1.0, 1.0, (2,)), Box(-1.0, 1.0, (2,), np.float64)]
)
@pytest.mark.parametrize("epsilon", [0.0, 0.5])
@pytest.mark.parametrize("batch", [0, 1, 300])
def test_equal_seeds_draw_equal_batches_and_no_gradient_goes_through(
    space: gymnasium.Space, epsilon: float, batch: int
) -> None:
    head = head_for(space)
    outputs = torch.zeros(batch, head.outputs, requires_grad=True)
    one, again, other = (head.sample(outputs, epsilon, generator(seed)) for seed in (1, 1, 2))
    assert (
        one.shape == (batch, head.columns)
        and one.numpy().dtype == head.dtype
        and not one.requires_grad
    )
    assert torch.equal(one, again)
    assert batch < 300 or not torch.equal(one, other)
    assert not outputs.detach().any()


@NEEDS_A_GPU
@pytest.mark.parametrize("space", [Discrete(4), Box(-1.0, 1.0, (2,))])
@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_actions_are_drawn_where_the_outputs_are(space: gymnasium.Space, epsilon: float) -> None:
    head = head_for(space)
    outputs = torch.tensor([[0.0, 1.0, 0.5, -0.5]], device="cuda").expand(20_000, 4)
    actions = head.sample(outputs, epsilon, torch.Generator("cuda").manual_seed(0))
    assert (
        actions.is_cuda
        and actions.shape == (20_000, head.columns)
        and actions.cpu().numpy().dtype == head.dtype
    )
    if isinstance(head, Categorical):
        softmax = torch.softmax(outputs[0], 0).double().cpu().numpy()
        assert_distributed(
            np.bincount(actions[:, 0].cpu().numpy(), minlength=4),
            (1 - epsilon) * softmax + epsilon / 4,
        )
