"""GA3C through a Parent: real processes and sockets, and real Atari games."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from genkidama.cli.cluster import train
from genkidama.config.experiment import Experiment
from genkidama.protocol.diagnostics import DIAGNOSTICS, HEALTH, WEIGHTS
from tests.helpers import ROOT, history
from tests.runtime.bounded import run_bounded

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


SCRIPT = """
import argparse, gymnasium, genkidama, numpy

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, required=True)
options = parser.parse_args()

class Sides(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.side = int(self.np_random.integers(2))
        return numpy.array([2 * self.side - 1], numpy.float32), {}

    def step(self, action):
        return numpy.zeros(1, numpy.float32), float(action == self.side), True, False, {}

experiment = genkidama.Experiment.from_dict({
    "environment": {"id": "sides:Sides"},
    "network": {"hidden": [8]},
    "algorithm": {"name": "a3c", "batch_size": 5, "entropy_coefficient": 0.01},
    "optimizer": {"learning_rate": 0.01},
    "child": {"backend": "ga3c", "exchange": "free", "exchange_seconds": 0.1},
    "ga3c": {"agents": 2, "training_batch": 20, "dynamic": False},
    "stop": {"mean_return": 0.9, "seconds": options.seconds},
})
genkidama.train(experiment, children=1, cores=1, out="run", episodes=0)
print("trained")
"""


def test_the_child_of_a_script_learns_what_its_parent_holds_and_its_figures_are_in_the_history(
    tmp_path: Path,
) -> None:
    """Agents and engine have the script's class, its folder and its arguments. None trains again,
    though there is no guard."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/sides.py").write_text(SCRIPT)
    command = [sys.executable, "folder/sides.py", "--seconds", "60"]
    assert run_bounded(command, tmp_path) == (0, "trained\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "output", "run"]
    run = tmp_path / "run"
    stop = history(run, "stop")[-1]
    assert "mean return" in stop["reason"], stop  # a random policy scores 0.5
    lines = history(run, "measures")
    assert {line["child"] for line in lines} == {"child-1"}
    for line in lines:
        assert line["backend"] == "ga3c"
        assert set(line) - {"event", "time", "child", "backend", *HEALTH} <= KEYS
    last = lines[-1]
    assert last["pps"] > 0 and last["tps"] > 0 and last["lag"] >= 0
    assert [last[name] for name in ("predictors", "trainers", "agents")] == [1, 1, 2]


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
