"""What rows of studies/scaling come to, and how that is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.scaling import __main__ as command
from studies.scaling import figures
from studies.scaling.figures import remaining, scaling, training_means
from studies.scaling.picture import figure, save
from tests.studies.rows import of, row

# Training means.


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
