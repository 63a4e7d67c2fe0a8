"""Shared memory between real processes, and what is left of it afterwards: nothing."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.child.shared_memory import Layout, SharedMemory, core_arrays
from genkidama.errors import EnvironmentFailure
from genkidama.runtime.shared_block import Block
from tests.helpers import shared_memory
from tests.runtime.answering import answer

LAYOUT = Layout(core_arrays(rows=5, columns=7, size=11, trainable=10, state_rows=2), 3)

ROOT = Path(__file__).parents[2]

#: Not the fork server: its first start decides what every later core of these tests finds imported.
CONTEXT = multiprocessing.get_context("spawn")


def opened() -> int:
    return len(os.listdir("/proc/self/fd"))


def descriptors() -> int:
    """Open ones. Those of unreachable objects do not count: they go with the next collection."""
    gc.collect()
    return opened()


linux = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")


counts = st.integers(1, 20)


@given(
    st.builds(
        Layout,
        st.builds(
            core_arrays,
            rows=counts,
            columns=counts,
            size=counts,
            trainable=counts,
            state_rows=st.integers(1, 2),
            shared_state=st.booleans(),
        ),
        counts,
    )
)
def test_no_two_parts_overlap_and_each_starts_at_a_cache_line(layout: Layout) -> None:
    memory = SharedMemory(layout)
    try:
        parts = [getattr(memory, name) for name in layout.parts()]
        for value, part in enumerate(parts):
            part[...] = value % 2 if part.dtype == np.bool_ else value
        for value, part in enumerate(parts):
            assert (part == (value % 2 if part.dtype == np.bool_ else value)).all()
        starts = [part.ctypes.data for part in parts]
        assert all((start - starts[0]) % 64 == 0 for start in starts)
    finally:
        memory.close()


# Two processes.


def test_two_processes_see_the_same_memory_and_neither_needs_the_other_to_live() -> None:
    memory = SharedMemory(LAYOUT)
    memory.weights[:] = np.arange(11)
    memory.replay[2, 4] = 0.5
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=answer, args=(memory, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.recv() == (LAYOUT, list(map(float, range(11))), [0.5] * 7)
    assert ours.recv() == "written"
    assert memory.gradients.tolist() == [[0.0] * 10, [6.0] * 10, [0.0] * 10]
    assert memory.semaphore.tolist() == [False, False, True] and memory.head.tolist() == [
        2**40,
        0,
        0,
    ]
    memory.weights[3] = -1.0
    ours.send("look again")
    assert ours.recv() == [0.0, 1.0, 2.0, -1.0, *map(float, range(4, 11))]
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    memory.weights[0] = 8.0
    assert memory.weights[0] == 8.0 and memory.gradients[1, 0] == 6.0
    ours.close()
    process.close()
    memory.close()


# What is left.


@linux
def test_closing_gives_every_descriptor_back() -> None:
    before = descriptors()
    for _ in range(10):
        without = opened()
        memory = SharedMemory(LAYOUT)
        assert opened() > without
        memory.close()
        memory.close()  # again: nothing happens, and nobody else's descriptor is closed
        del memory
    assert descriptors() == before


@linux
def test_arrays_outlive_the_descriptor() -> None:
    memory = SharedMemory(LAYOUT)
    weights = memory.weights
    memory.close()
    weights[:] = 3.0
    del memory
    gc.collect()
    assert weights.tolist() == [3.0] * 11


@linux
@pytest.mark.parametrize("killed", [False, True])
def test_nothing_is_left_of_a_process_and_its_memory(killed: bool) -> None:
    resource_tracker.ensure_running()  # it keeps a descriptor, which is not ours to count
    before, files = descriptors(), shared_memory(os.getpid())
    memory = SharedMemory(LAYOUT)
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=answer, args=(memory, theirs), daemon=True)
    process.start()
    theirs.close()
    for _ in range(2):
        ours.recv()
    # It has no name, even while it lives.
    assert process.pid is not None
    assert shared_memory(os.getpid(), process.pid) <= files
    if killed:
        process.kill()
    else:
        ours.send("look again")
        ours.recv()
        ours.send("end")
    process.join()
    assert process.exitcode == (-signal.SIGKILL if killed else 0)
    process.close()
    ours.close()
    memory.close()
    del process, memory, ours, theirs
    assert descriptors() == before


@pytest.mark.parametrize("count", [10**14, 10**17, 10**30])
def test_a_block_that_no_machine_has_is_one_line(count: int) -> None:
    class Absurd:
        def parts(self) -> dict[str, tuple[tuple[int, ...], Any]]:
            return {"numbers": ((count,), np.float64)}

    with pytest.raises(EnvironmentFailure, match="lower algorithm") as caught:
        Block(Absurd())
    assert "\n" not in str(caught.value)
