"""Running sums and what is made of them, against slow means over all samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from genkidama.protocol.diagnostics import (
    CYCLE_COUNTS,
    DIAGNOSTICS,
    SHAPE,
    CycleReader,
    Cycles,
    Diagnostics,
    Window,
    approximate_kl,
    weight_of,
)


def writers(count: int = 1) -> tuple[np.ndarray, list[Diagnostics]]:
    sums = np.zeros((count, *SHAPE))
    return sums, [Diagnostics(row) for row in sums]


_batches = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 300), st.floats(-1e3, 1e3), st.integers(0, 99)),
    min_size=1,
    max_size=12,
)


@given(_batches, st.integers(0, 12))
def test_means_are_those_over_all_samples_of_all_writers(
    batches: list[tuple[int, int, float, int]], cut: int
) -> None:
    sums, cores = writers(3)
    window = Window()
    for part in (batches[:cut], batches[cut:]):
        values = [np.empty((0, 2))]
        losses: list[float] = []
        norms: list[float] = []
        for core, n, mean, seed in part:
            draws = np.random.default_rng(seed)
            both = draws.normal(mean, 1.0 + seed, (n, 2)).astype(np.float32)
            values.append(both)
            losses += [mean] * n
            norms.append(float(n))
            cores[core].add(n, loss=mean, entropy=math.nan)
            cores[core].add_values(both[:, 0], both[:, 1])
            cores[core].close(float(n))
            cores[core].ended(n)
        before = window
        found = before.read(sums.sum(0))
        if not part:
            assert found == {} or set(found) == {"explained_variance"}
            continue
        assert found["loss"] == pytest.approx(np.mean(losses), abs=1e-9)
        assert found["gradient_norm"] == found["episode_length"] == pytest.approx(np.mean(norms))
        assert (found["samples"], found["episodes_ended"]) == (len(losses), len(part))
        assert "entropy" not in found  # NaN is no figure, and spoils none
        returns = np.concatenate(values).astype(np.float64)
        if "explained_variance" in found and cut in (0, len(batches)):
            expected = 1.0 - np.var(returns[:, 1] - returns[:, 0]) / np.var(returns[:, 1])
            assert found["explained_variance"] == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert window.read(sums.sum(0)) == {}


def test_the_explained_variance_waits_for_enough_samples_and_for_returns_that_vary() -> None:
    sums, (core,) = writers()
    window = Window()
    draws = np.random.default_rng(0)
    all_values, all_returns = draws.normal(size=(2, 64)).astype(np.float32)
    for part in (slice(0, 30), slice(30, 63)):
        core.add_values(all_values[part], all_returns[part])
        core.close(1.0)
        assert "explained_variance" not in window.read(sums[0])
    core.add_values(all_values[63:], all_returns[63:])
    core.close(1.0)
    expected = 1.0 - np.var(all_returns - all_values) / np.var(all_returns)
    assert window.read(sums[0])["explained_variance"] == pytest.approx(expected, rel=1e-5)
    core.add_values(all_values, np.full(64, 7.0, np.float32))
    core.close(1.0)
    assert "explained_variance" not in window.read(sums[0])


@pytest.mark.parametrize(
    ("offset", "scale", "shown"),
    [
        (0.0, 1.0, True),
        (0.0, 1e-7, True),
        (0.0, 1e6, True),
        (1e4, 1.0, True),
        # What varies less than this may be rounding alone.
        (0.0, 1e-13, False),
        (1e7, 1.0, False),
    ],
)
def test_the_explained_variance_is_the_same_in_every_unit(
    offset: float, scale: float, shown: bool
) -> None:
    sums, (core,) = writers()
    returns, errors = np.random.default_rng(0).normal(size=(2, 200)) * [[scale], [0.1 * scale]]
    core.add_values(offset + returns + errors, offset + returns)
    core.close(1.0)
    found = Window().read(sums[0])
    assert ("explained_variance" in found) == shown
    if shown:
        expected = 1.0 - np.var(errors) / np.var(returns)
        assert found["explained_variance"] == pytest.approx(expected, rel=1e-5)


@given(st.floats(-1e3, 1e3), st.floats(1e-6, 1.0))
def test_no_more_than_all_is_explained(shift: float, scale: float) -> None:
    """Values that are wrong by a constant explain all, whatever the rounding says."""
    sums, (core,) = writers()
    returns = scale * np.random.default_rng(0).normal(size=64)
    core.add_values(returns + shift, returns)
    core.close(1.0)
    assert Window().read(sums[0])["explained_variance"] <= 1.0


@pytest.mark.parametrize(
    ("mean", "noted"),
    [
        *((9e29, True), (-9e29, True), (1.1e30, False), (-1.1e30, False)),
        *((math.inf, False), (-math.inf, False), (math.nan, False)),
    ],
)
def test_a_mean_that_is_beyond_all_sense_is_left_out(mean: float, noted: bool) -> None:
    sums, (core,) = writers()
    core.add(2.0, loss=mean, entropy=0.5)
    core.close(1.0)
    found = Window().read(sums[0])
    assert found.get("loss") == (mean if noted else None)
    assert found.get("samples") == (2.0 if noted else None)
    assert found["entropy"] == 0.5


@pytest.mark.parametrize(
    ("samples", "due"),
    [(1, [1023, 3071]), (256, [3, 11, 19]), (300, [3, 10, 17]), (5000, [0, 1, 2])],
)
def test_measuring_is_due_after_enough_samples(samples: int, due: list[int]) -> None:
    _, (core,) = writers()
    said = [core.due(samples) for _ in range(due[-1] + 1)]
    assert [number for number, now in enumerate(said) if now] == due


def test_measuring_is_due_after_enough_updates() -> None:
    _, (core,) = writers()
    small = []
    for _ in range(100):
        small.append(core.due(5))
        if core.updated():
            core.close(1.0)
    assert [number for number, due in enumerate(small) if due] == [32, 65, 98]


def test_norms_of_a_learner_that_notes_nothing_are_noted_now_and_then() -> None:
    _, (core,) = writers()
    norms = [core.updated() and (core.close(1.0) is None) for _ in range(130)]
    assert [number for number, noted in enumerate(norms) if noted] == [63, 127]
    _, (core,) = writers()
    assert [core.updated() for _ in range(66)] == [False] * 63 + [True] * 3  # until one is
    assert core.due(0)
    core.close(1.0)
    assert not core.updated() and not core.due(0)


@given(st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=50))
def test_the_approximate_kl_is_the_mean_of_the_third_estimator(log_ratios: list[float]) -> None:
    found = approximate_kl(np.array(log_ratios, np.float32))
    wide = np.array(np.array(log_ratios, np.float32), np.float64)
    assert found == pytest.approx(np.mean(np.exp(wide) - 1.0 - wide), rel=1e-4, abs=1e-5)
    assert found >= 0.0


def test_the_approximate_kl_of_many_samples_is_the_divergence() -> None:
    draws = np.random.default_rng(0)
    mu, pi = (np.exp(x) / np.exp(x).sum() for x in draws.normal(size=(2, 5)))
    actions = draws.choice(5, 400_000, p=mu)
    exact = float((mu * np.log(mu / pi)).sum())
    assert approximate_kl(np.log(pi / mu)[actions]) == pytest.approx(exact, rel=0.02)
    assert math.isfinite(approximate_kl(np.array([900.0, -900.0])))


def test_a_figure_counts_by_its_samples_its_episodes_or_as_any_other() -> None:
    figures = {"samples": 7.0, "episodes_ended": 2.0}
    weights = {name: weight_of(name, figures) for name in DIAGNOSTICS}
    assert weights == dict.fromkeys(DIAGNOSTICS, 7.0) | {"episode_length": 2.0}
    assert weight_of("lag", figures) == weight_of("entropy", {}) == 1.0
    assert len(set(DIAGNOSTICS)) == len(DIAGNOSTICS) == 13


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 2**32 - 1)), min_size=1, max_size=3),
    st.integers(1, 9),
)
@example([(99, 1), (1, 2)], 9)
def test_percentiles_of_new_cycles_are_right_to_a_hundredth_of_a_period(
    windows: list[tuple[int, int]], decimals: int
) -> None:
    """Those of ten periods and more count as ten; fewer than 100 wait for the next time."""
    period = 0.02
    counts = np.zeros((2, CYCLE_COUNTS), np.int64)
    both = [Cycles(period, row) for row in counts]
    reader = CycleReader(period)
    every: list[float] = []
    new: list[float] = []
    for count, seed in windows:
        longest = 12.0 if seed % 2 else 1.5
        draws = np.random.default_rng(seed).uniform(0.0, longest, count)
        new += draws.round(decimals).tolist()
        for number, cycle in enumerate(new[len(new) - count :], len(every)):
            both[number % 2].add(cycle * period, cycle > 1.1, number % 7 == 0)
        every += new[len(new) - count :]
        figures = reader.figures(counts)
        if len(new) < 100:
            assert figures == {}
            continue
        for name, share in (("cycle_p50_ms", 50), ("cycle_p99_ms", 99)):
            exact = min(10.0, np.percentile(new, share, method="inverted_cdf"))
            assert -1e-6 <= figures[name] / (1000.0 * period) - exact <= 0.01001
        assert figures["late_steps"] == sum(cycle > 1.1 for cycle in every)
        assert figures["safe_steps"] == -(-len(every) // 7)
        new = []
