"""`play`: a policy in an environment that draws itself, step by step, in a window or a film."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, closing, contextmanager, nullcontext
from itertools import chain, count
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import gymnasium
import msgspec
import numpy as np
import numpy.typing as npt

from genkidama.config.decoding import check_least
from genkidama.config.formatting import plural
from genkidama.config.plugin import find
from genkidama.config.sections import Environment, Wrapper
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.learning.environments import make_environment, played
from genkidama.learning.starts import check_seed
from genkidama.plugins.render.film import (
    Film,
    Moment,
    Panel,
    PlaybackScreen,
    check_film,
    check_screen,
    without_screen,
)
from genkidama.runs.evaluation_worker import steps_of
from genkidama.runs.policy import Policy, explain
from genkidama.runs.run import Run, weights_of
from genkidama.runtime.files import disk_errors, write_atomically
from genkidama.runtime.import_strings import describe_error, environment_spec
from genkidama.runtime.signals import kept

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

#: Names of the actions of well-known environments, in their order.
_NAMES = {
    "Acrobot": ("left", "none", "right"),
    "CartPole": ("left", "right"),
    "LunarLander": ("none", "left engine", "main engine", "right engine"),
    "MountainCar": ("left", "none", "right"),
}

#: Keys by words in the names of actions.
_KEYS = {word: word for word in ("left", "right", "up", "down")} | {"main": "up", "fire": "return"}


def play(
    target: Run | str | Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    best: bool = True,
    deterministic: bool = False,
    video: str | Path | None = None,
    record: str | Path | None = None,
    fps: float | None = None,
    every: int = 1,
    environment: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    allow: Iterable[str] = (),
) -> list[float]:
    """Shows how a policy plays, in a window or in a film, with what it says beside the picture.

    That is action probabilities (of continuous actions means ± spread, of DQN Q values), V(s) and
    the return so far. The episodes are the first ones that `evaluate` plays with the same seed.

    Args:
        target: a `Run`, its directory, a search's (its best trial plays), or a checkpoint file.
        episodes: how many, at least 1.
        seed: the episodes follow from it.
        best: of a run, takes the best checkpoint, as `evaluate` does; false takes the newest.
        deterministic: takes the most probable action instead of a sampled one.
        video: a film is written to this file, MP4 or GIF, instead of opening a window.
        record: a person plays with the keyboard in a window, and a start of each whole episode, up
            to a random step, is written to this file, for `evaluate`'s `starts`.
        fps: pictures a second; the environment's own pace if absent.
        every: one step in this many is shown.
        environment: the id of another environment than the experiment's.
        say: is called with a line about what plays, each episode, and the film.
        allow: modules that the run's or checkpoint's settings may have imported, as `evaluate`.

    Returns:
        The undiscounted return of each episode; of a window that was closed, of those before.

    Raises:
        ConfigurationError: no such weights, they do not fit, or the environment draws no pictures.
        EnvironmentFailure: there is no screen, the file cannot be written, or a package is missing.
    """
    check_options(episodes, seed, fps, every)
    weights = weights_of(target, best=best)
    if record is not None and (video is not None or every != 1):
        raise ConfigurationError(
            "--record: a person sees each step in a window; leave --video and --every out"
        )
    path = None if video is None else check_film(Path(video))
    if path is None:
        check_screen()
    known = () if weights.run is None else weights.run.allow
    policy = Policy(weights.checkpoint, allow=(*known, *allow))
    settings = policy.experiment.environment
    returns: list[float] = []
    hidden = nullcontext() if path is None else without_screen()
    with ExitStack() as stack:
        stack.enter_context(hidden)
        with kept():
            played = stack.enter_context(closing(make_pictured(settings, environment)))
        check_fits(policy, played)
        name = played.spec.id if played.spec is not None else environment or settings.id
        say(f"{name}: {weights} ({weights.path})")
        names = action_names(played)
        person = None if record is None else Person(played, names)
        steps = moments(policy, person or played, episodes, seed, deterministic, every)
        with kept():
            first = next(steps)
        panel = Panel(name, str(weights), first.picture, names, played.action_space)
        speed = pace(played) / every if fps is None else fps
        screen = PlaybackScreen(panel, name, speed) if path is None else Film(path, panel, speed)
        if person is not None and isinstance(screen, PlaybackScreen):
            person.held = screen.held
            say("arrow keys, Return for fire, digits for actions by number; Escape ends it")
        with closing(screen):
            for moment in chain([first], steps):
                if moment.action is None:
                    returns.append(moment.total)
                    say(ended(moment))
                if not screen.show(moment):
                    break
        if path is not None:
            say(f"{path}: {screen}")
        if record is not None and person is not None and person.starts:
            with disk_errors(Path(record)):
                write_atomically(Path(record), json.dumps(person.starts).encode())
            say(f"{record}: {plural(len(person.starts), 'start')} for evaluate --starts {record}")
    return returns


def check_options(episodes: int, seed: int, fps: float | None, every: int) -> None:
    """Raises a `ConfigurationError` if one of these options of `play` has an impossible value."""
    check_least(episodes=episodes, every=every)
    check_seed(seed)
    if fps is not None and not 0.0 < fps <= 1000.0:
        raise ConfigurationError(f"fps = {fps:g}: more than 0 and at most 1000 is allowed")


def check_fits(policy: Policy, environment: gymnasium.Env[Any, Any]) -> None:
    """Raises a `ConfigurationError` if a policy cannot play in an environment."""
    for what in ("observation_space", "action_space"):
        theirs = _kind(getattr(environment, what))
        ours = _kind(getattr(policy, what))
        if theirs != ours:
            name = environment.spec.id if environment.spec is not None else environment
            raise ConfigurationError(
                f"{name}: its {what} is a {theirs}, but the policy was trained with a {ours}; "
                f"play {policy.experiment.environment.id}"
            )


def _kind(space: gymnasium.Space[Any]) -> str:
    """The properties of a space that must match: `"Discrete of 4"`, `"Box of shape (8,)"`."""
    discrete = isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete)
    size = getattr(space, "n", getattr(space, "nvec", None)) if discrete else f"shape {space.shape}"
    return f"{type(space).__name__} of {size}"


def ended(moment: Moment) -> str:
    """A line about an episode, whose last moment this is."""
    steps = plural(moment.step, "step")
    return f"episode {moment.episode + 1}: return {moment.total:.1f} in {steps}"


class Person(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes the action of the keys that are held down, in place of the policy's.

    Each whole episode gives one of `starts`: its seed, and its actions up to a random step.
    """

    def __init__(self, environment: gymnasium.Env[Any, Any], names: Sequence[str]) -> None:
        super().__init__(environment)
        space = environment.action_space
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise ConfigurationError(
                f"--record: a key is one of a number of actions, but the action space is {space}"
            )
        self._names, self._space = names, space
        self._action, self._seed = 0, 0
        self._actions: list[int] = []
        #: pygame's names of the keys.
        self.held: AbstractSet[str] = frozenset()
        self.starts: list[dict[str, Any]] = []

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self._seed, self._actions = given["seed"], []
        return self.env.reset(**given)

    def step(self, _: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._action = key_action(self.held, self._names, int(self._space.n), self._action)
        self._actions.append(int(self._space.start) + self._action)
        result = self.env.step(self._actions[-1])
        if result[2] or result[3]:
            end = np.random.default_rng(self._seed).integers(len(self._actions))
            self.starts.append({"seed": self._seed, "actions": self._actions[:end]})
        return result


def key_action(held: AbstractSet[str], names: Sequence[str], number: int, before: int) -> int:
    """The action, from 0 on, of the keys that are held down; `before` if they mean none."""
    for action in range(min(number, 10)):
        if str(action) in held:
            return action
    wanted = held & set(_KEYS.values())
    for action, name in enumerate(names):
        if {key for word, key in _KEYS.items() if word in name.lower()} == wanted:
            return action
    return before


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
    """The environment in which a policy is shown, which draws pictures.

    It is what the policy is evaluated in, but in place of a vectorized form it is the plain one,
    since that draws pictures. An Atari game then gets Gymnasium's wrappers. An environment that is
    named is taken whatever it is.
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
    """Plays the episodes that `genkidama evaluate` plays with this seed. One step of `every` is
    shown, and the end of each episode."""
    for episode in range(episodes):
        steps = steps_of(policy.model, environment, (seed, episode), deterministic)
        for step in count():
            with in_one_line(policy.experiment.environment.id):
                observation, action, total = next(steps)
            if action is not None and step % every:
                continue
            if action is not None:
                explanation = explain(policy.model, observation)
            yield Moment(
                episode,
                step,
                picture_of(environment, policy.experiment.environment),
                explanation,
                action,
                total,
            )
            if action is None:
                break


def action_names(environment: gymnasium.Env[Any, Any]) -> list[str]:
    """Names of the actions; empty if they are unknown. A custom environment may have
    `get_action_meanings()`, as Atari games do."""
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
    single = hasattr(find("environments", settings.prefix), "single")
    if single or (not settings.vectorized and not settings.prefix):
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
def in_one_line(name: str) -> Iterator[None]:
    """Turns any exception of the environment of this id into one line."""
    try:
        yield
    except GenkidamaError:
        raise
    except Exception as error:
        raise EnvironmentFailure(f"{name} fails while it plays: {describe_error(error)}") from error


def picture_of(environment: gymnasium.Env[Any, Any], settings: Environment) -> Array:
    """The picture that an environment draws now: uint8, (height, width, 3)."""
    try:
        picture = np.asarray(environment.render())
    except Exception as error:  # an environment may raise anything
        raise _draws_nothing(settings, describe_error(error)) from error
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise _draws_nothing(
            settings,
            f"render() gives {picture.dtype} of shape {picture.shape}, expected uint8 (h, w, 3)",
        )
    return picture


def _draws_nothing(settings: Environment, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"environment.id = {settings.id!r}: draws no pictures: {why}; "
        "`genkidama evaluate` plays without them"
    )
