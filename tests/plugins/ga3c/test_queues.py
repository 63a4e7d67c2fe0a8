"""The queues and bells of GA3C: pipes between threads and processes that really write and sleep."""

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
from genkidama.plugins.ga3c.engine_process import pipe
from genkidama.plugins.ga3c.queues import LEAVE, put, ring, take, waiting
from tests.helpers import PATIENCE, ROOT, small, until

CONTEXT = multiprocessing.get_context("spawn")

#: Groups that each writer puts, of three indices each. Four writers put more than a pipe holds.
GROUPS = 2000


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes started here import this module by its name, however pytest was started."""
    monkeypatch.syspath_prepend(ROOT)


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


def test_a_thousand_indices_are_put_together_and_taken_together() -> None:
    with queue() as (reader, writer):
        put(writer, range(1000))
        assert take(reader, 1000).tolist() == list(range(1000))


def _write(writer: int, number: int) -> None:
    for group in range(GROUPS):
        put(writer, (number, group, LEAVE - group))


def _write_as_a_process(connection: Connection, number: int) -> None:
    _write(connection.fileno(), number)


def test_several_threads_and_a_process_put_into_one_queue_and_each_arrives_whole_and_in_order() -> (
    None
):
    reader, writer = pipe()
    with reader, writer:
        process = CONTEXT.Process(target=_write_as_a_process, args=(writer, 3), daemon=True)
        threads = [
            threading.Thread(target=_write, args=(writer.fileno(), number)) for number in range(3)
        ]
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


def test_several_takers_get_each_index_once() -> None:
    with queue() as (reader, writer):
        taken: list[list[int]] = [[], [], []]

        def work(own: list[int]) -> None:
            while LEAVE not in (some := take(reader, 5).tolist()):
                own += some
            put(writer, [LEAVE] * (some.count(LEAVE) - 1))
            own += [index for index in some if index != LEAVE]

        threads = [threading.Thread(target=work, args=(own,)) for own in taken]
        for thread in threads:
            thread.start()
        for index in range(3000):
            put(writer, (index,))
        put(writer, [LEAVE] * 3)
        for thread in threads:
            thread.join(PATIENCE)
        assert sorted(index for own in taken for index in own) == list(range(3000))
        assert all(own == sorted(own) for own in taken)


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


def test_when_nobody_is_left_to_put_any_the_rest_is_taken_and_then_it_ends() -> None:
    reader, writer = pipe()
    with reader:
        put(writer.fileno(), (1, 2, 3))
        writer.close()
        assert take(reader.fileno(), 2).tolist() == [1, 2]
        assert take(reader.fileno(), 2).tolist() == [3]
        with pytest.raises(EOFError):
            take(reader.fileno(), 2)
        assert waiting(reader.fileno()) == 0


def test_who_sleeps_in_a_queue_that_nobody_can_put_into_any_more_wakes() -> None:
    reader, writer = pipe()
    ended = threading.Event()

    def work() -> None:
        with pytest.raises(EOFError):
            take(reader.fileno(), 1)
        ended.set()

    with reader:
        thread = threading.Thread(target=work)
        thread.start()
        writer.close()
        assert ended.wait(PATIENCE)
        thread.join()


# Bells.


def test_a_bell_wakes_whoever_sleeps_in_a_read_of_it() -> None:
    with queue() as (reader, bell):
        woken = threading.Event()

        def work() -> None:
            assert os.read(reader, 4096)
            woken.set()

        thread = threading.Thread(target=work)
        thread.start()
        assert not woken.is_set()
        ring(bell)
        assert woken.wait(PATIENCE)
        thread.join()


def test_needless_bells_are_heard_together() -> None:
    with queue() as (reader, bell):
        for _ in range(100):
            ring(bell)
        assert len(os.read(reader, 4096)) == 100
        assert waiting(reader) == 0


def test_a_bell_whose_reader_is_gone_harms_nobody() -> None:
    reader, bell = pipe()
    reader.close()
    with bell:
        ring(bell.fileno())


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
