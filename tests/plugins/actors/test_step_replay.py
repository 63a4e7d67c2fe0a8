"""A replay beside the parent: what is drawn is what was sent, and a file brings it back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.model import Model
from genkidama.plugins.actors import step_replay as module
from genkidama.plugins.actors.rule import Columns
from genkidama.plugins.actors.step_replay import (
    FILE,
    StepReplay,
    replay_parts,
    restore,
    save,
)
from tests.learning.blocks import COLUMNS, GOES_ON, TERMINATED, TRUNCATED, Step, block, blocks

SPACES: Any = SimpleNamespace(
    observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32),
    action_space=gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32),
)


def memory_of(steps: int, columns: Columns = COLUMNS, images: bool = False) -> Any:
    parts = replay_parts(columns, steps, images)
    return SimpleNamespace(**{name: np.zeros(shape, kind) for name, (shape, kind) in parts.items()})


def replay_of(memory: Any) -> StepReplay:
    experiment = Experiment.from_dict(
        {
            "environment": {"reward_scale": 2.0},
            "algorithm": {"name": "sac", "gamma": 0.5, "start_steps": 1},
            "replay": {"steps": 200},
            "parent": {"rule": "experience"},
        }
    )
    model = Model(experiment, SPACES)
    return StepReplay(memory, COLUMNS, model, np.random.default_rng(1))


@settings(deadline=None)
@given(blocks())
def test_each_drawn_step_is_one_that_was_sent_with_what_followed(
    found: list[list[list[Step]]],
) -> None:
    replay = replay_of(memory_of(200))
    wanted = {}
    for lanes in found:
        assert replay.add(block(lanes)) == sum(map(len, lanes))
        for lane in lanes:
            for t, (number, end) in enumerate(lane):
                last = t == len(lane) - 1 or end == TRUNCATED
                following = [number + 0.5, 0.0] if last else [lane[t + 1][0], -lane[t + 1][0]]
                wanted[number] = (end == TERMINATED, following)
    assert len(replay) == len(wanted)
    drawn = replay.sample(300)
    assert drawn.observations.shape == drawn.following.shape == (300, 2)
    for row, (number, negative) in enumerate(drawn.observations.tolist()):
        terminated, following = wanted[int(number)]
        assert negative == -number
        assert drawn.actions[row].tolist() == [number % 2]
        assert drawn.rewards[row] == 20.0 * number
        assert drawn.terminated[row] == terminated
        assert drawn.discounts[row] == (0.0 if terminated else 0.5)
        if not terminated:
            assert drawn.following[row].tolist() == following, "also where a time limit cut it"


def lane(first: int, count: int) -> np.ndarray:
    return block([[(number, GOES_ON) for number in range(first, first + count)]])


def numbers(replay: StepReplay) -> set[int]:
    return {int(number) for number in replay.sample(2000).observations[:, 0]}


def test_the_oldest_steps_make_room() -> None:
    replay = replay_of(memory_of(8))
    replay.add(lane(0, 6))
    replay.add(lane(6, 5))
    assert len(replay) == 8
    assert numbers(replay) == set(range(3, 11))
    replay.add(lane(100, 30))
    assert numbers(replay) == set(range(122, 130))


def test_images_stay_bytes() -> None:
    columns = Columns(4, 1)
    memory = memory_of(8, columns, images=True)
    assert memory.replay.shape == (8, 3) and memory.pixels.dtype == np.uint8
    model: Any = SimpleNamespace(
        experiment=Experiment(),
        seen=lambda images: images,
        scaled=lambda rewards: rewards,
        observation_shape=(1, 2, 2),
        head=SimpleNamespace(dtype=np.float32),
    )
    replay = StepReplay(memory, columns, model, np.random.default_rng(1))
    rows = np.zeros((3, columns.count), np.float32)
    rows[:, :4] = [[1, 2, 3, 255], [5, 6, 7, 8], [9, 9, 9, 9]]
    rows[:2, columns.following] = 1.0
    assert replay.add(rows) == 2
    drawn = replay.sample(50)
    assert drawn.observations.dtype == np.uint8 and drawn.observations.shape == (50, 1, 2, 2)
    for seen, following in zip(drawn.observations, drawn.following, strict=True):
        first = seen.reshape(-1).tolist() == [1, 2, 3, 255]
        assert following.reshape(-1).tolist() == ([5, 6, 7, 8] if first else [9, 9, 9, 9])


def test_what_it_cannot_give_is_an_error() -> None:
    replay = replay_of(memory_of(8))
    with pytest.raises(ValueError, match="0 are there"):
        replay.sample(1)
    replay.add(lane(0, 2))
    for wish in ({"own": True}, {"replacement": False}, {"steps": 3}, {"correction": 0.5}):
        with pytest.raises(ValueError, match="single steps"):
            replay.sample(1, **wish)
    with pytest.raises(ValueError, match="single steps"):
        replay.trajectories(1, 2)


@pytest.mark.parametrize(
    ("size", "kept"), [(8, range(3, 11)), (20, range(3, 11)), (3, range(8, 11))]
)
def test_a_file_brings_the_steps_back(tmp_path: Path, size: int, kept: range) -> None:
    memory = memory_of(8)
    before = replay_of(memory)
    before.add(lane(0, 6))
    before.add(lane(6, 5))
    assert save(tmp_path, memory) == 8
    whole = safetensors.numpy.load_file(tmp_path / FILE)["replay"]
    assert whole[:, 0].tolist() == list(range(3, 11)), "the oldest first"
    other = memory_of(size)
    assert restore(tmp_path, other) == ""
    after = replay_of(other)
    assert numbers(after) == set(kept)
    after.add(lane(50, 1))
    assert numbers(after) == {*kept, 50} - ({kept[0]} if size <= len(kept) else set())


def test_a_run_without_a_file_begins_empty(tmp_path: Path) -> None:
    memory = memory_of(8)
    assert restore(tmp_path, memory) == ""
    assert memory.added[0] == 0


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (b"nonsense", "cannot be read"),
        ({"replay": np.zeros((3, 9), np.float32)}, "expected float32 [7]"),
        ({"replay": np.full((3, 7), np.nan, np.float32)}, "NaN"),
        ({"other": np.zeros((3, 7), np.float32)}, "['other']"),
        (
            {"replay": np.zeros((3, 7), np.float32), "pixels": np.zeros((3, 2, 2), np.uint8)},
            "['pixels', 'replay']",
        ),
    ],
)
def test_another_file_is_not_used(tmp_path: Path, found: Any, why: str) -> None:
    content = found if isinstance(found, bytes) else safetensors.numpy.save(found)
    (tmp_path / FILE).write_bytes(content)
    memory = memory_of(8)
    assert why in restore(tmp_path, memory)
    assert memory.added[0] == 0


def test_a_ring_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: 64_000_000 + 2800)
    replay_parts(COLUMNS, 50, False)
    with pytest.raises(ConfigurationError, match=r"replay.steps = 1000000.*at most 99 steps fit"):
        replay_parts(COLUMNS, 1_000_000, False)
