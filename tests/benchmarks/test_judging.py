"""Policies are judged in Gymnasium's environment, and when the first of them reached a goal."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.judging import Judge, Snapshot, first
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.runs.evaluation_worker import play
from tests.helpers import small


@pytest.mark.slow
def test_a_policy_of_envpools_is_judged_in_gymnasiums_by_the_same_episodes() -> None:
    """EnvPool's own options say how it computes, and Gymnasium does not take them."""
    environment = make_environment(small().environment)
    model = Model(small(), environment)
    snapshot = Snapshot(0.0, 0, None, model.numbers.copy())
    theirs = small(environment={"id": "envpool:CartPole-v1", "options": {"num_threads": 2}})
    with Judge(theirs, 7) as judge:
        mean, deviation = judge(snapshot, 5)
        assert judge(snapshot, 5) == (mean, deviation)
    returns = play(model, environment, range(5), 7, greedy=False)
    assert mean == pytest.approx(sum(returns) / 5)
    assert deviation > 0


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
