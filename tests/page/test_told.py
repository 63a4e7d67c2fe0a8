"""A run's document from its directory, as the parent had it."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.errors import ConfigurationError
from genkidama.events import as_lines
from genkidama.page.told import ToldRun, find_runs
from tests.page.stories import BEGAN, began, exchange, plain


def written(path: Path, count: int = 50) -> Path:
    path.mkdir(parents=True)
    (path / "experiment.toml").write_text(plain(steps=1000).to_toml())
    events = [*began("a", "b"), *(exchange(number, "ab"[number % 2]) for number in range(count))]
    (path / "history.jsonl").write_bytes(as_lines(events) + b'{"time": 1.0, "event": "join"}\n')
    return path


def test_it_grows_with_its_history(tmp_path: Path) -> None:
    run = ToldRun(written(tmp_path / "run"))
    run.read()
    assert run.time == BEGAN + 50
    row = run.summary("runs/run/")
    assert (row["name"], row["steps"], row["mean_return"]) == ("run", 490, 48.5)
    assert len(row["curve"]["rows"]) == 50 and row["elapsed"] == 49.0
    with (tmp_path / "run" / "history.jsonl").open("ab") as file:
        file.write(as_lines([exchange(50)]))
    run.read()
    assert run.status.document(run.time)["learning"]["steps"] == 500


def test_runs_are_found_in_folders(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a"), written(tmp_path / "b")
    (tmp_path / "other").mkdir()
    assert find_runs([tmp_path]) == find_runs([tmp_path, first]) == [first, second]
    with pytest.raises(ConfigurationError, match="other: holds no run; give a run directory"):
        find_runs([tmp_path / "other"])
