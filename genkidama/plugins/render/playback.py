"""`play`: a policy, a person or a program, step by step, in a window, in a film, or for a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import gymnasium
import msgspec
import numpy as np
import numpy.typing as npt

from genkidama.config.allowlist import check_imports
from genkidama.config.decoding import check_least
from genkidama.config.examples import examples
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import plural
from genkidama.config.plugin import find
from genkidama.config.sections import Environment, Wrapper
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.demonstrations import DemonstrationWriter
from genkidama.learning.environments import closing_environment, make_environment, played
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
from genkidama.plugins.render.recording import (
    Gamepad,
    Keyboard,
    Player,
    Recorder,
    StartRecorder,
    Step,
    action_names,
    controlled,
    in_one_line,
    player_of,
)
from genkidama.runs.evaluation_worker import steps_of
from genkidama.runs.policy import Explanation, Policy, explain
from genkidama.runs.run import Run, SelectedWeights, weights_of
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


#: Stands in for the picture of what a person sees without one, as a robot.
_BLANK = np.zeros((400, 400, 3), np.uint8)

#: Stands in for a policy's explanation, of somebody else who plays.
_UNKNOWN = Explanation("unknown", np.zeros(0, np.float32), None, float("nan"))


@dataclass(kw_only=True)
class Playback:
    """The options of `genkidama.play`.

    Raises:
        ConfigurationError: one of them has an impossible value.
    """

    #: How many, at least 1.
    episodes: int = 1
    #: The episodes follow from it.
    seed: int = 0
    #: Of a run, takes the best checkpoint, as `evaluate` does; false takes the newest.
    best: bool = True
    #: Takes the most probable action instead of a sampled one.
    deterministic: bool = False
    #: A film is written to this file, MP4 or GIF, instead of opening a window.
    video: str | Path | None = None
    #: Steps are written to this file for `algorithm.demonstrations`, after those that are there. A
    #: file `*.json` gets a start of each episode, up to a random step, for `evaluate`'s
    #: `starts`.
    record: str | Path | None = None
    #: Who plays in place of the policy: `"keyboard"`, the default for starts, `"gamepad"`,
    #: `"gamepad:/dev/input/js1"`, or an import string of a function from an observation to an
    #: action.
    controller: str | None = None
    #: Pictures a second; the environment's own pace if absent.
    fps: float | None = None
    #: One step in this many is shown.
    every: int = 1
    #: The id of another environment than the experiment's.
    environment: str | None = None
    #: Settings of an experiment that is played, by their dotted names.
    changes: dict[str, Any] = field(default_factory=dict)
    #: Modules that the run's or checkpoint's settings may have imported, as `evaluate`.
    allow: Iterable[str] = ()

    def __post_init__(self) -> None:
        check_least(episodes=self.episodes, every=self.every)
        check_seed(self.seed)
        if self.fps is not None and not 0.0 < self.fps <= 1000.0:
            raise ConfigurationError(f"fps = {self.fps:g}: more than 0 and at most 1000 is allowed")
        if self.records_starts and self.controller is None:
            self.controller = "keyboard"
            if self.video is not None or self.every != 1:
                raise ConfigurationError(
                    "--record: a person sees each step in a window; leave --video and --every out"
                )

    @property
    def records_starts(self) -> bool:
        return self.record is not None and Path(self.record).suffix == ".json"

    @property
    def by_person(self) -> bool:
        return (self.controller or "").partition(":")[0] in ("keyboard", "gamepad")

    @property
    def is_shown(self) -> bool:
        """True if somebody sees it, in a window or a film."""
        unseen = self.controller is not None or self.record is not None
        return self.video is not None or self.by_person or not unseen


@dataclass(frozen=True)
class Scene:
    """An environment, and who plays in it: a policy, or a player in its place."""

    environment: gymnasium.Env[Any, Any]
    settings: Environment
    who: Policy | Player
    #: Whether the environment draws pictures.
    pictured: bool = True

    @property
    def name(self) -> str:
        spec = self.environment.spec
        return self.settings.id if spec is None else spec.id

    @property
    def keys(self) -> Sequence[str]:
        """Lines that say how to play; none of a policy."""
        return () if isinstance(self.who, Policy) else self.who.keys

    def moments(self, wanted: Playback) -> Iterator[Moment]:
        """Plays the episodes that `evaluate` plays with this seed. One step of `wanted.every` is
        shown, and the end of each episode."""
        for episode in range(wanted.episodes):
            steps = self._episode((wanted.seed, episode), wanted.deterministic)
            explanation = _UNKNOWN
            for step in count():
                with in_one_line(f"{self.settings.id} fails while it plays"):
                    observation, action, total = next(steps)
                if action is not None and step % wanted.every:
                    continue
                if action is not None and isinstance(self.who, Policy) and self.pictured:
                    explanation = explain(self.who.model, observation)
                picture = picture_of(self.environment, self.settings) if self.pictured else _BLANK
                yield Moment(episode, step, picture, explanation, action, total)
                if action is None:
                    break

    def _episode(self, seed: tuple[int, int], deterministic: bool) -> Iterator[Step]:
        if isinstance(self.who, Policy):
            return steps_of(self.who.model, self.environment, seed, deterministic)
        return controlled(self.who, self.environment, seed)


def play(
    target: Run | str | Path, *, say: Callable[[str], None] = lambda _: None, **options: Any
) -> list[float]:
    """Plays: a policy, a person or a program, in a window, in a film, or for a file of its steps.

    A policy is shown with what it says beside the picture: action probabilities (of continuous
    actions means ± spread, of DQN Q values), V(s) and the return so far. Its episodes are the first
    ones that `evaluate` plays with the same seed. A person plays in a window. A program plays
    without one, as fast as the environment lets it, and so does a policy whose steps are recorded.

    Args:
        target: a `Run`, its directory, a search's (its best trial plays), or a checkpoint file;
            with a controller an experiment's TOML file, too, which has no policy.
        say: is called with a line about what plays, each episode, and the files.
        options: the fields of `genkidama.Playback`, as `video="landing.mp4"`.

    Returns:
        The undiscounted return of each whole episode.

    Raises:
        ConfigurationError: no such weights, they do not fit, the environment draws no pictures,
            nobody plays, or the file has steps of another environment.
        EnvironmentFailure: there is no screen, a file cannot be written, or a package is missing.
    """
    wanted = Playback(**options)
    experiment, weights = _played(target, wanted)
    film = None if wanted.video is None else check_film(Path(wanted.video))
    shows = wanted.is_shown and (film is not None or _has_screen(wanted.controller))
    source = wanted.controller or str(weights)
    screen: Film | PlaybackScreen | None = None
    returns: list[float] = []
    with ExitStack() as stack:
        if film is not None:
            stack.enter_context(without_screen())
        scene = stack.enter_context(_scene(experiment.environment, weights, wanted, shows))
        own = weights is not None and wanted.controller is None
        say(f"{scene.name}: {source}" + (f" ({weights.path})" if weights and own else ""))
        played = stack.enter_context(_recording(scene, wanted, source, say))
        for line in scene.keys:
            say(f"  {line}")
        steps = played.moments(wanted)
        with kept():
            begin = next(steps)
        if shows:
            screen = stack.enter_context(_screen(scene, wanted, source, begin, film))
        for moment in chain([begin], steps):
            if moment.action is None:
                returns.append(moment.total)
                say(ended(moment))
            if screen is not None and not screen.show(moment):
                break
    if film is not None:
        say(f"{film}: {screen}")
    return returns


@contextmanager
def _scene(
    settings: Environment, weights: SelectedWeights | None, wanted: Playback, shows: bool
) -> Iterator[Scene]:
    """The environment with who plays in it, open in the meantime."""
    policy = None
    if wanted.controller is None:
        assert weights is not None
        policy = Policy(weights.checkpoint, allow=_allowed(weights, wanted))
    with kept():
        required = wanted.video is not None or not wanted.by_person
        made, pictured = _made(settings, wanted.environment, shows, required)
    with closing_environment(made):
        if policy is not None:
            check_fits(policy, made)
        who = policy or player_of(wanted.controller or "", made)
        if wanted.environment is not None:
            settings = msgspec.structs.replace(settings, id=wanted.environment)
        with closing(who) if isinstance(who, Gamepad) else nullcontext():
            yield Scene(made, settings, who, pictured)


@contextmanager
def _recording(
    scene: Scene, wanted: Playback, source: str, say: Callable[[str], None]
) -> Iterator[Scene]:
    """The scene, whose steps or starts are written to the file that is wanted, if one is."""
    if wanted.record is None:
        yield scene
        return
    path = Path(wanted.record)
    if wanted.records_starts:
        noted = StartRecorder(scene.environment, path)
        try:
            yield replace(scene, environment=noted)
        finally:
            noted.cut()
            noted.tell(say)
        return
    given = msgspec.to_builtins(scene.settings)
    with closing(DemonstrationWriter(path, given, scene.environment, source)) as writer:
        if writer.blocks:
            say(f"{path}: has {plural(writer.blocks, 'block')} of steps, and gets more")
        recorder = Recorder(scene.environment, writer)
        try:
            yield replace(scene, environment=recorder)
        finally:
            recorder.cut()
            recorder.tell(path, say)


@contextmanager
def _screen(
    scene: Scene, wanted: Playback, source: str, begin: Moment, film: Path | None
) -> Iterator[Film | PlaybackScreen]:
    """The film or the window, whose size is that of the first moment's picture."""
    made = scene.environment
    panel = Panel(scene.name, source, begin.picture, action_names(made), made.action_space)
    panel.lines = (*scene.keys, "Space: pause", "Escape: end") if wanted.by_person else ()
    period = scene.settings.period
    own = 1.0 / period if period else pace(made)
    speed = own / wanted.every if wanted.fps is None else wanted.fps
    if film is not None:
        with closing(Film(film, panel, speed)) as written:
            yield written
        return
    if period:  # its own clock decides when a step is
        speed = max(100.0, 2.0 * own)
    with closing(PlaybackScreen(panel, scene.name, speed)) as screen:
        if type(scene.who) is Keyboard:
            scene.who.held = screen.held
        yield screen


