"""Environments that draw themselves, and a policy that plays in them, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from warnings import catch_warnings, simplefilter

import gymnasium
import msgspec
import numpy as np
import numpy.typing as npt

from genkidama.config.sections import Environment, Wrapper
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.environments import make_environment, played
from genkidama.learning.starts import StartStates
from genkidama.runs.explanation import Explanation, explain
from genkidama.runs.policy import Policy
from genkidama.runtime.import_strings import environment_spec
from genkidama.runtime.user_errors import describe_error

__all__ = ["FireFirst", "Moment", "action_names", "make_pictured", "moments", "pace"]

Array = npt.NDArray[Any]

#: What ALE's vectorized form and EnvPool call what Gymnasium's wrappers call otherwise. Each with
#: its value where nothing is said.
_PREPROCESSING = {
    "noop_max": (("noop_max",), 30),
    "frame_skip": (("frameskip", "frame_skip"), 4),
    "screen_size": (("img_height",), 84),
    "terminal_on_life_loss": (("episodic_life",), False),
    "grayscale_obs": (("grayscale", "gray_scale"), True),
}

#: The same of the games themselves.
_GAME = {"repeat_action_probability": 0.0, "full_action_space": False}

#: Pictures that Atari's console showed in a second.
_ATARI = 60

#: What the actions of well-known environments do, in their order.
_NAMES = {
    "Acrobot": ("left", "none", "right"),
    "CartPole": ("left", "right"),
    "LunarLander": ("none", "left engine", "main engine", "right engine"),
    "MountainCar": ("left", "none", "right"),
}


@dataclass(frozen=True)
class Moment:
    """One step of an episode; the last one shows how the episode ended."""

    #: From 0 on, and the steps made before this one.
    episode: int
    step: int
    #: uint8, (height, width, 3).
    picture: Array
    #: The policy's word on it; at the end its last one.
    explanation: Explanation
    #: The next action, as the environment takes it; None at the end.
    action: Any
    #: Undiscounted return so far.
    total: float


class FireFirst(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes the action FIRE after each reset, if the game has it, as vectorized Atari games do."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        names = action_names(self.env)
        if "FIRE" not in names:
            return observation, info
        observation, _, terminated, truncated, info = self.env.step(names.index("FIRE"))
        return self.env.reset(**options) if terminated or truncated else (observation, info)


def make_pictured(settings: Environment, name: str | None = None) -> gymnasium.Env[Any, Any]:
    """The environment that a policy is looked at in.

    It is what the policy is evaluated in, but in place of a vectorized form it is the plain one,
    since that draws pictures. An Atari game then gets Gymnasium's wrappers.

    Args:
        settings: what the policy was trained in.
        name: the id of another environment, which is taken whatever it is.

    Raises:
        ConfigurationError: it cannot be made, or draws no pictures.
    """
    settings = _plain(played(settings, name))
    options = {**settings.options, "render_mode": "rgb_array"}
    try:
        with catch_warnings():  # Gymnasium's, of a mode that it does not know; the error says it
            simplefilter("ignore")
            environment = make_environment(msgspec.structs.replace(settings, options=options))
    except ConfigurationError:
        make_environment(settings).close()  # this may say what is wrong
        raise _draws_nothing(settings, "it does not take render_mode='rgb_array'") from None
    if environment.render_mode != "rgb_array":
        environment.close()
        raise _draws_nothing(settings, f"its render_mode is {environment.render_mode!r}")
    return environment


def moments(
    policy: Policy,
    environment: gymnasium.Env[Any, Any],
    episodes: int,
    seed: int,
    deterministic: bool = False,
    every: int = 1,
) -> Iterator[Moment]:
    """Plays the episodes that `genkidama evaluate` plays with this seed.

    Args:
        environment: as `make_pictured` gives it.
        deterministic: takes the most probable action instead of a sampled one.
        every: one step of so many is looked at, and the end of each episode.

    Raises:
        ConfigurationError: the environment fails to draw itself.
        EnvironmentFailure: it fails otherwise.
    """
    model = policy.model
    head = model.head
    for episode in range(episodes):
        sequence = np.random.SeedSequence((seed, episode))
        outputs = model.network.acting()
        normalize = model.normalizer()
        sample = head.sampler(np.random.default_rng(sequence), 0.0)
        choose = head.mode if deterministic else sample
        with _in_one_line(policy):
            observation = StartStates().begin(environment, episode, sequence)
        step, total = 0, 0.0
        over = False
        while not over:
            seen = observation if normalize is None else normalize(observation)
            action = head.to_environment(choose(outputs(seen)))
            if step % every == 0:
                explanation = explain(model, observation)
                picture = _picture(environment, policy)
                yield Moment(episode, step, picture, explanation, action, total)
            with _in_one_line(policy):
                observation, reward, terminated, truncated, _ = environment.step(action)
            step += 1
            total += float(reward)
            over = terminated or truncated
        yield Moment(episode, step, _picture(environment, policy), explanation, None, total)


def action_names(environment: gymnasium.Env[Any, Any]) -> list[str]:
    """What the actions are called; empty if nobody says so.

    An environment of one's own may have `get_action_meanings()`, as Atari games do.
    """
    meanings = getattr(environment.unwrapped, "get_action_meanings", None)
    if meanings is not None:
        return [str(name) for name in meanings()]
    spec = environment.spec
    return list(_NAMES.get(spec.name, ())) if spec is not None else []


def pace(environment: gymnasium.Env[Any, Any]) -> float:
    """Steps a second at which it runs at its own pace; 30 if it does not say."""
    inside = environment
    while isinstance(inside, gymnasium.Wrapper):
        if isinstance(inside, gymnasium.wrappers.AtariPreprocessing):
            return _ATARI / inside.frame_skip
        inside = inside.env
    return float(environment.metadata.get("render_fps") or 30)


def _plain(settings: Environment) -> Environment:
    """The environment without its vectorized form."""
    if not settings.vectorized and not settings.prefix:
        return settings
    name = f"ALE/{settings.plain_id}" if settings.prefix else settings.id
    try:
        spec = environment_spec(name)
    except ConfigurationError:
        raise _draws_nothing(settings, "Gymnasium does not know it") from None
    if not spec.id.startswith("ALE/"):
        return msgspec.structs.replace(settings, vectorized=False)
    given = {**({} if settings.prefix else spec.kwargs), **settings.options}
    options = {
        wanted: next((given[key] for key in keys if key in given), default)
        for wanted, (keys, default) in _PREPROCESSING.items()
    }
    game = {key: given.get(key, default) for key, default in _GAME.items()}
    wrappers = [
        Wrapper("AtariPreprocessing", options),
        Wrapper("FrameStackObservation", {"stack_size": given.get("stack_num", 4)}),
    ]
    if given.get("use_fire_reset", True):
        wrappers.insert(1, Wrapper(f"{__name__}:FireFirst"))
    return Environment(id=name, options={"frameskip": 1, **game}, wrappers=tuple(wrappers))


@contextmanager
def _in_one_line(policy: Policy) -> Iterator[None]:
    """An environment may raise anything."""
    try:
        yield
    except Exception as error:
        name = policy.experiment.environment.id
        raise EnvironmentFailure(f"{name} fails while it plays: {describe_error(error)}") from error


def _picture(environment: gymnasium.Env[Any, Any], policy: Policy) -> Array:
    try:
        picture = np.asarray(environment.render())
    except Exception as error:  # an environment may raise anything
        raise _draws_nothing(policy.experiment.environment, describe_error(error)) from error
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise _draws_nothing(
            policy.experiment.environment,
            f"render() gives {picture.dtype} of shape {picture.shape}, expected uint8 (h, w, 3)",
        )
    return picture


def _draws_nothing(settings: Environment, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"environment.id = {settings.id!r}: draws no pictures: {why}; "
        "`genkidama evaluate` plays without them"
    )
