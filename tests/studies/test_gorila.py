"""Gorila's table in small: what is run, in which order, and what the rows come to."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from genkidama.errors import EnvironmentFailure
from studies import store
from studies.gorila import __main__ as gorila
from studies.scaling.matrix import Condition, Row


def test_a_table_goes_on_where_it_was_and_tells_its_medians(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[Condition] = []

    def measure(condition: Condition, options: argparse.Namespace) -> Row:
        if len(measured) == 2:
            raise EnvironmentFailure("a worker died")
        measured.append(condition)
        row: Row = {**condition.as_row(), "use": [1.0] * condition.machines, "reached": None}
        row |= {"in_time": [1000 * condition.machines, 100.0 * condition.seed, 1.0]}
        row |= {"staleness": {"mean": condition.machines - 1.0}, "version": 90}
        return row | {"left_out": {"stale": 9, "outlier": 1}}

    monkeypatch.setattr(gorila, "measure", measure)
    monkeypatch.setattr(gorila, "sweep", lambda: None)
    file = tmp_path / "rows.jsonl"
    options = ["run", "--contenders", "gorila", "--seeds", "1", "3", "--results", str(file)]
    assert gorila.main(options) == EnvironmentFailure.exit_code
    assert "failed: a worker died\n" in capsys.readouterr().out
    for _ in range(4):
        measured.clear()
        gorila.main(options)
    capsys.readouterr()
    measured.clear()
    assert gorila.main(options) == 0 and not measured
    rows = store.read(file)
    found = [(row["machines"], row["seed"], row["disturbance"]) for row in rows]
    plain = [(8, 1), (1, 1), (4, 1), (2, 1), (2, 3), (4, 3), (1, 3), (8, 3)]
    assert found == [(*one, "none") for one in plain] + [(8, 1, "slow10"), (8, 3, "slow10")]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [line[:4] for line in lines[:2]] == [
        ["gorila", "1", "none", "2"],
        ["gorila", "2", "none", "2"],
    ]
    assert " ".join(lines[-1]) == "gorila 8 slow10 2 200.0 8000.0 – – – 7.0 10.0% 1.00"
