"""Rows become a rollout, and a learner learns from nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Optimizer
from genkidama.errors import ConfigurationError
from genkidama.learning.demonstrations import DemonstrationWriter
from genkidama.learning.model import Model
from genkidama.learning.spaces import KnownSpaces
from genkidama.learning.tensors import accelerator
from genkidama.plugins.actors import learner as module
from genkidama.plugins.actors.learner import (
    ReplayLearner,
    RowLearner,
    _serve,
    main,
    rollout_of,
    row_learner,
)
from genkidama.plugins.actors.learner_process import LearnerLayout, LearnerMemory
from genkidama.plugins.actors.rule import Columns, columns_of
from genkidama.plugins.actors.step_replay import replay_parts
from genkidama.protocol.vector import Signature
from tests.helpers import PATIENCE, ROOT
from tests.learning.blocks import (
    COLUMNS,
    GOES_ON,
    TERMINATED,
    TRUNCATED,
    Step,
    block,
    blocks,
)
from tests.learning.devices import DEVICES

#: Two numbers are seen, and one of two actions taken.
SPACES = KnownSpaces(gymnasium.spaces.Box(-np.inf, np.inf, (2,)), gymnasium.spaces.Discrete(2))


def experiment(**sections: dict[str, Any]) -> Experiment:
    given = {"network": {"hidden": [4]}, "algorithm": {"minibatch_size": 8}}
    return Experiment.from_dict({**given, "parent": {"rule": "experience"}, **sections})


MODEL = Model(experiment(environment={"reward_scale": 0.5}), SPACES)


@settings(deadline=None)
@given(blocks())
def test_a_rollout_tells_what_was_noted(found: list[list[list[Step]]]) -> None:
    rows = np.concatenate([block(lanes) for lanes in found])
    rollout = rollout_of(rows, COLUMNS, MODEL, 0.25)

    t = 0
    cuts = []
    following = []
    for lane in (lane for lanes in found for lane in lanes):
        for number, end in lane:
            assert rollout.observations[t].tolist() == [number, -number]
            assert rollout.actions[t].tolist() == [number % 2]
            assert rollout.rewards[t] == 5.0 * number
            assert rollout.log_mu is not None
            assert rollout.log_mu[t] == -0.5 - number % 3
            last = number == lane[-1][0]
            assert rollout.ends[t] == (last or end != GOES_ON)
            if end == TRUNCATED or (last and end == GOES_ON):
                cuts.append(t)
                following.append([number + 0.5, 0.0])
            t += 1
    assert len(rollout.rewards) == len(rollout.observations) == t
    assert rollout.cuts.tolist() == cuts
    assert rollout.cut_observations.tolist() == following
    assert rollout.progress == 0.25


def many(count: int = 64) -> np.ndarray:
    return block(
        [[(number % 5, TERMINATED if number % 9 == 8 else GOES_ON)] for number in range(count)]
    )


def learn(learner: RowLearner, rows: np.ndarray, progress: float = 0.0) -> int:
    return sum(1 for _ in learner.learn(rows, progress))


def test_it_learns_what_pays() -> None:
    learner = RowLearner(experiment(optimizer={"learning_rate": 0.01}), SPACES)
    # Action 1 pays 1, action 0 nothing, and each step is an episode.
    rows = block([[(number % 2, TERMINATED)] for number in range(64)])
    rows[:, 0] = rows[:, 1] = 1.0
    rows[:, COLUMNS.reward] = rows[:, COLUMNS.actions][:, 0]
    rows[:, COLUMNS.log_mu] = np.log(0.5)
    before = learner.model.numbers.copy()
    for _ in range(20):
        assert learn(learner, rows) == 4 * 8
    assert learner.clock[0] == 20 * 32
    assert not np.array_equal(learner.model.numbers, before)
    outputs, values = learner.model.evaluate(np.ones((1, 2), np.float32))
    log_pi = learner.model.log_probability(outputs, np.ones((1, 1), np.int64))
    assert np.exp(log_pi) > 0.6, "the ratio to μ stays within the clip"
    assert 0.2 < float(values[0]) < 0.8
    assert learner.figures["steps"] == 64.0
    assert learner.figures["updates"] == 32.0


def test_the_rate_follows_the_schedule() -> None:
    learner = RowLearner(experiment(optimizer={"learning_rate": 0.5, "schedule": "linear"}), SPACES)
    before = learner.model.numbers.copy()
    learn(learner, many(), 1.0)
    np.testing.assert_array_equal(learner.model.numbers, before)
    assert learner.figures["learning_rate"] == 0.0


def test_the_divergence_is_that_of_the_policy_from_the_one_that_acted() -> None:
    learner = RowLearner(experiment(), SPACES)
    rows = many()
    learner.figures.clear()
    steps = rows[rows[:, COLUMNS.following] > 0]
    outputs, _ = learner.model.evaluate(steps[:, :2].copy())
    log_pi = learner.model.log_probability(outputs, steps[:, COLUMNS.actions].astype(np.int64))
    learn(learner, rows)
    expected = float(np.mean(steps[:, COLUMNS.log_mu] - log_pi))
    assert learner.figures["kl"] == pytest.approx(expected, abs=1e-5)


def test_a_batch_that_lets_training_diverge_is_forgotten() -> None:
    learner = RowLearner(experiment(optimizer={"learning_rate": 1e30}), SPACES)
    before = learner.model.numbers.copy()
    rows = many()
    rows[:, COLUMNS.reward] = 1e30
    with np.errstate(all="ignore"):
        learn(learner, rows)
    assert learner.figures["diverged"] == 1.0
    np.testing.assert_array_equal(learner.model.numbers, before)
    assert not learner.state.any()
    assert learner.clock[0] == 0.0


def test_statistics_are_of_what_the_environment_gave_and_of_steps_alone() -> None:
    normalized = {"normalize_observations": True, "normalize_rewards": True, "reward_scale": 2.0}
    learner = RowLearner(experiment(environment=normalized), SPACES)
    assert columns_of(learner.model) == Columns(2, 1, discounted=True, choices=(2,))
    rows = block([[(3, GOES_ON), (5, GOES_ON)], [(7, TERMINATED)]], learner.columns)
    rows[:, -1] = [10.0, 20.0, 60.0, 1e6]
    learn(learner, rows)
    observations = learner.model.moments("observations")
    returns = learner.model.moments("returns")
    assert observations is not None and returns is not None
    assert observations.mean_and_deviation()[0].tolist() == [5.0, -5.0]
    assert returns.mean_and_deviation()[0].tolist() == [30.0]
    # What comes next is learned from as these say.
    rollout = rollout_of(rows, learner.columns, learner.model, 0.0)
    np.testing.assert_allclose(rollout.observations.mean(0), 0.0, atol=1e-6)
    np.testing.assert_allclose(
        rollout.rewards, rows[:3, 3] * 2.0 / returns.mean_and_deviation()[1][0], rtol=1e-6
    )


#: A byte for each of 64 pixels is seen, and one of two actions taken.
IMAGES = KnownSpaces(gymnasium.spaces.Box(0, 255, (8, 8, 1), np.uint8), SPACES.action_space)


def images(columns: Columns, count: int = 64) -> np.ndarray:
    rows = block([[(number, GOES_ON) for number in range(count)]], columns)
    rows[:, : columns.observation] = np.random.default_rng(0).integers(0, 256, (len(rows), 64))
    rows[:, columns.reward] = rows[:, 0] > 127
    return rows


def convolutions(algorithm: dict[str, Any], **sections: dict[str, Any]) -> Experiment:
    """An experiment whose steps are as small as its gradients, so that rounding does not show."""
    network = {"name": "convolutional", "channels": "last", "convolutions": [[4, 3, 2]]}
    return experiment(
        network={**network, "hidden": [8], "activation": "relu"},
        environment={"normalize_rewards": True},
        algorithm=algorithm,
        optimizer={"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
        **sections,
    )


@contextmanager
def on(device: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerator, "find_device", lambda *_: torch.device(device))
        yield


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "algorithm", [{"minibatch_size": 16, "epochs": 2}, {"name": "a3c", "vtrace": True}]
)
def test_on_a_device_it_learns_what_it_learns_on_the_cpu(
    algorithm: dict[str, Any], device: str
) -> None:
    here = RowLearner(convolutions(algorithm, learner={"device": "cpu"}), IMAGES)
    with on(device):
        there = RowLearner(convolutions(algorithm), IMAGES)
    first = here.model.numbers.copy()
    assert there._weights is not None and here._weights is None
    np.testing.assert_array_equal(there.model.numbers, first)
    for count in (64, 40):
        rows = images(here.columns, count)
        assert learn(here, rows) == learn(there, rows) > 0
        for key, value in here.figures.items():
            assert there.figures[key] == pytest.approx(value, rel=0.01, abs=1e-4), key
    assert np.abs(here.model.numbers - first).max() > 5e-3
    np.testing.assert_allclose(there.model.numbers, here.model.numbers, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(there.state, here.state, rtol=1e-2, atol=1e-5)
    assert there.clock[0] == here.clock[0]


@pytest.mark.parametrize("device", DEVICES)
def test_on_a_device_a_batch_that_diverges_is_forgotten_there_too(device: str) -> None:
    with on(device):
        learner = RowLearner(convolutions({"minibatch_size": 16}), IMAGES)
    assert learner._weights is not None
    learner.model.numbers[0] = 0.25
    learner.refresh()
    before = learner.model.numbers.copy()
    with np.errstate(all="ignore"):
        learner._weights.state[0] = torch.inf
        learn(learner, images(learner.columns))
    assert learner.figures["diverged"] == 1.0
    trainable = learner.model.trainable
    assert learner._weights.vector.tolist() == before[:trainable].tolist()
    assert not learner._weights.state.any() and not learner.state.any()


@pytest.mark.parametrize("device", DEVICES)
def test_on_a_device_it_goes_on_with_what_the_memory_holds(device: str) -> None:
    here = RowLearner(convolutions({}, learner={"device": "cpu"}), IMAGES)
    learn(here, images(here.columns))
    with on(device):
        there = RowLearner(convolutions({}), IMAGES)
    size, (rows, trainable) = len(here.model.numbers), here.state.shape
    memory = LearnerMemory(LearnerLayout(size, trainable, rows, 100, here.columns.count))
    memory.weights[:], memory.state[:] = here.model.numbers, here.state
    memory.clock[:] = here.clock
    there._rng.permutation = here._rng.permutation
    batch = images(here.columns, 40)
    memory.rows[: len(batch)] = batch
    control, theirs = Pipe()

    def serve() -> None:
        with theirs, suppress(module._Gone):
            _serve(there, memory, theirs)

    serving = threading.Thread(target=serve)
    serving.start()
    with control:
        control.send((len(batch), 0.5))
        assert control.poll(PATIENCE) and control.recv()[0] == "learned"
    serving.join(PATIENCE)
    assert not serving.is_alive()
    learn(here, batch, 0.5)
    np.testing.assert_allclose(memory.weights, here.model.numbers, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(memory.state, here.state, rtol=1e-2, atol=1e-5)
    memory.close()


def test_auto_leaves_perceptrons_on_the_cpu_and_the_cpu_needs_no_second_model() -> None:
    with on("cpu"):
        assert RowLearner(convolutions({}), IMAGES)._weights is None
    with on("cpu:0"):
        learner = RowLearner(experiment(), SPACES)
        asked = RowLearner(experiment(learner={"device": "cuda"}), SPACES)
    assert learner._weights is None and asked._weights is not None


@contextmanager
def learner(log: Path) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    ours, theirs = Pipe()
    with theirs, log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "genkidama.plugins.actors.learner", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=file,
            stderr=file,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        yield process, ours
    finally:
        ours.close()
        process.kill()
        process.wait()


def faulty(**sections: dict[str, Any]) -> Experiment:
    return Experiment.from_dict(
        {
            "environment": {"id": "tests.tiny:Faulty"},
            "network": {"hidden": [4]},
            "parent": {"rule": "experience"},
            **sections,
        }
    )


def attached(
    process: subprocess.Popen[bytes], control: Connection, experiment: Experiment
) -> tuple[LearnerMemory, np.ndarray, Columns]:
    """The memory that it was given, its initial weights, and a row's columns."""
    control.send((experiment.to_dict(), None))
    kind, entries, initial, shape, columns, images = control.recv()
    assert kind == "ok" and images is False
    size = Signature.of(entries).size
    memory = LearnerMemory(LearnerLayout(size, shape[1], shape[0], 1000, columns.count))
    memory.weights[:] = np.frombuffer(initial, np.float32)
    control.send(memory.layout)
    reduction.send_handle(control, memory.descriptor, process.pid)
    return memory, memory.weights.copy(), columns


