"""Environments with a clock: ticks, late steps, percentiles, and the safe action."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.environments import make_environment
from genkidama.learning.real_time import RealTime
from genkidama.protocol.diagnostics import CYCLE_COUNTS

PERIOD = 0.02


class Machine(gymnasium.Env[Any, Any]):
    """Notes its actions; each pays 1, and an episode ends after `length` of them."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, length: int = 10_000, truncates: bool = False) -> None:
        self.taken: list[Any] = []
        self.length, self.truncates = length, truncates
        self.happened = threading.Condition()

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self.left = self.length
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        with self.happened:
            self.taken.append(int(action))
            self.left -= 1
            self.happened.notify_all()
        over = self.left == 0
        terminated, truncated = over and not self.truncates, over and self.truncates
        return np.full(1, len(self.taken), np.float32), 1.0, terminated, truncated, {}

    def wait(self, ready: Callable[[], bool]) -> None:
        with self.happened:
            assert self.happened.wait_for(ready, 20.0)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def timed(clock: Clock, **settings: Any) -> tuple[RealTime, np.ndarray, np.ndarray]:
    environment = Environment(period=PERIOD, **settings)
    made = RealTime(Machine(), environment, clock.now, clock.sleep)
    counts, answered = np.zeros(CYCLE_COUNTS, np.int64), np.full(1, clock.time)
    made.report(counts, answered, np.zeros(1, np.bool_))
    made.reset()
    return made, counts, answered


@given(st.lists(st.floats(0.0, 0.1), min_size=1, max_size=60))
def test_a_step_begins_at_its_tick_or_as_soon_as_its_action_is_there(delays: list[float]) -> None:
    clock = Clock()
    made, counts, _ = timed(clock)
    due, late, before, cycles = clock.time + PERIOD, 0, clock.time, []
    for delay in delays:
        clock.sleep(delay)
        expected = max(due, clock.time)
        made.step(1)
        assert clock.time == pytest.approx(expected, abs=1e-9)
        late += clock.time - due > 0.1 * PERIOD + 1e-9
        due = max(due, clock.time - 0.1 * PERIOD) + PERIOD
        cycles.append(clock.time - before)
        before = clock.time
    assert counts[-2:].tolist() == [late, 0]
    assert counts[:-2].sum() == len(delays)
    # Nothing is made up for by a burst.
    assert min(cycles[1:], default=PERIOD) >= 0.9 * PERIOD - 1e-9


@pytest.mark.parametrize("pace", [0.98, 1.0, 1.02])
def test_a_machine_with_a_clock_of_its_own_is_in_time_for_hours(pace: float) -> None:
    class Own(Machine):
        keeps_time = True

    clock = Clock()
    settings = Environment(period=PERIOD, safe_action=(2.0,), safe_seconds=BOUND)
    made = RealTime(machine := Own(), settings, clock.now, clock.sleep)
    made.report(counts := np.zeros(CYCLE_COUNTS, np.int64), np.zeros(1), np.zeros(1, np.bool_))
    made._guard = threading.current_thread()
    made.reset()
    for _ in range(5000):
        clock.sleep(pace * PERIOD)  # the machine asks
        made.step(1)
    assert counts[-2:].tolist() == [0, 0]
    made._closed = Waits(clock, {})  # type: ignore[assignment]
    made._watch()
    assert machine.taken[5000:] == [2] * 7  # from the bound on, at each tick


def test_with_a_silent_parent_the_safe_action_is_taken() -> None:
    clock = Clock()
    made, counts, answered = timed(clock, safe_action=(2.0,), offline_seconds=1.0)
    for _ in range(60):
        made.step(0)
    assert made.unwrapped.taken == [0] * 50 + [2] * 10
    answered[0] = clock.time
    made.step(1)
    assert made.unwrapped.taken[-1] == 1
    assert counts[-1] == 10


