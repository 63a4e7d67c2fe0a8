"""The thesis' cells, what their rows come to, and a run that is cut off."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import store
from genkidama.config.decoding import parse_settings
from genkidama.config.experiment import Experiment
from studies.thesis import __main__ as command
from studies.thesis import cells, measure, statistics
from studies.thesis.cells import ALONE, BEST, CELLS, GRID, Condition, missing, plan, selected
from studies.thesis.published import FINAL, PATHS
from studies.thesis.tables import filled, tables
from tests.helpers import ROOT

# The cells.


def test_every_cell_is_an_experiment_of_as_many_episodes_as_the_thesis() -> None:
    for cell in CELLS.values():
        experiment = Experiment.load(ROOT / cell.file).with_settings(parse_settings(cell.overrides))
        assert experiment.stop.updates == cell.updates
        assert experiment.parent.checkpoint_updates * cells.CHECKPOINTS >= cell.updates
        assert experiment.parent.checkpoint_keep > cells.CHECKPOINTS
        assert experiment.child.exchange == "episode"
        episodes = cell.children * cell.cores * experiment.environment.lanes * cell.updates
        assert episodes == (8_000 if cell.name == ALONE else 16_000)  # as in the thesis
        if "a3c" in cell.name:
            assert experiment.algorithm.pull_steps == 2 * experiment.algorithm.batch_size
    assert {name: path[-1] for name, path in PATHS.items()} == {
        name: FINAL[name][0] for name in GRID.values()
    }


def test_the_plan_takes_every_cell_with_a_seed_before_the_next_seed() -> None:
    order = plan(CELLS)
    assert order[0] == Condition(BEST, 1)
    first = [CELLS[one.cell].first_seed for one in order]
    turns = [one.seed - seed for one, seed in zip(order, first, strict=True)]
    assert turns == sorted(turns)
    assert {one.cell for one in order[: len(CELLS)]} == set(CELLS)
    assert [one.seed for one in order if one.cell == "ours"] == [21, 22, 23, 24, 25]
    assert len(set(order)) == len(order) == (9 + 1) * 5 + (6 + 9) * 3
    assert missing(order, [{"cell": BEST, "seed": 1}]) == order[1:]
    assert plan(selected(["ours", "a3c"]), [7])[0] == Condition("a3c-8-0.999-120", 7)


# What rows come to.


def runs(landed: int, of: int) -> list[dict[str, Any]]:
    """Runs of a cell, of which so many had a mean above 200 at a checkpoint."""
    return [{"curve": [[100, 201.0 if seed < landed else 200.0, 50.0]]} for seed in range(of)]


counts = st.integers(3, 4).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of)))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(counts, counts), min_size=1, max_size=2))
def test_how_likely_counts_so_far_apart_are(pairs: list[tuple[Any, Any]]) -> None:
    """The oracle deals out each pair's landings to its runs in every way."""

    def dealt(ours: tuple[int, int], others: tuple[int, int]) -> list[int]:
        everyone = range(ours[1] + others[1])
        ways = itertools.combinations(everyone, ours[0] + others[0])
        return [sum(one < ours[1] for one in way) for way in ways]

    often = Counter(map(sum, itertools.product(*(dealt(*pair) for pair in pairs))))
    seen = often[sum(ours[0] for ours, _ in pairs)]
    expected = sum(one for one in often.values() if one <= seen) / often.total()
    given_runs = [(runs(*ours), runs(*others)) for ours, others in pairs]
    assert statistics.luck(given_runs) == pytest.approx(expected)
    # A pair with too few seeds changes nothing.
    assert statistics.luck([*given_runs, (runs(2, 2), runs(0, 5))]) == pytest.approx(expected)


# A real one.


@pytest.mark.slow
def test_a_real_cell_is_trained_and_judged_and_an_interruption_costs_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cell = replace(CELLS[BEST], updates=40)  # every 2
    condition = Condition(cell.name, 1)
    folder = tmp_path / f"{cell.name}-1"
    (folder / "training").mkdir(parents=True)  # one that was cut off

    def kill(what: str) -> None:
        if what == "judging 3/20":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure.measure(condition, tmp_path, kill, 2, cell)
    assert len(store.read(folder / "judged.jsonl")) == 2
    said: list[str] = []
    found = measure.measure(condition, tmp_path, said.append, 2, cell)
    assert said == [f"judging {number}/20" for number in range(3, 21)]
    assert [moment for moment, _, _ in found["curve"]] == list(range(2, 41, 2))
    # What one child does before the other has joined counts as whole updates.
    assert 40 * 4 <= found["episodes"] <= 40 * 8
    assert len(found["returns"]) == 2
    assert found["disagreement"]["between"] > 0.0
    made = [one["exchanges"] for one in found["exchanges"].values()]
    assert len(made) == 2 and min(made) >= 10 and 4 * sum(made) == found["episodes"]
    assert json.loads(json.dumps(found)) == found
    assert not folder.exists()


def test_the_page_s_tables_are_those_of_the_rows() -> None:
    page = command.PAGE.read_text()
    rows, others = store.read(ROOT / "docs/results/thesis.jsonl"), map(store.read, command.OTHERS)
    controls, virtual, small = others
    assert not missing(plan(CELLS), rows)
    assert filled(page, tables(rows, controls, virtual, small)) == page
    some = [one for one in rows if one["cell"].startswith(("a3c", "why-weights"))]
    fewer = filled(page, tables(some, [], [], small))
    assert "| α = 0.9, β = 0.0 | 257.2 ± 39.9 |" + " – |" * 5 + "\n" in fewer
