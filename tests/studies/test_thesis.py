"""The thesis' cells, what their rows come to, and a run that is cut off."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.box2d.lunar_lander import LunarLander
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.experiment import Experiment
from genkidama.overrides import parse_settings
from studies import store
from studies.differences import compare
from studies.thesis import __main__ as command
from studies.thesis import cells, document, measure, statistics
from studies.thesis.cells import ALONE, BEST, CELLS, GRID, Condition, missing, plan, selected
from studies.thesis.lander_v2 import LunarLanderV2, make
from studies.thesis.published import FINAL, PATHS
from studies.thesis.statistics import passage, summary
from tests.helpers import ROOT
from tests.studies.thesis_rows import row

# The cells.


def test_every_cell_is_an_experiment_of_as_many_episodes_as_the_thesis() -> None:
    for cell in CELLS.values():
        experiment = Experiment.load(ROOT / cell.file).with_settings(parse_settings(cell.overrides))
        assert experiment.stop.updates == cell.updates
        assert experiment.parent.checkpoint_updates * cells.CHECKPOINTS >= cell.updates
        assert experiment.parent.checkpoint_keep > cells.CHECKPOINTS
        assert experiment.child.exchange == "episode"
        episodes = cell.children * cell.cores * experiment.environment.lanes * cell.updates
        halved = ALONE in (cell.name, cell.base)  # as in the thesis
        assert episodes == (8_000 if halved else 15_992 if cell.name == "why-empty" else 16_000)
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
    assert [one.seed for one in order if one.cell == "again-program"] == [31, 32, 33, 34, 35]
    assert CELLS["again-program"].overrides == CELLS["why-program"].overrides
    assert len(set(order)) == len(order) == (9 + 11 + 1 + 3) * 5 + (6 + 6 + 9) * 3
    assert missing(order, [row(BEST, 1, 0.0)]) == order[1:]
    assert plan(selected(["ours", "a3c"]), [7])[0] == Condition("a3c-8-0.999-120", 7)


def test_what_does_not_exist_is_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse(["run", "--cells", "grit"])
    assert "--cells grit: is neither of grid, a3c" in capsys.readouterr().err


# What rows come to.


def test_a_median_and_its_interval() -> None:
    rows = [row(BEST, seed, mean) for seed, mean in enumerate([100.0, 210.0, 240.0, 250.0, 260.0])]
    found = summary(rows)
    assert (found.median, found.low, found.high, found.solved) == (240.0, 100.0, 260.0, 4)
    assert found.interval == (100.0, 260.0)  # a median of five draws may be any of the five
    assert found.between == 0.7
    assert summary(rows[:2]).interval is None


@settings(max_examples=20)
@given(
    st.lists(st.floats(-300, 300), min_size=3, max_size=6),
    st.lists(st.floats(-300, 300), min_size=3, max_size=6),
)
def test_differences(ours: list[float], others: list[float]) -> None:
    found, back = compare(ours, others), compare(others, ours)
    assert found.value == pytest.approx(-back.value)
    assert found.interval is not None
    low, high = found.interval
    assert min(ours) - max(others) - 1e-9 <= low <= high <= max(ours) - min(others) + 1e-9
    if min(ours) > max(others):
        assert found.clear


@given(
    st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(-5, 5), min_size=3, max_size=3),
)
def test_where_single_runs_lie_among_ours(ours: list[list[int]], singles: list[int]) -> None:
    """The oracle puts the single run at every place of every cell."""
    names = list(CELLS)[: len(ours)]
    found = statistics.standing(
        {
            name: [row(name, seed, float(mean)) for seed, mean in enumerate(means)]
            for name, means in zip(names, ours, strict=True)
        },
        dict(zip(names, map(float, singles), strict=False)),
    )
    assert found is not None
    assert found.cells == len(ours)

    def total(places: Iterable[float]) -> float:
        pairs = zip(places, map(len, ours), strict=True)
        return sum((place - n / 2) / (n + 2) for place, n in pairs)

    single = zip(ours, singles, strict=False)
    seen = abs(total([sum((x > y) + (x == y) / 2 for y in means) for means, x in single]))
    cases = list(itertools.product(*(range(len(means) + 1) for means in ours)))
    so_far = sum(abs(total(places)) >= seen - 1e-9 for places in cases)
    assert found.chance == pytest.approx(so_far / len(cases))
    assert statistics.standing({}, {"ours": 1.0}) is None


def runs(landed: int, of: int) -> list[dict[str, Any]]:
    return [row(BEST, seed, 201.0 if seed < landed else 200.0) for seed in range(of)]


counts = st.integers(3, 4).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of)))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(counts, counts), min_size=1, max_size=2))
def test_how_likely_counts_so_far_apart_are(pairs: list[tuple[Any, Any]]) -> None:
    """The oracle deals out each pair's landings to its runs in every way."""

    def dealt(ours: tuple[int, int], others: tuple[int, int]) -> list[int]:
        everyone = range(ours[1] + others[1])
        ways = itertools.combinations(everyone, ours[0] + others[0])
        return [sum(one < ours[1] for one in way) for way in ways]

    sums = [sum(way) for way in itertools.product(*(dealt(*pair) for pair in pairs))]
    often = {total: sums.count(total) for total in sums}
    seen = often[sum(ours[0] for ours, _ in pairs)]
    expected = sum(one for one in often.values() if one <= seen) / len(sums)
    given_runs = [(runs(*ours), runs(*others)) for ours, others in pairs]
    assert statistics.luck(given_runs) == pytest.approx(expected)
    # A pair with too few seeds changes nothing.
    assert statistics.luck([*given_runs, (runs(2, 2), runs(0, 5))]) == pytest.approx(expected)


