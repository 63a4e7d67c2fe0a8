"""What an exchange does to the weights in shared memory, by value; no process is needed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.child.shared_memory import Layout, SharedMemory
from genkidama.child.shared_weights import SharedWeights, change

SIZE = 4
INITIAL = np.arange(SIZE, dtype=np.float32)


def memory_of(state_rows: int) -> SharedMemory:
    sizes = {"steps": 1, "columns": 1, "size": SIZE, "trainable": SIZE, "state_sets": 1}
    return SharedMemory(Layout(cores=1, state_rows=state_rows, **sizes))


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