def test_it_learns_from_batches_in_turns_and_ends_with_its_parent(tmp_path: Path) -> None:
    with learner(tmp_path / "log") as (process, control):
        memory, initial, columns = attached(process, control, faulty())
        rows = block([[(number, GOES_ON) for number in range(100)]], columns)
        memory.rows[: len(rows)] = rows
        before = initial
        for _ in range(2):
            control.send((len(rows), 0.5))
            kind, figures = control.recv()
            assert kind == "learned"
            assert figures["steps"] == 100.0
            assert (memory.weights != before).any()
            before = memory.weights.copy()
        assert memory.clock[0] == 2 * figures["updates"]
        assert memory.state.any()
        # What reaches a whole terminal or group ends no learner: its parent does.
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        control.send((len(rows), 0.5))
        assert control.recv()[0] == "learned"
        control.close()
        assert process.wait(PATIENCE) == 0
    assert (tmp_path / "log").read_text() == ""


def test_it_ends_in_the_middle_of_a_batch_too(tmp_path: Path) -> None:
    endless = faulty(algorithm={"epochs": 10**9})
    with learner(tmp_path / "log") as (process, control):
        memory, initial, columns = attached(process, control, endless)
        rows = block([[(number, GOES_ON) for number in range(100)]], columns)
        memory.rows[: len(rows)] = rows
        control.send((len(rows), 0.5))
        control.close()
        assert process.wait(PATIENCE) == 0
        np.testing.assert_array_equal(memory.weights, initial)


