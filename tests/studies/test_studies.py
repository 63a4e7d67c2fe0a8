"""Studies in small: a child that lies, a parent in parts, searches, real time, GA3C and Gorila."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import store
from benchmarks.processes import keep
from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure
from genkidama.plugins.ga3c.adjustment import Measurement, Setting
from genkidama.protocol.vector import DTYPE
from studies.ga3c import learning as ga3c_learning
from studies.ga3c import sweep as ga3c_sweep
from studies.ga3c.sweep import Window
from studies.gorila import __main__ as gorila
from studies.gorila import turns
from studies.parts import __main__ as parts
from studies.realtime.__main__ import WARM_UP, measured
from studies.realtime.plant import Plant
from studies.scaling.matrix import Condition, Row
from studies.search import games, work
from studies.search.contestants import CONTESTANTS, plan
from studies.search.document import text
from studies.search.measure import _experiment
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


def test_every_contestant_is_a_search_that_can_begin() -> None:
    for one in plan(list(CONTESTANTS), [4], None, ["search.phase_steps=2000"]):
        experiment = _experiment(one, 60.0)
        assert experiment.search is not None and experiment.seed == 4
        assert experiment.search.phase_steps == 2000 and experiment.search.seconds == 60.0
        assert experiment.search.sampler == one.sampler
    alike = {one.sampler for one in plan(list(CONTESTANTS), [1, 2, 3], "tpe")}
    assert alike == {"tpe"}


def test_all_methods_are_expected_to_do_the_same_work_and_the_page_has_their_rows() -> None:
    rows: list[store.Row] = []
    for method, (label, settings) in work.METHODS.items():
        one = work.Wanted(method, 2, 1, 100)
        search = work.experiment(one).search
        assert search is not None
        expected = work.expected_work(settings, search.trials)
        assert expected == pytest.approx(work.WORK, rel=0.03), label
        figures = ["seconds", "occupancy", "time_to_best", "score", "observed"]
        rows.append(
            {
                **dict.fromkeys(figures, 0.5),
                **asdict(one),
                "phases": 140,
                "expected": expected,
                "again": [1.0, 2.0, 3.0],
                "importances": {"optimizer.learning_rate": 0.7, "algorithm.gamma": 0.3},
                "params": {"optimizer.learning_rate": 0.1, "algorithm.gamma": 0.9},
                "tried": [[0.001 * trial, 0.9, 100.0 * trial] for trial in range(10)],
            }
        )
        assert one.is_of(rows[-1])
        assert f"| 2 | {label} | 1 | 140 of {expected:.0f} |" in work.text(rows)
    assert "No row yet." in work.text([]) and "What matters" not in work.text(rows)
    shares, fit = work.forest_importances([[x, 0.9, 100.0 * x] for x in np.linspace(0, 1, 60)], 5)
    assert shares == [1.0, 0.0] and fit > 0.5


def test_the_page_is_that_of_the_rows() -> None:
    rows = [row for row in store.read(ROOT / "docs/results/search.jsonl") if not row["changes"]]
    assert text(rows) == (ROOT / "docs/results/search.md").read_text()


def test_a_row_has_its_commit_and_its_machine_and_replaces_a_line_that_was_cut_off(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.jsonl"
    keep(file, {"seed": 1})
    with file.open("a") as out:
        out.write('{"seed": 2, "se')
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


def test_rates_are_chosen_by_seed_0_which_the_table_leaves_out() -> None:
    rows: list[store.Row] = [
        {"form": "grouped", "rate": rate, "seed": 0, "steps": 1, "whole": whole}
        for rate, whole in ((3e-4, 1.0), (1e-3, 4.0), (3e-3, 2.0))
    ]
    forms = ["grouped", "ppo"]
    first = list(ga3c_learning.planned(forms, [0], []))
    assert [one.rate for one in first] == list(ga3c_learning.RATES)
    planned = list(ga3c_learning.planned(forms, [1, 2], rows))
    assert [(one.form, one.rate, one.seed) for one in planned] == [
        (form, 1e-3, seed) for seed in (1, 2) for form in forms
    ]
    for one in planned:
        kind = ga3c_learning.experiment(one)
        name, grouping = ("ppo", 4096) if one.form == "ppo" else ("a3c", 80)
        assert (kind.algorithm.name, kind.ga3c.training_batch) == (name, grouping)
        means = [[100 * place, float(one.seed + place)] for place in range(1, 11)]
        row = {"curve": means, "whole": 6.0, "mean": 20.0, "lag": 3.0}
        rows.append({**one._asdict(), **row})
    figures = "| 0.001 | 200,000 | 2 | 2.5 | 6.5 | 11.5 | 6.0 | 20.0 | 3.0 |"
    assert ga3c_learning.table(rows).splitlines()[2:] == [
        f"| A3C, 80 steps an update {figures}",
        f"| PPO, the file {figures}",
    ]


@pytest.mark.slow
def test_a_form_of_a3c_learns_on_ga3c() -> None:
    pytest.importorskip("minatar")
    row = ga3c_learning.measure(ga3c_learning.Wanted("vtrace", 1e-3, 1, 4000), episodes=2)
    assert len(row["curve"]) >= 5 and row["curve"][-1][0] >= 3000 and row["lag"] > 0.0
    assert row["updates"] > 0.0 and row["episodes"] == 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_game_is_searched_trained_again_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("minatar")
    small = {"TRIALS": 2, "PHASES": 2, "SEEDS": (1,), "EPISODES": 2, "SCREENS": 2}
    for name, value in {**small, "GAMMAS": (0.9,)}.items():
        monkeypatch.setattr(games, name, value)
    options = ["--games", "space_invaders", "--phase-steps", "2000"]
    options += ["--results", str(tmp_path / "games.jsonl")]
    assert games.main(["run", *options]) == 0
    (row,) = store.read(tmp_path / "games.jsonl")
    assert len(row["best"]) == len(row["fixed"]) == 1 and row["params"].keys() == games.FIXED.keys()
    cannon, *_ = np.array(row["gammas"][0]["screen"])
    assert cannon.shape == (10, 10) and cannon.sum() == pytest.approx(1.0, abs=0.01)
    assert games.main(["report", *options]) == 0
    assert "| space_invaders | 2 of 2,000 | 2, 25% |" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "games.svg").read_text()


@pytest.mark.parametrize(
    ("module", "rows", "page"),
    [(ga3c_learning, "ga3c-learning", "ga3c"), (games, "search-games", "hypertrick")],
)
def test_the_pages_of_the_games_have_the_tables_of_their_rows(
    module: Any, rows: str, page: str
) -> None:
    tables = module.table(store.read(ROOT / f"docs/results/{rows}.jsonl")).strip()
    text = (ROOT / f"docs/results/{page}.md").read_text()
    assert all(table in text for table in tables.split("\n\n"))


def test_the_page_of_equal_work_has_the_table_of_its_rows() -> None:
    rows = store.read(ROOT / "docs/results/search-work.jsonl")
    table = "\n".join(work._table(rows))
    assert rows and table in (ROOT / "docs/results/search-work.md").read_text()


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


@pytest.mark.parametrize(
    ("cell", "bundles", "stale"),
    [("adam", 4, 3.0), ("both", 4, 0.0), ("blend", 2, 1.0)],
)
def test_bundles_take_turns(cell: str, bundles: int, stale: float) -> None:
    one = turns.Wanted(cell, bundles, 1)
    row = turns.measure(one, steps=800, every=400, episodes=1)
    assert turns.Wanted.of(row) == one
    assert [at // 400 for at, _ in row["curve"]] == [1, 2] and row["version"] > 0
    assert row["staleness"] == pytest.approx(stale, abs=0.3) and not row["left_out"]
    found = turns.table([{**row, "seed": seed, "left_out": {"stale": 9}} for seed in (1, 2, 3)])
    assert f"| {turns.CELLS[cell].label} | {bundles} | 3 | " in found


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
