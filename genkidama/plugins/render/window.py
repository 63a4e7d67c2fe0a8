"""A policy is looked at while it plays: in a window, or in a film."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium

from genkidama.config.formatting import plural
from genkidama.errors import ConfigurationError
from genkidama.plugins.render.film import (
    Film,
    Panel,
    Window,
    check_film,
    check_screen,
    without_screen,
)
from genkidama.plugins.render.pictures import Moment, action_names, make_pictured, moments, pace
from genkidama.runs.policy import Policy
from genkidama.runs.run import Run, weights_of

__all__ = ["play"]


def play(
    target: Run | str | Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    best: bool = True,
    deterministic: bool = False,
    video: str | Path | None = None,
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
        fps: pictures a second; the environment's own pace if absent.
        every: one step of so many is shown.
        environment: the id of another environment than the experiment's.
        say: is called with a line about what plays, each episode, and the film.
        allow: modules that the run's or checkpoint's settings may have imported, as `evaluate`.

    Returns:
        The undiscounted return of each episode; of a window that was closed, of those before.

    Raises:
        ConfigurationError: no such weights, they do not fit, or the environment draws no pictures.
        EnvironmentFailure: there is no screen, the file cannot be written, or a package is missing.
    """
    _check(episodes, seed, fps, every)
    weights = weights_of(target, best=best)
    path = None if video is None else check_film(Path(video))
    if path is None:
        check_screen()
    known = () if weights.run is None else weights.run.allow
    policy = Policy(weights.checkpoint, allow=(*known, *allow))
    settings = policy.experiment.environment
    returns: list[float] = []
    hidden = nullcontext() if path is None else without_screen()
    with hidden, closing(make_pictured(settings, environment)) as played:
        _check_fits(policy, played)
        name = played.spec.id if played.spec is not None else environment or settings.id
        say(f"{name}: {weights} ({weights.path})")
        steps = moments(policy, played, episodes, seed, deterministic, every)
        first = next(steps)
        names = action_names(played)
        panel = Panel(name, str(weights), first.picture, names, played.action_space)
        speed = pace(played) / every if fps is None else fps
        screen = Window(panel, name, speed) if path is None else Film(path, panel, speed)
        with closing(screen):
            for moment in chain([first], steps):
                if moment.action is None:
                    returns.append(moment.total)
                    say(_ended(moment))
                if not screen.show(moment):
                    break
        if path is not None:
            say(f"{path}: {screen}")
    return returns


def _check(episodes: int, seed: int, fps: float | None, every: int) -> None:
    if episodes < 1:
        raise ConfigurationError(f"episodes = {episodes}: at least 1 is needed")
    if not 0 <= seed < 2**32:
        raise ConfigurationError(f"seed = {seed}: 0 to {2**32 - 1} is allowed")
    if fps is not None and not 0.0 < fps <= 1000.0:
        raise ConfigurationError(f"fps = {fps:g}: more than 0 and at most 1000 is allowed")
    if every < 1:
        raise ConfigurationError(f"every = {every}: at least 1 is needed")


def _check_fits(policy: Policy, environment: gymnasium.Env[Any, Any]) -> None:
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
    """What must be equal of two spaces: `"Discrete of 4"`, `"Box of shape (8,)"`."""
    size = space.n if isinstance(space, gymnasium.spaces.Discrete) else f"shape {space.shape}"
    return f"{type(space).__name__} of {size}"


def _ended(moment: Moment) -> str:
    steps = plural(moment.step, "step")
    return f"episode {moment.episode + 1}: return {moment.total:.1f} in {steps}"
