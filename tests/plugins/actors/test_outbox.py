"""Blocks of experience between a core and its orchestrator: both sides in one process."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.child.shared_memory import SharedMemory
from genkidama.child.worker import EPISODE, RECORD, StopWorker, WorkerPipe
from genkidama.plugins.actors import rule
from genkidama.plugins.actors.outbox import (
    BLOCK,
    BLOCKS,
    BufferedPipe,
    Outbox,
    Outboxes,
    block_arrays,
    block_rows,
)
from genkidama.plugins.actors.rule import Columns
from tests.child.memory import shared_memory

BATCH = 6
COLUMNS = Columns(2, 1)


class Waits(Exception):
    """The core would sleep now."""


class Told(WorkerPipe):
    """A line that notes what the orchestrator is told, and wakes nobody."""

    def __init__(self, memory: SharedMemory, index: int, heard: Callable[[int, int], None]) -> None:
        reader, writer = Pipe(duplex=False)
        reader.close()
        super().__init__(writer, memory.stop, memory.semaphore[index : index + 1])
        self._index = index
        self._heard = heard

    def report(self, kind: int, episode_return: float = 0.0, steps: int = 0) -> None:
        assert kind == BLOCK
        self._heard(self._index, RECORD.unpack(RECORD.pack(kind, episode_return, steps))[2])

    def pause(self, after: str = "episode") -> None:
        assert after == "block"
        raise Waits


class Both:
    """A child's cores and its orchestrator."""

    def __init__(self, cores: int = 2, columns: Columns = COLUMNS, batch: int = BATCH) -> None:
        self.memory = shared_memory(cores, more=block_arrays(batch, columns))
        self.columns = columns
        self.outboxes = Outboxes(self.memory, block_rows(batch))
        self.cores = [self.core(index) for index in range(cores)]

    def core(self, index: int) -> Outbox:
        line = Told(self.memory, index, self.outboxes.given)
        return Outbox(self.memory, index, self.columns, (2,), 0.5, line)

    def write(
        self, core: int, first: float, steps: int = BATCH, cuts: tuple[int, ...] = ()
    ) -> None:
        """A block whose observations are `first`, `first` + 1, …; cuts are followed by −1."""
        outbox = self.cores[core]
        rows = outbox.begin(False)
        for t in range(steps):
            rows.observations[t] = first + t
            rows.actions[t] = t % 2
            rows.rewards[t] = 100.0 + t
        rows.terminated[:] = 0.0
        rows.truncated[:] = 0.0
        for cut in cuts[:-1]:
            rows.truncated[cut] = 1.0
        outbox.end(steps, list(cuts), [np.full(2, -1.0)] * len(cuts), np.arange(steps) / -4.0)

    def sent(self) -> np.ndarray:
        return self.outboxes.pack().reshape(-1, self.columns.count)


def test_a_block_is_sent_as_it_was_written() -> None:
    both = Both()
    assert not both.outboxes.ready
    both.write(1, 10.0, cuts=(2, 5))
    assert both.outboxes.ready
    rows = both.sent()
    assert COLUMNS.problem(rows) == ""
    assert rows[:, 0].tolist() == [10, 11, 12, 13, 14, 15, -1, -1]
    assert rows[:, 1].tolist() == rows[:, 0].tolist()
    assert rows[:6, 2].tolist() == [0, 1, 0, 1, 0, 1]
    assert rows[:6, COLUMNS.reward].tolist() == [100, 101, 102, 103, 104, 105]
    assert rows[:, COLUMNS.truncated].tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert rows[:6, COLUMNS.log_mu].tolist() == [0, -0.25, -0.5, -0.75, -1, -1.25]
    assert rows[:, COLUMNS.following].tolist() == [1, 1, 4, 1, 1, 2, 0, 0]


def test_a_shorter_block_leaves_nothing_of_the_longer_one_before() -> None:
    both = Both(cores=1)
    for _ in range(BLOCKS):
        both.write(0, 50.0, cuts=(0, 1, 2, 3, 4, 5))
    both.sent()
    both.outboxes.acknowledge()
    both.write(0, 1.0, steps=2, cuts=(1,))
    rows = both.sent()
    assert rows[:, 0].tolist() == [1, 2, -1]
    assert not rows[2, 2:].any()


def test_a_core_without_a_block_of_its_own_waits_until_a_push_is_answered() -> None:
    both = Both()
    for number in range(BLOCKS):
        assert both.outboxes.has_room(0)
        both.write(0, 10.0 * number)
    assert not both.outboxes.has_room(0)
    with pytest.raises(Waits):
        both.write(0, 1000.0)
    assert both.outboxes.has_room(1)
    first = both.sent().copy()
    assert len(first) == BLOCKS * BATCH
    both.write(1, 500.0)
    assert both.sent().tobytes() == first.tobytes(), "it is sent again as it was"
    with pytest.raises(Waits):
        both.write(0, 1000.0)
    both.outboxes.acknowledge()
    assert both.outboxes.has_room(0)
    both.write(0, 1000.0)
    assert both.sent()[::BATCH, 0].tolist() == [500.0, 1000.0]


