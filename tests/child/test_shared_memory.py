"""What the cores of a child share: which arrays, and how large."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.child import shared_memory
from genkidama.child.shared_memory import (
    DiagnosticsReader,
    Layout,
    SharedArray,
    SharedMemory,
    SharedWeights,
    change,
    core_arrays,
    progress_checksum,
)
from genkidama.protocol.diagnostics import SHAPE, Diagnostics
from tests.helpers import small


@pytest.mark.parametrize("shared_state", [True, False])
def test_every_array_has_its_shape_and_type_and_starts_as_zeros(shared_state: bool) -> None:
    arrays = core_arrays(
        rows=5, columns=7, size=11, trainable=10, state_rows=2, shared_state=shared_state
    )
    more = {
        "own": SharedArray((2,), "uint8"),
        "common": SharedArray((4,), "int64", per_core=False),
    }
    memory = SharedMemory(Layout(arrays | more, 3))
    sets = 1 if shared_state else 3
    shapes = {
        "weights": ((11,), "float32"),
        "gradients": ((3, 10), "float32"),
        "state": ((sets, 2, 10), "float32"),
        "clock": ((sets,), "float64"),
        "replay": ((3, 5, 7), "float32"),
        "head": ((3,), "int64"),
        "diagnostics": ((3, *SHAPE), "float64"),
        "semaphore": ((3,), "bool"),
        "progress": ((2,), "float64"),
        "stop": ((1,), "bool"),
        "averaging": ((6,), "float64"),
        "resting": ((1,), "float64"),
        "own": ((3, 2), "uint8"),
        "common": ((4,), "int64"),
    }
    assert {
        name: (getattr(memory, name).shape, getattr(memory, name).dtype.name)
        for name in memory.layout.parts()
    } == shapes
    assert not any(getattr(memory, name).any() for name in shapes)
    memory.close()


def test_without_cores_only_the_arrays_that_all_share_are_left() -> None:
    arrays = core_arrays(rows=5, columns=7, size=11, trainable=10)
    parts = Layout(arrays, 3).for_cores(0).parts()
    assert {name for name, (shape, _) in parts.items() if 0 not in shape} == {
        "weights",
        "state",
        "clock",
        "progress",
        "stop",
        "averaging",
        "resting",
    }


def test_the_replay_is_the_tensor_and_what_is_beside_it_for_each_core() -> None:
    arrays = core_arrays(rows=5, columns=7, size=11, trainable=10)
    assert Layout(arrays, 3).replay_bytes == 3 * 4 * 5 * 7
    more = {
        "replay": SharedArray((9, 2), "float32"),
        "pixels": SharedArray((9, 5), "uint8"),
        "target": SharedArray((10,), "float32", per_core=False),
    }
    assert Layout(arrays | more, 3).replay_bytes == 3 * (4 * 9 * 2 + 9 * 5)
    assert Layout(arrays | more, 3).replay_shape == (3, 9, 2)


@pytest.mark.parametrize(
    ("rows", "columns", "head", "row"),
    [
        (2048, 84 * 84 * 4, 2048, 2047),
        (2_000_000, 9, 0, 900_000),
        (2_000_000, 9, 1_500_000, 1_500_000),
    ],
)
def test_each_step_changes_the_checksum(rows: int, columns: int, head: int, row: int) -> None:
    """Of a batch of images, and of a replay, in which a core writes on from its head."""
    memory = SharedMemory(Layout(core_arrays(rows=rows, columns=columns, size=1, trainable=1)))
    memory.head[0] = head
    before = progress_checksum(memory, 0)
    assert progress_checksum(memory, 0) == before
    memory.replay[0, row, -3] = 1.0
    assert progress_checksum(memory, 0) != before
    memory.close()


SIZE = 4
INITIAL = np.arange(SIZE, dtype=np.float32)


def memory_of(state_rows: int) -> SharedMemory:
    return SharedMemory(
        Layout(core_arrays(rows=1, columns=1, size=SIZE, trainable=SIZE, state_rows=state_rows))
    )


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = memory_of(state_rows=2)
    yield memory
    memory.close()


@pytest.fixture
def weights(memory: SharedMemory) -> SharedWeights:
    return SharedWeights(memory, INITIAL.tobytes())


def test_it_begins_with_given_weights_or_with_the_initial_ones(
    memory: SharedMemory, weights: SharedWeights
) -> None:
    weights.begin(None)
    np.testing.assert_array_equal(memory.weights, INITIAL)
    weights.begin(np.full(SIZE, 7.0, np.float32))
    np.testing.assert_array_equal(memory.weights, np.full(SIZE, 7.0))


numbers = st.floats(-100.0, 100.0, width=32)


@given(ours=numbers, parent=numbers, learned=numbers, beta=st.floats(0.0, 1.0))
def test_the_blend_is_the_documented_one_and_may_keep_what_was_learned_meanwhile(
    ours: float, parent: float, learned: float, beta: float
) -> None:
    memory = memory_of(state_rows=1)
    theirs = np.full(SIZE, parent, np.float32)
    blended = (1.0 - beta) * ours + beta * parent
    for keep_changes in (False, True):
        weights = SharedWeights(memory, np.full(SIZE, ours, np.float32).tobytes())
        weights.blend(weights.snapshot(), theirs, beta, keep_changes)
        np.testing.assert_allclose(memory.weights, blended, atol=1e-3)
    weights.begin(np.full(SIZE, ours, np.float32))
    sent = weights.snapshot()
    memory.weights += np.float32(learned)
    weights.blend(sent, theirs, beta, keep_changes=True)
    np.testing.assert_allclose(memory.weights, blended + learned, atol=1e-3)
    np.testing.assert_allclose(change(sent, theirs, beta), blended - ours, atol=1e-3)
    memory.close()


def test_a_blend_without_a_share_of_the_parents_touches_nothing(
    memory: SharedMemory, weights: SharedWeights
) -> None:
    """Not even where the parent's weights are no numbers."""
    for keep_changes in (False, True):
        weights.blend(INITIAL, np.full(SIZE, np.nan, np.float32), 0.0, keep_changes)
    np.testing.assert_array_equal(memory.weights, INITIAL)


