"""A trial's counts, and how updates are counted while children come and go."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Stop
from genkidama.errors import ProtocolError
from genkidama.protocol.shard import Shard
from genkidama.protocol.vector import DTYPE, Signature, Vector, length
from genkidama.server.rules.blend import Blend, Rule, RuleState, Update
from genkidama.server.rules.difference import Difference
from genkidama.server.rules.gradient import STALE, Gradient
from genkidama.server.trial import (
    BASELESS,
    ExchangePacing,
    ProgressCounter,
    SingleTrialRun,
    Trial,
    extended,
    limits_of,
    reached,
)
from tests.server.rules import contribution

INFINITY = math.inf

#: Two numbers that are trained, and a statistic.
PAIR = Signature.of([("weight", (2,)), ("statistics.returns", (1,))])


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
        assert position >= restart or tally.updates == float(exact)
    assert tally.exchanges == len(joined)


@given(st.floats(0.0, 1000.0), st.integers(1, 64))
@example(math.pi / 10.0, 1)
@example(1.0 - math.pi / 10.0, 1)
def test_updates_go_on_to_the_last_bit_from_any_checkpoint(updates: float, children: int) -> None:
    tally = ProgressCounter()
    tally.restore(7, updates, 0.0)
    tally.count(children)
    exact = Fraction(updates) + Fraction(1, children)
    assert abs(Fraction(tally.updates) - exact) <= exact / 2**52


def test_seconds_go_on_after_a_restart_and_begin_once() -> None:
    tally = ProgressCounter()
    tally.restore(exchanges=0, updates=0.0, seconds=5.0)
    assert tally.seconds(100.0) == 5.0
    tally.start(100.0)
    tally.start(110.0)
    assert tally.seconds(120.0) == 25.0


@given(st.lists(st.floats(-1e30, 1e30), max_size=40), st.integers(1, 5))
@example([0.0, 1e30, 1.0, 1.0], 2)
def test_the_mean_return_is_that_of_the_window(returns: list[float], window: int) -> None:
    """Every so many returns as the window holds, it is free of earlier rounding errors."""
    trial = Trial(window=window)
    assert trial.mean_return is None
    for count, value in enumerate(returns, 1):
        trial.add_returns([value])
        newest = returns[max(0, count - window) : count]
        assert list(trial.returns) == newest
        if count % window == 0:
            assert trial.mean_return == math.fsum(newest) / window
    trial.add_returns([*returns, *[1.0] * window])
    assert trial.mean_return == 1.0
    trial.clear_returns()
    assert trial.mean_return is None
    trial.add_returns([2.0])
    assert trial.mean_return == 2.0


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20))
def test_the_running_mean_at_decay_1_is_that_of_all_versions(values: list[float]) -> None:
    trial = Trial(window=1)
    for value in values:
        trial.apply(contribution(np.full(2, value, DTYPE)), "weights", Blend(1.0), 1.0)
    assert trial.average is not None
    assert trial.average.tolist() == pytest.approx([sum(values) / len(values)] * 2, abs=1e-3)
    assert trial.vector is not None
    assert trial.vector.tolist() == [values[-1]] * 2


def test_the_running_mean_at_decay_1_moves_after_millions_of_versions() -> None:
    trial = Trial(window=1, averaged=3_000_000)
    trial.average = np.ones(1, DTYPE)
    trial.vector = np.ones(1, DTYPE)
    for _ in range(3000):
        trial.apply(contribution(np.full(1, 1.1, DTYPE)), "weights", Blend(1.0), 1.0)
    assert trial.average is not None and trial.average.dtype == DTYPE
    assert trial.average[0] == pytest.approx(1.0 + 0.1 * 3000 / 3_003_000, abs=2e-7)


@pytest.mark.parametrize(
    ("decay", "expected"), [(0.75, [8.0, 4.0, 4.0, 3.0]), (0.4, [8.0, 3.2, 3.68, 1.472])]
)
def test_the_running_mean_forgets_below_1_and_is_none_at_0(
    decay: float, expected: list[float]
) -> None:
    trial = Trial(window=1)
    means = []
    for value in (8.0, 0.0, 4.0, 0.0):
        trial.apply(contribution(np.full(1, value, DTYPE)), "weights", Blend(1.0), decay)
        assert trial.average is not None
        means.append(float(trial.average[0]))
    assert means == pytest.approx(expected)
    without = Trial(window=1)
    without.apply(contribution(np.ones(1, DTYPE)), "weights", Blend(1.0), 0.0)
    assert without.average is None


class Acting(Blend):
    takes = "experience"


@pytest.mark.parametrize(
    ("kind", "rule", "left_out", "version"),
    [
        ("weights", Blend(1.0), None, 2),
        ("difference", Difference(1.0), None, 2),
        ("weights", Difference(1.0), BASELESS, 1),
        ("weights", Gradient(1.0), BASELESS, 1),
        ("gradient", Gradient(1.0, max_staleness=0), STALE, 1),
        ("work", Blend(1.0), "", 1),
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
    ("before", "kind", "rule", "words"),
    [
        (True, "difference", Blend(1.0), "pushes 'difference', the parent's rule takes 'weights'"),
        (True, "weights", Acting(1.0), "pushes 'weights', the parent's rule takes 'experience'"),
        (False, "difference", Blend(1.0), "has weights, and"),
    ],
)
def test_a_push_of_another_kind_is_refused(before: bool, kind: str, rule: Rule, words: str) -> None:
    trial = Trial(window=1)
    if before:
        trial.apply(contribution(np.ones(1, DTYPE)), "weights", rule, 0.0)
    kept = (trial.version, None if trial.vector is None else trial.vector.tolist())
    with pytest.raises(ProtocolError, match=words) as caught:
        trial.apply(contribution(np.ones(1, DTYPE)), kind, rule, 0.0)
    assert caught.value.code == "order"
    assert kept == (trial.version, None if trial.vector is None else trial.vector.tolist())


def test_work_alone_is_taken_before_there_are_weights() -> None:
    trial = Trial(window=1)
    assert trial.apply(contribution(np.ones(1, DTYPE)), "work", Blend(1.0), 0.5) == ""
    assert (trial.vector, trial.average, trial.version) == (None, None, 0)


class Settable(Rule):
    """A rule that makes of θ_P and of its own memory what it is told."""

    takes = "difference"

    def __init__(self) -> None:
        self.makes: Vector | None = None
        self.far = INFINITY
        self.kept = np.zeros((1, 2), DTYPE)

    def apply(self, parent: Vector, push: Update) -> None:
        if self.makes is not None:
            parent[:] = self.makes
            self.kept[:] = push.vector[0]

    def moved(self) -> float:
        return self.far

    def state(self) -> RuleState:
        return {"kept": self.kept}

    def restore(self, state: RuleState) -> None:
        self.kept = state.get("kept", np.zeros((1, 2), DTYPE))


def begun(rule: Rule, *numbers: float) -> Trial:
    """A trial whose θ_P is these numbers, the last one a statistic."""
    trial = Trial(window=1)
    trial.apply(contribution(np.array(numbers, DTYPE), statistics=1), "weights", rule, 0.0)
    return trial


def test_all_of_the_weights_are_looked_at_only_where_steps_may_have_added_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[list[float]] = []

    def look(vector: Vector) -> float:
        looks.append(vector.tolist())
        return length(vector)

    monkeypatch.setattr("genkidama.server.trial.length", look)
    rule = Settable()
    trial = begun(rule, 1.0, 1.0, 1.0, 7.0)
    for moved, long, looked in [
        (1.0, 1.0, True),  # nothing is known of the weights yet
        (9e17, 1e6, False),
        (9e17, 1.0, True),  # together they may have gone further than 1e18
        (9e17, 1.0, False),
        (1e17, 1.0, True),
        (9e17, 1.0, False),
        (0.0, 1.1e6, True),  # a push that no honest child sends
        (9e17, 1.0, False),
    ]:
        rule.far = moved
        push = contribution(np.zeros(4, DTYPE), statistics=1, length=long)
        assert trial.apply(push, "difference", rule, 0.0) is None
        assert looks == [[1.0] * 3] * looked
        looks.clear()


@pytest.mark.parametrize(
    ("makes", "kept", "long", "words"),
    [
        ([4, 5, 6], 1.0, 2e6, ""),
        ([4, 5, 6], 1.0, 1.0, ""),
        ([4, 5, 6], INFINITY, 2e6, "it is taken back"),
        ([INFINITY, 5, 6], 1.0, 2e6, "it is taken back"),
        ([4, 5, math.nan], 1.0, 2e6, "it is taken back"),
        ([INFINITY, 5, 6], 1.0, 1.0, "θ_P goes back to what it was at version 1"),
        ([4, 5, -INFINITY], 1.0, 1.0, "θ_P goes back to what it was at version 1"),
    ],
)
def test_what_makes_infinity_of_the_weights_or_the_memory_changes_nothing(
    makes: list[float], kept: float, long: float, words: str
) -> None:
    rule = Settable()
    trial = begun(rule, 1.0, 2.0, 3.0)
    rule.makes = np.array(makes, DTYPE)
    push = contribution(np.full(3, kept, DTYPE), statistics=1, length=long)
    if words:
        with pytest.raises(ProtocolError, match=f"NaN or infinity of θ_P; {words}$") as caught:
            trial.apply(push, "difference", rule, 0.0)
        assert caught.value.code == "finite"
    else:
        assert trial.apply(push, "difference", rule, 0.0) is None
    assert trial.vector is not None
    assert trial.vector.tolist() == ([1.0, 2.0, 3.0] if words else makes)
    assert rule.kept.tolist() == [[0.0 if words else kept] * 2]
    assert trial.version == 2 - bool(words)


@pytest.mark.parametrize(
    ("average", "after"), [(None, None), ([5.0, 6.0], [5.0, 6.0]), ([5.0, math.nan], None)]
)
def test_who_goes_back_keeps_a_mean_that_is_sound(
    average: list[float] | None, after: list[float] | None
) -> None:
    trial, rule = begun(Settable(), 1.0, 2.0), Settable()
    trial.average = None if average is None else np.array(average, DTYPE)
    trial.backup = (np.array([8.0, 9.0], DTYPE), {"kept": np.ones((1, 2), DTYPE)}, 3)
    assert trial.go_back(rule) == "θ_P goes back to what it was at version 3"
    assert trial.vector is not None
    assert (trial.vector.tolist(), rule.kept.tolist()) == ([8.0, 9.0], [[1.0, 1.0]])
    assert (None if trial.average is None else trial.average.tolist()) == after


@pytest.mark.parametrize(
    ("weights", "average", "kept", "sound"),
    [
        (None, None, 0.0, True),
        (1.0, None, 0.0, True),
        (1.0, 1.0, 0.0, True),
        (math.nan, None, 0.0, False),
        (INFINITY, 1.0, 0.0, False),
        (1.0, -INFINITY, 0.0, False),
        (1.0, 1.0, math.nan, False),
    ],
)
def test_a_trial_is_sound_where_all_that_a_checkpoint_holds_is_finite(
    weights: float | None, average: float | None, kept: float, sound: bool
) -> None:
    trial, rule = Trial(window=1), Settable()
    trial.vector = None if weights is None else np.full(2, weights, DTYPE)
    trial.average = None if average is None else np.full(2, average, DTYPE)
    rule.kept[0, 1] = kept
    assert trial.is_sound(rule) is sound


@pytest.mark.parametrize(
    ("part", "held"),
    [
        (Shard(1, 1), [("weight", (2,)), ("statistics.returns", (1,))]),
        (Shard(1, 2), [("weight", (1,))]),
        (Shard(2, 2), [("weight", (1,)), ("statistics.returns", (1,))]),
    ],
)
def test_a_checkpoint_of_a_part_says_what_the_whole_network_is(
    part: Shard, held: list[tuple[str, tuple[int, ...]]]
) -> None:
    experiment = Experiment().to_dict()
    for signature in (None, PAIR):
        trial = Trial(window=1, experiment=experiment, signature=signature, part=part)
        snapshot = trial.snapshot(exchanges=0, updates=0.0, seconds=0.0)
        assert snapshot.part == str(part)
        told = signature is not None and part.count > 1
        assert snapshot.whole == ([*PAIR.entries] if told else [])
    assert trial.held.entries == tuple(held)
    assert SingleTrialRun(Experiment(), part=part).trial.part is part


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
    ("steps", "exchange", "told"),
    [(100, "free", 100), (0, "free", 0), (100, "episode", 0), (100, "update", 0)],
)
def test_children_are_told_how_much_to_bring_where_exchange_steps_says_so(
    steps: int, exchange: str, told: int
) -> None:
    subject = SingleTrialRun(
        Experiment.from_dict(
            {"child": {"exchange": exchange, "exchange_steps": steps, "exchange_seconds": 1.0}}
        )
    )
    for second in (1.0, 2.0, 3.0):
        subject.pushed(subject.trial, second, "a", 50)
    assert subject.share("a", 1) == told
    subject.vanished("a", 4.0)
    assert subject.share("a", 1) == 0


def test_a_rule_that_says_how_much_to_bring_is_asked_first() -> None:
    class Asking(Blend):
        def share(self, child: str, children: int) -> int:
            return 7 * children if child == "a" else 0

    child = {"exchange": "free", "exchange_steps": 100}
    subject = SingleTrialRun(Experiment.from_dict({"child": child}), Asking(0.5))
    for second in (1.0, 2.0, 3.0):
        for name in "ab":
            subject.pushed(subject.trial, second, name, 50)
    assert (subject.share("a", 2), subject.share("b", 2)) == (14, 100)


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
        ({"episodes": 7}, "7 episodes done"),
        ({"steps": 40}, "40 steps done"),
        ({"steps": 31}, "31 steps done"),
        ({"seconds": 4.0}, "4 seconds are over"),
        ({"seconds": 3.5}, "3.5 seconds are over"),
        ({"updates": 2, "mean_return": -1.0, "window": 9}, "2 exchanges a child done"),
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
    subject = run(mean_return=1, window=300)
    exchange(subject, *[1.0] * 300)
    assert subject.over(11.0) == "mean return 1.0 over 300 episodes reached 1"


counts = st.integers(0, 3)


@given(
    st.tuples(*[st.none() | st.integers(1, 3)] * 5), st.none() | counts, st.tuples(*[counts] * 4)
)
def test_the_first_limit_that_is_reached_is_the_reason(
    limits: tuple[int | None, ...], mean: int | None, done: tuple[int, int, int, int]
) -> None:
    names = ("mean_return", "updates", "episodes", "steps", "seconds")
    sentences = {
        "mean_return": "mean return {done}.0 over 100 episodes reached {limit}",
        "updates": "{limit} exchange{s} a child done",
        "episodes": "{limit} episode{s} done",
        "steps": "{limit} step{s} done",
        "seconds": "{limit} seconds are over",
    }
    reasons = [
        sentences[name].format(limit=limit, done=count, s="s" * (limit != 1))
        for name, limit, count in zip(names, limits, (mean, *done), strict=True)
        if limit is not None and count is not None and count >= limit
    ]
    stop = Stop(**dict(zip(names, limits, strict=True)))  # type: ignore[arg-type]
    assert reached(stop, mean, *done) == (reasons[0] if reasons else "")


@pytest.mark.parametrize("stop", [{"updates": 1}, {"mean_return": 1.0, "window": 1}])
def test_only_the_first_part_of_a_parent_ends_the_run(stop: dict[str, Any]) -> None:
    for number in (1, 2):
        experiment = Experiment.from_dict({"stop": stop})
        subject = SingleTrialRun(experiment, part=Shard(number, 2))
        exchange(subject, 5.0)
        assert bool(subject.over(11.0)) == (number == 1)


def test_limits_that_are_extended_stay_whole_numbers_where_they_count() -> None:
    stop = Stop(updates=3, episodes=5, steps=7, seconds=1.5, mean_return=9.0)
    longer = extended(stop, 0.5)
    assert limits_of(longer) == {"updates": 5, "episodes": 8, "steps": 11, "seconds": 2.25}
    assert longer.mean_return == 9.0
    assert limits_of(extended(Stop(steps=7), 10.0)) == {"steps": 77}


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


@pytest.mark.parametrize("limit", ["updates", "episodes", "steps", "seconds"])
def test_it_says_how_far_it_has_come_to_a_limit_of_any_kind(limit: str) -> None:
    subject = run(**{limit: 1})
    exchange(subject, 7.0)
    subject.trial.steps = 1
    assert subject.describe(1, 11.0) == "1 child, version 1, mean return 7.0, 100 %"


@given(st.lists(st.floats(10.0, 10_000.0), min_size=1, max_size=6), st.integers(200, 5000))
def test_children_of_any_speeds_come_equally_often(speeds: list[float], steps: int) -> None:
    """Each pushes as soon as it has made the steps that it was told."""
    arrivals = ExchangePacing(steps)
    told = [steps] * len(speeds)
    due = [steps / speed for speed in speeds]
    came = [0] * len(speeds)
    for _ in range(40 * len(speeds)):
        child = due.index(min(due))
        arrivals.speeds.note(str(child), told[child], due[child])
        told[child] = arrivals.share(str(child)) or steps
        came[child] += 1
        due[child] += told[child] / speeds[child]
    known = [child for child, count in enumerate(came) if count > 2]
    mean = sum(speeds[child] for child in known) / len(known)
    for child in known:
        told = arrivals.share(str(child))
        assert told == pytest.approx(max(1, steps * speeds[child] / mean), abs=0.51, rel=1e-6)
