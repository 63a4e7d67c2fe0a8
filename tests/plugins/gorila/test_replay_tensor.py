"""The replay tensor against a list of dictionaries: every step is noted twice, and compared."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.child.shared_memory import SharedMemory
from genkidama.learning.rollout import Transitions
from genkidama.plugins.gorila.replay_tensor import ReplayTensor, RingSegment, ring_arrays
from genkidama.plugins.gorila.sampling import Sampler
from tests.child.memory import shared_memory

GOES_ON, TERMINATED, TRUNCATED = range(3)

Step = dict[str, Any]

#: What the list has of a step.
COLUMNS = (
    "observations",
    "actions",
    "rewards",
    "following",
    "terminated",
    "truncated",
    "log_mu",
)


def shared(
    cores: int = 1,
    steps: int = 20,
    batch: int = 4,
    width: int = 2,
    actions: int = 1,
    lanes: int = 1,
) -> SharedMemory:
    rows = ReplayTensor.rows(steps, batch, lanes)
    columns = ReplayTensor.columns(width, actions)
    return shared_memory(cores, rows, columns, ring_arrays(rows, columns))


class Writer:
    """A core that plays a made-up game, and notes each step in a list of dictionaries as well.

    No number comes twice: not within a core, and not in two of them. It plays in one lane or in
    several, and a batch is given as how each step ends, lane by lane.
    """

    def __init__(self, memory: Any, batch: int, index: int = 0, lanes: int = 1) -> None:
        self.memory = memory
        self.batch = batch
        self.index = index
        self.lanes = lanes
        self.steps: list[Step] = []
        self._drawn = 1_000_000 * index
        self.start()

    def start(self) -> None:
        """A new core takes the place of the old one, in the midst of whatever that did."""
        replay = ReplayTensor(self.memory, self.batch, (2,), 1)
        self._share = RingSegment(replay, self.index, self.lanes)
        self._observations = [self._new() for _ in range(self.lanes)]
        self._goes_on = False

    def write(self, *batch: list[int]) -> None:
        """A batch."""
        noted, cuts, following = self._play(*batch)
        log_mu = np.array([step["log_mu"] for step in noted], np.float32)
        self._share.end(len(noted), cuts, following, log_mu)
        self.steps += noted

    def die(self, *batch: list[int]) -> None:
        """A batch that is never finished."""
        self._play(*batch)
        self.start()

    def _play(self, *batch: list[int]) -> tuple[list[Step], list[int], list[np.ndarray]]:
        rows = self._share.begin(self._goes_on)
        rows.terminated[:] = 0.0
        rows.truncated[:] = 0.0
        noted: list[Step] = []
        cuts: list[int] = []
        following: list[np.ndarray] = []
        ends = [
            (lane, kinds, step) for lane, kinds in enumerate(batch) for step in range(len(kinds))
        ]
        for t, (lane, kinds, step) in enumerate(ends):
            kind, before, after = kinds[step], self._observations[lane], self._new()
            action, reward, log_mu = self._number(), self._number(), self._number()
            rows.observations[t] = before
            rows.actions[t] = action
            rows.rewards[t] = reward
            rows.terminated[t] = kind == TERMINATED
            rows.truncated[t] = kind == TRUNCATED
            # Nothing follows a termination: the observation itself stands there.
            follows = before if kind == TERMINATED else after
            noted.append(
                {
                    "observations": before.tolist(),
                    "actions": [action],
                    "rewards": reward,
                    "following": follows.tolist(),
                    "terminated": kind == TERMINATED,
                    "truncated": kind == TRUNCATED,
                    "log_mu": log_mu,
                }
            )
            if kind == TRUNCATED or (kind == GOES_ON and step == len(kinds) - 1):
                cuts.append(t)
                following.append(after)
            self._observations[lane] = after if kind == GOES_ON else self._new()
        self._goes_on = self.lanes == 1 and kinds[-1] == GOES_ON
        return noted, cuts, following

    def _number(self) -> float:
        self._drawn += 1
        return float(self._drawn)

    def _new(self) -> np.ndarray:
        return np.array([self._number(), self._number()], np.float32)


def noted(drawn: Transitions) -> list[Step]:
    """What was drawn, as the list has it."""
    columns = {name: getattr(drawn, name).tolist() for name in COLUMNS}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def everything(replay: ReplayTensor, share: int | None = None) -> list[Step]:
    """All that can be sampled, in the order in which it was noted."""
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"^9999 steps asked for, \d+ are there$") as caught:
        Sampler(replay).sample(rng, 9999, share=share, replacement=False)
    there = re.search(r"(\d+) are", str(caught.value))
    assert there is not None
    count = int(there[1])
    if not count:
        return []
    drawn = noted(Sampler(replay).sample(rng, count, share=share, replacement=False))
    return sorted(drawn, key=lambda step: step["observations"])


def assert_all_but_the_next_can_be_read(replay: ReplayTensor) -> None:
    """Of the rows that are written, all but the next 2·B."""
    rows, room, view = replay.tensor.shape[1], 2 * replay.batch, replay.view()
    for core, (front, back, start, head, _) in enumerate(zip(*view, strict=True)):
        wraps = head + room > rows
        written = set(range(head if wraps else max(head, replay.filled[core])))
        ahead = range(room) if wraps else range(head, head + room)
        assert {*range(front), *range(start, start + back)} == written.difference(ahead)


kinds = st.sampled_from([GOES_ON, GOES_ON, GOES_ON, TERMINATED, TRUNCATED])
#: What a core does next: whether it dies of it, and how each step of a batch ends.
acts = st.tuples(st.booleans(), st.lists(kinds, min_size=1, max_size=4))


@given(
    st.integers(1, 3),
    st.integers(4, 24),
    st.lists(st.tuples(st.integers(0, 2), acts), min_size=1, max_size=40),
)
def test_what_can_be_sampled_are_the_newest_steps_and_each_is_whole(
    cores: int, steps: int, story: list[tuple[int, tuple[bool, list[int]]]]
) -> None:
    """At wrap-arounds, episodes' ends, truncations, short batches and deaths of cores."""
    memory = shared(cores, steps)
    replay = ReplayTensor(memory, 4, (2,), 1)
    writers = [Writer(memory, 4, index) for index in range(cores)]
    for who, (dies, batch) in story:
        writer = writers[who % cores]
        if dies:
            writer.die(batch)
        else:
            writer.write(batch)
        assert_all_but_the_next_can_be_read(replay)
        there = everything(replay)
        own = [[step for step in there if step["rewards"] // 1e6 == core] for core in range(cores)]
        for writer, found in zip(writers, own, strict=True):
            assert found == writer.steps[len(writer.steps) - len(found) :]
    for writer in writers:
        assert everything(replay, writer.index) == own[writer.index]
    memory.close()


@given(
    st.integers(2, 4),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from([[GOES_ON, GOES_ON, TERMINATED], [GOES_ON, TERMINATED, TRUNCATED]]).flatmap(
        lambda ways: st.lists(
            st.tuples(st.booleans(), st.lists(st.sampled_from(ways), min_size=12, max_size=12)),
            max_size=30,
        )
    ),
)
def test_with_several_lanes_the_newest_batches_are_there_and_each_step_is_whole(
    lanes: int, length: int, more: int, story: list[tuple[bool, list[int]]]
) -> None:
    """And at least as many steps as were asked for, if none was truncated."""
    batch = lanes * length
    memory = shared(1, batch + more, batch, lanes=lanes)
    replay, writer = ReplayTensor(memory, batch, (2,), 1), Writer(memory, batch, lanes=lanes)
    for dies, ends in story:
        parts = [ends[lane * length : (lane + 1) * length] for lane in range(lanes)]
        if dies:
            writer.die(*parts)
        writer.write(*parts)
        found = everything(replay)
        # In the order of their numbers: those of a batch in which lanes take turns are mixed.
        assert found == sorted(writer.steps[-len(found) :], key=lambda step: step["observations"])
        if not any(step["truncated"] for step in writer.steps):
            assert len(found) >= min(len(writer.steps), batch + more)
    memory.close()


class _Killed(Exception):
    pass


class _Deadly:
    """A counter at which a core dies before it writes it."""

    def __init__(self, counter: np.ndarray) -> None:
        self._counter = counter

    def __getitem__(self, index: int) -> Any:
        return self._counter[index]

    def __setitem__(self, index: int, value: Any) -> None:
        raise _Killed


def test_a_core_that_dies_before_its_block_counts_leaves_no_half_of_it() -> None:
    memory = shared(1, 20)
    replay, writer = ReplayTensor(memory, 4, (2,), 1), Writer(memory, 4)
    writer.write([GOES_ON] * 4)
    before = writer.steps[:]
    writer._share._head = _Deadly(writer._share._head)  # type: ignore[assignment]
    with pytest.raises(_Killed):
        writer.write([GOES_ON] * 4)
    writer.start()
    assert everything(replay) == before
    writer.steps = before
    writer.write([GOES_ON] * 4)
    assert everything(replay) == writer.steps
    memory.close()


@given(st.integers(4, 40), st.integers(1, 30), st.lists(st.integers(1, 4), max_size=30))
def test_as_many_steps_are_kept_as_were_asked_for(
    steps: int, length: int, batches: list[int]
) -> None:
    """Terminations cost no row. So all steps are there at first, and later at least so many."""
    memory = shared(1, steps)
    replay, writer = ReplayTensor(memory, 4, (2,), 1), Writer(memory, 4)
    for count in batches:
        done = len(writer.steps)
        writer.write([TERMINATED if not (done + t + 1) % length else GOES_ON for t in range(count)])
        assert len(everything(replay)) >= min(len(writer.steps), steps)
    memory.close()


@given(st.lists(st.lists(kinds, min_size=1, max_size=4), min_size=2, max_size=40), st.booleans())
def test_what_a_reader_has_looked_at_stays_until_the_writer_is_a_batch_further(
    batches: list[list[int]], ends: bool
) -> None:
    """Its look at the counters is old by then; what it draws by them is still right."""
    memory = shared(1, 8)
    writer = Writer(memory, 4)
    for batch in batches[:-1]:
        writer.write(batch)
    view = SimpleNamespace(
        replay=memory.replay,
        head=memory.head.copy(),
        filled=memory.filled.copy(),
        ended=memory.ended.copy(),
    )
    before = writer.steps[:]
    if ends:
        writer.write(batches[-1])
    else:
        writer.die(batches[-1])
    found = everything(ReplayTensor(view, 4, (2,), 1))  # type: ignore[arg-type]
    # The row of the last stop has become a step meanwhile; that, too, is whole.
    newer = found[-1:] == writer.steps[len(before) : len(before) + 1] != []
    last = len(before) + newer
    assert found == writer.steps[last - len(found) : last]
    memory.close()


def test_an_episode_that_goes_on_costs_no_row_and_each_truncation_costs_one() -> None:
    memory = shared(1, 100)
    writer = Writer(memory, 4)
    for blocks in range(1, 4):
        writer.write([GOES_ON] * 4)
        assert memory.head.tolist() == [4 * blocks + 1]
    writer.write([GOES_ON, TRUNCATED, TRUNCATED, TERMINATED])
    assert memory.head.tolist() == [12 + 4 + 2]
    memory.close()


# Columns.


@given(st.integers(1, 3), st.lists(st.integers(1, 3), max_size=3).map(tuple), st.integers(1, 3))
def test_every_column_is_a_view_of_its_own_part_of_the_tensor(
    cores: int, shape: tuple[int, ...], actions: int
) -> None:
    width = int(np.prod(shape))
    memory = shared(cores, 8, 4, width, actions)
    ours = ReplayTensor(memory, 4, shape, actions)
    assert memory.replay.shape == (cores, 8 + 4 * 4 + 1, width + actions + 5)
    names = ("observations", "actions", "rewards", "terminated", "truncated", "log_mu", "following")
    columns = [getattr(ours, name) for name in names]
    shapes = [column.shape[2:] for column in columns]
    assert shapes == [shape, (actions,), (), (), (), (), ()]
    for number, column in enumerate(columns, 1):
        column[...] = np.arange(column.size).reshape(column.shape) + number / 8
    # Side by side in one row, in the documented order, and nothing is left over.
    rows = np.concatenate([column.reshape(*memory.replay.shape[:2], -1) for column in columns], 2)
    assert (memory.replay == rows).all()
    memory.close()


def test_a_tensor_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a replay tensor of 8 columns, expected 10$"):
        ReplayTensor(shared(), 4, (3,), 2)
