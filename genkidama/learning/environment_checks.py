"""A short try of a user's environment, with each mistake in a sentence."""

from __future__ import annotations

import time
import warnings
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.passive_env_checker import check_action_space, check_observation_space

from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError
from genkidama.runtime.import_strings import is_import_string

#: Steps that are tried: enough for the mistakes of a first version.
_STEPS = 20

#: A slow environment is tried no longer, and one whose resets are slow for one episode.
_SECONDS = 2.0
_QUICK_SECONDS = 0.5


def try_environment(settings: Environment, environment: gymnasium.Env[Any, Any]) -> None:
    """Plays a few random steps in an environment that an import string names; others are passed.

    One with a clock, as a robot, is not played: it moves for nothing but its policy.

    Raises:
        ConfigurationError: it is built wrong; the message says what was expected and what came.
    """
    if not is_import_string(settings.id):
        return
    found = ""
    # What it raises, a core meets, too, and tells it with its place and traceback.
    with warnings.catch_warnings(), suppress(BaseException):
        warnings.simplefilter("ignore")  # opinions on style
        found = _mistake(environment, not settings.period)
    if found:
        raise ConfigurationError(f"environment.id = {settings.id!r}: {found}")


def _mistake(environment: gymnasium.Env[Any, Any], plays: bool) -> str:
    """The first mistake that shows itself, in its spaces or if it plays; empty if none does."""
    checks = {"observation_space": check_observation_space, "action_space": check_action_space}
    for name, check in checks.items():
        space = getattr(environment, name, None)
        if not isinstance(space, gymnasium.Space):
            return f"{name} is {space!r}, expected a space, as gymnasium.spaces.Box(…)"
        try:
            check(space)
        except AssertionError as error:
            return f"{name}: {error}"
    if not plays:
        return ""
    began = time.monotonic()
    first: Any = environment.reset(seed=0)
    if not (isinstance(first, tuple) and len(first) == 2 and isinstance(first[1], dict)):
        return f"reset() gives {_kind(first)}, expected the tuple (observation, info)"
    if found := _wrong(environment.observation_space, first[0], "reset()"):
        return found
    environment.action_space.seed(0)
    quick, deadline = began + _QUICK_SECONDS, began + _SECONDS
    for _ in range(_STEPS):
        if time.monotonic() > deadline:
            break
        given: Any = environment.step(environment.action_space.sample())
        if not (isinstance(given, tuple) and len(given) == 5):
            return (
                f"step() gives {_kind(given)}, expected the tuple "
                "(observation, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, _ = given
        if found := _wrong(environment.observation_space, observation, "step()"):
            return found
        if np.ndim(reward) or not np.isfinite(np.asarray(reward, np.float64)):
            return f"step() gives the reward {reward!r}, expected a finite number"
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_):
                return f"step() gives {name} = {value!r}, expected True or False"
        if terminated or truncated:
            if time.monotonic() > quick:
                break
            environment.reset()
    return ""


def _wrong(space: gymnasium.Space[Any], observation: Any, method: str) -> str:
    """The difference between an observation and its space; empty if there is none."""
    if not isinstance(space, gymnasium.spaces.Box):
        if space.contains(observation):
            return ""
        return f"{method} gives the observation {observation!r}, which is not in {space}"
    array = np.asarray(observation)
    if array.shape != space.shape:
        return (
            f"{method} gives an observation of shape {array.shape}, "
            f"its observation_space says {space.shape}"
        )
    if not np.can_cast(array.dtype, np.float64):
        return f"{method} gives an observation of {array.dtype}, expected numbers"
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        place = tuple(map(int, np.argwhere(~np.isfinite(array))[0]))
        return f"{method} gives {array[place]} at {list(place)} of the observation; mend it there"
    if space.dtype.kind in "ui" and array.dtype.kind == "f":
        return (
            f"{method} gives an observation of {array.dtype}, its observation_space says "
            f"{space.dtype}: convert it, or the numbers are cut off"
        )
    return ""


def _kind(value: Any) -> str:
    """As `"a tuple of 4"`, or `"a ndarray"`."""
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
