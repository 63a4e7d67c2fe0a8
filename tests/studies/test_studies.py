"""Studies in small: a child that lies, a parent in parts, searches, real time, GA3C and Gorila."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import store
from benchmarks.processes import keep
from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure
from genkidama.plugins.ga3c.adjustment import Measurement, Setting
from genkidama.protocol.vector import DTYPE
from studies import search
from studies.ga3c import learning as ga3c_learning
from studies.ga3c import sweep as ga3c_sweep
from studies.ga3c.sweep import Window
from studies.gorila import __main__ as gorila
from studies.gorila import turns
from studies.parts import __main__ as parts
from studies.realtime.__main__ import WARM_UP, measured
from studies.realtime.plant import Plant
from studies.scaling.matrix import Condition, Row
from studies.stolen import __main__ as stolen
from tests.helpers import ROOT


def test_attacks_are_finite_and_a_push_costs_time_with_every_rule() -> None:
    honest = np.ones(9, DTYPE)
    for attack in stolen.ATTACKS[1:]:
        sent = stolen.nonsense(attack, honest, 1.0, np.random.default_rng(0))
        assert sent.shape == (9,) and sent.dtype == DTYPE and np.isfinite(sent).all()
        assert not np.array_equal(sent, honest)
    for rules in stolen.RULES.values():
        assert stolen._of_a_push(30, 8, rules) > 0.0


@pytest.mark.slow
def test_two_parts_exchange(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--parts", "2", "--numbers", "1000", "--megabits", "0", "--windows", "1"]
    monkeypatch.setattr(sys, "argv", ["parts", *words, "--seconds", "1"])
    parts.main()
    line = capsys.readouterr().out.splitlines()[1].split()
    assert line[:2] == ["loopback", "2"] and float(line[2]) > 1.0


def test_the_pages_of_searches_have_the_tables_of_their_rows() -> None:
    for page, found in search.tables().items():
        text = (ROOT / "docs/results" / page).read_text()
        assert found and all(len(table.splitlines()) > 3 and table in text for table in found)


def test_a_row_has_its_commit_and_its_machine_and_replaces_a_line_that_was_cut_off(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.jsonl"
    keep(file, {"seed": 1})
    with file.open("a") as out:
        out.write('{"seed": 2, "se')
    assert [row["seed"] for row in store.read(file)] == [1]
    keep(file, {"seed": 3, "date": "2026-11-26"}, tmp_path)
    keep(None, {"seed": 4})
    one, three = store.read(file)
    assert (one["seed"], three["seed"], three["date"]) == (1, 3, "2026-11-26")
    assert one.keys() == three.keys() == {"commit", "machine", "date", "seed"}
    assert re.fullmatch(r"([0-9a-f]{7,}(-dirty)?)?", one["commit"])  # a release's source has none
    assert three["commit"] == ""  # no checkout
    assert re.match(r"\d+ cores, \S", one["machine"])


def test_cycles_are_measured_from_what_a_plant_notes(tmp_path: Path) -> None:
    plant = Plant(str(tmp_path / "times"))
    plant.reset(seed=0)
    for _ in range(3):
        plant.step(np.zeros(1, np.float32))
    plant.close()
    assert (np.diff(np.fromfile(tmp_path / "times", np.float64)) > 0.0).all()
    times = np.concatenate(([0.0, 4.0], WARM_UP + 1.0 + np.cumsum([0.02] * 99 + [0.5])))
    times.tofile(tmp_path / "known")
    assert measured(tmp_path / "known") == {
        "cycles": 99,
        "p50_ms": 20.0,
        "p99_ms": 29.6,
        "max_ms": 500.0,
        "late": 0.0101,
    }


def test_a_sweep_goes_on_where_it_was_and_tells_its_medians(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[Window] = []

    def measure(window: Window, options: argparse.Namespace, rows: list[store.Row]) -> store.Row:
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(window)
        return {**window._asdict(), "t_max": 5, **rates(window)}

    monkeypatch.setattr(ga3c_sweep, "measure", measure)
    file = tmp_path / "sweep.jsonl"
    options = ["--predictors", "1", "2", "--trainers", "1", "--agents", "8"]
    options += ["--rounds", "3", "--results", str(file)]
    assert ga3c_sweep.main(["run", *options]) == 130
    assert [(each.round, each.predictors) for each in measured] == [(0, 1), (0, 2), (1, 1)]
    measured.clear()
    assert ga3c_sweep.main(["run", *options]) == 0
    rounds = [json.loads(line)["round"] for line in file.read_text().splitlines()]
    assert rounds == [0, 0, 1, 1, 2, 2]
    capsys.readouterr()
    assert ga3c_sweep.main(["report", *options]) == 0
    assert capsys.readouterr().out.splitlines()[4:] == [
        "| 2 | 1 | 8 | 3 | 210 | 13 | 945 | 0.90 | 7.0 | 1.2 |",
        "| 1 | 1 | 8 | 3 | 110 | 7 | 495 | 0.90 | 7.0 | 1.2 |",
        "",
        "PPS ÷ (TPS · t_max) lies between 0.90 and 0.90 in 6 windows.",
    ]


def rates(window: Window) -> store.Row:
    """Of a machine on which more predictors are faster, and 16 rollouts of 5 steps make 80."""
    tps = 100.0 * window.predictors + 10.0 * window.round
    updates = tps / max(1, window.training_batch // 5)
    lag = 1.25 if window.training_batch else 20.0
    row = {"tps": tps, "updates": updates, "pps": 4.5 * tps, "prediction_batch": 7.0, "lag": lag}
    return row | ({"gpu": 40.0} if window.device == "cuda" else {})


def test_the_adjustment_is_compared_with_the_grid_and_the_lag_with_the_grouping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = [
        Measurement(Setting(1, 1, 1), 50.0, True),
        Measurement(Setting(2, 1, 1), 90.0, True),
        Measurement(Setting(2, 2, 1), 10.0, False),
    ]

    def adjust(settings: Experiment, windows: int) -> list[Measurement]:
        assert (settings.seed, settings.ga3c.dynamic, windows) == (4, True, 3)
        return trace

    def drive(settings: Experiment, seconds: float) -> dict[str, float]:
        ga3c = settings.ga3c
        assert not ga3c.dynamic
        return rates(Window("pong", 1, "cpu", ga3c.training_batch, ga3c.predictors, 1, 1))

    monkeypatch.setattr(ga3c_sweep, "adjust", adjust)
    monkeypatch.setattr(ga3c_sweep, "drive", drive)
    options = argparse.Namespace(windows=3, window=1.0, seconds=1.0, exchange=1.0)
    grid = [Window("pong", 1, "cpu", batch, n, 1, 8) for batch in (0, 80) for n in (1, 4)]
    rows: list[store.Row] = []
    for window in [*grid, Window("pong", 1, "cpu", 0, 1, 1, 1, True, 4)]:
        rows.append(ga3c_sweep.measure(window, options, rows))
    assert [Window.of(row) for row in rows[:-1]] == grid
    lines = ga3c_sweep.report(rows).splitlines()
    assert "| 4 | 1 | 8 | 1 | 400 | 400 | 1800 | 0.90 | 7.0 | 20.0 |" in lines
    assert {"| 1 | 1 | 8 | 0 | 100 | 450 | 20.0 |", "| 1 | 1 | 8 | 80 | 6 | 450 | 1.2 |"} <= set(
        lines
    )
    assert lines[-1] == "| 1, 1, 1 | 0 | 4 | 3 | 50 | 2, 1, 1 | 200 | 4, 1, 8 | 400 | 0.50 |"


def test_the_table_of_a_gpu_stands_beside_the_cpu_and_without_one_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(window: Window, options: argparse.Namespace, rows: list[store.Row]) -> store.Row:
        row = rates(window) if window.agents else {"tps": 20.0, "pps": 100.0}
        return {**row, **window._asdict(), **({"ended": [1, 3, 20]} if window.dynamic else {})}

    monkeypatch.setattr(ga3c_sweep, "measure", measure)
    monkeypatch.setattr(ga3c_sweep, "has_cuda", lambda: False)
    options = ["--width", "1", "16", "--agents", "128", "--results", str(tmp_path / "gpu.jsonl")]
    assert ga3c_sweep.gpu(options) != 0
    assert re.fullmatch(r".*no CUDA device here.*\n", capsys.readouterr().err)
    monkeypatch.setattr(ga3c_sweep, "has_cuda", lambda: True)
    assert ga3c_sweep.gpu(options) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "| 1 | 128 | no |  | 900 | 200 | 40 | 900 | 200 | 100 | 9.0 |",
        "| 1 | 128 | yes | 1, 3, 20 | 900 | 200 | 40 | – | – | 100 | 9.0 |",
        "| 16 | 128 | no |  | 900 | 200 | 40 | 900 | 200 | 100 | 9.0 |",
        "| 16 | 128 | yes | 1, 3, 20 | 900 | 200 | 40 | – | – | 100 | 9.0 |",
    ]
    assert len(store.read(tmp_path / "gpu.jsonl")) == 8


def test_the_page_of_ga3c_has_the_tables_of_its_rows() -> None:
    page = (ROOT / "docs/results/ga3c.md").read_text()
    rows = store.read(ROOT / "docs/results/ga3c-sweep.jsonl")
    grid = [row for row in rows if Window.of(row)[:4] == ("pong", 1, "cpu", 0)]
    _, _, span = ga3c_sweep.table([row for row in grid if not Window.of(row).dynamic]).rpartition(
        "\n"
    )
    assert "PPS" in span and span in page
    assert ga3c_sweep.lags(store.read(ROOT / "docs/results/ga3c-lag.jsonl")) in page


def test_the_page_of_learning_on_ga3c_has_the_table_of_its_rows() -> None:
    rows = store.read(ROOT / "docs/results/ga3c-learning.jsonl")
    assert ga3c_learning.table(rows) in (ROOT / "docs/results/ga3c.md").read_text()


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


def test_the_page_of_gorila_has_the_table_of_its_rows() -> None:
    rows = store.read(ROOT / "docs/results/gorila-turns.jsonl")
    assert turns.table(rows) in (ROOT / "docs/results/gorila.md").read_text()


def test_what_has_a_row_is_not_measured_again(tmp_path: Path) -> None:
    path, rows = tmp_path / "rows.jsonl", [{"what": "updates", "seed": 1, "rate": 7.0}]
    for seed in (1, 2, 2):
        store.once(path, rows, {"what": "updates", "seed": seed}, lambda: {"rate": 9.0})
    (added,) = store.read(path)
    assert (added["seed"], added["rate"]) == (2, 9.0) and added["commit"]
    assert [row["seed"] for row in rows] == [1, 2]
