"""Real runs whose histories hold all diagnostics that their algorithms have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from genkidama.cli.cluster import train
from tests.helpers import history, small

ACTOR_CRITIC = {"loss", "policy_loss", "value_loss", "entropy", "explained_variance"}
ALWAYS = {"gradient_norm", "learning_rate", "episode_length"}
PPO: dict[str, Any] = {"name": "ppo", "minibatch_size": 64, "batch_size": 128}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        pytest.param({}, ACTOR_CRITIC | ALWAYS, id="a3c", marks=pytest.mark.slow),
        pytest.param(
            {
                "algorithm": PPO,
                "environment": {"lanes": 4},
                "parent": {"rule": "experience", "rule_options": {"batch": 256}},
            },
            ACTOR_CRITIC | ALWAYS | {"approximate_kl", "clip_fraction"},
            id="ppo beside the parent",
            marks=pytest.mark.slow,  # tests/test_experience_end_to_end.py looks at some of it
        ),
        pytest.param(
            {
                "algorithm": {"name": "dqn", "epsilon": 0.1, "start_steps": 50},
                "replay": {"steps": 500},
            },
            ALWAYS | {"loss", "td_error", "q_mean", "epsilon"},
            id="dqn",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"algorithm": {"name": "vtrace", "start_steps": 50}, "replay": {"steps": 500}},
            ACTOR_CRITIC | ALWAYS | {"approximate_kl"},
            id="vtrace",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "algorithm": PPO,
                "child": {"backend": "ga3c"},
                "ga3c": {"agents": 2, "trainers": 1, "predictors": 1, "dynamic": False},
            },
            ACTOR_CRITIC | ALWAYS | {"approximate_kl", "clip_fraction", "tps"},
            id="ga3c",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_history_has_them(tmp_path: Path, sections: Any, expected: set[str]) -> None:
    experiment = small(**sections, stop={"steps": 12_000})
    run = train(experiment, children=1, cores=1, out=tmp_path / "run", episodes=0)
    found: dict[str, list[float]] = {}
    for line in history(run.path, "measures"):
        for name, value in line.items():
            if isinstance(value, float):
                found.setdefault(name, []).append(value)
    assert expected <= found.keys(), expected - found.keys()
    for name in expected:
        assert all(map(math.isfinite, found[name])), name
    # All episodes' lengths together are all steps, but for the unfinished one of each lane.
    lengths = [
        line["episode_length"] * line["episodes_ended"]
        for line in history(run.path, "measures")
        if "episode_length" in line
    ]
    assert 0.5 * history(run.path, "exchange")[-1]["steps"] < sum(lengths)
    assert sum(lengths) <= history(run.path, "exchange")[-1]["steps"] + 4 * 500
    if "entropy" in expected:
        assert all(0.0 < value <= math.log(2) + 1e-6 for value in found["entropy"])
        assert all(value <= 1.0 for value in found["explained_variance"])
    if "clip_fraction" in expected:
        assert all(0.0 <= value <= 1.0 for value in found["clip_fraction"])
        assert all(value >= 0.0 for value in found["approximate_kl"])
