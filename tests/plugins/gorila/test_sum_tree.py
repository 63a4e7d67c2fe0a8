"""The trees of priorities, against a plain list of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.child.replay_tensor import ReplayTensor, RingSegment
from genkidama.child.shared_memory import Layout, SharedMemory
from genkidama.plugins.gorila.sampling import Sampler
from genkidama.plugins.gorila.sum_tree import SumTrees, nodes_of
from tests.child.test_replay_tensor import GOES_ON, TERMINATED, Writer, everything, kinds, noted


def shared(cores: int, steps: int, batch: int = 4) -> SharedMemory:
    rows = ReplayTensor.rows(steps, batch)
    return SharedMemory(
        Layout(
            cores=cores,
            steps=rows,
            columns=ReplayTensor.columns(2, 1, True),
            size=1,
            trainable=1,
            state_rows=1,
            state_sets=1,
            nodes=nodes_of(rows),
        )
    )


class Noting(Writer):
    """A writer that tells the forest of its blocks."""

    forest: SumTrees

    def start(self) -> None:
        super().start()
        replay = ReplayTensor(self.memory, self.batch, (2,), 1)
        self.forest = SumTrees(self.memory, replay, 1.0)
        self._share = RingSegment(replay, self.index, 1, partial(self.forest.written, self.index))


def leaves(memory: SharedMemory) -> np.ndarray:
    return np.asarray(memory.priorities[:, : memory.replay.shape[1]])


@pytest.mark.parametrize("rows", [2, 31, 32, 33, 1024, 1025, 40_000])
def test_every_sum_is_that_of_what_lies_below_it(rows: int) -> None:
    memory = SharedMemory(
        Layout(2, rows, ReplayTensor.columns(2, 1, True), 1, 1, 1, 1, nodes=nodes_of(rows))
    )
    forest = SumTrees(memory, ReplayTensor(memory, 1, (2,), 1), 1.0)
    rng = np.random.default_rng(rows)
    expected = np.zeros((2, rows))
    for _ in range(5):
        places = rng.choice(2 * rows, min(2 * rows, 200), replace=False)
        given = rng.random(len(places))
        cores, at = np.divmod(places, rows)
        forest._set(cores, at, given)
        expected[cores, at] = given
    assert (leaves(memory) == expected).all()
    assert forest.totals() == pytest.approx(expected.sum(1))
    # The row at which the sum so far passes a number, in either tree.
    parts = rng.random(500)
    cores, at = forest._walk(forest.totals(), parts)
    ends = expected.ravel().cumsum()
    wanted = np.searchsorted(ends, parts * ends[-1], side="right")
    assert (cores * rows + at).tolist() == wanted.tolist()
    memory.close()


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(0, 9),
            st.lists(kinds, min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 2**32 - 1),
)
def test_only_steps_that_can_be_read_have_a_priority_and_new_ones_the_largest(
    story: list[tuple[int, int, list[int]]], seed: int
) -> None:
    """At wraps, truncations and deaths, while priorities are given."""
    memory = shared(2, 12)
    replay = ReplayTensor(memory, 4, (2,), 1)
    writers = [Noting(memory, 4, index) for index in range(2)]
    forest = writers[0].forest
    rng = np.random.default_rng(seed)
    largest = 0.0
    for who, luck, batch in story:
        if luck == 0:
            writers[who].die(batch)
            continue
        writers[who].write(batch)
        newest = [step["observations"] for step in writers[who].steps[-len(batch) :]]
        found = replay.observations[who].tolist()
        rows = [found.index(observation) for observation in newest]
        assert leaves(memory)[who, rows].tolist() == [largest or 1.0] * len(batch)
        for writer in writers:
            steps = {tuple(step["observations"]) for step in everything(replay, writer.index)}
            there = np.flatnonzero(leaves(memory)[writer.index]).tolist()
            assert {
                tuple(replay.observations[writer.index, row].tolist()) for row in there
            } >= steps
        if luck > 5:
            drawn = Sampler(replay, forest=forest).sample(rng, 6, correction=0.5)
            errors = rng.normal(size=6)
            forest.prioritize(0, drawn.places, errors)
            largest = max(largest, float(np.abs(errors).max()) + 1e-3)
        assert forest.totals() == pytest.approx(leaves(memory).sum(1))
    drawn = Sampler(replay, forest=forest)
    if everything(replay):
        found = noted(drawn.sample(rng, 20, correction=0.5))
        there = everything(replay)
        assert all(step in there for step in found)
    memory.close()


def filled(exponent: float = 1.0) -> tuple[SharedMemory, SumTrees, Sampler]:
    """Two cores with eight steps each, and errors of 1 to 16."""
    memory = shared(2, 20)
    for index in range(2):
        writer = Noting(memory, 4, index)
        writer.write([GOES_ON] * 3 + [TERMINATED])
        writer.write([GOES_ON] * 3 + [TERMINATED])
    replay = ReplayTensor(memory, 4, (2,), 1)
    forest = SumTrees(memory, replay, exponent)
    rows = memory.replay.shape[1]
    places = np.concatenate((np.arange(8), rows + np.arange(8)))
    forest.prioritize(1, places, np.arange(1.0, 17.0) * np.resize([1.0, -1.0], 16))
    return memory, forest, Sampler(replay, forest=forest)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("share", [None, 1])
def test_steps_are_drawn_in_proportion_to_their_priorities(
    replacement: bool, share: int | None
) -> None:
    memory, _, sampler = filled()
    rng = np.random.default_rng(0)
    rows = memory.replay.shape[1]
    counts = np.zeros(2 * rows)
    draws = 3000
    for _ in range(draws):
        # Without replacement only the first one has these chances.
        count = 4 if replacement else 1
        drawn = sampler.sample(rng, count, share=share, replacement=replacement, correction=0.4)
        np.add.at(counts, drawn.places, 1.0 / count)
    expected = np.zeros(2 * rows)
    expected[:8] = np.arange(1.0, 9.0)
    expected[rows : rows + 8] = np.arange(9.0, 17.0)
    if share is not None:
        expected[:rows] = 0.0
    expected *= draws / expected.sum()
    assert np.abs(counts - expected).max() < 6.0 * np.sqrt(expected.max())
    memory.close()


def test_without_replacement_no_step_comes_twice_and_more_than_there_are_is_refused() -> None:
    memory, _, sampler = filled()
    rng = np.random.default_rng(0)
    drawn = sampler.sample(rng, 16, replacement=False, correction=0.4)
    assert len(set(drawn.places.tolist())) == 16
    with pytest.raises(ValueError, match=r"^17 steps asked for, 16 are there$"):
        sampler.sample(rng, 17, replacement=False, correction=0.4)
    memory.close()


@pytest.mark.parametrize("correction", [0.0, 0.4, 1.0])
def test_weights_make_up_for_chances(correction: float) -> None:
    """(N·P)^−β over the largest (Schaul et al. 2016, §3.4); 16 of 16 are drawn, the rarest too."""
    memory, _, sampler = filled(0.5)
    drawn = sampler.sample(np.random.default_rng(0), 16, replacement=False, correction=correction)
    rows = memory.replay.shape[1]
    cores, at = np.divmod(drawn.places, rows)
    priorities = (8 * cores + at + 1.0 + 1e-3) ** 0.5
    chances = priorities / priorities.sum()
    expected = (16 * chances) ** -correction
    assert drawn.weights == pytest.approx(expected / expected.max(), rel=1e-5)
    memory.close()


def test_what_has_been_overwritten_gets_no_priority() -> None:
    memory, forest, sampler = filled()
    drawn = sampler.sample(np.random.default_rng(0), 16, replacement=False, correction=0.4)
    before = leaves(memory).copy()
    before_room = before[:, 8:].copy()
    forest.prioritize(0, drawn.places + 8, np.full(16, 99.0))
    assert (leaves(memory)[:, 8:] == before_room).all()
    memory.close()


def test_errors_that_are_no_numbers_are_never_drawn() -> None:
    memory, forest, sampler = filled()
    places = np.arange(8)
    forest.prioritize(0, places, np.full(8, np.nan))
    assert leaves(memory)[0].tolist() == [0.0] * memory.replay.shape[1]
    assert np.isfinite(memory.largest).all()
    assert forest.totals()[0] == 0.0
    drawn = sampler.sample(np.random.default_rng(0), 8, share=1, correction=0.4)
    assert (drawn.places >= memory.replay.shape[1]).all()
    with pytest.raises(ValueError, match=r"^3 steps asked for, 0 are there$"):
        sampler.sample(np.random.default_rng(0), 3, share=0, correction=0.4)
    memory.close()


def test_all_cores_write_the_same_trees() -> None:
    memory, forest, _ = filled()
    other: Any = SumTrees(memory, ReplayTensor(memory, 4, (2,), 1), 1.0)
    other.prioritize(0, np.array([3]), np.array([100.0]))
    assert forest.totals()[0] == pytest.approx(36.0 + 8e-3 - 4.0 + 100.0)
    memory.close()
