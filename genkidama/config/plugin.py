"""Plug-ins: optional parts, which the core knows only by name. Pure.

Laws of this file:
- The core imports no plug-in. It looks a name up here, and only the object of that name is
  imported.
- A plug-in is one value, `PLUGIN`, in its package: tables of names and import strings. Deleting the
  package deletes the names, and an experiment that uses one is refused in one line.
- Built-in plug-ins are the packages in `genkidama/plugins/`. Others are entry points of the group
  `genkidama.plugins`. These are looked up only for a name that is not built in, since finding them
  reads the metadata of every installed package.
- This module needs only the standard library, so help and the doctor work without anything else.
- `CORE` has the names of the core itself, so that one table holds all values of a setting.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from genkidama.errors import ConfigurationError

#: The entry points of installed plug-ins.
GROUP = "genkidama.plugins"

Table = Mapping[str, str]

#: The table of a hook that a plug-in does not have.
_NONE: Table = {}


class Plugin(NamedTuple):
    """The additions of one plug-in, by hook: names and import strings `"package.module:Name"`."""

    sections: Table = _NONE
    """Tables of an experiment: `config.decoding.Section` classes. The section of another package's
    plug-in has the plug-in's name, and is the table `[plugins.NAME]`."""
    checks: Table = _NONE
    """Checks of a whole experiment: `check(given, experiment, source)` with the settings as given,
    the experiment made from them, and its name for errors; raises `ConfigurationError`. The checks
    of another package's plug-in run only if the experiment has its table."""
    rules: Table = _NONE
    """Values of `parent.rule`: `server.rules.blend.Rule` classes."""
    rule_wrappers: Table = _NONE
    """Rules around the rule of an experiment: `wrap(rule, settings) -> Rule`, with `[parent]`."""
    companions: Table = _NONE
    """Processes beside a parent: `companion(parent) -> Companion | None`, with the base class in
    `genkidama.parent.extensions`."""
    trials: Table = _NONE
    """Stores of runs with many trials, by the section that requests them: `RunStore` classes."""
    status_parts: Table = _NONE
    """Parts of a run's status, by the section that requests them: `runs.status.SearchPart`."""
    backends: Table = _NONE
    """Values of `child.backend`, and kinds of pushes that need a backend of their own:
    `child.backend.Backend` classes."""
    cores: Table = _NONE
    """Cores for kinds of pushes that need their own: `child.core.Core` classes."""
    core_parts: Table = _NONE
    """Parts of a core by the field of a rollout that they fill, as `"replay"`:
    `child.core.CorePart` classes, with their arrays in the shared memory of a child."""
    connections: Table = _NONE
    """`"shards"`, the connection of a child to a parent in several processes: a class with the
    methods of `child.parent_connection.ParentConnection`."""
    learners: Table = _NONE
    """Values of `algorithm.name`: `learning.learners.Learner` classes."""
    environments: Table = _NONE
    """Environments by the prefix of `environment.id`, as `"envpool"` of `"envpool:CartPole-v1"`:
    `Maker(settings, count)` returns a `gymnasium.vector.VectorEnv` that begins the next episode in
    the step that ends the last. `Maker.check(settings)` raises `ConfigurationError`, before
    anything starts, if this machine cannot make it."""
    observers: Table = _NONE
    """Readers of a parent's events, and HTTP: `observer(parent) -> Observer | None`."""
    displays: Table = _NONE
    """Displays of `"evaluation"`: `display(episodes, checkpoints=1)`, a context manager whose value
    is called with each return; those of several checkpoints are compared."""
    weights: Table = _NONE
    """Places from which `train --from NAME` takes weights: `fetch(name) -> Path | None`, a run's
    directory or a checkpoint file on this disk; None if no weights of this place are meant."""
    run_methods: Table = _NONE
    """Methods of `genkidama.Run` that need more than the core: `method(run, …)`."""
    exports: Table = _NONE
    """Names of the package itself, as `genkidama.play`."""
    verbs: Table = _NONE
    """Verbs of the command: `cli.options.Verb` values, in modules that are quick to import."""
    followers: Table = _NONE
    """Readers of the history of a run that this machine starts: `cli.options.Follower` values."""


CORE = Plugin(
    checks={"rule": "genkidama.server.rules.registry:check_rule"},
    rules={
        "blend": "genkidama.server.rules.blend:Blend",
        "weighted": "genkidama.server.rules.weighted:Weighted",
        "difference": "genkidama.server.rules.difference:Difference",
        "gradient": "genkidama.server.rules.gradient:Gradient",
    },
    backends={"hogwild": "genkidama.child.orchestrator:CoreOrchestrator"},
    displays={"evaluation": "genkidama.cli.progress:EvaluationProgress"},
    learners={"a3c": "genkidama.learning.a3c:A3C", "ppo": "genkidama.learning.ppo:PPO"},
)