def _allowed(weights: SelectedWeights, wanted: Playback) -> list[str]:
    """The modules that the settings of these weights may have imported."""
    return [*wanted.allow, *(() if weights.run is None else weights.run.allow)]


def _played(
    target: Run | str | Path, wanted: Playback
) -> tuple[Experiment, SelectedWeights | None]:
    """The experiment that is played, and the weights of a run or a checkpoint."""
    path = None if isinstance(target, Run) else Path(target)
    if path and (path.suffix == ".toml" or (not path.exists() and str(target) in examples())):
        if wanted.controller is None:
            raise ConfigurationError(
                f"{path}: is an experiment, without weights; say who plays: --controller "
                "keyboard, gamepad or module:function"
            )
        return Experiment.load(path).with_settings(wanted.changes), None
    if wanted.changes:
        raise ConfigurationError(
            f"--set {next(iter(wanted.changes))}: changes an experiment, but {target} is a run; "
            "name a FILE.toml"
        )
    weights = weights_of(target, best=wanted.best)
    experiment = weights.checkpoint.experiment
    if wanted.controller is not None:
        check_imports(experiment.to_dict(), _allowed(weights, wanted), str(weights.path))
    return experiment, weights


def _has_screen(controller: str | None) -> bool:
    """True if there is a screen; a game pad does without."""
    try:
        check_screen()
    except EnvironmentFailure:
        if controller is None:
            raise
        if controller == "keyboard":
            raise EnvironmentFailure(
                "--controller keyboard: needs a window, and this machine has no screen "
                "(DISPLAY and WAYLAND_DISPLAY are not set); take --controller gamepad or "
                "--controller module:function"
            ) from None
        return False
    return True


def _made(
    settings: Environment, name: str | None, shows: bool, required: object
) -> tuple[gymnasium.Env[Any, Any], bool]:
    """The environment, and whether it draws pictures. A person may play without: of a robot they
    see more than a picture."""
    if shows:
        try:
            return make_pictured(settings, name), True
        except ConfigurationError:
            if required:
                raise
    return make_environment(played(settings, name)), False


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