def test_a_mistake_of_the_users_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)  # it is this process
    control, theirs = Pipe()
    with control, theirs:
        control.send((faulty(network={"name": "tests.tiny:Nothing"}).to_dict(), None))
        assert main(theirs) == 1
        assert control.recv() == (
            "error",
            "network.name = 'tests.tiny:Nothing': module 'tests.tiny' has no 'Nothing'",
        )
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Raising", "ValueError: no idea (tests/plugins/actors/raising.py:16, in losses)"),
        # Which is no end of the learner's own socket.
        ("Cut", "ConnectionResetError: simulator (tests/plugins/actors/raising.py:23, in losses)"),
    ],
)
def test_what_a_learner_of_the_users_raises_is_told(tmp_path: Path, name: str, words: str) -> None:
    with learner(tmp_path / "log") as (process, control):
        experiment = faulty(algorithm={"name": f"tests.plugins.actors.raising:{name}"})
        memory, _, columns = attached(process, control, experiment)
        memory.rows[:3] = block([[(0, GOES_ON), (1, GOES_ON)]], columns)
        control.send((3, 0.0))
        assert control.recv() == ("failed", words)
        assert process.wait(PATIENCE) == 1
    assert "Traceback" in (tmp_path / "log").read_text()


# A learner that samples.


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN_SECONDS", PATIENCE)


