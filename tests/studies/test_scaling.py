"""The pure parts of studies/scaling: the table, the order, the link."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.scaling import __main__ as command
from studies.scaling import matrix
from studies.scaling.figures import longest_fall, returns_of, scaling, traffic
from studies.scaling.matrix import TASKS, Condition, plan
from studies.scaling.ours import experiment_of
from studies.scaling.relay import Way
from tests.studies.rows import of, row

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
    (blend,) = plan(["blend"], [8], [1], tasks=["cartpole"])
    assert matrix.problem(blend, 2) == (
        "blend: it learns lunarlander only; take --contenders experience average average-half"
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("contender", ["average", "average-half", "experience"])
def test_every_task_has_an_experiment(contender: str, task: str) -> None:
    experiment = experiment_of(Condition(contender, 8, 3, task=task))
    assert (experiment.environment.id, experiment.seed) == (TASKS[task].environment, 3)
    assert (experiment.child.exchange == "chunk") == (contender != "experience")
    assert (experiment.parent.rule == "experience") == (contender == "experience")
    assert (experiment.parent.encoding == "float16") == (contender == "average-half")


def test_falls_count_from_the_return_on_and_against_the_mean_then() -> None:
    means = [
        (0, 10.0),
        (1, 120.0),
        (2, 70.0),
        (3, 100.0),
        (4, 79.0),
        (5, 80.0),
        (6, 79.0),
        (8, 59.0),
    ]
    assert longest_fall(means, since=3.0) == 3.0
    assert longest_fall(means, since=3.5) == 3.0
    assert longest_fall(means, since=5.0) == 1.0
    assert longest_fall(means, since=9.0) == 0.0


def test_the_returns_of_some_children_follow_from_the_mean_of_all() -> None:
    lines = [
        {"time": 1.0, "child": "a", "episodes": 0, "mean_return": None},
        {"time": 2.0, "child": "a", "episodes": 1, "mean_return": 4.0},
        {"time": 3.0, "child": "b", "episodes": 3, "mean_return": 2.0},
        {"time": 4.0, "child": "a", "episodes": 3, "mean_return": 2.0},
        {"time": 5.0, "child": "a", "episodes": 5, "mean_return": 3.2},
    ]
    assert returns_of(["a"], lines) == [(2.0, 4.0), (5.0, 5.0), (5.0, 5.0)]
    assert returns_of(["b"], lines) == [(3.0, 1.0), (3.0, 1.0)]


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

    def measure(condition: Condition, _: argparse.Namespace) -> matrix.Row:
        asked.append(condition.machines)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return row(condition, 60.0, idle=0.2, training_mean=231.0)

    monkeypatch.setattr(command, "measure", measure)
    monkeypatch.setattr(command, "sweep", lambda: None)
    wanted = plan(["blend"], [1, 8], [1])
    with pytest.raises(KeyboardInterrupt):
        command.run(wanted, [], options)
    written = [json.loads(line) for line in options.results.read_text().splitlines()]
    assert [one["machines"] for one in written] == [8]
    command.run(wanted, written, options)
    assert asked == [8, 1, 1]
    assert len(options.results.read_text().splitlines()) == 2
    said = capsys.readouterr().out
    assert "[2/2] blend, 1 × 0.1 cores, seed 1: about 10 min left" in said


@given(*(st.integers(1, 10**6) for _ in range(4)), st.sampled_from([2, 4, 8, 16]))
def test_efficiency_is_pace_times_learning(
    seconds: int, steps: int, seconds_alone: int, steps_alone: int, n: int
) -> None:
    rows = [row(of(1), float(seconds_alone), steps_alone), row(of(n), float(seconds), steps)]
    _, many = scaling(rows)
    assert many.efficiency is not None and many.pace is not None and many.learning is not None
    assert many.efficiency == pytest.approx(many.pace * many.learning)
