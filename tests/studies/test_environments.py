"""The study of environments: its plan, the peers' settings, its statistics, its resumption."""

from __future__ import annotations

import math
import sys
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import store
from benchmarks.peer_settings import ZOO, our_plan, published, zoo_plan
from benchmarks.store import Row
from genkidama.config.examples import examples, zoo
from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure
from genkidama.runs.policy import Policy
from genkidama.runs.run import Run, weights_of
from genkidama.runs.warm_start import found_weights
from studies.environments import __main__ as study
from studies.environments import gallery, tables
from studies.environments.scores import (
    at_equal_steps,
    at_steps,
    grouped,
    interquartile_mean,
    outcome,
    together,
)
from studies.environments.tasks import OF, PROGRAMS, RANDOM, SEEDS, TASKS, Condition, plan

Curve = list[tuple[float, int, float]]


def row(environment: str, contender: str, seed: int, mean: float, curve: Any = ()) -> Row:
    found = {"environment": environment, "contender": contender, "seed": seed, "mean": mean}
    return {**found, "std": 1.0, "curve": list(curve)}


def test_the_plan_has_every_run_once_and_fits_into_twelve_hours() -> None:
    wanted = plan(list(OF), list(SEEDS))
    assert len(OF) == len(TASKS) >= 20 and len(SEEDS) == 5
    assert len(set(wanted)) == len(wanted)
    assert Counter(one.contender for one in wanted) == {
        RANDOM: len(TASKS),
        **dict.fromkeys(PROGRAMS[:3], 5 * len(TASKS)),
        "sbx-zoo": 50,
    }
    assert sum(one.seconds for one in wanted) < 12 * 3600


def test_a_seed_is_complete_before_the_next_and_programs_take_turns_to_begin() -> None:
    wanted = [one for one in plan(list(OF), [1, 2, 3]) if one.contender != RANDOM]
    assert [one.seed for one in wanted] == sorted(one.seed for one in wanted)
    firsts = [
        next(one.contender for one in wanted if (one.environment, one.seed) == ("Taxi-v4", seed))
        for seed in (1, 2, 3)
    ]
    assert len(set(firsts)) == 3


def test_the_peer_has_the_zoos_settings_or_the_librarys() -> None:
    cartpole = zoo_plan("CartPole-v1")
    assert cartpole["falls"] == {"learning_rate": [0.001, 0.0, 1.0], "clip_range": [0.2, 0.0, 1.0]}
    assert (cartpole["steps"], cartpole["environments"]) == (100_000, 8)
    assert cartpole["settings"]["n_epochs"] == 20 and "clip_range" not in cartpole["settings"]
    acrobot = zoo_plan("Acrobot-v1")
    assert acrobot["normalize_observations"] and acrobot["normalize_rewards"]
    assert acrobot["steps"] == 0
    minatar = zoo_plan("MinAtar/Breakout-v1")
    assert (minatar["settings"], minatar["environments"]) == ({}, 1)
    assert published("MinAtar/Breakout-v1") is None
    assert published("LunarLander-v3") == (242.119, "LunarLander-v2")
    plans = [zoo_plan(task.environment) for task in TASKS]
    assert {frozenset(each) for each in plans} == {frozenset(plans[0])}
    assert {name for name in ZOO if "-v" in name} <= {*OF, "Swimmer-v5"}


def test_the_peer_learns_with_our_settings() -> None:
    lander = our_plan(Experiment.load(examples()["lunarlander"]))
    assert lander["settings"] == {
        "n_steps": 128,
        "batch_size": 128,
        "n_epochs": 4,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "clip_range": 0.2,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
        "normalize_advantage": True,
    }
    assert lander["falls"] == {"ent_coef": [0.02, 0.0, 0.085], "learning_rate": [1.5e-3, 0.0, 1.0]}
    assert (lander["environments"], lander["steps"]) == (16, 2_000_000)
    assert (lander["reward_scale"], lander["left_out"]) == (0.05, [])
    assert lander["policy_kwargs"]["net_arch"] == [64, 64]
    car = our_plan(Experiment.load(examples()["mountaincar"]))
    assert car["settings"]["sde_sample_freq"] == 64 and car["settings"]["use_sde"]
    assert car["policy_kwargs"]["log_std_init"] == -2.0
    assert not car["policy_kwargs"]["ortho_init"] and car["normalize_rewards"]
    breakout = our_plan(Experiment.load(examples()["minatar/breakout"]))
    assert (breakout["environments"], breakout["settings"]["n_steps"]) == (32, 128)
    assert breakout["convolutions"] == [[16, 3, 2]]


