from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.learning.normalization import RunningMeanStd
from genkidama.server.rules.blend import blend


def moments(*batches: np.ndarray) -> tuple[np.ndarray, RunningMeanStd]:
    """The memory, and the moments over it after these batches of shape (n, d)."""
    memory = np.zeros(RunningMeanStd.size(batches[0].shape[1]), np.float32)
    result = RunningMeanStd(memory)
    for batch in batches:
        result.add(batch)
    return memory, result


batch_sizes = st.lists(st.integers(1, 40), min_size=1, max_size=5)
dimensions = st.integers(1, 4)
seeds = st.integers(0, 2**32 - 1)


@given(batch_sizes, dimensions, seeds, st.floats(-5, 5), st.floats(0.5, 5))
def test_the_moments_of_batches_are_numpys_of_all_data(
    sizes: list[int], dimension: int, seed: int, mean: float, deviation: float
) -> None:
    rng = np.random.default_rng(seed)
    batches = [rng.normal(mean, deviation, (size, dimension)).astype(np.float32) for size in sizes]
    data = np.concatenate(batches).astype(np.float64)
    memory, ours = moments(*batches)
    assert memory[0] == len(data)
    found_mean, found_deviation = ours.mean_and_deviation()
    assert found_mean.dtype == found_deviation.dtype == np.float32
    assert found_mean.shape == found_deviation.shape == (dimension,)
    if len(data) > 1:
        np.testing.assert_allclose(found_mean, data.mean(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found_deviation**2, data.var(0), rtol=1e-2, atol=1e-3)


@given(st.integers(2, 60), st.integers(2, 60), dimensions, seeds, st.floats(0.01, 0.99))
def test_blending_two_is_taking_a_weighted_mixture_of_their_data(
    n: int, m: int, dimension: int, seed: int, alpha: float
) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.normal(2.0, 1.0, (n, dimension)), rng.normal(-1.0, 3.0, (m, dimension))
    (memory, ours), (theirs, _) = moments(one), moments(other)
    blend(memory, theirs, alpha)
    found_mean, found_deviation = ours.mean_and_deviation()
    if memory[0] < 2.0:
        return
    # Every sample of the one counts 1−α, every one of the other α.
    weights = np.repeat([1 - alpha, alpha], [n, m])
    data = np.concatenate((one, other))
    mean = np.average(data, axis=0, weights=weights)
    np.testing.assert_allclose(found_mean, mean, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        found_deviation**2,
        np.average((data - mean) ** 2, axis=0, weights=weights),
        rtol=1e-2,
        atol=1e-3,
    )


def test_blending_equal_ones_changes_nothing() -> None:
    memory, ours = moments(np.random.default_rng(0).normal(size=(100, 2)))
    before = ours.mean_and_deviation()
    blend(memory, memory.copy(), 0.3)
    np.testing.assert_allclose(ours.mean_and_deviation(), before, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_float32_is_enough_for_a_million_samples_and_for_those_after_them(rows: int) -> None:
    rng = np.random.default_rng(0)
    memory = np.zeros(RunningMeanStd.size(3), np.float32)
    ours = RunningMeanStd(memory)
    mean, deviation = np.array([0.0, 3.0, -10.0]), np.array([0.1, 1.0, 2.0])
    # Small batches only at the end: that is where a float32 sum is large and what is added to it
    # small.
    large = rng.normal(mean, deviation, (990_000, 3)).astype(np.float32)
    for start in range(0, len(large), 10_000):
        ours.add(large[start : start + 10_000])
    for _ in range(20_000 // rows):
        ours.add(rng.normal(mean, deviation, (rows, 3)).astype(np.float32))
    found_mean, found_deviation = ours.mean_and_deviation()
    np.testing.assert_allclose(found_mean, mean, atol=0.01)
    np.testing.assert_allclose(found_deviation, deviation, rtol=0.01)


def test_the_count_never_grows_for_ever_and_the_past_fades() -> None:
    memory, ours = moments(np.zeros((600_000, 1)), np.zeros((600_000, 1)))
    assert memory[0] == 1_200_000
    ours.add(np.ones((1000, 1)))  # above a million: halved first
    assert memory.tolist() == [601_000.0, 1000.0, 1000.0]
    for _ in range(40):
        ours.add(np.full((100_000, 1), 5.0))
    assert memory[0] <= 1_100_000
    assert ours.mean_and_deviation()[0][0] == pytest.approx(5.0, abs=0.3)


@pytest.mark.parametrize("rows", [0, 1])
def test_next_to_no_data_means_nothing_is_scaled(rows: int) -> None:
    memory, ours = moments(np.full((rows, 2), 7.0))
    mean, deviation = ours.mean_and_deviation()
    assert mean.tolist() == [0.0, 0.0] and deviation.tolist() == [1.0, 1.0]
    assert memory[0] == rows


def test_constant_data_have_a_deviation_that_can_be_divided_by() -> None:
    _, ours = moments(np.full((1000, 2), [0.0, 3.3], np.float32))
    mean, deviation = ours.mean_and_deviation()
    np.testing.assert_allclose(mean, [0.0, 3.3], rtol=1e-5)
    assert (deviation > 0).all() and (deviation < 0.01).all()


def test_the_moments_are_a_view_and_leave_their_neighbours_alone() -> None:
    vector = np.full(9, 8.0, np.float32)
    vector[2:7] = 0.0
    RunningMeanStd(vector[2:7]).add(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert vector.tolist() == [8.0, 8.0, 3.0, 9.0, 12.0, 35.0, 56.0, 8.0, 8.0]
    assert RunningMeanStd.size(2) == 5
