"""The ring on a real engine: every step is there as it was written, or not at all."""

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

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.gorila import engine_ring as module
from genkidama.plugins.gorila.engine_ring import EngineRing, RingSettings
from genkidama.plugins.gorila.ring import RingRows
from tests.engines import RealEngine, running

ROWS = RingRows((2,), False, 1)
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
            len(part),
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
        (tuple(seen), action[0], reward, tuple(after), terminated, truncated, mu, length)
        for seen, action, reward, after, terminated, truncated, mu, length in zip(
            *(column.tolist() for column in found), strict=True
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
    for observations, actions, numbers in ring.stretches(1, 5, n):
        first = whole[numbers[0, 3]]
        assert (tuple(observations[0]), actions[0, 0]) == first[:2]
        assert len(actions) == first[7]
        if not first[4]:
            assert tuple(observations[-1]) == first[3]
    ring.close()


def test_every_step_is_as_probable_as_every_other_and_priorities_change_that(
    engine: RealEngine,
) -> None:
    ring, story = make(engine, 200, prioritized=True), Story()
    for _ in range(12):  # more than a lap
        ring.add(story.block([GOES_ON, TRUNCATED, TERMINATED] * 7))
    there = [step[6] for step in everything(ring)]
    for mode in ("uniform", "priority"):  # all new steps have the same priority
        found = [step[6] for step in draw(ring, 60 * len(there), 1, mode, seed=3)]
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
    with engine.client() as client:
        client.delete(*ring._keys)
    with pytest.raises(ValueError, match=r"^1 steps asked for, 0 are there$"):
        draw(ring, 1)
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