def test_the_peer_has_our_algorithm_as_far_as_it_can() -> None:
    dqn = our_plan(Experiment.load(examples()["lunarlander/dqn"]))
    assert dqn["algorithm"] == "DQN"
    assert dqn["settings"]["target_update_interval"] == 100  # updates, of which there is one a step
    assert dqn["falls"]["exploration"] == [1.0, 0.05, 0.2]
    assert dqn["left_out"] == ["algorithm.double", "network.shared", "algorithm.dueling"]
    sac = our_plan(Experiment.load(examples()["pendulum/sac"]))
    assert (sac["algorithm"], sac["settings"]["gradient_steps"]) == ("SAC", 4)
    assert sac["mean_return"] == -200.0
    a3c = our_plan(Experiment.load(examples()["lunarlander/thesis"]))
    assert a3c["algorithm"] == "A2C" and "clip_range" not in a3c["settings"]


scores = st.lists(st.integers(-50, 50), min_size=1, max_size=25)


@given(scores)
def test_the_interquartile_mean_is_that_of_the_middle_half(drawn: list[int]) -> None:
    left = list(drawn)
    for _ in range(len(drawn) // 4):
        left.remove(min(left))
        left.remove(max(left))
    slow = Fraction(sum(left), len(left))
    assert math.isclose(interquartile_mean(np.asarray(drawn, float)), slow, abs_tol=1e-9)


def test_the_interval_is_stratified_by_environment() -> None:
    # Each environment's seeds are equal, so whatever is drawn is the same.
    assert together([[0.0] * 3, [1.0] * 3, [5.0] * 3]) == (pytest.approx(1.6), (1.6, 1.6))
    value, ends = together([[0.0, 0.1, 0.2], [1.0, 1.3, 0.9]])
    assert ends is not None and ends[0] <= value <= ends[1] and ends[0] < ends[1]
    assert together([[0.0, 1.0], [1.0, 2.0, 3.0]])[1] is None


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(-9, 9)), max_size=12), st.integers(0, 120))
def test_a_curve_is_read_at_a_number_of_steps(points: list[tuple[int, int]], steps: int) -> None:
    curve: Curve = []
    for more, mean in points:
        curve.append((0.0, (curve[-1][1] if curve else 0) + more, float(mean)))
    slow = None
    for (_, begin, before), (_, end, after) in pairwise([*curve, *curve[-1:]]):
        if begin <= steps:
            share = Fraction(min(steps, end) - begin, max(1, end - begin))
            slow = (1 - share) * Fraction(before) + share * Fraction(after)
    found = at_steps(curve, steps)
    assert (found is None) == (slow is None)
    assert found is None or math.isclose(found, slow, abs_tol=1e-9)  # type: ignore[arg-type]


def test_equal_steps_end_where_the_shorter_run_does() -> None:
    ours = {1: row("", "", 1, 0, [(1.0, 10, 1.0), (2.0, 20, 2.0), (3.0, 30, 3.0)])}
    theirs = {1: row("", "", 1, 0, [(5.0, 12, 7.0), (9.0, 25, 8.0)]), 2: row("", "", 2, 0)}
    assert at_equal_steps(ours, theirs) == ([2.5], [8.0])
    assert at_equal_steps(theirs, ours) == ([8.0], [2.5])


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ([5.0, 6.0, 7.0], [1.0, 2.0, 3.0], "win"),
        ([1.0, 2.0, 3.0], [5.0, 6.0, 7.0], "loss"),
        ([1.0, 2.0, 9.0], [0.0, 3.0, 7.0], "tie"),
        ([5.0, 6.0], [1.0, 2.0, 3.0], ""),
        ([], [1.0, 2.0, 3.0], ""),
    ],
)
def test_a_win_is_a_difference_whose_interval_leaves_nothing_out(
    ours: list[float], theirs: list[float], said: str
) -> None:
    assert outcome(ours, theirs) == said


