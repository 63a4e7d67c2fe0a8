"""A first look at an environment: its spaces, and a second of random actions in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from statistics import fmean, median
from typing import Any

import gymnasium
import msgspec
import numpy as np
import numpy.typing as npt

from genkidama.config.recommended import Look
from genkidama.config.sections import Environment
from genkidama.learning.actions import MaskedBox, bounds, choices, converter, supported
from genkidama.learning.environments import (
    adapted,
    as_number,
    bare_environment,
    closing_environment,
    import_environment,
)
from genkidama.learning.observations import FlatBox, is_image
from genkidama.learning.real_time import keeps_time
from genkidama.runtime.import_strings import describe_error
from genkidama.runtime.machine import resident_bytes

Array = npt.NDArray[Any]

#: One is played for so long, and up to the second number while no episode has ended.
_SECONDS = (1.0, 2.0)

#: Steps whose rewards are compared with their actions, at most.
_COMPARED = 5000


def look(receive: Callable[[], Any], send: Callable[[Any], None], settings: Environment) -> None:
    """The task that builds one environment, plays it, closes it, and says what it has seen."""
    import_environment(settings)
    before, began = resident_bytes(), time.perf_counter()
    bare = bare_environment(settings)
    clock = settings.period > 0.0 or keeps_time(bare)
    period = settings.period or float(clock)
    made = adapted(bare, msgspec.structs.replace(settings, period=period))
    with closing_environment(made):
        built = time.perf_counter() - began
        played: dict[str, Any] = {}
        if not clock:  # a robot moves for nothing but its policy
            played = play(made)
        size = max(0, resident_bytes() - before)
        send(Look(**spaces(made), **played, clock=clock, build_seconds=built, bytes=size))


def spaces(made: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """The fields of a `Look` that need no step."""
    space: Any = made.observation_space
    seen: Any = space.rest if isinstance(space, MaskedBox) else space
    inner: Any = seen.inner if isinstance(seen, FlatBox) else seen
    actions = supported(made.action_space)
    low, high = bounds(actions)
    unwrapped = made.unwrapped
    spec = made.spec
    return {
        "shape": tuple(seen.shape),
        "image": is_image(seen),
        "bounded": bool(np.isfinite(seen.low).all() and np.isfinite(seen.high).all()),
        "states": int(inner.n) if isinstance(inner, gymnasium.spaces.Discrete) else 0,
        "keys": tuple(inner.spaces) if isinstance(inner, gymnasium.spaces.Dict) else (),
        "partial": partial(made.unwrapped, inner),
        "choices": choices(actions),
        "numbers": len(low),
        "finite_actions": bool(np.isfinite(low).all() and np.isfinite(high).all()),
        "plain_actions": isinstance(actions, gymnasium.spaces.Discrete | gymnasium.spaces.Box),
        "masked": isinstance(space, MaskedBox),
        "lanes_at_once": int(getattr(unwrapped, "lanes_at_once", 0)),
        "agents": int(getattr(unwrapped, "agents_in_turn", 0)),
        "limit": (spec and spec.max_episode_steps) or 0,
    }


def partial(environment: Any, seen: Any) -> str:
    """The reason why an observation tells a part of the state; empty if nothing declares that.

    Two conventions declare it: `state_space`, the space of the state, as POPGym has it,
    and `agent_view_size`, the side of the square before the agent, as Minigrid has it.

    Args:
        environment: the innermost one.
        seen: the space of observations behind all wrappers, which may have undone it.
    """
    parts = list(seen.spaces.values()) if isinstance(seen, gymnasium.spaces.Dict) else [seen]
    state = getattr(environment, "state_space", None)
    shown = (environment.observation_space, seen, *parts)
    if isinstance(state, gymnasium.Space) and state not in shown:
        return "its state_space is not what it shows"
    side = getattr(environment, "agent_view_size", 0)
    if side and any((part.shape or ())[:2] == (side, side) for part in parts):
        return f"it shows {side} × {side} cells of its world"
    return ""


def play(
    made: gymnasium.Env[Any, Any], now: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """The fields of a `Look` that random actions show. An environment may raise anything: what was
    seen until then counts, with the error."""
    steps: list[float] = []
    resets: list[float] = []
    rewards: list[float] = []
    actions: list[Array] = []
    lengths: list[int] = []
    terminated = begin = 0
    largest, problem = 0.0, ""
    try:
        for kind, seconds, *seen in _moves(made, now):
            if kind == "reset":
                resets.append(seconds)
                continue
            action, observation, reward, ends, stops = seen
            steps.append(seconds)
            rewards.append(reward)
            if len(actions) < _COMPARED:
                actions.append(action)
                with suppress(TypeError, ValueError):
                    largest = max(largest, float(np.abs(observation).max(initial=0)))
            if ends or stops:
                lengths.append(len(steps) - begin)
                begin = len(steps)
                terminated += ends
    except Exception as error:
        problem = describe_error(error)
    if not steps:
        return {"problem": problem}
    returns = [sum(part) for part in np.split(rewards, np.cumsum(lengths))[:-1]]
    return {
        "problem": problem,
        "steps": len(steps),
        "step_seconds": median(steps),
        "reset_seconds": median(resets),
        "episodes": len(lengths),
        "terminated": terminated,
        "length": fmean(lengths) if lengths else 0.0,
        "largest": largest,
        "reward_low": min(rewards),
        "reward_high": max(rewards),
        "rewarded": float(np.mean(np.asarray(rewards) != 0.0)),
        "mean_return": fmean(returns) if returns else None,
        "action_cost": explained(rewards[: len(actions)], actions, len(choices(made.action_space))),
    }


def _moves(made: gymnasium.Env[Any, Any], now: Callable[[], float]) -> Iterator[tuple[Any, ...]]:
    """Resets and steps with random valid actions, with the seconds of each, until time is up."""
    rng = np.random.default_rng(0)
    space, actions = made.observation_space, made.action_space
    mask = space.size if isinstance(space, MaskedBox) else 0
    sizes, convert = choices(actions), converter(actions)
    low, high = bounds(actions)
    known = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(known, low, -1.0), np.where(known, high, 1.0)
    least, most = (now() + seconds for seconds in _SECONDS)
    episodes = 0
    while True:
        began = now()
        observation, _ = made.reset() if episodes else made.reset(seed=0)
        yield "reset", now() - began
        over = False
        while not over:
            columns = _valid(rng, observation[-mask:], sizes) if mask else rng.integers(0, sizes)
            action = np.concatenate([columns, rng.uniform(low, high)])
            move = convert(action)
            began = now()
            observation, reward, ends, stops, _ = made.step(move)
            after = now()
            yield "step", after - began, action, observation, as_number(reward), ends, stops
            over = bool(ends or stops)
            episodes += over
            if after > (least if episodes else most):
                return


def _valid(rng: np.random.Generator, mask: Array, sizes: tuple[int, ...]) -> Array:
    """A valid choice in each discrete column; 0 where none is."""
    parts = np.split(np.asarray(mask, bool), np.cumsum(sizes))[: len(sizes)]
    return np.array([rng.choice(np.flatnonzero(part)) if part.any() else 0 for part in parts])


def explained(rewards: list[float], actions: list[Array], discrete: int) -> float:
    """The share of the variance of rewards that the squares of the actions' numbers explain: R² of
    a linear regression. 1 says that actions cost, and nothing else is told; 0 if none is known.

    Args:
        rewards: (n,).
        actions: n stored actions.
        discrete: the number of their first columns, which are left out.
    """
    squares = np.asarray(actions)[:, discrete:] ** 2
    given = np.asarray(rewards)
    variance = given.var()
    if not squares.shape[1] or len(given) <= 2 * squares.shape[1] or variance < 1e-12:
        return 0.0
    regressors = np.column_stack([squares, np.ones(len(given))])
    fit, *_ = np.linalg.lstsq(regressors, given, rcond=None)
    return float(max(0.0, 1.0 - (given - regressors @ fit).var() / variance))
