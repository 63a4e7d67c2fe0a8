"""GA3C through a Parent: real processes and sockets, and real Atari games."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from genkidama.cli.cluster import train
from genkidama.config.experiment import Experiment
from genkidama.protocol.diagnostics import DIAGNOSTICS, HEALTH, WEIGHTS
from tests.helpers import ROOT, history, small

KEYS = {
    *("tps", "pps", "updates", "predictors", "trainers", "agents"),
    *("queue_prediction", "queue_training", "prediction_batch", "training_batch", "lag"),
    *DIAGNOSTICS,
    *WEIGHTS,
}


@pytest.fixture(autouse=True)
def _importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def ga3c(**sections: dict[str, Any]) -> Experiment:
    settings: dict[str, Any] = {
        "algorithm": {"name": "a3c", "batch_size": 5},
        "child": {"backend": "ga3c", "exchange": "free", "exchange_seconds": 0.2},
        "ga3c": {"agents": 2, "training_batch": 20, "dynamic": False},
    }
    return small(
        **{
            name: {**settings.get(name, {}), **section}
            for name, section in {**settings, **sections}.items()
        }
    )


def test_two_children_learn_what_one_parent_holds_and_their_figures_are_in_its_history() -> None:
    settings = ga3c(
        optimizer={"learning_rate": 3e-3},
        algorithm={"entropy_coefficient": 0.01},
        ga3c={"agents": 2, "dynamic": True, "window_seconds": 0.5, "max_agents": 4},
        stop={"mean_return": 35.0, "seconds": 60.0},
    )
    run = train(settings, children=2, cores=1, out="runs/two", episodes=0)
    stop = history(run.path, "stop")[-1]
    assert "mean return" in stop["reason"], stop  # a random policy scores 22
    lines = history(run.path, "measures")
    assert {line["child"] for line in lines} == {"child-1", "child-2"}
    for line in lines:
        assert line["backend"] == "ga3c"
        assert set(line) - {"event", "time", "child", "backend", *HEALTH} <= KEYS
    last = lines[-1]
    assert last["pps"] > 0 and last["tps"] > 0 and last["lag"] >= 0
    # The dynamic adjustment.
    assert len({(line["predictors"], line["trainers"], line["agents"]) for line in lines}) > 1


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("example", ["pong", "breakout", "pong-vectorized", "pong-ppo"])
def test_atari_trains_end_to_end(example: str) -> None:
    settings = Experiment.load(ROOT / f"examples/atari/{example}.toml")
    changes = {
        "ga3c.agents": 2,
        "stop.seconds": 30.0,
        "ga3c.environments": 2,
        "ga3c.window_seconds": 2.0,
    }
    run = train(
        settings.with_settings(changes), children=1, cores=2, out=f"runs/{example}", episodes=0
    )
    snapshot = run.snapshot
    assert snapshot.steps > 1000 and snapshot.episodes > 0
    signature = run.load(best=False).signature
    if "pong" in example:
        assert signature.size == 1_005_623
    assert history(run.path, "measures")[-1]["updates"] > 0
    returns = [
        line["mean_return"]
        for line in history(run.path, "exchange")
        if line["mean_return"] is not None
    ]
    low, high = (-21.0, 21.0) if "pong" in example else (0.0, 900.0)
    assert all(low <= value <= high for value in returns) and returns


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_minatars_breakout_is_learned_from_its_pictures() -> None:
    """A random player breaks 0.4 bricks an episode."""
    experiment = Experiment.load(ROOT / "examples/minatar/breakout.toml")
    changes = {"stop.mean_return": 3.0, "stop.seconds": 180.0}
    run = train(
        experiment.with_settings(changes), children=1, cores=2, out="runs/minatar", episodes=0
    )
    assert run.snapshot.mean_return is not None and run.snapshot.mean_return >= 3.0
