"""Several choices a step, and masks, through real processes: a door that is closed fails them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from genkidama.cli.cluster import train
from genkidama.config.experiment import Experiment
from tests.helpers import history

SECTIONS: dict[str, Any] = {
    "environment": {"id": "tests.environments:Doors", "options": {"columns": 2}},
    "network": {"hidden": [16]},
    "algorithm": {"gamma": 0.5, "batch_size": 64, "entropy_coefficient": 0.001},
    "optimizer": {"learning_rate": 0.01},
    "child": {"exchange": "free", "exchange_seconds": 0.1},
    "stop": {"mean_return": 4.5, "window": 50, "seconds": 90.0},
}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {
                "parent.rule": "experience",
                "parent.rule_options": {"batch": 512},
                "algorithm.name": "ppo",
            },
            id="experience",
        ),
        pytest.param(
            {
                "algorithm.name": "a3c",
                "environment.options": {"place": "info", "binary": True},
                "environment.action_mask": "info",
                "environment.lanes": 4,
            },
            id="a3c",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "algorithm.name": "a3c",
                "algorithm.batch_size": 5,
                "child.backend": "ga3c",
                "ga3c": {"agents": 2, "training_batch": 20, "dynamic": False},
            },
            id="ga3c",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"algorithm.name": "vtrace", "algorithm.start_steps": 100, "replay.steps": 1000},
            id="vtrace",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "algorithm.name": "dqn",
                "algorithm.epsilon": 0.05,
                "algorithm.start_steps": 100,
                "replay.steps": 1000,
                "environment.options": {"columns": 1},
            },
            id="dqn",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_only_valid_actions_are_taken_and_the_best_are_learned(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    experiment = Experiment.from_dict(SECTIONS).with_settings(changes)
    run = train(experiment, children=1, cores=1, out=tmp_path / "run", episodes=20)
    assert "mean return" in history(run.path, "stop")[-1]["reason"]
