"""The experiment: every setting of a run, decoded from TOML and checked before anything starts.

The parent owns the experiment and sends it to each child, so a new machine needs no file.
Pure except for `read_toml`, which reads the file that it is given.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast, get_args

import msgspec
import tomli_w

from genkidama.config.combinations import check_combination
from genkidama.config.decoding import NAME, Finite, Meta, Section, convert
from genkidama.config.dependent_defaults import (
    applicable_settings,
    brought,
    is_default,
    let_follow,
    with_chunk,
    with_sac,
)
from genkidama.config.examples import experiment_file
from genkidama.config.plugin import OWNERS, every, find, load, names, plugins
from genkidama.config.sections import (
    ADAPTED,
    Algorithm,
    ChildOverride,
    ChildSettings,
    Environment,
    Kind,
    Network,
    Optimizer,
    ParentSettings,
    Stop,
    check_own,
)
from genkidama.errors import ConfigurationError, EnvironmentFailure

#: Settings whose value may be a name that a plug-in has, and its hook.
_NAMED = (
    ("algorithm", "name", "learners"),
    ("parent", "rule", "rules"),
    ("child", "backend", "backends"),
)

#: Sections whose settings a page shows, and settings of them that it shows elsewhere, or that may
#: hold a secret.
_SHOWN = (
    "environment",
    "network",
    "algorithm",
    "optimizer",
    "replay",
    "child",
    "ga3c",
    "learner",
    "stop",
)
#: Settings of the parent's machine.
_MACHINE = ("start", "listen", "tokens_file", "certificate_file", "key_file")
_NOT_SHOWN = {("environment", "id"), ("algorithm", "name"), ("child", "beta"), ("replay", "url")}


class Experiment(Section, frozen=True):
    """Every setting of a run.

    It is frozen: `msgspec.structs.replace` makes a changed copy, `with_settings` a checked one.
    The tables of built-in plug-ins are fields beside these: `experiment.replay`.
    """

    name: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", extra={"expected": NAME})
    ] = "experiment"
    """Name of the run directory; the file's name if absent."""
    seed: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    """Seed of weights, environments and actions. Asynchronous runs are not repeatable bit for
    bit, even so."""
    solved: Finite | None = None
    """The task counts as solved from this mean return of an evaluation on; Gymnasium's
    threshold if absent."""
    children: tuple[ChildOverride, ...] = ()
    """Settings of some children only, as `{ name = "gpu-*", settings = { "child.backend" = "ga3c" }
    }`, by the same keys as in a child's own file, which wins; of several, the last one wins."""
    environment: Environment = Environment()
    network: Network = Network()
    algorithm: Algorithm = Algorithm()
    optimizer: Optimizer = Optimizer()
    parent: ParentSettings = ParentSettings()
    child: ChildSettings = ChildSettings()
    stop: Stop = Stop()
    plugins: dict[str, Any] = {}
    """The tables `[plugins.NAME]` of plug-ins that are not Genkidama's own."""

    def __post_init__(self) -> None:
        short: Any = self.environment
        if isinstance(short, str | type):  # its id alone
            environment = Environment(id=cast(str, short))
            msgspec.structs.force_setattr(self, "environment", environment)
        super().__post_init__()

    if TYPE_CHECKING:

        def __init__(self, **settings: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

    def section(self, name: str) -> Any:
        """The table of a built-in plug-in; None without the plug-in, or if it is absent."""
        return getattr(self, name, None)

    @classmethod
    def expect(cls, value: object) -> None:
        """Raises a `ConfigurationError` if this is no experiment, but a name, say."""
        if not isinstance(value, cls):
            raise ConfigurationError(
                f"experiment = {value!r}: expected a genkidama.Experiment, as "
                "Experiment(environment='CartPole-v1') or Experiment.load('lunarlander')"
            )

    @property
    def pushes(self) -> Kind:
        """The content of a child's pushes: `"weights"`, `"difference"`, `"gradient"` or
        `"experience"`."""
        if self.child.push != "auto":
            return self.child.push
        rule = None if self.searches else find("rules", self.parent.rule)
        return "weights" if rule is None else rule.takes

    @property
    def searches(self) -> bool:
        """True if each child trains a trial of its own: there is a `[search]`."""
        return self.section("search") is not None

    @property
    def sends_experience(self) -> bool:
        """True if children act for a learner on the parent's machine, and send it their steps."""
        return self.pushes == "experience"

    @property
    def cooperation(self) -> str:
        """The way in which children cooperate, in one sentence."""
        if self.searches:
            return "each child trains trials of its own"
        if self.sends_experience:
            return "children act, and one learner beside the parent learns from all"
        if self.child.exchange == "chunk":
            return "every child learns by itself, and their weights are averaged in chunks"
        if self.pushes in ("weights", "difference"):
            return "every child learns, and the parent blends their weights: hardly faster than one"
        return "every child learns by itself, and sends the parent what it has learned"

    @property
    def alpha(self) -> float | None:
        """α, where the parent blends."""
        return self.parent.alpha if self.pushes in ("weights", "difference") else None

    @property
    def beta(self) -> float | None:
        """β, where a child blends."""
        return self.child.beta if self.pushes == "weights" else None

    def changed(self) -> dict[str, Any]:
        """The settings of learning that are not the defaults, dotted. None is a secret."""
        ours, defaults = self.to_dict(), type(self)()
        return {
            f"{section}.{key}": value
            for section in _SHOWN
            for key, value in ours.get(section, {}).items()
            if value != getattr(defaults.section(section), key) and (section, key) not in _NOT_SHOWN
        }

    @property
    def role(self) -> Literal["bundle", "act", "learn"]:
        """The role of a child, in the experiment that its parent has sent it."""
        return self.child.roles[0] if len(self.child.roles) == 1 else "bundle"

    @property
    def replay_steps(self) -> int:
        """Steps that a core keeps, or all cores together if they share a replay; 0 for none, as
        where a learner beside the parent keeps them."""
        replay = self.section("replay")
        return 0 if replay is None or self.sends_experience else replay.steps

    @property
    def shares_replay(self) -> bool:
        """True if all children share one replay, which an engine keeps."""
        replay = self.section("replay")
        return replay is not None and replay.url != "local"

    @property
    def adapts(self) -> tuple[str, ...]:
        """The settings that follow the number of children, as `child.adapt` names them."""
        if self.child.exchange != "chunk":
            return ()
        if self.child.adapt != "auto":
            return self.child.adapt
        return tuple(key for key, section in ADAPTED.items() if is_default(self, section, key))

    @property
    def pull(self) -> float:
        """Step of a child towards θ_P at an exchange: β, or 1."""
        return self.child.beta if self.pushes == "weights" else 1.0

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads an experiment from a TOML file, or an example by its name, as `"lunarlander"`.

        Raises:
            ConfigurationError: the file is missing or no TOML, or a key, type or range is wrong.
                The message names the file, the key, the value and what is allowed.
        """
        path = experiment_file(Path(path))
        settings = read_toml(path)
        settings.setdefault(
            "name", re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).lstrip("-._") or "experiment"
        )
        return cls.from_dict(settings, source=str(path))

    @classmethod
    def from_dict(cls, settings: dict[str, Any], source: str = "the experiment") -> Self:
        """Checks nested settings, as TOML gives them.

        Raises:
            ConfigurationError: as `load`, with `source` in the file's place.
        """
        for table, owner in OWNERS.items():
            if table in settings and owner not in plugins():
                raise ConfigurationError(
                    f"{source}: [{table}]: is of the plug-in {owner!r}, which is not there; "
                    "take the table out, or install Genkidama anew"
                )
        experiment = convert(with_sac(with_chunk(settings)), cls, source)
        if experiment.plugins:
            sections = {
                name: _section_of_plugin(name, table, source)
                for name, table in experiment.plugins.items()
            }
            experiment = msgspec.structs.replace(experiment, plugins=sections)
        _check_names(experiment, source)
        check_combination(settings, experiment, source)
        installed = plugins(installed=True) if experiment.plugins else {}
        for _, check in every("checks"):
            check(settings, experiment, source)
        for name in experiment.plugins:
            for home in installed[name].checks.values():
                load(home)(settings, experiment, source)
        for override in experiment.children:
            where = f"{source}: [[children]] {override.name!r}"
            check_own(override.changes, where)
            plain = msgspec.structs.replace(experiment, children=())
            plain.with_settings(override.changes, where)
        return experiment

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values that `from_dict` accepts, without the absent settings.

        A table of a plug-in that has its defaults is left out, so that a reader may lack it.
        """
        with _writable():
            settings: dict[str, Any] = msgspec.to_builtins(self)
        for name in names("sections"):
            table = getattr(self, name)
            if table is not None and not table.optional and table == type(table)():
                del settings[name]
        for section in ("stop", "search"):
            if (table := settings.get(section)) is not None:
                settings[section] = {k: value for k, value in table.items() if value is not None}
        settings["algorithm"] = applicable_settings(settings["algorithm"], self.algorithm.name)
        if self.child.exchange == "chunk":
            settings["child"]["adapt"] = list(self.adapts)
        for name in ("plugins", "children"):
            if not settings[name]:
                del settings[name]
        return {key: value for key, value in settings.items() if value is not None}

    def to_toml(self) -> str:
        """The experiment as a TOML document."""
        with _writable():
            return tomli_w.dumps(self.to_dict())

    def with_settings(self, changes: dict[str, Any], source: str = "--set") -> Self:
        """A checked copy with single settings changed. Keys are dotted, as `child.exchange`.

        A change of `algorithm.name` between those that learn from their newest steps (`"ppo"`,
        `"a3c"`) and those that sample older ones (`"dqn"`, `"vtrace"`, `"sac"`) brings that
        algorithm's settings, but for those that are given here.

        Raises:
            ConfigurationError: no such key, or a value that it does not allow.
        """
        settings = self.to_dict()
        if isinstance(name := changes.get("algorithm.name"), str):
            settings["algorithm"] = applicable_settings(settings["algorithm"], name)
            # A plug-in that is not there has no section.
            changes = {
                key: value
                for key, value in brought(self.algorithm.name, name).items()
                if hasattr(self, key.partition(".")[0])
                # A core has one environment with a clock, or of which there is one.
                and not (key == "environment.lanes" and self.environment.is_device)
                and not (key.startswith("parent.rule") and self.searches)
            } | changes
        for key, value in changes.items():
            *sections, last = key.split(".")
            where = settings
            for section in sections:
                where = where.setdefault(section, {})
                if not isinstance(where, dict):
                    raise ConfigurationError(f"{source}: {key}: {section!r} is no section")
            where[last] = value
        if "child.adapt" not in changes:
            let_follow(settings, self, changes)
        return type(self).from_dict(settings, source=source)

    def published(self) -> Self:
        """The experiment as strangers may have it: without children's names, and without paths,
        addresses and passwords of the settings that have some."""
        defaults = ParentSettings()
        changes = {f"parent.{key}": getattr(defaults, key) for key in _MACHINE}
        if self.shares_replay:
            changes["replay.url"] = "embedded"
        if self.algorithm.demonstrations:
            changes["algorithm.demonstrations"] = []
        if (search := self.section("search")) is not None and search.storage:
            changes["search.storage"] = ""
        plain = msgspec.structs.replace(self, children=())
        return plain.with_settings(changes, "what is published")

    def for_child(self, name: str) -> Self:
        """The experiment as the child of this name has it: with its settings of `children`."""
        found = [each.changes for each in self.children if fnmatchcase(name, each.name)]
        changes = {key: value for each in found for key, value in each.items()}
        plain = msgspec.structs.replace(self, children=())
        return plain.with_settings(changes, f"[[children]] of {name!r}") if changes else plain


@contextmanager
def _writable() -> Iterator[None]:
    """Turns what only Python can have among options into the user's error."""
    try:
        yield
    except TypeError as error:
        raise ConfigurationError(
            f"options: {error}; give numbers, texts, true, false, lists and tables of these, and "
            "leave out what is None"
        ) from None


def _with_plugins(kind: Any) -> Any:
    """The same struct with the tables of the built-in plug-ins as fields."""
    body: dict[str, Any] = {"__doc__": kind.__doc__, "__module__": kind.__module__}
    body["__annotations__"] = {}
    for name, section in every("sections"):
        body["__annotations__"][name] = section | None if section.optional else section
        body[name] = None if section.optional else section()
    return type(kind)(kind.__name__, (kind,), body, frozen=True, kw_only=True)


if not TYPE_CHECKING:
    Experiment = _with_plugins(Experiment)


#: No file of settings is larger.
_MOST_BYTES = 1 << 20


def read_toml(path: str | Path) -> dict[str, Any]:
    """The file's settings.

    Raises:
        ConfigurationError: it cannot be read or is no TOML.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ConfigurationError(
                f"{path}: not settings: more than {_MOST_BYTES >> 20} MiB; name another file"
            )
        return tomllib.loads(text.decode())
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: is a directory, expected a TOML file") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: not settings: it is nested too deeply") from None
    except ValueError as error:  # also of text that is not UTF-8, and of a number of 5,000 digits
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise EnvironmentFailure(f"{path}: cannot be read: {error.strerror}") from None


def _section_of_plugin(name: str, table: Any, source: str) -> Section:
    """The table `[plugins.NAME]`, checked by the plug-in's own section."""
    key = f"{source}: [plugins.{name}]"
    if isinstance(table, Section):
        return table
    plugin = None if name in plugins() else plugins(installed=True).get(name)
    if plugin is None or name not in plugin.sections:
        raise ConfigurationError(
            f"{key}: no plug-in {name!r} with such a table is installed; install it, or take the "
            "table out"
        )
    if not isinstance(table, dict):
        raise ConfigurationError(f"{source}: plugins.{name} = {table!r}: expected a table")
    section: Section = convert(table, load(plugin.sections[name]), key)
    return section


def _check_names(experiment: Experiment, source: str) -> None:
    """Checks that the core or a plug-in has the names of rule, backend and algorithm."""
    for section, key, hook in _NAMED:
        name = getattr(getattr(experiment, section), key)
        # A backend for a kind of pushes follows from that kind, and is not named.
        hidden = get_args(Kind) if hook == "backends" else ()
        known = [each for each in names(hook) if each not in hidden]
        if ":" in name or name in known:
            continue
        if name not in hidden and name in names(hook, installed=True):
            continue
        raise ConfigurationError(
            f"{source}: {section}.{key} = {name!r}: expected one of "
            f"{', '.join(map(repr, known))}, or an import string 'module:Name'"
        )
