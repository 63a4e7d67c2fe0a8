"""Environments: any Gymnasium id, or one's own by an import string."""

from __future__ import annotations

from typing import Any

import gymnasium

from genkidama.errors import ConfigurationError
from genkidama.experiment import Environment
from genkidama.plugs import is_plug, load_plug

__all__ = ["default_threshold", "make_environment"]


def make_environment(settings: Environment) -> gymnasium.Env[Any, Any]:
    """One environment, without rendering and without Gymnasium's per-step checker.

    Raises:
        ConfigurationError: it does not exist, does not accept `environment.options`, or cannot be built.
    """
    try:
        if is_plug(settings.id):
            environment = load_plug(settings.id, "environment.id")(**settings.options)
        else:
            environment = gymnasium.make(settings.id, disable_env_checker=True, **settings.options)
    except ConfigurationError:
        raise
    except Exception as error:  # an environment may fail in any way while it is built; the user's setting names it
        raise ConfigurationError(f"environment.id = {settings.id!r}: cannot be built: {type(error).__name__}: {error}") from error
    if not isinstance(environment, gymnasium.Env):
        raise ConfigurationError(f"environment.id = {settings.id!r}: gives a {type(environment).__name__}, expected a gymnasium.Env")
    return environment


def default_threshold(settings: Environment) -> float | None:
    """The mean return from which on Gymnasium calls the task solved, if it says so."""
    if is_plug(settings.id):
        return None
    try:
        return gymnasium.spec(settings.id).reward_threshold
    except gymnasium.error.Error:
        return None