def test_a_reset_forgets_the_optimizers_state(memory: SharedMemory, weights: SharedWeights) -> None:
    memory.state[:] = 5.0
    memory.clock[:] = 5.0
    weights.reset(np.full(SIZE, 3.0, np.float32))
    np.testing.assert_array_equal(memory.weights, np.full(SIZE, 3.0))
    assert not memory.state.any()
    assert not memory.clock.any()


@pytest.mark.parametrize(("rows", "kept"), [(1, False), (2, True)])
def test_momenta_of_another_optimizer_are_not_taken_over(
    memory: SharedMemory, weights: SharedWeights, rows: int, kept: bool
) -> None:
    for array in (memory.weights, memory.state, memory.clock):
        array[:] = 5.0
    state = weights.state()
    memory.weights[:] = 6.0  # the state is a copy
    other = memory_of(rows)
    SharedWeights(other, INITIAL.tobytes()).restore(state)
    assert (other.weights == 5.0).all()
    assert (other.clock == 5.0).all()
    assert bool((other.state == 5.0).all()) is kept
    other.close()


def test_progress_is_there_for_every_process_to_read(
    memory: SharedMemory, weights: SharedWeights
) -> None:
    weights.set_progress(0.25)
    assert memory.progress[0] == 0.25


def test_means_of_all_cores_and_the_rates_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(shared_memory.time, "monotonic", lambda: now)
    settings = small(
        optimizer={"learning_rate": 0.4, "schedule": "linear"},
        algorithm={"epsilon": 0.5, "epsilon_spread": 1.0},
    )
    sums = np.zeros((2, *SHAPE))
    reader = DiagnosticsReader(settings, 2)
    assert reader.figures(sums, 0.25) == {}
    cores = [Diagnostics(row) for row in sums]
    cores[1].ended(30)
    figures = reader.figures(sums, 0.25)
    assert figures == {"episode_length": 30.0, "episodes_ended": 1.0, "epsilon": 0.375}
    now = 20.0
    cores[1].ended(30)
    assert reader.figures(sums, 0.25) == figures
    cores[0].add(3, loss=1.0)
    cores[1].add(1, loss=5.0)
    for core in cores:
        core.close(2.0)
    now += 0.1
    assert reader.figures(sums, 0.25) == {}  # too soon
    now += 0.2
    assert reader.figures(sums, 0.25) == {
        "loss": 2.0,
        "gradient_norm": 2.0,
        "samples": 4.0,
        "learning_rate": pytest.approx(0.3),
        "epsilon": 0.375,  # 0.5 and 0.5²
    }


def test_a_run_of_any_length_has_reported_nine_tenths_of_its_episodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(shared_memory.time, "monotonic", lambda: now)
    sums = np.zeros((1, *SHAPE))
    reader, core = DiagnosticsReader(small()), Diagnostics(sums[0])
    reports: list[float] = []
    for millisecond in range(5000):
        now = millisecond / 1000
        core.ended(1)
        reports += [value for key, value in reader.figures(sums, 0.0).items() if "ended" in key]
        assert millisecond + 1 - sum(reports) <= min(250, 0.1 * millisecond) + 1
    assert len(reports) < 80
