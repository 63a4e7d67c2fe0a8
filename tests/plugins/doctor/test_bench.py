"""`genkidama doctor --bench`, on this machine and for seconds."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from genkidama.__main__ import main
from genkidama.plugins.doctor import bench


def test_a_machine_is_one_line_of_json_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(bench.bench, "__defaults__", (0.5, 2))
    monkeypatch.setattr(bench, "available_cores", lambda: 1)
    assert main(["doctor", "--bench"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["steps_per_second"] > 0 and 0 < found["exchange_ms"] < 1000
    assert found["cores"] == 1
    assert found["memory_mb"] > 10 or sys.platform != "linux"
    assert {"celsius", "model", "system", "cores", "genkidama", "python"} <= set(found)
    assert list(tmp_path.iterdir()) == []


def test_a_training_that_fails_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "available_cores", lambda: -1)
    assert main(["doctor", "--bench"]) > 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --bench: the training fails: cores = -1: ")
