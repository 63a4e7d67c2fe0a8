"""An agent, with the test in the engine's place: its slots, its sleep, its end."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.child.capacity import GROWTH_BYTES
from genkidama.child.worker import EPISODE, FAILED, PROGRESS, READY, RECORD, RECYCLED, REPORT_STEPS
from genkidama.errors import ConfigurationError
from genkidama.plugins.ga3c.agent import _GUARD_STEPS, run_agent, warm_up
from genkidama.plugins.ga3c.backend import AGENTS
from genkidama.plugins.ga3c.slots import waiting
from genkidama.runtime.forkserver import ForkedProcess
from tests.helpers import PATIENCE, small
from tests.plugins.ga3c.numbered import Numbered, Step, story
from tests.plugins.ga3c.yard import GAMMA, Acting, Submitted, Yard, acting

ENDLESS = {"lengths": [10**6]}


def numbered(**options: Any) -> dict[str, Any]:
    return {"id": "tests.plugins.ga3c.numbered:Numbered", "options": options}


# What comes out.


def check_lane(rollouts: list[Submitted], true: list[Step], steps: int) -> int:
    """Compares a lane's rollouts with the story of its environment, step by step.

    Returns how many steps they are.
    """
    start = 0
    for rollout in rollouts:
        own = true[start : start + rollout.length]
        start += rollout.length
        observations, actions, values, log_mu, rewards, discounted = rollout.rows
        assert observations == [step.observation for step in own]
        assert actions == [step.action for step in own]
        assert values == [step.value for step in own]
        assert log_mu == [-step.value for step in own]
        assert rewards == [step.reward for step in own]
        assert discounted == [np.float32(step.discounted) for step in own]
        *before, last = own
        assert not any(step.over for step in before)
        assert last.over or rollout.length == steps
        assert rollout.cut == (not last.terminated)
        assert rollout.bootstrap == (0.0 if last.terminated else last.following)
    return start


def records(
    stories: list[list[Step]], steps: int, pauses: bool
) -> list[tuple[int, float, int] | None]:
    """What an agent says in so many steps of all of its environments.

    None stands where it waits at the semaphore.
    """
    said: list[tuple[int, float, int] | None] = [(READY, 0.0, 0)]
    said += [None] * pauses
    unsaid, ended = 0, set()
    for t in range(steps):
        unsaid += len(stories)
        for lane, true in enumerate(stories):
            if true[t].over:
                said.append((EPISODE, true[t].episode_return, unsaid))
                unsaid = 0
                ended.add(lane)
                if pauses and len(ended) == len(stories):
                    said.append(None)
                    ended.clear()
        if unsaid >= REPORT_STEPS:
            said.append((PROGRESS, 0.0, unsaid))
            unsaid = 0
    return said


def check(yard: Yard) -> None:
    """Compares all that has come out of a yard with what must have happened in its environments."""
    settings = yard.experiment
    taken, stories = set(), []
    for lane, number in sorted(yard.numbers.items()):
        rollouts = [rollout for rollout in yard.submitted if rollout.slot // yard.rollouts == lane]
        answers = int(yard.slots.answered[lane])
        true = story(number, answers + 1, GAMMA, settings.environment.options)
        submitted = check_lane(rollouts, true, yard.steps)
        # Each question was about an action, except the questions about the last observation of an
        # episode that time has cut.
        ends = np.cumsum([rollout.length for rollout in rollouts], dtype=int) - 1
        acted = answers - sum(true[t].over and not true[t].terminated for t in ends)
        assert 0 <= acted - submitted <= yard.steps
        taken.add(acted)
        stories.append(true)
    assert len(set(yard.numbers.values())) == len(yard.numbers)  # each has a seed of its own
    (steps,) = taken or (0,)
    # It may be in the middle of the last of these steps: it asks what follows an episode in one
    # environment, or waits.
    pauses = settings.child.exchange == "episode"
    assert yard.said == records(stories, steps, pauses)[: len(yard.said)]
    assert len(yard.said) >= len(records(stories, max(steps - 1, 0), pauses))
    assert yard.foreign_is_untouched()


@settings(max_examples=100)
@given(
    options=st.fixed_dictionaries(
        {
            "lengths": st.lists(st.integers(1, 9), min_size=1, max_size=4),
            "endings": st.lists(
                st.sampled_from(["terminated", "truncated", "both"]), min_size=1, max_size=3
            ),
            "continuous": st.booleans(),
            "dtype": st.sampled_from(["float32", "uint8"]),
        }
    ),
    sizes=st.fixed_dictionaries(
        {
            "environments": st.integers(1, 3),
            "rollouts": st.integers(2, 4),
            "steps": st.integers(1, 6),
            "exchange": st.sampled_from(["free", "episode"]),
        }
    ),
    held=st.integers(0, 2),
    questions=st.integers(1, 50),
    seed=st.one_of(st.none(), st.integers(0, 100)),
)
def test_rollouts_put_together_are_what_has_happened_step_by_step(
    options: dict[str, Any], sizes: dict[str, Any], held: int, questions: int, seed: int | None
) -> None:
    """To the last reward of every episode.

    Slots are held back, bells rung for no reason, and questions answered that are no longer asked.
    """
    with acting(
        numbered(**options), mischief=None if seed is None else random.Random(seed), **sizes
    ) as (yard, _):
        questions -= yard.serve(questions, keep=min(held, yard.rollouts - 2))
        while yard.paused:
            assert yard.slots.semaphore[yard.index] and not waiting(yard.predictions[0].fileno())
            check(yard)
            yard.release()
            questions -= yard.serve(questions, keep=min(held, yard.rollouts - 2))
        assert not questions
        check(yard)


def test_steps_are_counted_once_also_those_of_episodes_that_go_on() -> None:
    with acting(numbered(lengths=[REPORT_STEPS + 10]), environments=2, steps=50) as (yard, _):
        yard.serve(3 * REPORT_STEPS)
        check(yard)
        episode = [(PROGRESS, REPORT_STEPS), (PROGRESS, REPORT_STEPS), (EPISODE, 20), (EPISODE, 0)]
        said = [(record[0], record[2]) for record in yard.said if record is not None]
        assert said[: 1 + 2 * len(episode)] == [(READY, 0), *episode, *episode]


# When it sleeps.


def test_a_step_that_has_no_place_waits_until_a_trainer_has_copied_a_slot() -> None:
    """Three slots of four steps each: the thirteenth observation is one too many."""
    with acting(numbered(**ENDLESS), rollouts=3, steps=4) as (yard, _):
        yard.serve(11, keep=3)
        yard.answer()
        for _ in range(5):
            yard.rung_in_vain()
        assert not waiting(yard.predictions[0].fileno())
        yard.listen()
        first, second = yard.held
        (third,) = {3, 4, 5} - {first.slot, second.slot}
        yard.give_back(keep=1)
        yard.serve(0, keep=3)
        assert yard.slots.position[yard.lanes[0]] == first.slot * yard.steps
        assert len(yard.submitted) == 2  # what the third is worth is known with the next action
        yard.serve(3, keep=3)
        assert [rollout.slot for rollout in yard.submitted] == [first.slot, second.slot, third]
        yard.answer()
        yard.rung_in_vain()
        assert not waiting(yard.predictions[0].fileno())
        yard.give_back()
        yard.serve(20)
        check(yard)


def test_the_last_observation_of_an_episode_that_time_has_cut_waits_for_a_place_too() -> None:
    """Two slots of three steps, episodes of five.

    What follows the second rollout cannot be asked for while the first slot is busy.
    """
    with acting(numbered(lengths=[5], endings=["truncated"]), rollouts=2, steps=3) as (yard, _):
        yard.serve(4, keep=2)
        yard.answer()
        yard.rung_in_vain()
        assert not waiting(yard.predictions[0].fileno())
        yard.listen()
        assert len(yard.submitted) == 1
        yard.give_back()
        yard.serve(0)
        row = int(yard.slots.position[yard.lanes[0]])
        assert yard.slots.observations[row, 1:].tolist() == [0.0, 5.0] and len(yard.submitted) == 1
        yard.serve(20)
        check(yard)


# How it ends.


def until_it_sleeps(yard: Yard, where: str) -> None:
    match where:
        case "for an action":
            yard.serve(3)
        case "for a value":
            yard.serve(2)
            assert yard.slots.observations[yard.slots.position[yard.lanes[0]], 2] == 2.0
        case "for a slot":
            yard.serve(3, keep=2)
            yard.answer()
            yard.rung_in_vain()
            assert not waiting(yard.predictions[0].fileno())
        case "at the semaphore":
            yard.serve(0)
            assert yard.paused


def sleeping(where: str) -> dict[str, Any]:
    """An agent that comes to sleep there."""
    return {
        "environment": numbered(lengths=[2], endings=["truncated"])
        if where == "for a value"
        else numbered(**ENDLESS),
        "rollouts": 2,
        "steps": 2,
        "exchange": "episode" if where == "at the semaphore" else "free",
    }


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    "where", ["for an action", "for a value", "for a slot", "at the semaphore"]
)
def test_it_ends_where_it_sleeps_when_it_is_told_to_and_with_the_child(
    where: str, told: bool
) -> None:
    """Whose end is that of all pipes to it, the one that it sleeps in among them."""
    before = Numbered.closed
    with acting(**sleeping(where)) as (yard, agent):
        until_it_sleeps(yard, where)
        if not told:
            for end in (yard.predictions[0], yard.training[0], yard.bell[1], yard.line):
                end.close()
        else:
            yard.slots.stop[yard.index] = True
            if yard.paused:
                yard.release()
            else:
                yard.ring()
        assert agent.ended() == 0
        assert Numbered.closed == before + 1


@pytest.mark.parametrize("gone", ["predictions", "training", "line"])
def test_it_ends_when_it_meets_the_childs_end_before_it_sleeps(gone: str) -> None:
    """It is awake meanwhile, and finds at its next word that nobody reads it."""
    with acting(numbered(lengths=[3]), steps=3) as (yard, agent):
        yard.serve(2)
        {"predictions": yard.predictions[0], "training": yard.training[0], "line": yard.line}[
            gone
        ].close()
        yard.answer()
        assert agent.ended() == 0


def test_one_that_is_to_end_before_it_has_begun_does_not_begin() -> None:
    yard = Yard(numbered(**ENDLESS))
    yard.slots.stop[yard.index] = True
    assert Acting(yard).ended() == 0
    assert not waiting(yard.predictions[0].fileno()) and not yard.line.poll()
    yard.close()


def test_one_that_has_grown_too_large_asks_to_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genkidama.child.worker._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("genkidama.child.worker._SETTLING_SECONDS", 0.0)
    leaky = numbered(lengths=[_GUARD_STEPS], leak=2 * GROWTH_BYTES // _GUARD_STEPS)
    with acting(leaky) as (yard, agent):
        yard.serve(3 * _GUARD_STEPS - 1)
        yard.answer()
        assert agent.ended() == RECYCLED
        yard.listen()
        assert sum(record[2] for record in yard.said if record is not None) == 3 * _GUARD_STEPS


# A process of its own.


@contextmanager
def process(environment: dict[str, Any]) -> Iterator[tuple[Yard, ForkedProcess]]:
    """As a child starts it: forked from what is warm, without torch."""
    yard = Yard(environment)
    arguments = (yard.index, yard.experiment, yard.slots, yard.ends, yard.their_line, (1, 2, 3))
    process = AGENTS.start(f"{run_agent.__module__}:run_agent", arguments, yard.experiment)
    yard.their_line.close()
    try:
        yield yard, process
    finally:
        process.kill()
        process.wait()
        process.close()
        yard.close()


def test_a_process_acts_whatever_is_typed_and_ends_when_it_is_told_to() -> None:
    with process(numbered(lengths=[5, 2], endings=["truncated", "terminated"])) as (yard, agent):
        yard.serve(10)
        os.kill(agent.pid, signal.SIGINT)
        yard.serve(10)
        check(yard)
        yard.slots.stop[yard.index] = True
        yard.ring()
        assert agent.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        # Which also says that it has no torch.
        ({"id": "tests.plugins.ga3c.numbered:TorchFree"}, "RuntimeError: torch: [] ("),
        (
            {"id": "tests.tiny:Faulty", "options": {"fault": "raise", "where": "reset"}},
            "ValueError: the cable is loose (studies/faults/faulty.py:",
        ),
        # Which is no end of the agent's own pipes.
        (
            {"id": "tests.plugins.ga3c.numbered:Cut"},
            "ConnectionResetError: simulator (tests/plugins/ga3c/numbered.py:",
        ),
        (
            {"id": "tests.tiny:Faulty", "options": {"fault": "raise", "where": "construct"}},
            "ConfigurationError: environment.id = 'tests.tiny:Faulty': cannot be built: "
            "ValueError: the cable is loose (studies/faults/faulty.py:",
        ),
    ],
    ids=["step", "reset", "cut", "construct"],
)
def test_one_whose_environment_raises_says_why_and_ends(
    environment: dict[str, Any], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with process(environment) as (yard, agent):
        if "options" not in environment:
            yard.serve(0)
            yard.answer()
        assert yard.line.poll(PATIENCE)
        record = yard.line.recv_bytes()
        assert RECORD.unpack_from(record) == (FAILED, 0.0, 0)
        assert record[RECORD.size :].decode().startswith(reason)
        assert agent.wait(PATIENCE) == 1
    assert "Traceback" in capfd.readouterr().err


DONE: list[str] = []


class Watched(gymnasium.Env[Any, Any]):
    """Notes what is done with it."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        DONE.append("reset")
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        DONE.append("step")
        return self.observation_space.sample(), 0.0, False, False, {}

    def close(self) -> None:
        DONE.append("close")


def test_to_be_warm_is_to_have_imported_the_environment_and_built_none() -> None:
    DONE.clear()
    warm_up(small(environment={"id": f"{__name__}:Watched"}))
    assert DONE == []
    with pytest.raises(ConfigurationError, match="has no 'Nothing'"):
        warm_up(small(environment={"id": f"{__name__}:Nothing"}))
