"""How many cores fit: pure arithmetic, and what it promises whatever it is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.child.capacity import (
    RESERVE_BYTES,
    allowance,
    cores_that_fit,
    expected_cores,
    replay_refusal,
)

MB = 10**6


sizes = st.integers(-(10**10), 10**13)


@given(sizes, st.integers(1, 10**11), st.integers(1, 512), st.integers(0, 10**11))
def test_as_many_fit_as_can_be_paid_for(
    available: int, per_core: int, at_most: int, reserve: int
) -> None:
    cores = cores_that_fit(available, per_core, at_most, reserve)
    assert 1 <= cores <= at_most
    assert cores == 1 or cores * per_core + reserve <= available
    assert cores == at_most or (cores + 1) * per_core + reserve > available


@pytest.mark.parametrize(
    ("machine", "available", "expected"),
    [
        ("Pi 3B+, 1 GB", 700 * MB, 4),
        ("the same with a desktop", 350 * MB, 4),
        ("Pi Zero 2 W, 512 MB", 300 * MB, 4),
        ("the same with little left", 200 * MB, 2),
        ("unknown", None, 4),
    ],
)
def test_what_is_expected_of_small_machines(
    machine: str, available: int | None, expected: int
) -> None:
    assert expected_cores(available, 4) == expected, machine


def test_torch_takes_memory_from_cores() -> None:
    found = {available: expected_cores(available * MB, 4, True) for available in (700, 350, 300)}
    assert found == {700: 4, 350: 2, 300: 1}


@given(sizes, st.integers(1, 64))
def test_what_one_process_is_allowed_leaves_half_of_what_is_free(free: int, among: int) -> None:
    allowed = allowance(free, among)
    assert allowed is not None
    assert allowed == 256 << 20 or allowed <= free / 2
    assert allowed >= min(free // 2, 2 * free // among)  # and is twice its share, if that is less
    assert allowance(None, among) is None


@given(st.integers(1, 64), st.integers(1, 10**7), st.integers(1, 10**5), st.integers(0, 10**12))
def test_a_replay_tensor_is_refused_to_the_byte(
    cores: int, rows: int, columns: int, free: int
) -> None:
    size = 4 * cores * rows * columns
    assert not replay_refusal(None, (cores, rows, columns), size, rows)
    assert not replay_refusal(size + RESERVE_BYTES, (cores, rows, columns), size, rows)
    why = replay_refusal(size + RESERVE_BYTES - 1, (cores, rows, columns), size, rows)
    assert why.startswith(f"replay.steps = {rows}: the replay tensor of {cores} × {rows} × ")
    fits = replay_refusal(RESERVE_BYTES + free, (cores, rows, columns), size, rows)
    if fits:
        least = int(fits.split("at most ")[1].split()[0])
        assert least * (size / rows) <= free < size


def test_the_refusal_says_what_would_fit() -> None:
    why = replay_refusal(10**9 + RESERVE_BYTES, (2, 10**6, 1000), 8 * 10**9, 10**6)
    assert why == (
        "replay.steps = 1000000: the replay tensor of 2 × 1000000 × 1000 numbers takes 8000 MB, "
        "1000 MB are free; at most 125000 steps fit"
    )


def test_a_batch_for_which_there_is_no_room_is_named_and_a_small_one_never_refused() -> None:
    why = replay_refusal(10**9, (1, 10**12, 8), 32 * 10**12, 0, 10**12)
    assert why.startswith("algorithm.batch_size = 1000000000000: the replay tensor of 1 × ")
    assert not replay_refusal(0, (1, 1024, 8), 32 * 1024, 0, 1024)
