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
from studies.scaling.figures import scaling
from studies.scaling.matrix import Condition, plan
from studies.scaling.relay import Way
from tests.studies.rows import of, row

MACHINES = [1, 2, 4, 8, 16]


# The plan.


def test_many_and_few_machines_take_turns_and_every_second_seed_goes_backwards() -> None:
    order = plan(["blend"], MACHINES, [1, 2])
    assert [one.machines for one in order] == [16, 1, 8, 2, 4, 4, 2, 8, 1, 16]
    assert [one.seed for one in order] == [1] * 5 + [2] * 5


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
