"""SAC with real processes: beside the parent, and inside children, whatever they push."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genkidama.__main__ import main
from genkidama.cli.cluster import train
from genkidama.config.experiment import Experiment
from genkidama.plugins.actors.step_replay import FILE
from genkidama.plugins.render.playback import play
from genkidama.runs.run import Run
from tests.helpers import command, history, one_forkserver


def settings(**changes: Any) -> Experiment:
    plain = Experiment.from_dict(
        {
            "environment": {"id": "tests.tiny:Turning"},
            "network": {"hidden": [16]},
            "algorithm": {"name": "sac", "gamma": 0.5, "minibatch_size": 64, "start_steps": 100},
            "replay": {"steps": 5000},
            "optimizer": {"learning_rate": 0.003},
            "child": {"exchange": "free", "exchange_seconds": 0.1},
            "stop": {"mean_return": 9.3, "window": 10, "seconds": 60.0},
        }
    )
    return plain.with_settings(changes)


def learned(path: Path) -> float:
    """The last mean return. Random actions have 3.3, the best 10."""
    return float(history(path, "exchange")[-1]["mean_return"])


def test_it_learns_beside_the_parent_and_goes_on_where_it_was(tmp_path: Path) -> None:
    beside = {"parent.rule": "experience"}
    run = train(settings(**beside), children=1, cores=1, out=tmp_path / "run", episodes=0)
    assert learned(run.path) >= 9.3
    assert (run.path / FILE).stat().st_size > 100 * 7 * 4
    policy = run.policy()
    seen = np.array([0.5, 1.0], np.float32)
    action, _ = policy.predict(seen, deterministic=True)
    assert action == pytest.approx(np.array([1.0]), abs=0.5)
    said = policy.explain(seen)
    assert said.kind == "means" and said.actions == pytest.approx(action)
    assert said.spread is not None and 0.0 < said.spread[0] < 1.0
    assert np.isnan(said.value), "the critics are the learner's"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"parent.alpha": 0.9}, id="blend"),
        pytest.param({"demonstrated": True}, id="demonstrations", marks=pytest.mark.slow),
        pytest.param(
            {"demonstrated": True, "replay.url": "embedded"},
            id="demonstrations, global",
            marks=pytest.mark.slow,
        ),
        pytest.param({"child.exchange": "episode"}, id="episode", marks=pytest.mark.slow),
        pytest.param({"environment.lanes": 4}, id="lanes", marks=pytest.mark.slow),
        pytest.param({"network.activation": "elu"}, id="torch", marks=pytest.mark.slow),
        pytest.param(
            {"parent.rule": "gradient", "child.exchange": "update"},
            id="gradient",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"algorithm.layer_norm": True, "algorithm.critic_dropout": 0.01},
            id="dropout and layer norm",
            marks=pytest.mark.slow,
        ),
        pytest.param({"replay.url": "embedded"}, id="global", marks=pytest.mark.slow),
    ],
)
def test_it_learns_inside_a_child(tmp_path: Path, changes: dict[str, Any]) -> None:
    if changes.pop("demonstrated", False):
        path = tmp_path / "best.steps"
        (tmp_path / "turn.toml").write_text(settings().to_toml())
        play(tmp_path / "turn.toml", record=path, controller=f"{__name__}:best", episodes=5)
        changes["algorithm.demonstrations"] = [str(path)]
    run = train(settings(**changes), children=1, cores=2, out=tmp_path / "run", episodes=0)
    assert learned(run.path) >= 9.3


def best(seen: np.ndarray) -> list[float]:
    """A controller of `tests.tiny:Turning`."""
    return [2.0 * float(seen[0])]


def test_it_learns_beside_demonstrations_from_recording_to_resuming(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"parent.rule": "experience", "stop.mean_return": 11.0, "stop.steps": 500}
    (tmp_path / "turn.toml").write_text(settings(**changes).to_toml())
    path = tmp_path / "best.steps"
    play(tmp_path / "turn.toml", record=path, controller=f"{__name__}:best", episodes=3)
    words = ["train", "--children", "1", "--cores", "1", "--episodes", "0"]
    demonstrated = ("turn.toml", "--out", "run", "--demonstrations", "best.steps")
    begun = command(tmp_path, "genkidama", *words, *demonstrated)
    assert begun.code == 0, begun.err
    assert f"{path}: 30 steps by {__name__}:best\n" in begun.err
    run = Run(tmp_path / "run")
    assert run.experiment.algorithm.demonstrations == (str(path),)
    (folder := tmp_path / "elsewhere").mkdir()
    more = [*words, "--resume", str(run.path), "--allow", "tests", "--set"]
    resumed = command(folder, "genkidama", *more, "stop.steps=1000")
    assert resumed.code == 0, resumed.err
    assert history(run.path, "exchange")[-1]["steps"] >= 1000
    assert run.load(best=False).state["clock"][0] > 0, "it has learned"
    path.unlink()
    capsys.readouterr()
    with one_forkserver():
        assert main([*more, "stop.steps=2000"]) == 2
    assert "best.steps: no such file of demonstrations" in capsys.readouterr().err


@pytest.mark.slow
def test_a_policy_without_critics_is_exported_and_acts_alike(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    changes = {"parent.rule": "experience", "stop.steps": 200}
    run = train(settings(**changes), children=1, cores=1, out=tmp_path / "run", episodes=0)
    policy = run.policy()
    session = onnxruntime.InferenceSession(policy.to_onnx(tmp_path / "policy.onnx"))
    seen = np.array([[0.5, 1.0]], np.float32)
    action = session.run(["action"], {"observation": seen})[0]
    wanted, _ = policy.predict(seen[0], deterministic=True)
    np.testing.assert_allclose(action[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_some_act_and_one_learns_from_the_replay_of_all(tmp_path: Path) -> None:
    changes = {"replay.url": "embedded", "child.roles": ["act", "learn"]}
    run = train(settings(**changes), children=2, cores=1, out=tmp_path / "run", episodes=0)
    assert learned(run.path) >= 9.3


@pytest.mark.slow
def test_elu_learns_beside_the_parent(tmp_path: Path) -> None:
    changes = {"parent.rule": "experience", "network.activation": "elu"}
    run = train(settings(**changes), children=1, cores=1, out=tmp_path / "run", episodes=0)
    assert learned(run.path) >= 9.3
    assert isinstance(run, Run)