def test_environments_with_more_seeds_do_not_count_more() -> None:
    chance = [row(name, RANDOM, 1, 0.0) for name in ("Taxi-v4", "FrozenLake-v1")]
    played = [("Taxi-v4", 1, 4.0), ("Taxi-v4", 2, 8.0), ("Taxi-v4", 3, -8.0)]
    played += [("FrozenLake-v1", 2, 0.7), ("FrozenLake-v1", 4, 0.0)]
    rows = grouped(chance + [row(name, "genkidama", seed, mean) for name, seed, mean in played])
    assert tables.samples(rows, "genkidama") == [[1.0], [1.0]]
    assert tables.samples(rows, "sb3-zoo") == []
    del rows["FrozenLake-v1", "genkidama"][2]
    assert tables.samples(rows, "genkidama") == []


def test_the_tables_have_losses_like_wins() -> None:
    rows = [row("CartPole-v1", RANDOM, 1, 20.0)]
    for seed in (1, 2, 3):
        rows.append(row("CartPole-v1", "genkidama", seed, 400.0 + seed, [(1.0, 10, 50.0 + seed)]))
        rows.append(row("CartPole-v1", "sb3-zoo", seed, 490.0 + seed, [(1.0, 12, 20.0)]))
        rows.append(row("CartPole-v1", "sb3-ours", seed, 300.0 + seed, [(1.0, 10, 99.0 + seed)]))
    said = tables.document(rows)
    assert (
        "| `CartPole-v1` | 15 | 402.0 [401.0, 403.0] | 492.0 [491.0, 493.0] "
        "| 302.0 [301.0, 303.0] | – | 20.0 | 500.0 | 0 to 3 |" in said
    )
    # The zoo's run is judged where ours ends, before its first point.
    assert "| `CartPole-v1` | loss | – | win | loss, 52.0 : 101.0 | – | – |" in said
    assert "| sb3-zoo | 0 / 0 / 1 | 0 / 0 / 0 |" in said
    assert "| sb3-ours | 1 / 0 / 0 | 0 / 0 / 1 |" in said
    assert "| genkidama | 0.80 | 0.79 to 0.80 | 1 |" in said


def test_the_pages_have_the_tables_of_their_rows() -> None:
    page, rows = study.PAGE.read_text(), store.read(study.PAGE.with_suffix(".jsonl"))
    assert study.filled(page, tables.document(rows)) == page
    page = study.ZOO_PAGE.read_text()
    assert study.filled(page, gallery.table(study.ZOO)) == page


def test_a_run_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "rows.jsonl"
    # The fourth run is interrupted, and another one breaks when it is first tried.
    calls: list[Condition] = []
    broken = Condition("Taxi-v4", "sb3-ours", 2)

    def measure(_: study.Runs, condition: Condition) -> Row:
        calls.append(condition)
        if len(calls) == 4:
            raise KeyboardInterrupt
        if condition == broken and calls.count(broken) == 1:
            raise EnvironmentFailure("it broke")
        return row(condition.environment, condition.contender, condition.seed, 1.0)

    monkeypatch.setattr(study.Runs, "measure", measure)
    words = ["run", "--environments", "Taxi-v4", "--seeds", "1", "2", "--results", str(results)]
    words += ["--work", str(tmp_path / "work"), "--python", sys.executable]
    monkeypatch.setattr(sys, "argv", ["environments", *words])
    with pytest.raises(KeyboardInterrupt):
        study.main()
    assert study.main() == EnvironmentFailure.exit_code
    assert len(store.read(results)) == 6
    assert study.main() == 0
    assert len(calls) == 7 + 2
    assert study.main() == 0
    assert len(calls) == 7 + 2
    rows = [(one["contender"], one["seed"]) for one in store.read(results)]
    assert sorted(rows) == sorted((one.contender, one.seed) for one in plan(["Taxi-v4"], [1, 2]))


