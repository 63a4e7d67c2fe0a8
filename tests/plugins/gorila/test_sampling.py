"""Drawing from the replay tensor, against the lists that its writers keep."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.child.shared_memory import SharedArray, SharedMemory
from genkidama.plugins.gorila.replay_tensor import ReplayTensor, RingSegment, ring_arrays
from genkidama.plugins.gorila.sampling import Sampler, SumTrees, nodes_of
from tests.child.memory import shared_memory
from tests.plugins.gorila.test_replay_tensor import (
    GOES_ON,
    TERMINATED,
    TRUNCATED,
    Step,
    Writer,
    everything,
    kinds,
    noted,
    shared,
)


def story(cores: int = 3, batches: int = 4) -> tuple[ReplayTensor, list[Writer]]:
    """Cores that have written more than a lap, the first nothing. The last row has a step."""
    memory = shared(cores, 8)
    writers = [Writer(memory, 4, index) for index in range(cores)]
    for writer in writers[1:]:
        for _ in range(batches - 1):
            writer.write([GOES_ON, TRUNCATED, TERMINATED, GOES_ON])
        writer.write([GOES_ON] * 3 + [TERMINATED])
    return ReplayTensor(memory, 4, (2,), 1), writers


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("share", [None, 2])
def test_every_step_is_as_probable_as_every_other(replacement: bool, share: int | None) -> None:
    replay, _ = story()
    rng = np.random.default_rng(0)
    there = [step["rewards"] for step in everything(replay, share)]
    # Without replacement few of a draw are independent of each other.
    draws, count = (1, 10_000) if replacement else (2000, 5)
    drawn = [
        Sampler(replay).sample(rng, count, share=share, replacement=replacement).rewards
        for _ in range(draws)
    ]
    rewards, counts = np.unique(drawn, return_counts=True)
    assert rewards.tolist() == sorted(there)
    expected = draws * count / len(there)
    assert np.abs(counts - expected).max() < 6 * expected**0.5


def test_what_is_drawn_is_the_readers_own() -> None:
    replay, _ = story()
    drawn = Sampler(replay).sample(np.random.default_rng(0), 50)
    copy = noted(drawn)
    replay.tensor[:] = -1.0
    assert noted(drawn) == copy


@pytest.mark.parametrize(
    ("count", "share", "replacement", "sentence"),
    [
        (1, 0, True, "1 steps asked for, 0 are there"),
        (1, 0, False, "1 steps asked for, 0 are there"),
        (10, 1, False, "10 steps asked for, 9 are there"),
        (19, None, False, "19 steps asked for, 18 are there"),
    ],
)
def test_steps_that_are_not_there_cannot_be_sampled(
    count: int, share: int | None, replacement: bool, sentence: str
) -> None:
    replay, _ = story()
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        Sampler(replay).sample(
            np.random.default_rng(0), count, share=share, replacement=replacement
        )


# Several steps.

GAMMA = 0.5


def rows_of(replay: ReplayTensor, index: int) -> dict[tuple[float, ...], int]:
    """The rows of a share that hold steps, by their observations."""
    rows = np.flatnonzero(replay.following[index] > 0.0).tolist()
    return {tuple(replay.observations[index, row].tolist()): row for row in rows}


def chained(writer: Writer, step: Step, rows: dict[tuple[float, ...], int], n: int) -> list[Step]:
    """The step and what follows it, as far as it lies further down, at most n in all."""
    by_observation = {tuple(step["observations"]): step for step in writer.steps}
    chain = [step]
    while len(chain) < n and not (chain[-1]["terminated"] or chain[-1]["truncated"]):
        here = rows[tuple(chain[-1]["observations"])]
        after = tuple(chain[-1]["following"])
        if after not in by_observation or rows.get(after, -1) <= here:
            break
        chain.append(by_observation[after])
    return chain


lanes_of_batches = st.integers(1, 3).flatmap(
    lambda lanes: st.tuples(
        st.just(lanes),
        st.lists(
            st.tuples(
                st.integers(0, 9),
                st.lists(st.lists(kinds, min_size=3, max_size=3), min_size=lanes, max_size=lanes),
            ),
            min_size=1,
            max_size=25,
        ),
    )
)


@settings(max_examples=40)
@given(lanes_of_batches, st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_n_steps_are_summed_up_as_far_as_they_are_remembered(
    played: tuple[int, list[tuple[int, list[list[int]]]]], n: int, seed: int
) -> None:
    """At episodes' ends, truncations, batches' ends, wraps, the write head and deaths of cores."""
    lanes, story = played
    batch = 3 * lanes
    memory = shared(1, 2 * batch, batch, lanes=lanes)
    replay, writer = ReplayTensor(memory, batch, (2,), 1), Writer(memory, batch, lanes=lanes)
    for luck, parts in story:
        if luck == 0:
            writer.die(*parts)
        writer.write(*parts)
    rows = rows_of(replay, 0)
    by_first = {step["observations"][0]: step for step in writer.steps}
    drawn = Sampler(replay, GAMMA).sample(np.random.default_rng(seed), 30, steps=n)
    assert drawn.weights.tolist() == [1.0] * 30
    for found, discount, place in zip(noted(drawn), drawn.discounts, drawn.places, strict=True):
        chain = chained(writer, by_first[found["observations"][0]], rows, n)
        first, last = chain[0], chain[-1]
        assert place == rows[tuple(first["observations"])]
        total = sum(GAMMA**k * step["rewards"] for k, step in enumerate(chain))
        assert found["rewards"] == pytest.approx(total, rel=1e-6)
        for name in ("following", "terminated", "truncated"):
            assert found[name] == last[name]
        assert (found["actions"], found["log_mu"]) == (first["actions"], first["log_mu"])
        assert discount == (0.0 if last["terminated"] else GAMMA ** len(chain))
    memory.close()


def test_rewards_are_scaled_and_cut_before_they_are_summed_up() -> None:
    memory = shared(1, 20)
    writer = Writer(memory, 4)
    writer.write([GOES_ON] * 3 + [TERMINATED])
    sampler = Sampler(ReplayTensor(memory, 4, (2,), 1), 1.0, lambda r: r.clip(-1.0, 1.0))
    drawn = sampler.sample(np.random.default_rng(0), 4, replacement=False, steps=3)
    assert sorted(drawn.rewards.tolist()) == [1.0, 2.0, 3.0, 3.0]
    memory.close()


@settings(max_examples=40)
@given(lanes_of_batches, st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_trajectories_are_what_was_played(
    played: tuple[int, list[tuple[int, list[list[int]]]]], length: int, seed: int
) -> None:
    lanes, story = played
    batch = 3 * lanes
    memory = shared(1, 2 * batch, batch, lanes=lanes)
    replay, writer = ReplayTensor(memory, batch, (2,), 1), Writer(memory, batch, lanes=lanes)
    for _, parts in story:
        writer.write(*parts)
    rows = rows_of(replay, 0)
    by_first = {step["observations"][0]: step for step in writer.steps}
    sampler = Sampler(replay)
    table, observations, ends, cuts, following = sampler.trajectories(
        np.random.default_rng(seed), 4, length, None
    )
    assert ends.sum() == 4
    starts = [0, *(np.flatnonzero(ends) + 1).tolist()]
    behind = iter(following.tolist())
    for start, stop in pairwise(starts):
        chain = chained(writer, by_first[table[start, 0]], rows, length)
        found = table[start:stop]
        assert found[:, :2].tolist() == [step["observations"] for step in chain]
        assert (observations[start:stop] == found[:, :2]).all()
        assert found[:, 2:4].tolist() == [[*step["actions"], step["rewards"]] for step in chain]
        assert cuts[start : stop - 1].sum() == 0
        assert cuts[stop - 1] == (not chain[-1]["terminated"])
        if cuts[stop - 1]:
            assert next(behind) == chain[-1]["following"]
    assert not list(behind)
    memory.close()


# Beside writers.


class _Interrupting(Sampler):
    """While it copies, a writer goes on."""

    def __init__(self, replay: ReplayTensor, meanwhile: Any) -> None:
        super().__init__(replay)
        self._meanwhile = meanwhile

    def _walk(self, cores: Any, rows: Any, most: int) -> Any:
        for act in self._meanwhile:
            act()
        return super()._walk(cores, rows, most)


@settings(max_examples=40)
@given(
    st.lists(st.lists(kinds, min_size=1, max_size=4), min_size=8, max_size=30),
    st.integers(0, 12),
    st.integers(1, 3),
    st.booleans(),
)
def test_what_was_overwritten_while_it_was_copied_is_drawn_again(
    batches: list[list[int]], meanwhile: int, steps: int, replacement: bool
) -> None:
    """However far the writers have come: a block, a lap, or several of them."""
    memory = shared(1, 8)
    replay, writer = ReplayTensor(memory, 4, (2,), 1), Writer(memory, 4)
    for batch in batches:
        writer.write(batch)
    acts = iter([lambda batch=batch: writer.write(batch) for batch in batches[:meanwhile]])
    drawn = _Interrupting(replay, acts).sample(
        np.random.default_rng(0), 3, replacement=replacement, steps=steps
    )
    by_first = {step["observations"][0]: step for step in writer.steps}
    for found in noted(drawn):
        # All columns are of one step, and it is none of those that may be written next.
        step = by_first[found["observations"][0]]
        assert (found["actions"], found["log_mu"]) == (step["actions"], step["log_mu"])
        if steps == 1:
            assert found == step
    there = {step["observations"][0] for step in everything(replay)}
    old = {step["observations"][0] for step in writer.steps} - there
    assert not old & {found["observations"][0] for found in noted(drawn)} or not meanwhile
    memory.close()


def test_without_priorities_none_can_be_asked_for() -> None:
    memory = shared()
    with pytest.raises(ValueError, match=r"^no priorities are kept: set replay.priority_exponent"):
        Sampler(ReplayTensor(memory, 4, (2,), 1)).sample(
            np.random.default_rng(0), 1, correction=0.4
        )
    memory.close()


def memory_of(rows: int) -> SharedMemory:
    columns = ReplayTensor.columns(2, 1)
    more = ring_arrays(rows, columns)
    more["priorities"] = SharedArray((nodes_of(rows),), "float64")
    more["largest"] = SharedArray((), "float64")
    return shared_memory(2, rows, columns, more)


class Noting(Writer):
    """A writer that tells the trees of its blocks."""

    trees: SumTrees

    def start(self) -> None:
        super().start()
        replay = ReplayTensor(self.memory, self.batch, (2,), 1)
        self.trees = SumTrees(self.memory, replay, 1.0)
        self._share = RingSegment(replay, self.index, 1)
        self._share.written = self.trees.written


def leaves(memory: SharedMemory) -> np.ndarray:
    return np.asarray(memory.priorities[:, : memory.replay.shape[1]])


@pytest.mark.parametrize("rows", [2, 31, 32, 33, 1024, 1025, 40_000])
def test_every_sum_is_that_of_what_lies_below_it(rows: int) -> None:
    memory = memory_of(rows)
    trees = SumTrees(memory, ReplayTensor(memory, 1, (2,), 1), 1.0)
    rng = np.random.default_rng(rows)
    expected = np.zeros((2, rows))
    for _ in range(5):
        places = rng.choice(2 * rows, min(2 * rows, 200), replace=False)
        given = rng.random(len(places))
        cores, at = np.divmod(places, rows)
        trees._set(cores, at, given)
        expected[cores, at] = given
    assert (leaves(memory) == expected).all()
    assert trees.totals() == pytest.approx(expected.sum(1))
    # The row at which the sum so far passes a number, in either tree.
    parts = rng.random(500)
    cores, at = trees._walk(trees.totals(), parts)
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
    st.integers(0, 7),
    st.integers(0, 2**32 - 1),
)
def test_only_steps_that_can_be_read_have_a_priority_and_new_ones_the_largest(
    story: list[tuple[int, int, list[int]]], before: int, seed: int
) -> None:
    """At wraps, truncations and deaths, while priorities are given."""
    memory = memory_of(ReplayTensor.rows(12, 4))
    replay = ReplayTensor(memory, 4, (2,), 1)
    writers = [Noting(memory, 4, index) for index in range(2)]
    trees = writers[0].trees
    for writer in writers * before:
        writer.write([GOES_ON] * 3 + [TERMINATED])
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
        steps = {tuple(step["observations"]) for step in everything(replay)}
        there = map(tuple, replay.observations[leaves(memory) > 0.0].tolist())
        assert set(there) >= steps
        if luck > 5:
            drawn = Sampler(replay, trees=trees).sample(rng, 6, correction=0.5)
            errors = rng.normal(size=6)
            trees.prioritize(0, drawn.places, errors)
            largest = max(largest, float(np.abs(errors).max()) + 1e-3)
        assert trees.totals() == pytest.approx(leaves(memory).sum(1))
    if whole := everything(replay):
        drawn = Sampler(replay, trees=trees).sample(rng, 20, correction=0.5)
        assert all(step in whole for step in noted(drawn))
        drawn = Sampler(replay, trees=trees).sample(
            rng, len(whole), replacement=False, correction=0.5
        )
        assert sorted(noted(drawn), key=lambda step: step["observations"]) == whole
    memory.close()


def filled(exponent: float = 1.0) -> tuple[SharedMemory, SumTrees, Sampler]:
    """Two cores with eight steps each, and errors of 1 to 16."""
    memory = memory_of(ReplayTensor.rows(20, 4))
    for index in range(2):
        writer = Noting(memory, 4, index)
        writer.write([GOES_ON] * 3 + [TERMINATED])
        writer.write([GOES_ON] * 3 + [TERMINATED])
    replay = ReplayTensor(memory, 4, (2,), 1)
    trees = SumTrees(memory, replay, exponent)
    rows = memory.replay.shape[1]
    places = np.concatenate((np.arange(8), rows + np.arange(8)))
    trees.prioritize(1, places, np.arange(1.0, 17.0) * np.resize([1.0, -1.0], 16))
    return memory, trees, Sampler(replay, trees=trees)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("share", [None, 1])
def test_steps_are_drawn_in_proportion_to_their_priorities(
    replacement: bool, share: int | None
) -> None:
    memory, trees, sampler = filled()
    rng = np.random.default_rng(0)
    rows = memory.replay.shape[1]
    trees.prioritize(0, np.array([rows + 7]), np.array([100.0]))
    draws, count = (150, 20) if replacement else (3000, 2)
    places = [
        sampler.sample(rng, count, share=share, replacement=replacement, correction=0.4).places
        for _ in range(draws)
    ]
    counts = np.bincount(np.concatenate(places), minlength=2 * rows)
    expected = np.zeros(2 * rows)
    expected[:8] = np.arange(1.0, 9.0)
    expected[rows : rows + 8] = [*range(9, 16), 100.0]
    if share is not None:
        expected[:rows] = 0.0
    chances = expected / expected.sum()
    expected = draws * count * chances
    if not replacement:  # the second of each two is one of those that the first has left
        left = chances / (1.0 - chances)
        expected = draws * chances * (1.0 + left.sum() - left)
    assert (np.abs(counts - expected) <= 4.0 * np.sqrt(expected)).all()
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


@pytest.mark.parametrize("replacement", [True, False])
def test_weights_are_of_the_priorities_that_were_drawn_by(
    replacement: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, trees, sampler = filled()
    steps = trees._steps

    def then_cleared(*arguments: Any) -> np.ndarray:
        good = steps(*arguments)
        trees._rows[:] = 0.0  # by other cores
        return good

    monkeypatch.setattr(trees, "_steps", then_cleared)
    rng = np.random.default_rng(0)
    drawn = sampler.sample(rng, 8, replacement=replacement, correction=0.4)
    assert (drawn.weights > 0.0).all() and drawn.weights.max() == 1.0
    memory.close()


def test_what_has_been_overwritten_gets_no_priority() -> None:
    memory, trees, sampler = filled()
    drawn = sampler.sample(np.random.default_rng(0), 16, replacement=False, correction=0.4)
    before_room = leaves(memory)[:, 8:].copy()
    trees.prioritize(0, drawn.places + 8, np.full(16, 99.0))
    assert (leaves(memory)[:, 8:] == before_room).all()
    memory.close()


def test_errors_that_are_no_numbers_are_never_drawn() -> None:
    memory, trees, sampler = filled()
    places = np.arange(8)
    trees.prioritize(0, places, np.full(8, np.nan))
    assert leaves(memory)[0].tolist() == [0.0] * memory.replay.shape[1]
    assert np.isfinite(memory.largest).all()
    assert trees.totals()[0] == 0.0
    drawn = sampler.sample(np.random.default_rng(0), 8, share=1, correction=0.4)
    assert (drawn.places >= memory.replay.shape[1]).all()
    with pytest.raises(ValueError, match=r"^3 steps asked for, 0 are there$"):
        sampler.sample(np.random.default_rng(0), 3, share=0, correction=0.4)
    memory.close()
