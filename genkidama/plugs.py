"""Plugs: things of the user's own, named by an import string `"package.module:Name"`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from genkidama.errors import ConfigurationError

if TYPE_CHECKING:
    from genkidama.experiment import Experiment

__all__ = ["check_environment", "is_plug", "load_plug"]


def is_plug(name: str) -> bool:
    """Whether `name` is an import string rather than the name of something built in."""
    return ":" in name and "/" not in name


def load_plug(name: str, key: str) -> Any:
    """What an import string names. Only what is installed or on `sys.path` is ever imported.

    Args:
        name: `"package.module:Name"`.
        key: the setting that holds it, for the error.

    Raises:
        ConfigurationError: there is no such module, it fails to import, or it lacks the name.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigurationError(f"{key} = {name!r}: cannot import {module_name!r}: {error}; is it installed or on PYTHONPATH?") from error
    except Exception as error:  # whatever the user's module raises while it is imported is the user's to mend
        raise ConfigurationError(f"{key} = {name!r}: importing {module_name!r} fails: {type(error).__name__}: {error}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigurationError(f"{key} = {name!r}: module {module_name!r} has no {attribute!r}") from None


def check_environment(experiment: Experiment) -> None:
    """Says early that an environment does not exist, before any process starts. Imports no torch.

    Raises:
        ConfigurationError: Gymnasium does not know the id, or the import string leads nowhere.
    """
    name = experiment.environment.id
    if is_plug(name):
        load_plug(name, "environment.id")
        return
    gymnasium = importlib.import_module("gymnasium")
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise ConfigurationError(f"environment.id = {name!r}: Gymnasium does not know it: {error}") from None
    except ModuleNotFoundError as error:  # an id `module:Name-v0` asks Gymnasium to import the module
        raise ConfigurationError(f"environment.id = {name!r}: {error}") from None