#: Tables of an experiment, and the built-in plug-ins that have them: for the error if one is gone.
OWNERS = {"ga3c": "ga3c", "replay": "gorila", "search": "hypertrick"}

#: Hooks of what a child uses.
_OF_CHILDREN = ("backends", "cores", "core_parts", "connections", "learners", "environments")

#: Hooks that nothing asks of an installed plug-in.
_BUILT_IN_ONLY = ("rule_wrappers", "trials", "status_parts", "followers", "exports")


@cache
def _built_in() -> dict[str, Plugin]:
    folder = importlib.import_module("genkidama.plugins").__path__[0]
    # `pkgutil.iter_modules` would import `inspect`, a tenth of the command's start.
    modules = sorted(each.parent.name for each in Path(folder).glob("*/__init__.py"))
    found = {name: importlib.import_module(f"genkidama.plugins.{name}").PLUGIN for name in modules}
    return {"core": CORE, **found}


@cache
def _installed() -> dict[str, Plugin]:
    metadata = importlib.import_module("importlib.metadata")
    found: dict[str, Plugin] = {}
    for entry in metadata.entry_points(group=GROUP):
        try:
            value = entry.load()
        except Exception as error:  # a package of somebody else's may raise anything
            raise ConfigurationError(
                f"plug-in {entry.name!r} ({entry.value}): importing it fails: {error}; mend it, or "
                "uninstall its package"
            ) from error
        if not isinstance(value, Plugin):
            raise ConfigurationError(
                f"plug-in {entry.name!r}: {entry.value} is no genkidama.Plugin value"
            )
        for hook in _BUILT_IN_ONLY:
            if getattr(value, hook):
                raise ConfigurationError(
                    f"plug-in {entry.name!r}: {hook}: only plug-ins that come with Genkidama have "
                    "this hook; take it out of PLUGIN"
                )
        found[entry.name] = value
    return found


def plugins(installed: bool = False) -> dict[str, Plugin]:
    """The built-in plug-ins by name, and those of other packages if asked for.

    Raises:
        ConfigurationError: an installed one cannot be imported or is no `Plugin`.
    """
    return {**_installed(), **_built_in()} if installed else _built_in()


def is_of_parents(name: str) -> bool:
    """True if a child needs nothing of the installed plug-in of this name."""
    return not any(getattr(_installed()[name], hook) for hook in _OF_CHILDREN)


def home(hook: str, name: str) -> str:
    """The import string of a name that only an installed plug-in has; else empty."""
    if ":" in name or name in names(hook):
        return ""
    return next(
        (table[name] for each in _installed().values() if name in (table := getattr(each, hook))),
        "",
    )


def names(hook: str, installed: bool = False) -> list[str]:
    """The names in the tables of a hook, as `"rules"`, over all plug-ins."""
    return [name for each in plugins(installed).values() for name in getattr(each, hook)]


def find(hook: str, name: str) -> Any:
    """The object of this name, imported now; None if no plug-in has it, as an import string.

    Args:
        hook: a field of `Plugin`, as `"rules"`.
        name: a key of its tables.

    Raises:
        ConfigurationError: as `plugins`.
    """
    for source in () if ":" in name else (_built_in, _installed):
        for each in source().values():
            if (home := getattr(each, hook).get(name)) is not None:
                return load(home)
    return None


def every(hook: str, installed: bool = False) -> Iterator[tuple[str, Any]]:
    """Name and object of all entries of a hook, the core's first.

    Args:
        installed: whether plug-ins of other packages count.

    Raises:
        ConfigurationError: as `plugins`.
    """
    for each in (_built_in() | plugins(installed)).values():
        for name, home in getattr(each, hook).items():
            yield name, load(home)


def load(home: str) -> Any:
    """The object of an import string of a plug-in.

    Raises:
        ConfigurationError: it is of another package, and cannot be imported.
    """
    try:
        module, colon, name = home.partition(":")
        if not colon:
            raise ValueError("expected 'package.module:Name'")
        return attrgetter(name)(importlib.import_module(module))
    except Exception as error:  # as above
        if home.startswith("genkidama."):
            raise
        raise ConfigurationError(
            f"{home!r} of a plug-in: importing it fails: {error}; mend it, or uninstall its package"
        ) from error
