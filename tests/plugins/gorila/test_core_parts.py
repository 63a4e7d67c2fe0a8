"""Replay, target network and learners that play nothing: parts of a core."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from genkidama.child.core_forkserver import layout_of
from genkidama.child.shared_memory import ReplayRows, SharedMemory
from genkidama.child.worker import PROGRESS, RECORD
from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm, Environment
from genkidama.errors import ConfigurationError
from genkidama.learning.demonstrations import DemonstrationWriter
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.plugins.gorila.core_parts import LearnerOnly, ReplayPart, TargetNetwork, make_replay
from tests.child.memory import shared_memory
from tests.child.workers import LIGHT
from tests.helpers import PATIENCE, free_port, small


def memory_of(cores: int = 2) -> SharedMemory:
    """Weights of three numbers, the last one a statistic."""
    more = TargetNetwork.arrays(Experiment(), SimpleNamespace(trainable=2))  # type: ignore[arg-type]
    return shared_memory(cores, more=more, size=3, trainable=2)


def target_of(memory: SharedMemory, index: int, updates: int, versions: int) -> TargetNetwork:
    algorithm = Algorithm(name="dqn", target_updates=updates, target_versions=versions)
    settings = SimpleNamespace(algorithm=algorithm)
    model = SimpleNamespace(experiment=settings, native=lambda array: array)
    core: Any = SimpleNamespace(memory=memory, index=index, model=model)
    return TargetNetwork(core)


def test_it_begins_as_what_is_learned_and_is_taken_anew_after_so_many_updates_of_all_cores() -> (
    None
):
    memory = memory_of()
    ours, theirs = (target_of(memory, index, 3, 0) for index in range(2))
    memory.weights[:] = 1.0, 2.0, 9.0
    assert ours.renew()
    assert memory.target.tolist() == [1.0, 2.0]
    memory.weights[:] = 3.0, 4.0, 9.0
    assert not theirs.renew()
    seen = []
    for target in (ours, theirs, ours, theirs):
        target.updated()
        seen.append(memory.target.tolist())
    assert seen == [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]
    rollout: Any = SimpleNamespace()
    ours.prepare(rollout)
    assert rollout.target.tolist() == [3.0, 4.0]
    memory.close()


def test_or_it_follows_by_a_part_of_the_way_after_each_update_of_any_core() -> None:
    memory = memory_of()
    settings = SimpleNamespace(algorithm=Algorithm(name="sac", target_rate=0.25))
    model = SimpleNamespace(experiment=settings, native=lambda array: array)
    cores: Any = [SimpleNamespace(memory=memory, index=index, model=model) for index in range(2)]
    ours, theirs = map(TargetNetwork, cores)
    memory.weights[:] = 1.0, 2.0, 9.0
    ours.prepare(SimpleNamespace())  # type: ignore[arg-type]
    assert memory.target.tolist() == [1.0, 2.0]
    memory.weights[:] = 5.0, 2.0, 9.0
    theirs.prepare(SimpleNamespace())  # type: ignore[arg-type]
    assert memory.target.tolist() == [1.0, 2.0]
    ours.updated()
    assert memory.target.tolist() == [2.0, 2.0]
    theirs.updated()
    assert memory.target.tolist() == [2.75, 2.0]
    memory.close()


def test_it_is_taken_anew_after_so_many_versions_of_the_parent() -> None:
    memory = memory_of()
    target = target_of(memory, 0, 0, 10)
    memory.progress[1] = 95
    renewed = []
    for version in (95, 104, 105, 106, 114, 115, 200, 3, 12, 13):
        memory.progress[1] = version
        memory.weights[:2] = version
        target.updated()
        renewed.append(int(memory.target[0]))
    # Version 3 is a parent that has begun again.
    assert renewed == [95, 95, 105, 105, 105, 115, 200, 3, 3, 13]
    memory.close()


@pytest.mark.parametrize(("updates", "versions"), [(2, 100), (100, 2)])
def test_whichever_comes_first_counts(updates: int, versions: int) -> None:
    memory = memory_of()
    target = target_of(memory, 0, updates, versions)
    target.renew()
    memory.weights[:] = 5.0
    memory.updates[1] = 1
    memory.progress[1] = 1
    assert not target.renew()
    memory.updates[1] += 1
    memory.progress[1] += 1
    assert target.renew()
    assert memory.target.tolist() == [5.0, 5.0]
    memory.close()


def test_it_outlives_a_core() -> None:
    memory = memory_of()
    target_of(memory, 0, 3, 0).renew()
    memory.weights[:] = 7.0
    again = target_of(memory, 0, 3, 0)
    again.updated()
    again.updated()
    assert memory.target.tolist() == [0.0, 0.0]
    target_of(memory, 0, 3, 0).updated()
    assert memory.target.tolist() == [7.0, 7.0]
    memory.close()


def test_weights_that_were_reset_are_a_beginning() -> None:
    memory = memory_of()
    target = target_of(memory, 0, 100, 0)
    memory.weights[:] = np.nan
    target.renew()
    memory.weights[:] = 1.0
    memory.refreshed[:] = 0
    assert target.renew()
    assert memory.target.tolist() == [1.0, 1.0]
    memory.close()


@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_a_core_remembers_and_draws_as_the_experiment_says(exponent: float) -> None:
    settings = small(
        environment={"lanes": 2, "reward_scale": 0.5},
        algorithm={"gamma": 0.5},
        replay={"steps": 64, "priority_exponent": exponent},
    )
    environment = make_environment(settings.environment)
    model = Model(settings, environment)
    memory = SharedMemory(layout_of(settings, model))
    share, replay = make_replay(memory, model, np.random.default_rng(0), 0)
    rows = share.begin(False)
    rows.rewards[:] = 1.0
    rows.terminated[:] = 0.0
    rows.truncated[:] = 0.0
    behind = np.zeros(model.observation_shape, np.float32)
    share.end(16, [7, 15], [behind, behind], np.nan)
    assert hasattr(memory, "priorities") == (exponent > 0.0)
    drawn = replay.sample(50, steps=2, correction=0.4 if exponent else None)
    assert set(drawn.rewards.tolist()) == {0.5, 0.75}
    assert drawn.actions.dtype == np.int64
    whole = replay.trajectories(3, 5)
    assert whole.rewards.tolist() == [0.5] * len(whole.rewards)
    assert whole.log_mu is not None
    replay.prioritize(drawn.places, np.ones(50))
    memory.close()
    environment.close()


def test_a_core_whose_engine_is_away_shows_that_it_lives_and_ends_when_it_is_told_to() -> None:
    settings = small(replay={"steps": 64, "url": f"redis://127.0.0.1:{free_port()}"})
    memory = SharedMemory(
        layout_of(settings, Model(settings, make_environment(settings.environment)))
    )
    ours, theirs = multiprocessing.Pipe()
    arguments = (0, settings, memory, theirs, (1, 2, 3))
    process = LIGHT.start("genkidama.child.core:run_core", arguments, settings)
    theirs.close()
    try:
        for _ in range(2):
            assert ours.poll(PATIENCE)
            assert RECORD.unpack(ours.recv_bytes()) == (PROGRESS, 0.0, 0)
        memory.stop[0] = True
        assert process.wait(PATIENCE) == 0
    finally:
        process.end(0.0)
        ours.close()
        memory.close()


def demonstrated(path: Path) -> tuple[Any, Model]:
    """A core whose steps pay 1, with demonstrations that pay 50."""
    settings = small(
        algorithm={
            "name": "dqn",
            "start_steps": 4,
            "minibatch_size": 10,
            "gamma": 0.5,
            "demonstrations": [str(path)],
            "demonstration_share": 0.3,
        },
        replay={"steps": 64},
    )
    environment = make_environment(settings.environment)
    if not path.exists():
        writer = DemonstrationWriter(path, {"id": "CartPole-v1"}, environment, "a test")
        writer.add([[0.0] * 4] * 21, [1] * 20, [50.0] * 20, True, False)
        writer.close()
    model = Model(settings, environment)
    memory = SharedMemory(layout_of(settings, model))
    pipe = SimpleNamespace(check=lambda: None)
    draws = np.random.default_rng(0)
    core = SimpleNamespace(memory=memory, model=model, draws=draws, index=0, seed=(0,), pipe=pipe)
    return core, model


def test_a_share_of_each_minibatch_is_of_the_demonstrations(tmp_path: Path) -> None:
    core, _ = demonstrated(tmp_path / "cart.steps")
    part = ReplayPart(core)
    assert part.sink is not None
    for _ in range(20):  # the ring is full, and goes round
        rows = part.sink.begin(False)
        rows.rewards[:] = 1.0
        rows.terminated[:] = 0.0
        rows.truncated[:] = 0.0
        count = len(rows.rewards)
        part.sink.end(count, [count - 1], [np.zeros(4, np.float32)], np.nan)
    rollout: Any = SimpleNamespace()
    part.prepare(rollout)
    drawn = rollout.replay.sample(30, steps=2)
    theirs = drawn.rewards >= 50.0
    assert theirs.reshape(3, 10).sum(1).tolist() == [3, 3, 3]
    assert set(drawn.rewards[theirs].tolist()) <= {50.0, 75.0}
    assert set(drawn.rewards[~theirs].tolist()) <= {1.0, 1.5}
    assert drawn.actions.dtype == np.int64 and (drawn.actions[theirs] == 1).all()
    core.memory.close()


def test_demonstrations_that_do_not_fit_are_refused_before_a_core_is_started(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cart.steps"
    core, model = demonstrated(path)
    core.memory.close()
    with pytest.raises(ConfigurationError, match=r"cart\.steps: was recorded in CartPole-v1 with"):
        ReplayPart.arrays(
            model.experiment, Model(small(), make_environment(Environment(id="Acrobot-v1")))
        )
    path.unlink()
    with pytest.raises(ConfigurationError, match="no such file of demonstrations"):
        layout_of(model.experiment, model)
    acts = model.experiment.with_settings({"replay.url": "embedded", "child.roles": ["act"]})
    ReplayPart.arrays(acts, model)  # who only acts has no need of it
    ReplayPart.rehearsal(acts, make_environment(acts.environment))


def test_images_take_a_byte_a_pixel_where_they_are_remembered() -> None:
    settings = small(
        environment={"id": "tests.child.test_core:Sides"},
        network={"name": "convolutional", "convolutions": [[2, 4, 2]], "hidden": [8]},
        replay={"steps": 64},
    )
    environment = make_environment(settings.environment)
    model = Model(settings, environment)
    memory = SharedMemory(layout_of(settings, model))
    share, replay = make_replay(memory, model, np.random.default_rng(0), 0)
    rows = share.begin(False)
    images = np.random.default_rng(1).integers(256, size=(17, *model.observation_shape))
    rows.observations[:] = images[:16]
    rows.terminated[:] = 0.0
    rows.truncated[:] = 0.0
    rows.rewards[:] = np.arange(16)
    share.end(16, [15], [images[16].astype(np.float32)], np.nan)
    size = model.observation_size
    assert memory.pixels.nbytes == memory.replay.shape[1] * size
    assert memory.replay.shape[2] == 1 + 5
    drawn = replay.sample(40)
    assert drawn.observations.dtype == np.uint8
    numbers = drawn.rewards.astype(int)
    assert (drawn.observations == images[numbers]).all()
    assert (drawn.following == images[numbers + 1]).all()
    whole = replay.trajectories(4, 3)
    assert (whole.observations == images[whole.rewards.astype(int)]).all()
    ends = whole.rewards[whole.cuts].astype(int)
    assert (whole.cut_observations == images[ends + 1]).all()
    memory.close()


@pytest.mark.parametrize("notes", [True, False])
def test_its_batches_are_empty_and_now_and_then_it_says_so(notes: bool) -> None:
    said: list[int] = []
    line: Any = SimpleNamespace(report=said.append)
    rows = ReplayRows(*(np.zeros((4, 1), np.float32) for _ in range(5)))
    share: Any = SimpleNamespace(begin=lambda goes_on: rows)
    context: Any = SimpleNamespace(sink=share, pipe=line, notes_log_mu=notes)
    learner = LearnerOnly(context)
    learner.reset(1)
    for _ in range(128):
        batch = learner.collect()
        assert (batch.steps, batch.cuts, batch.following, batch.ended) == (0, [], [], False)
        assert (batch.log_mu is not None) == notes
    assert said == [PROGRESS] * 2