@pytest.mark.parametrize("go_on", [lambda made: made.step(1), lambda made: made.reset()])
def test_what_the_thread_is_raised_is_raised_to_the_policy_and_safe_actions_go_on(
    go_on: Callable[[RealTime], Any],
) -> None:
    class Shaky(Machine):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            result = super().step(action)
            if len(self.taken) == 2:
                raise OSError("the bus is gone")
            return result

    settings = Environment(period=0.005, safe_action=(2.0,), safe_seconds=0.02)
    made = RealTime(machine := Shaky(), settings)
    made.reset()
    machine.wait(lambda: len(machine.taken) >= 4)
    with pytest.raises(OSError, match="the bus is gone"):
        go_on(made)
    before = len(machine.taken)
    machine.wait(lambda: len(machine.taken) > before)
    go_on(made)  # it is raised once
    made.close()


def test_the_thread_leaves_a_tick_to_a_policy_that_waits_for_it() -> None:
    """Otherwise the thread, if it wakes first, could take each next tick, too."""
    clock, turns = Clock(), 0

    class OneTurn:
        """In place of the event that ends the thread: its loop is run once."""

        asked = False

        def wait(self, seconds: float) -> bool:
            self.asked = not self.asked
            return not self.asked

    def sleep(seconds: float) -> None:
        nonlocal turns
        turns += 1
        assert turns < 5
        clock.sleep(seconds)
        made._watch()

    settings = Environment(period=PERIOD, safe_action=(2.0,), safe_seconds=PERIOD / 2)
    made = RealTime(machine := Machine(), settings, clock.now, sleep)
    made._guard, made._closed = threading.current_thread(), OneTurn()  # type: ignore[assignment]
    made.reset()
    clock.sleep(1.5 * PERIOD)
    made._watch()  # the policy is late
    made.step(1)
    assert machine.taken == [2, 2]


def test_after_an_interrupted_wait_the_thread_takes_the_ticks() -> None:
    clock, taken = Clock(), threading.Event()

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    class Told(Machine):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            taken.set()
            return super().step(action)

    settings = Environment(period=PERIOD, safe_action=(2.0,), safe_seconds=PERIOD / 2)
    made = RealTime(Told(), settings, clock.now, interrupt)
    made.reset()
    with pytest.raises(KeyboardInterrupt):
        made.step(1)
    clock.sleep(1.5 * PERIOD)
    assert taken.wait(5.0)
    made.close()


BOUND = 0.5


class Slow(Machine):
    """A machine whose step takes 0.3 s of the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock.sleep(0.3)
        return super().step(action)


@pytest.mark.parametrize(
    ("thought", "taken"), [(0.0, 1), (0.4, 1), (BOUND - 1e-6, 1), (BOUND + 1e-6, 2), (0.6, 2)]
)
def test_an_action_is_refused_when_its_observation_is_older_than_the_bound(
    thought: float, taken: int
) -> None:
    clock = Clock()
    settings = Environment(period=PERIOD, safe_action=(2.0,), safe_seconds=BOUND)
    made = RealTime(machine := Slow(clock), settings, clock.now, clock.sleep)
    made._guard = threading.current_thread()  # no thread: it is the policy's step that looks
    made.reset()
    for step in range(1, 4):  # of the first observation, and of those that a step gives
        clock.sleep(thought)
        made.step(1)
        assert machine.taken == [taken] * step
        if taken == 1:
            assert made._observed == clock.time  # the observation is as new as the step's end


class Waits:
    """In place of the event that ends the thread: notes its waits, and what happens meanwhile.

    Args:
        happens: by the number of the wait: the share of it that passes, and a call.
    """

    def __init__(self, clock: Clock, happens: dict[int, tuple[float, Callable[[], Any]]]) -> None:
        self.clock, self.happens = clock, happens
        self.waited: list[float] = []

    def wait(self, seconds: float) -> bool:
        share, call = self.happens.get(len(self.waited), (1.0, lambda: None))
        self.waited.append(seconds)
        self.clock.sleep(share * seconds)
        call()
        return len(self.waited) == 8


def begun(machine: Machine, **limits: float) -> tuple[RealTime, Clock]:
    """A machine with a clock, in whose thread's place is the test, and its first episode begins."""
    clock = Clock()
    limits = limits or {"safe_seconds": BOUND}
    settings = Environment(period=PERIOD, safe_action=(2.0,), **limits)
    made = RealTime(machine, settings, clock.now, clock.sleep)
    made._guard = threading.current_thread()
    made.reset()
    return made, clock