def test_a_smoke_leaves_the_results_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["environments", "plan", "--smoke"])
    options = study._parsed()
    assert options.results.parent == options.work != study.WORK
    assert options.seeds == [1]


def test_it_trains_by_the_command_that_init_prints() -> None:
    said = "mine.toml: written; train it: genkidama train mine.toml --children 1\nAnd more."
    assert study.training_command(said) == ["train", "mine.toml", "--children", "1"]
    with pytest.raises(EnvironmentFailure, match="names no command"):
        study.training_command("nothing")


@given(st.lists(st.integers(0, 100), max_size=90), st.integers(1, 20))
def test_a_thin_curve_is_a_part_of_it_with_its_end(apart: list[int], most: int) -> None:
    curve: Curve = []
    for more in apart:
        curve.append(((curve[-1][0] if curve else 0.0) + more, len(curve), 0.0))
    thin = gallery.thinned(curve, most)
    assert len(thin) <= most and thin == sorted(set(thin) & set(curve))
    assert thin[-1:] == curve[-1:]


def test_the_best_seed_goes_to_the_gallery_if_it_is_small(tmp_path: Path) -> None:
    work, shown = tmp_path / "work", tmp_path / "zoo"
    for name, seed, size in (
        ("CartPole-v1", 1, 10),
        ("CartPole-v1", 2, 20),
        ("Ant-v5", 1, gallery.MOST + 1),
    ):
        folder = gallery.place(work, name, seed)
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"x" * size)
    rows = [
        row("CartPole-v1", "genkidama", 1, 400.0),
        row("CartPole-v1", "genkidama", 2, 500.0),
        row("CartPole-v1", "sb3-zoo", 1, 900.0),
        row("Ant-v5", "genkidama", 1, 1.0),
        row("MinAtar/Breakout-v1", "genkidama", 1, 1.0),
    ]
    said = list(gallery.publish(rows, work, shown))
    assert said[0] == "zoo:cartpole: 500.0 with seed 2, 20 bytes"
    assert "too many" in said[1] and "is not there" in said[2]
    assert [each.name for each in shown.iterdir()] == ["cartpole"]
    assert (shown / "cartpole/weights").stat().st_size == 20
    (shown / "cartpole" / gallery.EVALUATION).write_text('{"mean": 500.5}')
    assert next(gallery.publish(rows, work, shown)) == "zoo:cartpole: 500.5 stays, beside 500.0"
    assert (shown / "cartpole" / gallery.EVALUATION).exists()


@pytest.mark.slow
def test_a_row_is_a_run_of_the_command_line(tmp_path: Path) -> None:
    condition = Condition("CartPole-v1", "genkidama", 3)
    found = study.Runs(Path(sys.executable), tmp_path, smoke=True).measure(condition)
    assert found["mean"] > 5.0 and found["planned"] == study.SMOKE[0] >= 1.0
    assert found["curve"][-1][:2] == (found["seconds"], found["steps"])
    kept = gallery.place(tmp_path, condition.environment, 3)
    assert weights_of(kept).checkpoint.vector.size > 4_000
    assert len(gallery.curve(kept)) <= 2 * gallery.POINTS


#: Packages that environments of the gallery need, which `make test` does not install.
NEEDED = {"-v5": "mujoco", "MiniGrid": "minigrid", "highway": "highway_env"}


@pytest.mark.parametrize("name", zoo())
def test_a_policy_of_the_gallery_is_a_small_run_that_plays(name: str) -> None:
    run = Run.open(zoo()[name])
    assert found_weights(name) == run.path
    assert gallery.curve(run.path) and run.evaluation is not None
    assert run.best is not None and weights_of(name).run is None
    for mark, package in NEEDED.items():
        if mark in run.experiment.environment.id:
            pytest.importorskip(package)
    policy = Policy(weights_of(name).checkpoint)
    assert policy.action_space.contains(policy.predict(policy.observation_space.sample())[0])
