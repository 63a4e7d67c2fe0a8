"""Memory, queues and bells of a GA3C child, between threads and processes that really use them."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.plugins.ga3c.backend import GA3C
from genkidama.plugins.ga3c.slots import (
    LEAVE,
    SlotLayout,
    Slots,
    pipe,
    put,
    ring,
    take,
    waiting,
)
from tests.helpers import PATIENCE, small, until

LAYOUT = SlotLayout(
    agents=2,
    environments=3,
    rollouts=4,
    steps=5,
    observation_shape=(4, 7, 6),
    observation_type="uint8",
    action_columns=2,
    size=23,
    trainable=20,
    state_rows=2,
    threads=7,
)

CONTEXT = multiprocessing.get_context("spawn")


def test_observations_keep_their_axes() -> None:
    slots = Slots(LAYOUT)
    assert slots.observations.shape == (2 * 3 * 4 * 5, 4, 7, 6)
    slots.close()


#: Groups that each writer puts, of three indices each. Four writers put more than a pipe holds.
GROUPS = 2000


@contextmanager
def queue() -> Iterator[tuple[int, int]]:
    """The descriptors to take from and to put into."""
    reader, writer = pipe()
    with reader, writer:
        yield reader.fileno(), writer.fileno()


# Indices.


@given(
    st.lists(
        st.one_of(
            st.lists(st.integers(0, LEAVE), max_size=20),  # put these
            st.integers(1, 30),  # take so many at most
        ),
        max_size=30,
    )
)
def test_what_is_taken_is_what_was_put_whole_and_in_order_and_no_more_than_asked(
    plan: list[list[int] | int],
) -> None:
    with queue() as (reader, writer):
        expected: deque[int] = deque()
        for step in plan:
            if isinstance(step, list):
                put(writer, step)
                expected.extend(step)
            elif expected:
                taken = take(reader, step)
                assert taken.dtype == np.uint32
                assert taken.tolist() == [
                    expected.popleft() for _ in range(min(step, len(expected)))
                ]
            assert waiting(reader) == len(expected)


def _write(writer: Connection, number: int) -> None:
    for group in range(GROUPS):
        put(writer.fileno(), (number, group, LEAVE - group))


def test_several_threads_and_a_process_put_into_one_queue_and_each_arrives_whole_and_in_order() -> (
    None
):
    reader, writer = pipe()
    with reader, writer:
        process = CONTEXT.Process(target=_write, args=(writer, 3), daemon=True)
        threads = [threading.Thread(target=_write, args=(writer, number)) for number in range(3)]
        for started in (process, *threads):
            started.start()
        sizes = [1, 2, 7, 64, 128]
        taken: list[int] = []
        while len(taken) < 4 * GROUPS * 3:
            taken += take(reader.fileno(), sizes[len(taken) % len(sizes)]).tolist()
        for started in (process, *threads):
            started.join()
        assert process.exitcode == 0 and not waiting(reader.fileno())
        process.close()
    groups = np.array(taken).reshape(-1, 3)
    for number in range(4):
        own = groups[groups[:, 0] == number]
        assert own[:, 1].tolist() == list(range(GROUPS)) and own[:, 2].tolist() == [
            LEAVE - group for group in range(GROUPS)
        ]


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/task"), reason="looks at a thread's state in /proc"
)
def test_taking_sleeps_while_there_is_nothing() -> None:
    with queue() as (reader, writer):
        taken: list[int] = []
        spent: list[float] = []

        def work() -> None:
            began = time.thread_time()
            taken.extend(take(reader, 8).tolist())
            spent.append(time.thread_time() - began)

        thread = threading.Thread(target=work)
        thread.start()

        def asleep() -> bool:
            with open(f"/proc/self/task/{thread.native_id}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "S"

        until(asleep)
        time.sleep(0.2)
        assert asleep() and not taken
        put(writer, (7,))
        thread.join(PATIENCE)
        assert taken == [7] and spent[0] < 0.02


# Bells.


@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="asks how much a pipe holds")
async def test_a_bell_that_is_full_harms_nobody() -> None:
    """One of those that a child has."""
    backend = GA3C(small(child={"backend": "ga3c"}), 1)
    reader, bell = (end.fileno() for end in backend._bells[0])
    try:
        size = fcntl.fcntl(bell, fcntl.F_GETPIPE_SZ)
        for _ in range(size // 4096):
            os.write(bell, bytes(4096))
        thread = threading.Thread(target=ring, args=(bell,))
        thread.start()
        thread.join(1.0)
        blocked = thread.is_alive()
        assert len(os.read(reader, size)) == size
        thread.join()
        assert not blocked
    finally:
        await backend.shutdown()
