"""A run directory, read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.system.run import Run
from tests.helpers import small, untrained


def test_a_run_tells_what_it_holds(tmp_path: Path) -> None:
    untrained(tmp_path, small(), version=12)
    untrained(tmp_path, small(), version=9)
    run = Run.open(tmp_path)
    assert run.experiment == small()
    assert [path.name for path in run.checkpoints] == [
        "version-0000000009.safetensors",
        "version-0000000012.safetensors",
    ]
    assert run.final == run.checkpoints[-1]
    assert run.load().snapshot.version == 12
    assert run.best is None
    assert run.evaluation is None
    assert list(run.history()) == []


def test_the_best_stands_beside_the_versions(tmp_path: Path) -> None:
    run = untrained(tmp_path, small())
    run.final.rename(run.path / "checkpoints" / "best.safetensors")
    assert run.best == run.path / "checkpoints" / "best.safetensors"
    assert run.checkpoints == []


def test_a_history_that_is_being_written_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text('{"event":"start"}\n{"event":"join"}\n{"event":"exch')
    assert [line["event"] for line in Run(tmp_path).history()] == ["start", "join"]


def test_an_evaluation_is_written_twice(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.record_evaluation(
        {"mean": 21.5, "std": float("nan"), "returns": [1.0], "episodes": 2}, now=5.0
    )
    assert run.evaluation == {"mean": 21.5, "std": None, "returns": [1.0], "episodes": 2}
    assert json.loads((tmp_path / "evaluation.json").read_text()) == run.evaluation
    assert list(run.history()) == [
        {
            "time": 5.0,
            "event": "evaluation",
            "mean": 21.5,
            "std": None,
            "episodes": 2,
            "mean_return": 21.5,
        }
    ]


def test_where_nothing_is_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"holds no run \(no experiment.toml\)"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="holds no checkpoint yet"):
        Run(tmp_path).load()


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").mkdir()
    with pytest.raises(
        EnvironmentFailure, match=r"history.jsonl: cannot be written: Is a directory"
    ):
        Run(tmp_path).record_evaluation({"mean": 1.0}, now=0.0)
    with pytest.raises(EnvironmentFailure, match=r"evaluation.json: cannot be written"):
        Run(tmp_path / "nowhere").record_evaluation({"mean": 1.0}, now=0.0)
