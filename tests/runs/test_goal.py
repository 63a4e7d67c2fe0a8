"""When a run stops that nobody has told when to stop."""

from __future__ import annotations

from typing import Any

import pytest

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.runs.goal import default_threshold, with_default_stop
from tests.helpers import small
from tests.stories import PLAN


def test_gymnasium_says_from_when_on_a_task_is_solved() -> None:
    assert default_threshold(Environment(id="LunarLander-v3")) == 200.0
    assert default_threshold(Environment(id="envpool:LunarLander-v3")) == 200.0
    assert default_threshold(Environment(id="Pendulum-v1")) is None
    assert default_threshold(Environment(id="tests.environments:Bandit")) is None
    assert default_threshold(Environment(id="MoonLander-v3")) is None
    assert default_threshold(Environment(id="ALE/Pong-v5")) is None


def test_without_a_stop_a_run_ends_when_the_task_is_solved() -> None:
    experiment, words = with_default_stop(small())
    assert experiment.stop.mean_return == 475.0
    assert words == (
        "without a [stop] this run ends when the mean return over 100 episodes reaches 475, "
        "where CartPole-v1 counts as solved"
    )
    assert with_default_stop(experiment) == (experiment, "")  # it is said once
    own = Experiment.from_dict(small().to_dict() | {"solved": 30.0, "stop": {"window": 7}})
    assert with_default_stop(own)[0].stop.mean_return == 30.0
    assert "over 7 episodes reaches 30," in with_default_stop(own)[1]


@pytest.mark.parametrize(
    "sections",
    [{"stop": {limit: 9}} for limit in ("mean_return", "updates", "episodes", "steps", "seconds")]
    + [{"search": PLAN}],
    ids=str,
)
def test_a_stop_of_ones_own_and_a_search_stay(sections: dict[str, Any]) -> None:
    assert with_default_stop(small(**sections)) == (small(**sections), "")


def test_where_nobody_knows_a_run_says_that_it_never_ends() -> None:
    endless = small(environment={"id": "Pendulum-v1"})
    experiment, words = with_default_stop(endless)
    assert experiment == endless
    assert words == (
        "without a [stop] this run never ends, since nobody says when Pendulum-v1 counts as "
        "solved; end it with Ctrl-C, or give --set stop.seconds=600"
    )