def test_no_pair_with_enough_seeds_tells_nothing() -> None:
    assert statistics.luck([(runs(2, 2), runs(0, 5))]) is None
    assert statistics.sooner([(runs(2, 2), runs(0, 5))], 100.0) is None


def test_how_much_sooner_pairs_of_cells_are() -> None:
    def cell(*ends: float) -> list[dict[str, Any]]:
        return [row(BEST, seed, end) for seed, end in enumerate(ends)]

    slow, fast, faster = cell(100, 100, 125), cell(200, 200, 160), cell(400, 400, 400)
    assert [statistics.passages(one, 100.0)[0] for one in (slow, fast, faster)] == [2000, 1000, 500]
    found = statistics.sooner([(fast, slow), (faster, fast), (cell(1), slow)], 100.0)
    assert found is not None
    assert found.value == (1000 + 500) / 2
    low, high = found.interval or (0.0, 0.0)
    assert (low, high) == (300 / 2 + 500 / 2, (1000 + 800) / 2) and found.clear


def test_how_long_runs_look_for_a_way_to_land() -> None:
    paths = [
        [0.0, 100.0, 150.0, 201.0],  # from 1,000 to 2,000
        [0.0, 120.0, 200.0, 150.0],  # never; 1,000 updates
        [0.0, 250.0, 90.0, 90.0],  # at once
        [0.0, 0.0, 0.0, 100.0],  # at its end
        [0.0, 0.0, 0.0, 99.0],
    ]
    found = statistics.searching(paths, 100.0)
    assert found == statistics.Searching(4, 2, 1_000 + 1_000 + 250)
    # 2 of 2 landings in a quarter of all updates; the other way round is likelier.
    assert statistics.as_often(found, statistics.Searching(9, 0, 6_750.0)) == pytest.approx(1 / 16)
    assert statistics.as_often(found, found) == pytest.approx(1.0)


def test_when_a_mean_was_first_reached() -> None:
    assert passage([-50.0, 100.0, 90.0, 200.0], 100.0) == 1_000
    assert passage([-50.0, 99.0], 100.0) == 3_000  # never
    assert [passage(PATHS[GRID[0.9, beta]], 100.0) for beta in (0.0, 0.5, 0.9)] == [
        1100,
        1300,
        1300,
    ]


