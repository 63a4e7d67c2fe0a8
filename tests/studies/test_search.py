"""The searches that are compared: which are wanted, for how long, and what their rows come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from studies.search import __main__ as command
from studies.search.contestants import CONTESTANTS, Row, Wanted, bound, missing, plan
from studies.search.document import text
from studies.search.measure import _experiment


def row(method: str, seed: int, evaluation: float, **more: Any) -> Row:
    return {
        "method": method,
        "sampler": CONTESTANTS[method].sampler,
        "seed": seed,
        "changes": [],
        "bound": 600.0,
        "seconds": 400.0 + seed,
        "trials": 30,
        "completed": 4,
        "stopped": 26,
        "phases": 99,
        "nodes": 2,
        "occupancy": 0.98,
        "completion_rate": 0.25,
        "score": 120.25,
        "evaluation": evaluation,
        "deviation": 80.0,
        "episodes": 500,
        "trial": 7,
        "params": {"optimizer.learning_rate": 0.00125, "algorithm.gamma": 0.99},
        "time_to_best": 210.0,
        "importances": {"optimizer.learning_rate": 0.75, "algorithm.gamma": 0.25},
        "r2": 0.5,
        "best_at": [[210.0, 120.2]],
        **more,
    }


def test_every_contestant_is_a_search_that_can_begin() -> None:
    for one in plan(list(CONTESTANTS), [4], None, ["search.phase_steps=2000"]):
        experiment = _experiment(one, 60.0)
        assert experiment.search is not None and experiment.seed == 4
        assert experiment.search.phase_steps == 2000 and experiment.search.seconds == 60.0
        assert experiment.search.sampler == one.sampler
    alike = {one.sampler for one in plan(list(CONTESTANTS), [1, 2, 3], "tpe")}
    assert alike == {"tpe"}


def test_what_is_done_is_not_repeated_and_others_get_hypertricks_time() -> None:
    wanted = plan(["hypertrick", "asha"], [1, 2], None)
    assert [(one.name, one.seed) for one in wanted] == [
        ("hypertrick", 1),
        ("asha", 1),
        ("hypertrick", 2),
        ("asha", 2),
    ]
    rows = [row("hypertrick", 1, 50.0), row("asha", 2, 50.0)]
    assert missing(wanted, rows) == [wanted[1], wanted[2]]
    assert [bound(one, rows, 600.0) for one in wanted] == [600.0, 401.0, 600.0, 600.0]
    changed = plan(["asha"], [2], None, ["search.phases=4"])
    assert missing(changed, rows) == changed and bound(changed[0], rows, 600.0) == 600.0


def test_the_tables_by_values() -> None:
    rows = [row("random", seed, played) for seed, played in ((1, 10.0), (2, 20.0), (3, 30.0))]
    rows += [row("asha", seed, played) for seed, played in ((1, 90.0), (3, 150.0), (2, 100.0))]
    lines = text(rows).splitlines()
    for line in (
        "| ASHA | tpe | 2 | 120.2 | 100.0 ± 80.0 (500) | 402 | 98% | 30 (4, 26) | 99 | 210 |",
        "| ASHA | tpe | 3 | 100.0 (90.0 to 150.0) | +80.0 (60.0 to 140.0) | 120.2 | 98% | 25% |",
        "| random search | random | 3 | 20.0 (10.0 to 30.0) | – | 120.2 | 98% | 25% |",
        "| ASHA | tpe | 1 | 0.00125 | 0.99 | 75% | 25% | 0.50 |",
        "No row yet: HyperTrick, as published, HyperTrick, improved, Hyperband.",
    ):
        assert line in lines, line
    assert text([]).startswith("# Results: searches")
    alone = text([row("asha", 1, 5.0, importances={}, r2=None)])
    assert "| ASHA | tpe | 1 | 0.00125 | 0.99 | – | – | – |" in alone


def test_a_run_that_is_cut_off_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[tuple[str, int, float]] = []

    def measure(one: Wanted, seconds: float, work: Path, episodes: int) -> Row:
        if len(taken) == 2:
            raise KeyboardInterrupt
        taken.append((one.name, one.seed, seconds))
        return row(one.name, one.seed, 1.0)

    monkeypatch.setattr("studies.search.measure.measure", measure)
    options = ["--methods", "hypertrick", "random", "--seeds", "1", "2"]
    options += ["--results", str(tmp_path / "r.jsonl"), "--work", str(tmp_path / "work")]
    options += ["--document", str(tmp_path / "r.md"), "--minutes", "9"]
    assert command.main(["run", *options]) == 130
    assert taken == [("hypertrick", 1, 540.0), ("random", 1, 401.0)]
    monkeypatch.setattr("studies.search.measure.measure", lambda one, *_: row(one.name, 2, 1.0))
    assert command.main(["run", *options]) == 0 == command.main(["report", *options])
    written = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [(each["method"], each["seed"]) for each in written] == [
        *(("hypertrick", 1), ("random", 1)),
        *(("hypertrick", 2), ("random", 2)),
    ]
    capsys.readouterr()
    assert command.main(["plan", *options]) == 0
    assert capsys.readouterr().out == "0 of 4 are left, at most about 0 min\n"
