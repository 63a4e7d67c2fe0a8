"""Rows of the global replay: what a batch becomes, and what comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.plugins.gorila.ring import RingRows, describe, join_blocks, rows_for

ROWS = RingRows((2,), False, 1)
ENVIRONMENT = {"id": "Cart-v1", "options": {}, "wrappers": (), "vectorized": False}


def batch(first: int, steps: int, cuts: list[int]) -> np.ndarray:
    """Steps whose numbers all differ; the observation behind a cut is that step's, plus 0.5."""
    numbers = np.arange(first, first + steps, dtype=np.float32)
    observations = np.stack((numbers, -numbers), 1)
    nothing = np.zeros(steps)
    behind = [observations[cut] + np.float32(0.5) for cut in cuts]
    return ROWS.block(observations, numbers[:, None], numbers, nothing, nothing, cuts, behind, -1.0)


@given(st.integers(1, 12), st.data())
def test_a_stop_lies_behind_each_cut_and_each_step_before_what_followed_it(
    steps: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, steps - 1))))
    block = batch(0, steps, cuts)
    assert len(block) == steps + len(cuts)
    assert block.itemsize == ROWS.width
    row = 0
    for step in range(steps):
        assert block["observation"][row].tolist() == [step, -step]
        assert block["numbers"][row].tolist() == [step, step, 0, 0, -1, 1]
        row += 1
        if step in cuts:
            assert block["observation"][row].tolist() == [step + 0.5, 0.5 - step]
            assert block["numbers"][row, -1] == 0
            row += 1


def test_a_trajectory_that_goes_on_loses_its_stop() -> None:
    blocks: list[np.ndarray] = []
    join_blocks(blocks, batch(0, 3, [2]), False)
    join_blocks(blocks, batch(3, 2, [1]), True)
    join_blocks(blocks, batch(9, 1, [0]), False)
    rows = np.concatenate(blocks)
    assert rows["numbers"][:, -1].tolist() == [1, 1, 1, 1, 1, 0, 1, 0]


def test_the_first_block_that_goes_on_has_nothing_to_lose() -> None:
    blocks: list[np.ndarray] = []
    join_blocks(blocks, batch(0, 1, [0]), True)
    assert len(blocks[0]) == 2


def test_pixels_take_a_byte_each_and_come_back_as_they_were() -> None:
    rows = RingRows((2, 3), True, 1)
    seen = np.arange(250, 256, dtype=np.float32).reshape(1, 2, 3)
    one, nothing = np.ones(1), np.zeros(1)
    block = rows.block(seen, one[:, None], one, nothing, nothing, [0], [seen[0] - 250], 0.0)
    assert rows.observation_bytes == 6
    assert rows.width == 6 + 4 * 6
    found = rows.drawn(block.tobytes()[: rows.width + 6], 1, 0.9)
    assert found.observations.dtype == np.uint8
    assert (found.observations == seen).all()
    assert (found.following == seen - 250).all()


@pytest.mark.parametrize(("steps", "size", "lanes"), [(100, 8, 1), (1000, 120, 1), (50, 8, 4)])
def test_so_many_rows_hold_so_many_steps_whatever_is_cut_at_a_batchs_end(
    steps: int, size: int, lanes: int
) -> None:
    """Blocks of one batch each, none of which wraps around."""
    capacity, block = rows_for(steps, size, lanes), size + lanes
    kept = [0] * capacity
    head = 0
    for number in range(1, 5 * capacity // block):
        head = 0 if head + block > capacity else head
        kept[head : head + block] = [number] * size + [0] * lanes
        head += block
        if number * size >= steps:
            assert sum(map(bool, kept)) >= steps


def test_a_description_tells_rings_apart_that_cannot_be_shared() -> None:
    same = describe(ENVIRONMENT, ROWS, 100, False)
    assert same == "Cart-v1 (664a4ea2), float32 (2,), 1 a, 100 rows, 0 MB"
    others = {
        describe({**ENVIRONMENT, "id": "Other-v1"}, ROWS, 100, False),
        describe({**ENVIRONMENT, "options": {"wind": 1}}, ROWS, 100, False),
        describe(ENVIRONMENT, RingRows((3,), False, 1), 100, False),
        describe(ENVIRONMENT, RingRows((2,), True, 1), 100, False),
        describe(ENVIRONMENT, RingRows((2,), False, 2), 100, False),
        describe(ENVIRONMENT, ROWS, 101, False),
        describe(ENVIRONMENT, ROWS, 100, True),
    }
    assert len(others) == 7
    assert same not in others