def test_the_thread_waits_for_the_bound_and_then_for_each_tick() -> None:
    made, clock = begun(machine := Machine())
    results: list[Any] = []
    happens = {
        2: (0.5, lambda: None),  # it wakes early, and takes no action before the tick
        4: (1.0, lambda: results.append(made.step(1))),
        5: (0.4, lambda: results.append(made.step(1))),
    }
    made._closed = waits = Waits(clock, happens)  # type: ignore[assignment]
    made._watch()
    after_late = 0.9 * PERIOD  # the next tick, if the policy was late
    expected = [BOUND, after_late, PERIOD, PERIOD / 2, PERIOD, BOUND, BOUND, after_late]
    assert waits.waited == pytest.approx(expected)
    # The late policy's step takes the safe action once more, and has earned all; the next is in
    # time. Then it is late again.
    assert machine.taken == [2, 2, 2, 2, 1, 2]
    assert [result[1] for result in results] == [4.0, 1.0]


def test_the_thread_takes_safe_actions_for_a_policy_that_stopped_when_the_parent_did() -> None:
    made, clock = begun(machine := Machine(), offline_seconds=1.0)
    answered = np.full(1, clock.time + 0.25)
    made.report(np.zeros(CYCLE_COUNTS, np.int64), answered, np.zeros(1, np.bool_))
    made._closed = waits = Waits(clock, {})  # type: ignore[assignment]
    made._watch()
    assert waits.waited == pytest.approx([1.0, 0.25, 0.9 * PERIOD, *[PERIOD] * 5])
    assert machine.taken == [2] * 6


@pytest.mark.parametrize("limits", [{"safe_seconds": 0.02}, {"offline_seconds": 0.02}])
def test_a_thread_watches_if_there_is_a_limit(limits: dict[str, float]) -> None:
    settings = Environment(period=0.005, safe_action=(2.0,), **limits)
    made = RealTime(machine := Machine(), settings)
    made.report(np.zeros(CYCLE_COUNTS, np.int64), np.zeros(1), np.zeros(1, np.bool_))
    made.reset()
    machine.wait(lambda: len(machine.taken) >= 3)
    made.close()
    assert set(machine.taken) == {2}


def test_a_reset_that_is_under_way_is_reported() -> None:
    resetting = np.zeros(1, np.bool_)
    seen: list[bool] = []

    class Stuck(Machine):
        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            seen.append(bool(resetting[0]))
            if len(seen) == 2:
                raise OSError("it fell over")
            return super().reset(**options)

    made = RealTime(Stuck(), Environment(period=PERIOD))
    made.report(np.zeros(CYCLE_COUNTS, np.int64), np.zeros(1), resetting)
    made.reset()
    assert not resetting[0]
    with pytest.raises(OSError, match="it fell over"):
        made.reset()
    assert seen == [True, True] and not resetting[0]


class Blind(Machine):
    """Its sensor gives `number` from the first step on."""

    number = np.nan

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, *rest = super().step(action)
        return np.full(1, self.number, np.float32), *rest

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return np.full(1, self.number if self.taken else 0.0), super().reset(**options)[1]


