"""The pure parts of benchmarks/scaling: the table, the order, what rows come to, the link."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scaling import __main__ as command
from benchmarks.scaling import figures, matrix
from benchmarks.scaling.figures import Snapshot, first, remaining, scaling, training_means
from benchmarks.scaling.groups import quota
from benchmarks.scaling.matrix import CONTENDERS, Condition, cuts, missing, plan, problem, shares
from benchmarks.scaling.ours import experiment_of
from benchmarks.scaling.picture import figure, save
from benchmarks.scaling.relay import Way

MACHINES = [1, 2, 4, 8, 16]


def row(condition: Condition, seconds: float | None, steps: int = 1_000, **more: Any) -> matrix.Row:
    """A row that reached the goal when it ended; None: it never did, in 600 s."""
    return {
        **condition.as_row(),
        "seconds": seconds or 600.0,
        "steps": steps,
        "reached": None if seconds is None else {"seconds": seconds, "steps": steps},
        "use": [1.0] * condition.machines,
        "staleness": None,
        "wall": 700.0,
        **more,
    }


# The plan.


def test_many_and_few_machines_take_turns_and_every_second_seed_goes_backwards() -> None:
    order = plan(["blend"], MACHINES, [1, 2])
    assert [one.machines for one in order] == [16, 1, 8, 2, 4, 4, 2, 8, 1, 16]
    assert [one.seed for one in order] == [1] * 5 + [2] * 5


def test_contenders_alternate_and_nothing_is_measured_twice() -> None:
    order = plan(["blend", "ddp"], [1, 8], [1, 2, 3], ["none", "slow10"], ["none", "wifi"])
    assert [one.contender for one in order[:4]] == ["blend", "ddp"] * 2
    assert len(set(order)) == len(order)


def test_what_is_not_disturbed_by_it_is_not_measured_with_it() -> None:
    order = plan(CONTENDERS, [1, 8], [1], ["none", "slow10", "late"], ["none", "wifi"])
    disturbed = {one.contender for one in order if one.disturbance != "none"}
    assert disturbed == {"blend", "ddp", "ddp-each", "flower", "flower-long"}
    assert {one.contender for one in order if one.disturbance == "late"} == {"blend"}
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


# The first passage.


def snapshots(*means: float | None) -> list[Snapshot]:
    return [
        Snapshot(float(second), second * 100, mean, np.array([second], np.float32))
        for second, mean in enumerate(means)
    ]


def test_the_first_snapshot_that_reaches_the_goal() -> None:
    true = {2: 190.0, 3: 201.0, 4: 230.0}
    asked: list[tuple[int, int]] = []

    def judge(snapshot: Snapshot, episodes: int) -> tuple[float, float]:
        asked.append((int(snapshot.vector[0]), episodes))
        return true[int(snapshot.vector[0])], 50.0

    found = first(snapshots(None, 100.0, 160.0, 170.0, 250.0), 200.0, judge)
    assert found == {"seconds": 3.0, "steps": 300, "mean": 201.0, "std": 50.0}
    assert asked == [(2, 60), (2, 200), (2, 500), (3, 60), (3, 200), (3, 500)]


def test_a_lucky_look_is_no_passage() -> None:
    def judge(snapshot: Snapshot, episodes: int) -> tuple[float, float]:
        return (240.0 if episodes < 500 else 199.9), 50.0

    assert first(snapshots(230.0, 240.0), 200.0, judge) is None


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(-500, 300)), max_size=40).map(sorted),
    st.lists(st.floats(0, 100), min_size=1, max_size=5).map(sorted),
)
def test_training_means(episodes: list[tuple[float, float]], moments: list[float]) -> None:
    for moment, mean in zip(moments, training_means(episodes, moments, window=5), strict=True):
        ended = [value for end, value in episodes if end <= moment]
        if len(ended) < 5:
            assert mean is None
        else:
            assert mean == pytest.approx(sum(ended[-5:]) / 5, abs=1e-6)


# What rows come to.


def of(n: int, seed: int = 1, contender: str = "blend", disturbance: str = "none") -> Condition:
    return Condition(contender, n, seed, disturbance)


def test_speed_up_and_its_parts() -> None:
    rows = [row(of(1), 240.0, 240_000), row(of(8), 60.0, 360_000)]
    one, eight = scaling(rows)
    assert (one.speed_up, one.efficiency, one.pace, one.learning) == (1.0, 1.0, 1.0, 1.0)
    assert eight.speed_up == 4.0 and eight.efficiency == 0.5
    assert eight.pace == 0.75  # 6,000 steps a second instead of 8,000
    assert eight.learning == pytest.approx(2 / 3)  # 360,000 steps instead of 240,000


@given(*(st.integers(1, 10**6) for _ in range(4)), st.sampled_from([2, 4, 8, 16]))
def test_efficiency_is_pace_times_learning(
    seconds: int, steps: int, seconds_alone: int, steps_alone: int, n: int
) -> None:
    rows = [row(of(1), float(seconds_alone), steps_alone), row(of(n), float(seconds), steps)]
    _, many = scaling(rows)
    assert many.efficiency is not None and many.pace is not None and many.learning is not None
    assert many.efficiency == pytest.approx(many.pace * many.learning)


def test_a_seed_that_never_arrives_is_later_than_all_others() -> None:
    def median_of(*passages: float | None) -> float | None:
        (one,) = scaling([row(of(8, seed), value) for seed, value in enumerate(passages)])
        return one.seconds

    assert median_of(10.0, None, 30.0, None, 20.0) == 30.0
    assert median_of(10.0, None, None, None, 20.0) is None
    assert median_of(10.0, 20.0) == 20.0
    assert median_of(10.0, None) is None


def test_everybody_is_also_held_against_the_best_single_machine() -> None:
    rows = [
        row(of(1), 300.0),
        row(of(8), 100.0),
        row(of(1, contender="ddp"), 150.0),
        row(of(8, disturbance="slow10"), 120.0, use=[0.4, *[0.97] * 7]),
    ]
    found = {(one.contender, one.machines, one.disturbance): one for one in scaling(rows)}
    assert found["blend", 8, "none"].speed_up == 3.0
    assert found["blend", 8, "none"].against_best == 1.5
    assert found["blend", 8, "slow10"].speed_up == 2.5
    assert found["blend", 8, "slow10"].use == 0.97  # the slowed one does not count


def test_without_a_single_machine_there_is_no_speed_up() -> None:
    (eight,) = scaling([row(of(8), 60.0)])
    assert eight.seconds == 60.0
    assert eight.speed_up is None and eight.efficiency is None and eight.speed_ups == ()


def test_the_time_left() -> None:
    rows = [row(of(8), 1.0, wall=100.0), row(of(8, seed=2), 1.0, wall=200.0)]
    assert remaining([of(8, 3)], rows, limit=600.0) == 150.0
    assert remaining([of(8, 3, "ddp")], rows, limit=600.0) == 150.0  # as many machines
    assert remaining([of(1, 3), of(8, 3)], rows, limit=600.0) == 750.0
    assert remaining([], rows, limit=600.0) == 0.0


def test_staleness() -> None:
    assert figures.staleness([0, 1, 8]) == {"mean": 3.0, "median": 1, "most": 8}
    assert figures.staleness([]) is None


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


def test_what_does_not_fit_ends_the_command_before_it_measures(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "available_cores", lambda: 1)
    with pytest.raises(SystemExit, match=r"error: blend, 16 machines"):
        command.run([of(8), of(16)], [], options)
    assert not options.results.exists()


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    command.report([row(of(1), 240.0, 240_000), row(of(8), 60.0, 360_000), row(of(4), None)])
    _, one, four, eight = (line.split() for line in capsys.readouterr().out.splitlines())
    assert one[:7] == ["blend", "1", "none", "none", "1/1", "240.0", "240,000"]
    assert four[4:8] == ["0/1", "–", "–", "–"]
    assert eight[7:12] == ["4.00", "0.50", "0.75", "0.67", "4.00"]


def test_the_picture(tmp_path: Path) -> None:
    found = scaling([row(of(1), 240.0), row(of(8), 60.0), row(of(8, disturbance="slow10"), 90.0)])
    left, right = figure(found).get_axes()
    assert list(left.get_lines()[1].get_xydata().ravel()) == [1.0, 1.0, 8.0, 4.0]
    assert list(right.get_lines()[0].get_xydata().ravel()) == [1.0, 240.0, 8.0, 60.0]
    save(tmp_path / "picture.svg", found)
    assert "<svg" in (tmp_path / "picture.svg").read_text()
    save(tmp_path / "nothing.svg", scaling([row(of(8), None)]))
    assert not (tmp_path / "nothing.svg").exists()
