"""The semaphore's rules: every state that a few cores can get into, against the rules in words."""

from __future__ import annotations

import numpy as np
import pytest

from genkidama.child.semaphore import SemaphoreVector

ABSENT, RUNNING, WAITING = "absent", "running", "waiting"

State = tuple[str, ...]
Action = tuple[str, int]


def possible(state: State) -> list[Action]:
    """What can happen next.

    A core says that it waits: an absent one comes with this word, from another it may be late. One
    that is there dies. A running one finishes its episode. All are released.
    """
    actions: list[Action] = []
    for core, word in enumerate(state):
        actions += [("enter", core)]
        actions += [("die", core)] if word != ABSENT else []
        actions += [("finish", core)] if word == RUNNING else []
    # The orchestrator releases at any time: after an exchange, and where there is none to make.
    return [*actions, ("release", -1)]


def after(state: State, action: Action) -> State:
    """The rules, in words.

    A core that comes or finishes waits; a late word changes nothing; the dead are absent; a release
    sets the waiting running.
    """
    kind, core = action
    if kind == "enter" and state[core] != ABSENT:
        return state
    if kind == "release":
        return tuple(RUNNING if word == WAITING else word for word in state)
    word = {"enter": WAITING, "finish": WAITING, "die": ABSENT}[kind]
    return (*state[:core], word, *state[core + 1 :])


def act(semaphore: SemaphoreVector, elements: np.ndarray, action: Action) -> list[int]:
    kind, core = action
    if kind == "release":
        return semaphore.release()
    if kind == "enter":
        semaphore.enter(core)
    elif kind == "die":
        semaphore.light(core)
    else:
        elements[core] = True  # the core itself, from its own process
    return []


def check(semaphore: SemaphoreVector, elements: np.ndarray, state: State) -> None:
    assert semaphore.all_lit is (RUNNING not in state and WAITING in state)
    assert elements.tolist() == [word != RUNNING for word in state]


@pytest.mark.parametrize("cores", [1, 2, 3, 4])
def test_in_every_state_that_can_be_reached_everybody_waits_for_those_that_run_and_for_no_dead(
    cores: int,
) -> None:
    start: State = (ABSENT,) * cores
    seen: set[State] = {start}
    paths: list[tuple[State, list[Action]]] = [(start, [])]
    for state, path in paths:
        for action in possible(state):
            # The whole story again, on a semaphore of its own: from where it came must not matter.
            elements = np.zeros(cores, np.bool_)
            semaphore = SemaphoreVector(elements)
            told = start
            check(semaphore, elements, told)
            for step in [*path, action]:
                waiting = (
                    [core for core, word in enumerate(told) if word == WAITING]
                    if step[0] == "release"
                    else []
                )
                assert act(semaphore, elements, step) == waiting, (told, step)
                told = after(told, step)
                check(semaphore, elements, told)
            if told not in seen:
                seen.add(told)
                paths.append((told, [*path, action]))
    assert len(seen) == 3**cores


def test_long_lives_end_nowhere_else() -> None:
    rng, cores = np.random.default_rng(0), 5
    elements = np.zeros(cores, np.bool_)
    semaphore, state = SemaphoreVector(elements), (ABSENT,) * cores
    met = set()
    for _ in range(3000):
        choices = possible(state)
        action = choices[rng.integers(len(choices))]
        expected = (
            [core for core, word in enumerate(state) if word == WAITING]
            if action[0] == "release"
            else []
        )
        assert act(semaphore, elements, action) == expected
        state = after(state, action)
        check(semaphore, elements, state)
        met.add(semaphore.all_lit)
    assert met == {True, False}


def test_nobody_there_is_nobody_to_wait_for() -> None:
    elements = np.zeros(3, np.bool_)
    semaphore = SemaphoreVector(elements)
    assert elements.all() and not semaphore.all_lit  # lit, but an exchange would be for nobody
    assert semaphore.release() == []


def test_a_core_that_dies_while_others_wait_does_not_hold_them_up_and_one_that_returns_does() -> (
    None
):
    elements = np.zeros(2, np.bool_)
    semaphore = SemaphoreVector(elements)
    semaphore.enter(0)
    semaphore.enter(1)
    assert semaphore.release() == [0, 1]
    elements[0] = True
    assert not semaphore.all_lit
    semaphore.light(1)
    assert semaphore.all_lit and semaphore.release() == [0]
    semaphore.enter(1)
    assert not semaphore.all_lit  # core 0 is running; core 1 stands at its start
    elements[0] = True
    assert semaphore.all_lit and semaphore.release() == [0, 1]
