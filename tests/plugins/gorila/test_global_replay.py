"""Rows of the global replay, the ring of them on a real engine, and what cores and learners see."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.child.shared_memory import BatchSink
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.learning.rollout import NoSteps
from genkidama.plugins.gorila import global_replay as module
from genkidama.plugins.gorila.global_replay import (
    EngineRing,
    GlobalReplay,
    GlobalReplayWriter,
    RingRows,
    RingSettings,
    describe,
    ring_settings,
    rows_for,
)
from tests.child.memory import shared_memory
from tests.engines import RealEngine, running

ROWS = RingRows((2,), False, 1)
ENVIRONMENT = {"id": "Cart-v1", "options": {}, "wrappers": (), "vectorized": False}


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
    assert same == "Cart-v1 (84690533), float32 (2,), 1 a, 100 steps, 0 MB"
    others = {
        describe({**ENVIRONMENT, "id": "Other-v1"}, ROWS, 100, False),
        describe({**ENVIRONMENT, "wrappers": ({"name": "Wind"},)}, ROWS, 100, False),
        describe(ENVIRONMENT, RingRows((3,), False, 1), 100, False),
        describe(ENVIRONMENT, RingRows((2,), True, 1), 100, False),
        describe(ENVIRONMENT, RingRows((2,), False, 2), 100, False),
        describe(ENVIRONMENT, ROWS, 101, False),
        describe(ENVIRONMENT, ROWS, 100, True),
    }
    assert len(others) == 7
    assert same not in others


GOES_ON, TERMINATED, TRUNCATED = range(3)
GAMMA = 0.5

_names = itertools.count()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    folder = tmp_path_factory.mktemp("engine")
    with running(folder, "--appendonly", "yes", "--appendfsync", "no") as engine:
        yield engine


def make(
    engine: RealEngine, capacity: int, prioritized: bool = False, **changes: Any
) -> EngineRing:
    name = changes.pop("name", f"ring-{next(_names)}")
    words = changes.pop("description", f"{capacity} rows")
    made = RingSettings(engine.url, name, ROWS, capacity, words, prioritized)
    ring = EngineRing(made, changes.pop("writer", "0"), **changes)
    ring.open()
    return ring


class Story:
    """Writes blocks, and knows what must come of each step."""

    def __init__(self) -> None:
        self.drawn = 0.0
        #: By the number of the step: its block, and its place in it.
        self.steps: list[tuple[list[dict[str, Any]], int]] = []

    def block(self, kinds: list[int]) -> np.ndarray:
        kept: list[dict[str, Any]] = []
        cuts: list[int] = []
        following: list[np.ndarray] = []
        for t, kind in enumerate(kinds):
            continues = kept and kept[-1]["kind"] == GOES_ON
            seen = kept[-1]["following"] if continues else self._new()
            kept.append({"kind": kind, "seen": seen, "reward": self._number()})
            kept[-1]["following"] = seen if kind == TERMINATED else self._new()
            if kind == TRUNCATED or (kind == GOES_ON and t == len(kinds) - 1):
                cuts.append(t)
                following.append(kept[-1]["following"])
        self.steps += [(kept, t) for t in range(len(kinds))]
        rewards = np.array([step["reward"] for step in kept])
        return ROWS.block(
            np.array([step["seen"] for step in kept]),
            rewards[:, None] + 0.25,
            rewards,
            np.array([step["kind"] == TERMINATED for step in kept]),
            np.array([step["kind"] == TRUNCATED for step in kept]),
            cuts,
            following,
            -rewards,
        )

    def expected(self, number: int, n: int) -> tuple[Any, ...]:
        block, at = self.steps[number]
        end = at + 1
        while end < min(at + n, len(block)) and block[end - 1]["kind"] == GOES_ON:
            end += 1
        part = block[at:end]
        rewards = [step["reward"] for step in part]
        return (
            tuple(part[0]["seen"].tolist()),
            rewards[0] + 0.25,
            sum(GAMMA**k * reward for k, reward in enumerate(rewards)),
            tuple(part[0]["seen"] if part[-1]["kind"] == TERMINATED else part[-1]["following"]),
            part[-1]["kind"] == TERMINATED,
            part[-1]["kind"] == TRUNCATED,
            -rewards[0],
            0.0 if part[-1]["kind"] == TERMINATED else GAMMA ** len(part),
        )

    def _number(self) -> float:
        self.drawn += 1.0
        return self.drawn

    def _new(self) -> np.ndarray:
        return np.array([self._number(), self._number()], np.float32)


def draw(
    ring: EngineRing, count: int, n: int = 1, mode: str = "uniform", seed: int = 0
) -> list[Any]:
    found, _ = ring.sample(seed, count, n, mode, GAMMA, lambda rewards: rewards)
    return [
        (tuple(seen), action[0], reward, tuple(after), terminated, truncated, mu, discount)
        for seen, action, reward, after, terminated, truncated, mu, discount, *_ in zip(
            *(column.tolist() for column in vars(found).values()), strict=True
        )
    ]


def everything(ring: EngineRing, n: int = 1) -> list[Any]:
    with pytest.raises(ValueError, match=r"^1000000 steps asked for, \d+ are there$") as caught:
        draw(ring, 1_000_000, n, "distinct")
    count = int(str(caught.value).split()[4])
    return sorted(draw(ring, count, n, "distinct"), key=lambda step: step[6], reverse=True)


kinds = st.lists(
    st.sampled_from([GOES_ON, GOES_ON, GOES_ON, TERMINATED, TRUNCATED]), min_size=1, max_size=6
)


@settings(max_examples=25)
@given(st.integers(12, 30), st.lists(kinds, min_size=1, max_size=12), st.integers(1, 4))
def test_what_is_there_are_the_newest_steps_and_each_is_whole(
    engine: RealEngine, capacity: int, blocks: list[list[int]], n: int
) -> None:
    """At wrap-arounds, episodes' ends, truncations and blocks' ends, for n-step returns too."""
    ring, story = make(engine, capacity), Story()
    for ends in blocks:
        ring.add(story.block(ends))
    whole = {(step := story.expected(number, n))[6]: step for number in range(len(story.steps))}
    found = everything(ring, n)
    assert len(found) == len({step[6] for step in found})  # none comes twice
    assert all(step == whole[step[6]] for step in found)
    # A lap loses less than a block at its end.
    newest = list(whole)[-(capacity - 12) // 2 :] if capacity > 12 else []
    assert set(newest) <= {step[6] for step in found}
    assert all(step in found for step in draw(ring, 20, n))
    for observations, actions, numbers in ring.trajectories(1, 5, n):
        first = whole[numbers[0, 3]]
        assert (tuple(observations[0]), actions[0, 0]) == first[:2]
        assert numbers[:, 0] @ GAMMA ** np.arange(len(actions)) == first[2]  # of as many steps
        if not first[4]:
            assert tuple(observations[-1]) == first[3]
    ring.close()


def test_every_step_is_as_probable_as_every_other_and_priorities_change_that(
    engine: RealEngine,
) -> None:
    ring, story = make(engine, 200, prioritized=True), Story()
    for _ in range(12):  # more than a lap, of seven blocks; the last row is a step
        ring.add(story.block([GOES_ON, TRUNCATED, TERMINATED] * 7))
    there = [step[6] for step in everything(ring)]
    assert there == [story.expected(number, 1)[6] for number in range(5 * 21, 12 * 21)]
    # All new steps have the same priority.
    for mode, draws in (("uniform", 1), ("priority", 1), ("distinct", 120)):
        count = 60 * len(there) // draws
        found = [step[6] for seed in range(draws) for step in draw(ring, count, 1, mode, seed)]
        counts = np.array([found.count(step) for step in there])
        assert abs(counts - 60).max() < 5 * 60**0.5
    drawn, places = ring.sample(4, len(there), 1, "distinct", GAMMA, lambda rewards: rewards)
    given = places.copy()
    given[:, 2] = 1.0
    given[:70, 2] = 0.0
    given[70, 2] = 6.0
    ring.prioritize(given)
    late = given[:1].copy()
    late[0, 1] -= 1  # of a lap that is over
    late[0, 2] = 1e6
    ring.prioritize(late)
    found = [step[6] for step in draw(ring, 3000, 1, "priority", seed=5)]
    assert not set(found) & set(drawn.log_mu[:70].tolist())
    expected = 6 / (6 + len(there) - 71)
    assert found.count(drawn.log_mu[70]) == pytest.approx(3000 * expected, abs=60)
    ring.close()


def test_a_block_that_would_end_behind_the_last_row_begins_at_the_first(
    engine: RealEngine,
) -> None:
    ring, story = make(engine, 10), Story()
    rows, state, _ = ring._keys
    with engine.client() as client:
        length = client.strlen(rows)  # the last row is followed by room for an observation
        assert length == 10 * ROWS.width + ROWS.observation_bytes
        for kinds, head in (([0] * 4, 5), ([0] * 4, 10), ([1], 1), ([0] * 4, 6), ([0] * 4, 5)):
            ring.add(story.block(kinds))  # a row a step, and a stop if the last one goes on
            assert client.hget(state, "head") == str(head).encode()
            assert client.strlen(rows) == length
        assert client.hget(state, "lap") == b"2"
    ring.close()


def test_a_block_that_is_sent_again_counts_once(engine: RealEngine) -> None:
    ring, story = make(engine, 50), Story()
    block = story.block([GOES_ON] * 4)
    for _ in range(3):
        ring._number = 0  # as if no answer had come
        ring.add(block)
    assert len(ring) == 5
    other = make(engine, 50, name=ring.settings.name)  # its successor begins to count anew
    other.add(story.block([TERMINATED]))
    assert len(everything(other)) == 5
    other.close()
    ring.close()


def test_what_is_answered_survives_the_engines_death_and_whoever_waits_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACKOFF_SECONDS", (0.01, 0.05))
    with running(tmp_path, "--appendonly", "yes", "--appendfsync", "no") as engine:
        ring, story = make(engine, 4000), Story()
        added = threading.Semaphore(0)
        last = threading.Event()

        def write() -> None:
            while not last.is_set():
                ring.add(story.block([GOES_ON] * 3 + [TERMINATED]))
                added.release()

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(3):
            for _ in range(20):
                assert added.acquire(timeout=20)
            engine.kill()
            engine.start()
        assert added.acquire(timeout=20)
        last.set()
        writer.join()
        found = [step[6] for step in everything(ring)]
        assert found == [-block[at]["reward"] for block, at in story.steps]
        ring.close()


def test_an_engine_that_is_away_is_waited_for_until_the_process_is_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACKOFF_SECONDS", (0.01, 0.05))
    calls = itertools.count()

    def check() -> None:
        if next(calls) == 5:
            raise EOFError

    with running(tmp_path) as engine:
        ring = make(engine, 50, check=check)
        engine.kill()
        with pytest.raises(EOFError):
            ring.add(Story().block([GOES_ON]))
        ring.close()


def test_a_ring_that_is_gone_is_made_anew(engine: RealEngine) -> None:
    ring, story = make(engine, 50), Story()
    ring.add(story.block([GOES_ON] * 4))
    assert len(ring) == 5
    with engine.client() as client:
        client.delete(*ring._keys)
    with pytest.raises(NoSteps, match=r"^1 steps asked for, 0 are there$"):
        draw(ring, 1)
    assert len(ring) == 0, "not the number of a moment ago"
    ring.add(story.block([TERMINATED]))
    assert draw(ring, 1) == [story.expected(4, 1)]
    ring.close()


def test_a_ring_of_another_experiment_is_refused_and_stays(engine: RealEngine) -> None:
    ring = make(engine, 50, description="Cart-v1, 50 rows")
    ring.add(Story().block([TERMINATED]))
    name = ring.settings.name
    with pytest.raises(ConfigurationError) as caught:
        make(engine, 60, name=name, description="Lander-v1, 60 rows")
    shown = engine.url.replace(f":{engine.password}", "…")
    assert str(caught.value) == (
        f"replay.name = {name!r}: this ring on {shown} is another experiment's "
        "(Cart-v1, 50 rows; here: Lander-v1, 60 rows); choose another replay.name"
    )
    assert len(draw(ring, 1)) == 1
    ring.close()


def test_a_ring_that_does_not_fit_is_refused_before_it_is_there(tmp_path: Path) -> None:
    with running(tmp_path, "--maxmemory", "20mb") as engine:
        with pytest.raises(EnvironmentFailure, match=r"replay.steps take 64 MB there, \d+ MB are"):
            make(engine, 2_000_000)
        with engine.client() as client:
            assert client.dbsize() == 0
            client.config_set("maxmemory", 0)
            client.config_set("proto-max-bulk-len", 1 << 20)
        with pytest.raises(EnvironmentFailure, match=r"CONFIG SET proto-max-bulk-len 64000000$"):
            make(engine, 2_000_000)


SETTINGS: dict[str, Any] = {
    "environment": {"id": "CartPole-v1", "reward_scale": 2.0},
    "network": {"hidden": [4]},
    "algorithm": {"name": "dqn", "batch_size": 4, "gamma": 0.5, "start_steps": 1},
    "replay": {"steps": 400, "priority_exponent": 0.5},
}


class Core:
    """A core that writes whatever it is told, and a learner beside it."""

    def __init__(self, engine: RealEngine, **changes: Any) -> None:
        shared = {"url": engine.url, "name": f"run-{next(_names)}"}
        settings = {**SETTINGS, "replay": {**SETTINGS["replay"], **shared}}
        experiment = Experiment.from_dict(settings).with_settings(changes)
        self.model = Model(experiment, make_environment(experiment.environment))
        batch = experiment.algorithm.batch_size
        (self.size,) = self.model.observation_shape
        self.memory = shared_memory(1, batch, self.size + 1 + 3)
        self.ring = EngineRing(ring_settings(self.model), "core")
        self.ring.open()
        sink = BatchSink(self.memory, 0, (self.size,), 1)
        self.share = GlobalReplayWriter(sink, self.ring)
        self.replay = GlobalReplay(self.ring, self.model, np.random.default_rng(0))
        self.written = 0
        self.goes_on = False

    def play(self, ends: str, log_mu: float = -1.0) -> None:
        """A batch: of each step, "." goes on, "t" terminates, "c" is cut by a time limit."""
        rows = self.share.begin(self.goes_on)
        cuts: list[int] = []
        for t, end in enumerate(ends):
            number = self.written + t
            rows.observations[t] = number
            rows.actions[t] = number % 2
            rows.rewards[t] = number
            rows.terminated[t] = end == "t"
            rows.truncated[t] = end == "c"
            if end == "c" or (end == "." and t == len(ends) - 1):
                cuts.append(t)
        # The observation that follows is the next step's.
        following = [np.full(self.size, self.written + cut + 1, np.float32) for cut in cuts]
        self.written += len(ends)
        self.goes_on = ends[-1] == "."
        self.share.end(len(ends), cuts, following, log_mu)

    def close(self) -> None:
        self.ring.close()
        self.memory.close()


@pytest.fixture
def core(engine: RealEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    monkeypatch.setattr(module, "SEND_SECONDS", 1e9)
    core = Core(engine)
    yield core
    core.close()


def test_steps_are_sent_when_there_are_enough_and_n_steps_cross_batches(core: Core) -> None:
    for _ in range(15):
        core.play("....")
    assert len(core.replay) == 0
    core.play("...t")
    core.ring._length_at = -1e9
    assert len(core.replay) == 64  # without a stop
    found = core.replay.sample(64, replacement=False, steps=3)
    first = found.observations[:, 0]
    assert sorted(first) == list(range(64))
    m = np.minimum(3, 64 - first)
    scaled = [
        sum(2 * (s + k) * 0.5**k for k in range(int(n))) for s, n in zip(first, m, strict=True)
    ]
    assert found.rewards.tolist() == pytest.approx(scaled)
    assert (found.terminated == (first + m == 64)).all()
    assert (found.following[:, 0] == np.where(found.terminated, first, first + m)).all()
    assert found.discounts.tolist() == np.where(found.terminated, 0, 0.5**m).tolist()
    assert found.actions.dtype == core.model.head.dtype
    assert (found.actions[:, 0] == first % 2).all()
    assert (found.weights == 1).all()


def test_they_are_sent_when_they_have_waited(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEND_SECONDS", 0.0)
    core.play("..c.")
    assert len(core.replay) == 6
    found = core.replay.sample(4, replacement=False, steps=9)
    by_step = {step: index for index, step in enumerate(found.observations[:, 0].tolist())}
    assert [found.following[by_step[step], 0] for step in range(4)] == [3, 3, 3, 4]
    assert [bool(found.truncated[by_step[step]]) for step in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(("seconds", "sent"), [(0.099, 0), (0.101, 12)])
def test_they_wait_for_a_tenth_of_a_second(
    engine: RealEngine, monkeypatch: pytest.MonkeyPatch, seconds: float, sent: int
) -> None:
    core = Core(engine)
    times = iter([100.0, 100.0 + seconds / 2, 100.0 + seconds])
    with monkeypatch.context() as patch:
        patch.setattr(module.time, "monotonic", lambda: next(times))
        for _ in range(3):  # counted from the first of them
            core.play("...t")
    core.ring._length_at = -1e9
    assert len(core.replay) == sent
    core.close()


def test_a_length_is_a_fifth_of_a_second_old_at_most(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, now = core.ring, 100.0
    ring._length_at = -1e9
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    assert len(ring) == 0
    for _ in range(16):
        core.play("...t")
    now += 0.199
    assert len(ring) == 0
    now += 0.002
    assert len(ring) == 64


def test_trajectories_are_rollouts_with_their_cuts(core: Core) -> None:
    for _ in range(15):
        core.play("....")
    core.play("..ct")
    found = core.replay.trajectories(40, 5)
    observations = found.observations[:, 0]
    last = np.flatnonzero(found.ends)
    assert len(last) == 40
    starts = np.concatenate(([0], last[:-1] + 1))
    for start, stop in zip(starts, last, strict=True):
        first = observations[start]
        length = min(5, (63 if first < 63 else 64) - first)
        assert observations[start : stop + 1].tolist() == [first + k for k in range(int(length))]
    assert set(found.cuts) == set(last[observations[last] != 63])
    behind = found.cut_observations[:, 0]
    assert (behind == observations[found.cuts] + 1).all()
    assert found.rewards.tolist() == (2 * observations).tolist()
    assert found.log_mu is not None
    assert (found.log_mu == -1).all()


def test_a_child_may_have_options_and_lanes_of_its_own(core: Core, engine: RealEngine) -> None:
    own = {"environment.options": {"sutton_barto_reward": True}, "environment.lanes": 4}
    other = Core(engine, **{"replay.name": core.ring.settings.name, **own})
    assert other.ring.settings.capacity > core.ring.settings.capacity
    for _ in range(160):  # more than a lap
        core.play("...t")
    drawn = other.replay.sample(64, replacement=False)
    other.replay.prioritize(drawn.places, np.full(64, np.nan))
    gone = set(drawn.observations[:, 0])
    assert not gone & set(core.replay.sample(3000, correction=1.0).observations[:, 0])
    other.close()


def test_priorities_decide_what_is_drawn_and_weights_make_up_for_it(core: Core) -> None:
    for _ in range(16):
        core.play("...t")
    drawn = core.replay.sample(64, replacement=False)
    errors = np.where(drawn.observations[:, 0] < 32, 0.099, 0.399)  # priorities 1 : 2
    core.replay.prioritize(drawn.places, errors)
    found = core.replay.sample(6000, correction=1.0)
    likely = found.observations[:, 0] >= 32
    assert likely.mean() == pytest.approx(2 / 3, abs=0.03)
    assert set(found.weights[~likely].tolist()) == {1.0}
    assert found.weights[likely] == pytest.approx(np.sqrt(0.1 / 0.4))
    core.replay.prioritize(drawn.places[:2], np.array([np.nan, np.inf]))
    gone = drawn.observations[:2, 0]
    assert not set(gone) & set(core.replay.sample(2000, correction=1.0).observations[:, 0])


def test_what_it_cannot_do_is_said(engine: RealEngine) -> None:
    core = Core(engine, **{"replay.priority_exponent": 0.0})
    with pytest.raises(ValueError, match=r"^1 steps asked for, 0 are there$"):
        core.replay.sample(1)
    with pytest.raises(ValueError, match=r"set replay.priority_exponent above 0$"):
        core.replay.sample(1, correction=1.0)
    for draw in (
        core.replay.sample,
        lambda count, own: core.replay.trajectories(count, 2, own=own),
    ):
        with pytest.raises(ConfigurationError, match=r"^own = True: "):
            draw(1, own=True)
    core.replay.prioritize(np.zeros(1, np.int64), np.ones(1))  # as a local one, it does nothing
    core.close()


def spoil(core: Core, value: float, column: int) -> None:
    """A block of four steps, one number of which is none that a core can have written."""
    rows = core.ring.settings.rows
    seen = np.zeros((4, core.size), np.float32)
    block = rows.block(seen, np.ones((4, 1)), *np.zeros((3, 4)), [3], [seen[0]], -0.5)
    if column < core.size:
        block["observation"][:, column] = value
    else:
        block["numbers"][:, column - core.size] = value
    core.ring.add(block)


@pytest.mark.parametrize(
    ("value", "column"), [(np.nan, 0), (np.inf, 1), (7.0, 4), (-1.0, 4), (0.5, 4), (np.nan, 5)]
)
def test_what_no_core_can_have_written_is_left_out_and_said(
    core: Core, value: float, column: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(20):
        core.play("...t")
    spoil(core, value, column)
    for correction in (None, 0.5):
        for _ in range(20):
            found = core.replay.sample(32, steps=2, correction=correction)
            assert found.observations.shape == (32, 4)
            assert np.isfinite(found.observations).all() and np.isfinite(found.rewards).all()
            assert np.isin(found.actions, (0, 1)).all()
    for _ in range(10):
        rollout = core.replay.trajectories(8, 3)
        assert np.isfinite(rollout.observations).all()
        assert np.isin(rollout.actions, (0, 1)).all()
    said = capsys.readouterr()
    assert (said.out + said.err).count("no core can have written") == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e31])
def test_so_are_numbers_that_no_action_can_be(engine: RealEngine, value: float) -> None:
    sac = {"algorithm.name": "sac", "parent.rule": "blend", "replay.url": engine.url}
    core = Core(engine, **{"environment.id": "Pendulum-v1", **sac})
    for _ in range(20):
        core.play("...t")
    spoil(core, value, core.size)
    for _ in range(20):
        assert np.isin(core.replay.sample(32).actions, (0, 1)).all()
    for _ in range(10):
        assert np.isin(core.replay.trajectories(8, 3).actions, (0, 1)).all()
    core.close()


@pytest.mark.parametrize("needs", [False, True])
def test_log_mu_is_checked_where_the_learner_reads_it(core: Core, needs: bool) -> None:
    """Cores write NaN for the others."""
    core.replay.needs_log_mu = needs
    for _ in range(20):
        core.play("...t", np.nan)
    for sample in (lambda: core.replay.sample(8), lambda: core.replay.trajectories(2, 3)):
        if needs:
            words = "this replay is spoilt: most of its steps are .* choose another replay"
            with pytest.raises(ConfigurationError, match=words):
                sample()
        else:
            sample()
