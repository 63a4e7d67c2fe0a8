"""A run directory, read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runs import directory as run_module
from genkidama.runs.directory import Run, new_directory
from genkidama.runs.evaluation import Evaluation
from genkidama.server.events import Evaluated, from_line
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


def test_the_newest_good_one_is_found_by_all(tmp_path: Path) -> None:
    for version in (9, 12):
        untrained(tmp_path, small(), version=version)
    run = Run(tmp_path)
    run.checkpoints[-1].write_bytes(run.checkpoints[-1].read_bytes()[:500])
    problems: list[str] = []
    assert run.load(unreadable=problems.append).snapshot.version == 9
    assert run.final == run.checkpoints[0] and "version-0000000012" in problems[0]
    run.checkpoints[0].rename(tmp_path / "checkpoints" / "best.safetensors")
    assert run.load(best=True).path == run.best and run.load().path == run.best
    run.checkpoints[0].rename(tmp_path / "checkpoints" / "best.safetensors")
    with pytest.raises(ConfigurationError, match=r"holds no good checkpoint: .*best.safetensors"):
        run.load(best=True)


def test_the_best_stands_beside_the_versions(tmp_path: Path) -> None:
    run = untrained(tmp_path, small())
    run.final.rename(run.path / "checkpoints" / "best.safetensors")
    assert run.best == run.path / "checkpoints" / "best.safetensors"
    assert run.checkpoints == []


def test_a_history_that_is_being_written_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text('{"event":"start"}\n{"event":"join"}\n{"event":"exch')
    assert [line["event"] for line in Run(tmp_path).history()] == ["start", "join"]


def evaluation(mean: float) -> dict[str, Any]:
    returns = np.array([mean, mean])
    return Evaluation(returns, Path("best.safetensors"), 3.0, False, 7, "Moon", "Moon").to_dict()


@pytest.mark.parametrize("broken", [b"", b"{", b"[1]", b"\xff"])
def test_a_broken_evaluation_is_told_with_the_way_out(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "evaluation.json").write_bytes(broken)
    way_out = f"evaluation.json: is broken: .*; evaluate again: genkidama evaluate {tmp_path}"
    with pytest.raises(ConfigurationError, match=way_out):
        _ = Run(tmp_path).evaluation


@pytest.mark.parametrize("mean", [21.5, float("nan")])
def test_an_evaluation_is_written_twice(tmp_path: Path, mean: float) -> None:
    run = Run(tmp_path)
    run.record_evaluation(evaluation(mean), [mean, 1 / 3], now=5.0)
    plain = json.loads(msgspec.json.encode(evaluation(mean)))  # a NaN as null
    shown = {**plain, "returns": [plain["mean"], 0.333]}
    assert run.evaluation == shown
    assert json.loads((tmp_path / "evaluation.json").read_text()) == shown
    (line,) = run.history()
    assert line == {"time": 5.0, "event": "evaluation", **plain, "mean_return": plain["mean"]}
    assert list(line) == ["time", "event", *plain, "mean_return"]
    assert isinstance(from_line(line), Evaluated)


def test_runs_that_begin_in_one_second_get_directories_of_their_own(tmp_path: Path) -> None:
    found = [new_directory("small", tmp_path / "runs") for _ in range(5)]
    assert len(set(found)) == 5 and all(path.is_dir() for path in found)
    assert all(path.name.startswith("small-") for path in found)


def test_a_second_has_room_for_a_hundred_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module.time, "strftime", lambda _: "20260101-000000")
    found = [new_directory("small", tmp_path) for _ in range(100)]
    assert [path.name for path in found[:2]] == ["small-20260101-000000", "small-20260101-000000-2"]
    with pytest.raises(EnvironmentFailure, match=r"so many runs began .* with --out"):
        new_directory("small", tmp_path)


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
        Run(tmp_path).record_evaluation(evaluation(1.0), [], now=0.0)
    with pytest.raises(EnvironmentFailure, match=r"evaluation.json: cannot be written"):
        Run(tmp_path / "nowhere").record_evaluation(evaluation(1.0), [], now=0.0)
