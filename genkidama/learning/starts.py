"""Starts of an evaluation's episodes: after null actions, or after recorded actions.

They expose a policy that has memorized one beginning (Mnih et al. 2015; Nair et al. 2015, §5.2).
Rewards from before the policy acts do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from genkidama.errors import ConfigurationError

if TYPE_CHECKING:
    import gymnasium


#: Begins the episode of this number, and returns the first observation that the policy is asked
#: about. Whatever is random follows from the sequence. It raises a `ConfigurationError` if the
#: environment cannot begin so.
Begin: TypeAlias = "Callable[[gymnasium.Env[Any, Any], int, np.random.SeedSequence], Any]"


def own_start(
    environment: gymnasium.Env[Any, Any], episode: int, sequence: np.random.SeedSequence
) -> Any:
    """The environment's own beginning: a `Begin`."""
    return environment.reset(seed=_seed(sequence))[0]


def _null_actions(
    most: int,
    action: int | None,
    environment: gymnasium.Env[Any, Any],
    episode: int,
    sequence: np.random.SeedSequence,
) -> Any:
    """1 to `most` null actions, as many as chance will have it."""
    count = int(np.random.default_rng(sequence.spawn(1)[0]).integers(1, most + 1))
    observation, _ = environment.reset(seed=_seed(sequence))
    given = "" if action is None else f":{action}"
    taken = action if given else _null(environment)
    if not environment.action_space.contains(taken):
        raise ConfigurationError(
            f"starts = 'noop:{most}{given}': {taken} is no action of {environment.action_space}"
        )
    for _ in range(count):
        observation, _, terminated, truncated, _ = environment.step(taken)
        if terminated or truncated:
            observation, _ = environment.reset()
    return observation


def _recorded(
    source: str,
    starts: list[dict[str, Any]],
    environment: gymnasium.Env[Any, Any],
    episode: int,
    sequence: np.random.SeedSequence,
) -> Any:
    """The starts of a file, one after the other, and then from the first one again."""
    number = episode % len(starts)
    start = starts[number]
    where = f"{source}: start {number}"
    observation, _ = environment.reset(seed=start.get("seed", _seed(sequence)))
    if "state" in start:
        observation = _put(environment, start["state"], where)
    # Needs Gymnasium, which a command that only names starts does not.
    from genkidama.learning.actions import action_of

    space = environment.action_space
    for step, given in enumerate(start.get("actions", [])):
        if (action := action_of(space, given)) is None:
            raise ConfigurationError(f"{where}: action {step} = {given!r}: is none of {space}")
        observation, _, terminated, truncated, _ = environment.step(action)
        if terminated or truncated:
            raise ConfigurationError(
                f"{where}: the episode ends with action {step}, before the policy has begun"
            )
    return observation


def starts_of(text: str | None, recorded: Any = None) -> Begin:
    """The starts that `--starts` names.

    Args:
        text: `"noop:30"`, up to 30 null actions; `"noop:30:2"`, where action 2 does nothing; or a
            file's name. None leaves the environment its own beginnings.
        recorded: what the file holds, a list of starts. A start is a list of actions, or an object
            with `actions`, with the `seed` that the environment is reset with, and with the `state`
            that is put into it before they are taken.

    Raises:
        ConfigurationError: it is none of these.
    """
    if text is None:
        return own_start
    if is_null(text):
        _, *numbers = text.split(":")
        if not 1 <= len(numbers) <= 2 or not all(number.isdecimal() for number in numbers):
            raise ConfigurationError(f"starts = {text!r}: expected 'noop:N' or 'noop:N:ACTION'")
        if int(numbers[0]) < 1:
            raise ConfigurationError(f"starts = {text!r}: at least 1 null action is needed")
        return partial(_null_actions, int(numbers[0]), int(numbers[1]) if numbers[1:] else None)
    if not isinstance(recorded, list) or not recorded:
        raise ConfigurationError(f"{text}: expected a list of at least one start")
    starts: list[Any] = [
        {"actions": start} if isinstance(start, list) else start for start in recorded
    ]
    for number, start in enumerate(starts):
        known = isinstance(start, dict) and start and not start.keys() - _KEYS.keys()
        if not known or any(not isinstance(start[key], _KEYS[key]) for key in start):
            raise ConfigurationError(
                f"{text}: start {number}: expected a list of actions, or an object with "
                "'actions', 'seed' and 'state'"
            )
        if (seed := start.get("seed", 0)) < 0:
            raise ConfigurationError(f"{text}: start {number}: seed = {seed}: at least 0 is needed")
    return partial(_recorded, text, starts)


def check_seed(seed: int) -> None:
    """Raises a `ConfigurationError` if episodes cannot follow from this seed."""
    if not 0 <= seed < 2**32:
        raise ConfigurationError(f"seed = {seed}: 0 to {2**32 - 1} is allowed")


def is_null(text: str) -> bool:
    """True if null actions are meant, and no file."""
    return text.partition(":")[0] == "noop"


#: The keys of a start, and the types of their values.
_KEYS: dict[str, type] = {"actions": list, "seed": int, "state": list}


def _seed(sequence: np.random.SeedSequence) -> int:
    return int(sequence.generate_state(1)[0])


def _null(environment: gymnasium.Env[Any, Any]) -> Any:
    """The action that does nothing: Atari's NOOP, otherwise 0."""
    space = environment.action_space
    meanings: list[str] = getattr(environment.unwrapped, "get_action_meanings", list)()
    if "NOOP" in meanings:
        return meanings.index("NOOP")
    nothing = np.zeros(space.shape or (), space.dtype)
    return nothing + getattr(space, "start", nothing)


def _put(environment: gymnasium.Env[Any, Any], state: list[float], where: str) -> Any:
    """Puts a state into an environment whose state is its attribute, as in classic control."""
    try:
        numbers = np.array(state, np.float64)
    except (TypeError, ValueError):
        numbers = np.array(np.nan)
    if not np.isfinite(numbers).all():
        raise ConfigurationError(f"{where}: state = {state!r}: expected finite numbers")
    inner: Any = environment.unwrapped
    current = getattr(inner, "state", None)
    shape = None if current is None else np.shape(current)
    seen = environment.observation_space
    fits = shape is not None and numbers.shape == seen.shape == shape
    if not fits or seen != inner.observation_space:
        raise ConfigurationError(
            f"{where}: a state of {len(state)} numbers cannot be put into "
            f"{type(inner).__name__}; record a seed and actions instead"
        )
    inner.state = numbers
    return numbers.astype(seen.dtype)
