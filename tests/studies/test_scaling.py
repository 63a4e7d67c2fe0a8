"""The pure parts of studies/scaling: the table, the order, the link."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import store
from benchmarks.relay import Way
from genkidama.config.schedules import learning_rate
from studies.scaling import __main__ as command
from studies.scaling import matrix, ours
from studies.scaling.figures import scaling, table, traffic
from studies.scaling.matrix import (
    LINKS,
    OFF_POLICY,
    TASKS,
    Condition,
    churn,
    plan,
    shares,
    study,
)
from studies.scaling.ours import experiment_of
from tests.studies.rows import of, row

ROOT = Path(__file__).parents[2]
MACHINES = [1, 2, 4, 8, 16]


# The plan.


def test_many_and_few_machines_take_turns_and_every_second_seed_goes_backwards() -> None:
    order = plan(["blend"], MACHINES, [1, 2])
    assert [one.machines for one in order] == [16, 1, 8, 2, 4, 4, 2, 8, 1, 16]
    assert [one.seed for one in order] == [1] * 5 + [2] * 5


def test_a_row_says_its_task_unless_it_is_the_first_one() -> None:
    lander, cartpole = plan(["average"], [8], [1], tasks=["lunarlander", "cartpole"])
    assert "task" not in lander.as_row() and cartpole.as_row()["task"] == "cartpole"
    for one in (lander, cartpole):
        assert Condition.of(one.as_row()) == one and matrix.problem(one, 2) is None
    (peer,) = plan(["ddp"], [8], [1], tasks=["cartpole"])
    assert (matrix.problem(peer, 2) or "").startswith("ddp: it learns lunarlander only; take")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("contender", ["average", "average-half", "experience", "alone-tuned"])
def test_every_task_has_an_experiment(contender: str, task: str) -> None:
    experiment = experiment_of(Condition(contender, 8, 3, task=task))
    assert (experiment.environment.id, experiment.seed) == (TASKS[task].environment, 3)
    assert (experiment.child.exchange == "chunk") == contender.startswith("average")
    assert (experiment.parent.rule == "experience") == (contender == "experience")
    assert (experiment.parent.encoding == "float16") == (contender == "average-half")


@pytest.mark.parametrize("task", TASKS)
def test_one_machine_learns_by_itself_as_its_learner_does(task: str) -> None:
    alone, acts = (
        experiment_of(Condition(name, 1, 3, task=task)) for name in ("alone", "experience")
    )
    assert (alone.parent.rule, alone.parent.alpha, alone.child.beta) == ("blend", 1.0, 0.0)
    for section in ("environment", "network", "algorithm", "optimizer"):
        assert getattr(alone, section) == getattr(acts, section)


@pytest.mark.parametrize("contender", OFF_POLICY)
def test_off_policy_learners_average_weights_and_keep_their_replay(contender: str) -> None:
    (machines,) = OFF_POLICY[contender].machines
    task = "pendulum" if contender.startswith("sac") else "cartpole"
    experiment = experiment_of(Condition(contender, machines, 3, task=task))
    assert experiment.algorithm.name in contender and experiment.replay.url == "local"
    assert (experiment.parent.rule == "difference") == contender.endswith("difference")
    mixes = (experiment.parent.alpha, experiment.child.beta)
    assert mixes == ((1.0, 0.0) if machines == 1 else (0.5, 0.5))


@pytest.mark.parametrize(("contender", "ends"), [("average", 0.0), ("average-constant", 1.4e-3)])
def test_the_rate_ends_with_the_steps_of_the_task_or_stays(contender: str, ends: float) -> None:
    experiment = experiment_of(Condition(contender, 8, 1, task="continuous"))
    assert experiment.stop.steps == TASKS["continuous"].steps == 1_000_000
    assert learning_rate(experiment.optimizer, 0.0) == 1.4e-3
    assert learning_rate(experiment.optimizer, 1.0) == ends
    assert experiment.adapts == experiment_of(Condition("average", 8, 1)).adapts


def test_the_study_has_five_seeds_of_each_task_and_eight_of_the_lander() -> None:
    whole = study(list(TASKS), range(1, 9))
    assert len(set(whole)) == len(whole)
    cells = Counter((one.contender, one.machines, one.task) for one in whole if one.link == "none")
    for task in TASKS:
        for contender in ("average", "experience"):
            least = 8 if task == "lunarlander" else 5
            assert cells[contender, 4, task] >= least <= cells[contender, 8, task]
    links = Counter((one.link, one.disturbance) for one in whole if one.link != "none")
    assert set(links.values()) == {8} and {link for link, _ in links} == set(LINKS) - {"none"}
    for seed in range(1, 9):  # small runs come first, and a seed is whole before the next one
        own = [one.side_by_side for one in whole if one.seed == seed]
        assert own == sorted(own, reverse=True)
    assert [one.seed for one in whole] == sorted(one.seed for one in whole)
    assert all(matrix.problem(one, 2) is None for one in whole if one.task != "hopper")


def test_unequal_machines_are_a_laptop_among_boards_and_one_environment_may_differ() -> None:
    assert shares(Condition("average", 3, 1, "unequal")) == [1.0, 0.05, 0.05]
    assert shares(Condition("average", 3, 1, "slow10")) == pytest.approx([0.01, 0.1, 0.1])
    experiment = experiment_of(Condition("average", 3, 1, "physics"))
    gravity = [experiment.for_child(f"child-{n}").environment.options for n in range(2)]
    assert gravity == [{"gravity": -6.0}, {}]
    other = Condition("average", 3, 1, "physics", task="cartpole")
    assert (matrix.problem(other, 2) or "").startswith("average, 3 machines, physics: CartPole-v1")


@given(st.integers(2, 9), st.floats(0.0, 300.0), st.integers(0, 99))
def test_one_machine_is_away_at_a_time_and_for_ten_seconds(n: int, limit: float, seed: int) -> None:
    gone: int | None = None
    for turn, (second, leaves, back) in enumerate(churn(n, limit, Random(seed)), 1):
        assert second == 10.0 * turn < limit and back == gone != leaves in range(n)
        gone = leaves


@pytest.mark.parametrize("name", ["scaling", "scaling-averaging", "scaling-tasks"])
def test_rows_of_all_times_have_a_table(name: str) -> None:
    rows = store.read(ROOT / f"docs/results/{name}.jsonl")
    lines = table(scaling(rows)).splitlines()
    conditions = {Condition.of({**row, "seed": 0}) for row in rows}
    assert len(lines) == 2 + len(conditions) and len({line.count("|") for line in lines}) == 1


def test_what_has_no_machine_of_its_own_kind_is_measured_by_the_best_one() -> None:
    rows = [row(of(1, seed, "alone"), 90.0 + seed, 900) for seed in (1, 2, 3)]
    rows += [row(of(1, seed, "alone-tuned"), None) for seed in (1, 2, 3)]
    rows += [row(of(8, seed, "average"), 10.0 * seed, 300) for seed in (1, 2, 3)]
    (average,) = (one for one in scaling(rows) if one.contender == "average")
    assert average.against_best == average.speed_up == pytest.approx(92.0 / 20.0)
    assert average.learning == 3.0
    assert average.pace == pytest.approx(average.speed_up / 8 / average.learning)
    assert average.at_least is not None and 91.0 / 30.0 <= average.at_least < 92.0 / 20.0


def test_bytes_a_second_are_those_between_the_first_count_and_the_last() -> None:
    assert traffic([(1.0, 100, 1_000), (2.0, 0, 0), (5.0, 500, 9_000)]) == {
        "sent": 100,
        "received": 2_000,
    }
    assert traffic([(1.0, 100, 1_000)]) == {}


# The link.


def test_a_packet_takes_its_turn_and_half_a_round_trip() -> None:
    way = Way(rate=1_000.0, delay=0.05, loss=0.1)
    assert way.arrival(40, now=1.0, luck=0.5) == pytest.approx(1.09)
    assert way.arrival(40, now=1.0, luck=0.5) == pytest.approx(1.13)  # it waits for the first
    assert way.arrival(40, now=1.0, luck=0.05) is None  # lost
    assert way.arrival(40, now=1.0, luck=0.5) == pytest.approx(1.17)
    assert way.arrival(40, now=1.0, luck=0.5) is None  # the queue is full
    assert way.arrival(40, now=9.0, luck=0.5) == pytest.approx(9.09)
    way.cut = True
    assert way.arrival(40, now=20.0, luck=0.5) is None


# The command.


@pytest.fixture
def options(tmp_path: Path) -> argparse.Namespace:
    results = tmp_path / "results" / "scaling.jsonl"
    arguments = ["run", "--contenders", "blend", "--machines", "1", "8", "--seeds", "1"]
    return command.parse([*arguments, "--results", str(results)])


def test_a_stopped_run_goes_on(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def measure(condition: Condition, _: float | None) -> matrix.Row:
        asked.append(condition.machines)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return row(condition, 60.0, idle=0.2, training_mean=231.0)

    monkeypatch.setattr(command, "measure", measure)
    monkeypatch.setattr(command, "sweep", lambda: None)
    monkeypatch.setattr(command, "earlier", list)
    wanted = plan(["blend"], [1, 8], [1])
    with pytest.raises(KeyboardInterrupt):
        command.run(wanted, [], options)
    written = [json.loads(line) for line in options.results.read_text().splitlines()]
    assert [one["machines"] for one in written] == [8]
    command.run(wanted, written, options)
    assert asked == [8, 1, 1]
    assert len(options.results.read_text().splitlines()) == 2
    said = capsys.readouterr().out
    assert "[2/2] blend, 1 × 0.1 cores, seed 1: about 11 min left" in said


def test_runs_side_by_side_start_one_after_the_other() -> None:
    begin = ["flock", "--nonblock", str(ours.STARTS), "true"]
    with ours._starting():
        assert subprocess.run(begin).returncode == 1
    assert subprocess.run(begin).returncode == 0


def test_runs_side_by_side_have_at_most_eight_machines_and_no_learner_at_the_parent() -> None:
    averaging = [Condition("average", n, 1).side_by_side for n in (1, 2, 4, 8, 16)]
    assert averaging == [8, 4, 2, 1, 1] and Condition("alone-tuned", 1, 1).side_by_side == 8
    apart = [
        Condition("experience", 4, 1),
        Condition("average", 4, 1, link="wifi"),
        Condition("average", 4, 1, "churn"),
        Condition("alone-tuned", 1, 1, share=1.0),
    ]
    assert {one.side_by_side for one in apart} == {1}


def test_small_runs_are_measured_side_by_side_and_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Condition] = []

    def measure(condition: Condition, limit: float | None) -> matrix.Row:
        asked.append(condition)
        return {"seed": condition.seed, "limit": limit}

    monkeypatch.setattr(command, "measure", measure)
    monkeypatch.setattr(command, "ProcessPoolExecutor", lambda count, _: ThreadPoolExecutor(count))
    left = [Condition("alone", 1, seed) for seed in range(6)]
    left += [Condition("average", n, seed) for n, seed in ((4, 6), (4, 7), (8, 8))]
    with command.SideBySide(left, 9.0) as machines:
        for seed, condition in enumerate(left):
            assert machines.measure(condition) == {"seed": seed, "limit": 9.0}
            batch = next(last for last in (5, 7, 8) if last >= seed)
            assert {one.seed for one in asked} <= set(range(batch + 1))
    assert sorted(one.seed for one in asked) == list(range(9))
