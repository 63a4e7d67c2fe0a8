"""An actor in this process: what it writes, with which weights, and how many lanes it plays."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.child.collector import Prepared, make_slots
from genkidama.child.core_forkserver import layout_of
from genkidama.child.shared_memory import SharedMemory
from genkidama.child.worker import RECYCLED, MemoryGuard, WorkerPipe
from genkidama.config.experiment import Experiment
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.plugins.actors.actor import Actor, lanes_and_steps
from genkidama.plugins.actors.learner import rollout_of
from genkidama.plugins.actors.outbox import Outboxes, block_rows
from genkidama.plugins.actors.rule import Columns
from tests.child.problems import experiment


def acting(lanes: int = 1, batch: int = 32, name: str = "Corridor", **sections: Any) -> Experiment:
    return experiment(
        name,
        environment={"lanes": lanes, **sections.pop("environment", {})},
        algorithm={"batch_size": batch, "gamma": 0.5},
        parent={"rule": "experience"},
        **sections,
    )


class Played:
    """One actor, its memory, and what the orchestrator would send of it."""

    def __init__(self, settings: Experiment, prepared: Prepared | None = None) -> None:
        self.settings = settings
        self.judge = Model(settings, make_environment(settings.environment))
        self.memory = SharedMemory(layout_of(settings, self.judge))
        self.memory.weights[:] = self.judge.numbers
        self._far, self._near = Pipe()
        line = WorkerPipe(self._near, self.memory.stop, None)
        self.actor = Actor(0, settings, self.memory, line, (1, 2, 3), prepared)
        self.outboxes = Outboxes(self.memory, block_rows(settings.algorithm.batch_size))
        self.columns: Columns = self.actor._outbox._columns

    def block(self) -> np.ndarray:
        """The rows of the next block, with the lanes of the last."""
        self.actor.collector.collect()
        self.outboxes.given(0, int(self.memory.head[0]))
        rows = self.outboxes.pack().reshape(-1, self.columns.count).copy()
        self.outboxes.acknowledge()
        assert self.columns.problem(rows) == ""
        return rows

    def log_mu(self, rows: np.ndarray) -> np.ndarray:
        rollout = rollout_of(rows, self.columns, self.judge, 0.0)
        outputs, _ = self.judge.evaluate(rollout.observations)
        return self.judge.log_probability(outputs, rollout.actions)

    def close(self) -> None:
        self._far.close()
        self._near.close()


@pytest.fixture(params=[1, 4])
def played(request: pytest.FixtureRequest) -> Iterator[Played]:
    played = Played(acting(request.param))
    played.actor.play(request.param)
    yield played
    played.close()


def test_a_block_holds_true_steps_of_each_lane(played: Played) -> None:
    """In the corridor what follows can be told from what is seen and done."""
    lanes = played.settings.environment.lanes
    for _ in range(5):
        rows = played.block()
        rollout = rollout_of(rows, played.columns, played.judge, 0.0)
        cells = rollout.observations.argmax(1)
        moves = rollout.actions[:, 0]
        assert len(cells) == 32
        assert rollout.ends[32 // lanes - 1 :: 32 // lanes].all()
        cut_cells = dict(zip(rollout.cuts, rollout.cut_observations.argmax(1), strict=True))
        for t in range(32):
            goal = cells[t] == 4 and moves[t] == 1
            assert rollout.rewards[t] == float(goal)
            after = max(cells[t] + (1 if moves[t] else -1), 0)
            if goal:
                assert rollout.ends[t] and t not in cut_cells
            elif t in cut_cells:
                assert cut_cells[t] == after
            else:
                assert cells[t + 1] == after


def test_it_acts_as_its_policy_would_and_not_at_random(played: Played) -> None:
    """Newer weights are looked for before each block, and that must not be taken for an ε."""
    bias = played.judge.signature.slices["policy.2.bias"]
    played.memory.weights[bias] = (9.0, 0.0)
    played.memory.news[0] += 1
    rows = played.block()
    steps = rows[rows[:, played.columns.following] > 0]
    assert (steps[:, played.columns.actions] == 0.0).all()


@pytest.mark.parametrize("lanes", [1, 4])
def test_newer_weights_are_taken_over_in_the_middle_of_a_block(lanes: int) -> None:
    """An environment cannot tell, so this test speaks up in the middle."""
    played = Played(acting(lanes, 32 * lanes))
    played.actor.play(lanes)
    played.block()
    old = played.memory.weights.copy()
    new = np.random.default_rng(0).normal(0.0, 2.0, len(old)).astype(np.float32)
    looks = 0
    renew = played.actor.renew

    def spoken() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            played.memory.weights[:] = new
            played.memory.news[0] += 1
        return renew()

    played.actor.collector._renew = spoken  # type: ignore[attr-defined]
    rows = played.block()
    assert looks == 4
    said = rows[rows[:, played.columns.following] > 0][:, played.columns.log_mu]
    with_old = played.log_mu(rows)
    played.judge.numbers[:] = new
    with_new = played.log_mu(rows)
    expected = np.where(np.arange(32 * lanes) % 32 < 8, with_old, with_new)
    np.testing.assert_allclose(said, expected, atol=1e-5)
    assert np.abs(with_old - with_new).max() > 0.1
    played.close()


def test_lanes_change_between_two_blocks_and_end_their_episodes() -> None:
    played = Played(acting(4))
    played.actor.play(4)
    assert (played.block()[:, played.columns.following] > 0).sum() == 32
    played.actor.play(2)
    rows = played.block()
    rollout = rollout_of(rows, played.columns, played.judge, 0.0)
    assert len(rollout.rewards) == 16
    assert rollout.ends[[7, 15]].all()
    collector = played.actor.collector
    played.actor.play(2)
    assert played.actor.collector is collector
    played.close()


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_episodes_that_were_begun_before_go_on_if_all_lanes_play(lanes: int) -> None:
    settings = acting(4)
    slots = make_slots(settings)
    slots.reset(0)
    shown = np.full((4, 5), 0.5, np.float32)  # which the corridor never shows
    played = Played(settings, Prepared(slots, shown))
    played.actor.play(lanes)
    begun = np.flatnonzero((played.block()[:, :5] == 0.5).all(1)).tolist()
    assert begun == ([0, 8, 16, 24] if lanes == 4 else [])
    played.close()


def test_with_normalized_rewards_a_row_has_the_discounted_return() -> None:
    settings = acting(2, 8, "Endless", environment={"normalize_rewards": True})
    played = Played(settings)
    played.actor.play(2)
    # Episodes of four steps that pay 1 each, γ = ½: 1, 1½, 1¾, 1⅞.
    assert played.block()[:8, -1].tolist() == [1.0, 1.5, 1.75, 1.875] * 2
    played.close()


def test_an_environments_error_is_not_the_childs_end() -> None:
    settings = acting().with_settings({"environment.id": "tests.plugins.ga3c.numbered:Cut"})
    actor = Played(settings)
    with pytest.raises(ConnectionResetError, match="simulator"):
        actor.actor.run()
    # Who has said nothing is new, and its first reset may take long.
    assert not actor._far.poll()
    actor.close()


# Its part.


def test_lanes_rest_while_the_machine_is_spared() -> None:
    settings = acting(16, 2048)
    assert lanes_and_steps(settings, 1, 0, 0, 0.5) == (8, 128)
    assert lanes_and_steps(settings, 1, 10**6, 8, 0.5) == (8, 128)
    assert lanes_and_steps(settings, 1, 512, 0, 0.5) == (4, 128)  # its part is less than that
    assert lanes_and_steps(acting(1, 128), 1, 0, 0, 0.5) == (1, 128)


@given(st.integers(0, 10**5), st.integers(1, 8), st.integers(1, 24), st.integers(0, 24))
def test_a_part_is_possible(steps: int, cores: int, most: int, before: int) -> None:
    settings = acting(most, 64 * most)
    lanes, length = lanes_and_steps(settings, cores, steps, min(before, most))
    assert 1 <= lanes <= most
    assert 16 <= length <= 64
    assert length == 64 or lanes == 1
    assert lanes == most or 0 < steps < cores * 64 * most, "none stands idle"
    whole, shorter = lanes_and_steps(settings, cores, steps, 0, whole=True)
    assert whole == most and 16 <= shorter <= 64


def test_agents_of_one_environment_all_play_however_few_steps_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = acting(3, 192, environment={"id": "tests.plugins.pettingzoo.test_agents:Race"})
    played = Played(settings)
    played.memory.share[0], played.memory.resting[0] = 96, 0.5
    ended: list[int] = []
    monkeypatch.setattr(MemoryGuard, "leaks", lambda _, episodes: ended.append(episodes) or True)
    assert played.actor.run() == RECYCLED  # after a block
    assert ended[0] > 0
    played.outboxes.given(0, int(played.memory.head[0]))
    rows = played.outboxes.pack().reshape(-1, played.columns.count)
    assert np.count_nonzero(rows[:, played.columns.following]) == 96
    played.close()


@pytest.mark.parametrize(
    ("steps", "cores", "before", "part"),
    [
        (0, 1, 0, (16, 128)),
        (1024, 1, 0, (8, 128)),
        (1024, 2, 0, (4, 128)),
        (256, 1, 0, (2, 128)),
        (256, 1, 4, (4, 128)),  # not so wrong that it is worth the episodes
        (250, 1, 4, (2, 128)),
        (128, 1, 0, (1, 128)),
        (60, 1, 1, (1, 60)),
        (3, 1, 1, (1, 16)),
    ],
)
def test_a_part_is_what_a_core_does_of_a_push(
    steps: int, cores: int, before: int, part: tuple[int, int]
) -> None:
    assert lanes_and_steps(acting(16, 2048), cores, steps, before) == part
