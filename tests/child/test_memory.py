"""Cores whose network has a memory: the state of each lane, and what only a memory can learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.cores import records, replay_of, single
from genkidama.child.core import SingleCore
from genkidama.child.worker import EPISODE
from genkidama.config.experiment import Experiment
from tests.child.test_collector import walking
from tests.helpers import ROOT

SIZE = 3
NETWORK = {"hidden": [4], "memory": SIZE, "initialization": "uniform"}


def next_state(core: SingleCore, row: np.ndarray) -> np.ndarray:
    normalize = core.model.normalizer()
    core.model.network.acting()(row if normalize is None else normalize(row))
    state: np.ndarray = core.model.network.state[0].copy()
    return state


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_state_belongs_to_a_lane_and_an_episode(lanes: int, normalize: bool) -> None:
    length = 5
    environment = {"normalize_observations": normalize}
    settings = walking(lanes, lanes * length, network=NETWORK, environment=environment)
    with single(settings) as (core, _, line):
        expected = np.zeros((lanes, SIZE), np.float32)
        cut, carried = 0, 0
        for _ in range(16):
            batch = core.collector.collect()
            following = dict(zip(batch.cuts, batch.following, strict=True))
            for row in range(batch.steps):
                lane = row // length
                seen = batch.rows.observations[row]
                np.testing.assert_allclose(seen[:SIZE], expected[lane], atol=1e-6)
                after = next_state(core, seen)
                over = batch.rows.terminated[row] or batch.rows.truncated[row]
                if row in following:
                    np.testing.assert_allclose(following[row][:SIZE], after, atol=1e-6)
                    cut += bool(over)
                expected[lane] = 0.0 if over else after
            carried += int(np.abs(expected).max(1).astype(bool).sum())
            core._absorb(batch)
            core.pull()  # the statistics that normalize
            records(line)
        assert cut > 2 and carried > 2


def test_a_new_core_begins_with_nothing() -> None:
    with single(walking(2, 10, network=NETWORK)) as (core, _, line):
        core.collector.collect()
        core.collector.reset(1)
        rows = core.collector.collect().rows.observations
        assert not rows[0, :SIZE].any() and not rows[5, :SIZE].any()
        records(line)


def test_a_sample_of_a_replay_begins_with_the_state_that_was_stored() -> None:
    settings = walking(
        2,
        20,
        network=NETWORK,
        algorithm={"name": "vtrace", "n_steps": 4, "start_steps": 20},
        replay={"steps": 200},
    )
    with single(settings) as (core, _, line):
        for _ in range(6):
            core._rollout(core.collector.collect())
        drawn = replay_of(core).trajectories(10, 4)
        (starts,) = core.model.sequences(drawn)
        continued = 0
        for t in range(1, len(drawn.rewards)):
            if not starts[t]:
                state = next_state(core, drawn.observations[t - 1])
                np.testing.assert_allclose(drawn.observations[t, :SIZE], state, atol=1e-6)
                continued += 1
        assert continued > 5 and (drawn.observations[starts[: len(drawn.rewards)], 0] != 0.0).any()
        records(line)


def test_the_window_of_chunks_begins_with_the_state_that_was_stored() -> None:
    settings = Experiment.from_dict(
        walking(2, 32, network=NETWORK).to_dict() | {"child": {"exchange": "chunk"}}
    )
    with single(settings) as (core, _, line):
        for _ in range(6):
            chunk = core.collector.collect(4)
            rollout = core._rollout(chunk)
        (starts,) = core.model.sequences(rollout)
        assert len(rollout.rewards) == 32 and starts[[0, 16]].all()
        for t in range(1, 32):
            if not starts[t]:
                state = next_state(core, rollout.observations[t - 1])
                np.testing.assert_allclose(rollout.observations[t, :SIZE], state, atol=1e-6)
        records(line)


@pytest.mark.parametrize(
    ("lanes", "algorithm"),
    [
        (8, {"name": "ppo", "batch_size": 128, "minibatch_size": 64, "epochs": 4}),
        (1, {"name": "ppo", "batch_size": 128, "minibatch_size": 64, "epochs": 4}),
        (8, {"name": "a3c", "batch_size": 64}),
        (8, {"name": "vtrace", "batch_size": 64, "n_steps": 8, "start_steps": 64}),
    ],
)
def test_a_turn_that_was_told_long_before_is_learned(
    lanes: int, algorithm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A T-maze, where without a memory every turn is a guess, with a mean return of 0."""
    monkeypatch.syspath_prepend(ROOT / "examples/memory")
    settings = Experiment.from_dict(
        {
            "environment": {"id": "tmaze:TMaze", "options": {"steps": 3}, "lanes": lanes},
            "network": {"hidden": [8], "memory": 8},
            "algorithm": {
                "gae_lambda": 0.95,
                "normalize_advantages": True,
                "entropy_coefficient": 0.02,
                **algorithm,
            },
            "optimizer": {"learning_rate": 1e-2},
            "replay": {"steps": 2000 if algorithm["name"] == "vtrace" else 0},
            "child": {"exchange": "free"},
        }
    )
    returns: list[float] = []
    with single(settings) as (core, _, line):
        for _ in range(400):
            core.learn(core._collect())
            returns += [value for kind, value, _ in records(line) if kind == EPISODE]
            if len(returns) > 200 and np.mean(returns[-100:]) > 0.8:
                return
    raise AssertionError(f"a mean return of {np.mean(returns[-100:])}")
