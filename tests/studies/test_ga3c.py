"""The sweep over N_P, N_T and N_A: what is left to measure, and what its rows come to."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from studies.ga3c import sweep as ga3c_sweep


def test_a_sweep_goes_on_where_it_was_and_tells_its_medians(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[dict[str, Any]] = []

    def measure(window: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(window)
        tps = 100.0 * window["predictors"] + 10.0 * window["round"]
        rates = {"tps": tps, "pps": 4.5 * tps, "prediction_batch": 7.0, "lag": 1.25}
        return {**window, "t_max": 5, **rates}

    monkeypatch.setattr(ga3c_sweep, "measure", measure)
    file = tmp_path / "sweep.jsonl"
    options = ["--predictors", "1", "2", "--trainers", "1", "--agents", "8"]
    options += ["--rounds", "3", "--results", str(file)]
    assert ga3c_sweep.main(["run", *options]) == 130
    assert [(each["round"], each["predictors"]) for each in measured] == [(0, 1), (0, 2), (1, 1)]
    measured.clear()
    assert ga3c_sweep.main(["run", *options]) == 0
    rounds = [json.loads(line)["round"] for line in file.read_text().splitlines()]
    assert rounds == [0, 0, 1, 1, 2, 2]
    capsys.readouterr()
    assert ga3c_sweep.main(["report", *options]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| 2 | 1 | 8 | 3 | 210 | 945 | 0.90 | 7.0 | 1.2 |",
        "| 1 | 1 | 8 | 3 | 110 | 495 | 0.90 | 7.0 | 1.2 |",
        "",
        "PPS ÷ (TPS · t_max) lies between 0.90 and 0.90 in 6 windows.",
    ]
