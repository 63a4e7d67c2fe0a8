"""Policies are judged in Gymnasium's environment, whatever they were trained in."""

from __future__ import annotations

import pytest

from benchmarks.scaling.figures import Snapshot
from benchmarks.scaling.judging import Judge
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.learning.play import play
from tests.helpers import small


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
