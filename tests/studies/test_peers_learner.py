"""The learner that peers combine: ours, alone in a process, with its progress on the disk."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from genkidama.child.collector import Batch
from genkidama.experiment import Experiment
from genkidama.learning.optimizers import Optimizer
from studies.scaling.peers import ddp
from studies.scaling.peers.learner import EXPERIMENT, Worker, set_aside


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    settings = {
        "environment": {"id": "CartPole-v1"},
        "algorithm": {"batch_size": 64, "minibatch_size": 32, "epochs": 2},
        "network": {"hidden": [8]},
        "optimizer": {"learning_rate": 0.01},
        "child": {"exchange": "free"},
    }
    (tmp_path / EXPERIMENT).write_text(json.dumps(Experiment.from_dict(settings).to_dict()))
    return tmp_path


def test_a_batch_changes_the_weights_and_is_noted(folder: Path) -> None:
    worker = Worker(folder, 3, (3,), steps=100)
    before = worker.memory.weights.copy()
    assert worker.one_batch() == worker.one_batch() == 64
    assert not np.array_equal(worker.memory.weights, before)
    assert worker.memory.clock[0] == 2 * 2 * 2  # batches, epochs, minibatches
    lines = [line.split() for line in (folder / "notes-3.txt").read_text().splitlines()]
    ends = [int(steps) for _, steps, value in lines if value == "nan"]
    assert ends == [164, 228]
    returns = [float(value) for _, _, value in lines]
    lengths = [value for value in returns if not math.isnan(value)]
    assert lengths and sum(lengths) <= 128  # CartPole pays 1 a step


def test_workers_begin_with_the_same_weights_and_see_different_things(folder: Path) -> None:
    one, other = (Worker(folder, number, (number,)) for number in range(2))
    assert np.array_equal(one.memory.weights, other.memory.weights)
    one.one_batch()
    other.one_batch()
    assert not np.array_equal(one.memory.weights, other.memory.weights)


def test_what_lasts_from_round_to_round_is_all_in_the_memory(folder: Path) -> None:
    """As in Flower: another process, the same state, the same next batch."""
    old = Worker(folder, 0, (0, 0))
    old.one_batch()
    a, b = (Worker(folder, 0, (0, 1)) for _ in range(2))
    for new in (a, b):
        new.memory.weights[:] = old.memory.weights
        new.memory.state[:] = old.memory.state
        new.memory.clock[:] = old.memory.clock
        new.one_batch()
    assert np.array_equal(a.memory.weights, b.memory.weights)
    assert a.memory.clock[0] == 2 * old.memory.clock[0]


def test_a_batch_is_played_with_the_weights_of_the_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(folder, 0, (0,))
    played: list[float] = []

    collector = worker.core.collector
    collect = collector.collect

    def noting() -> Batch:
        played.extend(worker.core.model.numbers.tolist())
        return collect()

    monkeypatch.setattr(collector, "collect", noting)
    worker.memory.weights[:] = 0.25
    worker.one_batch()
    assert set(played) == {0.25}


def test_a_policy_is_set_aside(tmp_path: Path) -> None:
    set_aside(tmp_path, 0, np.zeros(3))
    set_aside(tmp_path, 1, np.ones(3))
    numbers = [line.split()[1] for line in (tmp_path / "snapshots.txt").read_text().splitlines()]
    assert numbers == ["0", "1"]
    assert np.load(tmp_path / "snapshot-1.npy").tolist() == [1.0, 1.0, 1.0]


class Recorder:
    def __init__(self) -> None:
        self.gradients: list[list[float]] = []

    def step(self, gradient: torch.Tensor, learning_rate: float) -> None:
        self.gradients.append(gradient.tolist())


@pytest.mark.parametrize(("limit", "expected"), [(0.0, [3.0, 4.0]), (0.5, [0.3, 0.4])])
def test_gradients_are_averaged_and_then_clipped(
    monkeypatch: pytest.MonkeyPatch, limit: float, expected: list[float]
) -> None:
    monkeypatch.setattr(
        ddp.dist, "all_reduce", lambda gradient: gradient.add_(gradient.new([5, 0]))
    )
    recorder = Recorder()
    inner: Optimizer = recorder
    ddp.Averaged(inner, 2, limit).step(torch.tensor([1.0, 8.0]), 0.1)
    assert recorder.gradients == [pytest.approx(expected)]
