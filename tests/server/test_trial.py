"""A trial's counts, and how updates are counted while children come and go."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.errors import ProtocolError
from genkidama.protocol.vector import DTYPE
from genkidama.server.rules.blend import Blend, Rule
from genkidama.server.rules.difference import Difference
from genkidama.server.rules.gradient import STALE, Gradient
from genkidama.server.trial import BASELESS, ExchangePacing, ProgressCounter, SingleTrialRun, Trial
from tests.server.rules import contribution


def restored(tally: ProgressCounter) -> ProgressCounter:
    """What a checkpoint makes of it."""
    after = ProgressCounter()
    kept = msgspec.json.decode(msgspec.json.encode((tally.exchanges, tally.updates, 0.0)))
    after.restore(*kept)
    return after


@given(st.integers(1, 1024), st.integers(0, 200), st.integers(0, 200))
def test_of_the_same_children_updates_are_exchanges_by_children_to_the_bit(
    children: int, before: int, after: int
) -> None:
    tally = ProgressCounter()
    for _ in range(before):
        tally.count(children)
    tally = restored(tally)
    for _ in range(after):
        tally.count(children)
    assert tally.exchanges == before + after
    assert tally.updates == (before + after) / children


def test_2000_updates_of_3_children_are_6000_exchanges_exactly() -> None:
    tally = ProgressCounter()
    for exchange in range(1, 6001):
        tally.count(3)
        if exchange % 997 == 0:
            tally = restored(tally)
        assert (tally.updates >= 2000) == (exchange == 6000)


@given(st.lists(st.integers(1, 64), max_size=60), st.integers(0, 60))
def test_an_exchange_is_one_by_the_children_that_take_part(joined: list[int], restart: int) -> None:
    tally, exact = ProgressCounter(), Fraction(0)
    for position, children in enumerate(joined):
        if position == restart:
            tally = restored(tally)
            exact = Fraction(tally.updates) if float(exact) == tally.updates else exact
        before = tally.updates
        tally.count(children)
        assert tally.updates > before
        exact += Fraction(1, children)
        assert abs(Fraction(tally.updates) - exact) < Fraction(1, 10**9)
    assert tally.exchanges == len(joined)


def test_an_old_checkpoint_goes_on_with_the_updates_that_it_says() -> None:
    # Before, updates were all exchanges divided by the children that ever pushed.
    tally = ProgressCounter()
    tally.restore(exchanges=301, updates=301 / 7, seconds=9.0)
    assert (tally.exchanges, tally.updates, tally.seconds(100.0)) == (301, 43.0, 9.0)
    tally.count(2)
    assert (tally.exchanges, tally.updates) == (302, 43.5)


def test_seconds_go_on_after_a_restart_and_begin_once() -> None:
    tally = ProgressCounter()
    tally.restore(exchanges=0, updates=0.0, seconds=5.0)
    assert tally.seconds(100.0) == 5.0
    tally.start(100.0)
    tally.start(110.0)
    assert tally.seconds(120.0) == 25.0


@given(st.lists(st.floats(-1e30, 1e30), max_size=40), st.integers(1, 5))
def test_the_mean_return_is_that_of_the_window(returns: list[float], window: int) -> None:
    trial = Trial(window=window)
    assert trial.mean_return is None
    for value in returns:
        trial.add_returns([value])
    assert list(trial.returns) == returns[-window:]


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20))
def test_the_running_mean_at_decay_1_is_that_of_all_versions(values: list[float]) -> None:
    trial = Trial(window=1)
    for value in values:
        trial.apply(contribution(np.full(2, value, DTYPE)), "weights", Blend(1.0), 1.0)
    assert trial.average is not None
    assert trial.average.tolist() == pytest.approx([sum(values) / len(values)] * 2, abs=1e-3)
    assert trial.vector is not None
    assert trial.vector.tolist() == [values[-1]] * 2


def test_the_running_mean_forgets_below_1_and_is_none_at_0() -> None:
    trial = Trial(window=1)
    means = []
    for value in (8.0, 0.0, 4.0, 0.0):
        trial.apply(contribution(np.full(1, value, DTYPE)), "weights", Blend(1.0), 0.75)
        assert trial.average is not None
        means.append(float(trial.average[0]))
    assert means == pytest.approx([8.0, 4.0, 4.0, 3.0])
    without = Trial(window=1)
    without.apply(contribution(np.ones(1, DTYPE)), "weights", Blend(1.0), 0.0)
    assert without.average is None


@pytest.mark.parametrize(
    ("kind", "rule", "left_out", "version"),
    [
        ("weights", Blend(1.0), None, 2),
        ("difference", Difference(1.0), None, 2),
        ("weights", Difference(1.0), BASELESS, 1),
        ("gradient", Gradient(1.0, max_staleness=0), STALE, 1),
    ],
)
def test_what_is_left_out_makes_no_version(
    kind: str, rule: Rule, left_out: str | None, version: int
) -> None:
    trial = Trial(window=1)
    assert trial.apply(contribution(np.ones(1, DTYPE)), "weights", rule, 0.5) is None
    push = contribution(np.full(1, 3.0, DTYPE), staleness=1)
    assert trial.apply(push, kind, rule, 0.5) == left_out
    assert trial.version == version
    assert trial.vector is not None
    assert (trial.vector.tolist() == [1.0]) == (left_out is not None)


@pytest.mark.parametrize(
    ("before", "words"),
    [(True, "pushes 'difference', the parent's rule takes 'weights'"), (False, "has weights, and")],
)
def test_a_push_of_another_kind_is_refused(before: bool, words: str) -> None:
    trial = Trial(window=1)
    if before:
        trial.apply(contribution(np.ones(1, DTYPE)), "weights", Blend(1.0), 0.0)
    kept = (trial.version, None if trial.vector is None else trial.vector.tolist())
    with pytest.raises(ProtocolError, match=words) as caught:
        trial.apply(contribution(np.ones(1, DTYPE)), "difference", Blend(1.0), 0.0)
    assert caught.value.code == "order"
    assert kept == (trial.version, None if trial.vector is None else trial.vector.tolist())


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


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ({"updates": 2}, "2 exchanges a child done"),
        ({"episodes": 8}, "8 episodes done"),
        ({"steps": 40}, "40 steps done"),
        ({"seconds": 4.0}, "4 seconds are over"),
    ],
)
def test_it_is_over_when_a_count_is_reached(stop: dict[str, Any], reason: str) -> None:
    subject = run(**stop)
    for number in range(1, 5):
        assert subject.over(9.0 + number) == ""
        exchange(subject, 0.0, 0.0, children=2)
        subject.trial.steps += 10
    assert subject.over(14.0) == reason


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


def test_nothing_is_said_before_a_childs_speed_is_known() -> None:
    arrivals = ExchangePacing(100)
    arrivals.note("a", 50, 1.0)
    assert arrivals.share("a") == 0
    arrivals.note("a", 50, 2.0)
    assert arrivals.share("a") == 100
    assert arrivals.share("b") == 0
    arrivals.forget("a")
    assert arrivals.share("a") == 0


@given(st.lists(st.floats(10.0, 10_000.0), min_size=1, max_size=6), st.integers(200, 5000))
def test_children_of_any_speeds_come_equally_often(speeds: list[float], steps: int) -> None:
    """Each pushes as soon as it has made the steps that it was told."""
    arrivals = ExchangePacing(steps)
    told = [steps] * len(speeds)
    due = [steps / speed for speed in speeds]
    came = [0] * len(speeds)
    for _ in range(40 * len(speeds)):
        child = due.index(min(due))
        arrivals.note(str(child), told[child], due[child])
        told[child] = arrivals.share(str(child)) or steps
        came[child] += 1
        due[child] += told[child] / speeds[child]
    known = [child for child, count in enumerate(came) if count > 1]
    mean = sum(speeds[child] for child in known) / len(known)
    for child in known:
        told = arrivals.share(str(child))
        assert told == pytest.approx(max(1, steps * speeds[child] / mean), abs=0.51, rel=1e-6)


def test_a_child_that_grows_slower_is_told_less() -> None:
    arrivals = ExchangePacing(100)
    now = 0.0
    for _ in range(30):
        now += 1.0
        arrivals.note("a", 100, now)
        arrivals.note("b", 100, now)
    assert (arrivals.share("a"), arrivals.share("b")) == (100, 100)
    for _ in range(40):
        now += 1.0
        arrivals.note("a", 10, now)
        arrivals.note("b", 100, now)
    assert arrivals.share("a") == pytest.approx(18, abs=1)
    assert arrivals.share("b") == pytest.approx(182, abs=1)
