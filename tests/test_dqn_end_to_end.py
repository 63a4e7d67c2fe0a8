"""Off-policy learning with real processes: cores that remember, a parent, and θ⁻ between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from genkidama.cli.cluster import train
from genkidama.config.experiment import Experiment
from tests.helpers import history


def settings(**changes: Any) -> Experiment:
    plain = Experiment.from_dict(
        {
            "environment": {"id": "CartPole-v1", "reward_scale": 0.1},
            "network": {"hidden": [32], "activation": "relu", "shared": True},
            "algorithm": {
                "name": "dqn",
                "batch_size": 8,
                "minibatch_size": 64,
                "n_steps": 3,
                "start_steps": 200,
                "gamma": 0.97,
                "epsilon": 0.1,
                "target_updates": 100,
            },
            "replay": {"steps": 5000, "priority_exponent": 0.5},
            "optimizer": {"learning_rate": 0.003},
            "child": {"exchange": "free", "exchange_seconds": 0.1},
            "stop": {"mean_return": 50.0, "window": 10, "seconds": 60.0},
        }
    )
    return plain.with_settings(changes)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"algorithm.dueling": True}, id="blend", marks=pytest.mark.slow),
        pytest.param({"child.exchange": "episode"}, id="episode", marks=pytest.mark.slow),
        pytest.param({"environment.lanes": 4}, id="lanes", marks=pytest.mark.slow),
        pytest.param(
            {
                "algorithm.name": "vtrace",
                "algorithm.epsilon": 0.0,
                "algorithm.n_steps": 16,
                "algorithm.batch_size": 32,
                "replay.priority_exponent": 0.0,
            },
            id="vtrace",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_learns_whatever_travels(tmp_path: Path, changes: dict[str, Any]) -> None:
    run = train(settings(**changes), children=1, cores=2, out=tmp_path / "run", episodes=0)
    assert history(run.path, "exchange")[-1]["mean_return"] >= 50.0
    assert run.snapshot.steps < 60_000