def test_the_document_says_what_is_there_and_what_is_missing() -> None:
    nothing = document.text([])
    assert "**0 of 183 runs are there, and 183 are missing.**\n45 of 45 cells" in nothing
    rows = [row(BEST, seed, mean) for seed, mean in enumerate([215.0, 220.0, 230.0], 1)]
    rows += [row("why-bootstrap", seed, 100.0 + seed) for seed in (1, 2, 3)]
    rows += [row("a3c-8-0.999-120", seed, 221.0) for seed in (1, 2)]
    rows += [row("ours", 1, 260.0, 30.0), row("ours", 2, 260.0, 41.0)]
    rows += [row(BEST, 1, 210.0)]  # later, so it counts
    uneven = {"child-1": {"exchanges": 300}, "child-2": {"exchanges": 100}}
    own = {"child-1": [250.0, 40.0], "child-2": [120.0, 40.0]}
    rows += [row("why-weights", seed, 190.0, children=own) for seed in (1, 2, 3)]
    fresh = own | {"child-1": [270.0, 40.0]}
    rows += [row("again-program", seed, 210.0, children=fresh) for seed in (31, 32, 33)]
    rows += [row("again-faults", seed, 160.0) for seed in (31, 32, 33)]
    rows += [row("again-thesis", seed, 150.0) for seed in (31, 32, 33)]
    rows += [row("why-heavy", 1, 150.0) | {"exchanges": uneven, "date": "2026-11-25 00:00:00"}]
    controls = [row(ALONE, 1, 240.0), row(ALONE, 2, 120.0)]
    timed = [row(ALONE, 1, 100.0) | {"cell": "virtual-child"}]
    timed += [row(BEST, 1, 240.0) | {"cell": "virtual-two", "exchanges": [1_000, 3_000]}]
    text = document.text(rows, ["thesis-grid.svg"], controls, timed)
    assert "| its program | 2 | 45.0 | 90.0 | 135.0 | 180.0 ± 50.0 | 1 of 2 |" in text
    assert (
        "| `thesis.toml`, in virtual time | 1 | 25.0 | 50.0 | 75.0 | 100.0 ± 50.0 | 0 of 1" in text
    )
    assert "| the thesis | 1 | – | – | – | 230.0 ± 87.1 | – | – |" in text
    assert "| the thesis | 1 | −37.0 | 10.9 | 243.3 | 257.2 ± 39.9 | – | – |" in text
    assert "| the program's weights | 1 | 0 of 3 | 3 of 3 | 0.100 | −100.0 (−200.0 to" in text
    assert "| all three | 1 | 3 of 3 | 0 of 3 | 0.100 | +400.0 (400.0 to 400.0) | sooner |" in text
    assert "| both faults | – | – | – | – | – | – |" in text
    assert "| the thesis, Tables 5.3 to 5.5 | 9 | 7 | 5 | 2,100 | 2.4 |  |" in text
    assert "| `thesis.toml`, the same cells | 3 | 3 | 3 | 2,800 | 1.1 | 0.301 |" in text
    # Of BEST, again-thesis, why-bootstrap and why-heavy; of why-weights and again-program.
    assert "| α = 0.9, β = 0.0, a seed's own weights | 10 | 10 | 3 | 5,200 | 0.6 | 0.049 |" in text
    assert "| α = 0.9, β = 0.0, the program's weights | 9 | 9 | 3 | 7,800 | 0.4 | 0.013 |" in text
    assert "Luck tells these two apart with a probability of 0.689." in text
    assert "Of the\n1 that came afterwards, 0 landed: 0.0 in 1,000 updates." in text
    assert "as its program in virtual time | 3 | 3 | 2 | 1,900 | 1.1 |" in text
    two = "| two children as its own, in virtual time | 1 | 60.0 | 120.0 | 180.0 | 240.0 ± 50.0 |"
    assert two in text
    assert "ended at\n240.0 ± 50.0.\nThe busier child made 75% of the exchanges" in text
    assert "Its runs here ended at 240.0 ± 50.0, 120.0 ± 50.0.\nSo in that program, too" in text
    assert "| α = 0.9, β = 0.0 | 257.2 ± 39.9 | **220.0** ± 50.0 | 210.0 to 230.0 |" in text
    assert "| −37.2 | no | 220.0 | 3 of 3 | 3 of 3 |" in text
    assert "| 55.0 (−37.0) | 110.0 (10.9) | 165.0 (243.3) | 220.0 (257.2) |" in text
    assert "lies within 257.2 ± 39.9" in text
    assert "cores | +1.3 | −1.0 | – | 3 and 2 | too few seeds |" in text
    assert (
        "stored state | 3 and 3 | 102.0 | −118.0 (−129.0 to −107.0) | lower | 0 of 3 (0.100) |"
        in text
    )
    assert (
        "Clear differences: the program's bootstrap: V of the last stored state (lower, later)"
        in text
    )
    assert "| the program's truncation: the time limit counts as an end | 0 and 3 | – |" in text
    assert "With 6 times the CPU time the faster child makes 75% of them." in text
    assert "behind its better child by 60.0 in the\nmedian, by 60.0 at most (6 runs)." in text
    assert "| *α = 0.9, β = 0.0* | 3 | 220.0 |  |  | 3 of 3 | 1,000 |" in text
    assert "| `thesis.toml` | 3 | 150.0 | – | 0 of 3 | 1,400 |  |  |  |" in text
    assert (
        "v2, all together | 3 | 210.0 | 270.0 | 3 of 3 | 1,000 "
        "| 0.100 | +400.0 (400.0 to 400.0) | sooner |" in text
    )
    assert "1. These runs show no difference (0.100 by luck): 3 of 3, and 0 of 3 with" in text
    assert "2. These runs show no difference (0.100 by luck): 3 of 3 with v2, and 0 of 3" in text
    assert "3. Yes: at 270.0." in text
    assert "In 2 of 2 cells the thesis' run ended above the median of ours." in text
    assert "as far from the middle in\n16.7% of all cases" in text
    assert "| 1 | 260.0 ± 30.0 | 260.0 ± 30.0 | yes |" in text
    assert "| 2 | 260.0 ± 41.0 | 260.0 ± 41.0 | no |" in text
    assert "| cell | 1 | 2 | 3 |" in text
    assert "| 8 cores, γ 0.999, batch 120 | 221.0 | 221.0 | – |" in text
    assert "](thesis-grid.svg)" in text
    assert "](thesis-sizes.svg)" not in text


