"""When a plain run is over, and how much of it is done; the test counts the exchanges."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.server.rules.blend import Blend
from genkidama.server.trial import SingleTrialRun


def run(**stop: Any) -> SingleTrialRun:
    """A run that began at 10 seconds."""
    run = SingleTrialRun(Experiment.from_dict({"stop": stop}))
    run.tally.start(10.0)
    return run


def exchange(run: SingleTrialRun, *returns: float, children: int = 1) -> None:
    """A child pushes the work of these episodes."""
    run.tally.count(children)
    run.trial.version += 1
    run.trial.episodes += len(returns)
    run.trial.add_returns(list(returns))


@pytest.mark.parametrize(
    ("steps", "exchange", "told"), [(100, "free", 100), (0, "free", 0), (100, "episode", 0)]
)
def test_children_are_told_how_much_to_bring_where_exchange_steps_says_so(
    steps: int, exchange: str, told: int
) -> None:
    subject = SingleTrialRun(
        Experiment.from_dict(
            {"child": {"exchange": exchange, "exchange_steps": steps, "exchange_seconds": 1.0}}
        )
    )
    for second in (1.0, 2.0):
        subject.pushed(subject.trial, second, "a", 50)
    assert subject.share("a", 1) == told
    subject.vanished("a", 3.0)
    assert subject.share("a", 1) == 0


def test_all_children_train_the_one_trial_by_the_documented_rule() -> None:
    subject = SingleTrialRun(Experiment.from_dict({"parent": {"alpha": 0.25}}))
    assert isinstance(subject.rule, Blend)
    assert subject.rule.alpha == 0.25
    assert subject.assign("a", 0.0, None) is subject.assign("b", 0.0, 3) is subject.trial
    assert subject.owns("a", subject.trial)
    assert subject.owns("b", subject.trial)
    subject.left("a", subject.trial, True, "no memory", 1.0)
    subject.vanished("b", 1.0)
    assert not subject.trial.stop


def test_it_is_over_after_so_many_updates() -> None:
    subject = run(updates=2)
    for _ in range(3):
        exchange(subject, children=2)
    assert subject.over(11.0) == ""
    exchange(subject, children=2)
    assert subject.over(11.0) == "2 updates done"


def test_it_is_over_after_so_many_episodes() -> None:
    subject = run(episodes=5)
    exchange(subject, 0.0, 0.0, 0.0, 0.0)
    assert subject.over(11.0) == ""
    exchange(subject, 0.0)
    assert subject.over(11.0) == "5 episodes done"


def test_it_is_over_after_so_many_environment_steps() -> None:
    subject = run(steps=100)
    subject.trial.steps = 99
    assert subject.over(11.0) == ""
    subject.trial.steps = 100
    assert subject.over(11.0) == "100 steps done"


def test_it_is_over_after_so_many_seconds() -> None:
    subject = run(seconds=2.5)
    assert (subject.over(12.4), subject.over(12.5)) == ("", "2.5 seconds are over")


def test_it_is_over_at_a_mean_return_over_a_full_window() -> None:
    subject = run(mean_return=200, window=3)
    exchange(subject, 500.0, 500.0)
    assert subject.over(11.0) == ""  # two episodes are no window of three
    exchange(subject, -401.0)
    assert subject.over(11.0) == ""  # 199.67
    exchange(subject, 501.0)
    assert subject.over(11.0) == "mean return 200.0 over 3 episodes reached 200"


def test_without_conditions_it_never_ends() -> None:
    subject = run()
    for _ in range(50):
        exchange(subject, 1e30)
    assert subject.over(1e12) == ""
    assert subject.progress(subject.trial, 1e12) == 0.0


@pytest.mark.parametrize(
    ("stop", "progress"),
    [
        ({"updates": 8}, 0.25),
        ({"episodes": 8}, 0.5),
        ({"seconds": 5}, 0.8),
        ({"updates": 8, "episodes": 5, "seconds": 8}, 0.8),
        ({"seconds": 3}, 1.0),
        ({"steps": 40, "seconds": 8}, 0.75),
        ({"mean_return": 1}, 0.0),
    ],
)
def test_progress_is_that_of_the_strictest_condition(stop: dict[str, Any], progress: float) -> None:
    subject = run(**stop)
    exchange(subject, 0.0, 0.0)
    exchange(subject, 0.0, 0.0)
    subject.trial.steps = 30
    assert subject.progress(subject.trial, 14.0) == progress


@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=30),
)
def test_progress_never_goes_back_and_is_whole_when_a_count_ends_the_run(
    updates: int, episodes: int, exchanges: list[tuple[int, int]]
) -> None:
    subject = run(updates=updates, episodes=episodes)
    before = 0.0
    for played, children in exchanges:
        exchange(subject, *[0.0] * played, children=children)
        progress = subject.progress(subject.trial, 11.0)
        assert before <= progress <= 1.0
        assert bool(subject.over(11.0)) == (progress == 1.0)
        before = progress


def test_it_describes_itself_in_a_few_words() -> None:
    subject = run(updates=4)
    assert subject.describe(0, 11.0) == "0 children, version 0, 0 %"
    exchange(subject, 201.25)
    assert subject.describe(1, 11.0) == "1 child, version 1, mean return 201.2, 25 %"
    assert run().describe(2, 11.0) == "2 children, version 0"
