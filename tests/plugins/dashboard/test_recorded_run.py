"""A run's document from its directory, as the parent had it."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.errors import ConfigurationError
from genkidama.plugins.dashboard.recorded_run import RecordedRun, find_runs
from genkidama.runs.run import Run
from genkidama.server.events import as_lines
from tests.plugins.dashboard.stories import BEGAN, began, exchange, plain


def written(path: Path, count: int = 50) -> Path:
    path.mkdir(parents=True)
    (path / "experiment.toml").write_text(plain(steps=1000).to_toml())
    events = [*began("a", "b"), *(exchange(number, "ab"[number % 2]) for number in range(count))]
    (path / "history.jsonl").write_bytes(as_lines(events) + b'{"time": 1.0, "event": "join"}\n')
    return path


def test_it_grows_with_its_history(tmp_path: Path) -> None:
    run = RecordedRun(written(tmp_path / "run"))
    run.read()
    assert run.time == BEGAN + 50
    row = run.summary("runs/run/")
    assert (row["name"], row["steps"], row["mean_return"]) == ("run", 490, 48.5)
    assert len(row["curve"]["rows"]) == 50 and row["elapsed"] == 49.0
    with (tmp_path / "run" / "history.jsonl").open("ab") as file:
        file.write(as_lines([exchange(50)]))
    run.read()
    assert run.status.document(run.time)["learning"]["steps"] == 500


DEEP = b"[" * 5000 + b"]" * 5000


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"event": "jo\xe9n"}\n', "is damaged: "),
        (b'{"event": "warning", "reason": ' + DEEP + b"}\n", "is damaged: "),
        (b"\0" * (5 << 20) + b"\n", "is damaged: a line is longer than any that a parent writes"),
    ],
    ids=["a flipped bit", "nested", "a hole"],
)
def test_a_damaged_line_is_left_out_and_said(tmp_path: Path, line: bytes, problem: str) -> None:
    path = written(tmp_path / "run", 9)
    with (path / "history.jsonl").open("ab") as file:
        file.write(line + as_lines([exchange(9)]))
    run = RecordedRun(path)
    run.read()
    while run.behind:
        run.read()
    row = run.summary("")
    assert row["state"] == "damaged" and row["reason"].startswith(f"{path}/history.jsonl: ")
    assert problem in row["reason"]
    assert row["steps"] == 90  # what is whole counts
    assert run.status.document(run.time)["run"]["notes"] == [row["reason"]]
    with pytest.raises(ConfigurationError, match=r"history.jsonl: (line 14 )?is damaged: "):
        list(Run(path).history())


@pytest.mark.parametrize("text", [b"\xff", b"a = " + DEEP, b"#" * (2 << 20), b"[nothing]", None])
def test_a_run_with_damaged_settings_is_one_damaged_run(tmp_path: Path, text: bytes | None) -> None:
    path = written(tmp_path / "run", 9)
    if text is None:
        (path / "experiment.toml").unlink()
    else:
        (path / "experiment.toml").write_bytes(text)
    run = RecordedRun(path)
    run.read()
    row = run.summary("")
    assert (row["state"], row["environment"], row["steps"]) == ("damaged", "?", 80)
    assert "run" in row["reason"] and "\n" not in row["reason"]


def test_runs_are_found_in_folders(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a"), written(tmp_path / "b")
    (tmp_path / "other").mkdir()
    assert find_runs([tmp_path]) == find_runs([tmp_path, first]) == [first, second]
    with pytest.raises(ConfigurationError, match="other: holds no run; give a run directory"):
        find_runs([tmp_path / "other"])