def test_report_writes_the_document_and_its_figures(tmp_path: Path) -> None:
    results, page = tmp_path / "thesis.jsonl", tmp_path / "out/thesis.md"
    for name, seed in itertools.product([BEST, "a3c-8-0.99-60", "size-4-0.9-0.0"], (1, 2)):
        store.append(results, row(name, seed, 100.0 * seed))
    assert command.main(["report", "--results", str(results), "--document", str(page)]) == 0
    names = {"grid", "returns", "a3c", "sizes", "staleness"}
    assert {path.stem for path in page.parent.glob("*.svg")} == {f"thesis-{one}" for one in names}
    assert page.read_text().count(".svg)") == len(names)


def test_plot_draws_the_cells_that_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, out = tmp_path / "thesis.jsonl", tmp_path / "figures"
    for name, seed in itertools.product([BEST, "size-4-0.9-0.0"], (1, 2)):
        store.append(results, row(name, seed, 100.0 * seed))
    there = ["--results", str(results), "--out", str(out)]
    assert command.main(["plot", *there, "--cells", BEST, "size-4-0.9-0.0", "why-v2"]) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "learning.png",
        "learning.svg",
        "returns.png",
        "returns.svg",
    ]
    drawn = (out / "learning.svg").read_text()
    assert f"{CELLS[BEST].label}, n = 2" in drawn
    assert f"{CELLS['size-4-0.9-0.0'].label}, n = 2" in drawn
    assert CELLS["why-v2"].label not in drawn
    capsys.readouterr()
    assert command.main(["plot", *there, "--cells", "why-v2"]) != 0
    assert "none of them has a run yet" in capsys.readouterr().err
    for name in CELLS:
        store.append(results, row(name, 1, 0.0))
    assert command.main(["plot", *there]) != 0
    assert f"{len(CELLS)} cells have runs, and 7 can be told apart" in capsys.readouterr().err


# Rows on disk.


