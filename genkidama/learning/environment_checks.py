"""A short try of an environment, with each mistake in a sentence."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.passive_env_checker import check_action_space, check_observation_space

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.actions import MaskedBox, supported
from genkidama.learning.environments import as_number
from genkidama.learning.forms import check_torch, tensor_setting
from genkidama.learning.model import Spaces, head_of, seeing
from genkidama.learning.observations import FlatBox, is_image
from genkidama.runtime.import_strings import is_gymnasiums

#: Steps that are tried: enough for the mistakes of a first version.
_STEPS = 20

#: A slow environment is tried no longer, and one whose resets are slow for one episode.
_SECONDS = 2.0
_QUICK_SECONDS = 0.5

#: Images of so many pixels in height and width, or more, are better made smaller.
_LARGE = 128

_STEP = "(observation, reward, terminated, truncated, info)"


def try_environment(settings: Environment, environment: gymnasium.Env[Any, Any]) -> None:
    """Plays a few random steps in an environment; one of Gymnasium's own or of EnvPool's is passed.

    One with a clock, as a robot, is not played: it moves for nothing but its policy.

    Raises:
        ConfigurationError: it is built wrong; the message says what was expected and what came.
    """
    if is_gymnasiums(settings) or settings.vectorized or settings.prefix not in ("", "pettingzoo"):
        return
    found = ""
    # What it raises, a core meets, too, and tells it with its place and traceback.
    with warnings.catch_warnings(), suppress(BaseException):
        warnings.simplefilter("ignore")  # opinions on style
        found = _mistake(environment, bool(settings.period))
    if found:
        raise ConfigurationError(f"environment.id = {settings.id!r}: {found}")


def check_spaces(experiment: Experiment, spaces: Spaces) -> list[str]:
    """Checks that a policy can be learned; returns sentences on what is not as one may think.

    Raises:
        ConfigurationError: the experiment's network or head does not fit, or torch is missing.
    """
    settings, said = experiment.environment, []
    supported(spaces.action_space)
    space: Any = spaces.observation_space
    seen = space.rest if isinstance(space, MaskedBox) else space
    if isinstance(seen, FlatBox) and seen.dropped:
        names = ", ".join(map(repr, seen.dropped))
        said.append(
            f"environment: {names} of the observations has no fixed length, and is left out"
        )
    agents = getattr(getattr(spaces, "unwrapped", spaces), "agents_in_turn", 1)
    ga3c = experiment.child.backend == "ga3c"
    key = "ga3c.environments" if ga3c else "environment.lanes"
    lanes = experiment.ga3c.environments if ga3c else settings.lanes
    if lanes % agents:
        raise ConfigurationError(
            f"{key} = {lanes}: each of the {agents} agents of {settings.id!r} is a lane; set it to "
            f"{agents} or a multiple of that"
        )
    head = head_of(experiment, spaces.action_space)
    experiment = seeing(experiment, space)
    if is_image(seen):
        sides = sorted(seen.shape)[-2:]
        if min(sides) >= _LARGE:
            said.append(
                f"environment: images of {sides[0]} × {sides[1]} pixels learn slowly; smaller ones "
                "in grey learn faster: environment.wrappers = "
                '[{ name = "ResizeObservation", options = { shape = [84, 84] } }, '
                '{ name = "GrayscaleObservation" }]'
            )
    if setting := tensor_setting(experiment, head):
        if experiment.network.name == "convolutional":
            setting = f"network.name = 'convolutional', for images of shape {seen.shape}"
        check_torch(setting)
    return said


def _mistake(environment: gymnasium.Env[Any, Any], rests: bool) -> str:
    """The first mistake that shows itself; empty if none does.

    Args:
        rests: whether it must not move, as a robot.
    """
    checks = {"observation_space": check_observation_space, "action_space": check_action_space}
    for name, check in checks.items():
        space = getattr(environment, name, None)
        if not isinstance(space, gymnasium.Space):
            return f"{name} is {space!r}, expected a space, as gymnasium.spaces.Box(…)"
        try:
            check(space)
        except AssertionError as error:
            return f"{name}: {error}"
    if rests:
        return ""
    space = environment.observation_space
    began = time.monotonic()
    first: Any
    try:
        first = environment.reset(seed=0)
    except TypeError as error:
        if "'seed'" not in str(error) or "unexpected keyword" not in str(error):
            raise
        return (
            "reset() takes no seed, as in the old Gym; since Gymnasium it is `def reset(self, *, "
            "seed=None, options=None)`, calls super().reset(seed=seed) and returns (observation, "
            f"{{}}), and step() returns {_STEP}"
        )
    if not (isinstance(first, tuple) and len(first) == 2 and isinstance(first[1], dict | None)):
        return (
            f"reset() gives {_kind(first)}, expected the tuple (observation, info): old Gym's "
            "returned the observation alone; info may be {}"
        )
    if found := _wrong(space, first[0], "reset()"):
        return found
    environment.action_space.seed(0)
    quick, deadline = began + _QUICK_SECONDS, began + _SECONDS
    for _ in range(_STEPS):
        if time.monotonic() > deadline:
            break
        given: Any = environment.step(environment.action_space.sample())
        if not (isinstance(given, tuple) and len(given) == 5):
            return (
                f"step() gives {_kind(given)}, expected the tuple {_STEP}: old Gym's `done` is "
                "`terminated`, and `truncated` says that only the time is up"
            )
        observation, reward, terminated, truncated, _ = given
        if found := _wrong(space, observation, "step()"):
            return found
        if not _is_finite(reward):
            return f"step() gives the reward {reward!r}, expected a finite number"
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if np.size(value) != 1 or np.asarray(value).dtype.kind not in "bui":
                return f"step() gives {name} = {value!r}, expected True or False"
        if terminated or truncated:
            if time.monotonic() > quick:
                break
            environment.reset()
    return ""


def _is_finite(reward: Any) -> bool:
    try:
        return bool(np.isfinite(as_number(reward)))
    except EnvironmentFailure:
        return False


def _wrong(space: gymnasium.Space[Any], observation: Any, method: str) -> str:
    """The difference between an observation and its space; empty if there is none."""
    parts: dict[Any, Any] = {}
    if isinstance(space, gymnasium.spaces.Dict) and isinstance(observation, Mapping):
        parts = dict(space.spaces) if space.spaces.keys() == observation.keys() else {}
    elif isinstance(space, gymnasium.spaces.Tuple) and isinstance(observation, tuple | list):
        parts = dict(enumerate(space.spaces)) if len(space.spaces) == len(observation) else {}
    if parts:
        found = (_wrong(parts[key], observation[key], f"{method}[{key!r}]") for key in parts)
        return next(filter(None, found), "")
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