#: Two numbers are seen, and a number within bounds taken.
TURNING = KnownSpaces(SPACES.observation_space, gymnasium.spaces.Box(-2.0, 2.0, (1,)))


def sampling(**algorithm: Any) -> Experiment:
    return experiment(
        algorithm={"name": "sac", "minibatch_size": 8, "start_steps": 20, **algorithm},
        replay={"steps": 100},
        environment={"reward_scale": 0.01},
    )


def loaded(experiment: Experiment) -> tuple[ReplayLearner, LearnerMemory]:
    """A learner that samples, and the memory that it has taken over."""
    learner = row_learner(experiment, TURNING)
    assert isinstance(learner, ReplayLearner)
    parts = replay_parts(learner.columns, 100, False)
    layout = LearnerLayout(
        learner.signature.size, learner.state.shape[1], 1, 50, learner.columns.count, parts
    )
    memory = LearnerMemory(layout)
    memory.weights[:] = learner.weights
    learner.load(memory)
    return learner, memory


def test_updates_follow_the_steps_that_arrive() -> None:
    learner, memory = loaded(sampling(updates_per_step=2))
    assert learn(learner, many(19)) == 0, "too few steps yet"
    learner.publish(memory)
    before = memory.weights.copy()
    assert learn(learner, many(4)) == 8
    assert learn(learner, many(0)) == 0
    assert learner.clock[0] == 8
    learner.publish(memory)
    assert not np.array_equal(memory.weights, before)
    model = learner.model
    assert np.array_equal(memory.weights, model.numbers[: len(memory.weights)])
    assert model.signature.size > 2 * learner.signature.size, "children have the policy alone"