def test_a_line_that_was_cut_off_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    store.append(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"a": 2')
    assert store.read(path) == [{"a": 1}]
    store.append(path, {"a": 3})
    assert store.read(path) == [{"a": 1}, {"a": 3}]
    path.write_text("nonsense\n")
    with pytest.raises(ConfigurationError, match=r"rows.jsonl:1: is no JSON object; delete"):
        store.read(path)


def test_a_second_run_is_kept_out(tmp_path: Path) -> None:
    with store.only_one(tmp_path):
        second, words = store.only_one(tmp_path), "another run works there; stop it, or give"
        with pytest.raises(ConfigurationError, match=words), second:
            pass
    with store.only_one(tmp_path):
        pass


def test_run_goes_on_where_it_was_and_tries_what_failed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def measured(condition: Condition, *_: Any, **__: Any) -> dict[str, Any]:
        asked.append(str(condition))
        if len(asked) == 2:
            raise EnvironmentFailure("the training ended with code 1: no memory")
        return row(condition.cell, condition.seed, 1.0)

    monkeypatch.setattr(command, "measure", measured)
    words = ["--results", str(tmp_path / "rows.jsonl"), "--work", str(tmp_path / "work")]
    words += ["--cells", BEST, "ours", "--seeds", "1", "2"]
    assert command.main(["run", *words]) == 1
    assert "failed: the training ended with code 1: no memory" in capsys.readouterr().out
    assert command.main(["run", *words]) == 0
    assert asked == [
        *(f"{BEST} seed 1", "ours seed 1", f"{BEST} seed 2", "ours seed 2", "ours seed 1")
    ]
    assert command.main(["plan", *words]) == 0
    assert "0 of 4 runs are left, about 0 min" in capsys.readouterr().out


# LunarLander-v2.


def played(environment: Any, seed: int, steps: int = 60) -> list[np.ndarray]:
    seen = [environment.reset(seed=seed)[0]]
    for step in range(steps):
        observation, _, terminated, _, _ = environment.step(step % 4)
        seen.append(observation)
        if terminated:
            break
    return seen


def test_v2_keeps_its_world_and_begins_as_v3() -> None:
    old = LunarLanderV2()
    world = old.world
    assert np.array_equal(played(old, 3), played(LunarLander(), 3))
    played(old, 4)
    assert old.world is world
    assert make().spec is None
    assert old.observation_space.high[0] == 1.5


def test_v2s_wind_goes_on_from_episode_to_episode() -> None:
    environment = LunarLanderV2(enable_wind=True)
    environment.reset(seed=1)
    before = environment.wind_idx
    environment.step(0)
    environment.reset(seed=2)
    assert environment.wind_idx == before + 2  # a step, and the one within a reset


# A real one.


@pytest.mark.slow
def test_a_real_cell_is_trained_and_judged_and_an_interruption_costs_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cell = replace(CELLS["why-bootstrap"], updates=40)  # every 2
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
    children = ["child-1", "child-2"]
    assert said == [f"judging {number}/20" for number in range(3, 21)] + [
        f"judging {child}" for child in children
    ]
    assert [len(found["children"][child]) for child in children] == [2, 2]
    assert [moment for moment, _, _ in found["curve"]] == list(range(2, 41, 2))
    # What one child does before the other has joined counts as whole updates.
    assert 40 * 4 <= found["episodes"] <= 40 * 8
    assert len(found["returns"]) == 2
    assert found["disagreement"]["between"] > 0.0
    made = [one["exchanges"] for one in found["exchanges"].values()]
    assert len(made) == 2 and min(made) >= 10 and 4 * sum(made) == found["episodes"]
    assert json.loads(json.dumps(found)) == found
    assert not folder.exists()


def test_a_training_with_other_settings_is_not_judged(tmp_path: Path) -> None:
    folder = tmp_path / f"{BEST}-1"
    (folder / "run").mkdir(parents=True)
    store.append(folder / "timing.jsonl", {"seconds": 1.0, "settings": ["--children 3"]})

    def stop(what: str) -> None:
        raise KeyboardInterrupt(what)

    with pytest.raises(KeyboardInterrupt, match="training"):
        measure.measure(Condition(BEST, 1), tmp_path, stop)
    assert not folder.exists()


takes_groups = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/sys/fs/cgroup/cpu").exists(),
    reason="takes root and control groups",
)


@pytest.mark.slow
@takes_groups
@pytest.mark.timeout(60)
def test_a_run_whose_child_fails_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    lost: dict[str, object] = {"environment.id": "LunarLander-v3", "environment.options": "{x=1}"}
    cell = replace(CELLS["why-heavy"], settings=lost)
    with pytest.raises(EnvironmentFailure, match=r"training ended .*: error: child-. ended with"):
        measure.measure(Condition(cell.name, 1), tmp_path, lambda what: None, 1, cell)


@pytest.mark.slow
@takes_groups
def test_a_child_with_a_smaller_share_makes_fewer_exchanges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cell = replace(CELLS["why-heavy"], updates=200, slower=3.0)
    found = measure.measure(Condition(cell.name, 1), tmp_path, lambda what: None, 1, cell)
    assert found["settings"][0] == (
        "--children 2 --cores 4, child-1 with 3 times the CPU time of child-2"
    )
    fast, slow = (found["exchanges"][f"child-{number}"]["exchanges"] for number in (1, 2))
    assert fast > 1.5 * slow
    assert found["disagreement"]["between"] > 0.0
    assert not list(Path("/sys/fs/cgroup/cpu").glob("unequal-*"))