def test_a_push_takes_no_more_than_a_parent_does_and_no_core_goes_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rule, "_NUMBERS", 1)
    both = Both(cores=3)
    for core in (0, 0, 0, 1, 1, 2):
        both.write(core, 100.0 * core)
    found = []
    while both.outboxes.ready:
        rows = both.sent()
        assert len(rows) <= block_rows(BATCH)
        found.append([int(number) // 100 for number in rows[::BATCH, 0]])
        both.outboxes.acknowledge()
    assert found == [[0, 0], [1, 1], [2, 0]]


def test_with_nothing_ready_there_is_a_stop_alone() -> None:
    rows = Both().sent()
    assert rows.shape == (1, COLUMNS.count)
    assert COLUMNS.problem(rows) == ""
    assert not rows.any()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(["write 0", "write 1", "die 0", "send", "answer"]), max_size=60))
def test_nothing_full_is_lost_or_sent_twice(plan: list[str]) -> None:
    both = Both()
    written: dict[int, list[float]] = {0: [], 1: []}
    got: list[float] = []
    under_way: np.ndarray | None = None
    for number, word in enumerate(plan):
        match word.split():
            case ["write", core]:
                try:
                    both.write(int(core), 100.0 * number, steps=1)
                except Waits:
                    assert not both.outboxes.has_room(int(core))
                else:
                    written[int(core)].append(100.0 * number)
            case ["die", core]:
                # It has begun a block, and another core goes on in its place.
                if both.outboxes.has_room(0):
                    both.cores[0].begin(False).observations[:] = -5.0
                both.cores[0] = both.core(0)
            case ["send"]:
                if both.outboxes.ready:
                    under_way = both.sent().copy()
            case ["answer"]:
                if under_way is not None:
                    got += under_way[:, 0].tolist()
                    both.outboxes.acknowledge()
                    under_way = None
    while both.outboxes.ready:
        got += both.sent()[:, 0].tolist()
        both.outboxes.acknowledge()
    assert sorted(got) == sorted(written[0] + written[1])
    for core in range(2):
        assert [value for value in got if value in written[core]] == written[core]


class Deadly:
    """Numbers whose core is killed as it writes one."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers

    def __getitem__(self, index: int) -> Any:
        return self.numbers[index]

    def __setitem__(self, index: int, number: int) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("blocks", [1, BLOCKS, BLOCKS + 3])
@pytest.mark.parametrize("where", ["_sizes", "_written"])
def test_a_core_that_is_killed_as_it_hands_over_costs_that_block_alone(
    blocks: int, where: str
) -> None:
    both = Both(cores=1)
    setattr(both.cores[0], where, Deadly(getattr(both.cores[0], where)))
    with pytest.raises(KeyboardInterrupt):
        both.write(0, -5.0, steps=1)
    both.cores[0] = both.core(0)
    got: list[float] = []
    for number in range(blocks):
        if not both.outboxes.has_room(0):
            got += both.sent()[:, 0].tolist()
            both.outboxes.acknowledge()
        both.write(0, float(number), steps=1)
    got += both.sent()[:, 0].tolist()
    assert got == list(range(blocks))


def test_discounted_returns_go_on_from_block_to_block_in_each_lane() -> None:
    both = Both(cores=1, columns=Columns(2, 1, discounted=True))
    core = both.cores[0]

    def write() -> list[float]:
        rows = core.begin(False)
        rows.rewards[:6] = [1.0, 2.0, 10.0, 20.0, 4.0, 8.0]
        rows.terminated[:] = 0.0
        rows.truncated[:] = 0.0
        rows.terminated[2] = rows.truncated[4] = 1.0
        core.end(6, [], [], 0.0)
        sent: list[float] = both.sent()[:, -1].tolist()
        both.outboxes.acknowledge()
        return sent

    core.play(3)
    assert write() == [1, 2.5, 10, 20, 4, 8]
    assert write() == [2.25, 3.125, 20, 20, 8, 8]
    core.play(3)  # and each lane begins anew
    assert write() == [1, 2.5, 10, 20, 4, 8]


def test_records_are_sent_together_with_the_next_block() -> None:
    ours, theirs = Pipe()
    stop = np.zeros(1, np.bool_)
    pipe = BufferedPipe(theirs, stop, np.zeros(1, np.bool_), "block")
    pipe.report(EPISODE, -1.5, 7)
    pipe.pause("episode")  # it waits for blocks alone
    assert not ours.poll()
    pipe.report(BLOCK, 0.0, 3)
    assert list(RECORD.iter_unpack(ours.recv_bytes())) == [(EPISODE, -1.5, 7), (BLOCK, 0.0, 3)]
    pipe.report(BLOCK, 0.0, 4)
    assert list(RECORD.iter_unpack(ours.recv_bytes())) == [(BLOCK, 0.0, 4)]
    stop[0] = True
    with pytest.raises(StopWorker):
        pipe.report(EPISODE)
    stop[0] = False
    ours.close()
    with pytest.raises(StopWorker):
        pipe.report(BLOCK)
    theirs.close()
