"""The experiment: every setting of a run, decoded from TOML and checked before anything starts.

The parent owns the experiment and sends it to each child, so a new machine needs no file.
Pure except for `read_toml`, which reads the file that it is given.
"""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast, get_args

import msgspec
import tomli_w

from genkidama.config.decoding import NAME, Finite, Meta, Section, convert
from genkidama.config.examples import experiment_file
from genkidama.config.plugin import OWNERS, every, find, load, names, plugins
from genkidama.config.sections import (
    ADAPTED,
    CHUNKS,
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

#: Settings of `[algorithm]` that some algorithms alone have. One of a user's code has all.
_OF_ALGORITHMS = {
    ("ppo",): ("epochs", "clip"),
    ("ppo", "dqn", "vtrace", "sac"): ("minibatch_size",),
    ("dqn", "vtrace", "sac"): ("start_steps",),
    ("dqn", "vtrace"): ("batch_updates", "n_steps"),
    ("vtrace",): ("burn_in",),
    ("dqn", "sac"): ("demonstrations", "demonstration_share"),
    ("sac",): ("updates_per_step", "target_rate", "layer_norm", "critic_dropout", "target_entropy"),
    ("dqn",): ("double", "dueling", "huber", "target_updates", "target_versions"),
}
_OWN = {key: owners for owners, keys in _OF_ALGORITHMS.items() for key in keys}

#: Values of `algorithm.name` that learn with a memory: those that learn from whole sequences.
REMEMBERING = ("a3c", "ppo", "vtrace")

#: Settings whose value may be a name that a plug-in has, and its hook.
_NAMED = (
    ("algorithm", "name", "learners"),
    ("parent", "rule", "rules"),
    ("child", "backend", "backends"),
)

#: Defaults with `child.exchange = "chunk"`, for four children or fewer.
_CHUNK: dict[str, dict[str, Any]] = {
    "environment": {"lanes": 8},
    "algorithm": {"epochs": 1, "minibatch_size": 64, "normalize_advantages": True},
    "optimizer": {"learning_rate": 1.4e-3},
    "child": {"beta": 1.0},
}

#: Defaults with `algorithm.name = "sac"`.
_SAC: dict[str, dict[str, Any]] = {
    "network": {"activation": "relu", "initialization": "uniform"},
    "algorithm": {"batch_size": 8, "minibatch_size": 256, "start_steps": 500},
    "optimizer": {"learning_rate": 7e-4},
    "replay": {"steps": 100_000},
}

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
_NOT_SHOWN = {("environment", "id"), ("algorithm", "name"), ("child", "beta"), ("replay", "url")}

#: Steps of a lane in such a batch.
_LANE_STEPS = 128


#: Settings that a change from an algorithm of one kind to one of the other kind brings: those with
#: which the examples learn. Algorithms of the user's own bring none.
_SAMPLING = {
    "environment.lanes": 1,
    "network.shared": True,
    "network.activation": "relu",
    "network.initialization": "uniform",
    "algorithm.batch_updates": 4,
    "algorithm.vtrace": False,
    "algorithm.max_gradient_norm": 10.0,
    "optimizer.learning_rate": 1e-3,
    "replay.steps": 50_000,
    "parent.rule": "blend",
    "parent.rule_options": {},
    "parent.alpha": 0.9,
    "child.backend": "hogwild",
    "child.exchange": "free",
    "child.exchange_seconds": 0.25,
}
_ON_POLICY = {
    "environment.lanes": 8,
    "network.shared": False,
    "network.activation": "tanh",
    "network.initialization": "orthogonal",
    "algorithm.gae_lambda": 0.95,
    "algorithm.batch_size": 1024,
    "algorithm.epsilon": 0.0,
    "algorithm.epsilon_schedule": "constant",
    "algorithm.max_gradient_norm": 0.5,
    "algorithm.normalize_advantages": True,
    "optimizer.learning_rate": 1e-3,
    "replay.steps": 0,
    "parent.rule": "experience",
    "parent.rule_options": {},
    "child.backend": "hogwild",
    "child.exchange": "episode",
}
_BROUGHT: dict[str, dict[str, Any]] = {
    "a3c": _ON_POLICY,
    "ppo": _ON_POLICY | {"algorithm.epochs": 10, "algorithm.minibatch_size": 128},
    "vtrace": _SAMPLING
    | {"algorithm.batch_size": 32, "algorithm.n_steps": 16, "algorithm.epsilon": 0.0},
    "dqn": _SAMPLING
    | {
        "network.memory": 0,
        "algorithm.batch_size": 4,
        "algorithm.minibatch_size": 64,
        "algorithm.start_steps": 500,
        "algorithm.n_steps": 3,
        "algorithm.dueling": True,
        "algorithm.epsilon": 1.0,
        "algorithm.epsilon_schedule": "linear",
        "algorithm.final_epsilon": 0.02,
        "algorithm.epsilon_fraction": 0.15,
        "algorithm.target_updates": 40,
    },
    "sac": _ON_POLICY
    | {f"{section}.{key}": value for section, keys in _SAC.items() for key, value in keys.items()}
    | {
        "environment.lanes": 1,
        "network.memory": 0,
        "algorithm.across_episodes": True,
        "algorithm.vtrace": False,
        "algorithm.max_gradient_norm": 0.0,
        "algorithm.normalize_advantages": False,
    },
}


def brought(before: str, after: str) -> dict[str, Any]:
    """The settings that a change of `algorithm.name` brings, dotted."""
    known = {before, after} <= _BROUGHT.keys()
    if not known or _BROUGHT[before]["replay.steps"] == _BROUGHT[after]["replay.steps"]:
        return {}  # of one kind
    return _BROUGHT[after]


def applicable_settings(section: dict[str, Any], name: str) -> dict[str, Any]:
    """The settings of `[algorithm]` that the algorithm of this name has."""
    if name not in _BROUGHT:
        return section
    return {key: value for key, value in section.items() if name in _OWN.get(key, (name,))}


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
        ours, defaults = self.to_dict(), type(self)().to_dict()
        return {
            f"{section}.{key}": value
            for section in _SHOWN
            for key, value in ours.get(section, {}).items()
            if value != defaults.get(section, {}).get(key) and (section, key) not in _NOT_SHOWN
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
        return tuple(key for key, section in ADAPTED.items() if _is_default(self, section, key))

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
        experiment = convert(_with_sac(_with_chunk(settings)), cls, source)
        if experiment.plugins:
            sections = {
                name: _section_of_plugin(name, table, source)
                for name, table in experiment.plugins.items()
            }
            experiment = msgspec.structs.replace(experiment, plugins=sections)
        _check_names(experiment, source)
        _check_combination(settings, experiment, source)
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
        if (name := changes.get("algorithm.name")) is not None:
            settings["algorithm"] = applicable_settings(settings["algorithm"], name)
            # A plug-in that is not there has no section.
            changes = {
                key: value
                for key, value in brought(self.algorithm.name, name).items()
                if hasattr(self, key.partition(".")[0])
                # A core has one environment with a clock.
                and not (key == "environment.lanes" and self.environment.period)
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
            _let_follow(settings, self, changes)
        return type(self).from_dict(settings, source=source)

    def for_child(self, name: str) -> Self:
        """The experiment as the child of this name has it: with its settings of `children`."""
        found = [each.changes for each in self.children if fnmatchcase(name, each.name)]
        changes = {key: value for each in found for key, value in each.items()}
        plain = msgspec.structs.replace(self, children=())
        return plain.with_settings(changes, f"[[children]] of {name!r}") if changes else plain


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


def _with_chunk(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the defaults of `child.exchange = "chunk"`, if that is set."""
    child = settings.get("child")
    if not isinstance(child, dict) or child.get("exchange") != "chunk":
        return settings
    result = dict(settings)
    for name, defaults in _CHUNK.items():
        given = settings.get(name, {})
        if not isinstance(given, dict):
            return settings
        kind = given.get("name", "ppo") if name == "algorithm" else "ppo"
        result[name] = {**applicable_settings(defaults, kind), **given}
    lanes = result["environment"]["lanes"]
    if isinstance(lanes, int):
        result["algorithm"].setdefault("batch_size", _LANE_STEPS * lanes)
    algorithm = result["algorithm"]
    kind = algorithm.get("name", "ppo")
    if kind == "a3c" and not algorithm.get("epsilon"):
        algorithm.setdefault("vtrace", True)  # older policies have played three quarters of a batch
    if child.get("adapt", "auto") == "auto":
        result["child"]["adapt"] = [
            key
            for key, section in ADAPTED.items()
            if key not in settings.get(section, {})
            and (key != "minibatch_size" or kind not in ("a3c", "dqn", "vtrace", "sac"))
        ]
    return result


def _with_sac(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the defaults of `algorithm.name = "sac"`, if that is set."""
    algorithm = settings.get("algorithm")
    if not isinstance(algorithm, dict) or algorithm.get("name") != "sac":
        return settings
    result = dict(settings)
    for name, defaults in _SAC.items():
        given = settings.get(name, {})
        if not isinstance(given, dict):
            return settings
        if name != "replay" or name in names("sections"):
            result[name] = {**defaults, **given}
    return result


def _let_follow(settings: dict[str, Any], before: Any, changes: dict[str, Any]) -> None:
    """Lets nothing follow the number of children that `changes` set, and all else if they turn
    `child.exchange` to `"chunk"`."""
    child = settings["child"]
    if not isinstance(child, dict):
        return
    if before.child.exchange == "chunk":
        child["adapt"] = [key for key in before.adapts if f"{ADAPTED[key]}.{key}" not in changes]
    elif child["exchange"] == "chunk":
        child["adapt"] = "auto"
        defaults = [(name, key) for name, keys in _CHUNK.items() for key in keys]
        for name, key in (*defaults, ("algorithm", "batch_size"), ("parent", "alpha")):
            if f"{name}.{key}" not in changes and _is_default(before, name, key):
                settings[name].pop(key, None)


def _is_default(experiment: Any, section: str, key: str) -> bool:
    settings = getattr(experiment, section)
    return getattr(settings, key) in (
        getattr(type(settings)(), key),
        _CHUNK.get(section, {}).get(key),
    )


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


def _check_combination(given: dict[str, Any], experiment: Experiment, source: str) -> None:
    """Checks what no single field's type can say."""
    algorithm, environment = experiment.algorithm, experiment.environment
    child = experiment.child
    for key, value in given.get("algorithm", {}).items():
        if key not in applicable_settings({key: value}, algorithm.name):
            owners = " or ".join(map(repr, _OWN[key]))
            raise ConfigurationError(
                f"{source}: algorithm.{key} = {value!r}: "
                f"only algorithm.name = {owners} has this setting"
            )
    learns_itself = not experiment.sends_experience
    small = algorithm.minibatch_size > algorithm.batch_size
    if algorithm.name == "ppo" and small and learns_itself:
        raise ConfigurationError(
            f"{source}: algorithm.minibatch_size = {algorithm.minibatch_size}: "
            f"at most algorithm.batch_size = {algorithm.batch_size} is allowed"
        )
    if experiment.network.memory:
        _check_memory(experiment, source)
    elif algorithm.burn_in:
        raise ConfigurationError(
            f"{source}: algorithm.burn_in = {algorithm.burn_in}: brings the state of a memory up "
            "to date, but network.memory = 0; set that, or take algorithm.burn_in out"
        )
    if environment.exclusive:
        _check_exclusive(experiment, source)
    if environment.period:
        _check_real_time(experiment, source)
    if environment.lanes > 1 and child.backend != "ga3c":
        _check_lanes(experiment, source)
    if child.exchange == "chunk":
        _check_chunk(experiment, source)
    if set(child.roles) != {"bundle"} and experiment.section("replay") is None:
        raise ConfigurationError(
            f"{source}: child.roles = {list(child.roles)}: a replay for all children is of the "
            "plug-in 'gorila', which is not there; take the setting out"
        )
    on_policy = child.backend == "hogwild" and learns_itself and child.exchange != "chunk"
    other = algorithm.name in ("ppo", "dqn", "vtrace", "sac")
    if algorithm.vtrace and (other or on_policy):
        key, value = ("algorithm.name", algorithm.name) if other else ("child.backend", "hogwild")
        raise ConfigurationError(
            f"{source}: algorithm.vtrace = True: is for a3c with the backend ga3c, "
            "with child.exchange = 'chunk', or with parent.rule = 'experience', "
            f"but {key} = {value!r}"
        )
    if algorithm.vtrace and algorithm.epsilon:
        raise ConfigurationError(
            f"{source}: algorithm.vtrace = True: knows the policy's own actions only; "
            "set algorithm.epsilon to 0"
        )
    if environment.wrappers and (environment.vectorized or environment.prefix):
        name = environment.wrappers[0].name
        kind, cause = "a vectorized environment", "environment.vectorized"
        if environment.prefix:
            cause = f"{environment.prefix + ':'!r} of environment.id"
        raise ConfigurationError(
            f"{source}: environment.wrappers: {name!r} cannot be put around {kind}; "
            f"take out {cause} or the wrappers"
        )
    if child.exchange == "free" and not child.exchange_seconds and not child.exchange_steps:
        raise ConfigurationError(
            f"{source}: child.exchange_seconds = 0: with exchange_steps = 0 too, "
            "a free child would never exchange; set one of them"
        )
    if experiment.parent.browsers and not experiment.sends_experience:
        raise ConfigurationError(
            f"{source}: parent.browsers = True: a browser acts and does not learn, but parent.rule "
            f"= {experiment.parent.rule!r}; set parent.rule = 'experience', or take browsers out"
        )
    if not experiment.parent.checkpoint_updates and not experiment.parent.checkpoint_seconds:
        raise ConfigurationError(
            f"{source}: parent.checkpoint_seconds = 0: with checkpoint_updates = 0 too, "
            "nothing would be saved on the way; set one of them"
        )


def _shared_by(experiment: Experiment) -> str:
    """The setting by which a core would have other than one environment; empty if none does."""
    environment = experiment.environment
    if environment.lanes > 1:
        return f"environment.lanes = {environment.lanes}: set it to 1"
    if environment.vectorized or environment.prefix:
        return "the environment is vectorized: take that out"
    if experiment.child.backend == "ga3c":
        return "child.backend = 'ga3c' has several agents: set it to 'hogwild'"
    return ""


def _check_memory(experiment: Experiment, source: str) -> None:
    """Checks an experiment whose network has a memory."""
    cause = ""
    if experiment.algorithm.name not in REMEMBERING:
        known = ", ".join(map(repr, REMEMBERING))
        cause = f"algorithm.name = {experiment.algorithm.name!r}: take one of {known}"
    elif ":" in experiment.network.name:
        cause = f"network.name = {experiment.network.name!r}: take 'actor-critic' for instance"
    elif experiment.child.backend != "hogwild":
        cause = f"child.backend = {experiment.child.backend!r}: set it to 'hogwild'"
    elif experiment.shares_replay:
        cause = f"replay.url = {experiment.replay.url!r}: set it to 'local'"
    if cause:
        raise ConfigurationError(
            f"{source}: network.memory = {experiment.network.memory}: is impossible with {cause}, "
            "or network.memory to 0"
        )


def _check_exclusive(experiment: Experiment, source: str) -> None:
    """Checks an experiment whose environment can be open once."""
    cores = experiment.child.cores
    cause = _shared_by(experiment)
    if not cause and cores not in ("auto", 1):
        cause = f"child.cores = {cores}: set it to 1"
    if cause:
        raise ConfigurationError(
            f"{source}: environment.exclusive = True: one core plays one environment, but {cause}"
        )


def _check_real_time(experiment: Experiment, source: str) -> None:
    """Checks an experiment whose environments have a clock."""
    environment = experiment.environment
    cause = _shared_by(experiment)
    if not cause and experiment.child.cores == "auto":
        cause = "child.cores = 'auto': set it to 1, or to how many there are at each child"
    if cause:
        raise ConfigurationError(
            f"{source}: environment.period = {environment.period}: each core has one environment "
            f"with a clock, but {cause}"
        )
    if 0.0 < environment.safe_seconds <= environment.period:
        raise ConfigurationError(
            f"{source}: environment.safe_seconds = {environment.safe_seconds}: an observation is "
            f"environment.period = {environment.period} old when the next action is due; set it to "
            "twice that, for instance"
        )
    if not environment.safe_action and (environment.safe_seconds or environment.offline_seconds):
        raise ConfigurationError(
            f"{source}: environment.safe_seconds, environment.offline_seconds: say when "
            "environment.safe_action is taken, which is not there; set it"
        )


def _check_chunk(experiment: Experiment, source: str) -> None:
    """Checks an experiment whose children exchange after each chunk."""
    algorithm, lanes = experiment.algorithm, experiment.environment.lanes
    key = f"{source}: child.exchange = 'chunk'"
    if experiment.pushes not in ("weights", "difference") or experiment.searches:
        cause = "a [search]" if experiment.searches else f"parent.rule = {experiment.parent.rule!r}"
        raise ConfigurationError(
            f"{key}: averages weights, and {cause} does not; take another child.exchange, or "
            "parent.rule = 'blend'"
        )
    if experiment.child.backend == "ga3c" or set(experiment.child.roles) != {"bundle"}:
        raise ConfigurationError(
            f"{key}: is for cores that act and learn; set child.backend to 'hogwild' and leave "
            "child.roles out"
        )
    if not algorithm.across_episodes:
        raise ConfigurationError(
            f"{key}: a chunk does not end with its episode; set algorithm.across_episodes to true"
        )
    if algorithm.batch_size % (CHUNKS * lanes):
        raise ConfigurationError(
            f"{source}: algorithm.batch_size = {algorithm.batch_size}: is no multiple of "
            f"{CHUNKS} chunks in environment.lanes = {lanes}; set it to {_LANE_STEPS * lanes}, "
            "for instance"
        )


def _check_lanes(experiment: Experiment, source: str) -> None:
    lanes, algorithm = experiment.environment.lanes, experiment.algorithm
    key = f"{source}: environment.lanes = {lanes}"
    if not algorithm.across_episodes:
        raise ConfigurationError(
            f"{key}: episodes in several lanes do not end together, "
            "but algorithm.across_episodes = False ends a batch with its episode; set it to true"
        )
    if algorithm.batch_size % lanes:
        divisible = max(1, algorithm.batch_size // lanes) * lanes
        raise ConfigurationError(
            f"{key}: does not divide algorithm.batch_size = {algorithm.batch_size}; "
            f"set that to {divisible}, for instance"
        )