def test_one_that_may_not_give_way_to_acting_learns_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(by: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "nice", forbidden)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)  # it is this process
    monkeypatch.setattr(module, "spaces_of", lambda *_: TURNING)
    settings = sampling().with_settings({"environment.period": 0.05, "child.cores": 1})
    _, memory = loaded(settings)
    control, theirs = Pipe()
    with control, theirs, ThreadPoolExecutor() as threads:
        code = threads.submit(main, theirs)
        control.send((settings.to_dict(), None))
        assert control.recv()[0] == "ok"
        control.send(memory.layout)
        reduction.send_handle(control, memory.descriptor, os.getpid())
        control.send((0, 0.0))
        assert control.poll(PATIENCE) and control.recv()[0] == "learned"
        control.close()
        assert code.result(PATIENCE) == 0


def test_automatic_updates_are_more_with_layer_norm() -> None:
    for layer_norm, count in ((False, 4), (True, 8)):
        learner, _ = loaded(sampling(layer_norm=layer_norm))
        assert learn(learner, many(19)) == 0
        learner._replay.add(many(1))
        assert learn(learner, many(1)) == count


def test_a_turn_ends_in_time_and_the_rest_stays_due(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, _ = loaded(sampling(updates_per_step=3))
    monkeypatch.setattr(module, "_TURN_SECONDS", 0.0)
    monkeypatch.setattr(module, "_MEASURE_SECONDS", 0.0)
    assert learn(learner, many(20)) == 1
    assert learner.figures["due"] == 59 and learner.figures["updates_per_step"] == 1 / 20
    assert learn(learner, many(0)) == 1
    assert learner.figures["due"] == 58 and learner.figures["updates"] == 1
    assert "updates_per_step" not in learner.figures, "there was none"
    monkeypatch.setattr(module, "_DUE_STEPS", 10)
    assert learn(learner, many(20)) == 1
    assert learner.figures["due"] == 29, "no more than the updates of so many steps"


def test_a_successor_learns_on_as_if_nothing_had_happened() -> None:
    first, memory = loaded(sampling())
    learn(first, many(40))
    first.publish(memory)
    second = row_learner(sampling(), TURNING)
    second.load(memory)
    assert np.array_equal(first.model.numbers, second.model.numbers)
    assert np.array_equal(first.state, second.state)
    assert second.clock[0] == first.clock[0] > 0
    assert learn(second, many(1)) == 4, "the steps are there, too"


def test_other_weights_of_the_policy_are_taken_over() -> None:
    """As from a run's checkpoint, or from another run's."""
    learner, memory = loaded(sampling())
    memory.weights[:] = 0.25
    critics = learner.model.numbers[learner.signature.size :].copy()
    learner.load(memory)
    assert (learner.weights == 0.25).all()
    assert np.array_equal(learner.model.numbers[learner.signature.size :], critics)


def test_the_target_follows_by_its_rate() -> None:
    learner, _ = loaded(sampling(updates_per_step=1, target_rate=0.25))
    learn(learner, many(19))
    for _ in range(3):
        target = learner._target.copy()
        assert learn(learner, many(1)) == 1
        wanted = 0.75 * target + 0.25 * learner.model.numbers
        np.testing.assert_allclose(learner._target, wanted, rtol=1e-5, atol=1e-6)


def test_a_turn_that_diverges_is_forgotten() -> None:
    learner, memory = loaded(sampling())
    learn(learner, many(20))
    before, target = learner.model.numbers.copy(), learner._target.copy()
    learner._optimizer._settings = Optimizer(learning_rate=1e30)
    learner.experiment = msgspec.structs.replace(
        learner.experiment, optimizer=Optimizer(learning_rate=1e30)
    )
    with np.errstate(all="ignore"):
        learn(learner, many(5))
    assert learner.figures["diverged"] == 1.0
    assert np.array_equal(learner.model.numbers, before)
    assert np.array_equal(learner._target, target)
    assert learner.clock[0] == 0.0
    learner.publish(memory)
    assert np.isfinite(memory.state).all()


def test_statistics_reach_the_children() -> None:
    given_ = sampling().with_settings({"environment.normalize_observations": True})
    learner, memory = loaded(given_)
    learn(learner, many(10))
    learner.publish(memory)
    children = Model(given_, TURNING, vector=memory.weights)
    moments = children.moments("observations")
    assert moments is not None
    assert moments.mean_and_deviation()[0][0] == pytest.approx(np.mean(np.arange(10) % 5))


def demonstrated(path: Path, **algorithm: Any) -> Experiment:
    """`sampling` beside the steps of a file, which all see 1000."""
    writer = DemonstrationWriter(path, {"id": "Turning"}, TURNING, "a test")
    writer.add([[1000.0, 0.0]] * 31, [[2.0]] * 30, [1.0] * 30, False, True)
    writer.close()
    return sampling(demonstrations=[str(path)], **algorithm)


def drawn_by(learner: RowLearner) -> np.ndarray:
    """The first number of each observation of a minibatch."""
    assert isinstance(learner, ReplayLearner)
    found: np.ndarray = learner._drawn.sample(8).observations[:, 0]
    return found


def test_a_share_of_each_minibatch_is_of_the_demonstrations(tmp_path: Path) -> None:
    chosen = demonstrated(tmp_path / "walk.steps", demonstration_share=0.25)
    learner, memory = loaded(chosen)
    assert learn(learner, many(19)) == 0, "start_steps are those of the children"
    assert learn(learner, many(200)) > 0
    seen = drawn_by(learner)
    assert (seen == 1000.0).sum() == 2 and len(learner._replay) == 100
    assert learner._drawn.sample(8).rewards[seen == 1000.0] == pytest.approx([0.01, 0.01])
    learner.publish(memory)
    again = row_learner(chosen, TURNING)
    again.load(memory)
    assert (drawn_by(again) == 1000.0).sum() == 2, "also of a successor's"
    assert np.array_equal(again.model.numbers, learner.model.numbers)


def test_demonstrations_change_what_is_learned(tmp_path: Path) -> None:
    plain, shown = sampling(), demonstrated(tmp_path / "walk.steps")
    ends = []
    for chosen in (plain, shown):
        learner, _ = loaded(chosen)
        learn(learner, many(40))
        ends.append(learner.model.numbers.copy())
    assert not np.array_equal(*ends)


def test_demonstrations_that_do_not_fit_are_refused_before_anything_is_learned(
    tmp_path: Path,
) -> None:
    chosen = demonstrated(tmp_path / "walk.steps")
    with pytest.raises(ConfigurationError, match=r"walk.steps: was recorded in Turning with act"):
        row_learner(chosen, TURNING._replace(action_space=gymnasium.spaces.Box(-2.0, 2.0, (2,))))


def test_sequences_of_a_memory_begin_with_the_states_in_the_rows() -> None:
    network = {"hidden": [4], "memory": 3, "sequence_length": 2, "initialization": "uniform"}
    learning = RowLearner(experiment(network=network), SPACES)
    columns = learning.columns
    assert columns.observation == 5
    steps = [(0, GOES_ON), (1, GOES_ON), (2, GOES_ON), (3, TRUNCATED), (4, GOES_ON)]
    rows = block([steps, [(5, TERMINATED), (6, GOES_ON)]], columns)
    rows[:, :5] = np.random.default_rng(0).uniform(-1.0, 1.0, (len(rows), 5))
    rollout = rollout_of(rows, columns, learning.model, 0.0)
    assert np.array_equal(rollout.observations, rows[:7, :5])
    assert np.array_equal(rollout.cut_observations, rows[7:, :5])
    (starts,) = learning.model.sequences(rollout)
    # Of the first four steps each two are a sequence; the cuts are by themselves.
    assert np.flatnonzero(starts).tolist() == [0, 2, 4, 5, 6, 7, 8, 9]
    before = learning.weights.copy()
    assert len(list(learning.learn(rows, 0.0))) > 0
    moved = learning.model.signature.slices["memory.weight_hh_l0"]
    assert (learning.weights[moved] != before[moved]).any()