def test_a_blind_machine_gets_safe_actions_at_each_tick_until_its_episode_ends() -> None:
    made, clock = begun(machine := Blind(length=5, truncates=True))
    made._closed = waits = Waits(clock, {})  # type: ignore[assignment]
    made._watch()
    ticks = [0.9 * PERIOD, *[PERIOD] * 4]
    assert machine.taken == [2] * 5 and waits.waited[1:5] == pytest.approx(ticks[:4])
    with pytest.raises(EnvironmentFailure, match="NaN or infinity"):
        made.step(1)
    ending, _ = begun(machine := Blind(length=1))
    assert ending.step(1)[2] and machine.taken == [1]  # no action follows from an episode's end


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_no_action_follows_from_what_is_no_number(number: float) -> None:
    made, _ = begun(machine := Blind())
    machine.number = number
    with pytest.raises(EnvironmentFailure, match="NaN or infinity in an observation"):
        made.step(1)
    with pytest.raises(EnvironmentFailure, match="NaN or infinity in an observation"):
        made.reset()
    assert machine.taken == [1]


@pytest.mark.parametrize("truncates", [False, True])
def test_between_two_episodes_no_action_is_taken(truncates: bool) -> None:
    made, clock = begun(machine := Machine(length=1, truncates=truncates))
    made.step(1)  # the last one
    made._closed = waits = Waits(clock, {})  # type: ignore[assignment]
    made._watch()
    assert machine.taken == [1] and waits.waited == [BOUND] * 8


def test_a_reset_forgets_the_safe_actions_before_it() -> None:
    made, clock = begun(machine := Machine())
    made._closed = Waits(clock, {7: (1.0, lambda: None)})  # type: ignore[assignment]
    made._watch()
    assert machine.taken == [2] * 7
    made.reset()
    assert made.step(1)[1] == 1.0 and machine.taken[7:] == [1]


@pytest.mark.parametrize("truncates", [False, True])
def test_an_episode_may_end_while_the_policy_is_late(truncates: bool) -> None:
    settings = Environment(period=0.005, safe_action=(2.0,), safe_seconds=0.02)
    made = RealTime(machine := Machine(length=3, truncates=truncates), settings)
    made.reset()
    machine.wait(lambda: machine.left == 0)
    _, reward, terminated, truncated, _ = made.step(1)
    assert (terminated, truncated) == (not truncates, truncates)
    assert reward == 3.0 and machine.taken == [2, 2, 2]
    made.reset()
    machine.wait(lambda: machine.left == 0)  # and again, in the next one
    assert made.step(1)[3 if truncates else 2]
    made.close()
    assert machine.taken == [2] * 6


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"environment": {"lanes": 2}}, "environment.lanes = 2: set it to 1"),
        ({"environment": {"safe_seconds": 0.02}}, "safe_seconds = 0.02: an observation is"),
        ({"environment": {"safe_seconds": 0.1}}, "safe_action is taken, which is not there"),
        (
            {"child": {"backend": "ga3c"}},
            "child.backend = 'ga3c' has several agents: set it to 'hogwild'",
        ),
        ({"child": {"cores": "auto"}}, "child.cores = 'auto': set it to 1"),
    ],
)
def test_what_a_clock_excludes_is_said(sections: dict[str, Any], words: str) -> None:
    settings: dict[str, Any] = {
        "environment": {"period": PERIOD, **sections.get("environment", {})},
        "child": {"cores": 1, **sections.get("child", {})},
    }
    if "safe_seconds" in settings["environment"] and "an observation" in words:
        settings["environment"]["safe_action"] = [0]
    with pytest.raises(ConfigurationError, match="environment") as caught:
        Experiment.from_dict(settings)
    assert words in str(caught.value)


def test_a_safe_action_must_be_one() -> None:
    settings = Environment(id="CartPole-v1", period=PERIOD, safe_action=(5.0,))
    with pytest.raises(
        ConfigurationError, match=r"safe_action = \[5.0\]: is none of Discrete\(2\)"
    ):
        make_environment(settings)
