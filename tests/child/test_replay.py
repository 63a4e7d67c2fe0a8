from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.child.replay import ReplayTensor


def replay(
    filled: list[int], steps: int = 10, shape: tuple[int, ...] = (3,), actions: int = 2
) -> ReplayTensor:
    columns = ReplayTensor.columns(int(np.prod(shape)), actions)
    return ReplayTensor(
        np.zeros((len(filled), steps, columns), np.float32),
        np.array(filled, np.int64),
        shape,
        actions,
    )


# Columns.


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(st.integers(1, 3), max_size=3).map(tuple),
    st.integers(1, 3),
)
def test_every_column_is_a_view_of_its_own_part_of_the_tensor(
    cores: int, steps: int, shape: tuple[int, ...], actions: int
) -> None:
    ours = replay([steps] * cores, steps, shape, actions)
    width = int(np.prod(shape))
    assert ours.tensor.shape == (cores, steps, width + actions + 3)
    columns = [ours.observations, ours.actions, ours.rewards, ours.terminated, ours.truncated]
    assert [column.shape[2:] for column in columns] == [shape, (actions,), (), (), ()]
    rng = np.random.default_rng(0)
    written = [rng.normal(size=column.shape).astype(np.float32) for column in columns]
    for column, numbers in zip(columns, written, strict=True):
        column[...] = numbers
    # Read back through new views, as another core has them.
    other = ReplayTensor(ours.tensor, ours.filled, shape, actions)
    for column, numbers in zip(
        [other.observations, other.actions, other.rewards, other.terminated, other.truncated],
        written,
        strict=True,
    ):
        assert (column == numbers).all()
    # Side by side in one row, in the documented order, and nothing is left over.
    rows = np.concatenate([numbers.reshape(cores, steps, -1) for numbers in written], axis=2)
    assert (ours.tensor == rows).all()


def test_a_core_writes_its_own_share_only() -> None:
    ours = replay([0, 0, 0])
    ours.observations[1, 4] = [1.0, 2.0, 3.0]
    ours.actions[1, 4] = [4.0, 5.0]
    ours.rewards[1, 4], ours.terminated[1, 4], ours.truncated[1, 4] = 6.0, 7.0, 8.0
    assert ours.tensor[1, 4].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    ours.tensor[1, 4] = 0.0
    assert not ours.tensor.any()


def test_a_tensor_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError) as caught:
        ReplayTensor(np.zeros((2, 10, 7), np.float32), np.zeros(2, np.int64), (3,), 2)
    assert str(caught.value) == "a replay tensor of 7 columns, expected 8"


# Sampling.

fills = st.lists(st.integers(0, 10), min_size=1, max_size=5).filter(any)


@given(fills, st.integers(1, 30), st.booleans(), st.integers(0, 2**32 - 1))
def test_only_written_steps_are_sampled(
    filled: list[int], count: int, replacement: bool, seed: int
) -> None:
    count = count if replacement else min(count, sum(filled))
    cores, places = replay(filled).sample(
        np.random.default_rng(seed), count, replacement=replacement
    )
    assert cores.shape == places.shape == (count,)
    drawn = list(zip(cores.tolist(), places.tolist(), strict=True))
    assert all(0 <= place < filled[core] for core, place in drawn)
    if not replacement:
        assert len(set(drawn)) == count


@given(fills, st.integers(0, 2**32 - 1))
def test_without_replacement_all_steps_come_exactly_once(filled: list[int], seed: int) -> None:
    cores, places = replay(filled).sample(
        np.random.default_rng(seed), sum(filled), replacement=False
    )
    everything = [(core, place) for core, n in enumerate(filled) for place in range(n)]
    assert sorted(zip(cores.tolist(), places.tolist(), strict=True)) == everything


@given(fills, st.booleans(), st.integers(0, 2**32 - 1), st.data())
def test_a_share_is_sampled_alone(
    filled: list[int], replacement: bool, seed: int, data: st.DataObject
) -> None:
    share = data.draw(st.sampled_from([core for core, n in enumerate(filled) if n]))
    cores, places = replay(filled).sample(
        np.random.default_rng(seed), filled[share], share=share, replacement=replacement
    )
    assert set(cores.tolist()) == {share}
    assert all(0 <= place < filled[share] for place in places.tolist())
    if not replacement:
        assert sorted(places.tolist()) == list(range(filled[share]))


@pytest.mark.parametrize("replacement", [True, False])
def test_every_written_step_is_as_probable_as_every_other(replacement: bool) -> None:
    ours, rng = replay([3, 0, 7, 1]), np.random.default_rng(0)
    counts = np.zeros((4, 10))
    for _ in range(4000):
        cores, places = ours.sample(rng, 5, replacement=replacement)
        np.add.at(counts, (cores, places), 1)
    expected = 4000 * 5 / 11
    written = np.concatenate([counts[core, :n] for core, n in enumerate([3, 0, 7, 1])])
    assert counts.sum() == written.sum() == 4000 * 5
    assert np.abs(written - expected).max() < 6 * expected**0.5


def test_with_replacement_more_can_be_drawn_than_there_are() -> None:
    cores, places = replay([1, 1]).sample(np.random.default_rng(0), 100)
    assert set(zip(cores.tolist(), places.tolist(), strict=True)) == {(0, 0), (1, 0)}


def test_what_is_written_later_can_be_sampled_later() -> None:
    ours = replay([0, 1])
    ours.filled[0] = 5
    cores, _ = ours.sample(np.random.default_rng(0), 100)
    assert set(cores.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("filled", "arguments", "sentence"),
    [
        ([0, 0], {"count": 1}, "1 steps asked for, 0 are there"),
        ([3, 0], {"count": 1, "share": 1}, "1 steps asked for, 0 are there"),
        ([3, 2], {"count": 6, "replacement": False}, "6 steps asked for, 5 are there"),
        ([3, 2], {"count": 4, "share": 0, "replacement": False}, "4 steps asked for, 3 are there"),
    ],
)
def test_steps_that_are_not_there_cannot_be_sampled(
    filled: list[int], arguments: dict[str, int], sentence: str
) -> None:
    with pytest.raises(ValueError) as caught:
        replay(filled).sample(np.random.default_rng(0), **arguments)  # type: ignore[arg-type]
    assert str(caught.value) == sentence
