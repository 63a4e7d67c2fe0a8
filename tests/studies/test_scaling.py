"""The pure parts of studies/scaling: the table, the order, the link."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.errors import EnvironmentFailure
from studies.groups import quota
from studies.scaling import __main__ as command
from studies.scaling import matrix
from studies.scaling.matrix import CONTENDERS, Condition, cuts, missing, plan, problem, shares
from studies.scaling.ours import experiment_of
from studies.scaling.relay import Way
from tests.studies.rows import of, row

MACHINES = [1, 2, 4, 8, 16]


# The plan.


def test_many_and_few_machines_take_turns_and_every_second_seed_goes_backwards() -> None:
    order = plan(["blend"], MACHINES, [1, 2])
    assert [one.machines for one in order] == [16, 1, 8, 2, 4, 4, 2, 8, 1, 16]
    assert [one.seed for one in order] == [1] * 5 + [2] * 5


def test_contenders_alternate_and_nothing_is_measured_twice() -> None:
    order = plan(["blend", "ddp"], [1, 8], [1, 2, 3], ["none", "slow10"], ["none", "wifi"])
    assert [one.contender for one in order[:4]] == ["blend", "ddp"] * 2
    assert len(set(order)) == len(order)


def test_without_a_number_each_contender_has_its_own() -> None:
    order = plan(["flower", "ddp"], None, [1])
    assert [(one.contender, one.machines) for one in order] == [
        ("flower", 8),
        ("ddp", 8),
        ("ddp", 1),
    ]


def test_what_is_not_disturbed_by_it_is_not_measured_with_it() -> None:
    order = plan(list(CONTENDERS), [1, 8], [1], ["none", "slow10", "late"], ["none", "wifi"])
    disturbed = {one.contender for one in order if one.disturbance != "none"}
    ours = {"blend", "experience", "difference", "gradient"}
    assert disturbed == {*ours, "ddp", "ddp-each", "flower", "flower-long"}
    assert {one.contender for one in order if one.disturbance == "late"} == ours
    assert not [one for one in order if one.contender == "sb3" and one.link == "wifi"]
    assert not [one for one in order if one.disturbance != "none" and one.machines == 1]


@given(st.data())
def test_a_plan_goes_on_where_it_was_stopped(data: st.DataObject) -> None:
    order = plan(["blend", "ddp"], [1, 8], [1, 2], ["none", "slow10"])
    done = data.draw(st.sets(st.sampled_from(order)))
    rows = [json.loads(json.dumps(row(condition, 1.0))) for condition in done]
    assert missing(order, rows) == [one for one in order if one not in done]


def test_another_share_is_another_row() -> None:
    rows = [row(condition, 1.0) for condition in plan(["blend"], [8], [1], share=0.05)]
    wanted = plan(["blend"], [8], [1])
    assert missing(wanted, rows) == wanted


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_has_an_experiment(name: str) -> None:
    experiment = experiment_of(Condition(name, 8, seed=7))
    assert experiment.seed == 7
    assert experiment.optimizer.schedule == "constant"


def test_one_machine_with_all_shares_has_a_process_for_each_core() -> None:
    assert experiment_of(Condition("whole", 8, 0)).child.cores == 1
    assert experiment_of(Condition("whole", 16, 0)).child.cores == 2
    assert experiment_of(Condition("blend", 16, 0)).child.cores == 1


# What fits.


def test_shares() -> None:
    assert shares(Condition("blend", 3, 0)) == [0.1] * 3
    assert shares(Condition("ddp", 3, 0, "slow10")) == pytest.approx([0.01, 0.1, 0.1])
    assert shares(Condition("blend", 2, 0, "slow100")) == pytest.approx([0.001, 0.1])
    assert shares(Condition("sb3", 8, 0)) == pytest.approx([0.8])


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    assert problem(Condition("blend", 16, 0), cores=2) is None
    assert "32 × 0.1 cores are 3.2, and this machine has 2" in said(Condition("blend", 32, 0))
    assert "below 0.001" in said(Condition("blend", 2, 0, "slow100", share=0.05))
    assert "--links ethernet" in said(Condition("blend", 2, 0, "cuts"))
    assert problem(Condition("blend", 2, 0, "cuts", "wifi"), cores=2) is None


def said(condition: Condition) -> str:
    reason = problem(condition, cores=2)
    assert reason is not None and "\n" not in reason
    return reason


@given(st.floats(0.001, 16.0))
def test_a_quota_is_its_share(share: float) -> None:
    limit, period = quota(share)
    assert limit / period == pytest.approx(share, rel=0.01)
    assert limit >= 1_000 and 10_000 <= period <= 1_000_000


def test_a_share_that_no_kernel_gives() -> None:
    with pytest.raises(ValueError, match=r"0\.0005 cores"):
        quota(0.0005)


@given(st.integers(2, 16), st.floats(1.0, 600.0), st.integers())
def test_each_minute_a_random_half_is_cut_off_and_mended(n: int, limit: float, seed: int) -> None:
    found = cuts(n, limit, Random(seed))
    assert len(found) == 2 * -(-limit // 60.0)
    for minute, ((cut, machines), (mended, nobody)) in enumerate(
        zip(found[::2], found[1::2], strict=True)
    ):
        assert 60.0 * minute <= cut < mended <= 60.0 * (minute + 1)
        assert mended - cut == pytest.approx(20.0)
        assert len(set(machines)) == n // 2 and set(machines) <= set(range(n)) and not nobody


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


@given(st.lists(st.tuples(st.floats(0.0, 0.1), st.integers(20, 1500)), max_size=50))
def test_packets_keep_their_order_and_the_rate(packets: list[tuple[float, int]]) -> None:
    way = Way(rate=1e5, delay=0.01, loss=0.0)
    now, last = 0.0, 0.0
    for pause, size in packets:
        now += pause
        arrival = way.arrival(size, now, luck=0.5)
        if arrival is not None:
            assert arrival - last >= size / 1e5 - 1e-9 or arrival >= now + 0.01
            assert last <= arrival and arrival >= now + 0.01 + size / 1e5 - 1e-9
            last = arrival


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
    assert "[2/2, about 10 min left] blend, 1 × 0.1 cores, seed 1" in said


def test_what_fails_is_said_and_does_not_stop_the_rest(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(condition: Condition, _: argparse.Namespace) -> matrix.Row:
        if condition.machines == 8:
            raise EnvironmentFailure("a worker died: no memory")
        return row(condition, 60.0, idle=0.2)

    monkeypatch.setattr(command, "measure", measure)
    monkeypatch.setattr(command, "sweep", lambda: None)
    wanted = plan(["blend"], [1, 8], [1])
    rows: list[matrix.Row] = []
    assert not command.run(wanted, rows, options)
    assert [one["machines"] for one in rows] == [1]
    assert "    failed: a worker died: no memory\n" in capsys.readouterr().out
    assert missing(wanted, rows) == [of(8)]


def test_what_does_not_fit_ends_the_command_before_it_measures(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "available_cores", lambda: 1)
    with pytest.raises(SystemExit, match=r"error: blend, 16 machines"):
        command.run([of(8), of(16)], [], options)
    assert not options.results.exists()
